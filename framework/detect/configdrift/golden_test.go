package configdrift

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/goldentest"
)

// TestUpgradesOfCharts judges the ConfigMaps that the vendor's charts render from their own default
// values. TestConfigMaps, a lab test, makes them again.
func TestUpgradesOfCharts(t *testing.T) {
	for _, tt := range []struct{ from, to string }{{"1.18.4", "1.19.5"}, {"1.11.6", "1.19.5"}} {
		t.Run(tt.from+" to "+tt.to, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", tt.from+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			var config map[string]string
			if err := yaml.Unmarshal(text, &config); err != nil {
				t.Fatal(err)
			}
			drifts, err := Cilium().Compare(Setup{tt.from, config}, Setup{tt.to, config})
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, d := range drifts {
				fmt.Fprintf(&got, "%s %s (%s)\n", map[bool]string{true: "latent", false: "hint"}[d.Changed()], d.Kind, d.Key)
				fmt.Fprintf(&got, "  %s\n", d.Says)
			}
			goldentest.Compare(t, tt.from+"-"+tt.to+".golden", got.String())
		})
	}
}
