package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/relapse-dev/relapse/topology/bgp"
)

// birdSocket is BIRD's control socket on a node: calico-node's pod has the node's /var/run/calico
// for its own. It is named without the symbolic link /var/run, which would lead out of the node.
const birdSocket = "/run/calico/bird.ctl"

// birdOf asks a node's BIRD for its protocols, through its control socket.
// Where nothing listens no BIRD runs, which is not an error.
func birdOf(ctx context.Context, m Machine) ([]BIRDProtocol, error) {
	own, isOwn := m.(Own)
	if isOwn {
		if listens, err := own.listens("/calico/bird.ctl"); !listens {
			return nil, err
		}
	}
	path, err := m.Path(ctx, birdSocket)
	if err != nil {
		return nil, fmt.Errorf("finding BIRD's socket: %w", err)
	}
	text, err := bgp.AskBIRD(ctx, path, "show protocols all")
	switch {
	case !isOwn && errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("BIRD listens, but %s is not mounted here", path)
	case err != nil:
		return nil, err
	}
	return bgp.BIRDProtocols(text)
}
