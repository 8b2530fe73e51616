package bgprouter

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
)

// heard are the sentences of a station.
type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) tell(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, text)
}

// has waits for a sentence.
func (h *heard) has(t *testing.T, want string) {
	t.Helper()
	err := await.Until(t.Context(), want, 5*time.Millisecond, 10*time.Second, func(context.Context) (bool, string, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		return slices.ContainsFunc(h.all, func(text string) bool { return strings.Contains(text, want) }), strings.Join(h.all, "\n"), nil
	})
	if err != nil {
		t.Error(err)
	}
}

// station listens on a free port for routers, which are named after their addresses.
func station(t *testing.T, addresses ...string) (*Station, []Declared, *heard) {
	t.Helper()
	var routers []Declared
	for _, a := range addresses {
		routers = append(routers, Declared{Name: "tor-" + a, Kind: BMP, Address: a})
	}
	h := &heard{}
	s, err := Listen("127.0.0.1:0", routers, h.tell)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, routers, h
}

// A GoBGP feeds its routes by each policy. One that does not connect is not read.
func TestStation(t *testing.T) {
	router, node := pair(t, []string{"10.5.112.0/24", "fd00:10:5:112::/64"})
	for _, test := range []struct {
		policy api.AddBmpRequest_MonitoringPolicy
		says   string
		open   bool
	}{
		{api.AddBmpRequest_PRE, "before its import policy", true},
		{api.AddBmpRequest_POST, "after its import policy", false},
		{api.AddBmpRequest_LOCAL, "its Loc-RIB", false},
	} {
		t.Run(test.policy.String(), func(t *testing.T) {
			s, routers, h := station(t, "127.0.0.1", "127.0.0.5")
			readers, err := Readers(routers, s)
			if err != nil {
				t.Fatal(err)
			}
			to := s.listener.Addr().(*net.TCPAddr)
			if err := router.AddBmp(t.Context(), &api.AddBmpRequest{Address: "127.0.0.1", Port: uint32(to.Port), Policy: test.policy}); err != nil {
				t.Fatal(err)
			}
			r := readers["tor-127.0.0.1"]
			err = await.Until(t.Context(), "the feed", 50*time.Millisecond, 30*time.Second, func(ctx context.Context) (bool, string, error) {
				_, err := r.RIB(ctx)
				return err == nil, fmt.Sprint(err), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			paths, err := r.RIB(t.Context())
			if err != nil || len(paths) != 2 || !paths[0].Best || paths[0].Neighbor.String() != nodeIP || paths[0].Prefix.String() != "10.5.112.0/24" {
				t.Errorf("%+v, %v", paths, err)
			}
			neighbors, err := r.Neighbors(t.Context())
			if err != nil || len(neighbors) != 1 || neighbors[0].State != snapshot.SessionEstablished || neighbors[0].AS != nodeAS {
				t.Errorf("%+v, %v", neighbors, err)
			}
			is := snapshot.Router{Name: "tor1"}
			r.(snapshot.RouterDescriber).Describe(&is)
			if !is.RIBOnly || !is.IPv6 || len(is.Remarks) != 1 || is.Remarks[0].Open != test.open || !strings.Contains(is.Remarks[0].Says, test.says) {
				t.Errorf("%+v", is)
			}
			// A change is seen by the next read.
			announce(t, node, "10.5.113.0/24")
			err = await.Until(t.Context(), "a new route", 20*time.Millisecond, 10*time.Second, func(ctx context.Context) (bool, string, error) {
				paths, err := r.RIB(ctx)
				return len(paths) == 3, fmt.Sprint(len(paths), err), nil
			})
			if err != nil {
				t.Error(err)
			}
			withdraw(t, node, "10.5.113.0/24")

			if err := s.Await(t.Context(), 300*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			h.has(t, "tor-127.0.0.5: it has not connected from 127.0.0.5")
			if _, err := readers["tor-127.0.0.5"].RIB(t.Context()); err == nil || err.Error() != "it has not connected from 127.0.0.5" {
				t.Error(err)
			}
			if err := router.DeleteBmp(t.Context(), &api.DeleteBmpRequest{Address: "127.0.0.1", Port: uint32(to.Port)}); err != nil {
				t.Fatal(err)
			}
			err = await.Until(t.Context(), "the end", 20*time.Millisecond, 10*time.Second, func(ctx context.Context) (bool, string, error) {
				_, err := r.RIB(ctx)
				return err != nil && strings.Contains(err.Error(), "its BMP connection has ended"), fmt.Sprint(err), nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// What a station does not know, or cannot bound, it refuses, and the router is not read.
func TestStationRefuses(t *testing.T) {
	for _, test := range []struct {
		name, from string
		message    []byte
		told, says string
	}{
		{"a stranger", "127.0.0.8", nil, "refused a BMP connection from 127.0.0.8", "it has not connected from 127.0.0.7"},
		{"another version", "127.0.0.7", []byte{1, 0, 0, 0, 6, 4}, "feeds from", "a message is of version 1 of BMP: expected 3"},
		{"a message without end", "127.0.0.7", []byte{3, 0xff, 0xff, 0xff, 0xff, 0}, "feeds from", "a message has 4294967295 bytes: expected 6 to 131072"},
		{"a message without a header", "127.0.0.7", []byte{3, 0, 0, 0, 2, 0}, "feeds from", "a message has 2 bytes"},
		{"a peer header that is cut off", "127.0.0.7", []byte{3, 0, 0, 0, 8, 0, 0, 0}, "feeds from", "not all data bytes are available"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, routers, h := station(t, "127.0.0.7")
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(test.from)}}
			conn, err := d.DialContext(t.Context(), "tcp", s.listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write(test.message); err != nil {
				t.Fatal(err)
			}
			h.has(t, test.told)
			readers, err := Readers(routers, s)
			if err != nil {
				t.Fatal(err)
			}
			err = await.Until(t.Context(), test.says, 5*time.Millisecond, 10*time.Second, func(ctx context.Context) (bool, string, error) {
				_, err := readers["tor-127.0.0.7"].RIB(ctx)
				return err != nil && strings.Contains(err.Error(), test.says), fmt.Sprint(err), nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := Readers([]Declared{{Name: "a", Kind: BMP, Address: "192.0.2.1"}}, nil); err == nil {
		t.Error("a router of kind bmp without a station")
	}
}
