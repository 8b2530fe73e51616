package soak

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/docker/docker/client"

	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// KindLabs is the Counter of a kind lab on this machine.
type KindLabs struct {
	Docker *client.Client
	Name   string // of the lab
	Temp   string // the folder of all temporary files of this process
}

// Program counts what this process has. It first returns all memory that it can.
func (k KindLabs) Program() (map[string]int64, error) {
	debug.FreeOSMemory()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	counts := map[string]int64{
		"relapse: goroutines": int64(runtime.NumGoroutine()), "relapse: heap": int64(memory.HeapAlloc),
	}
	var errs []error
	for name, path := range map[string]string{"relapse: open files": "/proc/self/fd", "relapse: threads": "/proc/self/task"} {
		entries, err := os.ReadDir(path)
		counts[name] = int64(len(entries))
		errs = append(errs, err)
	}
	children, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is valid
	for _, path := range children {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // the thread has ended
			continue
		}
		counts["relapse: children"] += int64(len(strings.Fields(string(text))))
		errs = append(errs, err)
	}
	// proc_pid_statm(5): size resident ... in pages
	var pages, resident int64
	text, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(text), &pages, &resident)
	}
	errs = append(errs, err)
	counts["relapse: resident memory"] = resident * int64(os.Getpagesize())
	counts["relapse: temporary files"], _, err = filesBelow(k.Temp)
	if err := errors.Join(append(errs, err)...); err != nil {
		return counts, fmt.Errorf("counting the resources of relapse: %w", err)
	}
	return counts, nil
}

// filesBelow counts the entries of a folder and of those below it, and the bytes of its
// files.
func filesBelow(dir string) (files, size int64, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		files++
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	})
	return files, size, err
}

// Lab counts the parts of the lab.
func (k KindLabs) Lab(ctx context.Context) (counts map[string]int64, left []string, err error) {
	n, err := kindlab.Count(ctx, k.Docker, k.Name)
	if err != nil {
		return nil, nil, err
	}
	for _, part := range []struct {
		n    int
		what string
	}{{n.Containers, "containers"}, {n.Networks, "Docker networks"}, {n.Tables, "nftables tables"}, {n.Files, "state files"}} {
		if part.n > 0 {
			left = append(left, fmt.Sprintf("%s: %d", part.what, part.n))
		}
	}
	return map[string]int64{
		"lab: containers": int64(n.Containers), "lab: networks": int64(n.Networks), "lab: files of its state": int64(n.Files),
		"lab: processes": int64(n.Processes), "lab: network namespaces of pods": int64(n.Namespaces),
		"lab: links": int64(n.Inside.Links), "lab: routes": int64(n.Inside.Routes),
		"lab: rules of nftables": int64(n.Inside.Rules), "lab: rules of iptables-legacy": int64(n.Inside.LegacyRules),
	}, left, nil
}

// Machine counts what this machine has.
func (k KindLabs) Machine(ctx context.Context) (map[string]int64, error) {
	n, err := kindlab.CountMachine(ctx, k.Docker)
	if err != nil {
		return nil, err
	}
	return map[string]int64{
		"machine: volumes": int64(n.Volumes), "machine: network namespaces": int64(n.Namespaces), "machine: mounts": int64(n.Mounts),
		"machine: links": int64(n.Links), "machine: routes": int64(n.Routes),
		"machine: rules of nftables": int64(n.Rules), "machine: rules of iptables-legacy": int64(n.LegacyRules),
	}, nil
}
