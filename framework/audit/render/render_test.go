package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/net/html"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)

func one(id string, state detect.State, detector, kind string, object detect.Object) audit.Finding {
	return audit.Finding{ID: id, Finding: detect.Finding{Detector: detector, Kind: kind, State: state, Object: object, Says: "It is " + string(state) + "."}}
}

// full is a result in which no field is empty.
func full() audit.Result {
	active := one("2edadcd36f84", detect.Active, "route-ownership", "unannounced", detect.Prefix(netip.MustParsePrefix("10.5.115.0/24")))
	active.Owner, active.Announcer, active.Routers, active.Pods = "master2", "master1", []string{"tor1", "tor2"}, []string{"default/web"}
	active.Layers = []snapshot.Statement{
		{Layer: snapshot.Agent, Where: "CiliumNode.spec.ipam.podCIDRs", Object: "10.5.115.0/24", Node: "master2", Says: "master2"},
		{Layer: snapshot.RIB, Where: "tor1", Object: "10.5.115.0/24", Says: "no route"},
	}
	active.MoreLayers = 1
	active.Again = []audit.Command{{Run: "kubectl get ciliumnodes.cilium.io/master2"}, {On: "tor1", Run: "vtysh -c 'show bgp ipv4 unicast 10.5.115.0/24'"}}
	active.Incidents = []audit.Incident{{Name: "node-drain", Describe: "relapse describe node-drain", Remedies: []string{"a static route", "restarting the agents does not help"}}}
	return audit.Result{
		Schema: audit.Schema, Relapse: "v0.1.0", Began: began, Ended: began.Add(4 * time.Second), Reads: 2, Nodes: 3, Routers: []string{"tor1", "tor2"},
		Unread:    []snapshot.Missing{{Source: "FIB of tor1", Reason: "running ssh tor1: exit status 255: Permission denied (publickey)."}},
		Ran:       []string{"route-ownership", "service-route", "image-pin"},
		NotRun:    []audit.NotRun{{Detector: "image-pin", Part: "moved tags", Lacks: "what the registry has"}, {Detector: "snat", Lacks: "NAT rules of the nodes"}},
		NotJudged: []detect.Gap{{Says: "tor2 has no route to pod ranges of master3.", Open: true}, {Says: "IPv6 is not judged."}},
		Findings: []audit.Finding{
			active,
			one("000000000001", detect.Pending, "service-route", "no-route", detect.Prefix(netip.MustParsePrefix("192.0.2.7/32"))),
			one("000000000002", detect.Latent, "image-pin", "latest-tag", detect.Named("DaemonSet kube-system/kube-router, container kube-router")),
			one("000000000003", detect.Hint, "config-drift", "unknown", detect.Named("ConfigMap kube-system/cilium-config, tunel")),
		},
		Once: []audit.Finding{one("000000000004", detect.Active, "route-ownership", "twin-range", detect.Prefix(netip.MustParsePrefix("10.5.116.0/24")))},
		Suppressed: []audit.Suppressed{{
			Finding: one("000000000005", detect.Latent, "image-pin", "untagged", detect.Named("Deployment lab/a, container a")),
			By:      audit.Suppression{ID: "000000000005", Reason: "a lab", Expires: "2026-12-31", Owner: "net", Line: 3},
		}},
		Unused: []audit.Suppression{{Detector: "image-pin", Kind: "*", Object: "gone", Reason: "r", Expires: "2026-12-31", Line: 4}},
	}
}

// quiet is the result of an audit that has read all, and found nothing.
func quiet() audit.Result {
	return audit.Result{
		Schema: audit.Schema, Began: began, Ended: began.Add(4 * time.Second), Reads: 2, Nodes: 3, Routers: []string{"tor1"},
		Unread: []snapshot.Missing{}, Ran: []string{"route-ownership"}, NotRun: []audit.NotRun{}, NotJudged: []detect.Gap{}, Findings: []audit.Finding{}, Once: []audit.Finding{},
	}
}

