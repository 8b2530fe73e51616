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
	const one, two = "10.4.94.32", "10.4.94.21"
	igp := bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP)
	a, b := bgp.NewPathAttributeNextHop(one), bgp.NewPathAttributeNextHop(two)
	first := announcement(t, one, 64513, true, igp, sequence(64513), a)
	second := announcement(t, two, 64513, false, igp, sequence(64513), b)
	for _, tt := range []struct {
		name            string
		first, second   *api.Path
		ofFirst, ofLast string // the attributes of each path behind its next hop
	}{
		{"equally good from two neighbours", first, second, "from 10.4.94.32 as [64513] best multipath", "from 10.4.94.21 as [64513] multipath"},
		{"longer AS path", first, announcement(t, two, 64513, false, igp, sequence(64513, 64513), b),
			"from 10.4.94.32 as [64513] best multipath", "from 10.4.94.21 as [64513 64513]"},
		{"higher MED", first, announcement(t, two, 64513, false, igp, sequence(64513), b, bgp.NewPathAttributeMultiExitDisc(5)),
			"from 10.4.94.32 as [64513] best multipath", "from 10.4.94.21 as [64513] igp 100 5"},
		{"iBGP and eBGP", first, announcement(t, two, localAS, false, igp, sequence(64513), b, bgp.NewPathAttributeLocalPref(100)),
			"from 10.4.94.32 as [64513] best multipath", "from 10.4.94.21 as [64513] internal"},
		{"the router's own is best", announcement(t, "<nil>", 0, true, igp, sequence(64513), a), second,
			"from invalid IP as [64513] best multipath", "from 10.4.94.21 as [64513]"},
		{"none is best", announcement(t, one, 64513, false, igp, sequence(64513), a), second, "from 10.4.94.32 as [64513]", "from 10.4.94.21 as [64513]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &api.Destination{Prefix: "10.5.112.0/24", Paths: []*api.Path{tt.first, tt.second}}
			want := []string{"10.5.112.0/24 via 10.4.94.32 " + tt.ofFirst, "10.5.112.0/24 via 10.4.94.21 " + tt.ofLast}
			must.Equal(t, "paths", want, pathLines(must.Get(GoBGPPaths(d, localAS))(t)))
		})
	}
}

func TestPathsOfBadAttribute(t *testing.T) {
	p := announcement(t, "10.4.94.32", 64513, true)
	p.PattrsBinary = [][]byte{{0x40}}
	must.Fail(t, must.Err(GoBGPPaths(&api.Destination{Prefix: "10.5.112.0/24", Paths: []*api.Path{p}}, 64524)))
}
