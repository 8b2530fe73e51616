package snapshot

import (
	"context"
	"errors"
	"strings"
	"testing"
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
