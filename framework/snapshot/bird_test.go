package snapshot

import (
	"context"
	"net"
	"path/filepath"
	"testing"
)

func TestBIRDWithoutBIRD(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "bird.ctl")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: gone, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close() // a killed BIRD leaves its socket
	for _, path := range []string{gone, gone + ".never"} {
		got, err := birdOf(t.Context(), fakeMachine{path: func(context.Context) (string, error) { return path, nil }})
		if err != nil || got != nil {
			t.Errorf("%s: %v, %v, want none and no error", path, got, err)
		}
	}
}
