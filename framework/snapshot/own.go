package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/relapse-dev/relapse/topology/process"
)

// Own is the machine that this program runs on, seen from its network namespace: for a pod with hostNetwork the
// node's. Reading it takes CAP_NET_ADMIN, and CAP_NET_RAW for legacy iptables, and changes nothing. A request for
// rules or connections makes a kernel load the module that has them, even if the caller may not load modules; so it
// is asked only for what it has already.
type Own struct {
	// Proc is where procfs is mounted; empty: /proc.
	Proc string
}

func (Own) Exec(ctx context.Context, command ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	// A shell's child may wait for a kube-proxy that hangs.
	process.EndWhole(cmd)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("running %s: %w", command[0], err)
	}
	return string(out), nil
}

func (Own) PID(context.Context) (int, error) { return os.Getpid(), nil }

func (Own) Netns(context.Context) (string, error) { return "/proc/self/ns/net", nil }

func (Own) Path(_ context.Context, path string) (string, error) { return path, nil }

func (o Own) read(name string) ([]byte, error) {
	proc := cmp.Or(o.Proc, "/proc")
	return os.ReadFile(filepath.Join(proc, name))
}

// Functions of parts of the kernel, which it has once the part is built in or loaded.
var (
	connTrack        = []string{"nf_conntrack_in"}
	connTrackNetlink = []string{"ctnetlink_get_conntrack"}
	nfTables         = []string{"nf_tables_getrule"}
	nftCompat        = []string{"nfnl_compat_get_rcu", "nfnl_compat_get"} // the second before Linux 4.20
)

// has reports, for each of some sets of functions, whether the kernel has one of the set.
func (o Own) has(sets ...[]string) ([]bool, error) {
	text, err := o.read("kallsyms")
	if err != nil {
		return nil, fmt.Errorf("looking whether a question would load a module: %w", err)
	}
	there, symbols := make([]bool, len(sets)), 0
	for line := range bytes.Lines(text) {
		words := strings.Fields(string(line)) // address, type, name, perhaps [module]
		if len(words) < 3 {
			continue
		}
		symbols++
		function, _, _ := strings.Cut(words[2], ".") // of a compiler's variant
		for i, set := range sets {
			there[i] = there[i] || slices.Contains(set, function)
		}
	}
	if symbols == 0 {
		return nil, errors.New("looking whether a question would load a module: /proc/kallsyms is empty")
	}
	return there, nil
}

// mostTracked is how many connections are read: the kernel's answer takes 1 kB for each.
const mostTracked = 200_000

// tracks reports whether the kernel tracks connections. It is an error if they cannot be read.
func (o Own) tracks() (bool, error) {
	has, err := o.has(connTrack, connTrackNetlink)
	switch {
	case err != nil || !has[0]:
		return false, err
	case !has[1]:
		return false, errors.New("the kernel tracks connections, but to ask for them would load nf_conntrack_netlink")
	}
	text, err := o.read("sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		return false, fmt.Errorf("counting connections: %w", err)
	}
	switch n, err := strconv.Atoi(strings.TrimSpace(string(text))); {
	case err != nil:
		return false, fmt.Errorf("counting connections: %w", err)
	case n > mostTracked:
		return false, fmt.Errorf("%d connections are tracked, and %d are read at most", n, mostTracked)
	}
	return true, nil
}

// saves reports whether one of iptables' programs has rules of a table to print. It is an error
// if it cannot be asked.
func (o Own) saves(program, table string) (bool, error) {
	if program == legacySave {
		names, err := o.read("net/ip_tables_names")
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return slices.Contains(strings.Fields(string(names)), table), err
	}
	has, err := o.has(nfTables, nftCompat)
	if err == nil && has[0] && !has[1] {
		err = errors.New("the kernel has nf_tables, but iptables-nft-save would load nft_compat")
	}
	return err == nil && has[0], err
}

// listens reports whether a program of the network namespace listens on a unix socket with this end of its path.
func (o Own) listens(end string) (bool, error) {
	text, err := o.read("net/unix")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasSuffix(strings.TrimSpace(line), end) {
			return true, nil
		}
	}
	return false, nil
}
