package cli

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/apiclock"
)

// connection is to the cluster that kubectl's configuration names, with the caller's rights.
type connection struct {
	client.Client
	// watcher is the same, and watches.
	watcher client.WithWatch
	config  *rest.Config
	// clock shows the API server's time after a first answer.
	clock *apiclock.Clock
}

func (o *options) connect() (*connection, error) {
	config, err := o.clientConfig()
	if err != nil {
		return nil, err
	}
	c := &connection{clock: apiclock.New()}
	config = rest.CopyConfig(config)
	config.UserAgent = gate.ManagerCLI
	config.QPS = -1 // the API server's priority and fairness paces requests
	config.Wrap(c.clock.Wrap)
	c.config = config
	mapper, err := o.flags.ToRESTMapper()
	if err != nil {
		return nil, fmt.Errorf("finding out what the API server serves: %w", err)
	}
	if c.watcher, err = client.NewWithWatch(config, client.Options{Mapper: mapper}); err != nil {
		return nil, fmt.Errorf("creating client: %w", err)
	}
	c.Client = client.WithFieldOwner(c.watcher, gate.ManagerCLI)
	return c, nil
}

// clientConfig is kubectl's. Without any, kubectl asks this machine at port 8080,
// where nobody answers any more.
func (o *options) clientConfig() (*rest.Config, error) {
	raw, err := o.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	_, outside := rest.InClusterConfig()
	if len(raw.Clusters) == 0 && *o.flags.APIServer == "" && outside != nil {
		return nil, fmt.Errorf("there is no kubeconfig, or none that names a cluster, at %s: name one by --kubeconfig or in the environment as KUBECONFIG",
			strings.Join(o.flags.ToRawKubeConfigLoader().ConfigAccess().GetLoadingPrecedence(), ", "))
	}
	return o.flags.ToRESTConfig()
}

func newObject(kind schema.GroupVersionKind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

func configMap() *unstructured.Unstructured {
	return newObject(corev1.SchemeGroupVersion.WithKind("ConfigMap"), gate.Namespace, gate.ConfigMapName)
}

// configText is the text of the configuration in its ConfigMap.
func configText(object *unstructured.Unstructured) (string, error) {
	text, found, err := unstructured.NestedString(object.Object, "data", gate.ConfigMapKey)
	if err == nil && !found {
		err = fmt.Errorf("there is no key %s", gate.ConfigMapKey)
	}
	return text, err
}

// parsed is the configuration in its ConfigMap, with its text as far as there is one.
func parsed(object *unstructured.Unstructured) (text string, cfg *gate.Configuration, err error) {
	if text, err = configText(object); err == nil {
		cfg, err = gate.ParseConfiguration([]byte(text))
	}
	if err != nil {
		err = fmt.Errorf("%w: controller and agents go on with the last one that was valid; mend it there, or bring another by kubectl nodegate upgrade --config FILE", explain(err, object))
	}
	return text, cfg, err
}

// unconfigured explains why the ConfigMap cannot be read. Where what admits is there
// without it, as after somebody has deleted the namespace, Nodes are armed all the same.
func (c *connection) unconfigured(ctx context.Context, err error) error {
	object := configMap()
	if !apierrors.IsNotFound(err) {
		return explain(err, object)
	}
	left, listErr := admission(ctx, c)
	if listErr != nil || len(left) == 0 {
		return explain(err, object)
	}
	return fmt.Errorf("%s: %w, but %s is there, and may go on closing Nodes: kubectl nodegate install --config FILE brings the rest back, kubectl nodegate uninstall takes all away",
		describe(object), err, describe(left[0]))
}

// configuration reads the one that is installed.
func (c *connection) configuration(ctx context.Context) (*gate.Configuration, error) {
	object := configMap()
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return nil, c.unconfigured(ctx, err)
	}
	_, cfg, err := parsed(object)
	return cfg, err
}

// change reads an object, lets edit change it, and writes it if edit did. Where
// somebody else writes it at the same time, it starts anew. Nothing that edit leaves
// alone is lost, not even fields that this program does not know.
func (c *connection) change(ctx context.Context, object *unstructured.Unstructured,
	edit func(*unstructured.Unstructured) (changed bool, err error),
) (changed bool, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		if changed, err = edit(object); err != nil || !changed {
			return err
		}
		return c.Update(ctx, object)
	})
	return changed, explain(err, object)
}

// explain says what to do about an error on an object.
func explain(err error, object *unstructured.Unstructured) error {
	if err == nil {
		return nil
	}
	hint := ""
	switch {
	case apierrors.IsNotFound(err) && object.GetKind() == "ConfigMap":
		hint = ": is nodegate installed in this cluster?"
	case unauthorized(err):
		hint = ": run it as somebody who may"
	case apierrors.IsUnauthorized(err):
		hint = ": the kubeconfig's credentials are not accepted"
	}
	return fmt.Errorf("%s: %w%s", describe(object), err, hint)
}

// unauthorized reports whether it is a right that is missing. What admission
// refuses, such as a quota or another's policy, is forbidden too, and to everybody.
func unauthorized(err error) bool {
	said := func(words string) bool { return strings.Contains(err.Error(), words) }
	return apierrors.IsForbidden(err) && (said(" cannot ") || said("not currently held") || said("only with the verb"))
}

func describe(object *unstructured.Unstructured) string {
	name := object.GetName()
	if object.GetNamespace() != "" {
		name = object.GetNamespace() + "/" + name
	}
	return object.GetKind() + " " + name
}

// isNotServed reports whether the API server does not know a kind.
func isNotServed(err error) bool { return meta.IsNoMatchError(err) }
