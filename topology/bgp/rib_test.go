package bgp

import (
	"testing"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/relapse-dev/relapse/topology/must"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// announcement is a path to 10.5.112.0/24 as GoBGP lists it.
func announcement(t *testing.T, neighbor string, as uint32, best bool, attrs ...bgp.PathAttributeInterface) *api.Path {
	t.Helper()
	nlri := must.Get(bgp.NewIPAddrPrefix(24, "10.5.112.0").Serialize())(t)
	p := &api.Path{NlriBinary: nlri, Family: ipv4Unicast, Best: best, Age: timestamppb.New(noon), NeighborIp: neighbor, SourceAsn: as}
	for _, a := range attrs {
		p.PattrsBinary = append(p.PattrsBinary, must.Get(a.Serialize())(t))
	}
	return p
}

func sequence(as ...uint32) bgp.PathAttributeInterface {
	return bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{bgp.NewAs4PathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, as)})
}

func TestPathsOf(t *testing.T) {
	const localAS = 64524
	igp := bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP)
	a, b := bgp.NewPathAttributeNextHop("10.4.94.32"), bgp.NewPathAttributeNextHop("10.4.94.21")
	want := func(neighbor, nextHop string, change func(*Path)) Path {
		p := Path{
			Prefix: prefix("10.5.112.0/24"), NextHop: addr(nextHop), Origin: "igp",
			ASPath: []uint32{64513}, LocalPref: 100,
		}
		if neighbor != "" {
			p.Neighbor = addr(neighbor)
		}
		change(&p)
		return p
	}
	best := func(p *Path) { p.Best, p.Multipath = true, true }

	for _, tt := range []struct {
		name  string
		paths []*api.Path
		want  []Path
	}{
		{name: "equally good from two neighbours", paths: []*api.Path{
			announcement(t, "10.4.94.32", 64513, true, igp, sequence(64513), a),
			announcement(t, "10.4.94.21", 64513, false, igp, sequence(64513), b),
		},
			want: []Path{want("10.4.94.32", "10.4.94.32", best), want("10.4.94.21", "10.4.94.21", func(p *Path) { p.Multipath = true })}},
		{name: "longer AS path", paths: []*api.Path{
			announcement(t, "10.4.94.32", 64513, true, igp, sequence(64513), a),
			announcement(t, "10.4.94.21", 64513, false, igp, sequence(64513, 64513), b),
		},
			want: []Path{
				want("10.4.94.32", "10.4.94.32", best),
				want("10.4.94.21", "10.4.94.21", func(p *Path) { p.ASPath = []uint32{64513, 64513} }),
			}},
		{name: "higher MED", paths: []*api.Path{
			announcement(t, "10.4.94.32", 64513, true, igp, sequence(64513), a),
			announcement(t, "10.4.94.21", 64513, false, igp, sequence(64513), b, bgp.NewPathAttributeMultiExitDisc(5)),
		},
			want: []Path{want("10.4.94.32", "10.4.94.32", best), want("10.4.94.21", "10.4.94.21", func(p *Path) { p.MED = 5 })}},
		{name: "iBGP and eBGP", paths: []*api.Path{
			announcement(t, "10.4.94.32", 64513, true, igp, sequence(64513), a),
			announcement(t, "10.4.94.21", localAS, false, igp, sequence(64513), b, bgp.NewPathAttributeLocalPref(100)),
		},
			want: []Path{want("10.4.94.32", "10.4.94.32", best), want("10.4.94.21", "10.4.94.21", func(p *Path) { p.Internal = true })}},
		{name: "the router's own is best", paths: []*api.Path{
			announcement(t, "<nil>", 0, true, igp, sequence(64513), a),
			announcement(t, "10.4.94.21", 64513, false, igp, sequence(64513), b),
		},
			want: []Path{want("", "10.4.94.32", best), want("10.4.94.21", "10.4.94.21", func(*Path) {})}},
		{name: "none is best", paths: []*api.Path{
			announcement(t, "10.4.94.32", 64513, false, igp, sequence(64513), a),
			announcement(t, "10.4.94.21", 64513, false, igp, sequence(64513), b),
		},
			want: []Path{want("10.4.94.32", "10.4.94.32", func(*Path) {}), want("10.4.94.21", "10.4.94.21", func(*Path) {})}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := must.Get(GoBGPPaths(&api.Destination{Prefix: "10.5.112.0/24", Paths: tt.paths}, localAS))(t)
			must.Equal(t, "paths", tt.want, got, byValue)
		})
	}
}

func TestPathsOfBadAttribute(t *testing.T) {
	p := announcement(t, "10.4.94.32", 64513, true)
	p.PattrsBinary = [][]byte{{0x40}}
	must.Fail(t, must.Err(GoBGPPaths(&api.Destination{Prefix: "10.5.112.0/24", Paths: []*api.Path{p}}, 64524)))
}
