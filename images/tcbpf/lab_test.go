//go:build lab

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/mod/module"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/must"
)

// The addresses of the scenario: a pod, its node, and a server outside; and one that is inside the native CIDR.
var (
	pod       = netip.MustParseAddr("10.20.30.35")
	gateway   = netip.MustParseAddr("10.20.30.33")
	node      = netip.MustParseAddr("10.20.28.12")
	outside   = netip.MustParseAddr("10.20.28.254")
	neighbour = netip.MustParseAddr("10.20.30.200")
	native    = netip.MustParsePrefix("10.20.30.0/24")
)

// TestMasquerade compiles bpf_host.c of each version, attaches to-netdev to a node's network card in namespaces of its
// own, on this machine's kernel, and looks whom a server takes a pod for. In 1.8.1 the call is missing with plain DSR
// (cilium#12456): that hid for a year that the cluster was told to masquerade.
func TestMasquerade(t *testing.T) {
	const dsr, hybrid = "ENABLE_DSR", "ENABLE_DSR_HYBRID"
	for _, test := range []struct {
		version     string
		modes       []string
		masquerades bool
	}{
		{"1.8.1", []string{dsr}, false}, // the incident, before the upgrade
		{"1.8.1", []string{dsr, hybrid}, true},
		{"1.8.2", []string{dsr}, true},
		{"1.11.1", []string{dsr}, true}, // and after it
	} {
		t.Run(fmt.Sprint(test.version, test.modes), func(t *testing.T) {
			source := must.Get(images.Download(t.Context(), module.Version{Path: "github.com/cilium/cilium", Version: "v" + test.version}))(t)
			programs := must.Get(load(compile(t, source, test.modes)))(t)
			defer programs.close()
			must.NoError(t, errors.Join(programs.know(pod), programs.knowWorld()))
			lab := newWire(t)
			must.NoError(t, programs.attach(lab.node, "eth0"))
			want := pod
			if test.masquerades {
				want = node
			}
			must.Equal(t, "a server outside sees", want, lab.seenBy(t, outside))
			must.Equal(t, "a server in the native CIDR sees", pod, lab.seenBy(t, neighbour))
		})
	}
}

// compile compiles bpf_host.c of Cilium's module as the agent does (pkg/datapath/loader/compile.go), with
// what the agent would write into node_config.h (pkg/datapath/linux/config, WriteNodeConfig) with
// enable-bpf-masquerade and BPF NodePort on and IPv6 off. The vendor's own sample headers have the rest.
func compile(t *testing.T, module string, modes []string) (object string) {
	t.Helper()
	inMemory := func(a netip.Addr) string {
		bytes := a.As4()
		return fmt.Sprintf("%#x", binary.NativeEndian.Uint32(bytes[:]))
	}
	source, into := filepath.Join(module, "bpf"), t.TempDir()
	bitcode, object := filepath.Join(into, "bpf_host.bc"), filepath.Join(into, "bpf_host.o")
	clang := []string{
		"clang", "-O2", "-g", "-target", "bpf", "-std=gnu89", "-nostdinc", "-D__NR_CPUS__=2",
		"-Wno-everything", // what the vendor asks for are warnings of another version of clang
		"-I" + filepath.Join(source, "include"), "-I" + source,
	}
	for _, d := range append([]string{
		"ENABLE_IPV4", "ENABLE_NODEPORT", "ENABLE_MASQUERADE", "ENABLE_EXTERNAL_IP", "SKIP_DEBUG",
		"HAVE_LPM_TRIE_MAP_TYPE", "HAVE_LRU_HASH_MAP_TYPE",
		"IPV4_NODEPORT=" + inMemory(node), // 1.8
		"IPV4_MASQUERADE=" + inMemory(node),
		"IPV4_SNAT_EXCLUSION_DST_CIDR=" + inMemory(native.Addr()),
		fmt.Sprintf("IPV4_SNAT_EXCLUSION_DST_CIDR_LEN=%d", native.Bits()),
	}, modes...) {
		clang = append(clang, "-D"+d)
	}
	for _, command := range [][]string{
		append(clang, "-emit-llvm", "-c", filepath.Join(source, "bpf_host.c"), "-o", bitcode),
		{"llc", "-march=bpf", "-mcpu=v2", "-filetype=obj", "-o", object, bitcode},
	} {
		if said, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("compiling bpf_host.c: %s: %v: %s", command[0], err, said)
		}
	}
	return object
}

