//go:build linux

package lab

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/nodegate/nodegate/test/cluster"
)

const (
	// routerAddress is the API server's, and serviceAddress is the one by which pods
	// know it: that of the Service kubernetes, the first in its range.
	routerAddress  = "192.168.77.1"
	machinePrefix  = "192.168.77."
	serviceAddress = "10.96.0.1"
	serviceRange   = "10.96.0.0/16"

	// grace is how long a node may be silent until it is taken for unreachable.
	grace = "8s"
)

// controlPlane is etcd, kube-apiserver, kube-scheduler and kube-controller-manager,
// as they run in production: with node authorization and RBAC, NodeRestriction,
// admission of service accounts, and all default controllers.
type controlPlane struct {
	dir, programs, logs string
	// tokens of users, by name.
	tokens map[string]string

	etcd, apiServer, scheduler, manager *process
}

// users are those who get a token, with their groups.
func users(machines []string) map[string]string {
	all := map[string]string{
		"admin":                          "system:masters",
		"system:kube-scheduler":          "",
		"system:kube-controller-manager": "",
	}
	for _, name := range machines {
		all["system:node:"+name] = "system:nodes"
	}
	return all
}

func (c *controlPlane) start(ctx context.Context, machines []string) error {
	if err := c.makeFiles(machines); err != nil {
		return err
	}
	c.define()
	for _, p := range []*process{c.etcd, c.apiServer} {
		if err := p.start(); err != nil {
			return err
		}
	}
	if err := c.awaitAPIServer(ctx); err != nil {
		return err
	}
	for name, user := range map[string]string{"scheduler": "system:kube-scheduler", "manager": "system:kube-controller-manager"} {
		if err := cluster.WriteKubeconfig(c.identity(user), c.path(name+".kubeconfig")); err != nil {
			return err
		}
	}
	return errors.Join(c.scheduler.start(), c.manager.start())
}

// stop ends it, and forgets all.
func (c *controlPlane) stop() error {
	var faults []error
	for _, p := range []*process{c.manager, c.scheduler, c.apiServer, c.etcd} {
		faults = append(faults, p.stop())
	}
	return errors.Join(append(faults, os.RemoveAll(c.dir))...)
}

func (c *controlPlane) path(name string) string { return filepath.Join(c.dir, name) }

func (c *controlPlane) makeFiles(machines []string) error {
	if err := errors.Join(os.MkdirAll(c.dir, 0o700), os.MkdirAll(c.logs, 0o755)); err != nil {
		return err
	}
	c.tokens = map[string]string{}
	var lines strings.Builder
	for user, groups := range users(machines) {
		token := make([]byte, 16)
		_, _ = rand.Read(token) // never fails
		c.tokens[user] = hex.EncodeToString(token)
		fmt.Fprintf(&lines, "%s,%s,%s,%q\n", c.tokens[user], user, user, groups)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return errors.Join(
		os.WriteFile(c.path("tokens"), []byte(lines.String()), 0o600),
		os.WriteFile(c.path("accounts.key"), keyPEM, 0o600))
}

func (c *controlPlane) define() {
	program := func(name string, args ...string) *process {
		return &process{path: filepath.Join(c.programs, name), args: args, log: filepath.Join(c.logs, name+".log")}
	}
	c.etcd = program("etcd", "--data-dir="+c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380")
	c.apiServer = program("kube-apiserver",
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0", "--secure-port=443", "--advertise-address="+routerAddress,
		"--cert-dir="+c.path("apiserver"),
		"--service-cluster-ip-range="+serviceRange,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.path("accounts.key"), "--service-account-signing-key-file="+c.path("accounts.key"),
		"--token-auth-file="+c.path("tokens"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged", "--enable-aggregator-routing")
	c.scheduler = program("kube-scheduler", "--kubeconfig="+c.path("scheduler.kubeconfig"),
		"--leader-elect=false", "--secure-port=0")
	c.manager = program("kube-controller-manager", "--kubeconfig="+c.path("manager.kubeconfig"),
		"--leader-elect=false", "--secure-port=0", "--use-service-account-credentials",
		"--service-account-private-key-file="+c.path("accounts.key"), "--root-ca-file="+c.authority(),
		"--node-monitor-period=1s", "--node-monitor-grace-period="+grace)
}

// authority is the file by which clients know the API server, which makes it.
func (c *controlPlane) authority() string { return c.path("apiserver/apiserver.crt") }

// identity is how a user connects.
func (c *controlPlane) identity(user string) *rest.Config {
	authority, _ := os.ReadFile(c.authority()) // without it nobody connects, which shows
	return &rest.Config{
		Host: "https://" + routerAddress + ":443", BearerToken: c.tokens[user],
		TLSClientConfig: rest.TLSClientConfig{CAData: authority},
		QPS:             -1, WarningHandlerWithContext: rest.NoWarnings{},
	}
}

func (c *controlPlane) awaitAPIServer(ctx context.Context) error {
	err := cluster.Await(ctx, func(ctx context.Context) (bool, error) {
		web, err := rest.HTTPClientFor(c.identity("admin"))
		if err != nil {
			return false, err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+routerAddress+":443/readyz", nil)
		if err != nil {
			return false, err
		}
		answer, err := web.Do(request)
		if err != nil {
			return false, err
		}
		return answer.StatusCode == http.StatusOK, answer.Body.Close()
	})
	if err != nil {
		return fmt.Errorf("waiting for the API server: %w", err)
	}
	return nil
}
