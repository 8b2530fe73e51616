package bgprouter

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// A Control removes the static routes that it has added, and no others.
func TestControl(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	// fake writes the commands that a router gets to a file.
	fake := filepath.Join(dir, "fake")
	must.NoError(t, os.WriteFile(fake, []byte("#!/bin/sh\nshift 2\necho \"$*\" >>"+log+"\n"), 0o700))
	c := must.Get(NewControl(Declared{Name: "tor1", Kind: FRR, Command: []string{fake}}))(t)
	prefix, hop := netip.MustParsePrefix("10.5.115.0/24"), netip.MustParseAddr("10.4.94.21")
	for _, do := range []func() error{
		func() error { return c.RemoveStatic(t.Context(), prefix) },
		func() error { return c.AddStatic(t.Context(), prefix, hop) },
		func() error { return c.AddStatic(t.Context(), prefix, hop.Next()) },
		func() error { return c.Clear(t.Context(), hop) },
		func() error { return c.Restore(t.Context()) },
		func() error { return c.Restore(t.Context()) },
	} {
		must.NoError(t, do())
	}
	text := must.Read(t, log)
	want := `configure terminal -c ip route 10.5.115.0/24 10.4.94.21
configure terminal -c no ip route 10.5.115.0/24 10.4.94.21
configure terminal -c ip route 10.5.115.0/24 10.4.94.22
clear bgp 10.4.94.21
configure terminal -c no ip route 10.5.115.0/24 10.4.94.22
`
	must.Equal(t, text, want, string(text))
	must.Fail(t, must.Err(c.RIB(t.Context())), `reading FRR's RIB: want JSON, got ""`) // the router is asked at once, without a queue
}

func TestControlOfBIRD(t *testing.T) {
	must.Fail(t, must.Err(NewControl(Declared{Name: "tor1", Kind: BIRD, SSH: "tor1"})), "router tor1 is of kind bird")
}
