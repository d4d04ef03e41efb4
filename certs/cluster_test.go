package certs_test

import (
	"context"
	"encoding/base64"
	"log/slog"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/certs"
	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/syncbuf"
)

const (
	host     = "127.0.0.1"
	interval = 50 * time.Millisecond
)

// environment is an API server, and an account with the rights that
// [certs.SelfManaged] asks for.
type environment struct {
	cluster *cluster.Cluster
	admin   client.Client
	account *rest.Config
	log     *syncbuf.Buffer // of all replicas
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	c := cluster.ForTest(t)
	e := &environment{cluster: c, log: &syncbuf.Buffer{}}
	var err error
	if e.admin, err = client.New(c.Admin, client.Options{}); err != nil {
		t.Fatal(err)
	}
	if e.account, err = c.AccountToken(t.Context(), gate.Namespace, gate.ControllerAccount); err != nil {
		t.Fatal(err)
	}
	e.grant(t)
	return e
}

func (e *environment) create(t *testing.T, object client.Object) {
	t.Helper()
	if err := e.admin.Create(t.Context(), object); err != nil {
		t.Fatalf("creating %T %s: %v", object, object.GetName(), err)
	}
}

// grant gives what the documentation says is needed, and nothing else.
func (e *environment) grant(t *testing.T) {
	t.Helper()
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: gate.Namespace, Name: gate.ControllerAccount}}
	meta := metav1.ObjectMeta{Name: gate.ControllerAccount}
	namespaced := metav1.ObjectMeta{Name: gate.ControllerAccount, Namespace: gate.Namespace}
	e.create(t, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"mutatingwebhookconfigurations"},
		Verbs: []string{"get", "update"}, ResourceNames: []string{gate.WebhookRegistration},
	}}})
	e.create(t, &rbacv1.Role{ObjectMeta: namespaced, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "update"}, ResourceNames: []string{gate.WebhookSecret}},
	}})
	e.create(t, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name}})
	e.create(t, &rbacv1.RoleBinding{ObjectMeta: namespaced, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}})
}

