package kindlab

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"
)

// CPUTime is the CPU time that the lab's containers, with all processes in them,
// have used since their start. Removed containers are not counted.
func (l *Lab) CPUTime(ctx context.Context) (time.Duration, error) {
	containers, err := containersOf(ctx, l.docker, l.Topology.Name)
	if err != nil {
		return 0, err
	}
	if l.foreign != nil {
		for _, name := range l.foreign.Containers {
			containers = append(containers, container.Summary{ID: name, Names: []string{name}, State: container.StateRunning})
		}
	}
	var sum atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range containers {
		if c.State != container.StateRunning {
			continue
		}
		group.Go(func() error {
			answer, err := l.docker.ContainerStats(ctx, c.ID, client.ContainerStatsOptions{})
			if err != nil {
				return fmt.Errorf("reading the CPU time of %v: %w", c.Names, err)
			}
			defer answer.Body.Close()
			var stats container.StatsResponse
			if err := json.NewDecoder(answer.Body).Decode(&stats); err != nil {
				return fmt.Errorf("reading the CPU time of %v: %w", c.Names, err)
			}
			sum.Add(int64(stats.CPUStats.CPUUsage.TotalUsage)) // nanoseconds
			return nil
		})
	}
	err = group.Wait()
	return time.Duration(sum.Load()), err
}