func written(t *testing.T, format string, r audit.Result) string {
	t.Helper()
	var out bytes.Buffer
	must.NoError(t, Write(&out, format, r))
	return out.String()
}

func TestGolden(t *testing.T) {
	for format, name := range map[string]string{
		"text": "audit.txt", "json": "audit.json", "yaml": "audit.yaml", "sarif": "audit.sarif", "openmetrics": "audit.prom", "html": "audit.html",
	} {
		got := written(t, format, full())
		if format == "html" {
			got = regexp.MustCompile(`(?s)<style>.*?</style>`).ReplaceAllString(got, "<style/>") // the style of the report page
		}
		goldentest.Compare(t, name, got)
		must.Equal(t, "twice, "+format, true, format == "html" || written(t, format, full()) == got)
	}
	must.Fail(t, Write(&bytes.Buffer{}, "toml", full()), "toml")
}

// Each gap and each finding is in each format. OpenMetrics has the number of gaps, because labels have no sentences.
func TestNothingIsLost(t *testing.T) {
	for _, format := range Formats() {
		text := html.UnescapeString(written(t, format, full()))
		for _, want := range []string{
			"FIB of tor1", "moved tags", "snat", "tor2 has no route to pod ranges of master3.", "IPv6 is not judged.",
			"2edadcd36f84", "000000000001", "000000000002", "000000000003", "000000000004", "000000000005", "a lab",
		} {
			if sentence := strings.HasSuffix(want, ".") || want == "a lab"; format != "openmetrics" || !sentence {
				must.Contain(t, text, want)
			}
		}
	}
}

// In each format a program can see whether an audit is without finding and not open.
func TestAlarms(t *testing.T) {
	with := func(change func(*audit.Result)) audit.Result {
		r := quiet()
		change(&r)
		return r
	}
	finding := func(state detect.State) audit.Finding {
		return one("2edadcd36f84", state, "route-ownership", "unannounced", detect.Named("a"))
	}
	for _, test := range []struct {
		name                 string
		r                    audit.Result
		successful, complete bool
		levels               []string // of results and notifications
	}{
		{"nothing", quiet(), true, true, nil},
		{"an unread source", with(func(r *audit.Result) { r.Unread = []snapshot.Missing{{Source: "Nodes", Reason: "forbidden"}} }), false, false, []string{"error"}},
		{"an open gap", with(func(r *audit.Result) { r.NotJudged = []detect.Gap{{Says: "a", Open: true}} }), true, false, []string{"warning"}},
		{"a gap", with(func(r *audit.Result) { r.NotJudged = []detect.Gap{{Says: "a"}} }), true, true, []string{"note"}},
		{"a detector that did not run", with(func(r *audit.Result) { r.NotRun = []audit.NotRun{{Detector: "snat", Lacks: "a"}} }), true, true, []string{"note"}},
		{"seen once", with(func(r *audit.Result) { r.Once = []audit.Finding{finding(detect.Active)} }), true, false, []string{"warning"}},
		{"settling", with(func(r *audit.Result) { r.Findings = []audit.Finding{finding(detect.Pending)} }), true, false, []string{"warning"}},
		{"active", with(func(r *audit.Result) { r.Findings = []audit.Finding{finding(detect.Active)} }), true, true, []string{"error"}},
		{"latent", with(func(r *audit.Result) { r.Findings = []audit.Finding{finding(detect.Latent)} }), true, true, []string{"warning"}},
		{"a hint", with(func(r *audit.Result) { r.Findings = []audit.Finding{finding(detect.Hint)} }), true, true, []string{"note"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			run := sarifOf(t, test.r)
			var levels []string
			for _, r := range run.Results {
				levels = append(levels, r.Level)
			}
			for _, n := range run.Invocations[0].ToolExecutionNotifications {
				levels = append(levels, n.Level)
			}
			must.Equal(t, "SARIF: levels", test.levels, levels)
			must.Equal(t, "SARIF: success", test.successful, run.Invocations[0].ExecutionSuccessful)
			must.Equal(t, "OpenMetrics: complete", number(test.complete), parsed(t, written(t, "openmetrics", test.r))[complete])
		})
	}
}

