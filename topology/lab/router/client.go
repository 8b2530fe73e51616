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

	"github.com/relapse-dev/relapse/topology/bgp"
)

// maxSocketPath is the longest path of a unix socket, in bytes, on Linux
// (sun_path of unix(7), less the final zero).
const maxSocketPath = 107

// Client reads a router and changes its static routes. It is safe for concurrent use.
type Client struct {
	http *http.Client
	name string // the socket
}

// Open makes a client of the router whose socket is in folder, its Config.Sockets. It
// does not connect yet, so the router need not run.
func Open(folder string) (*Client, error) {
	socket := filepath.Join(folder, Socket)
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("router socket %s: the path is longer than Linux's limit of %d bytes", socket, maxSocketPath)
	}
	return &Client{name: socket, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}}, nil
}

// Close closes the connections.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// RIB lists all paths of the router's global IPv4 unicast table, by prefix, then by preference.
func (c *Client) RIB(ctx context.Context) ([]bgp.Path, error) {
	paths := []bgp.Path{}
	return paths, c.call(ctx, http.MethodGet, "/rib", nil, &paths)
}

// Neighbors lists the router's peers in order of address.
func (c *Client) Neighbors(ctx context.Context) ([]bgp.Neighbor, error) {
	neighbors := []bgp.Neighbor{}
	return neighbors, c.call(ctx, http.MethodGet, "/neighbors", nil, &neighbors)
}

// Clear closes the session with a neighbour and drops its paths at once, including the paths that
// graceful restart retains. A running neighbour dials again. It is no error if the neighbour is unknown.
//
// FRR cannot drop the retained paths of a neighbour without a session: that is an error.
func (c *Client) Clear(ctx context.Context, neighbor netip.Addr) error {
	return c.call(ctx, http.MethodDelete, "/neighbors/"+neighbor.String(), nil, nil)
}

// Status reads the router's status.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, c.call(ctx, http.MethodGet, "/status", nil, &s)
}

// FIB lists the main IPv4 routing table of the router's kernel, by prefix, then by metric.
func (c *Client) FIB(ctx context.Context) ([]bgp.Route, error) {
	routes := []bgp.Route{}
	return routes, c.call(ctx, http.MethodGet, "/fib", nil, &routes)
}

// Links lists who answers for the watched addresses, in order of address.
func (c *Client) Links(ctx context.Context) ([]bgp.LinkNeighbor, error) {
	links := []bgp.LinkNeighbor{}
	return links, c.call(ctx, http.MethodGet, "/links", nil, &links)
}

// WatchLink makes the router ask who answers for an address on the link on which it has the address own. If
// it has no route to the address there, it gets one.
func (c *Client) WatchLink(ctx context.Context, address, own netip.Addr) error {
	return c.call(ctx, http.MethodPut, "/links/"+address.String()+"?own="+own.String(), nil, nil)
}

// AddStatic sets or replaces the static route to a prefix. It has precedence over BGP routes and is
// in the FIB when AddStatic returns. A next hop that is not on-link is an error.
func (c *Client) AddStatic(ctx context.Context, prefix netip.Prefix, nextHops ...netip.Addr) error {
	return c.call(ctx, http.MethodPut, "/static", Static{Prefix: prefix, NextHops: nextHops}, nil)
}

// RemoveStatic removes the static route to a prefix. When it returns, a BGP route to
// the prefix is in the FIB again. It is no error if there is no static route.
func (c *Client) RemoveStatic(ctx context.Context, prefix netip.Prefix) error {
	return c.call(ctx, http.MethodDelete, "/static/"+prefix.String(), nil, nil)
}

// call makes a request of the HTTP API, and decodes the answer into out unless out is nil.
func (c *Client) call(ctx context.Context, method, path string, body, out any) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("router at %s: %s %s: %w", c.name, method, path, err)
		}
	}()
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
