package bgprouter

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"github.com/osrg/gobgp/v3/pkg/packet/bmp"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func init() { quiet, quietAfterEnd = time.Second, 200*time.Millisecond }

type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) tell(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, text)
}

func (h *heard) has(t *testing.T, want string) {
	t.Helper()
	must.NoError(t, await.Until(t.Context(), want, 5*time.Millisecond, 10*time.Second, func(context.Context) (bool, string, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		return slices.ContainsFunc(h.all, func(text string) bool { return strings.Contains(text, want) }), strings.Join(h.all, "\n"), nil
	}))
}

// station listens on a free port for routers, which are named after their addresses.
func station(t *testing.T, addresses ...string) (*Station, []Declared, *heard) {
	t.Helper()
	routers := each.Of(addresses, func(a string) Declared { return Declared{Name: "tor-" + a, Kind: BMP, Address: a} })
	h := &heard{}
	s := must.Get(Listen("127.0.0.1:0", routers, h.tell))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s, routers, h
}

// A GoBGP feeds its routes by each policy. One that does not connect is not read.
func TestStation(t *testing.T) {
	t.Parallel()
	router, node := pair(t, []string{"10.5.112.0/24", "fd00:10:5:112::/64"})
	for _, test := range []struct {
		policy api.AddBmpRequest_MonitoringPolicy
		says   string
		open   bool
	}{
		{api.AddBmpRequest_PRE, "before its import policy", true},
		{api.AddBmpRequest_POST, "after its import policy", false},
		{api.AddBmpRequest_LOCAL, "its Loc-RIB", true},
	} {
		t.Run(test.policy.String(), func(t *testing.T) {
			s, routers, h := station(t, "127.0.0.1", "127.0.0.5")
			readers := must.Get(Readers(routers, s))(t)
			to := s.listener.Addr().(*net.TCPAddr)
			must.NoError(t, router.AddBmp(t.Context(), &api.AddBmpRequest{Address: "127.0.0.1", Port: uint32(to.Port), Policy: test.policy}))
			r := readers["tor-127.0.0.1"]
			says(t, r, "")
			paths, err := r.RIB(t.Context())
			if err != nil || len(paths) != 2 || !paths[0].Best || paths[0].Neighbor.String() != nodeIP || paths[0].Prefix.String() != "10.5.112.0/24" {
				t.Errorf("%+v, %v", paths, err)
			}
			neighbors, err := r.Neighbors(t.Context())
			if err != nil || len(neighbors) != 1 || neighbors[0].State != snapshot.SessionEstablished || neighbors[0].AS != nodeAS {
				t.Errorf("%+v, %v", neighbors, err)
			}
			got := described(r)
			if !got.RIBOnly || !got.IPv6 || len(got.Remarks) != 1 || got.Remarks[0].Open != test.open || !strings.Contains(got.Remarks[0].Says, test.says) {
				t.Errorf("%+v", got)
			}
			// A change is seen by the next read.
			announce(t, node, "10.5.113.0/24")
			must.NoError(t, await.Until(t.Context(), "a new route", 20*time.Millisecond, 10*time.Second, func(ctx context.Context) (bool, string, error) {
				paths, err := r.RIB(ctx)
				return len(paths) == 3, fmt.Sprint(len(paths), err), nil
			}))
			withdraw(t, node, "10.5.113.0/24")

			must.NoError(t, s.Await(t.Context(), 300*time.Millisecond))
			h.has(t, "tor-127.0.0.5: it has not connected from 127.0.0.5")
			must.Fail(t, must.Err(readers["tor-127.0.0.5"].RIB(t.Context())), "it has not connected from 127.0.0.5")
			must.NoError(t, router.DeleteBmp(t.Context(), &api.DeleteBmpRequest{Address: "127.0.0.1", Port: uint32(to.Port)}))
			says(t, r, "its BMP connection has ended")
		})
	}
}