func parsed(t *testing.T, text string) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	values := map[string]float64{}
	for name, f := range must.Get(parser.TextToMetricFamilies(strings.NewReader(text)))(t) {
		for _, m := range f.Metric {
			key := name
			for _, l := range m.Label {
				key += fmt.Sprintf(" %s=%q", l.GetName(), l.GetValue())
			}
			_, twice := values[key]
			must.Equal(t, key, false, twice)
			values[key] = m.GetGauge().GetValue()
		}
	}
	must.Contain(t, text+"end", "# EOF\nend")
	return values
}

// The golden file has the other metrics.
func TestOpenMetrics(t *testing.T) {
	r := full()
	r.Once = append(r.Once, r.Once[0]) // the same finding on another router
	got := parsed(t, written(t, "openmetrics", r))
	must.Equal(t, "once", 2, got[`relapse_audit_findings state="once"`])
	got = parsed(t, written(t, "openmetrics", quiet()))
	value, there := got[`relapse_audit_findings state="active"`]
	must.Equal(t, "active", true, there && value == 0)
}

// The alerts and the dashboard use only metrics and labels that an audit writes.
func TestRules(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	must.NoError(t, yaml.Unmarshal([]byte(Rules), &rules))
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	must.NoError(t, json.Unmarshal(must.Get(os.ReadFile("dashboard.json"))(t), &dashboard))
	var asked []string
	for _, r := range rules.Groups[0].Rules {
		asked = append(asked, r.Expr)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			asked = append(asked, target.Expr)
		}
	}
	written := written(t, "openmetrics", full())
	for _, expr := range asked {
		metrics := regexp.MustCompile(`relapse_\w+(\{\w+="\w+"\})?`).FindAllString(expr, -1)
		must.Equal(t, expr+" reads a metric", true, len(metrics) > 0)
		for _, m := range metrics {
			name, label, _ := strings.Cut(strings.TrimSuffix(m, "}"), "{")
			must.Equal(t, expr+" has "+m, true, regexp.MustCompile(`(?m)^`+name+`(\{| ).*`+label).MatchString(written))
		}
	}
}

// sarifRun is the part of SARIF's schema (OASIS, sarif-schema-2.1.0.json) that this test reads.
type sarifRun struct {
	Tool struct {
		Driver struct{ Rules, Notifications []rule }
	}
	Invocations []struct {
		ExecutionSuccessful        bool
		ToolExecutionNotifications []struct {
			Level      string
			Descriptor struct {
				ID    string
				Index int
			}
		}
	}
	Results []struct {
		Locations []struct {
			PhysicalLocation struct {
				ArtifactLocation struct{ URI string }
				Region           struct{ StartLine int }
			}
		}
		RuleID, Level       string
		RuleIndex           int
		PartialFingerprints map[string]string
	}
}

type rule struct {
	ID, Name                                string
	ShortDescription, FullDescription, Help struct{ Text string }
	Properties                              map[string]any
}

func sarifOf(t *testing.T, r audit.Result) sarifRun {
	t.Helper()
	var log struct{ Runs []sarifRun }
	must.NoError(t, json.Unmarshal([]byte(written(t, "sarif", r)), &log))
	return log.Runs[0]
}

