// Package containerlab writes a topology as a folder that containerlab (containerlab.dev) deploys.
//
// containerlab's file (containerlab.dev/manual/topo-def-file, and the schema
// schemas/clab.schema.json of srl-labs/containerlab) has nodes of a kind, and
// point-to-point links between their interfaces. The mapping is:
//
//	Network        node of kind bridge; the script of the folder makes the bridge
//	Cluster        node of kind k8s-kind, with a file of kind's configuration
//	Node           node of kind ext-container, named as kind names containers
//	Router         node of kind linux with FRR, whatever its kind, and a file of its configuration
//	Host           node of kind linux
//	Link           veth between a member and a bridge
//
// A Kubernetes node keeps the network card that kind gives it, eth0, over which kubelets
// join. Its links follow, and its address on the first of them becomes the address of the Node
// object. A node with a kernel of its own is a container like the others.
//
// A label holds each node's name in the topology.
package containerlab

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v3"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/router"
)

// LabLabel is the label of the namespace kube-system that says that a cluster is a lab. Its
// value is true.
const LabLabel = "relapse.dev/lab"

// labelName is the label with the name in the topology.
const labelName = "relapse.dev/name"

// containerlab's kinds of nodes.
const (
	kindNetwork = "bridge"
	kindCluster = "k8s-kind"
	kindNode    = "ext-container"
	kindOther   = "linux" // routers and hosts
)

// Images of containerlab's examples.
const (
	routerImage = "quay.io/frrouting/frr:10.5.1"
	hostImage   = "docker.io/wbitt/network-multitool:alpine-extra"
)

const header = "# A containerlab topology, written by relapse: ./lab.sh up deploys it.\n"

type node struct {
	Kind          string            `yaml:"kind"`
	Image         string            `yaml:"image,omitempty"`
	NetworkMode   string            `yaml:"network-mode,omitempty"`
	StartupConfig string            `yaml:"startup-config,omitempty"`
	Binds         []string          `yaml:"binds,omitempty"`
	Sysctls       map[string]string `yaml:"sysctls,omitempty"`
	Stages        map[string]any    `yaml:"stages,omitempty"`
	Extras        map[string]any    `yaml:"extras,omitempty"`
	Exec          []string          `yaml:"exec,omitempty"`
	Labels        map[string]string `yaml:"labels"`
}

type endpoint struct {
	Node      string `yaml:"node"`
	Interface string `yaml:"interface"`
}

type link struct {
	Type      string     `yaml:"type"`
	Endpoints []endpoint `yaml:"endpoints"`
}

type file struct {
	Name     string `yaml:"name"`
	Topology struct {
		Nodes nodes  `yaml:"nodes"`
		Links []link `yaml:"links,omitempty"`
	} `yaml:"topology"`
}

// nodes is a mapping that keeps its order.
type nodes []named

type named struct {
	key  string
	node node
}

func (all nodes) MarshalYAML() (any, error) {
	mapping := &yaml.Node{Kind: yaml.MappingNode}
	for _, n := range all {
		var k, v yaml.Node
		k.SetString(n.key)
		if err := v.Encode(n.node); err != nil {
			return nil, err
		}
		mapping.Content = append(mapping.Content, &k, &v)
	}
	return mapping, nil
}

// File is a file of the folder.
type File struct {
	// Name is relative to the folder, with slashes.
	Name string
	Text string
	Mode fs.FileMode
}

// Files are the files of a topology's folder. The error is a *topology.InvalidError if t is
// not valid, or of two families.
func Files(t topology.Topology) ([]File, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	if t.Dual {
		return nil, &topology.InvalidError{Topology: t.Name, Problems: []string{
			"a folder for containerlab is of IPv4 alone, and the lab has two families",
		}}
	}
	e := export{t: t, usedKeys: map[string]bool{}, bridges: map[string]string{}}
	e.file.Name = t.Name
	e.build()
	var b strings.Builder
	b.WriteString(header)
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	e.failed = errors.Join(e.failed, enc.Encode(e.file), enc.Close())
	e.add(e.TopologyFile(), b.String(), 0o644)
	e.render("lab.sh", script, 0o755, &e)
	if e.failed != nil {
		return nil, fmt.Errorf("exporting topology %q: %w", t.Name, e.failed)
	}
	return e.files, nil
}

// Write writes the folder of a topology, which may exist. The error is a
// *topology.InvalidError, and nothing is written, if t is not valid.
func Write(dir string, t topology.Topology) error {
	files, err := Files(t)
	if err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.Name))
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(f.Text), f.Mode)
		}
		if err != nil {
			return fmt.Errorf("exporting topology %q: %w", t.Name, err)
		}
	}
	return nil
}

type export struct {
	t        topology.Topology
	file     file
	files    []File
	usedKeys map[string]bool
	// bridges maps a network's name to its key among the nodes.
	bridges map[string]string
	// failed joins the errors of what could not be written.
	failed error
}

func (e *export) add(name, text string, mode fs.FileMode) {
	e.files = append(e.files, File{name, text, mode})
}

func (e *export) render(name string, t *template.Template, mode fs.FileMode, data any) {
	var text strings.Builder
	e.failed = errors.Join(e.failed, t.Execute(&text, data)) // the error names the template
	e.add(name, text.String(), mode)
}

