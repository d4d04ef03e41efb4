// Package cluster starts a real API server and etcd for tests, with the
// authorizers and the node admission of a production cluster, and hands out the
// identities that write Nodes in one: kubelets, people, and pods with tokens
// bound to them. It starts nothing that would change a Node by itself.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// AssetsVariable names the folder with the binaries, as envtest has it.
const AssetsVariable = "KUBEBUILDER_ASSETS"

// startTimeout is for a machine whose cores are busy with other tests.
const startTimeout = 2 * time.Minute

// Cluster is a running API server and its etcd.
type Cluster struct {
	// Admin is a member of system:masters, without a client-side rate limit.
	Admin *rest.Config

	env *envtest.Environment
	// certs is the folder of the API server's certificates and keys.
	certs string
	// others are further API servers over the same etcd.
	others []*envtest.APIServer
}

// Option changes how the API server is started.
type Option func(*envtest.APIServer)

// WithFlag sets a flag of kube-apiserver.
func WithFlag(name string, values ...string) Option {
	return func(s *envtest.APIServer) { s.Configure().Set(name, values...) }
}

// WithoutAdmission leaves admission plugins out.
func WithoutAdmission(plugins ...string) Option {
	return func(s *envtest.APIServer) { s.Configure().Append("disable-admission-plugins", plugins...) }
}

// Start starts a cluster. The caller stops it.
func Start(options ...Option) (*Cluster, error) {
	if os.Getenv(AssetsVariable) == "" {
		return nil, fmt.Errorf("%s is not set: it names the folder with kube-apiserver, etcd and kubectl; "+
			"run the tests by make, or export %s=$(make -s assets)", AssetsVariable, AssetsVariable)
	}
	env := &envtest.Environment{
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  startTimeout,
	}
	certs, err := os.MkdirTemp("", "nodegate-certs-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for certificates: %w", err)
	}
	server := env.ControlPlane.GetAPIServer()
	server.CertDir = certs // one that the API server makes itself goes when it stops
	configure(server, options)
	admin, err := env.Start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting the API server: %w", err), env.Stop(), os.RemoveAll(certs))
	}
	return &Cluster{Admin: unlimited(admin), env: env, certs: certs}, nil
}

// Restart ends the API server's process, has it away for a while, and starts another
// one at the same address, which knows the same identities.
func (c *Cluster) Restart(away time.Duration) error {
	server := c.env.ControlPlane.GetAPIServer()
	if err := server.Stop(); err != nil {
		return fmt.Errorf("stopping the API server: %w", err)
	}
	<-time.After(away)
	if err := server.Start(); err != nil {
		return fmt.Errorf("starting the API server again: %w", err)
	}
	return nil
}

func configure(server *envtest.APIServer, options []Option) {
	server.Configure().
		Set("authorization-mode", "Node", "RBAC").
		Append("enable-admission-plugins", "NodeRestriction")
	for _, option := range options {
		option(server)
	}
}

// StartAnother starts a further API server over the same etcd, and returns an
// administrator of it. It has authorities and keys of its own: no other identity of
// the cluster is known there.
func (c *Cluster) StartAnother(options ...Option) (*rest.Config, error) {
	server := &envtest.APIServer{
		Path:         c.env.ControlPlane.GetAPIServer().Path,
		EtcdURL:      c.env.ControlPlane.Etcd.URL,
		StartTimeout: startTimeout,
		StopTimeout:  startTimeout,
	}
	configure(server, options)
	if err := server.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting another API server: %w", err), server.Stop())
	}
	c.others = append(c.others, server)
	admin, err := server.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, &rest.Config{})
	if err != nil {
		return nil, fmt.Errorf("adding an administrator: %w", err)
	}
	admin.Host, admin.CAData = server.SecureServing.URL("https", "/").String(), server.CA
	return unlimited(admin), nil
}

// Stop ends API servers and etcd and removes their data.
func (c *Cluster) Stop() error {
	var faults []error
	for _, server := range c.others {
		faults = append(faults, server.Stop())
	}
	return errors.Join(append(faults, c.env.Stop(), os.RemoveAll(c.certs))...)
}

