package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	api "github.com/osrg/gobgp/v3/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// GoBGP reads a GoBGP that this package does not run, by the gRPC API of GoBGP 3. It only
// lists.
type GoBGP struct{ api api.GobgpApiClient }

// NewGoBGP makes a reader of the GoBGP at the other end of a connection.
func NewGoBGP(conn grpc.ClientConnInterface) *GoBGP { return &GoBGP{api.NewGobgpApiClient(conn)} }

// RIB lists all paths of the global unicast table of IPv4, or of IPv6, by prefix, then by
// preference. It is an ErrRefused if GoBGP has no such table.
func (g *GoBGP) RIB(ctx context.Context, v6 bool) ([]Path, error) {
	global, err := g.api.GetBgp(ctx, &api.GetBgpRequest{})
	if err != nil {
		return nil, fmt.Errorf("reading GoBGP's AS: %w", err)
	}
	ask := listRIB
	if v6 {
		ask = &api.ListPathRequest{TableType: ask.TableType, Family: ipv6Unicast, EnableOnlyBinary: true}
	}
	list, err := g.api.ListPath(ctx, ask)
	if err != nil {
		return nil, fmt.Errorf("listing GoBGP's RIB: %w", err)
	}
	paths, left := []Path{}, budget(maxTable)
	err = each(list.Recv, func(answer *api.ListPathResponse) error {
		some, err := pathsOf(answer.GetDestination(), global.GetGlobal().GetAsn())
		if err != nil {
			return err
		}
		paths = append(paths, some...)
		return left.take(some...)
	})
	if strings.Contains(status.Convert(err).Message(), "not supported") { // "address family: ipv6-unicast not supported"
		err = fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listing GoBGP's RIB: %w", err)
	}
	sortPaths(paths)
	return paths, nil
}

// Neighbors lists the peers in order of address.
func (g *GoBGP) Neighbors(ctx context.Context) ([]Neighbor, error) {
	list, err := g.api.ListPeer(ctx, &api.ListPeerRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing GoBGP's peers: %w", err)
	}
	neighbors := []Neighbor{}
	err = each(list.Recv, func(answer *api.ListPeerResponse) error {
		n := neighborOf(answer.GetPeer())
		if !n.Address.IsValid() {
			return fmt.Errorf("a peer has the address %q", answer.GetPeer().GetState().GetNeighborAddress())
		}
		if neighbors = append(neighbors, n); len(neighbors) > maxNeighbors {
			return fmt.Errorf("there are more than %d", maxNeighbors)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing GoBGP's peers: %w", err)
	}
	sortNeighbors(neighbors)
	return neighbors, nil
}

// each calls do for each answer of a stream.
func each[T any](next func() (T, error), do func(T) error) error {
	for {
		answer, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := do(answer); err != nil {
			return err
		}
	}
}

const (
	// maxTable bounds the memory, in bytes, of the paths of a router that is not the lab's:
	// about two million paths.
	maxTable = 512 << 20
	// maxNeighbors bounds its sessions: more than any router has.
	maxNeighbors = 100_000
)

// budget is the memory in bytes that further paths may take.
type budget int

// take takes the memory of paths. The error says that it is not enough.
func (b *budget) take(paths ...Path) error {
	for _, p := range paths {
		*b -= budget(sizeOf(p))
	}
	if *b < 0 {
		return fmt.Errorf("the paths take more than %d MiB", maxTable>>20)
	}
	return nil
}

// sizeOf is the memory that a path takes, in bytes, with its AS path.
func sizeOf(p Path) int { return 224 + 4*len(p.ASPath) }
