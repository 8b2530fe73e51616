package kindlab

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
	"github.com/google/nftables"
	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/topology/await"
)

// Labs names every lab of which anything is left on this machine.
func Labs(ctx context.Context, docker *client.Client) ([]string, error) {
	labs := map[string]bool{}
	containers, err := docker.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", err)
	}
	for _, c := range containers {
		if lab := labOf(c.Labels); lab != "" {
			labs[lab] = true
		}
	}
	networks, err := docker.NetworkList(ctx, network.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelLab))})
	if err != nil {
		return nil, fmt.Errorf("listing Docker networks: %w", err)
	}
	for _, n := range networks {
		labs[n.Labels[labelLab]] = true
	}
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("opening nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("listing nftables tables: %w", err)
	}
	for _, t := range tables {
		if lab, ours := strings.CutPrefix(t.Name, tableName("")); ours {
			labs[lab] = true
		}
	}
	withState, err := WithState()
	if err != nil {
		return nil, err
	}
	for _, lab := range withState {
		labs[lab] = true
	}
	return slices.Sorted(maps.Keys(labs)), nil
}

// WithState names the labs that have a state folder, from before their first
// container until they are down. Docker is not asked.
func WithState() ([]string, error) {
	entries, err := os.ReadDir(StateDir)
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("listing the labs' state: %w", err)
	}
	var labs []string
	for _, e := range entries {
		if e.IsDir() {
			labs = append(labs, e.Name())
		}
	}
	return labs, nil
}

// labOf tells which lab a container belongs to. A container of kind's own
// making bears the lab's name inside its cluster's: relapse-<lab>-<cluster>,
// and a cluster's name has no dash.
func labOf(labels map[string]string) string {
	if lab := labels[labelLab]; lab != "" {
		return lab
	}
	cluster, ours := strings.CutPrefix(labels[labelKindCluster], "relapse-")
	if !ours {
		return ""
	}
	if i := strings.LastIndexByte(cluster, '-'); i >= 0 {
		return cluster[:i]
	}
	return ""
}

func containersOf(ctx context.Context, docker *client.Client, lab string) ([]container.Summary, error) {
	all, err := docker.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("listing the containers of lab %q: %w", lab, err)
	}
	return slices.DeleteFunc(all, func(c container.Summary) bool { return labOf(c.Labels) != lab }), nil
}

// removeContainers removes a lab's containers side by side, with their
// volumes. Their networks are taken from them before, one by one: see endpoints.
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

// disconnect takes containers off their networks. What fails is left to the
// containers' removal, which does the same and reports its error.
func disconnect(ctx context.Context, docker *client.Client, containers []container.Summary) {
	endpoints.Lock()
	defer endpoints.Unlock()
	for _, c := range containers {
		if c.NetworkSettings == nil {
			continue
		}
		for name := range c.NetworkSettings.Networks {
			_ = docker.NetworkDisconnect(ctx, name, c.ID, true)
		}
	}
}

const (
	// quietAfterKill is for how long nothing of a lab may appear after the process that
	// had it was killed, and quietWithin bounds that.
	quietAfterKill = 3 * time.Second
	quietWithin    = time.Minute
)

// downAfterKill removes what comes of a lab after it was removed: Docker finishes what
// it was asked for by a process that was killed then, and lists a container only when
// it is made. A container that still comes to be started gets its folders made anew as
// well.
func downAfterKill(ctx context.Context, docker *client.Client, lab string) error {
	since := time.Now()
	return await.Until(ctx, "Docker to make nothing more of lab "+lab+", whose process was killed", 100*time.Millisecond, quietWithin,
		func(ctx context.Context) (bool, string, error) {
			there, err := Labs(ctx, docker)
			if err == nil && slices.Contains(there, lab) {
				since = time.Now()
				err = down(ctx, docker, lab, Options{}.step)
			}
			return err == nil && time.Since(since) >= quietAfterKill, "parts of it came until just now", err
		})
}

// killStrays ends the docker commands that kind started for a lab: they
// outlive a harness that was killed, and could make a container after Down
// has looked.
func killStrays(lab string) {
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
	for _, path := range commands {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(string(text), "\x00")
		if filepath.Base(args[0]) != "docker" || !slices.ContainsFunc(args, func(arg string) bool {
			cluster, ok := strings.CutPrefix(arg, labelKindCluster+"=")
			return ok && labOf(map[string]string{labelKindCluster: cluster}) == lab
		}) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
		}
	}
}
