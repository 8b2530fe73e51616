package upgrade

import (
	"context"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/must"
)

// FakeComponent is the component of FakeTrip, from version 1 to version 2.
const FakeComponent = "thing"

// FakeTrip makes the trip of a world that has the probes of a real lab, in a synctest bubble. From the upgrade of the
// first node on, refuses decides which packets are lost.
func FakeTrip(t *testing.T, dir string, refuses func(probe.Probe) bool) Measures {
	w := newWorld()
	w.upgrade.Paths = small{component: FakeComponent}.paths(guestUDPEvery, guestOtherEvery, true)
	w.upgrade.Roll = func(_ context.Context, _ *framework.Run, node, version string) error {
		if node == w.upgrade.Nodes[0] && version == "2" {
			for _, p := range w.upgrade.probes() {
				if refuses(p) {
					w.loses(p.Name, time.Hour)
				}
			}
		}
		time.Sleep(3 * time.Second)
		return nil
	}
	declarations[FakeComponent] = func(string, string, Settings) (Upgrade, error) { return w.upgrade, nil }
	t.Cleanup(func() { delete(declarations, FakeComponent) })
	return must.Get(w.run(t.Context(), t, dir))(t)
}

func declared(t *testing.T, component, from, to string, s Settings) Upgrade {
	t.Helper()
	return must.Get(Of(component, from, to, s))(t)
}

// ReadValues reads values of a chart from a file in testdata.
func ReadValues(t *testing.T, name string) map[string]any {
	t.Helper()
	return must.Get(placeholder.Values{}.Map(must.Read(t, "testdata/"+name+".yaml")))(t)
}
