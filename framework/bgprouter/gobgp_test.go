package bgprouter

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/log"
	gobgp "github.com/osrg/gobgp/v3/pkg/server"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/must"
)

// The speakers of pair: a router, and a node that announces to it.
const (
	routerIP, routerAS = "127.0.0.1", 64512
	nodeIP, nodeAS     = "127.0.0.2", 64513
)

var (
	ipv4 = &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	ipv6 = &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}
)

func listens(t *testing.T, address string) {
	t.Helper()
	err := await.Until(t.Context(), "a server at "+address, 10*time.Millisecond, 10*time.Second, func(context.Context) (bool, string, error) {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return false, err.Error(), nil
		}
		return true, "", conn.Close()
	})
	must.NoError(t, err)
}

// freePort is a port of loopback that nothing listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// speaker is a GoBGP in this process. A port of -1: it does not listen.
func speaker(t *testing.T, as uint32, id string, port int, options ...gobgp.ServerOption) *gobgp.BgpServer {
	t.Helper()
	quiet := log.NewDefaultLogger()
	quiet.SetLevel(log.ErrorLevel)
	s := gobgp.NewBgpServer(append(options, gobgp.LoggerOption(quiet))...)
	go s.Serve()
	t.Cleanup(s.Stop)
	global := &api.Global{Asn: as, RouterId: id, ListenPort: int32(port), ListenAddresses: []string{"127.0.0.1"}, UseMultiplePaths: true}
	must.NoError(t, s.StartBgp(t.Context(), &api.StartBgpRequest{Global: global}))
	return s
}

// pair are a router and a node with a session of both families, over which the node has
// announced prefixes.
func pair(t *testing.T, prefixes []string, options ...gobgp.ServerOption) (router, node *gobgp.BgpServer) {
	t.Helper()
	port := freePort(t)
	router, node = speaker(t, routerAS, "192.0.2.1", port, options...), speaker(t, nodeAS, "192.0.2.2", -1)
	families := []*api.AfiSafi{{Config: &api.AfiSafiConfig{Family: ipv4, Enabled: true}}, {Config: &api.AfiSafiConfig{Family: ipv6, Enabled: true}}}
	peer := func(s *gobgp.BgpServer, address string, as uint32, transport *api.Transport) {
		t.Helper()
		p := &api.Peer{
			Conf: &api.PeerConf{NeighborAddress: address, PeerAsn: as}, Transport: transport, AfiSafis: families,
			Timers: &api.Timers{Config: &api.TimersConfig{ConnectRetry: 1, IdleHoldTimeAfterReset: 1}},
		}
		must.NoError(t, s.AddPeer(t.Context(), &api.AddPeerRequest{Peer: p}))
	}
	for _, p := range prefixes {
		announce(t, node, p)
	}
	peer(router, nodeIP, nodeAS, &api.Transport{PassiveMode: true})
	peer(router, "127.0.0.9", nodeAS, &api.Transport{PassiveMode: true}) // this neighbour never connects
	peer(node, routerIP, routerAS, &api.Transport{LocalAddress: nodeIP, RemotePort: uint32(port)})
	must.NoError(t, await.Until(t.Context(), "the announcements", 20*time.Millisecond, 30*time.Second, func(ctx context.Context) (bool, string, error) {
		n := 0
		for _, f := range []*api.Family{ipv4, ipv6} {
			if err := router.ListPath(ctx, &api.ListPathRequest{Family: f}, func(*api.Destination) { n++ }); err != nil {
				return false, "", err
			}
		}
		return n == len(prefixes), fmt.Sprintf("%d prefixes", n), nil
	}))
	return router, node
}

// announce originates a prefix, and withdraw ends that.
func announce(t *testing.T, s *gobgp.BgpServer, prefix string) {
	t.Helper()
	must.Get(s.AddPath(t.Context(), &api.AddPathRequest{Path: originated(t, prefix)}))(t)
}

func withdraw(t *testing.T, s *gobgp.BgpServer, prefix string) {
	t.Helper()
	must.NoError(t, s.DeletePath(t.Context(), &api.DeletePathRequest{Path: originated(t, prefix)}))
}

func originated(t *testing.T, prefix string) *api.Path {
	t.Helper()
	p := netip.MustParsePrefix(prefix)
	packed := func(m interface{ ProtoReflect() protoreflect.Message }) *anypb.Any {
		return must.Get(anypb.New(m))(t)
	}
	nlri, origin := packed(&api.IPAddressPrefix{Prefix: p.Addr().String(), PrefixLen: uint32(p.Bits())}), packed(&api.OriginAttribute{})
	path := &api.Path{Family: ipv4, Nlri: nlri, Pattrs: []*anypb.Any{origin, packed(&api.NextHopAttribute{NextHop: nodeIP})}}
	if !p.Addr().Is4() {
		path.Family = ipv6
		path.Pattrs = []*anypb.Any{origin, packed(&api.MpReachNLRIAttribute{Family: ipv6, NextHops: []string{"2001:db8::2"}, Nlris: []*anypb.Any{nlri}})}
	}
	return path
}
