// Package containerlab writes a topology as a file that containerlab
// (containerlab.dev) can draw and deploy.
//
// Such a file (containerlab.dev/manual/topo-def-file, and the schema
// schemas/clab.schema.json of srl-labs/containerlab) has nodes of a kind, and
// point-to-point links between their interfaces. The mapping is:
//
//	Network        node of kind bridge; the bridge must exist beforehand
//	Cluster        node of kind k8s-kind, its kind configuration embedded
//	Node           node of kind ext-container, named as kind names containers
//	Router, Host   node of kind linux
//	Link           veth between a member and a bridge
//
// Labels under relapse.dev hold the data that containerlab has no field for.
package containerlab

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/relapse-dev/relapse/topology"
)

// labelPrefix is the prefix of all labels.
const labelPrefix = "relapse.dev/"

// gracefulRestart marks peers of a router in labelPeers.
const gracefulRestart = "graceful-restart"

// Labels, without their prefix.
const (
	labelType        = "type"         // a key of kinds
	labelName        = "name"         // the name in the topology
	labelSubnet      = "subnet"       // of a network
	labelASN         = "asn"          // of a cluster or router
	labelPodCIDR     = "pod-cidr"     // of a cluster
	labelNodeMask    = "node-mask"    // of a cluster
	labelServiceCIDR = "service-cidr" // of a cluster
	labelCluster     = "cluster"      // of a node
	labelRole        = "role"         // of a node
	labelKernel      = "kernel"       // of a guest
	labelVia         = "via"          // of a node or host: routers, comma-separated
	labelRouterID    = "router-id"    // of a router
	labelRouterKind  = "router-kind"  // of a router that is not GoBGP
	labelPeers       = "peers"        // of a router: network:asn[:graceful-restart], comma-separated
	labelImage       = "image"        // of a host with another image than the common one
)

// kinds are containerlab's kinds of the file's nodes, by type.
var kinds = map[string]string{
	typeNetwork:                 "bridge",
	typeCluster:                 "k8s-kind",
	string(topology.KindNode):   "ext-container",
	string(topology.KindRouter): "linux",
	string(topology.KindHost):   "linux",
}

// Types of the file's nodes that are no members of the lab.
const (
	typeNetwork = "network"
	typeCluster = "cluster"
)

// Images of containerlab's examples: the exported lab has drawing and wiring, but its
// routers have no BGP configuration.
const (
	routerImage = "quay.io/frrouting/frr:10.5.1"
	hostImage   = "docker.io/wbitt/network-multitool:alpine-extra"
)

const header = `# A containerlab topology, written by relapse. Labels under relapse.dev hold the
# data that containerlab has no field for. Create the bridges before deployment,
# and configure BGP on the routers.
`

type node struct {
	Kind          string            `yaml:"kind"`
	Image         string            `yaml:"image,omitempty"`
	NetworkMode   string            `yaml:"network-mode,omitempty"`
	StartupConfig string            `yaml:"startup-config,omitempty"`
	Sysctls       map[string]int    `yaml:"sysctls,omitempty"`
	Exec          []string          `yaml:"exec,omitempty"`
	Labels        map[string]string `yaml:"labels"`
}

type endpoint struct {
	Node      string `yaml:"node"`
	Interface string `yaml:"interface"`
	IPv4      string `yaml:"ipv4,omitempty"`
}

type link struct {
	Type      string     `yaml:"type"`
	Endpoints []endpoint `yaml:"endpoints"`
}

type file struct {
	Name     string `yaml:"name"`
	Topology struct {
		// Nodes is a mapping that keeps its order.
		Nodes yaml.Node `yaml:"nodes"`
		Links []link    `yaml:"links,omitempty"`
	} `yaml:"topology"`
}

