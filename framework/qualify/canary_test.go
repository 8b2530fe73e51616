package qualify

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/component/metallb"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/must"
	"sigs.k8s.io/yaml"
)

// canaries are recognizable texts or numbers, by the path of the value that each replaces.
type canaries map[string]string

var realValue = regexp.MustCompile(`(^|\.)(routingMode|kubeProxyReplacement|ipam\.mode|mode|type|kind|apiVersion|name|namespace|addresses)$`)

func (c canaries) sow(path string, value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = c.sow(strings.TrimPrefix(path+"."+key, "."), v[key])
		}
	case []any:
		for i := range v {
			v[i] = c.sow(path, v[i])
		}
	case nil, bool:
	default:
		if realValue.MatchString(path) {
			return value
		}
		if _, text := value.(string); text {
			canary := fmt.Sprintf("canary%dx", len(c))
			c[canary] = path
			return canary
		}
		c[fmt.Sprint(7300001+len(c))] = path
		return int64(7300000 + len(c))
	}
	return value
}

// printed are the paths whose canaries a qualification prints or stores.
func (c canaries) printed(t *testing.T, r *Runner) map[string]bool {
	t.Helper()
	dir := t.TempDir()
	r.inputs.Path = noPath
	must.NoError(t, r.Result().Write(dir))
	var all strings.Builder
	r.WritePlan(&all)
	for _, file := range []string{FileJSON, FileMarkdown, FileText, FileJUnit} {
		all.Write(must.Read(t, filepath.Join(dir, file)))
	}
	paths := map[string]bool{}
	for _, canary := range regexp.MustCompile(`canary\d+x|\b73\d{5}\b`).FindAllString(all.String(), -1) {
		if path := c[canary]; path != "" {
			paths[path] = true
		}
	}
	return paths
}

// Each text and number of real files is replaced by a canary. Only the paths in testdata/canaries.txt may be stored.
func TestCanaries(t *testing.T) {
	printed, sown := map[string]bool{}, 0
	for _, file := range []string{"cilium-07.yaml", "cilium-12.yaml", "cilium-16.yaml", "cilium-19.yaml"} {
		c := canaries{}
		users := must.Get(placeholder.Values{}.Map(must.Read(t, "testdata/canary/"+file)))(t)
		c.sow("", users)
		for _, path := range []string{"extraContainers", "extraEnv", "extraObjects", "imagePullSecrets"} { // no file has them
			users[path] = []any{map[string]any{"value": c.sow(path+".value", "text")}}
		}
		v := must.Get(adapted(t, string(must.Get(yaml.Marshal(users))(t)), "encryption", "netkit"))(t)
		before, after := map[string]string{}, map[string]string{} // keys that one or the other chart renders from leaves
		for canary, path := range c {
			before["old "+path], after["new "+path] = "x "+canary+",y", canary
		}
		v.rendered.compare(before, after, users, nil)
		r := must.Get(New(valued(t, v), catalogue))(t)
		sown += len(c)
		maps.Copy(printed, c.printed(t, r))
	}
	for _, file := range []string{"metallb-06.yaml", "metallb-10.yaml"} {
		c := canaries{}
		objects := must.Get(placeholder.Values{"name": "n", "pools": "192.0.2.0/28"}.Documents(must.Read(t, "testdata/canary/"+file)))(t)
		var all []string
		for _, o := range objects {
			if o["kind"] == "BGPPeer" {
				spec, _ := o["spec"].(map[string]any)
				spec["password"], spec["passwordSecret"], spec["nodeSelectors"] = "x", map[string]any{"name": "x"}, []any{map[string]any{"matchLabels": map[string]any{"x": "y"}}}
			}
			all = append(all, string(must.Get(yaml.Marshal(c.sow(fmt.Sprint(o["kind"]), o)))(t)))
		}
		users := map[string]any{"speaker": map[string]any{"extraContainers": []any{map[string]any{"env": "x"}}, "image": map[string]any{"tag": "x"}}, "loadBalancerClass": "x"}
		c.sow("", users)
		lab, replaced := metallb.Adapt(users, "0.14.8", "0.15.3")
		r := must.Get(New(Request{
			Component: "metallb", From: "0.14.8", To: "0.15.3", Thresholds: bounds, Command: again, Settings: upgrade.Settings{Manifests: strings.Join(all, "---\n")},
			Values: &Values{Sources: []string{"my.yaml"}, BGP: metallb.FRR, Replaced: replaced, lab: lab},
		}, catalogue))(t)
		sown += len(c)
		maps.Copy(printed, c.printed(t, r))
	}
	must.Equal(t, "a hundred canaries", true, sown >= 100)
	goldentest.Compare(t, "canaries.txt", strings.Join(slices.Sorted(maps.Keys(printed)), "\n")+"\n")
}

// A key that no program of the vendor reads may be a secret.
func TestCanariesOfConfigMap(t *testing.T) {
	inputs := fine()
	inputs.From, inputs.To = "1.11.6", "1.12.4"
	keys := map[string]string{"bpf-lb-algorithm": "canary1x", "our-own-key": "canary2x"}
	inputs.Configuration = must.Get(compared(configdrift.Cilium(), inputs, keys))(t)
	says := fmt.Sprint(inputs.Configuration.Drifts, Judge(inputs, bounds, again))
	must.Contain(t, says, "our-own-key is set")
	must.Equal(t, "the value in "+says, 0, strings.Count(says, "canary2x"))
}
