package kindlab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
)

// Labs returns the names of all labs that have anything on this machine.
func Labs(ctx context.Context, docker *client.Client) ([]string, error) {
	containers, err := docker.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", err)
	}
	labs := each.Of(containers.Items, labOf)
	networks, err := docker.NetworkList(ctx, client.NetworkListOptions{Filters: client.Filters{}.Add("label", labelLab)})
	if err != nil {
		return nil, fmt.Errorf("listing Docker networks: %w", err)
	}
	for _, n := range networks.Items {
		labs = append(labs, n.Labels[labelLab])
	}
	tables, err := (&nftables.Conn{}).ListTablesOfFamily(tableFamily())
	if err != nil {
		return nil, fmt.Errorf("listing nftables tables: %w", err)
	}
	for _, t := range tables {
		if lab, ours := strings.CutPrefix(t.Name, tableName("")); ours {
			labs = append(labs, lab)
		}
	}
	withState, err := WithState()
	if err != nil {
		return nil, err
	}
	return each.Where(each.Once(append(labs, withState...)), func(lab string) bool { return lab != "" }), nil
}

// OwnWithState returns the labs of WithState that this process has locked since it began.
func OwnWithState() ([]string, error) {
	labs, err := WithState()
	return slices.DeleteFunc(labs, func(lab string) bool { _, own := lockedHere.Load(lab); return !own }), err
}

// WithState returns the names of the labs that have a state folder, without asking
// Docker. A lab has one from before its first container until it is down.
func WithState() ([]string, error) {
	entries, err := os.ReadDir(StateDir)
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("listing the labs' state: %w", err)
	}
	return each.Of(each.Where(entries, os.DirEntry.IsDir), os.DirEntry.Name), nil
}

// labOf returns the lab of a container; empty if it is in none. A container that kind made has the label
// relapse-<lab>-<cluster>, which another person's cluster may have as well. Only a lab's container also
// has its registry mirrors.
func labOf(c container.Summary) string {
	if lab := c.Labels[labelLab]; lab != "" {
		return lab
	}
	cluster, ours := strings.CutPrefix(c.Labels[labelKindCluster], "relapse-")
	end := strings.LastIndexByte(cluster, '-') // a cluster's own name in the topology has no dash
	if !ours || end < 0 {
		return ""
	}
	lab := cluster[:end]
	if slices.ContainsFunc(c.Mounts, func(m container.MountPoint) bool { return m.Source == mirrorsDir(lab) }) {
		return lab
	}
	return ""
}

func containersOf(ctx context.Context, docker *client.Client, lab string) ([]container.Summary, error) {
	all, err := docker.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("listing the containers of lab %q: %w", lab, err)
	}
	return slices.DeleteFunc(all.Items, func(c container.Summary) bool { return labOf(c) != lab }), nil
}

// removeContainers removes a lab's containers and their volumes concurrently. It
// disconnects their networks first, one at a time: see endpoints.
func removeContainers(ctx context.Context, docker *client.Client, lab string) error {
	containers, err := containersOf(ctx, docker, lab)
	if err != nil {
		return err
	}
	disconnect(ctx, docker, containers)
	var all errgroup.Group
	for _, c := range containers {
		m := &member{name: c.Labels[labelMember], lab: lab, container: c.ID, docker: docker}
		all.Go(func() error { return m.remove(ctx) })
	}
	return all.Wait()
}

// disconnect disconnects containers from their networks. It ignores errors,
// because the removal of a container repeats the operation and reports them.
func disconnect(ctx context.Context, docker *client.Client, containers []container.Summary) {
	endpoints.Lock()
	defer endpoints.Unlock()
	for _, c := range containers {
		if c.NetworkSettings == nil {
			continue
		}
		for name := range c.NetworkSettings.Networks {
			_, _ = docker.NetworkDisconnect(ctx, name, client.NetworkDisconnectOptions{Container: c.ID, Force: true})
		}
	}
}

const (
	// After the kill of its process, a lab is down when nothing of it has appeared for
	// settledAfter. settledWithin bounds the wait for that.
	settledAfter  = 3 * time.Second
	settledWithin = time.Minute
)

// downAfterKill removes containers and folders of a lab that appear after its removal: Docker finishes
// the requests of a killed process, and lists a container only when it is created. Starting such a
// container also creates its folders again.
func downAfterKill(ctx context.Context, docker *client.Client, lab string) error {
	since := time.Now()
	return await.Until(ctx, "Docker to finish the requests for lab "+lab+" of a killed process", 100*time.Millisecond, settledWithin,
		func(ctx context.Context) (bool, string, error) {
			there, err := Labs(ctx, docker)
			if err == nil && slices.Contains(there, lab) {
				since = time.Now()
				err = down(ctx, docker, lab, Options{}.step)
			}
			return err == nil && time.Since(since) >= settledAfter, "parts of the lab appeared until now", err
		})
}

// killStrays ends the docker commands that kind started for a lab: they outlive a
// killed process, and could create a container after Down has listed them.
func killStrays(lab string) {
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline") // fails only for a bad pattern
	for _, path := range commands {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(string(text), "\x00")
		if filepath.Base(args[0]) != "docker" || !slices.ContainsFunc(args, func(arg string) bool {
			return strings.Contains(arg, mirrorsDir(lab)+":")
		}) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
		}
	}
}