// User returns the identity of a person or component with a client certificate.
func (c *Cluster) User(name string, groups ...string) (*rest.Config, error) {
	user, err := c.env.AddUser(envtest.User{Name: name, Groups: groups}, nil)
	if err != nil {
		return nil, fmt.Errorf("adding user %q: %w", name, err)
	}
	return unlimited(user.Config()), nil
}

// Kubelet returns the identity of the kubelet of a node.
func (c *Cluster) Kubelet(node string) (*rest.Config, error) {
	return c.User("system:node:"+node, "system:nodes")
}

// PodToken returns the identity of a pod of the service account that is bound to
// the node: its token names both. Namespace, account and pod are created as
// needed.
func (c *Cluster) PodToken(ctx context.Context, namespace, account, node string) (*rest.Config, error) {
	client, err := c.account(ctx, namespace, account)
	if err != nil {
		return nil, err
	}
	pod, err := client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: account + "-"},
		Spec: corev1.PodSpec{
			NodeName:           node,
			ServiceAccountName: account,
			Containers:         []corev1.Container{{Name: "agent", Image: "agent"}},
			Tolerations:        []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating pod of %s/%s on %q: %w", namespace, account, node, err)
	}
	return c.token(ctx, client, namespace, account, &authenticationv1.BoundObjectReference{
		APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
	})
}

// NodeToken returns the identity of a service account whose token is bound to
// the Node object itself, and not to a pod.
func (c *Cluster) NodeToken(ctx context.Context, namespace, account, node string) (*rest.Config, error) {
	client, err := c.account(ctx, namespace, account)
	if err != nil {
		return nil, err
	}
	object, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("getting node %q: %w", node, err)
	}
	return c.token(ctx, client, namespace, account, &authenticationv1.BoundObjectReference{
		APIVersion: "v1", Kind: "Node", Name: object.Name, UID: object.UID,
	})
}

// AccountToken returns the identity of a service account whose token is bound to
// nothing.
func (c *Cluster) AccountToken(ctx context.Context, namespace, account string) (*rest.Config, error) {
	client, err := c.account(ctx, namespace, account)
	if err != nil {
		return nil, err
	}
	return c.token(ctx, client, namespace, account, nil)
}

// Kubeconfig writes a kubeconfig file for the admin into dir and returns its
// path, for real binaries that are run against the cluster.
func (c *Cluster) Kubeconfig(dir string) (string, error) {
	path := filepath.Join(dir, "admin.kubeconfig")
	if err := os.WriteFile(path, c.env.KubeConfig, 0o600); err != nil {
		return "", fmt.Errorf("writing kubeconfig: %w", err)
	}
	return path, nil
}

// WriteKubeconfig writes a kubeconfig file for an identity.
func WriteKubeconfig(identity *rest.Config, path string) error {
	const name = "cluster"
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: identity.Host, CertificateAuthorityData: identity.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{
		Token: identity.BearerToken, ClientCertificateData: identity.CertData, ClientKeyData: identity.KeyData,
	}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		return fmt.Errorf("writing kubeconfig: %w", err)
	}
	return nil
}

func (c *Cluster) account(ctx context.Context, namespace, account string) (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		return nil, fmt.Errorf("creating client: %w", err)
	}
	_, err = client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("creating namespace %q: %w", namespace, err)
	}
	_, err = client.CoreV1().ServiceAccounts(namespace).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("creating service account %s/%s: %w", namespace, account, err)
	}
	return client, nil
}

func (c *Cluster) token(ctx context.Context, client kubernetes.Interface, namespace, account string,
	bound *authenticationv1.BoundObjectReference,
) (*rest.Config, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}
	answer, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("requesting token of %s/%s: %w", namespace, account, err)
	}
	config := rest.AnonymousClientConfig(c.Admin)
	config.BearerToken = answer.Status.Token
	return unlimited(config), nil
}

// unlimited lets the API server's priority and fairness pace the tests.
func unlimited(config *rest.Config) *rest.Config {
	config.QPS = -1
	config.WarningHandlerWithContext = rest.NoWarnings{}
	return config
}
