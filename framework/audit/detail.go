package audit

import (
	"net/netip"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Command is a command line, for a shell, that shows what a finding is based on. It changes nothing.
type Command struct {
	// On is the router on which it is run; empty: where the audit ran.
	On  string `json:"on,omitempty"`
	Run string `json:"run"`
}

// Reached is how a user reaches the cluster and its routers, and the incidents of findings.
type Reached struct {
	// Kubectl are the flags of kubectl that name the cluster.
	Kubectl []string
	// Routers are declared in the file of routers. Commands for other routers state the router's name.
	Routers []bgprouter.Declared
	// Incidents returns the incidents that a finding belongs to; it may be nil.
	Incidents func(detect.Finding) []Incident
}

const mostLayers = 30

// Detail adds to each finding its incidents, what each layer says of its object in the last read, and the commands that
// show the finding again.
func (r *Result) Detail(last snapshot.Snapshot, by Reached) {
	var findings []*Finding
	for _, all := range [][]Finding{r.Findings, r.Once} {
		for i := range all {
			findings = append(findings, &all[i])
		}
	}
	if len(findings) == 0 {
		return
	}
	statements := about(last, findings).Statements()
	for _, f := range findings {
		if by.Incidents != nil {
			f.Incidents = by.Incidents(f.Finding)
		}
		d := detail{f.Finding, last, by}
		also := d.related()
		for _, s := range append(statements, d.nothing()...) {
			switch {
			case !f.Concerns(s) && !slices.Contains(also, s.Object):
			case len(f.Layers) == mostLayers:
				f.MoreLayers++
			default:
				f.Layers = append(f.Layers, s)
			}
		}
		slices.SortStableFunc(f.Layers, func(a, b snapshot.Statement) int {
			return slices.Index(snapshot.Layers, a.Layer) - slices.Index(snapshot.Layers, b.Layer)
		})
		if show, ok := shows[f.Detector]; ok {
			f.Again = show(d)
		}
	}
}

// about returns a read with only the routes to objects of findings: there may be a million other routes.
func about(s snapshot.Snapshot, findings []*Finding) snapshot.Snapshot {
	objects := map[netip.Prefix]bool{}
	for _, f := range findings {
		if p, ok := f.Object.Prefix(); ok {
			objects[p] = true
		}
	}
	s.Routers = slices.Clone(s.Routers)
	for i := range s.Routers {
		router := &s.Routers[i]
		router.Paths.Items = each.Where(router.Paths.Items, func(p snapshot.Path) bool { return objects[p.Prefix] })
		router.Routes.Items = each.Where(router.Routes.Items, func(r snapshot.Route) bool { return objects[r.Prefix] })
	}
	return s
}

type detail struct {
	detect.Finding
	read snapshot.Snapshot
	by   Reached
}

// nothing says which of the finding's routers have no route to its object.
func (d detail) nothing() []snapshot.Statement {
	p, ok := d.Object.Prefix()
	if !ok {
		return nil
	}
	var all []snapshot.Statement
	for _, r := range d.read.Routers {
		if !slices.Contains(d.Routers, r.Name) {
			continue
		}
		if r.Paths.Read && !slices.ContainsFunc(r.Paths.Items, func(o snapshot.Path) bool { return o.Prefix == p }) {
			all = append(all, snapshot.Statement{Layer: snapshot.RIB, Where: r.Name, Object: p.String(), Says: "no route"})
		}
		if r.Routes.Read && !r.RIBOnly && r.Role != snapshot.RoleRouteServer &&
			!slices.ContainsFunc(r.Routes.Items, func(o snapshot.Route) bool { return o.Prefix == p }) {
			all = append(all, snapshot.Statement{Layer: snapshot.FIB, Where: r.Name, Object: p.String(), Says: "no route"})
		}
	}
	return all
}

// related returns other objects with statements about a Service's address: the Service, and announced ranges with it.
func (d detail) related() []string {
	services := d.services()
	if len(services) == 0 {
		return nil
	}
	p, _ := d.Object.Prefix()
	all := each.Of(services, snapshot.Service.String)
	for _, b := range d.read.BGPAdvertisements.Items {
		for _, r := range b.Ranges {
			if r.Contains(p.Addr()) {
				all = append(all, r.First.String()+"-"+r.Last.String())
			}
		}
	}
	return all
}

// services returns the Services with the finding's object as an address.
func (d detail) services() []snapshot.Service {
	p, ok := d.Object.Prefix()
	if !ok || !p.IsSingleIP() {
		return nil
	}
	return each.Where(d.read.Services.Items, func(s snapshot.Service) bool { return slices.Contains(s.LoadBalancerIPs, p.Addr()) })
}

// shows are, by detector, the commands that show again what a finding is based on. For routers see package bgprouter.
var shows = map[string]func(detail) []Command{
	detect.RouteOwnership{}.Name(): func(d detail) []Command {
		return slices.Concat(d.holders(), d.announcer(), d.podsOn(d.Owner), d.onRouters(bgprouter.Show))
	},
	detect.ServiceRoute{}.Name(): func(d detail) []Command { return append(d.balanced(), d.onRouters(bgprouter.Show)...) },
	detect.Layer2{}.Name(): func(d detail) []Command {
		all := d.balanced()
		if d.Kind != detect.TwoSpeakers {
			all = append(all, d.kubectl("get", "leases,servicel2statuses.metallb.io", "--all-namespaces"))
		}
		return append(all, d.onRouters(bgprouter.ShowLink)...)
	},
	detect.NodeAddress{}.Name(): func(d detail) []Command {
		node := d.Object.String()
		all := []Command{
			d.kubectl("get", "node/"+node, "--output=jsonpath={.status.addresses}"),
			d.kubectl("get", "node/"+node, "--output=jsonpath={.metadata.annotations}"),
		}
		if len(d.read.CiliumNodes.Items) > 0 {
			all = append(all, d.kubectl("get", ciliumNodes+"/"+node, "--output=jsonpath={.spec.addresses}"))
		}
		return all
	},
	detect.Permission{}.Name(): func(d detail) []Command {
		account, _, _ := strings.Cut(strings.TrimPrefix(d.Object.String(), "ServiceAccount "), ", ")
		namespace, name, _ := strings.Cut(account, "/")
		return slices.Concat(
			[]Command{d.kubectl("auth", "can-i", "--list", "--as=system:serviceaccount:"+namespace+":"+name)}, d.pods(), d.podsOn(d.Owner))
	},
	detect.ImageDrift{}.Name(): func(d detail) []Command { return append(d.template(), d.pods()...) },
	detect.ReverseName{}.Name(): func(d detail) []Command {
		return append(d.pods(), d.kubectl("get", "endpointslices", "--all-namespaces",
			"--selector=service.kubernetes.io/headless", "--output=yaml"))
	},
	detect.LostSelector{}.Name(): func(d detail) []Command { return []Command{d.kubectl("get", "nodes", "--show-labels")} },
	detect.ServiceAddress{}.Name(): func(d detail) []Command {
		return []Command{d.kubectl("get", "services", "--all-namespaces", "--output=wide"),
			d.kubectl("get", "ipaddresspools.metallb.io", "--all-namespaces")}
	},
	detect.SessionReset{}.Name(): func(d detail) []Command {
		return []Command{d.kubectl("get", "bgppeers.metallb.io,bfdprofiles.metallb.io", "--all-namespaces", "--output=yaml")}
	},
	detect.ImagePin{}.Name(): func(d detail) []Command { return append(d.template(), d.pods()...) },
	configdrift.Detector{}.Name(): func(d detail) []Command {
		object, key, _ := strings.Cut(strings.TrimPrefix(d.Object.String(), "ConfigMap "), ", ")
		namespace, name, _ := strings.Cut(object, "/")
		return []Command{d.kubectl("get", "configmap/"+name, "--namespace="+namespace,
			"--output=jsonpath={.data."+strings.ReplaceAll(key, ".", `\.`)+"}")}
	},
}

const (
	ciliumNodes = "ciliumnodes.cilium.io"
	ipamBlocks  = "ipamblocks.crd.projectcalico.org"
)

// kubectl is a command of kubectl. No argument begins with a name: names of a stranger's snapshot may look like flags.
func (d detail) kubectl(args ...string) Command {
	return Command{Run: shellescape.QuoteCommand(slices.Concat([]string{"kubectl"}, d.by.Kubectl, args))}
}

// balanced returns the commands that show the Services with the finding's address.
func (d detail) balanced() []Command {
	var all []Command
	for _, s := range d.services() {
		all = append(all,
			d.kubectl("get", "service/"+s.Name, "--namespace="+s.Namespace, "--output=wide"),
			d.kubectl("get", "endpointslices", "--namespace="+s.Namespace, "--selector=kubernetes.io/service-name="+s.Name))
	}
	return all
}

func (d detail) onRouters(show func(bgprouter.Declared, netip.Prefix) []string) []Command {
	p, ok := d.Object.Prefix()
	if !ok {
		return nil
	}
	var all []Command
	for _, name := range d.Routers {
		declared := bgprouter.Declared{Name: name}
		if i := slices.IndexFunc(d.by.Routers, func(r bgprouter.Declared) bool { return r.Name == name }); i >= 0 {
			declared = d.by.Routers[i]
		}
		on := ""
		if declared.Kind == "" || declared.Kind == bgprouter.BMP {
			on = name
		}
		for _, line := range show(declared, p) {
			all = append(all, Command{On: on, Run: line})
		}
	}
	return all
}

// holders returns the commands that show the holders of the finding's object in each layer. Without a holder in the
// CNI's layer, they show all holders there.
func (d detail) holders() []Command {
	p, _ := d.Object.Prefix()
	var all []Command
	holds := func(ranges []netip.Prefix) bool { return slices.Contains(ranges, p) }
	cilium, blocks := d.read.CiliumNodes.Items, d.read.CalicoBlocks.Items
	found := false
	for _, n := range cilium {
		if holds(n.PodCIDRs) {
			found = true
			all = append(all, d.kubectl("get", ciliumNodes+"/"+n.Name, "--output=jsonpath={.spec.ipam.podCIDRs}"))
		}
	}
	if len(cilium) > 0 && !found {
		all = append(all, d.kubectl("get", ciliumNodes, "--output=custom-columns=NAME:.metadata.name,PODCIDRS:.spec.ipam.podCIDRs"))
	}
	if len(blocks) > 0 {
		all = append(all, d.kubectl("get", ipamBlocks, "--output=custom-columns=CIDR:.spec.cidr,AFFINITY:.spec.affinity"))
	}
	for _, n := range d.read.Nodes.Items {
		if holds(n.PodCIDRs) {
			found = true
			all = append(all, d.kubectl("get", "node/"+n.Name, "--output=jsonpath={.spec.podCIDRs}"))
		}
	}
	if !found && len(cilium)+len(blocks) == 0 {
		all = append(all, d.kubectl("get", "nodes", "--output=custom-columns=NAME:.metadata.name,PODCIDRS:.spec.podCIDRs"))
	}
	return all
}

func (d detail) announcer() []Command {
	if d.Announcer == "" {
		return nil
	}
	for _, n := range d.read.Nodes.Items {
		if n.Name == d.Announcer {
			return []Command{d.kubectl("get", "node/"+n.Name, "--output=wide")}
		}
	}
	return []Command{d.kubectl("get", "nodes", "--output=wide")} // which shows that no Node has it
}

func (d detail) podsOn(node string) []Command {
	if node == "" || len(d.Pods) == 0 {
		return nil
	}
	return []Command{d.kubectl("get", "pods", "--all-namespaces", "--output=wide", "--field-selector=spec.nodeName="+node)}
}

const mostPods = 3

// pods returns commands that show the first of the finding's pods: what they run, and where.
func (d detail) pods() []Command {
	var all []Command
	for _, pod := range d.Pods[:min(len(d.Pods), mostPods)] {
		namespace, name, _ := strings.Cut(pod, "/")
		all = append(all, d.kubectl("get", "pod/"+name, "--namespace="+namespace,
			"--output=custom-columns=NODE:.spec.nodeName,IMAGE:.spec.containers[*].image,RUNS:.status.containerStatuses[*].imageID"))
	}
	return all
}

// template shows the pod template of a finding's workload. The object is KIND NAMESPACE/NAME, container NAME.
func (d detail) template() []Command {
	owner, _, _ := strings.Cut(d.Object.String(), ", ")
	kind, object, _ := strings.Cut(owner, " ")
	namespace, name, _ := strings.Cut(object, "/")
	if !slices.Contains([]string{"DaemonSet", "Deployment", "StatefulSet"}, kind) {
		return nil // a pod without a template: see pods
	}
	return []Command{d.kubectl("get", strings.ToLower(kind)+"/"+name, "--namespace="+namespace,
		"--output=custom-columns=IMAGE:.spec.template.spec.containers[*].image,PULLED:.spec.template.spec.containers[*].imagePullPolicy")}
}
