package images

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// What is told of an image is what go.sum has of the module that it was built from.
func TestTestedModules(t *testing.T) {
	c := must.Get(Open(".."))(t)
	const agent, probe = "quay.io/cilium/cilium:v1.12.0", "relapse.dev/probe:dev"
	modules := must.Get(c.TestedModules(context.Background(), []string{agent, probe}))(t)
	if len(modules) != 1 || modules[0].Ref != agent || modules[0].Path != "github.com/cilium/cilium" || modules[0].Version.Version != "v1.12.0" {
		t.Fatalf("%+v", modules)
	}
	r, _ := c.Recipe(agent)
	sums := must.Read(t, r.module("").sum())
	if want := "github.com/cilium/cilium v1.12.0 " + modules[0].Sum + "\n"; !strings.HasPrefix(modules[0].Sum, "h1:") || !strings.Contains(string(sums), want) {
		t.Errorf("%s does not hold %q", filepath.Base(r.module("").sum()), want)
	}
	must.Fail(t, must.Err(c.TestedModules(context.Background(), []string{"no.such/image:1"})))
}
