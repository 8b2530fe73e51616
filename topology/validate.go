package topology

import (
	"fmt"
	"math/bits"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// InvalidError holds all problems of a topology. It is bad input: the CLI exits with 2.
type InvalidError struct {
	Topology string // the name of the lab
	Problems []string
}

func (e *InvalidError) Error() string {
	if len(e.Problems) == 1 {
		return fmt.Sprintf("topology %q cannot be built: %s", e.Topology, e.Problems[0])
	}
	return fmt.Sprintf("topology %q cannot be built, %d problems:\n  %s", e.Topology, len(e.Problems), strings.Join(e.Problems, "\n  "))
}

// RelapseStatus is 2: bad input.
func (*InvalidError) RelapseStatus() int { return 2 }

// Limits of names, in characters. A container's name is also its host name, and
// a network's name may become a bridge's.
const (
	maxLabName  = 32
	maxHostName = 63 // RFC 1123, a label
	maxLinkName = 15 // Linux, IFNAMSIZ less the final zero byte
)

var nameRE = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// maxMaskSpan is the largest difference between a cluster's mask and a node's
// that kubeadm accepts (cmd/kubeadm/app/constants: PodSubnetNodeMaskMaxDiff).
const maxMaskSpan = 16

// Validate reports whether the lab can be built. Its error is an
// *InvalidError that holds every problem, in the order of the declaration.
func (t Topology) Validate() error {
	v := validator{t: t, first: map[used]string{}}
	v.name("lab", t.Name, maxLabName)
	for _, n := range t.Networks {
		owner := fmt.Sprintf("network %q", n.Name)
		v.name(owner, n.Name, maxLinkName)
		v.once(owner, "name", n.Name, "network")
		v.prefix(owner, n.Subnet)
		// A /30 has two usable addresses: the bridge's and one member's.
		if n.Subnet.Bits() > 30 {
			v.add(owner, "%s has no room for the bridge and a member: expected /30 or shorter", n.Subnet)
		}
	}
	for _, c := range t.Clusters {
		v.cluster(c)
	}
	for _, r := range t.Routers {
		v.router(r)
	}
	for _, h := range t.Hosts {
		owner := v.member(KindHost, h.Name, h.Links)
		v.via(owner, h.Links, h.Via)
	}
	v.ranges()
	if len(v.problems) == 0 {
		return nil
	}
	return &InvalidError{Topology: t.Name, Problems: v.problems}
}

// validator collects problems while it walks a topology.
type validator struct {
	t        Topology
	problems []string
	// first are the first owners of values that must be unique.
	first map[used]string
}

type used struct{ what, value string }

func (v *validator) add(owner, format string, args ...any) {
	v.problems = append(v.problems, owner+": "+fmt.Sprintf(format, args...))
}

// once reports a value that two owners have. It must be unique in the group among.
func (v *validator) once(owner, what, value, among string) {
	key := used{among + what, value}
	if first, found := v.first[key]; found {
		v.add(owner, "%s %s is also the one of %s", what, value, first)
		return
	}
	v.first[key] = owner
}

func (v *validator) name(owner, name string, limit int) {
	if !nameRE.MatchString(name) || len(name) > limit {
		v.add(owner, "%q is no name: expected lower-case letters, digits and dashes, %d at most, with a letter or digit at both ends",
			name, limit)
	}
}

// container is the most characters that the name of a container has besides the lab's name.
func (v *validator) container() int {
	return max(1, maxHostName-len("-")-min(len(v.t.Name), maxLabName))
}

func (v *validator) member(kind Kind, name string, links []Link) (owner string) {
	owner = fmt.Sprintf("%s %q", kind, name)
	v.name(owner, name, v.container())
	v.once(owner, "name", name, "member")
	if len(links) == 0 {
		v.add(owner, "no links: expected at least one")
	}
	for i, l := range links {
		n, ok := v.t.Network(l.Network)
		switch a := l.Address; {
		case !ok:
			v.add(owner, "no network %q%s", l.Network, Nearest(l.Network, namesOf(v.t.Networks, func(n Network) string { return n.Name })))
		case slices.ContainsFunc(links[:i], func(o Link) bool { return o.Network == l.Network }):
			v.add(owner, "a second link to network %q", l.Network)
		case !a.Is4() || !n.Subnet.Contains(a) || a == n.Subnet.Masked().Addr() || a == n.Bridge() || a == n.Broadcast():
			v.add(owner, "%s is no address of a member in %s of network %q, whose first one belongs to the bridge", a, n.Subnet, n.Name)
		}
		v.once(owner, "address", l.Address.String(), "")
	}
	return owner
}

func (v *validator) prefix(owner string, p netip.Prefix) {
	if !p.Addr().Is4() || p != p.Masked() {
		v.add(owner, "%s is no IPv4 prefix without host bits, such as 10.4.94.0/24", p)
	} else if a := p.Addr(); a.IsLoopback() || a.As4()[0] >= 224 {
		v.add(owner, "%s is loopback, multicast or reserved, and no network can use it", p)
	}
}

func (v *validator) asn(owner string, asn uint32) {
	if asn == 0 {
		v.add(owner, "AS 0 is reserved (RFC 7607)")
	}
}

func (v *validator) cluster(c Cluster) {
	owner := fmt.Sprintf("cluster %q", c.Name)
	v.name(owner, c.Name, v.container())
	v.once(owner, "name", c.Name, "cluster")
	v.asn(owner, c.ASN)
	v.prefix(owner, c.PodCIDR)
	v.prefix(owner, c.ServiceCIDR)
	if len(c.Nodes) == 0 {
		v.add(owner, "no nodes: expected at least a control plane")
		return
	}
	// There is a range for every node, and a /30 is the smallest with two addresses for pods.
	least, most := c.PodCIDR.Bits()+bits.Len(uint(len(c.Nodes)-1)), min(30, c.PodCIDR.Bits()+maxMaskSpan)
	if c.NodeMask < least || c.NodeMask > most {
		v.add(owner, "/%d does not split %s for %d nodes: expected /%d to /%d", c.NodeMask, c.PodCIDR, len(c.Nodes), least, most)
	}
	for i, n := range c.Nodes {
		owner := v.member(KindNode, n.Name, n.Links)
		role := Worker
		if i == 0 {
			role = ControlPlane
		}
		if n.Role != role {
			v.add(owner, "role %q: expected %q, as the first node alone is the control plane", n.Role, role)
		}
		switch {
		case n.Kernel == "":
		case !slices.Contains(Kernels, n.Kernel):
			v.add(owner, "no guest kernel %q%s", n.Kernel, Nearest(n.Kernel, Kernels))
		case v.t.Dual:
			v.add(owner, "a guest speaks IPv4 alone, and the lab is dual: expected no kernel, not %q", n.Kernel)
		case i == 0:
			v.add(owner, "a control plane runs on the machine's kernel: expected none, not %q", n.Kernel)
		}
		v.via(owner, n.Links, n.Via)
	}
}

func (v *validator) router(r Router) {
	owner := v.member(KindRouter, r.Name, r.Links)
	if r.Kind != "" && !slices.Contains(RouterKinds, r.Kind) {
		v.add(owner, "no kind of router %q%s", r.Kind, Nearest(r.Kind, RouterKinds))
	}
	v.asn(owner, r.ASN)
	if !r.ID.Is4() || r.ID.IsUnspecified() {
		v.add(owner, "%s is no BGP identifier: expected an IPv4 address, by convention one of the router's", r.ID)
	}
	v.once(owner, "BGP identifier", r.ID.String(), "")
	for i, p := range r.Peers {
		v.asn(owner, p.ASN)
		if _, linked := linkOn(r.Links, p.Network); !linked {
			v.add(owner, "peers on network %q, to which it has no link", p.Network)
		}
		if slices.ContainsFunc(r.Peers[:i], func(q Peers) bool { return q.Network == p.Network && q.ASN == p.ASN }) {
			v.add(owner, "AS %d on network %q is listed twice", p.ASN, p.Network)
		}
	}
}

// via checks a default route: its routers exist and share a network with the member.
func (v *validator) via(owner string, links []Link, via []string) {
	if len(via) == 0 {
		v.add(owner, "no default gateway: expected at least one router")
	}
	for _, name := range via {
		r, there := v.t.router(name)
		if !there {
			v.add(owner, "no router %q%s", name, Nearest(name, namesOf(v.t.Routers, func(r Router) string { return r.Name })))
		} else if _, reached := nextHop(links, r); !reached {
			v.add(owner, "it shares no network with router %q, its gateway", name)
		}
	}
}

func namesOf[T any](all []T, name func(T) string) (names []string) {
	for _, one := range all {
		names = append(names, name(one))
	}
	return names
}

// ranges checks that no two ranges of the lab overlap. The ServiceCIDRs of
// two clusters may: ClusterIPs never leave their cluster.
func (v *validator) ranges() {
	type ownedRange struct {
		owner   string
		prefix  netip.Prefix
		service bool
	}
	var all []ownedRange
	for _, n := range v.t.Networks {
		all = append(all, ownedRange{fmt.Sprintf("network %q", n.Name), n.Subnet, false})
	}
	for _, c := range v.t.Clusters {
		owner := fmt.Sprintf(" of cluster %q", c.Name)
		all = append(all, ownedRange{"the pods" + owner, c.PodCIDR, false}, ownedRange{"the Services" + owner, c.ServiceCIDR, true})
	}
	for _, p := range v.t.Routed {
		v.prefix("a routed range", p)
		all = append(all, ownedRange{"a routed range", p, false})
	}
	for i, r := range all {
		for _, o := range all[:i] {
			if r.prefix.Overlaps(o.prefix) && !(r.service && o.service) {
				v.add(r.owner, "%s overlaps %s of %s", r.prefix, o.prefix, o.owner)
			}
		}
	}
}

// Nearest renders the end of a sentence about a name that does not exist: the
// most similar of names, or all of them if none is similar.
func Nearest[S ~string](name S, names []S) string {
	switch best := Similar(name, names); {
	case best != "":
		return fmt.Sprintf("; nearest is %q", best)
	case len(names) > 0:
		return fmt.Sprintf("; there are %q", names)
	}
	return "; none is declared"
}

// Similar is the most similar of names; empty if none is similar.
func Similar[S ~string](name S, names []S) S {
	// A name that differs by more than half is another name, not a typing error.
	best, least := S(""), max(1, len(name)/2)
	for _, n := range names {
		if d := Distance(name, n); d <= least && n != "" {
			// On a tie the first declared wins.
			if d < least || best == "" {
				best, least = n, d
			}
		}
	}
	if best == "" && name != "" {
		// "tor" is similar to "tor-network", however long the rest is.
		for _, n := range names {
			if n != "" && (strings.HasPrefix(string(n), string(name)) || strings.HasPrefix(string(name), string(n))) {
				return n
			}
		}
	}
	return best
}

// Distance is Levenshtein's: the number of bytes to insert, remove or replace.
func Distance[S ~string](a, b S) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// lastAddr is the broadcast address of an IPv4 prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	return address(number(p.Addr()) | uint32(sizeOf(p)-1))
}
