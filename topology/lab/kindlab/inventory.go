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

	"github.com/relapse-dev/relapse/topology/rtnl"
)

// Network counts objects of one network namespace.
type Network struct {
	Links, Routes int
	// Rules are those of nftables, including iptables-nft. LegacyRules are those of
	// iptables-legacy for IPv4, including the policies of its chains.
	Rules, LegacyRules int
}

// Inventory counts the objects of a lab.
type Inventory struct {
	Containers, Networks int
	// Tables are the machine's nftables tables that isolate the lab.
	Tables int
	// Files are the files, folders and sockets in the lab's state folder.
	Files int
	// Processes are those of the containers. Namespaces are the named network
	// namespaces on the nodes, such as those of pods. Both exclude what is inside
	// guests.
	Processes, Namespaces int
	// Inside sums the containers' network namespaces, without those of pods.
	Inside Network
}

// Machine counts objects of this machine, including those that are not relapse's.
type Machine struct {
	Network
	// Volumes are Docker's. Namespaces are the network namespaces of Docker and
	// iproute2. Mounts are those of this process's mount namespace.
	Volumes, Namespaces, Mounts int
}

// Count counts the objects of a lab. It takes no lock and changes nothing.
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
	tables, err := new(nftables.Conn).ListTablesOfFamily(tableFamily())
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
		if errors.Is(err, fs.ErrNotExist) { // there is no lab, or the file was removed
			return nil
		}
		return err
	})
	if err != nil {
		return n, fmt.Errorf("counting the files of the state of lab %q: %w", lab, err)
	}
	return n, nil
}

// CountMachine counts the objects of this machine.
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

// countNetwork counts the objects of this thread's network namespace.
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
	// The rules are only counted, so they are not parsed.
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

// legacyRules counts the rules of iptables-legacy by IPT_SO_GET_INFO of
// linux/netfilter_ipv4/ip_tables.h. It queries only existing tables, because a
// query creates its table.
func legacyRules() (int, error) {
	names, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // iptables-legacy was never used
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
