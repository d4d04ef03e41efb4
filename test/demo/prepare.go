//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/world"
)

// prepare builds what is not built yet, the control plane and nodegate's own
// programs, and returns the folder of the latter.
func prepare(ctx context.Context, dir string, tell *narrator) (string, error) {
	tell.progress("looking for the control plane, building it the first time")
	if err := findControlPlane(ctx); err != nil {
		return "", err
	}
	tell.progress("building nodegate-controller and nodegate-agent")
	programs := filepath.Join(dir, "programs")
	return programs, world.Build(ctx, programs)
}

// findControlPlane has the builder's own command find or build it. The builder is
// of another module, and shows its progress itself.
func findControlPlane(ctx context.Context) error {
	cmd := world.Command(ctx, "go", "-C", "test/controlplane", "run", "./cmd/assets")
	cmd.Stderr = os.Stderr
	folder, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("building the control plane: %w", err)
	}
	return os.Setenv(cluster.AssetsVariable, strings.TrimSpace(string(folder)))
}
