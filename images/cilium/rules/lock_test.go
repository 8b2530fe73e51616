package rules

import (
	"reflect"
	"testing"
	"time"

	"github.com/cilium/cilium/pkg/option"
)

func TestWaitForLock(t *testing.T) {
	option.Config.IPTablesLockTimeout = 7 * time.Second
	manager := &struct {
		other    bool
		waitArgs []string
	}{}
	if err := WaitForLock(manager); err != nil {
		t.Fatal(err)
	}
	if want := []string{"-w", "7"}; !reflect.DeepEqual(manager.waitArgs, want) {
		t.Errorf("iptables is called with %q, want %q", manager.waitArgs, want)
	}
	if err := WaitForLock(&struct{ waitArgs string }{}); err == nil {
		t.Error("no error for a manager of another kind")
	}
}
