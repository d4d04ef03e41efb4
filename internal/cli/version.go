package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
	"github.com/nodegate/nodegate/internal/report"
	"github.com/nodegate/nodegate/internal/version"
)

type versionOptions struct {
	*options
	output
	client bool
}

func newVersionCommand(o *options) *cobra.Command {
	v := &versionOptions{options: o}
	command := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this program and of what is installed",
		Long: `Show the version of this program, of the API server, and the images of controller and
agents that are installed.

Exit codes: 0 done, 1 failed, 2 done, but not all could be seen.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(command *cobra.Command, _ []string) error { return v.run(command.Context()) },
	}
	v.addTo(command)
	command.Flags().BoolVar(&v.client, "client", false, "show this program's only, and ask no cluster")
	return command
}

func (o *versionOptions) run(ctx context.Context) error {
	if _, err := o.printer(); err != nil {
		return err
	}
	v := &report.Versions{TypeMeta: metav1.TypeMeta{APIVersion: report.APIVersion, Kind: report.VersionsKind}, Client: version.String()}
	if !o.client {
		if err := o.see(ctx, v); err != nil {
			return err
		}
	}
	o.sayUnseen(v.Unseen)
	if done, err := o.print(v, o.Out); err != nil {
		return err
	} else if !done {
		o.show(v)
	}
	if len(v.Unseen) > 0 {
		return outcome(codeUnseen)
	}
	return nil
}

func (o *versionOptions) show(v *report.Versions) {
	rows := [][]cell{cells("client", v.Client)}
	if v.APIServer != "" {
		rows = append(rows, cells("API server", v.APIServer))
	}
	for _, image := range v.Images {
		rows = append(rows, cells(image.Of, image.Image))
	}
	(&table{}).write(o.options, rows)
	if !o.client && len(v.Images) == 0 && len(v.Unseen) == 0 {
		o.sayf("Neither controller nor agent is installed in this cluster.")
	}
}

// see asks the cluster.
func (o *versionOptions) see(ctx context.Context, v *report.Versions) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	if v.APIServer, err = o.gitVersion(); err != nil {
		return err
	}
	l := &look{connection: c}
	if err := l.configurationOrDefault(ctx); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	controllers := &appsv1.DeploymentList{}
	err = c.List(ctx, controllers, client.InNamespace(gate.Namespace), client.MatchingFields{metav1.ObjectNameField: gate.ControllerAccount})
	if err := l.unseen(report.PartController, err); err != nil {
		return fmt.Errorf("looking for the controller: %w", err)
	}
	for _, d := range controllers.Items {
		v.Images = append(v.Images, images("controller", &d.Spec.Template.Spec)...)
	}
	for namespace := range placement.PodSelectors(l.in.Config) {
		if err := l.readDaemonSets(ctx, namespace); err != nil {
			return fmt.Errorf("looking for agents: %w", err)
		}
	}
	for i := range l.in.Config.Gates {
		g := &l.in.Config.Gates[i]
		for _, ds := range placement.DaemonSets(g, l.in.DaemonSets) {
			v.Images = append(v.Images, images("agent of gate "+g.Name, &ds.Spec.Template.Spec)...)
		}
	}
	v.Unseen = l.in.Unseen
	return nil
}

// images are those of a pod's containers, each once.
func images(of string, pod *corev1.PodSpec) []report.Image {
	var found []report.Image
	for _, container := range slices.Concat(pod.Containers, pod.InitContainers) {
		known := slices.ContainsFunc(found, func(i report.Image) bool { return i.Image == container.Image })
		if !known {
			found = append(found, report.Image{Of: of, Container: container.Name, Image: container.Image})
		}
	}
	return found
}
