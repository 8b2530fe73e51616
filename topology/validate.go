package topology

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Problem is one reason why a topology cannot be built.
type Problem struct {
	// Path is the field at fault, such as "clusters[0].nodes[2].links[0].network".
	Path string
	// Says states what is wrong and what was expected.
	Says string
}

func (p Problem) String() string {
	if p.Path == "" {
		return p.Says
	}
	return p.Path + ": " + p.Says
}

// InvalidError holds all problems of a topology. It is bad input: the CLI exits with 2.
type InvalidError struct {
	// Topology is the name of the lab; empty if it has none.
	Topology string
	Problems []Problem
}

func (e *InvalidError) Error() string {
	var b strings.Builder
	b.WriteString("topology ")
	if e.Topology != "" {
		fmt.Fprintf(&b, "%q ", e.Topology)
	}
	if len(e.Problems) == 1 {
		b.WriteString("cannot be built: " + e.Problems[0].String())
		return b.String()
	}
	fmt.Fprintf(&b, "cannot be built, %d problems:", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
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
	v := validator{t: t, members: map[string]string{}, addresses: map[netip.Addr]string{}, routerIDs: map[netip.Addr]string{}}
	v.name("name", t.Name, maxLabName)
	v.networks()
	v.clusters()
	v.routers()
	v.hosts()
	v.ranges()
	if len(v.problems) == 0 {
		return nil
	}
	return &InvalidError{Topology: t.Name, Problems: v.problems}
}

// validator collects problems while it walks a topology.
type validator struct {
	t        Topology
	problems []Problem
	// members, addresses and routerIDs hold the path of the first user.
	members   map[string]string
	addresses map[netip.Addr]string
	routerIDs map[netip.Addr]string
}

func (v *validator) add(path, format string, args ...any) {
	v.problems = append(v.problems, Problem{Path: path, Says: fmt.Sprintf(format, args...)})
}

func (v *validator) name(path, name string, limit int) {
	switch {
	case name == "":
		v.add(path, "no name")
	case !nameRE.MatchString(name):
		v.add(path, "%q is not a name: expected lower-case letters, digits and dashes, with a letter or digit at both ends", name)
	case len(name) > limit:
		v.add(path, "%q has %d characters: expected %d at most", name, len(name), limit)
	}
}

func (v *validator) container(path, name string) {
	v.name(path, name, max(1, maxHostName-len("-")-min(len(v.t.Name), maxLabName)))
}

func (v *validator) member(path, name string) {
	v.container(path+".name", name)
	v.unique(v.members, path, name)
}

func (v *validator) networks() {
	first := map[string]string{}
	for i, n := range v.t.Networks {
		path := fmt.Sprintf("networks[%d]", i)
		v.name(path+".name", n.Name, maxLinkName)
		v.unique(first, path, n.Name)
		if !v.prefix(path+".subnet", n.Subnet) {
			continue
		}
		// A /30 has two usable addresses: the bridge's and one member's.
		if n.Subnet.Bits() > 30 {
			v.add(path+".subnet", "%s has no room for the bridge and a member: expected /30 or shorter", n.Subnet)
		}
	}
}

func (v *validator) unique(first map[string]string, path, name string) {
	if name == "" {
		return
	}
	if p, ok := first[name]; ok {
		v.add(path+".name", "%q is also the name of %s", name, p)
		return
	}
	first[name] = path
}

// reserved are ranges that no network can use.
var reserved = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "this network"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
}

func (v *validator) prefix(path string, p netip.Prefix) bool {
	switch {
	case !p.IsValid():
		v.add(path, "no prefix: expected an IPv4 prefix such as 10.4.94.0/24")
		return false
	case !p.Addr().Is4():
		v.add(path, "%s is not an IPv4 prefix", p)
		return false
	case p != p.Masked():
		v.add(path, "%s has host bits: expected %s", p, p.Masked())
		return false
	}
	for _, r := range reserved {
		if p.Overlaps(r.prefix) {
			v.add(path, "%s overlaps %s (%s)", p, r.prefix, r.what)
			return false
		}
	}
	return true
}

func (v *validator) asn(path string, asn uint32) {
	if asn == 0 {
		v.add(path, "AS 0 is reserved (RFC 7607)")
	}
}