// A station refuses unknown routers, messages and sizes, and does not read the router.
func TestStationRefuses(t *testing.T) {
	for _, test := range []struct {
		name, from  string
		message     []byte
		event, says string
	}{
		{"a stranger", "127.0.0.8", nil, "refused a BMP connection from 127.0.0.8", "it has not connected from 127.0.0.7"},
		{"another version", "127.0.0.7", []byte{1, 0, 0, 0, 6, 4}, "feeds from", "a message is of version 1 of BMP: expected 3"},
		{"a message without end", "127.0.0.7", []byte{3, 0xff, 0xff, 0xff, 0xff, 0}, "feeds from", "a message has 4294967295 bytes: expected 6 to 131072"},
		{"a message without a header", "127.0.0.7", []byte{3, 0, 0, 0, 2, 0}, "feeds from", "a message has 2 bytes"},
		{"a peer header that is cut off", "127.0.0.7", []byte{3, 0, 0, 0, 8, 0, 0, 0}, "feeds from", "not all data bytes are available"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, routers, h := station(t, "127.0.0.7")
			must.Get(dialed(t, s, test.from).Write(test.message))(t)
			h.has(t, test.event)
			says(t, must.Get(Readers(routers, s))(t)["tor-127.0.0.7"], test.says)
		})
	}
	must.Fail(t, must.Err(Readers([]Declared{{Name: "a", Kind: BMP, Address: "192.0.2.1"}}, nil))) // without a station
}

func dialed(t *testing.T, s *Station, from string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn := must.Get(d.DialContext(t.Context(), "tcp", s.listener.Addr().String()))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// says waits until the error of reading a router has these words; "": until there is no error.
func says(t *testing.T, r snapshot.RouterReader, want string) {
	t.Helper()
	err := await.Until(t.Context(), fmt.Sprintf("%q", want), 20*time.Millisecond, 30*time.Second, func(ctx context.Context) (bool, string, error) {
		_, err := r.RIB(ctx)
		return want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), want), fmt.Sprint(err), nil
	})
	must.NoError(t, err)
}

// Two programs that feed from one address are reported, and do not close each other's connections. The feed of
// one counts once the other has ended.
func TestStationTwoFeeds(t *testing.T) {
	s, routers, h := station(t, "127.0.0.11")
	r := must.Get(Readers(routers, s))(t)["tor-127.0.0.11"]
	first := dialed(t, s, "127.0.0.11")
	says(t, r, "it has not fed all of its routes yet")
	second := dialed(t, s, "127.0.0.11")
	const both = "2 BMP connections from 127.0.0.11 are open at once"
	h.has(t, "tor-127.0.0.11: "+both)
	says(t, r, both)
	for _, c := range []net.Conn{first, second} {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		must.Is(t, must.Err(c.Read(make([]byte, 1))), os.ErrDeadlineExceeded) // the connection has not ended
	}
	_ = first.Close()
	says(t, r, "it has not fed all of its routes yet")
	for range maxFeeds + 1 {
		dialed(t, s, "127.0.0.11")
	}
	h.has(t, fmt.Sprintf("refused a BMP connection of tor-127.0.0.11 from 127.0.0.11: it has %d", maxFeeds))
}

// A router that has lost its power is not read for long.
func TestStationKeepAlive(t *testing.T) {
	s, _, h := station(t, "127.0.0.12")
	dialed(t, s, "127.0.0.12")
	h.has(t, "tor-127.0.0.12 feeds from")
	f := s.feeds[netip.MustParseAddr("127.0.0.12")]
	raw := must.Get(f.open[0].conn.(*net.TCPConn).SyscallConn())(t)
	for name, test := range map[string]struct{ option, want int }{"idle": {syscall.TCP_KEEPIDLE, 5}, "interval": {syscall.TCP_KEEPINTVL, 2}, "count": {syscall.TCP_KEEPCNT, 3}} {
		var got int
		var wrong error
		if err := raw.Control(func(fd uintptr) { got, wrong = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, test.option) }); err != nil || wrong != nil || got != test.want {
			t.Errorf("%s: %d, want %d: %v, %v", name, got, test.want, err, wrong)
		}
	}
}

