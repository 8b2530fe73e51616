package snapshot

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

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
