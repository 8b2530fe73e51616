package rtnl

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestDump(t *testing.T) {
	asked := 0
	list := func() ([]string, error) {
		if asked++; asked < 3 {
			return []string{"lo"}, netlink.ErrDumpInterrupted
		}
		return []string{"lo", "eth0"}, nil
	}
	if got, err := Dump(t.Context(), list); err != nil || asked != 3 || !slices.Equal(got, []string{"lo", "eth0"}) {
		t.Errorf("%q, %v after %d dumps", got, err, asked)
	}
	refused := errors.New("refused")
	if _, err := Dump(t.Context(), func() ([]string, error) { return nil, refused }); err != refused {
		t.Errorf("%v, want %v", err, refused)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	asked = 0
	if _, err := Dump(ctx, list); !errors.Is(err, netlink.ErrDumpInterrupted) || asked != 1 {
		t.Errorf("%v after %d dumps, although the context has ended", err, asked)
	}
}
