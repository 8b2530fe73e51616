// Package autodetection predicts which address calico-node would choose for its node: the same
// choice in the same order as Calico's own code, without its side effects.
//
// The source is github.com/projectcalico/calico, version
// v1.11.0-cni-plugin.0.20250813170300-a0db560f0520 (the 3.28 line): in node/pkg/lifecycle/startup,
// configureIPsAndSubnets of startup.go, and autodetection_methods.go, autodetection_linux.go,
// filtered.go, interfaces.go and reachaddr.go of its folder autodetection. Calico's packages are
// not called: they read the interfaces of the machine that they run on, and exit on an unknown
// method.
package autodetection

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Methods of IP_AUTODETECTION_METHOD. Those that end in "=" take a value.
const (
	FirstFound           = "first-found" // and the empty string
	CanReach             = "can-reach="
	ByInterface          = "interface="
	SkipInterface        = "skip-interface="
	ByCIDR               = "cidr="
	KubernetesInternalIP = "kubernetes-internal-ip"
)

// excluded are the names that first-found and skip-interface pass over:
// DEFAULT_INTERFACES_TO_EXCLUDE of autodetection_linux.go, word for word.
var excluded = []string{
	"^docker.*", "^cbr.*", "^dummy.*", "^podman.*",
	"^virbr.*", "^lxcbr.*", "^veth.*", "^lo", "^br-.*",
	"^cali.*", "^tunl.*", "^flannel.*", "^kube-ipvs.*", "^cni.*",
	"^vxlan\\.calico.*", "^vxlan-v6\\.calico.*", "^wireguard\\.cali.*", "^wg-v6\\.cali.*",
	"^nodelocaldns.*",
}

// Excluded reports whether first-found passes over an interface of this name.
func Excluded(name string) bool {
	return slices.ContainsFunc(excluded, func(e string) bool { return regexp.MustCompile(e).MatchString(name) })
}

// Host is what is known of a node.
type Host struct {
	// Interfaces are in the order in which the kernel lists them. Calico reads their names and addresses, and ignores
	// whether they are up.
	Interfaces []snapshot.Interface
	// InternalIPs are the Node's addresses of that type, in its order.
	InternalIPs []netip.Addr
	// Source returns the address that the node would send from to a
	// destination. It is called for can-reach alone; nil if that is unknown.
	Source func(to netip.Addr) (netip.Addr, error)
}

// ErrNone says that Calico finds no address: calico-node keeps the address
// that the node already has, and exits if there is none.
var ErrNone = errors.New("autodetection finds no address")

// Fixed reports that Calico does not autodetect an address for a node that has one, by the variable IP of
// calico-node: an address is configured, or none is to be used, or nothing is configured.
func Fixed(ip string) bool { return ip != "autodetect" }

// Choose returns the IPv4 address, with the length of its subnet, that autodetection by a method chooses. The
// error is ErrNone, or says which information is missing.
func Choose(method string, h Host) (netip.Prefix, error) {
	value := func(prefix string) string { return strings.TrimPrefix(method, prefix) }
	switch {
	case method == "" || method == FirstFound:
		return enumerate(h, nil, excluded, nil)
	case strings.HasPrefix(method, ByInterface):
		return enumerate(h, list(value(ByInterface)), nil, nil)
	case strings.HasPrefix(method, ByCIDR):
		var cidrs []netip.Prefix
		for _, text := range list(value(ByCIDR)) {
			cidr, err := netip.ParsePrefix(text)
			if err != nil { // autodetection_methods.go: "Invalid CIDR", and no address
				return netip.Prefix{}, fmt.Errorf("%w: method %q names the invalid CIDR %q", ErrNone, method, text)
			}
			cidrs = append(cidrs, cidr.Masked())
		}
		return enumerate(h, nil, nil, cidrs)
	case strings.HasPrefix(method, CanReach):
		return reach(h, value(CanReach))
	case strings.HasPrefix(method, SkipInterface):
		return enumerate(h, nil, slices.Concat(excluded, list(value(SkipInterface))), nil)
	case strings.HasPrefix(method, KubernetesInternalIP):
		return internalIP(h)
	}
	return netip.Prefix{}, fmt.Errorf("%w: calico-node exits on the unknown method %q", ErrNone, method)
}

var comma = regexp.MustCompile(`\s*,\s*`)

func list(text string) []string { return comma.Split(text, -1) }

// matcher compiles patterns as interfaces.go does.
func matcher(patterns []string) (*regexp.Regexp, error) {
	r, err := regexp.Compile("(" + strings.Join(patterns, ")|(") + ")")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	return r, nil
}

// enumerate takes the first global unicast address of the first interface that
// passes, from the last interface to the first: FilteredEnumeration of
// filtered.go over GetInterfaces of interfaces.go, whose loop runs in reverse
// "to maintain behavior with older versions". That is why the newest wins.
func enumerate(h Host, include, exclude []string, cidrs []netip.Prefix) (netip.Prefix, error) {
	includes, err := matcher(include)
	excludes, err2 := matcher(exclude)
	if err := cmp.Or(err, err2); err != nil {
		return netip.Prefix{}, err
	}
	for _, i := range slices.Backward(h.Interfaces) {
		if len(include) > 0 && !includes.MatchString(i.Name) || len(exclude) > 0 && excludes.MatchString(i.Name) {
			continue
		}
		for _, a := range i.Addresses {
			// net.IP.IsGlobalUnicast, which Calico asks, and netip's agree.
			if !a.Addr().Is4() || !a.Addr().IsGlobalUnicast() {
				continue
			}
			if len(cidrs) == 0 || slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(a.Addr()) }) {
				return a, nil
			}
		}
	}
	return netip.Prefix{}, ErrNone
}

// reach takes the address that a UDP socket connected to a destination has:
// ReachDestination of reachaddr.go.
func reach(h Host, destination string) (netip.Prefix, error) {
	to, err := netip.ParseAddr(destination)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("the address of the name %q on the node is unknown", destination)
	}
	if h.Source == nil {
		return netip.Prefix{}, errors.New("the node's routes are unknown")
	}
	source, err := h.Source(to)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("finding the source address for %s: %w", to, err)
	}
	if a := subnetOf(h, source); a.IsValid() {
		return a, nil
	}
	return netip.Prefix{}, fmt.Errorf("%w: no interface has the address %s that reaches %s", ErrNone, source, to)
}

// internalIP takes the Node's first IPv4 InternalIP, whether an interface has it or not:
// autoDetectUsingK8sInternalIP and GetLocalCIDR of autodetection_methods.go. Without a subnet the
// address parses as no CIDR, and nothing is detected.
func internalIP(h Host) (netip.Prefix, error) {
	for _, a := range h.InternalIPs {
		if !a.Is4() {
			continue
		}
		if own := subnetOf(h, a); own.IsValid() {
			return own, nil
		}
		return netip.Prefix{}, fmt.Errorf("%w: no interface has the InternalIP %s", ErrNone, a)
	}
	return netip.Prefix{}, fmt.Errorf("%w: the Node has no InternalIP", ErrNone)
}

// subnetOf is an address with the length of its subnet; invalid if no interface has it.
func subnetOf(h Host, address netip.Addr) netip.Prefix {
	for _, i := range slices.Backward(h.Interfaces) {
		for _, a := range i.Addresses {
			if a.Addr() == address {
				return a
			}
		}
	}
	return netip.Prefix{}
}
