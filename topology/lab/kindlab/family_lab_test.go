//go:build lab

package kindlab

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/must"
)

// The rules that isolate a lab fit into a table of either family.
func TestTableFamilies(t *testing.T) {
	runtime.LockOSThread() // not unlocked: thread and namespace end with the test
	must.NoError(t, unix.Unshare(unix.CLONE_NEWNET))
	bridges := []bridge{{"rl-00000000", netip.MustParseAddr("10.1.0.1")}, {"rl-11111111", netip.MustParseAddr("10.2.0.1")}}
	for name, family := range map[string]nftables.TableFamily{"inet": nftables.TableFamilyINet, "ip": nftables.TableFamilyIPv4} {
		if err := isolate(name, bridges, family); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		table := &nftables.Table{Family: family, Name: tableName(name)}
		for _, hook := range isolation(bridges) {
			rules, err := new(nftables.Conn).GetRules(table, &nftables.Chain{Name: hook.name, Table: table})
			if err != nil || len(rules) != len(hook.rules) {
				t.Errorf("%s: chain %s has %d rules, want %d (%v)", name, hook.name, len(rules), len(hook.rules), err)
			}
		}
	}
}