// A router that stops in the middle of its routes is not read. A session that came up meanwhile, for
// which FRR sends no End-of-RIB, is reported.
func TestStationNoEnd(t *testing.T) {
	t.Parallel()
	s, routers, h := station(t, "127.0.0.13")
	conn, r := dialed(t, s, "127.0.0.13"), must.Get(Readers(routers, s))(t)["tor-127.0.0.13"]
	h.has(t, "feeds from")
	send := func(m *bmp.BMPMessage) {
		t.Helper()
		must.Get(conn.Write(must.Get(m.Serialize())(t)))(t)
	}
	headerOf := func(peer string) bmp.BMPPeerHeader {
		return *bmp.NewBMPPeerHeader(bmp.BMP_PEER_TYPE_GLOBAL, bmp.BMP_PEER_FLAG_POST_POLICY, 0, peer, nodeAS, "192.0.2.9", 1767323045)
	}
	up := func(peer string) *bmp.BMPMessage {
		open := bgp.NewBGPOpenMessage(nodeAS, 90, "192.0.2.9", nil)
		return bmp.NewBMPPeerUpNotification(headerOf(peer), "192.0.2.1", 179, 40000, open, open)
	}
	send(up("192.0.2.2"))
	send(bmp.NewBMPRouteMonitoring(headerOf("192.0.2.2"), bgp.NewBGPUpdateMessage(nil, []bgp.PathAttributeInterface{
		bgp.NewPathAttributeOrigin(0), bgp.NewPathAttributeAsPath(nil), bgp.NewPathAttributeNextHop("192.0.2.2"),
	}, []*bgp.IPAddrPrefix{bgp.NewIPAddrPrefix(24, "10.5.112.0")})))
	send(up("192.0.2.3"))
	says(t, r, "it has fed no End-of-RIB of 192.0.2.2, so that its routes may not be whole")
	send(bmp.NewBMPRouteMonitoring(headerOf("192.0.2.2"), bgp.NewBGPUpdateMessage(nil, nil, nil)))
	says(t, r, "")
	missing := snapshot.Remark{Says: "tor1 has fed no End-of-RIB of 192.0.2.3: routes from there may be missing.", Open: true}
	must.Equal(t, "remarks", []snapshot.Remark{missing}, described(r).Remarks[1:])
	// A session that comes up later is reported as well, and a peer that is no longer fed.
	send(up("192.0.2.4"))
	send(bmp.NewBMPPeerDownNotification(headerOf("192.0.2.3"), bmp.BMP_PEER_DOWN_REASON_PEER_DE_CONFIGURED, nil, nil))
	want := []string{"tor1 has fed no End-of-RIB of 192.0.2.4: routes from there may be missing.", "tor1 feeds 192.0.2.3 no more, for its configuration"}
	must.NoError(t, await.Until(t.Context(), "two remarks", 20*time.Millisecond, 10*time.Second, func(context.Context) (bool, string, error) {
		got := described(r)
		ok := len(got.Remarks) == 3
		for i, w := range want {
			ok = ok && got.Remarks[i+1].Open && strings.HasPrefix(got.Remarks[i+1].Says, w)
		}
		return ok, fmt.Sprint(got.Remarks), nil
	}))
	must.Equal(t, "neighbours", 2, len(must.Get(r.Neighbors(t.Context()))(t)))
	_ = conn.Close()
	says(t, r, "its BMP connection has ended, and the last message came at 2")
}

// exhausted is a listener while all descriptors are in use.
type exhausted struct {
	net.Listener
	asked atomic.Int32
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.asked.Add(1) > 3 {
		return nil, net.ErrClosed
	}
	return nil, syscall.EMFILE
}

func TestStationWithoutDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		(&Station{listener: &exhausted{}}).accept()
		must.Equal(t, "it was asked again for", 3*acceptAgain, time.Since(began))
	})
}