// GitHub's code scanning requires more ("SARIF support for code scanning": supported properties): texts of a rule, its
// severity as a number in a string, and a relative path and a line of each result.
func TestSARIFOfGitHub(t *testing.T) {
	run := sarifOf(t, full())
	for _, r := range run.Tool.Driver.Rules {
		severity, err := strconv.ParseFloat(r.Properties["security-severity"].(string), 64)
		if err != nil || severity <= 0 || severity > 10 || r.ShortDescription.Text == "" || r.FullDescription.Text == "" || r.Help.Text == "" || len(r.Name) > 255 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	for _, r := range run.Results {
		at := r.Locations[0].PhysicalLocation
		u := must.Get(url.Parse(at.ArtifactLocation.URI))(t)
		absolute := u.IsAbs() || strings.HasPrefix(u.Path, "/")
		must.Equal(t, u, false, absolute || strings.Contains(u.Path, "..") || u.RawQuery != "")
		must.Equal(t, at, 1, at.Region.StartLine)
	}
	for name, want := range map[string]string{
		"DaemonSet lab/web": "cluster/DaemonSet/lab/web.yaml", "10.5.112.0/24": "cluster/10.5.112.0/24.yaml",
		"../../a?b": "cluster/a%3Fb.yaml", "kube-proxy (edge1)": "cluster/kube-proxy/%28edge1%29.yaml",
	} {
		must.Equal(t, name, want, file(detect.Named(name)))
	}
}

// Indices match names, and rules and findings are unique. The golden file has the properties.
func TestSARIF(t *testing.T) {
	r := full()
	again := one("000000000006", detect.Active, "route-ownership", "unannounced", detect.Named("b")) // of an existing rule
	r.Once = append(r.Once, again)
	run := sarifOf(t, r)
	seen := map[string]bool{} // rules and findings
	for _, r := range run.Tool.Driver.Rules {
		must.Equal(t, r.ID, false, seen[r.ID])
		seen[r.ID] = true
	}
	for _, r := range run.Results {
		id := r.PartialFingerprints["relapseFinding/v1"]
		must.Equal(t, r, [...]any{r.RuleID, 12, false}, [...]any{run.Tool.Driver.Rules[r.RuleIndex].ID, len(id), seen[id]})
		seen[id] = true
	}
	for _, n := range run.Invocations[0].ToolExecutionNotifications {
		must.Equal(t, n, n.Descriptor.ID, run.Tool.Driver.Notifications[n.Descriptor.Index].ID)
	}
}

// Hostile names of a cluster are escaped for terminals and browsers, and break no format.
func TestHostileNames(t *testing.T) {
	const name = "a\x1b]0;owned\a\u009b2J\u202e\x00\uffff<script>alert(1)</script>]]>\"' onload=x\nb\\ {{.}}"
	r := full()
	r.Routers, r.Unread, r.NotJudged[0].Says = []string{name}, []snapshot.Missing{{Source: name, Reason: name}}, name
	r.NotRun[0].Lacks = name
	r.Suppressed[0].By.Reason, r.Suppressed[0].Says = name, name
	f := &r.Findings[0]
	f.Object, f.Owner, f.Announcer, f.Routers, f.Pods, f.Says = detect.Named(name), name, name, []string{name}, []string{name}, name
	f.Layers[0].Where, f.Layers[0].Says, f.Again[0].Run, f.Again[1].On = name, name, name, name
	for _, format := range Formats() {
		text := written(t, format, r)
		must.Equal(t, format, text, plain.Text(text))
		switch format {
		case "json", "sarif":
			must.Equal(t, format, true, json.Valid([]byte(text)))
		case "openmetrics":
			parsed(t, text)
		case "html":
			must.Equal(t, "scripts", [...]int{0, 0}, [...]int{elements(t, text, "script"), strings.Count(text, "onload=x\"")})
		}
	}
	var back audit.Result
	must.NoError(t, json.Unmarshal([]byte(written(t, "json", r)), &back))
	must.Equal(t, "the owner, as a program reads it", strings.ToValidUTF8(name, "\ufffd"), back.Findings[0].Owner)
}

// elements counts the elements of a name in a page, and fails if it loads anything.
func elements(t *testing.T, text, name string) (n int) {
	t.Helper()
	for node := range must.Get(html.Parse(strings.NewReader(text)))(t).Descendants() {
		if node.Type != html.ElementNode {
			continue
		}
		if node.Data == name {
			n++
		}
		for _, a := range node.Attr {
			if a.Key == "src" || strings.HasPrefix(a.Key, "on") || a.Key == "href" && !strings.HasPrefix(a.Val, "#") {
				t.Errorf("<%s %s=%q>", node.Data, a.Key, a.Val)
			}
		}
	}
	return n
}