func (e *export) key(want string) string {
	key := want
	for i := 2; e.usedKeys[key]; i++ {
		key = fmt.Sprintf("%s-%d", want, i)
	}
	e.usedKeys[key] = true
	return key
}

func (e *export) build() {
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
		e.node(e.bridges[n.Name], n.Name, node{Kind: kindNetwork})
	}
	for i, c := range e.t.Clusters {
		e.cluster(clusters[i], c, nodes)
	}
	for _, r := range e.t.Routers {
		e.router(nodes[r.Name], r)
	}
	if len(e.t.Routers) > 0 {
		e.add("frr/daemons", daemons, 0o644)
		e.routersFile(nodes)
	}
	for _, h := range e.t.Hosts {
		e.member(nodes[h.Name], h.Name, node{Kind: kindOther, Image: hostImage, NetworkMode: "none", Sysctls: Forwarding})
	}
}

func (e *export) router(key string, r topology.Router) {
	config := "frr/" + key + ".conf"
	text, err := router.FRRConfig(e.bgp(r))
	e.failed = errors.Join(e.failed, err)
	e.add(config, text, 0o644)
	e.member(key, r.Name, node{
		Kind: kindOther, Image: routerImage, NetworkMode: "none", Sysctls: Forwarding,
		Binds: []string{config + ":/etc/frr/frr.conf", "frr/daemons:/etc/frr/daemons"},
	})
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

func (e *export) cluster(key string, c topology.Cluster, nodes map[string]string) {
	config := key + ".kind.yml"
	e.render(config, kindConfig, 0o644, c)
	// Without a CNI plugin no node gets ready.
	doNotWait := map[string]any{"k8s_kind": map[string]any{"deploy": map[string]string{"wait": "0s"}}}
	e.node(key, c.Name, node{Kind: kindCluster, StartupConfig: config, Extras: doNotWait})
	for i, n := range c.Nodes {
		made := node{Kind: kindNode, Stages: map[string]any{
			"create": map[string]any{"wait-for": []map[string]string{{"node": key, "stage": "create"}}},
		}}
		for _, pattern := range slices.Sorted(maps.Keys(NodeForwarding)) {
			// Without a variable: containerlab takes the variables of its own environment.
			made.Exec = append(made.Exec, fmt.Sprintf(`sh -c "echo %s | tee /proc/sys/%s"`, NodeForwarding[pattern], pattern))
		}
		e.member(nodes[n.Name], n.Name, made, afterJoin(c, i)...)
	}
}

// afterJoin are commands of a node that has its links: kubelet takes the node's address on
// the first of them. The first node gives all nodes their ranges, in the order of the
// topology, and labels the cluster as a lab.
func afterJoin(c topology.Cluster, i int) []string {
	const takeAddress = `sed -i s/--node-ip=[0-9.]*/--node-ip=%s/ /var/lib/kubelet/kubeadm-flags.env && systemctl restart kubelet`
	commands := []string{fmt.Sprintf(`sh -c "`+takeAddress+`"`, c.Nodes[i].Links[0].Address)}
	if i > 0 {
		return commands
	}
	const kubectl = "kubectl --kubeconfig=/etc/kubernetes/admin.conf "
	for j, given := range c.NodeRanges() {
		commands = append(commands, fmt.Sprintf(kubectl+`patch node %s -p '{"spec":{"podCIDR":"%[2]s","podCIDRs":["%[2]s"]}}'`, c.Nodes[j].Name,
			given))
	}
	for _, n := range c.Nodes { // the kubelets have just started again
		commands = append(commands, fmt.Sprintf(kubectl+"wait node/%s --for=jsonpath={.status.addresses[0].address}=%s --timeout=120s", n.Name,
			n.Links[0].Address))
	}
	return append(commands, kubectl+"label namespace kube-system "+LabLabel+"=true")
}

// member adds a node with links, and with commands that follow the links' commands. containerlab
// does not configure addresses for the kinds linux and ext-container, so exec does.
func (e *export) member(key, name string, n node, commands ...string) {
	m, _ := e.t.Member(name)
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
			{Node: key, Interface: ifname},
			{Node: e.bridges[l.Network], Interface: e.bridgePort()},
		}})
	}
	if hops := e.t.NextHops(m); len(hops) > 0 {
		route := "ip route replace default"
		for _, h := range hops {
			route += " nexthop via " + h.String()
		}
		n.Exec = append(n.Exec, route)
	}
	n.Exec = append(n.Exec, commands...)
	e.node(key, m.Name, n)
}

// bridgePort is the name of the next link's interface at the bridge. It contains a hash
// of the lab's name, because other labs have ports in the machine's namespace too.
func (e *export) bridgePort() string {
	h := fnv.New32a()
	h.Write([]byte(e.t.Name))
	return fmt.Sprintf("r%06x-%d", h.Sum32()&0xffffff, len(e.file.Topology.Links))
}

func (e *export) node(key, name string, n node) {
	n.Labels = map[string]string{labelName: name}
	e.file.Topology.Nodes = append(e.file.Topology.Nodes, named{key, n})
}
