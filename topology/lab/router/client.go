package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// maxSocketPath is the longest path of a unix socket, in bytes, on Linux
// (sun_path of unix(7), less the final zero).
const maxSocketPath = 107

// Client reads a router and changes its static routes. It is safe for concurrent
// use.
type Client struct {
	conn *grpc.ClientConn
	bgp  api.GobgpApiClient
	http *http.Client
	name string
}

// Open makes a client of the router whose two sockets are in folder, its
// Config.Sockets. It does not connect yet, so the router need not run.
func Open(folder string) (*Client, error) {
	return Dial("unix://"+filepath.Join(folder, GoBGPSocket), filepath.Join(folder, FIBSocket))
}

// Dial makes a client of a GoBGP router. gobgp is the gRPC target of its API
// ("unix:///run/gobgp.sock", "192.0.2.1:50051"). fib is the path of the socket with
// this package's HTTP API. It is empty for a router without that API: then only
// RIB, Neighbors, Clear and Watch work.
func Dial(gobgp, fib string) (*Client, error) {
	if len(fib) > maxSocketPath {
		return nil, fmt.Errorf("router socket %s: the path is longer than Linux's limit of %d bytes", fib, maxSocketPath)
	}
	conn, err := grpc.NewClient(gobgp, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("making a client for GoBGP at %s: %w", gobgp, err)
	}
	c := &Client{conn: conn, bgp: api.NewGobgpApiClient(conn), name: gobgp}
	if fib != "" {
		c.http = &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", fib)
			},
		}}
	}
	return c, nil
}

// Close closes the connections.
func (c *Client) Close() error {
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
	return c.conn.Close()
}

// RIB lists all paths of the router's global IPv4 unicast table, by prefix, then by
// preference.
func (c *Client) RIB(ctx context.Context) ([]Path, error) {
	as, err := c.localAS(ctx)
	if err != nil {
		return nil, err
	}
	stream, err := c.bgp.ListPath(ctx, listRIB)
	if err != nil {
		return nil, c.failed("listing the RIB", err)
	}
	paths := []Path{}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			sortPaths(paths)
			return paths, nil
		}
		if err != nil {
			return nil, c.failed("listing the RIB", err)
		}
		ps, err := pathsOf(r.Destination, as)
		if err != nil {
			return nil, c.failed("listing the RIB", err)
		}
		paths = append(paths, ps...)
	}
}

// localAS is the router's AS.
func (c *Client) localAS(ctx context.Context) (uint32, error) {
	r, err := c.bgp.GetBgp(ctx, &api.GetBgpRequest{})
	if err != nil {
		return 0, c.failed("reading the AS", err)
	}
	return r.GetGlobal().GetAsn(), nil
}

// Neighbors lists the router's peers in order of address.
func (c *Client) Neighbors(ctx context.Context) ([]Neighbor, error) {
	stream, err := c.bgp.ListPeer(ctx, &api.ListPeerRequest{})
	if err != nil {
		return nil, c.failed("listing BGP peers", err)
	}
	neighbors := []Neighbor{}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			sortNeighbors(neighbors)
			return neighbors, nil
		}
		if err != nil {
			return nil, c.failed("listing BGP peers", err)
		}
		neighbors = append(neighbors, neighborOf(r.Peer))
	}
}

// Clear closes the session with a neighbour and drops its paths at once, including
// those that graceful restart retains. A running neighbour dials again. It is no
// error if the neighbour is unknown.
func (c *Client) Clear(ctx context.Context, neighbor netip.Addr) error {
	there, err := c.Neighbors(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(there, func(n Neighbor) bool { return n.Address == neighbor }) {
		return nil
	}
	if _, err := c.bgp.DeletePeer(ctx, &api.DeletePeerRequest{Address: neighbor.String()}); err != nil {
		return c.failed("clearing neighbour "+neighbor.String(), err)
	}
	return nil
}

// Watch calls changed for every existing path, and then for every path that is
// added, replaced or withdrawn. Calls do not overlap. It returns nil when ctx ends,
// and an error if the connection ends before.
func (c *Client) Watch(ctx context.Context, changed func(Change)) error {
	as, err := c.localAS(ctx)
	if err != nil {
		return err
	}
	stream, err := c.bgp.WatchEvent(ctx, &api.WatchEventRequest{
		Table: &api.WatchEventRequest_Table{Filters: []*api.WatchEventRequest_Table_Filter{
			// Not BEST: that omits paths that are not best.
			{Type: api.WatchEventRequest_Table_Filter_POST_POLICY, Init: true},
		}},
	})
	for err == nil {
		var e *api.WatchEventResponse
		if e, err = stream.Recv(); err != nil {
			break
		}
		now := time.Now()
		for _, ap := range e.GetTable().GetPaths() {
			if f := ap.GetFamily(); f.GetAfi() != ipv4Unicast.Afi || f.GetSafi() != ipv4Unicast.Safi {
				continue
			}
			p, _, err := pathOf(ap, as)
			if err != nil {
				return c.failed("watching the RIB", err)
			}
			p.Best = false
			changed(Change{Time: now, Withdrawn: ap.IsWithdraw, Path: p})
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return c.failed("watching the RIB", err)
}

// Status reads the router's status.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, c.call(ctx, http.MethodGet, "/status", nil, &s)
}

// FIB lists the main IPv4 routing table of the router's kernel, by prefix, then by
// metric.
func (c *Client) FIB(ctx context.Context) ([]Route, error) {
	routes := []Route{}
	return routes, c.call(ctx, http.MethodGet, "/fib", nil, &routes)
}

// AddStatic sets or replaces the static route to a prefix. It has precedence over
// BGP routes and is in the FIB when AddStatic returns. A next hop that is not
// on-link is an error.
func (c *Client) AddStatic(ctx context.Context, prefix netip.Prefix, nextHops ...netip.Addr) error {
	return c.call(ctx, http.MethodPut, "/static/"+prefix.String(), Static{Prefix: prefix, NextHops: nextHops}, nil)
}

// RemoveStatic removes the static route to a prefix. When it returns, a BGP route to
// the prefix is in the FIB again. It is no error if there is no static route.
func (c *Client) RemoveStatic(ctx context.Context, prefix netip.Prefix) error {
	return c.call(ctx, http.MethodDelete, "/static/"+prefix.String(), nil, nil)
}

// call makes a request of the HTTP API, and decodes the answer into out unless out
// is nil.
func (c *Client) call(ctx context.Context, method, path string, body, out any) (err error) {
	defer func() {
		if err != nil {
			err = c.failed(method+" "+path, err)
		}
	}()
	if c.http == nil {
		return errors.New("this router has no FIB API")
	}
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(b)
	}
	// The host has no meaning: the transport dials the socket.
	req, err := http.NewRequestWithContext(ctx, method, "http://router"+path, content)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		var p problem
		if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
			return fmt.Errorf("answer %s: %w", resp.Status, err)
		}
		return errors.New(p.Error)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

func (c *Client) failed(doing string, err error) error {
	return fmt.Errorf("router at %s: %s: %w", c.name, doing, err)
}
