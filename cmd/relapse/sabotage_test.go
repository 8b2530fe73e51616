package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/fault"
)

// sabotage makes that program do damage to a lab's registry, right before the
// fault. Its value names the damage.
const sabotage = "RELAPSE_TEST_SABOTAGE"

// guestMemory leaves a guest of ipvs-deadlock without memory: what is in a tmpfs, no
// kernel can take back.
const guestMemory = "guest-memory"

// Damages to kube-router's images in the lab's registry.
const (
	registryGone  = "registry-gone"
	noTag         = "no-tag"
	noManifest    = "no-manifest"
	anotherDigest = "another-digest"
)

// sabotaged is a variant whose fault comes with damage. It is repaired when
// the fault is undone.
func sabotaged(v framework.Variant, damage string) framework.Variant {
	script := v.Script
	v.Script = func() framework.Script {
		made := script()
		made.Fault = sabotagedFault(made.Fault, damage)
		return made
	}
	return v
}

// sabotagedFault is a fault that comes with damage.
func sabotagedFault(declared func(*framework.Run) fault.Fault, damage string) func(*framework.Run) fault.Fault {
	return func(r *framework.Run) fault.Fault {
		f := declared(r)
		inject, undo := f.Inject, f.Undo
		repair := func(context.Context) error { return nil }
		f.Inject = func(ctx context.Context) (err error) {
			if repair, err = do(ctx, r, damage); err != nil {
				return err
			}
			return inject(ctx)
		}
		f.Undo = func(ctx context.Context) error { return errors.Join(repair(ctx), undo(ctx)) }
		return f
	}
}

// do does damage, and returns what repairs it.
func do(ctx context.Context, r *framework.Run, damage string) (repair func(context.Context) error, err error) {
	registry := r.Lab.Registry()
	none := func(context.Context) error { return nil }
	if damage == guestMemory {
		_, err := r.Lab.Node("edge3").Exec(ctx, "sh", "-c",
			"mkdir -p /filler && mount -t tmpfs -o size=100% tmpfs /filler && (cat /dev/zero >/filler/x &) >/dev/null 2>&1")
		return none, err
	}
	if damage == registryGone {
		return func(ctx context.Context) error {
			out, err := exec.CommandContext(ctx, "docker", "start", registry.Container()).CombinedOutput()
			if err != nil {
				return fmt.Errorf("starting the registry: %w: %s", err, out)
			}
			return nil
		}, registry.Stop(ctx)
	}
	// The storage of distribution's file system driver.
	root, err := registry.Path(ctx, "/var/lib/registry/docker/registry/v2")
	if err != nil {
		return none, err
	}
	manifests := filepath.Join(root, "repositories/cloudnativelabs/kube-router/_manifests")
	tag := filepath.Join(manifests, "tags/latest/current/link")
	digest, err := os.ReadFile(tag)
	if err != nil {
		return none, err
	}
	algorithm, hex, _ := strings.Cut(string(digest), ":")
	var file string
	switch damage {
	case noTag:
		file = tag
	case noManifest:
		file = filepath.Join(manifests, "revisions", algorithm, hex, "link")
	case anotherDigest:
		file = filepath.Join(root, "blobs", algorithm, hex[:2], hex, "data")
	default:
		return none, fmt.Errorf("%s: no damage %q", sabotage, damage)
	}
	was, err := os.ReadFile(file)
	if err != nil {
		return none, err
	}
	repair = func(context.Context) error { return os.WriteFile(file, was, 0o644) }
	if damage == anotherDigest {
		return repair, os.WriteFile(file, append(slices.Clone(was), '\n'), 0o644)
	}
	return repair, os.Remove(file)
}
