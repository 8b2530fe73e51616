//go:build lab && night

package unpinnedimage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kuberouter"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
	"github.com/relapse-dev/relapse/topology/must"
)

// A damage is done to the lab's registry right before the fault, and repaired when the
// fault is undone.
type damage func(context.Context, *framework.Run) (repair func(context.Context) error, err error)

func registryGone(ctx context.Context, r *framework.Run) (func(context.Context) error, error) {
	registry := labaccess.Lab(r).Registry()
	return func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, "docker", "start", registry.Container()).CombinedOutput()
		if err != nil {
			return fmt.Errorf("starting the registry: %w: %s", err, out)
		}
		return nil
	}, registry.Stop(ctx)
}

// damagedFile changes one file of the registry's storage (distribution). file chooses it, from the folders
// of kube-router's manifests and of all blobs, and from latest's digest. become returns the damaged bytes;
// if it returns none, the file is removed.
func damagedFile(file func(manifests, blobs, algorithm, hex string) string, become func([]byte) []byte) damage {
	return func(ctx context.Context, r *framework.Run) (func(context.Context) error, error) {
		root, err := labaccess.Lab(r).Registry().Path(ctx, "/var/lib/registry/docker/registry/v2")
		if err != nil {
			return nil, err
		}
		manifests := filepath.Join(root, "repositories/cloudnativelabs/kube-router/_manifests")
		digest, err := os.ReadFile(latestLink(manifests, "", "", ""))
		if err != nil {
			return nil, err
		}
		algorithm, hex, _ := strings.Cut(string(digest), ":")
		path := file(manifests, filepath.Join(root, "blobs"), algorithm, hex)
		was, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		repair := func(context.Context) error { return os.WriteFile(path, was, 0o644) }
		if damaged := become(slices.Clone(was)); damaged != nil {
			return repair, os.WriteFile(path, damaged, 0o644)
		}
		return repair, os.Remove(path)
	}
}

// The files that are damaged.
func latestLink(manifests, _, _, _ string) string {
	return filepath.Join(manifests, "tags/latest/current/link")
}
func manifestBlob(_, blobs, algorithm, hex string) string {
	return filepath.Join(blobs, algorithm, hex[:2], hex, "data")
}

func removed([]byte) []byte         { return nil }
func oneByteMore(was []byte) []byte { return append(was, '\n') }

// TestWhatCannotBePulled has nodes that cannot pull kube-router: that is no incident,
// nothing is claimed, and the reason is in the node's own words.
func TestWhatCannotBePulled(t *testing.T) {
	defer scenariotest.Down(t, Scenario)
	for _, test := range []struct {
		name   string
		damage damage
		says   string
	}{
		{"the registry is gone", registryGone, "dial tcp"},
		{"no tag", damagedFile(latestLink, removed), "latest: not found"},
		{"another digest", damagedFile(manifestBlob, oneByteMore), "unexpected commit digest"},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := Scenario.Variants[0]
			script := v.Script
			v.Script = func() framework.Script {
				made := script()
				// Without what moves latest, which the precursor has done: it would ask the registry, and mend the tag.
				made.Fault = damaged(changeArgument(untagged(kuberouter.V1, corev1.PullAlways)), test.damage)
				return made
			}
			r := scenariotest.Alone(t, Scenario, v, framework.Unknown, framework.Inconclusive)
			step := slices.IndexFunc(r.Steps, func(s report.Step) bool { return s.ID == framework.StepFault.String() })
			if step < 0 {
				t.Fatalf("there is no step of the fault: %+v", r.Steps)
			}
			for _, text := range []string{strings.Join(r.Variants[0].Reasons, "\n"), "fault is injected: " + r.Steps[step].Failed} {
				must.Contain(t, text, "fault is injected: node ", " cannot pull docker.io/cloudnativelabs/kube-router for container install-cni: ", test.says)
			}
		})
	}
}

// damaged is a fault that comes with damage.
func damaged(f framework.Fault, do damage) framework.Fault {
	inject := f.Inject
	repair := func(context.Context) error { return nil }
	f.Inject = func(ctx context.Context, r *framework.Run) error {
		back, err := do(ctx, r)
		if back != nil {
			repair = back
		}
		if err != nil {
			return err
		}
		return inject(ctx, r)
	}
	f.Undo = func(ctx context.Context, _ *framework.Run) error { return repair(ctx) }
	return f
}
