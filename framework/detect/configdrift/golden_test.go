package configdrift

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/topology/must"
)

// TestUpgradesOfCharts judges the ConfigMaps that the vendor's charts render from their own default
// values. TestConfigMaps, a lab test, makes them again.
func TestUpgradesOfCharts(t *testing.T) {
	for _, tt := range []struct{ from, to string }{{"1.18.4", "1.19.5"}, {"1.11.6", "1.19.5"}} {
		t.Run(tt.from+" to "+tt.to, func(t *testing.T) {
			text := must.Read(t, filepath.Join("testdata", tt.from+".yaml"))
			var config map[string]string
			must.NoError(t, yaml.Unmarshal(text, &config))
			var got strings.Builder
			for _, d := range must.Get(Cilium().Compare(Setup{tt.from, config}, Setup{tt.to, config}))(t) {
				state := map[bool]string{true: "latent", false: "hint"}[d.Changed()]
				fmt.Fprintf(&got, "%s %s (%s)\n  %s\n", state, d.Kind, d.Key, d.Says)
			}
			goldentest.Compare(t, tt.from+"-"+tt.to+".golden", got.String())
		})
	}
}
