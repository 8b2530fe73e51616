package topology

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A containerlab file (containerlab.dev/manual/topo-def-file, and the schema
// schemas/clab.schema.json of srl-labs/containerlab) has nodes of a kind,
// and point-to-point links between their interfaces. A topology maps to it so:
//
//	Network        node of kind bridge; the bridge must exist beforehand
//	Cluster        node of kind k8s-kind, its kind configuration embedded
//	Node           node of kind ext-container, named as kind names containers
//	Router, Host   node of kind linux
//	Link           veth between a member and a bridge
//
// What containerlab has no word for is in labels under relapse.dev. They are
// what ImportContainerlab reads; exec, sysctls, image and startup-config are
// written for containerlab only.
const labelPrefix = "relapse.dev/"

// clabGracefulRestart marks peers of a router in labelPeers.
const clabGracefulRestart = "graceful-restart"

// Labels, without their prefix.
const (
	labelType        = "type"         // one of the clabTypes
	labelName        = "name"         // the name in the topology
	labelSubnet      = "subnet"       // of a network
	labelASN         = "asn"          // of a cluster or router
	labelPodCIDR     = "pod-cidr"     // of a cluster
	labelNodeMask    = "node-mask"    // of a cluster
	labelServiceCIDR = "service-cidr" // of a cluster
	labelCluster     = "cluster"      // of a node
	labelRole        = "role"         // of a node
	labelKernel      = "kernel"       // of a node, if it has one of its own
	labelVia         = "via"          // of a node or host: routers, comma-separated
	labelRouterID    = "router-id"    // of a router
	labelPeers       = "peers"        // of a router: network:asn[:graceful-restart], comma-separated
	labelImage       = "image"        // of a host, if it is not the common one
)

// clabType is what a containerlab node stands for.
type clabType struct {
	kind             string   // containerlab's word
	required, allows []string // labels beside type and name
}

var clabTypes = map[string]clabType{
	"network": {kind: "bridge", required: []string{labelSubnet}},
	"cluster": {kind: "k8s-kind", required: []string{labelASN, labelPodCIDR, labelNodeMask, labelServiceCIDR}},
	"node":    {kind: "ext-container", required: []string{labelCluster, labelRole, labelVia}, allows: []string{labelKernel}},
	"router":  {kind: "linux", required: []string{labelASN, labelRouterID}, allows: []string{labelPeers}},
	"host":    {kind: "linux", required: []string{labelVia}, allows: []string{labelImage}},
}

// Images that containerlab's own examples use: the export is for drawing a
// lab and wiring it, and its routers forward but have no BGP configuration.
const (
	clabRouterImage = "quay.io/frrouting/frr:10.5.1"
	clabHostImage   = "docker.io/wbitt/network-multitool:alpine-extra"
)

const clabHeader = `# A containerlab topology, written by relapse. Labels under relapse.dev carry
# what containerlab has no word for; relapse reads them back, and ignores exec,
# sysctls, image and startup-config. The bridges must exist before the lab is
# deployed, and BGP on the routers is yours to configure.
`

type clabNode struct {
	Kind          string            `yaml:"kind"`
	Image         string            `yaml:"image,omitempty"`
	NetworkMode   string            `yaml:"network-mode,omitempty"`
	StartupConfig string            `yaml:"startup-config,omitempty"`
	Sysctls       map[string]int    `yaml:"sysctls,omitempty"`
	Exec          []string          `yaml:"exec,omitempty"`
	Labels        map[string]string `yaml:"labels"`
}

type clabEndpoint struct {
	Node      string `yaml:"node"`
	Interface string `yaml:"interface"`
	IPv4      string `yaml:"ipv4,omitempty"`
}

type clabLink struct {
	Type      string         `yaml:"type"`
	Endpoints []clabEndpoint `yaml:"endpoints"`
}

type clabFile struct {
	Name     string `yaml:"name"`
	Topology struct {
		// Nodes is a mapping that keeps its order.
		Nodes yaml.Node  `yaml:"nodes"`
		Links []clabLink `yaml:"links,omitempty"`
	} `yaml:"topology"`
}

// ExportContainerlab writes t as a containerlab topology file, which
// ImportContainerlab reads back without loss. It returns an *InvalidError if t
// is not valid.
func (t Topology) ExportContainerlab(w io.Writer) error {
	if err := t.Validate(); err != nil {
		return err
	}
	e := clabExport{t: t, taken: map[string]bool{}, bridges: map[string]string{}}
	e.file.Name = t.Name
	e.file.Topology.Nodes.Kind = yaml.MappingNode
	if err := e.build(); err != nil {
		return fmt.Errorf("exporting topology %q: %w", t.Name, err)
	}
	var b bytes.Buffer
	b.WriteString(clabHeader)
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(e.file), enc.Close()); err != nil {
		return fmt.Errorf("exporting topology %q: %w", t.Name, err)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("writing topology %q: %w", t.Name, err)
	}
	return nil
}