// wire is a pod, its node and what is outside, each a network namespace.
type wire struct {
	pod, outside netns.NsHandle
	node         *netlink.Handle
}

func newWire(t *testing.T) wire {
	t.Helper()
	runtime.LockOSThread() // and stays so: the thread ends with the test
	own := must.Get(netns.Get())(t)
	defer own.Close()
	var handles [3]*netlink.Handle
	var spaces [3]netns.NsHandle
	for i := range spaces {
		spaces[i] = must.Get(netns.New())(t)
		t.Cleanup(func() { spaces[i].Close() })
		handles[i] = must.Get(netlink.NewHandleAt(spaces[i], unix.NETLINK_ROUTE))(t)
		t.Cleanup(handles[i].Close)
	}
	podSide, nodeSide, outsideSide := handles[0], handles[1], handles[2]
	cable := func(from *netlink.Handle, name string, to netns.NsHandle) {
		t.Helper()
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(to)}
		must.NoError(t, from.LinkAdd(veth))
	}
	cable(nodeSide, "lxc0", spaces[0])
	cable(nodeSide, "eth0", spaces[2])
	for _, l := range []struct {
		h         *netlink.Handle
		link      string
		addresses []string
		routes    map[string]netip.Addr // an invalid one is the link itself
	}{
		{podSide, "eth0", []string{pod.String() + "/32"}, map[string]netip.Addr{gateway.String() + "/32": {}}},
		{nodeSide, "lxc0", []string{gateway.String() + "/32"}, map[string]netip.Addr{pod.String() + "/32": {}}},
		{nodeSide, "eth0", []string{node.String() + "/24"}, map[string]netip.Addr{"0.0.0.0/0": outside}},
		{outsideSide, "eth0", []string{outside.String() + "/24", neighbour.String() + "/32"}, map[string]netip.Addr{pod.String() + "/32": node}},
	} {
		link := must.Get(l.h.LinkByName(l.link))(t)
		must.NoError(t, l.h.LinkSetUp(link))
		for _, a := range l.addresses {
			must.NoError(t, l.h.AddrAdd(link, must.Get(netlink.ParseAddr(a))(t)))
		}
		for to, via := range l.routes {
			addRoute(t, l.h, link, to, via)
		}
	}
	addRoute(t, podSide, must.Get(podSide.LinkByName("eth0"))(t), "0.0.0.0/0", gateway)
	must.NoError(t, netns.Set(spaces[1]))
	must.NoError(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	must.NoError(t, netns.Set(own))
	return wire{pod: spaces[0], outside: spaces[2], node: nodeSide}
}

func addRoute(t *testing.T, h *netlink.Handle, link netlink.Link, to string, via netip.Addr) {
	t.Helper()
	_, dst, err := net.ParseCIDR(to)
	must.NoError(t, err)
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: via.AsSlice()}
	if !via.IsValid() {
		r.Scope = netlink.SCOPE_LINK
	}
	if err := h.RouteAdd(r); err != nil {
		t.Fatalf("route to %s: %v", to, err)
	}
}

// seenBy sends a packet from the pod to an address outside, and returns the address that it comes from there. Answers
// are the scenario's: from-netdev of the sample headers hands pods' packets to programs that are not loaded.
func (w wire) seenBy(t *testing.T, server netip.Addr) netip.Addr {
	t.Helper()
	own := must.Get(netns.Get())(t)
	defer own.Close()
	inNamespace := func(ns netns.NsHandle, do func() (net.Conn, error)) net.Conn {
		t.Helper()
		must.NoError(t, netns.Set(ns))
		conn, err := do()
		must.NoError(t, netns.Set(own))
		must.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	to := &net.UDPAddr{IP: server.AsSlice(), Port: 3306}
	listen := inNamespace(w.outside, func() (net.Conn, error) { return net.ListenUDP("udp4", to) }).(*net.UDPConn)
	send := inNamespace(w.pod, func() (net.Conn, error) { return net.DialUDP("udp4", nil, to) })
	must.Get(send.Write([]byte("hello")))(t)
	must.NoError(t, listen.SetReadDeadline(time.Now().Add(5*time.Second)))
	_, from, err := listen.ReadFromUDPAddrPort(make([]byte, 16))
	if err != nil {
		t.Fatalf("no packet came to %s: %v", server, err)
	}
	return from.Addr().Unmap()
}
