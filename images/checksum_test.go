package images

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is told of an image is what go.sum has of the module that it was built from.
func TestTestedModules(t *testing.T) {
	c, err := Open("..")
	if err != nil {
		t.Fatal(err)
	}
	const agent, probe = "quay.io/cilium/cilium:v1.12.0", "relapse.dev/probe:dev"
	modules, err := c.TestedModules(context.Background(), []string{agent, probe})
	if err != nil {
		t.Fatal(err)
	}
	if len(modules) != 1 || modules[0].Ref != agent || modules[0].Path != "github.com/cilium/cilium" || modules[0].Version.Version != "v1.12.0" {
		t.Fatalf("%+v", modules)
	}
	r, _ := c.recipe(agent)
	sums, err := os.ReadFile(r.module("").sum())
	if err != nil {
		t.Fatal(err)
	}
	if want := "github.com/cilium/cilium v1.12.0 " + modules[0].Sum + "\n"; !strings.HasPrefix(modules[0].Sum, "h1:") || !strings.Contains(string(sums), want) {
		t.Errorf("%s does not hold %q", filepath.Base(r.module("").sum()), want)
	}
	if _, err := c.TestedModules(context.Background(), []string{"no.such/image:1"}); err == nil {
		t.Error("an image that nobody makes has modules")
	}
}
