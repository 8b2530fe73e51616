package labvalues

import (
	"maps"
	"slices"

	"github.com/relapse-dev/relapse/framework/component/chart"
)

// Concern are values of a user that decide how Cilium carries the traffic of some paths.
type Concern struct {
	// Path is a part of the names of those paths' probes, such as "node port".
	Path string `json:"path"`
	// Values are such as "loadBalancer.mode dsr".
	Values []string `json:"values"`
}

// decide are the values that decide how paths are made, by parts of the names of probes, the narrowest first.
var decide = []struct {
	path   string
	values []string
}{
	{"node port", []string{"kubeProxyReplacement", "loadBalancer", "nodePort", "externalIPs", "bpf.masquerade", "bpf.datapathMode", "routingMode", "tunnelProtocol", "autoDirectNodeRoutes"}},
	{"LoadBalancer address", []string{"kubeProxyReplacement", "loadBalancer", "nodePort", "bpf.masquerade", "bpf.datapathMode", "routingMode", "tunnelProtocol", "bgpControlPlane"}},
	{"cluster IP", []string{"kubeProxyReplacement", "loadBalancer.algorithm", "socketLB", "bpf.lbSock"}},
	{"->outside", []string{"enableIPv4Masquerade", "bpf.masquerade", "ipMasqAgent", "egressGateway", "hostFirewall", "routingMode"}},
	{"outside->", []string{"bgpControlPlane", "hostFirewall", "routingMode", "endpointRoutes", "bpf.hostLegacyRouting", "bpf.datapathMode"}},
	{"->", []string{"routingMode", "tunnelProtocol", "autoDirectNodeRoutes", "endpointRoutes", "encryption", "bpf.datapathMode", "bpf.hostLegacyRouting", "bandwidthManager"}},
}

// ConcernsOf are the user's values that a lab has as they are, by the paths that they concern.
func ConcernsOf(users, lab map[string]any) []Concern {
	var all []Concern
	for _, d := range decide {
		c := Concern{Path: d.path}
		for _, path := range d.values {
			if value, there := chart.Get(users, path); there {
				c.Values = append(c.Values, scalars(path, value, lab)...)
			}
		}
		if len(c.Values) > 0 {
			all = append(all, c)
		}
	}
	return all
}

// scalars are the single values below a path that the lab has as well.
func scalars(path string, value any, lab map[string]any) []string {
	switch value := value.(type) {
	case map[string]any:
		var all []string
		for _, key := range slices.Sorted(maps.Keys(value)) {
			all = append(all, scalars(path+"."+key, value[key], lab)...)
		}
		return all
	case nil, []any:
		return nil
	}
	if has, there := chart.Get(lab, path); !there || chart.Text(has) != chart.Text(value) {
		return nil
	}
	if shown := chart.Shown(path, value); shown == chart.Text(value) { // or it may be a secret
		return []string{path + " " + shown}
	}
	return nil
}
