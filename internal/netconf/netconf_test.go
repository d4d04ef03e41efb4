package netconf

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		entry string
		want  Settings
	}{
		"nothing is said":    {`{"type":"nodegate-cni"}`, Defaults()},
		"the runtime's keys": {`{"type":"nodegate-cni","name":"n","cniVersion":"1.1.0","prevResult":{},"runtimeConfig":{"a":1},"args":[]}`, Defaults()},
		"all is said": {`{"socket":"/run/x/s","timeout":"5s","exempt":["dns","mesh/mesh-*"],"status":true}`,
			Settings{Socket: "/run/x/s", Timeout: 5 * time.Second, Exempt: []string{"dns", "mesh/mesh-*"}, Status: true}},
		"nobody is exempt": {`{"exempt":[]}`, Settings{Socket: defaultSocket, Timeout: DefaultTimeout, Exempt: []string{}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseSettings([]byte(tc.entry))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			again, err := ParseSettings(got.Entry())
			if diff := cmp.Diff(got, again); diff != "" || err != nil {
				t.Errorf("its own entry %s reads otherwise (%v):\n%s", got.Entry(), err, diff)
			}
		})
	}
}

// TestParseSettings_Faults: every fault is named at once.
func TestParseSettings_Faults(t *testing.T) {
	for entry, want := range map[string][]string{
		`{`:                              {"reading the settings: unexpected end"},
		`{"socket":1}`:                   {"socket"},
		`{"timeout":20}`:                 {"timeout"},
		`{"timeout":"20"}`:               {`timeout is "20": must be a duration such as 20s`},
		`{"timeout":"61s"}`:              {`timeout is "1m1s": must be more than zero and at most 1m0s`},
		`{"socket":"s","timeout":"-1s"}`: {`socket is "s": must be an absolute path`, `timeout is "-1s"`},
		`{"socket":"/cni.sock"}`:         {"must be in a directory of its own"},
		`{"socket":"/run/` + strings.Repeat("x", 90) + `"}`:                               {"has 95 bytes, at most 93 are possible"},
		`{"exempt":["Mesh","kube_system","a ","-a","` + strings.Repeat("a", 64) + `/x"]}`: {`exempt[0] is "Mesh"`, `exempt[1] is "kube_system"`, `exempt[2] is "a "`, `exempt[3] is "-a"`, `exempt[4] is`},
		`{"exempt":["","a*","a/","a/[","a/b/c","a/b*"]}`:                                  {`exempt[0] is ""`, `exempt[1] is "a*"`, `exempt[2] is "a/"`, `exempt[3] is "a/["`, `exempt[4] is "a/b/c"`},
	} {
		_, err := ParseSettings([]byte(entry))
		if err == nil {
			t.Errorf("%s is accepted", entry)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v does not say %q", entry, err, part)
			}
		}
	}
}

func TestSettings_Exempts(t *testing.T) {
	s := Settings{Exempt: []string{"kube-system", "mesh/mesh-*", "mesh/dns"}}
	for pod, want := range map[Pod]bool{
		{}:                                         false,
		{Name: "kube-system"}:                      false,
		{Namespace: "kube-system"}:                 true,
		{Namespace: "kube-system", Name: "a"}:      true,
		{Namespace: "kube-system-2", Name: "a"}:    false,
		{Namespace: "nodegate-system", Name: "a"}:  true,
		{Namespace: "mesh", Name: "mesh-agent-x1"}: true,
		{Namespace: "mesh", Name: "dns"}:           true,
		{Namespace: "mesh", Name: "shop"}:          false,
		{Namespace: "mesh"}:                        false,
	} {
		if got := s.Exempts(pod); got != want {
			t.Errorf("%+v: %t, want %t", pod, got, want)
		}
	}
}

func TestParseArgs(t *testing.T) {
	pod := Pod{Namespace: "shop", Name: "cart-0", UID: "0deb"}
	for args, want := range map[string]Pod{
		"": {}, ";;=;K8S_POD_NAME": {}, "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=0deb": pod,
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_INFRA_CONTAINER_ID=f00;K8S_POD_UID=0deb": pod,
		"k8s_pod_name=a;K8S_POD_NAME=a=b": {Name: "a=b"},
	} {
		if got := ParseArgs(args); got != want {
			t.Errorf("%q: %+v, want %+v", args, got, want)
		}
	}
}

// FuzzParseSettings: no entry makes it fail but with an error, and what it accepts
// it reads again from its own entry.
func FuzzParseSettings(f *testing.F) {
	for _, seed := range []string{`{}`, `{"socket":"/run/a/b","timeout":"1ns","exempt":["a/\u0000*"],"status":true}`, `null`, `[]`, `{"exempt":null}`, `{"TIMEOUT":"5s"}`} {
		f.Add([]byte(seed), "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b")
	}
	f.Fuzz(func(t *testing.T, entry []byte, args string) {
		s, err := ParseSettings(entry)
		if err != nil {
			return
		}
		s.Exempts(ParseArgs(args))
		if again, err := ParseSettings(s.Entry()); err != nil || !cmp.Equal(s, again) {
			t.Errorf("%s becomes %s: %v", entry, s.Entry(), err)
		}
	})
}