func (e *environment) client(t *testing.T) client.WithWatch {
	t.Helper()
	c, err := client.NewWithWatch(e.account, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// replica is of the controller, as far as its certificate goes. It runs until the
// test ends.
func (e *environment) replica(t *testing.T, c client.Client, clock clock.PassiveClock) *certs.SelfManaged {
	t.Helper()
	source := &certs.SelfManaged{
		Client:       c,
		Secret:       secretKey,
		Registration: gate.WebhookRegistration,
		Names:        []string{host},
		Clock:        clock,
		Log:          slog.New(slog.NewTextHandler(e.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Interval:     interval,
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- source.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("replica ended: %v", err)
		}
	})
	return source
}

var secretKey = client.ObjectKey{Namespace: gate.Namespace, Name: gate.WebhookSecret}

func (e *environment) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	var secret corev1.Secret
	if err := e.admin.Get(t.Context(), secretKey, &secret); err != nil {
		t.Fatal(err)
	}
	return &secret
}

// bundle is what the registration trusts.
func (e *environment) bundle(t *testing.T) string {
	t.Helper()
	var registration admissionregistrationv1.MutatingWebhookConfiguration
	if err := e.admin.Get(t.Context(), client.ObjectKey{Name: gate.WebhookRegistration}, &registration); err != nil {
		t.Fatal(err)
	}
	return string(registration.Webhooks[0].ClientConfig.CABundle)
}

// serial is of the certificate that a replica serves, empty if it serves none.
func serial(source certs.Source) string {
	pair, err := source.GetCertificate(nil)
	if err != nil {
		return ""
	}
	return pair.Leaf.SerialNumber.Text(16)
}

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := cluster.Await(t.Context(), func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// expectNoSecrets looks for keys in the log, in PEM or as a Secret shows them.
func (e *environment) expectNoSecrets(t *testing.T, secret *corev1.Secret) {
	t.Helper()
	log := e.log.String()
	for _, name := range []string{"ca.key", certs.KeyFile} {
		lines := strings.Split(strings.TrimSpace(string(secret.Data[name])), "\n")
		for _, told := range append(lines, base64.StdEncoding.EncodeToString(secret.Data[name])[:60]) {
			if strings.Contains(log, told) {
				t.Errorf("the log tells %s:\n%s", name, log)
			}
		}
	}
	if log == "" {
		t.Error("nothing was logged")
	}
}

func TestSelfManaged_OnAnAPIServer(t *testing.T) {
	e := newEnvironment(t)
	t.Run("replicas agree", e.agree)
	t.Run("what is due is renewed under calls", e.renewals)
	t.Run("the certificate is there before it is trusted", func(t *testing.T) { e.authority(t, holdRegistration) })
	t.Run("the authority is trusted before its certificate is there", func(t *testing.T) { e.authority(t, holdSecret) })
	t.Run("the Secret is deleted under calls", e.deleted)
	for _, complaint := range []string{"forbidden", "panic"} {
		if strings.Contains(e.log.String(), complaint) {
			t.Errorf("the log says %s:\n%s", complaint, e.log)
		}
	}
}

// agree: five replicas start at once, without Secret and registration.
func (e *environment) agree(t *testing.T) {
	c := e.client(t)
	// The authorizer learns of new bindings by a watch.
	await(t, "the account's rights", func() bool {
		return apierrors.IsNotFound(c.Get(t.Context(), secretKey, &corev1.Secret{}))
	})
	replicas := make([]*certs.SelfManaged, 5)
	for i := range replicas {
		replicas[i] = e.replica(t, c, clock.RealClock{})
	}
	allServe := func(want string) func() bool {
		return func() bool {
			for _, source := range replicas {
				if got := serial(source); got == "" || want != "" && got != want || got != serial(replicas[0]) || source.Healthy(time.Now()) != nil {
					return false
				}
			}
			return true
		}
	}
	await(t, "all to serve the same, without a registration", allServe(""))
	first := serial(replicas[0])

	e.register(t, "https://"+host+":1")
	trusted := func() bool { return e.bundle(t) == string(e.secret(t).Data["ca.crt"]) }
	await(t, "the registration to trust the authority", trusted)
	e.clearBundle(t)
	await(t, "the registration to trust the authority again", trusted)
	if got := serial(replicas[0]); got != first {
		t.Errorf("serves %s, want still %s", got, first)
	}

	before := e.secret(t)
	broken := before.DeepCopy()
	broken.Data[certs.KeyFile] = broken.Data["ca.key"]
	broken.Data["foreign"] = []byte("kept")
	if err := e.admin.Update(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
	await(t, "the broken Secret to be replaced", func() bool { return serial(replicas[0]) != first })
	await(t, "all to serve the new certificate", allServe(serial(replicas[0])))
	after := e.secret(t)
	if !strings.HasSuffix(string(after.Data["ca.crt"]), string(before.Data["ca.crt"])) {
		t.Error("the authority from before is not trusted any more")
	}
	if string(after.Data["foreign"]) != "kept" {
		t.Error("a foreign key of the Secret was lost")
	}
	await(t, "the registration to trust the new authority", trusted)
	e.expectNoSecrets(t, before)
	e.expectNoSecrets(t, after)
	e.clean(t)
}

func (e *environment) clearBundle(t *testing.T) {
	t.Helper()
	patch := client.RawPatch("application/json-patch+json", []byte(`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`))
	if err := e.admin.Patch(t.Context(), registrationMeta(), patch); err != nil {
		t.Fatal(err)
	}
}

func registrationMeta() *admissionregistrationv1.MutatingWebhookConfiguration {
	return &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: gate.WebhookRegistration}}
}

// clean makes room for the next test, when its replicas have ended.
func (e *environment) clean(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secretKey.Name, Namespace: secretKey.Namespace}}
		ctx := context.WithoutCancel(t.Context())
		for _, object := range []client.Object{registrationMeta(), secret} {
			if err := e.admin.Delete(ctx, object); err != nil {
				t.Errorf("cleaning up: %v", err)
			}
		}
	})
}
