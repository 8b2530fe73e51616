// Command tcbpf attaches the programs of a bpf_host.o of Cilium to a network
// card of the network namespace that it runs in, and tells them which of the
// addresses of a pod CIDR are pods' of this node. The object is bpf/bpf_host.c of the vendor, which the
// vendor's code has compiled against headers that it has written from the ConfigMap
// (images/cilium/rules/datapath).
//
//	tcbpf OBJECT DEVICE POD-CIDR
//
// It prints a line when the programs are attached, and then keeps what they
// know of pods up to date until its standard input ends. The programs stay, and
// what they call stays pinned in /sys/fs/bpf/tc/globals, where the agent keeps
// its maps. A pod is an address of the pod CIDR that the node has a route to
// its own interface for: CNI plugins that wire pods one by one make such routes,
// as the agent's endpoints come from the CNI plugin, too. It ends with status 2
// on bad usage, 1 if anything else goes wrong.
package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// globals is the agent's folder of maps. A BPF file system must be mounted above
// it.
const globals = "/sys/fs/bpf/tc/globals"

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: tcbpf OBJECT DEVICE POD-CIDR")
		os.Exit(2)
	}
	podCIDR, err := netip.ParsePrefix(os.Args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, "tcbpf: the pod CIDR:", err)
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], podCIDR); err != nil {
		fmt.Fprintln(os.Stderr, "tcbpf:", err)
		os.Exit(1)
	}
}

func run(path, device string, podCIDR netip.Prefix) error {
	programs, err := load(path)
	if err != nil {
		return err
	}
	defer programs.close()
	if err := programs.knowWorld(); err != nil {
		return err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("opening netlink: %w", err)
	}
	defer h.Close()

	// Pods first: between the programs of an old agent and these, no packet of
	// a pod is to be taken for another's.
	routes, err := h.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing routes: %w", err)
	}
	for _, r := range routes {
		if pod, ok := podOf(r, podCIDR); ok {
			if err := programs.know(pod); err != nil {
				return err
			}
		}
	}
	updates := make(chan netlink.RouteUpdate)
	var lost error
	err = netlink.RouteSubscribeWithOptions(updates, nil, netlink.RouteSubscribeOptions{
		ListExisting:  true, // those since the list
		ErrorCallback: func(err error) { lost = err },
	})
	if err != nil {
		return fmt.Errorf("watching routes: %w", err)
	}
	if err := programs.attach(h, device); err != nil {
		return err
	}
	if err := programs.pin(globals); err != nil {
		return err
	}
	fmt.Println("attached to", device)
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	for {
		var u netlink.RouteUpdate
		var more bool
		select {
		case err := <-ended:
			return err
		case u, more = <-updates:
		}
		if !more {
			return errors.Join(errors.New("the watch on routes has ended"), lost)
		}
		pod, ok := podOf(u.Route, podCIDR)
		if !ok {
			continue
		}
		change := programs.know
		if u.Type == unix.RTM_DELROUTE {
			change = programs.forget
		}
		if err := change(pod); err != nil {
			return err
		}
	}
}

// podOf is the pod that a route leads to, if it leads to one.
func podOf(r netlink.Route, podCIDR netip.Prefix) (netip.Addr, bool) {
	if r.Dst == nil || r.Table != unix.RT_TABLE_MAIN || r.Type != unix.RTN_UNICAST || len(r.Gw) > 0 {
		return netip.Addr{}, false
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	ones, bits := r.Dst.Mask.Size()
	addr = addr.Unmap()
	return addr, ok && ones == bits && podCIDR.Contains(addr)
}