type clabExport struct {
	t     Topology
	file  clabFile
	taken map[string]bool
	// bridges maps a network's name to its key among the nodes.
	bridges map[string]string
}

// key returns want, or want with a number, so that it is nobody else's:
// containerlab has one name space where a topology has three.
func (e *clabExport) key(want string) string {
	key := want
	for i := 2; e.taken[key]; i++ {
		key = fmt.Sprintf("%s-%d", want, i)
	}
	e.taken[key] = true
	return key
}

func (e *clabExport) build() error {
	// Keys that containerlab or kind gives a meaning to are taken first;
	// bridges, which the user creates, are last.
	clusters := make([]string, len(e.t.Clusters))
	nodes := map[string]string{}
	for i, c := range e.t.Clusters {
		clusters[i] = e.key(c.Name)
		workers := 0
		for _, n := range c.Nodes {
			nodes[n.Name] = e.key(kindContainer(clusters[i], n.Role, &workers))
		}
	}
	for _, m := range e.t.Members() {
		if m.Kind != KindNode {
			nodes[m.Name] = e.key(m.Name)
		}
	}
	for _, n := range e.t.Networks {
		e.bridges[n.Name] = e.key(n.Name)
		if err := e.node(e.bridges[n.Name], n.Name, "network", clabNode{}, map[string]string{labelSubnet: n.Subnet.String()}); err != nil {
			return err
		}
	}
	for i, c := range e.t.Clusters {
		if err := e.cluster(clusters[i], c, nodes); err != nil {
			return err
		}
	}
	for _, r := range e.t.Routers {
		labels := map[string]string{labelASN: asnString(r.ASN), labelRouterID: r.ID.String()}
		if len(r.Peers) > 0 {
			var peers []string
			for _, p := range r.Peers {
				text := p.Network + ":" + asnString(p.ASN)
				if p.GracefulRestart {
					text += ":" + clabGracefulRestart
				}
				peers = append(peers, text)
			}
			labels[labelPeers] = strings.Join(peers, ",")
		}
		n := clabNode{Image: clabRouterImage, NetworkMode: "none", Sysctls: map[string]int{"net.ipv4.ip_forward": 1}}
		if err := e.member(nodes[r.Name], Member{Kind: KindRouter, Name: r.Name, Links: r.Links}, n, labels); err != nil {
			return err
		}
	}
	for _, h := range e.t.Hosts {
		n := clabNode{Image: clabHostImage, NetworkMode: "none"}
		m := Member{Kind: KindHost, Name: h.Name, Links: h.Links, Via: h.Via}
		labels := map[string]string{labelVia: strings.Join(h.Via, ",")}
		if h.Image != "" {
			labels[labelImage] = h.Image
		}
		if err := e.member(nodes[h.Name], m, n, labels); err != nil {
			return err
		}
	}
	return nil
}

// kindContainer is the name that kind gives to the container of a cluster's
// next node (sigs.k8s.io/kind/pkg/cluster/internal/providers/common).
func kindContainer(cluster string, role Role, workers *int) string {
	if role == ControlPlane {
		return cluster + "-control-plane"
	}
	if *workers++; *workers == 1 {
		return cluster + "-worker"
	}
	return fmt.Sprintf("%s-worker%d", cluster, *workers)
}

