package router

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"slices"
	"strings"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	gobgp "github.com/osrg/gobgp/v3/pkg/server"

	"github.com/relapse-dev/relapse/topology/bgp"
)

// GoBGPPort is where GoBGP serves its own gRPC API, in plaintext, on each address of
// Config.Listen: the default of gobgpd and gobgp. It is how a GoBGP is read from outside, as FRR
// and BIRD are by vtysh and birdc. Only members of the lab and this machine reach it.
const GoBGPPort = 50051

// goBGP is GoBGP in this process. It installs no routes.
type goBGP struct {
	config  Config
	log     *log.Logger
	changed func()
	fail    func(error)

	bgp *gobgp.BgpServer
	// unwatch ends the watch of its events.
	unwatch context.CancelFunc
}

func (g *goBGP) start(ctx context.Context) error {
	var listen, grpc []string
	for _, a := range g.config.listen() {
		listen = append(listen, a.String())
	}
	for _, a := range g.config.Listen {
		grpc = append(grpc, netip.AddrPortFrom(a, GoBGPPort).String())
	}
	g.bgp = gobgp.NewBgpServer(gobgp.LoggerOption(&bgpLogger{log: g.log, fatal: g.fail}), gobgp.GrpcListenAddress(strings.Join(grpc, ",")))
	go g.bgp.Serve() // never ends: GoBGP cannot stop it

	err := g.bgp.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn:              g.config.AS,
		RouterId:         g.config.RouterID.String(),
		ListenPort:       bgpPort,
		ListenAddresses:  listen,
		UseMultiplePaths: true,
	}})
	if err != nil {
		return fmt.Errorf("starting BGP on %v: %w", listen, err)
	}
	// Before the first session, so that each is logged.
	watch, unwatch := context.WithCancel(context.Background())
	g.unwatch = unwatch
	if err := g.watch(watch); err != nil {
		return err
	}
	for _, p := range g.config.Peers {
		if err := g.accept(ctx, p); err != nil {
			return fmt.Errorf("accepting peers of AS %d in %s: %w", p.AS, p.Prefix, err)
		}
	}
	return nil
}

func (g *goBGP) accept(ctx context.Context, p Peers) error {
	group := p.Prefix.String()
	peers := &api.PeerGroup{
		Conf:   &api.PeerGroupConf{PeerGroupName: group, PeerAsn: p.AS},
		Timers: &api.Timers{Config: &api.TimersConfig{HoldTime: holdTime, KeepaliveInterval: holdTime / 3}},
	}
	if g.config.Dual {
		for _, f := range bgp.GoBGPFamilies {
			peers.AfiSafis = append(peers.AfiSafis, &api.AfiSafi{Config: &api.AfiSafiConfig{Family: f, Enabled: true}})
		}
	}
	if p.GracefulRestart {
		// The router retains routes of its peers (RFC 4724), but does not announce graceful
		// restart itself.
		peers.GracefulRestart = &api.GracefulRestart{Enabled: true, HelperOnly: true}
	}
	err := g.bgp.AddPeerGroup(ctx, &api.AddPeerGroupRequest{PeerGroup: peers})
	if err != nil {
		return err
	}
	return g.bgp.AddDynamicNeighbor(ctx, &api.AddDynamicNeighborRequest{DynamicNeighbor: &api.DynamicNeighbor{
		Prefix:    p.Prefix.String(),
		PeerGroup: group,
	}})
}

// watch calls changed after every change of a best path, and logs when sessions come up
// or go down, until ctx ends.
func (g *goBGP) watch(ctx context.Context) error {
	up := map[string]bool{}
	err := g.bgp.WatchEvent(ctx, &api.WatchEventRequest{
		Peer: &api.WatchEventRequest_Peer{},
		Table: &api.WatchEventRequest_Table{Filters: []*api.WatchEventRequest_Table_Filter{
			{Type: api.WatchEventRequest_Table_Filter_BEST, Init: true},
		}},
	}, func(e *api.WatchEventResponse) {
		if e.GetTable() != nil {
			g.changed()
			return
		}
		state := e.GetPeer().GetPeer().GetState()
		if e.GetPeer().GetType() != api.WatchEventResponse_PeerEvent_STATE {
			return
		}
		established := state.GetSessionState() == api.PeerState_ESTABLISHED
		if addr := state.GetNeighborAddress(); up[addr] != established {
			up[addr] = established
			word := "down"
			if established {
				word = "up"
			}
			g.log.Printf("session with %s (AS %d) is %s", addr, state.GetPeerAsn(), word)
		}
	})
	if err != nil {
		return fmt.Errorf("watching GoBGP: %w", err)
	}
	return nil
}

func (g *goBGP) stop() {
	if g.unwatch != nil {
		g.unwatch()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.bgp.Stop()
	}()
	select {
	case <-done:
	case <-time.After(stopTimeout):
		g.log.Printf("BGP sessions not closed after %s", stopTimeout)
	}
}

func (g *goBGP) paths(ctx context.Context) ([]bgp.Path, error) {
	paths := []bgp.Path{}
	var bad error
	for _, v6 := range families(g.config.Dual) {
		err := g.bgp.ListPath(ctx, bgp.ListGoBGP(v6), func(d *api.Destination) {
			some, err := bgp.GoBGPPaths(d, g.config.AS)
			bad = errors.Join(bad, err)
			paths = append(paths, some...)
		})
		bad = errors.Join(bad, err)
	}
	if bad != nil {
		return nil, fmt.Errorf("listing the RIB: %w", bad)
	}
	// Stable: GoBGP lists the paths to one prefix by preference.
	slices.SortStableFunc(paths, func(a, b bgp.Path) int { return bgp.ComparePrefixes(a.Prefix, b.Prefix) })
	return paths, nil
}

func (g *goBGP) neighbors(ctx context.Context) ([]bgp.Neighbor, error) {
	neighbors := []bgp.Neighbor{}
	err := g.bgp.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) {
		neighbors = append(neighbors, bgp.GoBGPNeighbor(p))
	})
	if err != nil {
		return nil, fmt.Errorf("listing BGP peers: %w", err)
	}
	slices.SortFunc(neighbors, func(a, b bgp.Neighbor) int { return a.Address.Compare(b.Address) })
	return neighbors, nil
}

func (g *goBGP) clear(ctx context.Context, neighbor netip.Addr) error {
	there, err := g.neighbors(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(there, func(n bgp.Neighbor) bool { return n.Address == neighbor }) {
		return nil
	}
	// A dynamic neighbour that is deleted returns with its next session.
	return g.bgp.DeletePeer(ctx, &api.DeletePeerRequest{Address: neighbor.String()})
}
