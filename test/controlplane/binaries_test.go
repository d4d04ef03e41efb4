package controlplane

import "testing"

func TestMajorMinor(t *testing.T) {
	tests := map[string]struct{ version, wantMajor, wantMinor string }{
		"a release":     {"v1.37.2", "1", "37"},
		"a pre-release": {"v1.38.0-alpha.1", "1", "38+"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			major, minor := majorMinor(tc.version)
			if major != tc.wantMajor || minor != tc.wantMinor {
				t.Errorf("got %q %q, want %q %q", major, minor, tc.wantMajor, tc.wantMinor)
			}
		})
	}
}

func TestTellsVersion(t *testing.T) {
	tests := map[string]struct {
		output, version string
		want            bool
	}{
		"kubernetes":                  {"Kubernetes v1.37.2\n", "v1.37.2", true},
		"kubectl":                     {"Client Version: v1.37.2\nKustomize Version: v5.8.1\n", "v1.37.2", true},
		"etcd":                        {"etcd Version: 3.7.3\nGit SHA: Not provided\n", "v3.7.3", true},
		"another patch":               {"Kubernetes v1.37.20\n", "v1.37.2", false},
		"the placeholder":             {"Kubernetes v0.0.0-master+$Format:%H$\n", "v1.37.2", false},
		"a version with a suffix":     {"Kubernetes v1.37.2-dirty\n", "v1.37.2", false},
		"a binary that is speechless": {"", "v1.37.2", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tellsVersion(tc.output, tc.version); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