func (e *clabExport) cluster(key string, c Cluster, nodes map[string]string) error {
	var config strings.Builder
	fmt.Fprintf(&config, "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnetworking:\n"+
		"  disableDefaultCNI: true\n  podSubnet: %s\n  serviceSubnet: %s\nnodes:\n", c.PodCIDR, c.ServiceCIDR)
	for _, n := range c.Nodes {
		fmt.Fprintf(&config, "- role: %s\n", n.Role)
	}
	err := e.node(key, c.Name, "cluster", clabNode{StartupConfig: config.String()}, map[string]string{
		labelASN:         asnString(c.ASN),
		labelPodCIDR:     c.PodCIDR.String(),
		labelNodeMask:    strconv.Itoa(c.NodeMask),
		labelServiceCIDR: c.ServiceCIDR.String(),
	})
	if err != nil {
		return err
	}
	for _, n := range c.Nodes {
		labels := map[string]string{labelCluster: c.Name, labelRole: string(n.Role), labelVia: strings.Join(n.Via, ",")}
		if n.Kernel != "" {
			labels[labelKernel] = n.Kernel
		}
		m := Member{Kind: KindNode, Name: n.Name, Links: n.Links, Via: n.Via}
		if err := e.member(nodes[n.Name], m, clabNode{}, labels); err != nil {
			return err
		}
	}
	return nil
}

// member adds a node with links. containerlab configures addresses of some
// kinds only, linux and ext-container not among them: exec does it here.
func (e *clabExport) member(key string, m Member, n clabNode, labels map[string]string) error {
	// eth0 of a kind node is on Docker's network and not containerlab's to link.
	first := 0
	if m.Kind == KindNode {
		first = 1
	}
	for i, l := range m.Links {
		network, _ := e.t.Network(l.Network)
		address := netip.PrefixFrom(l.Address, network.Subnet.Bits()).String()
		ifname := fmt.Sprintf("eth%d", first+i)
		n.Exec = append(n.Exec, fmt.Sprintf("ip address add %s dev %s", address, ifname))
		e.file.Topology.Links = append(e.file.Topology.Links, clabLink{Type: "veth", Endpoints: []clabEndpoint{
			{Node: key, Interface: ifname, IPv4: address},
			{Node: e.bridges[l.Network], Interface: e.bridgePort()},
		}})
	}
	if hops := e.t.NextHops(m); len(hops) > 0 {
		route := "ip route replace default"
		for _, h := range hops {
			route += " nexthop via " + h.Address.String()
		}
		n.Exec = append(n.Exec, route)
	}
	return e.node(key, m.Name, string(m.Kind), n, labels)
}

// bridgePort names the bridge's end of the next link. Bridges are in the
// machine's namespace, where other labs have ports too: the lab's hash keeps
// them apart.
func (e *clabExport) bridgePort() string {
	h := fnv.New32a()
	h.Write([]byte(e.t.Name))
	return fmt.Sprintf("r%06x-%d", h.Sum32()&0xffffff, len(e.file.Topology.Links))
}

func (e *clabExport) node(key, name, typ string, n clabNode, labels map[string]string) error {
	n.Kind = clabTypes[typ].kind
	n.Labels = map[string]string{labelPrefix + labelType: typ, labelPrefix + labelName: name}
	for k, v := range labels {
		n.Labels[labelPrefix+k] = v
	}
	var k, v yaml.Node
	k.SetString(key)
	if err := v.Encode(n); err != nil {
		return err
	}
	nodes := &e.file.Topology.Nodes
	nodes.Content = append(nodes.Content, &k, &v)
	return nil
}

func asnString(asn uint32) string { return strconv.FormatUint(uint64(asn), 10) }

// ImportContainerlab reads a file that ExportContainerlab wrote. It returns an
// *InvalidError with every problem of the file, and the lines that they are
// on, if the file is not one or if its topology is not valid.
func ImportContainerlab(r io.Reader) (Topology, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return Topology{}, fmt.Errorf("reading containerlab file: %w", err)
	}
	im := clabImport{lines: map[string]int{}, byKey: map[string]*clabItem{}, ports: map[string]bool{}}
	im.read(data)
	if len(im.problems) == 0 {
		im.validate()
	}
	if len(im.problems) > 0 {
		slices.SortFunc(im.problems, func(a, b Problem) int {
			return cmp.Or(a.Line-b.Line, strings.Compare(a.Path, b.Path), strings.Compare(a.Says, b.Says))
		})
		return Topology{}, &InvalidError{Topology: im.t.Name, Problems: im.problems}
	}
	return im.t, nil
}

