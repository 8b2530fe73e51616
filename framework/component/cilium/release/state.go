package release

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// State is what an agent says of itself (cilium-dbg of 1.15 to 1.20).
type State struct {
	// Status is the state of the agent as a whole, such as Ok, with its message.
	Status string
	// Masquerade is what hides the pods' addresses: BPF, iptables, or nothing.
	Masquerade string
	// Peers are BGP sessions with their states, and Routes what is announced over them; "not known" without BGP.
	Peers, Routes []string
}

func (s State) String() string {
	list := func(items []string) string { return cmp.Or(strings.Join(items, ", "), "none") }
	return fmt.Sprintf("status %s; masquerade by %s; BGP peers: %s; routes that it announces: %s",
		s.Status, s.Masquerade, list(s.Peers), list(s.Routes))
}

const stateWithin = 20 * time.Second

// InAgent runs a shell command on a node, in which $id is the container of its agent.
func InAgent(ctx context.Context, n *kindlab.Node, command string) (string, error) {
	return n.Exec(ctx, "sh", "-ec", `id=$(crictl ps --quiet --state running --name "^cilium-agent$"); `+command)
}

// StateOf asks the agent on a node. It changes nothing.
func StateOf(ctx context.Context, n *kindlab.Node) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, stateWithin)
	defer cancel()
	ask := func(into any, command string) error {
		said, err := InAgent(ctx, n, `crictl exec --sync "$id" cilium-dbg `+command+` -o json`)
		if err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(said), into); err != nil {
			return fmt.Errorf("cilium-dbg %s on %s: %w", command, n.Name(), err)
		}
		return nil
	}
	var status struct {
		Cilium       struct{ State, Msg string }
		Masquerading struct {
			Mode    string
			Enabled bool
		}
	}
	type peer struct {
		Address string `json:"peer-address"`
		State   string `json:"session-state"`
	}
	type route struct{ Prefix string }
	var peers []peer
	var routes []route
	if err := ask(&status, "status"); err != nil {
		return State{}, err
	}
	s := State{Status: strings.TrimSpace(status.Cilium.State + " " + status.Cilium.Msg), Masquerade: "nothing"}
	if status.Masquerading.Enabled {
		s.Masquerade = status.Masquerading.Mode
	}
	// Without the BGP control plane the answer to both is a sentence.
	if ask(&peers, "bgp peers") != nil || ask(&routes, "bgp routes advertised ipv4 unicast") != nil {
		s.Peers, s.Routes = []string{"not known"}, []string{"not known"}
		return s, nil
	}
	s.Peers = each.Of(peers, func(p peer) string { return p.Address + " " + p.State })
	s.Routes = each.Of(routes, func(r route) string { return r.Prefix })
	return s, nil
}
