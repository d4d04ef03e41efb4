package rights

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
)

// auditPolicy has every request of the namespace's accounts, and of people, logged. A watch is as
// soon as it is answered.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts:` + gate.Namespace + `", "` + people + `"]
`

// people is the group of those who run commands.
const people = "example.com:people"

// auditLog is the file into which an API server writes.
type auditLog struct{ path string }

// newAuditLog returns the flags that have an API server write one.
func newAuditLog(t *testing.T) (auditLog, []cluster.Option) {
	t.Helper()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	return auditLog{log}, []cluster.Option{
		cluster.WithFlag("audit-policy-file", policy), cluster.WithFlag("audit-log-path", log), cluster.WithFlag("audit-log-mode", "blocking"),
	}
}

// request is a line of the log.
type request struct {
	Verb string `json:"verb"`
	URI  string `json:"requestURI"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	Object struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		Group       string `json:"apiGroup"`
	} `json:"objectRef"`
	Impersonated *struct{}         `json:"impersonatedUser"`
	Annotations  map[string]string `json:"annotations"`
}

// requests are those for resources. The rest, such as discovery, is open to all
// that are authenticated.
func (l auditLog) requests(t *testing.T) []request {
	t.Helper()
	file, err := os.Open(l.path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all []request
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			continue // the last line is being written
		}
		if r.Object.Resource != "" {
			all = append(all, r)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// by reports whether the right is what allows the request.
func (r request) by(right manifests.Right) bool {
	user := right.Role // a person is called as the command
	if right.Account != "" {
		user = gate.Agent{Namespace: gate.Namespace, ServiceAccount: right.Account}.Username()
	}
	return r.User.Username == user && r.Verb == right.Verb &&
		r.Object.Group == right.Group && r.Object.Resource == right.Resource && r.Object.Subresource == "" &&
		(right.Namespace == "" || r.Object.Namespace == right.Namespace) && (right.Name == "" || r.Object.Name == right.Name)
}

func (r request) forbidden() bool { return r.Annotations["authorization.k8s.io/decision"] == "forbid" }

func (r request) String() string {
	_, account, _ := strings.Cut(r.User.Username, gate.Namespace+":")
	return account + ": " + r.Verb + " " + r.URI
}