// Export writes t to w. It returns a *topology.InvalidError, and writes
// nothing, if t is not valid.
func Export(w io.Writer, t topology.Topology) error {
	if err := t.Validate(); err != nil {
		return err
	}
	e := export{t: t, taken: map[string]bool{}, bridges: map[string]string{}}
	e.file.Name = t.Name
	e.file.Topology.Nodes.Kind = yaml.MappingNode
	if err := e.build(); err != nil {
		return fmt.Errorf("exporting topology %q: %w", t.Name, err)
	}
	var b bytes.Buffer
	b.WriteString(header)
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

type export struct {
	t     topology.Topology
	file  file
	taken map[string]bool
	// bridges maps a network's name to its key among the nodes.
	bridges map[string]string
}

// key returns want, with a number if it is taken: containerlab has one name space, a
// topology has three.
func (e *export) key(want string) string {
	key := want
	for i := 2; e.taken[key]; i++ {
		key = fmt.Sprintf("%s-%d", want, i)
	}
	e.taken[key] = true
	return key
}

func (e *export) build() error {
	// Keys that containerlab or kind interprets come first, and bridges, which the user
	// creates, last.
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
		if m.Kind != topology.KindNode {
			nodes[m.Name] = e.key(m.Name)
		}
	}
	for _, n := range e.t.Networks {
		e.bridges[n.Name] = e.key(n.Name)
		if err := e.node(e.bridges[n.Name], n.Name, typeNetwork, node{}, map[string]string{labelSubnet: n.Subnet.String()}); err != nil {
			return err
		}
	}
	for i, c := range e.t.Clusters {
		if err := e.cluster(clusters[i], c, nodes); err != nil {
			return err
		}
	}
	for _, r := range e.t.Routers {
		labels := map[string]string{labelASN: asn(r.ASN), labelRouterID: r.ID.String()}
		if r.Kind != "" {
			labels[labelRouterKind] = string(r.Kind)
		}
		if len(r.Peers) > 0 {
			var peers []string
			for _, p := range r.Peers {
				text := p.Network + ":" + asn(p.ASN)
				if p.GracefulRestart {
					text += ":" + gracefulRestart
				}
				peers = append(peers, text)
			}
			labels[labelPeers] = strings.Join(peers, ",")
		}
		n := node{Image: routerImage, NetworkMode: "none", Sysctls: map[string]int{"net.ipv4.ip_forward": 1}}
		if err := e.member(nodes[r.Name], topology.Member{Kind: topology.KindRouter, Name: r.Name, Links: r.Links}, n, labels); err != nil {
			return err
		}
	}
	for _, h := range e.t.Hosts {
		n := node{Image: hostImage, NetworkMode: "none"}
		m := topology.Member{Kind: topology.KindHost, Name: h.Name, Links: h.Links, Via: h.Via}
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

// kindContainer is kind's name of the container of a cluster's next node
// (sigs.k8s.io/kind/pkg/cluster/internal/providers/common).
func kindContainer(cluster string, role topology.Role, workers *int) string {
	if role == topology.ControlPlane {
		return cluster + "-control-plane"
	}
	if *workers++; *workers == 1 {
		return cluster + "-worker"
	}
	return fmt.Sprintf("%s-worker%d", cluster, *workers)
}

func (e *export) cluster(key string, c topology.Cluster, nodes map[string]string) error {
	var config strings.Builder
	fmt.Fprintf(&config, "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnetworking:\n"+
		"  disableDefaultCNI: true\n  podSubnet: %s\n  serviceSubnet: %s\nnodes:\n", c.PodCIDR, c.ServiceCIDR)
	for _, n := range c.Nodes {
		fmt.Fprintf(&config, "- role: %s\n", n.Role)
	}
	err := e.node(key, c.Name, typeCluster, node{StartupConfig: config.String()}, map[string]string{
		labelASN:         asn(c.ASN),
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
		m := topology.Member{Kind: topology.KindNode, Name: n.Name, Links: n.Links, Via: n.Via}
		if err := e.member(nodes[n.Name], m, node{}, labels); err != nil {
			return err
		}
	}
	return nil
}

// member adds a node with links. containerlab does not configure addresses for the
// kinds linux and ext-container, so exec does.
func (e *export) member(key string, m topology.Member, n node, labels map[string]string) error {
	// eth0 of a kind node is on Docker's network, which containerlab cannot link.
	first := 0
	if m.Kind == topology.KindNode {
		first = 1
	}
	for i, l := range m.Links {
		network, _ := e.t.Network(l.Network)
		address := netip.PrefixFrom(l.Address, network.Subnet.Bits()).String()
		ifname := fmt.Sprintf("eth%d", first+i)
		n.Exec = append(n.Exec, fmt.Sprintf("ip address add %s dev %s", address, ifname))
		e.file.Topology.Links = append(e.file.Topology.Links, link{Type: "veth", Endpoints: []endpoint{
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

// bridgePort is the name of the next link's interface at the bridge. It contains a hash
// of the lab's name, because other labs have ports in the machine's namespace too.
func (e *export) bridgePort() string {
	h := fnv.New32a()
	h.Write([]byte(e.t.Name))
	return fmt.Sprintf("r%06x-%d", h.Sum32()&0xffffff, len(e.file.Topology.Links))
}

func (e *export) node(key, name, typ string, n node, labels map[string]string) error {
	n.Kind = kinds[typ]
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

func asn(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
