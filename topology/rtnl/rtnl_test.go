package rtnl

import (
	"context"
	"errors"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestDump(t *testing.T) {
	asked := 0
	list := func() ([]string, error) {
		if asked++; asked < 3 {
			return []string{"lo"}, netlink.ErrDumpInterrupted
		}
		return []string{"lo", "eth0"}, nil
	}
	must.Equal(t, "links", []string{"lo", "eth0"}, must.Get(Dump(t.Context(), list))(t))
	must.Equal(t, "dumps", 3, asked)
	refused := errors.New("refused")
	must.Is(t, must.Err(Dump(t.Context(), func() ([]string, error) { return nil, refused })), refused)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	asked = 0
	must.Is(t, must.Err(Dump(ctx, list)), netlink.ErrDumpInterrupted)
	must.Equal(t, "dumps although the context has ended", 1, asked)
}
