//go:build lab

package snapshot

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestNAT(t *testing.T) {
	node := newOwnNode(t)
	path := fmt.Sprintf("/proc/%d/ns/net", node.pid)
	node.run("ip", "link", "set", "lo", "up")
	node.run("ip", "address", "add", "10.20.30.35/32", "dev", "lo")
	node.run("ip", "address", "add", "10.20.29.10/32", "dev", "lo")
	node.run("iptables", "-t", "nat", "-A", "POSTROUTING", "-p", "udp", "-s", "10.20.30.32/27", "-m", "comment", "--comment", "hides the pods", "-j", "SNAT", "--to-source", "10.20.28.12")
	own := must.Get(netns.Get())(t)
	defer own.Close()
	there := must.Get(netns.GetFromPath(path))(t)
	defer there.Close()
	must.NoError(t, netns.Set(there))
	server, err := net.Listen("tcp4", "10.20.29.10:3306")
	var conn net.Conn
	if err == nil {
		conn, err = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 20, 30, 35)}}).Dial("tcp4", "10.20.29.10:3306")
	}
	var packets net.Conn
	if err == nil {
		packets, err = (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(10, 20, 30, 35)}}).Dial("udp4", "10.20.29.10:7007")
	}
	must.NoError(t, netns.Set(own))
	must.NoError(t, err)
	defer server.Close()
	defer conn.Close()
	defer packets.Close()
	must.Get(packets.Write([]byte("hello")))(t)

	machine := fakeMachine{pid: node.pid, netns: func(context.Context) (string, error) { return path, nil }}
	read := natReader("node", machine)
	got := read(t.Context())
	for _, p := range got.parts() {
		if !p.read {
			t.Errorf("%s: %s", p.what, p.why)
		}
	}
	rules, flows := got.Rules.Items, got.Flows.Items
	hides := slices.IndexFunc(rules, func(r Rule) bool { return r.Comment == "hides the pods" })
	if hides < 0 || rules[hides].Source.Range.String() != "10.20.30.32/27" || rules[hides].To.String() != "10.20.28.12" {
		t.Errorf("rules %+v", rules)
	}

	from := func(c net.Conn) netip.AddrPort { return netip.MustParseAddrPort(c.LocalAddr().String()) }
	tcp := slices.IndexFunc(flows, func(f Flow) bool { return f.Protocol == "tcp" && f.Source == from(conn) })
	if tcp < 0 || flows[tcp].Translated() || !flows[tcp].Established || flows[tcp].Destination.String() != "10.20.29.10:3306" {
		t.Errorf("the TCP flow from %s is not there as it is: %+v", from(conn), flows)
	}
	udp := slices.IndexFunc(flows, func(f Flow) bool { return f.Protocol == "udp" && f.Source == from(packets) })
	if udp < 0 || !flows[udp].Translated() || flows[udp].SeenAs.Addr().String() != "10.20.28.12" || flows[udp].Expires <= 0 {
		t.Errorf("the UDP flow from %s is not there as it is: %+v", from(packets), flows)
	}

	sockets := must.Get(socketsOf(t.Context(), machine))(t)
	if want := (Socket{Local: netip.MustParseAddrPort("10.20.29.10:3306"), Remote: from(conn)}); !slices.Contains(sockets, want) {
		t.Errorf("%v is not among %v", want, sockets)
	}

	must.Equal(t, "programs", 0, len(got.Programs.Items))
	attach(t, there, "lo", "bpf_host.o:[to-netdev]")
	if programs := read(t.Context()).Programs; !programs.Read || !slices.Equal(programs.Items, []Program{{Device: "lo", Name: "bpf_host.o:[to-netdev]"}}) {
		t.Errorf("programs %+v", programs)
	}
}

// attach puts a program that does nothing on both ways of a device.
func attach(t *testing.T, there netns.NsHandle, device, name string) {
	t.Helper()
	program := must.Get(ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}, // TC_ACT_UNSPEC
	}))(t)
	defer program.Close()
	h := must.Get(netlink.NewHandleAt(there, unix.NETLINK_ROUTE))(t)
	defer h.Close()
	index := must.Get(h.LinkByName(device))(t).Attrs().Index
	must.NoError(t, h.QdiscAdd(&netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact",
	}))
	for parent, name := range map[uint32]string{netlink.HANDLE_MIN_EGRESS: name, netlink.HANDLE_MIN_INGRESS: "of the way in"} {
		must.NoError(t, h.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:          program.FD(), Name: name, DirectAction: true,
		}))
	}
}

