package cli

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/nodegate/nodegate/manifests"
)

// lacking are the rights of the list that the caller does not have. Where that
// cannot be asked it is none: the API server will say so itself.
func (c *connection) lacking(ctx context.Context, rights []manifests.Right) []manifests.Right {
	lacks := make([]bool, len(rights))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i, r := range rights {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: r.Namespace, Verb: r.Verb, Group: r.Group, Resource: r.Resource, Name: r.Name,
			},
		}}
		if resource, sub, ok := strings.Cut(r.Resource, "/"); ok {
			review.Spec.ResourceAttributes.Resource, review.Spec.ResourceAttributes.Subresource = resource, sub
		}
		group.Go(func() error {
			err := c.Create(ctx, review)
			lacks[i] = err == nil && !review.Status.Allowed
			return err
		})
	}
	if group.Wait() != nil {
		return nil
	}
	var missing []manifests.Right
	for i, r := range rights {
		if lacks[i] {
			missing = append(missing, r)
		}
	}
	return missing
}

// may refuses a command to whom lacks what it needs, before anything is changed. What
// the caller only would not see is said.
func (o *options) may(ctx context.Context, c *connection, command string) error {
	var needed, seen []manifests.Right
	for _, r := range manifests.CommandRights(command) {
		switch {
		case r.Verb == "escalate" || r.Verb == "bind": // who has what is granted does not need them
		case r.Sees:
			seen = append(seen, r)
		default:
			needed = append(needed, r)
		}
	}
	if missing := c.lacking(ctx, needed); len(missing) > 0 {
		return fmt.Errorf("nothing was changed, because you may not:\n%s\nrun it as somebody who may; docs/rbac.md lists what each command needs, and why",
			phrases(missing))
	}
	if missing := c.lacking(ctx, seen); len(missing) > 0 {
		o.sayf("Some things cannot be seen, because you may not:\n%s", lines(phrases(missing)))
	}
	return nil
}

// phrases lists rights, the verbs on one thing in one line.
func phrases(rights []manifests.Right) string {
	var lines []string
	for i := 0; i < len(rights); {
		verbs, r := []string{rights[i].Verb}, rights[i]
		for i++; i < len(rights) && rights[i].On() == r.On(); i++ {
			verbs = append(verbs, rights[i].Verb)
		}
		lines = append(lines, "  "+strings.Join(verbs, ", ")+" "+r.On())
	}
	return strings.Join(lines, "\n")
}