func (v *validator) clusters() {
	first := map[string]string{}
	for i, c := range v.t.Clusters {
		path := fmt.Sprintf("clusters[%d]", i)
		v.container(path+".name", c.Name)
		v.unique(first, path, c.Name)
		v.asn(path+".asn", c.ASN)
		if v.prefix(path+".podCIDR", c.PodCIDR) {
			v.nodeMask(path, c)
		}
		v.prefix(path+".serviceCIDR", c.ServiceCIDR)
		if len(c.Nodes) == 0 {
			v.add(path+".nodes", "no nodes: expected at least a control plane")
		}
		for j, n := range c.Nodes {
			v.node(fmt.Sprintf("%s.nodes[%d]", path, j), n, j == 0)
		}
	}
}

// nodeMask checks that there is a range for every node.
func (v *validator) nodeMask(path string, c Cluster) {
	path += ".nodeMask"
	bits := c.PodCIDR.Bits()
	switch span := c.NodeMask - bits; {
	// A /30 is the smallest range with two addresses for pods.
	case c.NodeMask > 30 || span < 0:
		v.add(path, "/%d does not split %s: expected /%d to /30", c.NodeMask, c.PodCIDR, bits)
	case span > maxMaskSpan:
		v.add(path, "/%d in %s: kubeadm allows %d bits of difference at most; expected /%d or shorter",
			c.NodeMask, c.PodCIDR, maxMaskSpan, bits+maxMaskSpan)
	case 1<<span < len(c.Nodes):
		v.add(path, "%s has %d ranges of /%d for %d nodes", c.PodCIDR, 1<<span, c.NodeMask, len(c.Nodes))
	}
}

func (v *validator) node(path string, n Node, first bool) {
	v.member(path, n.Name)
	switch {
	case n.Role != ControlPlane && n.Role != Worker:
		v.add(path+".role", "no role %q: expected %q or %q", n.Role, ControlPlane, Worker)
	case first && n.Role != ControlPlane:
		v.add(path+".role", "the first node is the cluster's control plane: expected %q, not %q", ControlPlane, n.Role)
	case !first && n.Role == ControlPlane:
		v.add(path+".role", "a cluster has one control plane, its first node: expected %q", Worker)
	}
	switch {
	case n.Kernel != "" && !slices.Contains(Kernels, n.Kernel):
		v.add(path+".kernel", "no guest kernel %q%s", n.Kernel, Nearest(n.Kernel, Kernels))
	case n.Kernel != "" && v.t.Dual:
		v.add(path+".kernel", "a guest speaks IPv4 alone, and the lab is dual: expected none, not %q", n.Kernel)
	case n.Kernel != "" && n.Role == ControlPlane:
		v.add(path+".kernel", "a control plane runs on the machine's kernel: expected none, not %q", n.Kernel)
	}
	v.links(path, n.Links)
	v.via(path, n.Links, n.Via)
}

func (v *validator) routers() {
	for i, r := range v.t.Routers {
		path := fmt.Sprintf("routers[%d]", i)
		v.member(path, r.Name)
		if r.Kind != "" && !slices.Contains(RouterKinds, r.Kind) {
			v.add(path+".kind", "no kind of router %q%s", r.Kind, Nearest(r.Kind, RouterKinds))
		}
		v.asn(path+".asn", r.ASN)
		switch first, taken := v.routerIDs[r.ID]; {
		case !r.ID.Is4() || r.ID.IsUnspecified():
			v.add(path+".id", "%s is not a BGP identifier: expected an IPv4 address, by convention one of the router's", r.ID)
		case taken:
			v.add(path+".id", "%s is also the identifier of %s", r.ID, first)
		default:
			v.routerIDs[r.ID] = path
		}
		v.links(path, r.Links)
		for j, p := range r.Peers {
			at := fmt.Sprintf("%s.peers[%d]", path, j)
			v.asn(at+".asn", p.ASN)
			if slices.ContainsFunc(r.Peers[:j], func(q Peers) bool { return q.Network == p.Network && q.ASN == p.ASN }) {
				v.add(at, "AS %d on network %q is listed twice", p.ASN, p.Network)
				continue
			}
			if !v.known(at+".network", p.Network) {
				continue
			}
			if _, ok := linkOn(r.Links, p.Network); !ok {
				v.add(at+".network", "router %q has no link to network %q", r.Name, p.Network)
			}
		}
	}
}