type clabImport struct {
	t        Topology
	problems []Problem
	// lines maps the paths that Validate speaks of to lines of the file.
	lines map[string]int
	items []*clabItem
	byKey map[string]*clabItem
	ports map[string]bool
}

// clabItem is one entry of topology.nodes, and the links that end at it.
type clabItem struct {
	path   string // in the file
	line   int
	typ    string
	labels map[string]*yaml.Node // without the prefix
	links  []clabItemLink
}

type clabItemLink struct {
	// eth is the number of the member's interface, line that of its address.
	eth, line int
	Link
}

func (im *clabImport) add(line int, path, format string, args ...any) {
	im.problems = append(im.problems, Problem{Line: line, Path: path, Says: fmt.Sprintf(format, args...)})
}

// yamlLine finds the line in an error of the yaml library, which has no field
// for it.
var yamlLine = regexp.MustCompile(`line (\d+): (?s)(.*)`)

func (im *clabImport) read(data []byte) {
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil {
		line, says := 0, strings.TrimPrefix(err.Error(), "yaml: ")
		if m := yamlLine.FindStringSubmatch(says); m != nil {
			line, _ = strconv.Atoi(m[1])
			says = m[2]
		} else if errors.Is(err, io.EOF) {
			says = "the file is empty"
		}
		im.add(line, "", "not YAML: %s", says)
		return
	}
	var second yaml.Node
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		im.add(second.Line, "", "more than one YAML document: expected one")
		return
	}
	// A document node has one child.
	root := im.mapping("", doc.Content[0], "name", "topology")
	if n, ok := im.need(root, "", "name", doc.Content[0]); ok {
		im.t.Name = im.scalar("name", n)
		im.lines["name"] = n.Line
	}
	topo, ok := im.need(root, "", "topology", doc.Content[0])
	if !ok {
		return
	}
	parts := im.mapping("topology", topo, "nodes", "links")
	nodes, ok := im.need(parts, "topology", "nodes", topo)
	if !ok {
		return
	}
	im.nodes(nodes)
	if n := parts["links"]; n != nil {
		im.links(n)
	}
	im.assemble()
}

// mapping returns the values of a mapping, of which only the known keys may
// occur; none known means that all may.
func (im *clabImport) mapping(path string, n *yaml.Node, known ...string) map[string]*yaml.Node {
	values := map[string]*yaml.Node{}
	if n.Kind != yaml.MappingNode {
		im.add(n.Line, path, "expected a mapping, found %s", yamlKind(n))
		return values
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch key := k.Value; {
		case k.Kind != yaml.ScalarNode:
			im.add(k.Line, path, "expected a key, found %s", yamlKind(k))
		case values[key] != nil:
			im.add(k.Line, join(path, key), "given twice, before on line %d", values[key].Line)
		case len(known) > 0 && !slices.Contains(known, key):
			im.add(k.Line, join(path, key), "a topology has no place for this%s", Nearest(key, known))
		default:
			values[key] = v
		}
	}
	return values
}

func (im *clabImport) need(values map[string]*yaml.Node, path, key string, parent *yaml.Node) (*yaml.Node, bool) {
	n, ok := values[key]
	if !ok && parent.Kind == yaml.MappingNode {
		im.add(parent.Line, join(path, key), "missing")
	}
	return n, ok
}

func (im *clabImport) scalar(path string, n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode {
		im.add(n.Line, path, "expected a string, found %s", yamlKind(n))
		return ""
	}
	return n.Value
}

func (im *clabImport) nodes(n *yaml.Node) {
	im.mapping("topology.nodes", n) // duplicate keys
	if n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || im.byKey[key.Value] != nil {
			continue // reported
		}
		item := &clabItem{path: join("topology.nodes", key.Value), line: key.Line, labels: map[string]*yaml.Node{}}
		im.byKey[key.Value] = item
		if im.item(item, value) {
			im.items = append(im.items, item)
		}
	}
}

