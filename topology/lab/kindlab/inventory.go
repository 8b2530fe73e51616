package kindlab

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/lab/rtnl"
)

// Network counts what the kernel holds for one network namespace.
type Network struct {
	Links, Routes int
	// Rules are those of nftables, iptables' own among them, and LegacyRules those of
	// iptables' older kind, for IPv4, with the policies of its chains.
	Rules, LegacyRules int
}

// Inventory counts what there is of a lab.
type Inventory struct {
	Containers, Networks int
	// Tables are those of nftables on the machine that close the lab's way out.
	Tables int
	// Files are those of its state, with folders and sockets.
	Files int
	// Processes are those of its containers, and Namespaces the network namespaces that
	// its nodes have made and kept, such as those of pods. What is behind a kernel of its
	// own is not counted.
	Processes, Namespaces int
	// Inside is the sum of what its containers' network namespaces hold, without those
	// of pods.
	Inside Network
}

// Machine counts what there is on this machine, whoever has made it.
type Machine struct {
	Network
	// Volumes are Docker's, and Namespaces the network namespaces that Docker or
	// iproute2 keep. Mounts are those that this process sees.
	Volumes, Namespaces, Mounts int
}

// Count counts what there is of a lab, whoever has made it. Nothing is held or changed.
func Count(ctx context.Context, docker *client.Client, lab string) (Inventory, error) {
	var n Inventory
	containers, err := containersOf(ctx, docker, lab)
	if err != nil {
		return n, err
	}
	n.Containers = len(containers)
	var mu sync.Mutex
	var all errgroup.Group
	for _, c := range containers {
		if c.State != "running" {
			continue
		}
		m := &member{name: c.Labels[labelMember], lab: lab, container: c.ID, docker: docker}
		all.Go(func() error {
			top, err := docker.ContainerTop(ctx, c.ID, nil)
			if err != nil {
				return fmt.Errorf("counting the processes of %v: %w", c.Names, err)
			}
			folder, err := m.Path(ctx, "/run/netns")
			if err != nil {
				return err
			}
			var inside Network
			err = m.InNetns(ctx, func() (err error) {
				inside, err = countNetwork(ctx)
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			n.Processes += len(top.Processes)
			n.Namespaces += entries(folder)
			n.Inside.Links += inside.Links
			n.Inside.Routes += inside.Routes
			n.Inside.Rules += inside.Rules
			n.Inside.LegacyRules += inside.LegacyRules
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return n, err
	}
	networks, err := docker.NetworkList(ctx, network.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelLab+"="+lab))})
	if err != nil {
		return n, fmt.Errorf("counting the Docker networks of lab %q: %w", lab, err)
	}
	n.Networks = len(networks)
	tables, err := new(nftables.Conn).ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return n, fmt.Errorf("counting the nftables tables of lab %q: %w", lab, err)
	}
	for _, t := range tables {
		if t.Name == tableName(lab) {
			n.Tables++
		}
	}
	err = filepath.WalkDir(stateDir(lab), func(_ string, _ fs.DirEntry, err error) error {
		if err == nil {
			n.Files++
		}
		if errors.Is(err, fs.ErrNotExist) { // there is no lab, or the file is gone again
			return nil
		}
		return err
	})
	if err != nil {
		return n, fmt.Errorf("counting the files of the state of lab %q: %w", lab, err)
	}
	return n, nil
}

// CountMachine counts what there is on this machine.
func CountMachine(ctx context.Context, docker *client.Client) (Machine, error) {
	var n Machine
	var err error
	if n.Network, err = countNetwork(ctx); err != nil {
		return n, fmt.Errorf("on this machine: %w", err)
	}
	volumes, err := docker.VolumeList(ctx, volume.ListOptions{})
	if err != nil {
		return n, fmt.Errorf("counting Docker's volumes: %w", err)
	}
	n.Volumes = len(volumes.Volumes)
	n.Namespaces = entries("/run/docker/netns") + entries("/run/netns")
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return n, fmt.Errorf("counting mounts: %w", err)
	}
	n.Mounts = bytes.Count(mounts, []byte("\n"))
	return n, nil
}

// entries is how many entries a folder has; none where it is not there.
func entries(folder string) int {
	found, _ := os.ReadDir(folder)
	return len(found)
}

// countNetwork counts what the network namespace of this thread holds.
func countNetwork(ctx context.Context) (Network, error) {
	var n Network
	links, err := rtnl.Dump(ctx, netlink.LinkList)
	if err != nil {
		return n, fmt.Errorf("counting links: %w", err)
	}
	routes, err := rtnl.Dump(ctx, func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return n, fmt.Errorf("counting routes: %w", err)
	}
	n.Links, n.Routes = len(links), len(routes)
	// Of a rule no more is needed than that it is there, and so none is understood.
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	rules, err := request.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE)
	if err != nil {
		return n, fmt.Errorf("counting the rules of nftables: %w", err)
	}
	n.Rules = len(rules)
	n.LegacyRules, err = legacyRules()
	return n, err
}

// legacyRules counts the rules of iptables' older kind as its own programs do, by
// IPT_SO_GET_INFO of linux/netfilter_ipv4/ip_tables.h. Only tables that are there are
// asked for: to ask for another one makes it.
func legacyRules() (int, error) {
	names, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // the kernel has never been asked for any
	}
	if err != nil {
		return 0, fmt.Errorf("counting the rules of iptables-legacy: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return 0, fmt.Errorf("counting the rules of iptables-legacy: %w", err)
	}
	defer unix.Close(fd)
	const getInfo = 64 // IPT_SO_GET_INFO
	sum := 0
	for _, name := range strings.Fields(string(names)) {
		// struct ipt_getinfo: name[32], valid_hooks, hook_entry[5], underflow[5],
		// num_entries, size
		var info [32 + 13*4]byte
		copy(info[:31], name)
		size := uint32(len(info))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_IP, getInfo,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			return 0, fmt.Errorf("counting the rules of iptables-legacy in table %q: %w", name, errno)
		}
		sum += int(binary.NativeEndian.Uint32(info[32+11*4:]))
	}
	return sum, nil
}
