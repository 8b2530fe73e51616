// Package labaccess is how the sources of package snapshot are reached in a lab: the API server
// with the administrator's credentials, routers and registry at their addresses, nodes and hosts as
// the containers or guests that they are.
package labaccess

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/client-go/rest"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// Of is the access to a lab that is up: to its first cluster, all of its routers and hosts, and its registry. Nodes
// and hosts are the ones that the topology declares, whether they run or not, except the nodes in without.
func Of(lab *kindlab.Lab, without ...string) snapshot.Access { return access{lab, without} }

type access struct {
	lab     *kindlab.Lab
	without []string
}

func (a access) Kubernetes(context.Context) (*rest.Config, error) {
	return a.lab.Clusters[0].Client.RESTConfig(), nil
}

func (a access) Routers(context.Context) (map[string]snapshot.RouterReader, error) {
	routers := map[string]snapshot.RouterReader{}
	for _, r := range a.lab.Topology.Routers {
		handle, err := a.lab.Router(r.Name) // which does not connect yet
		if err != nil {
			return nil, fmt.Errorf("opening router %s: %w", r.Name, err)
		}
		if routers[r.Name] = handle; a.lab.Topology.Dual {
			routers[r.Name] = dualRouter{handle}
		}
	}
	return routers, nil
}

type dualRouter struct{ *kindlab.Router }

func (dualRouter) Describe(r *snapshot.Router) { r.IPv6 = true }

func (a access) Nodes(context.Context) (map[string]snapshot.Machine, error) {
	nodes := map[string]snapshot.Machine{}
	for _, name := range a.lab.Clusters[0].Nodes() {
		if !slices.Contains(a.without, name) {
			nodes[name] = a.lab.Node(name)
		}
	}
	return nodes, nil
}

func (a access) Outside(context.Context) (map[string]snapshot.Machine, error) {
	hosts := map[string]snapshot.Machine{}
	for _, h := range a.lab.Topology.Hosts {
		hosts[h.Name] = a.lab.Host(h.Name)
	}
	return hosts, nil
}

func (a access) Registry(context.Context) (snapshot.Registry, error) {
	return registry.New(a.lab.Registry().Addr.String()), nil
}