// item reads what a node stands for, and its labels; it says whether that is
// known.
func (im *clabImport) item(item *clabItem, n *yaml.Node) bool {
	fields := im.mapping(item.path, n, "kind", "image", "network-mode", "startup-config", "sysctls", "exec", "labels")
	labels, ok := im.need(fields, item.path, "labels", n)
	if !ok {
		return false
	}
	at := item.path + ".labels"
	for key, v := range im.mapping(at, labels) {
		name, ours := strings.CutPrefix(key, labelPrefix)
		if !ours {
			im.add(v.Line, join(at, key), "a topology has no place for this: expected labels under %s", labelPrefix)
			continue
		}
		im.scalar(join(at, key), v)
		item.labels[name] = v
	}
	if labels.Kind != yaml.MappingNode {
		return false
	}
	typ, ok := item.labels[labelType]
	if !ok {
		im.add(labels.Line, join(at, labelPrefix+labelType), "missing: it says what the node stands for")
		return false
	}
	item.typ = typ.Value
	want, ok := clabTypes[item.typ]
	if !ok {
		im.add(typ.Line, join(at, labelPrefix+labelType), "no type %q%s", typ.Value,
			Nearest(typ.Value, []string{"network", "cluster", "node", "router", "host"}))
		return false
	}
	if kind, ok := im.need(fields, item.path, "kind", n); ok && kind.Value != want.kind {
		im.add(kind.Line, item.path+".kind", "a %s is of kind %s, not %q", item.typ, want.kind, kind.Value)
	}
	known := slices.Concat([]string{labelType, labelName}, want.required, want.allows)
	for name, v := range item.labels {
		if !slices.Contains(known, name) {
			im.add(v.Line, join(at, labelPrefix+name), "a %s has no such label%s", item.typ, Nearest(name, known))
		}
	}
	for _, name := range append([]string{labelName}, want.required...) {
		if item.labels[name] == nil {
			im.add(labels.Line, join(at, labelPrefix+name), "missing: every %s has it", item.typ)
		}
	}
	return true
}

func (im *clabImport) links(n *yaml.Node) {
	if n.Kind != yaml.SequenceNode {
		im.add(n.Line, "topology.links", "expected a list, found %s", yamlKind(n))
		return
	}
	for i, l := range n.Content {
		path := fmt.Sprintf("topology.links[%d]", i)
		fields := im.mapping(path, l, "type", "endpoints")
		if typ, ok := im.need(fields, path, "type", l); ok && typ.Value != "veth" {
			im.add(typ.Line, path+".type", "expected veth, found %q", typ.Value)
		}
		ends, ok := im.need(fields, path, "endpoints", l)
		if !ok {
			continue
		}
		if ends.Kind != yaml.SequenceNode || len(ends.Content) != 2 {
			im.add(ends.Line, path+".endpoints", "expected a list of two: a member and a bridge")
			continue
		}
		im.link(path+".endpoints", ends)
	}
}

// end is one endpoint of a link.
type clabEnd struct {
	item       *clabItem
	line       int
	iface, ip4 *yaml.Node
}

func (im *clabImport) link(path string, ends *yaml.Node) {
	var member, bridge *clabEnd
	for i, n := range ends.Content {
		e := im.end(fmt.Sprintf("%s[%d]", path, i), n)
		if e == nil {
			return
		}
		if e.item.typ == "network" {
			bridge = e
		} else {
			member = e
		}
	}
	if member == nil || bridge == nil || member.item.typ == "cluster" {
		im.add(ends.Line, path, "expected a link between a node, router or host and a network's bridge")
		return
	}
	digits, found := strings.CutPrefix(member.iface.Value, "eth")
	eth, err := strconv.ParseUint(digits, 10, 8)
	if !found || err != nil {
		im.add(member.iface.Line, path, "no interface %q: expected eth0, eth1 and so on", member.iface.Value)
		return
	}
	name := bridge.item.labels[labelName]
	subnet := bridge.item.labels[labelSubnet]
	if name == nil || subnet == nil {
		return // reported
	}
	if member.ip4 == nil {
		im.add(member.line, path, "%s has no ipv4", member.iface.Value)
		return
	}
	address, err := netip.ParsePrefix(member.ip4.Value)
	if err != nil {
		im.add(member.ip4.Line, path, "%q is not an address with its prefix length", member.ip4.Value)
		return
	}
	if net, err := netip.ParsePrefix(subnet.Value); err == nil && net.Bits() != address.Bits() {
		im.add(member.ip4.Line, path, "%s is not of the length of network %q, %s", address, name.Value, net)
		return
	}
	member.item.links = append(member.item.links, clabItemLink{
		eth:  int(eth),
		line: member.ip4.Line,
		Link: Link{Network: name.Value, Address: address.Addr()},
	})
}

