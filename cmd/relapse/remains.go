package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
)

// counts are how many objects of this machine there are, by kind, in the order of countKinds.
// They include the objects of others.
type counts [4]int

var countKinds = [4]string{"containers", "Docker networks", "links", "processes started by relapse"}

func countMachine(ctx context.Context, docker *client.Client) (counts, error) {
	containers, containersErr := docker.ContainerList(ctx, container.ListOptions{All: true})
	networks, networksErr := docker.NetworkList(ctx, network.ListOptions{})
	links, linksErr := os.ReadDir("/sys/class/net")
	processes := 0
	children, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is valid
	for _, path := range children {
		text, _ := os.ReadFile(path) // a thread that has ended has none
		processes += len(strings.Fields(string(text)))
	}
	if err := errors.Join(containersErr, networksErr, linksErr); err != nil {
		return counts{}, fmt.Errorf("counting what is on this machine: %w", err)
	}
	return counts{len(containers), len(networks), len(links), processes}, nil
}

func (c counts) left(before counts) string {
	var more []string
	for i, kind := range countKinds {
		if c[i] > before[i] {
			more = append(more, fmt.Sprintf("%s: %d", kind, c[i]-before[i]))
		}
	}
	if len(more) == 0 {
		return "left on the machine: nothing"
	}
	return "left on the machine: " + strings.Join(more, ", ")
}

// countingLeft counts what is on the machine. The function that it returns counts again, and
// says what has been left since. A lab that stays up is not left.
func (r *prepared) countingLeft(ctx context.Context) (func() string, error) {
	if o := r.suite; o.Repeat == 1 || o.Keep || o.Reuse || o.On != nil {
		return func() string { return "" }, nil
	}
	before, err := countMachine(ctx, r.suite.Docker)
	if err != nil {
		return nil, err
	}
	return func() string {
		after, err := countMachine(context.WithoutCancel(ctx), r.suite.Docker) // also after an interrupt
		if err != nil {
			return err.Error()
		}
		return after.left(before)
	}, nil
}