// TestFirewalls reads rules that programs of both kinds have written, in namespaces such as a
// node's: it has processes of its own, and with them its own /proc.
func TestFirewalls(t *testing.T) {
	rules := func(kind, address, chain string) string {
		return fmt.Sprintf("iptables-%[1]s -N %[3]s && iptables-%[1]s -A FORWARD -d %[2]s -j %[3]s", kind, address, chain)
	}
	const ready = "the rules are there"
	node := exec.CommandContext(t.Context(), "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
		rules("nft", "10.20.65.3", "KUBE-POD-FW-A")+" && "+rules("legacy", "10.20.65.4", "KUBE-POD-FW-B")+" && exec sleep 1m")
	must.NoError(t, node.Start())
	t.Cleanup(func() {
		_ = node.Process.Kill()
		_ = node.Wait() // it was killed
	})
	var got []string
	must.NoError(t, await.Until(t.Context(), ready, 50*time.Millisecond, 10*time.Second, func(ctx context.Context) (bool, string, error) {
		child, err := exec.CommandContext(ctx, "pgrep", "--parent", fmt.Sprint(node.Process.Pid)).Output()
		if err != nil {
			return false, "no process", nil
		}
		var pid int
		if _, err := fmt.Sscan(string(child), &pid); err != nil {
			return false, "", err
		}
		f := firewallReader("node", fakeMachine{pid: pid})(ctx)
		got = each.Of(f.Rules.Items, func(r Rule) string { return r.Text })
		return len(got) == 2, strings.Join(got, "; ") + f.Rules.Error, nil
	}))
	must.Equal(t, "", []string{"-A FORWARD -d 10.20.65.3/32 -j KUBE-POD-FW-A", "-A FORWARD -d 10.20.65.4/32 -j KUBE-POD-FW-B"}, got)
}

// proxyRules are of kube-proxy 1.34.4, with a Service of two endpoints, one with session affinity, and one of IPv6; and
// of 1.36.3, which needs no chain for an endpoint.
const proxyRules = `
table ip kube-proxy {
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	set affinity { type ipv4_addr; flags dynamic, timeout; timeout 3h; }
	chain mark-for-masquerade { mark set mark or 0x4000; }
	chain endpoint-a { ip saddr 10.1.1.2 jump mark-for-masquerade
		meta l4proto tcp dnat to 10.1.1.2:8080; }
	chain endpoint-b { ip saddr 10.1.2.2 jump mark-for-masquerade
		update @affinity { ip saddr }
		meta l4proto tcp dnat to 10.1.2.2:8080; }
	chain service-two { ip daddr 10.96.0.10 tcp dport 80 ip saddr != 10.1.0.0/16 jump mark-for-masquerade
		numgen random mod 2 vmap { 0 : goto endpoint-a, 1 : goto endpoint-b }; }
	chain service-affinity { ip saddr @affinity goto endpoint-b
		numgen random mod 1 vmap { 0 : goto endpoint-b }; }
	chain service-new { meta l4proto udp dnat ip addr . port to numgen random mod 2 map { 0 : 10.1.1.3 . 53, 1 : 10.1.2.3 . 5353 }; }
	chain service-none { }
}
add element ip kube-proxy service-ips { 10.96.0.10 . tcp . 80 : goto service-two }
add element ip kube-proxy service-ips { 10.96.0.11 . tcp . 80 : goto service-affinity }
add element ip kube-proxy service-ips { 10.96.0.12 . udp . 53 : goto service-new }
add element ip kube-proxy service-ips { 10.96.0.13 . sctp . 9 : goto service-none }
table ip6 kube-proxy {
	map service-ips { type ipv6_addr . inet_proto . inet_service : verdict; }
	chain endpoint-six { meta l4proto tcp dnat to [fd00:1::2]:8080; }
	chain service-six { numgen random mod 1 vmap { 0 : goto endpoint-six }; }
	chain service-new { meta l4proto udp dnat ip6 addr . port to numgen random mod 1 map { 0 : fd00:1::3 . 53 }; }
}
add element ip6 kube-proxy service-ips { fd00:96::a . tcp . 80 : goto service-six }
add element ip6 kube-proxy service-ips { fd00:96::b . udp . 53 : goto service-new }
`

func TestServicesOfNFTables(t *testing.T) {
	n := newOwnNode(t)
	m := fakeMachine{netns: func(context.Context) (string, error) { return "/proc/" + strconv.Itoa(n.pid) + "/ns/net", nil }}
	if found := must.Get(nftServices(t.Context(), m))(t); len(found) > 0 {
		t.Errorf("on a node without rules: %v", found)
	}
	load := n.command("nft", "-f", "-")
	load.Stdin = strings.NewReader(proxyRules)
	if said, err := load.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	got := map[string][]netip.AddrPort{}
	for _, v := range must.Get(nftServices(t.Context(), m))(t) {
		endpoints := []netip.AddrPort{}
		for _, s := range v.Servers {
			endpoints = append(endpoints, s.Address)
		}
		got[v.Protocol+" "+v.Address.String()] = endpoints
	}
	at := netip.MustParseAddrPort
	must.Equal(t, "Services", map[string][]netip.AddrPort{
		"TCP 10.96.0.10:80": {at("10.1.1.2:8080"), at("10.1.2.2:8080")}, "TCP 10.96.0.11:80": {at("10.1.2.2:8080")},
		"UDP 10.96.0.12:53": {at("10.1.1.3:53"), at("10.1.2.3:5353")}, "SCTP 10.96.0.13:9": {},
		"TCP [fd00:96::a]:80": {at("[fd00:1::2]:8080")}, "UDP [fd00:96::b]:53": {at("[fd00:1::3]:53")},
	}, got)
	n.run("nft", "add table inet guard")
	n.run("nft", "add set inet guard readable { type ifname; }")
	must.Equal(t, "sets of this nft", 0, len(must.Get(unreadableSets(t.Context(), m))(t)))
}
