package snapshot

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestBIRDWithoutBIRD(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "bird.ctl")
	l := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: gone, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	l.Close() // a killed BIRD leaves its socket
	for _, path := range []string{gone, gone + ".never"} {
		got, err := birdOf(t.Context(), fakeMachine{path: func(context.Context) (string, error) { return path, nil }})
		if err != nil || got != nil {
			t.Errorf("%s: %v, %v, want none and no error", path, got, err)
		}
	}
}
