package snapshot

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestSightings(t *testing.T) {
	at := func(seconds int) time.Time { return time.Date(2026, 11, 20, 12, 0, seconds, 0, time.UTC) }
	eth0, eth1, again := Interface{Name: "eth0", Index: 2}, Interface{Name: "eth1", Index: 3}, Interface{Name: "eth1", Index: 4}
	var s sightings
	for _, poll := range []struct {
		name       string
		namespace  string
		now        time.Time
		interfaces []Interface
		want       []time.Time
	}{
		{"the first poll", "a", at(0), []Interface{eth0}, []time.Time{{}}},
		{"a card comes", "a", at(1), []Interface{eth0, eth1}, []time.Time{{}, at(1)}},
		{"it stays", "a", at(2), []Interface{eth0, eth1}, []time.Time{{}, at(1)}},
		{"another one under its name", "a", at(3), []Interface{eth0, again}, []time.Time{{}, at(3)}},
		{"it goes", "a", at(4), []Interface{eth0}, []time.Time{{}}},
		{"and comes back", "a", at(5), []Interface{eth0, again}, []time.Time{{}, at(5)}},
		{"the node is started again", "b", at(6), []Interface{eth0, again}, []time.Time{{}, {}}},
	} {
		s.note(poll.namespace, poll.interfaces, poll.now)
		for i, got := range poll.interfaces {
			must.Equal(t, poll.name+": "+got.Name+" is there since", poll.want[i], got.Since)
		}
	}
}

func TestBIRDWithoutBIRD(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "bird.ctl")
	l := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: gone, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	l.Close() // a killed BIRD leaves its socket
	for _, path := range []string{gone, gone + ".never"} {
		got, err := birdOf(t.Context(), fakeMachine{path: func(context.Context) (string, error) { return path, nil }})
		must.NoError(t, err)
		must.Equal(t, path, nil, got)
	}
}

func TestNetnsErrors(t *testing.T) {
	err := must.Err(routesOf(t.Context(), fakeMachine{}))
	must.Fail(t, err, "finding the network namespace: ")
	must.Is(t, err, errClosed)
	missing := fakeMachine{netns: func(context.Context) (string, error) { return "/proc/0/ns/net", nil }}
	must.Fail(t, must.Err(routesOf(t.Context(), missing)), "opening network namespace /proc/0/ns/net: ")
}

// No second dump of connections begins while one that has outlasted its bound goes on.
func TestOneDumpOfConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goesOn := make(chan bool)
		read := natReader("n", fakeMachine{netns: func(context.Context) (string, error) { <-goesOn; return "", errClosed }})
		short := func() NodeNAT {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return read(ctx)
		}
		if first, second := short(), short(); strings.Contains(first.Flows.Error, "still") || second.Flows.Error != "the last question is still being answered" {
			t.Errorf("first %q, second %q", first.Flows.Error, second.Flows.Error)
		}
		close(goesOn)
		synctest.Wait()
		must.Contain(t, short().Flows.Error, errClosed.Error())
	})
}
