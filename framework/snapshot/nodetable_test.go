package snapshot

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestNetnsErrors(t *testing.T) {
	if _, err := routesOf(t.Context(), fakeMachine{}); !errors.Is(err, errClosed) || !strings.HasPrefix(err.Error(), "finding the network namespace: ") {
		t.Errorf("error %v", err)
	}
	missing := fakeMachine{netns: func(context.Context) (string, error) { return "/proc/0/ns/net", nil }}
	if _, err := routesOf(t.Context(), missing); err == nil || !strings.HasPrefix(err.Error(), "opening network namespace /proc/0/ns/net: ") {
		t.Errorf("error %v", err)
	}
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
		if third := short(); !strings.Contains(third.Flows.Error, errClosed.Error()) {
			t.Errorf("third %q", third.Flows.Error)
		}
	})
}