// end reads one endpoint. It returns nil if there is no sense in reading the
// link any further.
func (im *clabImport) end(path string, n *yaml.Node) *clabEnd {
	fields := im.mapping(path, n, "node", "interface", "ipv4")
	node, ok := im.need(fields, path, "node", n)
	if !ok {
		return nil
	}
	e := &clabEnd{item: im.byKey[node.Value], line: n.Line, ip4: fields["ipv4"]}
	if e.item == nil {
		keys := make([]string, 0, len(im.byKey))
		for k := range im.byKey {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		im.add(node.Line, path+".node", "no node %q%s", node.Value, Nearest(node.Value, keys))
		return nil
	}
	if e.iface, ok = im.need(fields, path, "interface", n); !ok {
		return nil
	}
	port := node.Value + ":" + e.iface.Value
	if im.ports[port] {
		im.add(e.iface.Line, path+".interface", "%s has a link already", port)
		return nil
	}
	im.ports[port] = true
	return e
}

// assemble turns the items into the topology, in the order of the file.
func (im *clabImport) assemble() {
	clusters := map[string]int{}
	for _, it := range im.items {
		if it.typ == "cluster" {
			c := Cluster{
				Name:        it.value(labelName),
				ASN:         im.asn(it, labelASN),
				PodCIDR:     im.prefix(it, labelPodCIDR),
				NodeMask:    im.mask(it, labelNodeMask),
				ServiceCIDR: im.prefix(it, labelServiceCIDR),
			}
			im.place(it, fmt.Sprintf("clusters[%d]", len(im.t.Clusters)), map[string]string{
				".name": labelName, ".asn": labelASN, ".podCIDR": labelPodCIDR,
				".nodeMask": labelNodeMask, ".serviceCIDR": labelServiceCIDR,
			})
			if _, twice := clusters[c.Name]; !twice { // Validate reports it
				clusters[c.Name] = len(im.t.Clusters)
			}
			im.t.Clusters = append(im.t.Clusters, c)
		}
	}
	for _, it := range im.items {
		switch it.typ {
		case "network":
			im.place(it, fmt.Sprintf("networks[%d]", len(im.t.Networks)), map[string]string{".name": labelName, ".subnet": labelSubnet})
			im.t.Networks = append(im.t.Networks, Network{Name: it.value(labelName), Subnet: im.prefix(it, labelSubnet)})
		case "node":
			im.node(it, clusters)
		case "router":
			im.place(it, fmt.Sprintf("routers[%d]", len(im.t.Routers)), map[string]string{
				".name": labelName, ".asn": labelASN, ".id": labelRouterID, ".peers": labelPeers,
			})
			im.t.Routers = append(im.t.Routers, Router{
				Name: it.value(labelName), ASN: im.asn(it, labelASN), ID: im.address(it, labelRouterID),
				Links: it.sorted(), Peers: im.peers(it),
			})
		case "host":
			im.place(it, fmt.Sprintf("hosts[%d]", len(im.t.Hosts)), map[string]string{".name": labelName, ".via": labelVia})
			im.t.Hosts = append(im.t.Hosts, Host{Name: it.value(labelName), Links: it.sorted(), Via: it.list(labelVia), Image: it.value(labelImage)})
		}
	}
}

func (im *clabImport) node(it *clabItem, clusters map[string]int) {
	name := it.value(labelCluster)
	i, ok := clusters[name]
	if !ok {
		if l := it.labels[labelCluster]; l != nil {
			var names []string
			for _, c := range im.t.Clusters {
				names = append(names, c.Name)
			}
			im.add(l.Line, it.label(labelCluster), "no cluster %q%s", name, Nearest(name, names))
		}
		return
	}
	c := &im.t.Clusters[i]
	im.place(it, fmt.Sprintf("clusters[%d].nodes[%d]", i, len(c.Nodes)), map[string]string{
		".name": labelName, ".role": labelRole, ".via": labelVia, ".kernel": labelKernel,
	})
	c.Nodes = append(c.Nodes, Node{
		Name: it.value(labelName), Role: Role(it.value(labelRole)), Links: it.sorted(),
		Via: it.list(labelVia), Kernel: it.value(labelKernel),
	})
}

// place notes the lines of the fields of the member at path.
func (im *clabImport) place(it *clabItem, path string, fields map[string]string) {
	im.lines[path] = it.line
	for field, label := range fields {
		if n := it.labels[label]; n != nil {
			im.lines[path+field] = n.Line
		}
	}
	slices.SortStableFunc(it.links, func(a, b clabItemLink) int { return a.eth - b.eth })
	for i, l := range it.links {
		im.lines[fmt.Sprintf("%s.links[%d]", path, i)] = l.line
	}
}

// validate adds what Validate finds, with the lines of the file.
func (im *clabImport) validate() {
	var invalid *InvalidError
	if !errors.As(im.t.Validate(), &invalid) {
		return
	}
	for _, p := range invalid.Problems {
		// The field itself, or else what it is a part of.
		for at := p.Path; at != "" && p.Line == 0; at = at[:max(0, strings.LastIndexAny(at, ".["))] {
			p.Line = im.lines[at]
		}
		im.problems = append(im.problems, p)
	}
}

// label is the path of a label in the file.
func (it *clabItem) label(name string) string { return it.path + ".labels." + labelPrefix + name }

func (it *clabItem) value(label string) string {
	if n := it.labels[label]; n != nil {
		return n.Value
	}
	return ""
}

func (it *clabItem) list(label string) []string {
	if v := it.value(label); v != "" {
		return strings.Split(v, ",")
	}
	return nil
}

func (it *clabItem) sorted() []Link {
	var links []Link
	for _, l := range it.links { // sorted by place
		links = append(links, l.Link)
	}
	return links
}

// parse reads a label with a parser; a missing label was reported before.
func parse[T any](im *clabImport, it *clabItem, label, expected string, parser func(string) (T, error)) T {
	var zero T
	n := it.labels[label]
	if n == nil || n.Kind != yaml.ScalarNode {
		return zero
	}
	v, err := parser(n.Value)
	if err != nil {
		im.add(n.Line, it.label(label), "%q is not %s", n.Value, expected)
		return zero
	}
	return v
}

func (im *clabImport) asn(it *clabItem, label string) uint32 {
	return parse(im, it, label, "an AS number", parseASN)
}

func (im *clabImport) mask(it *clabItem, label string) int {
	return parse(im, it, label, "a prefix length", strconv.Atoi)
}

func (im *clabImport) prefix(it *clabItem, label string) netip.Prefix {
	return parse(im, it, label, "a prefix", netip.ParsePrefix)
}

func (im *clabImport) address(it *clabItem, label string) netip.Addr {
	return parse(im, it, label, "an address", netip.ParseAddr)
}

func (im *clabImport) peers(it *clabItem) []Peers {
	return parse(im, it, labelPeers, "a list of network:asn", func(s string) ([]Peers, error) {
		var peers []Peers
		for part := range strings.SplitSeq(s, ",") {
			network, number, _ := strings.Cut(part, ":")
			number, graceful := strings.CutSuffix(number, ":"+clabGracefulRestart)
			asn, err := parseASN(number)
			if err != nil {
				return nil, err
			}
			peers = append(peers, Peers{Network: network, ASN: asn, GracefulRestart: graceful})
		}
		return peers, nil
	})
}

func parseASN(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func yamlKind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias, which is not read here"
	case n.Tag == "!!null":
		return "nothing"
	}
	return fmt.Sprintf("%q", n.Value)
}
