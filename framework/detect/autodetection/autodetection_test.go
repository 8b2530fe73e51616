package autodetection

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

func iface(name string, addresses ...string) snapshot.Interface {
	i := snapshot.Interface{Name: name}
	for _, a := range addresses {
		i.Addresses = append(i.Addresses, netip.MustParsePrefix(a))
	}
	return i
}

func TestChoose(t *testing.T) {
	before := Host{
		Interfaces: []snapshot.Interface{
			iface("lo", "127.0.0.1/8"), iface("eth0", "172.29.0.11/24"), iface("cali12ab", "10.65.1.1/32"), iface("tunl0", "10.65.0.0/32"),
		},
		InternalIPs: []netip.Addr{netip.MustParseAddr("172.29.0.11")},
		Source: func(to netip.Addr) (netip.Addr, error) {
			if to == netip.MustParseAddr("172.29.0.2") {
				return netip.MustParseAddr("172.29.0.11"), nil
			}
			return netip.Addr{}, errors.New("no route")
		},
	}
	after := before
	after.Interfaces = append(append([]snapshot.Interface{}, before.Interfaces...), iface("eth1", "fe80::1/64", "169.254.1.1/16", "192.168.77.5/24"))
	added := func(i snapshot.Interface) Host {
		h := before
		h.Interfaces = append(append([]snapshot.Interface{}, before.Interfaces...), i)
		return h
	}
	for _, c := range []struct {
		name, method string
		host         Host
		want         string // the address, or a part of the error
		none         bool   // the error is ErrNone
	}{
		{name: "first-found before", host: before, want: "172.29.0.11/24"},
		{name: "first-found by name", method: "first-found", host: before, want: "172.29.0.11/24"},
		{name: "the newest wins", method: "first-found", host: after, want: "192.168.77.5/24"},
		{name: "a veth is passed over", host: added(iface("veth1", "192.168.77.5/24")), want: "172.29.0.11/24"},
		{name: "but not by interface", method: "interface=veth.*", host: added(iface("veth1", "192.168.77.5/24")), want: "192.168.77.5/24"},
		{name: "ibmveth is none", host: added(iface("ibmveth1", "192.168.77.5/24")), want: "192.168.77.5/24"},
		{name: "no address, no choice", host: added(iface("eth1")), want: "172.29.0.11/24"},
		{name: "link-local alone", host: added(iface("eth1", "169.254.9.9/16")), want: "172.29.0.11/24"},
		{name: "interface", method: "interface=eth0", host: after, want: "172.29.0.11/24"},
		{name: "a pattern that the new name matches", method: "interface=eth.*", host: after, want: "192.168.77.5/24"},
		{name: "a pattern that matches by accident", method: "interface=th", host: after, want: "192.168.77.5/24"},
		{name: "two patterns", method: "interface=bond0 , eth0", host: after, want: "172.29.0.11/24"},
		{name: "no such interface", method: "interface=bond0", host: after, none: true, want: "finds no address"},
		{name: "a bad pattern", method: "interface=(", host: after, none: true, want: "missing closing"},
		{name: "skip-interface", method: "skip-interface=eth1", host: after, want: "172.29.0.11/24"},
		{name: "skip-interface skips the known as well", method: "skip-interface=ens.*", host: added(iface("docker0", "172.17.0.1/16")), want: "172.29.0.11/24"},
		{name: "cidr", method: "cidr=172.29.0.0/24,10.9.0.0/16", host: after, want: "172.29.0.11/24"},
		{name: "cidr passes nothing over", method: "cidr=10.65.0.0/16", host: after, want: "10.65.0.0/32"},
		{name: "a bad cidr", method: "cidr=172.29.0.0", host: after, none: true, want: `invalid CIDR "172.29.0.0"`},
		{name: "can-reach", method: "can-reach=172.29.0.2", host: after, want: "172.29.0.11/24"},
		{name: "can-reach without a route", method: "can-reach=8.8.8.8", host: after, want: "finding the source address for 8.8.8.8: no route"},
		{name: "can-reach a name", method: "can-reach=tor1.example", host: after, want: `the name "tor1.example"`},
		{name: "can-reach without routes", method: "can-reach=172.29.0.2", host: Host{}, want: "routes are unknown"},
		{name: "InternalIP", method: "kubernetes-internal-ip", host: after, want: "172.29.0.11/24"},
		{name: "InternalIP on no interface", method: "kubernetes-internal-ip", host: Host{InternalIPs: before.InternalIPs}, none: true, want: "no interface has the InternalIP 172.29.0.11"},
		{name: "no InternalIP", method: "kubernetes-internal-ip", host: Host{Interfaces: after.Interfaces}, none: true, want: "no InternalIP"},
		{name: "unknown", method: "internal-ip", host: after, none: true, want: `unknown method "internal-ip"`},
		{name: "nothing there", host: Host{}, none: true, want: "finds no address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Choose(c.method, c.host)
			if err == nil {
				must.Equal(t, "chose", c.want, got.String())
				return
			}
			if !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrNone) != c.none {
				t.Errorf("got %v, want %s (none: %v)", err, c.want, c.none)
			}
		})
	}
}

func TestFixed(t *testing.T) {
	for ip, want := range map[string]bool{"autodetect": false, "": true, "none": true, "172.29.0.11": true} {
		must.Equal(t, ip, want, Fixed(ip))
	}
}

func TestExcluded(t *testing.T) {
	for name, want := range map[string]bool{
		"eth1": false, "ens224": false, "ibmveth0": false, "bond0": false, "enp1s0": false,
		"veth1": true, "cali1": true, "lo": true, "docker0": true, "br-1234": true, "tunl0": true, "kube-ipvs0": true, "vxlan.calico": true, "nodelocaldns": true,
	} {
		must.Equal(t, name, want, Excluded(name))
	}
}
