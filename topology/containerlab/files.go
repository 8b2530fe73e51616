package containerlab

import (
	"errors"
	"text/template"

	"go.yaml.in/yaml/v3"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/router"
)

// Forwarding are the sysctls of routers and hosts, in labs of package kindlab as well.
var Forwarding = map[string]string{
	"net.ipv4.ip_forward": "1",
	// The two directions of a flow may use different routers (ECMP). A reverse path
	// filter would drop one.
	"net.ipv4.conf.all.rp_filter":     "0",
	"net.ipv4.conf.default.rp_filter": "0",
	// A host that follows a redirect bypasses the router.
	"net.ipv4.conf.all.send_redirects":     "0",
	"net.ipv4.conf.default.send_redirects": "0",
	// The hash includes ports, so that probes use all next hops.
	"net.ipv4.fib_multipath_hash_policy": "1",
}

// NodeForwarding are the sysctls of a Kubernetes node, whose cards are there already, by patterns of paths below
// /proc/sys. Labs of package kindlab have them as well.
var NodeForwarding = map[string]string{
	"net/ipv4/ip_forward":                 "1",
	"net/ipv4/conf/*/rp_filter":           "0",
	"net/ipv4/conf/*/send_redirects":      "0", // redirects would avoid a wrong transit node
	"net/ipv4/conf/*/accept_redirects":    "0",
	"net/ipv4/conf/*/accept_source_route": "0",
	"net/ipv4/fib_multipath_hash_policy":  "1",
}

// kindConfig is kind's configuration of a cluster: no CNI plugin, no kube-proxy, no CoreDNS.
// kube-controller-manager gives no ranges, because it would do so in the order in which
// nodes happen to join: see afterJoin.
var kindConfig = template.Must(template.New("kind").Parse(`# The configuration of a kind cluster, written by relapse.
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
networking:
  disableDefaultCNI: true
  kubeProxyMode: none
  podSubnet: {{.PodCIDR}}
  serviceSubnet: {{.ServiceCIDR}}
kubeadmConfigPatches:
- |
  kind: ClusterConfiguration
  controllerManager:
    extraArgs:
      allocate-node-cidrs: "false"
- |
  kind: InitConfiguration
  skipPhases: [preflight, addon]
nodes:
{{- range .Nodes}}
- role: {{.Role}}
  kubeadmConfigPatches:
  - |
    kind: {{if eq .Role "control-plane"}}Init{{else}}Join{{end}}Configuration
    nodeRegistration:
      name: {{.Name}}
      taints: []
{{- end}}
`))

// daemons chooses the daemons of Debian's and FRR's own packages and images. zebra and
// staticd always run.
const daemons = `bgpd=yes
vtysh_enable=yes
zebra_options="  -A 127.0.0.1"
bgpd_options="   -A 127.0.0.1"
staticd_options="-A 127.0.0.1"
`

// script deploys the folder. containerlab allows forwarding over the bridges, and does not
// take that back.
var script = template.Must(template.New("lab.sh").Parse(`#!/bin/sh
# Written by relapse: deploys this folder by containerlab (./lab.sh up), and removes all of
# it (./lab.sh down). Both need root.
set -eu
cd "$(dirname "$0")"
bridges='{{range $i, $b := .Bridges}}{{if $i}} {{end}}{{$b}}{{end}}'
case "${1-}" in
up)
	for bridge in $bridges; do
		ip link add "$bridge" type bridge
		ip link set "$bridge" up
	done
	containerlab deploy --topo {{.TopologyFile}}
	;;
down)
	containerlab destroy --cleanup --topo {{.TopologyFile}}
	for bridge in $bridges; do
		iptables -D FORWARD -i "$bridge" -j ACCEPT -w 5 2>/dev/null || true
		# The kernel may remove links to containers a minute after them.
		for port in $(ls "/sys/class/net/$bridge/brif"); do
			ip link delete "$port" || true
		done
		ip link delete "$bridge"
	done
	;;
*)
	echo "usage: $0 up|down" >&2
	exit 2
	;;
esac
`))

// Bridges are the names of the bridges, in the order of the networks.
func (e *export) Bridges() []string {
	return each.Of(e.t.Networks, func(n topology.Network) string { return e.bridges[n.Name] })
}

// TopologyFile is the name of containerlab's file.
func (e *export) TopologyFile() string { return e.t.Name + ".clab.yml" }

func (e *export) bgp(r topology.Router) router.Config {
	c := router.Config{AS: r.ASN, RouterID: r.ID}
	for _, p := range r.Peers {
		network, _ := e.t.Network(p.Network)
		c.Peers = append(c.Peers, router.Peers{Prefix: network.Subnet, AS: p.ASN, GracefulRestart: p.GracefulRestart})
	}
	return c
}

// RoutersFile is the file of the folder that says how its routers are read.
const RoutersFile = "routers.yml"

func (e *export) routersFile(keys map[string]string) {
	type declared struct {
		Name    string   `yaml:"name"`
		Kind    string   `yaml:"kind"`
		Command []string `yaml:"command,flow"`
	}
	routers := each.Of(e.t.Routers, func(r topology.Router) declared {
		return declared{r.Name, string(topology.FRR), []string{"docker", "exec", "clab-" + e.t.Name + "-" + keys[r.Name]}}
	})
	text, err := yaml.Marshal(routers)
	e.failed = errors.Join(e.failed, err)
	e.add(RoutersFile, "# How the routers are read: the file of relapse audit --routers, and of run --on.\n"+string(text), 0o644)
}
