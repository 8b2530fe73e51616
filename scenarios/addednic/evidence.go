package addednic

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pmezard/go-difflib/difflib"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/fault"
)

// story is a variant's: its card, and what it remembers of the time before
// the fault.
type story struct {
	nic fault.NIC
	// configs are the nodes' bird.cfg, agents calico-node's pods with their
	// restarts.
	configs map[string]string
	agents  map[string]string
	// plugged is when the card was there.
	plugged time.Time
}

// inCalico runs a command in calico-node's container on a node.
func inCalico(ctx context.Context, r *framework.Run, node string, command ...string) (string, error) {
	const script = `id=$(crictl ps --quiet --state running --name "^` + agent + `$")
exec crictl exec --sync "$id" "$@"`
	return r.Lab.Node(node).Exec(ctx, append([]string{"sh", "-ec", script, "sh"}, command...)...)
}

// onEachNode asks every node at once.
func onEachNode(ctx context.Context, r *framework.Run, ask func(ctx context.Context, node string) (string, error)) (map[string]string, error) {
	var mu sync.Mutex
	answers := map[string]string{}
	all, ctx := errgroup.WithContext(ctx)
	for _, node := range r.Cluster.Nodes() {
		all.Go(func() error {
			text, err := ask(ctx, node)
			mu.Lock()
			defer mu.Unlock()
			answers[node] = text
			return err
		})
	}
	return answers, all.Wait()
}

// record keeps what BIRD and the Nodes' annotations say at a moment, and what
// has changed in the rendered configuration of BIRD since the first one.
func (s *story) record(ctx context.Context, r *framework.Run, when string) error {
	protocols, err := onEachNode(ctx, r, func(ctx context.Context, node string) (string, error) {
		return inCalico(ctx, r, node, "birdc", "-s", "/var/run/calico/bird.ctl", "show", "protocols")
	})
	if err != nil {
		return fmt.Errorf("asking BIRD: %w", err)
	}
	configs, err := onEachNode(ctx, r, func(ctx context.Context, node string) (string, error) {
		return inCalico(ctx, r, node, "cat", "/etc/calico/confd/config/bird.cfg")
	})
	if err != nil {
		return fmt.Errorf("reading BIRD's configuration: %w", err)
	}
	var nodes corev1.NodeList
	if err := r.Cluster.Client.Resources().List(ctx, &nodes); err != nil {
		return fmt.Errorf("reading the Nodes' annotations: %w", err)
	}
	annotations := map[string]map[string]string{}
	for _, n := range nodes.Items {
		annotations[n.Name] = map[string]string{}
		for key, value := range n.Annotations {
			if strings.HasPrefix(key, "projectcalico.org/") {
				annotations[n.Name][key] = value
			}
		}
	}
	var birds strings.Builder
	for _, node := range r.Cluster.Nodes() {
		fmt.Fprintf(&birds, "%s: birdc show protocols\n%s\n", node, protocols[node])
	}
	r.Evidence("bird-"+when, birds.String())
	r.Evidence("annotations-"+when, annotations)
	if s.configs == nil {
		s.configs = configs
		for _, node := range r.Cluster.Nodes() {
			r.Evidence("bird.cfg-"+node+"-"+when, configs[node])
		}
		return nil
	}
	changes, err := changed(r.Cluster.Nodes(), s.configs, configs, when)
	if err != nil {
		return err
	}
	r.Evidence("bird.cfg-changes-"+when, changes)
	return nil
}

// changed renders what differs between two sets of the nodes' configurations,
// as diff -u does.
func changed(nodes []string, before, now map[string]string, when string) (string, error) {
	var text strings.Builder
	for _, node := range nodes {
		err := difflib.WriteUnifiedDiff(&text, difflib.UnifiedDiff{
			A: difflib.SplitLines(before[node]), FromFile: node + "/bird.cfg", FromDate: "before",
			B: difflib.SplitLines(now[node]), ToFile: node + "/bird.cfg", ToDate: when,
			Context: 1,
		})
		if err != nil {
			return "", fmt.Errorf("comparing BIRD's configuration on %s: %w", node, err)
		}
	}
	return text.String(), nil
}