func (v *validator) hosts() {
	for i, h := range v.t.Hosts {
		path := fmt.Sprintf("hosts[%d]", i)
		v.member(path, h.Name)
		v.links(path, h.Links)
		v.via(path, h.Links, h.Via)
	}
}

func (v *validator) known(path, network string) bool {
	if _, ok := v.t.Network(network); ok {
		return true
	}
	var names []string
	for _, n := range v.t.Networks {
		names = append(names, n.Name)
	}
	v.add(path, "no network %q%s", network, Nearest(network, names))
	return false
}

func (v *validator) links(path string, links []Link) {
	if len(links) == 0 {
		v.add(path+".links", "no links: expected at least one")
	}
	for i, l := range links {
		at := fmt.Sprintf("%s.links[%d]", path, i)
		if v.known(at+".network", l.Network) {
			if _, twice := linkOn(links[:i], l.Network); twice {
				v.add(at+".network", "a second link to network %q", l.Network)
			}
		}
		v.address(at+".address", l)
	}
}

func (v *validator) address(path string, l Link) {
	a := l.Address
	if !a.Is4() {
		v.add(path, "%s is not an IPv4 address", a)
		return
	}
	if first, ok := v.addresses[a]; ok {
		v.add(path, "%s is also the address of %s", a, first)
	} else {
		v.addresses[a] = strings.TrimSuffix(path, ".address")
	}
	n, ok := v.t.Network(l.Network)
	if !ok || !n.Subnet.IsValid() || !n.Subnet.Addr().Is4() {
		return // reported at the network
	}
	switch s := n.Subnet.Masked(); {
	case !s.Contains(a):
		v.add(path, "%s is not in %s, the subnet of network %q", a, s, n.Name)
	case a == s.Addr():
		v.add(path, "%s is the network address of %s", a, s)
	case a == lastAddr(s):
		v.add(path, "%s is the broadcast address of %s", a, s)
	case a == n.Bridge():
		v.add(path, "%s is the first address of %s, which belongs to the bridge", a, s)
	}
}

// via checks a default route: its routers exist and share a network with the member.
func (v *validator) via(path string, links []Link, via []string) {
	if len(via) == 0 {
		v.add(path+".via", "no routers: expected at least one, the default gateway")
	}
	for i, name := range via {
		at := fmt.Sprintf("%s.via[%d]", path, i)
		if slices.Contains(via[:i], name) {
			v.add(at, "router %q is listed twice", name)
			continue
		}
		r, ok := v.t.router(name)
		if !ok {
			var names []string
			for _, r := range v.t.Routers {
				names = append(names, r.Name)
			}
			v.add(at, "no router %q%s", name, Nearest(name, names))
			continue
		}
		if _, ok := nextHop(links, r); !ok {
			v.add(at, "router %q shares no network with this member", name)
		}
	}
}

// ranges checks that no two ranges of the lab overlap. The ServiceCIDRs of
// two clusters may: ClusterIPs never leave their cluster.
func (v *validator) ranges() {
	type rng struct {
		path    string
		prefix  netip.Prefix
		service bool
	}
	var ranges []rng
	add := func(path string, p netip.Prefix, service bool) {
		if p.IsValid() && p.Addr().Is4() {
			ranges = append(ranges, rng{path, p.Masked(), service})
		}
	}
	for i, n := range v.t.Networks {
		add(fmt.Sprintf("networks[%d].subnet", i), n.Subnet, false)
	}
	for i, c := range v.t.Clusters {
		add(fmt.Sprintf("clusters[%d].podCIDR", i), c.PodCIDR, false)
		add(fmt.Sprintf("clusters[%d].serviceCIDR", i), c.ServiceCIDR, true)
	}
	for i, p := range v.t.Routed {
		if path := fmt.Sprintf("routed[%d]", i); v.prefix(path, p) {
			add(path, p, false)
		}
	}
	for i, r := range ranges {
		for _, earlier := range ranges[:i] {
			if r.prefix.Overlaps(earlier.prefix) && !(r.service && earlier.service) {
				v.add(r.path, "%s overlaps %s of %s", r.prefix, earlier.prefix, earlier.path)
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
	// A name of which more than half differs is another name, not a typing error.
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
