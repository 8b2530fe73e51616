package nodedrain

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"text/template"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/router"
)

//go:embed cilium.yaml
var ciliumYAML string

//go:embed agent.yaml
var agentYAML string

var (
	ciliumManifest = template.Must(template.New("cilium").Parse(ciliumYAML))
	agentManifest  = template.Must(template.New("agent").Parse(agentYAML))
)

// IPAM modes of Cilium.
const (
	clusterPool = "cluster-pool" // cilium-operator allocates, in CiliumNode
	kubernetes  = "kubernetes"   // kube-controller-manager allocates, in Node.spec
)

// cilium is a configuration of Cilium, as the manifests take it.
type cilium struct {
	Version string
	IPAM    string
	// Restart is any text; when it changes, the agents are restarted.
	Restart string
}

// manifest fills in a template with what the lab knows.
func (c cilium) manifest(t *template.Template) (string, error) {
	cluster := lab.Clusters[0]
	var routers []netip.Addr
	for _, r := range lab.Routers {
		addr, _ := lab.AddressOn(r.Name, "nodes")
		routers = append(routers, addr)
	}
	var text strings.Builder
	err := t.Execute(&text, struct {
		cilium
		PodCIDR               netip.Prefix
		Routers               []netip.Addr
		RouterASN, ClusterASN uint32
		APIServer             netip.AddrPort
		OperatorNode          string
	}{c, podCIDR, routers, torASN, clusterASN, netip.AddrPortFrom(cluster.Nodes[0].Links[0].Address, 6443), cluster.Nodes[0].Name})
	if err != nil {
		return "", fmt.Errorf("rendering Cilium's manifests: %w", err)
	}
	return text.String(), nil
}

// apply brings operator and agents to this configuration and waits until the
// agents of these nodes run and have told the routers all they have to tell.
func (c cilium) apply(ctx context.Context, r *framework.Run, nodes []string) error {
	if err := c.applyOperator(ctx, r); err != nil {
		return err
	}
	return c.applyAgents(ctx, r, nodes)
}

func (c cilium) applyOperator(ctx context.Context, r *framework.Run) error {
	text, err := c.manifest(ciliumManifest)
	if err != nil {
		return err
	}
	return workload.Apply(ctx, r.Cluster, text)
}

func (c cilium) applyAgents(ctx context.Context, r *framework.Run, nodes []string) error {
	text, err := c.manifest(agentManifest)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := workload.Apply(ctx, r.Cluster, text); err != nil {
		return err
	}
	err = await.Until(ctx, "the agents to run", 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			var set appsv1.DaemonSet
			if err := r.Cluster.Client.Resources().Get(ctx, "cilium", metav1.NamespaceSystem, &set); err != nil {
				return false, "", err
			}
			s := set.Status
			return s.ObservedGeneration >= set.Generation && int(s.UpdatedNumberScheduled) == len(nodes) && int(s.NumberAvailable) == len(nodes),
				fmt.Sprintf("%d of %d updated, %d available", s.UpdatedNumberScheduled, len(nodes), s.NumberAvailable), nil
		})
	if err != nil {
		return err
	}
	return announced(ctx, r, nodes, began)
}

// announced waits until each router has a session with every node that came
// up after a moment, and a path over each.
func announced(ctx context.Context, r *framework.Run, nodes []string, since time.Time) error {
	// Routers know the beginning of a session to the second.
	since = since.Truncate(time.Second)
	for _, t := range lab.Routers {
		handle, err := r.Lab.Router(t.Name)
		if err != nil {
			return err
		}
		err = await.Until(ctx, "the agents' routes on "+t.Name, 100*time.Millisecond, time.Minute,
			func(ctx context.Context) (bool, string, error) {
				neighbors, err := handle.Neighbors(ctx)
				if err != nil {
					return false, "", err
				}
				missing := missingSessions(neighbors, nodes, since)
				return len(missing) == 0, "no session, or no route over it: " + strings.Join(missing, ", "), nil
			})
		if err = errors.Join(err, handle.Close()); err != nil {
			return err
		}
	}
	return nil
}

// missingSessions names the nodes from which nothing has been learned over a
// session that came up after a moment.
func missingSessions(neighbors []snapshot.Neighbor, nodes []string, since time.Time) []string {
	var missing []string
	for _, node := range nodes {
		addr, _ := lab.AddressOn(node, "nodes")
		found := false
		for _, n := range neighbors {
			found = found || n.Address == addr && n.State == router.StateEstablished && n.Received > 0 && !n.Established.Before(since)
		}
		if !found {
			missing = append(missing, node)
		}
	}
	return missing
}

var ciliumNodes = schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNode"}

// createCiliumNodes makes a CiliumNode for each node, as its agent would, and
// waits each time until cilium-operator has given it a pod range: so the
// ranges follow this order.
func createCiliumNodes(ctx context.Context, r *framework.Run, nodes []string) error {
	objects := r.Cluster.Client.Resources()
	for _, name := range nodes {
		// With its address from the beginning, as the agents do it: when 1.11
		// sees an address come later, it installs the node's route and then
		// removes the one of no address, which is the same
		// (pkg/datapath/linux/node.go, updateDirectRoute).
		addr, _ := lab.AddressOn(name, "nodes")
		node := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"addresses": []any{map[string]any{"type": "InternalIP", "ip": addr.String()}},
		}}}
		node.SetGroupVersionKind(ciliumNodes)
		node.SetName(name)
		// The operator registers the type when it starts.
		err := await.Until(ctx, "CiliumNode "+name+" to be created", 100*time.Millisecond, 30*time.Second,
			func(ctx context.Context) (bool, string, error) {
				err := objects.Create(ctx, node.DeepCopy())
				return err == nil, "", err
			})
		if err != nil {
			return err
		}
		err = await.Until(ctx, "a pod range for CiliumNode "+name, 20*time.Millisecond, 30*time.Second,
			func(ctx context.Context) (bool, string, error) {
				if err := objects.Get(ctx, name, "", node); err != nil {
					return false, "", err
				}
				ranges, _, err := unstructured.NestedStringSlice(node.Object, "spec", "ipam", "podCIDRs")
				return len(ranges) > 0, "spec.ipam.podCIDRs is empty", err
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// deleteCiliumNodes deletes every CiliumNode. A cluster that does not know the
// type has none.
func deleteCiliumNodes(ctx context.Context, r *framework.Run) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(ciliumNodes.GroupVersion().WithKind("CiliumNodeList"))
	objects := r.Cluster.Client.Resources()
	if err := objects.List(ctx, list); err != nil {
		if meta.IsNoMatchError(err) {
			return nil
		}
		return fmt.Errorf("listing CiliumNodes: %w", err)
	}
	for _, node := range list.Items {
		if err := objects.Delete(ctx, &node); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting CiliumNode %q: %w", node.GetName(), err)
		}
	}
	return nil
}
