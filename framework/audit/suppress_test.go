package audit

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestParseSuppressions(t *testing.T) {
	const rest = "reason: r, expires: 2027-01-31}"
	for _, test := range []struct {
		name, text string
		want       []Suppression
		says       string // in the error
	}{
		{name: "both forms",
			text: "# ours\n- {id: 123456789012, reason: 'moves on Monday', expires: 2027-01-31, owner: net}\n- detector: image-pin\n  kind: latest-tag\n  object: DaemonSet kube-system/*\n  reason: r\n  expires: \"2027-02-01\"\n",
			want: []Suppression{
				{ID: "123456789012", Reason: "moves on Monday", Expires: "2027-01-31", Owner: "net", Line: 2},
				{Detector: "image-pin", Kind: "latest-tag", Object: "DaemonSet kube-system/*", Reason: "r", Expires: "2027-02-01", Line: 3},
			}},
		{name: "an ID that looks like a number", text: "- {id: 12e456789012, " + rest, want: []Suppression{{ID: "12e456789012", Reason: "r", Expires: "2027-01-31", Line: 1}}},
		{name: "empty"},
		{name: "an empty list", text: "[]", want: []Suppression{}},
		{name: "a comment alone", text: "# none\n"},
		{name: "no list", text: "id: 2edadcd36f84", says: "s.yaml: line 1: cannot unmarshal !!map; expected a list of suppressions"},
		{name: "no YAML", text: "- [", says: "s.yaml: line 1: did not find expected node content; expected a list"},
		{name: "two documents", text: "[]\n---\n[]", says: "s.yaml: expected one list, and nothing after it"},
		{name: "no mapping", text: "- 2edadcd36f84", says: "s.yaml: line 1: cannot unmarshal !!str `2edadcd...`; expected a list of suppressions, each with id"},
		{name: "an unknown field", text: "- id: 2edadcd36f84\n  resaon: r", says: "s.yaml: line 2: field resaon not found; expected a list of suppressions, each with id"},
		{name: "a field twice", text: "- id: 2edadcd36f84\n  id: 2edadcd36f84", says: `s.yaml: line 2: mapping key "id" already defined at line 1; expected`},
		{name: "an alias", text: "- {id: &a 2edadcd36f84, " + rest + "\n- {id: *a, " + rest, says: "s.yaml: line 2: line 1 suppresses 2edadcd36f84 already"},
		{name: "no reason", text: "- {id: 2edadcd36f84, expires: 2027-01-31}", says: "s.yaml: line 1: field reason is missing: expected why"},
		{name: "a blank reason", text: "- {id: 2edadcd36f84, reason: ' ', expires: 2027-01-31}", says: "s.yaml: line 1: field reason is missing"},
		{name: "no date", text: "- {id: 2edadcd36f84, reason: r}", says: `s.yaml: line 1: field expires: "": expected the last day, such as 2027-01-31`},
		{name: "active as well", text: "- {id: 2edadcd36f84, active: true, " + rest, want: []Suppression{{ID: "2edadcd36f84", Active: true, Reason: "r", Expires: "2027-01-31", Line: 1}}},
		{name: "active, perhaps", text: "- {id: 2edadcd36f84, active: perhaps, " + rest, says: "s.yaml: line 1: cannot unmarshal !!str `perhaps`; expected"},
		{name: "of routers", text: "- {id: 2edadcd36f84, routers: [tor1, '2'], " + rest, want: []Suppression{{ID: "2edadcd36f84", Routers: []string{"tor1", "2"}, Reason: "r", Expires: "2027-01-31", Line: 1}}},
		{name: "each router for itself", text: "- {id: 2edadcd36f84, routers: [tor1], " + rest + "\n- {id: 2edadcd36f84, routers: [tor2], " + rest, want: []Suppression{
			{ID: "2edadcd36f84", Routers: []string{"tor1"}, Reason: "r", Expires: "2027-01-31", Line: 1}, {ID: "2edadcd36f84", Routers: []string{"tor2"}, Reason: "r", Expires: "2027-01-31", Line: 2},
		}},
		{name: "one router, and no list", text: "- {id: 2edadcd36f84, routers: tor1, " + rest, says: "s.yaml: line 1: cannot unmarshal !!str `tor1`; expected"},
		{name: "no router", text: "- {id: 2edadcd36f84, routers: [], " + rest, says: "s.yaml: line 1: field routers: expected the names of routers"},
		{name: "a router without a name", text: "- {id: 2edadcd36f84, routers: [~], " + rest, says: "field routers: expected the names of routers"},
		{name: "no such date", text: "- id: 2edadcd36f84\n  reason: r\n  expires: 2027-02-30", says: `s.yaml: line 1: field expires: "2027-02-30": expected the last day`},
		{name: "no ID", text: "- {id: 2EDADCD36F84, " + rest, says: `field id: "2EDADCD36F84": expected the 12 hexadecimal digits`},
		{name: "nothing", text: "- {" + rest, says: "fields id, detector and gap are missing"},
		{name: "both in one", text: "- {id: 2edadcd36f84, kind: a, " + rest, says: "field id: expected either id, or detector, kind and object"},
		{name: "a detector that is near", text: "- {detector: image-pins, kind: a, object: a, " + rest, says: `field detector: "image-pins"; nearest is "image-pin": expected the name of one detector`},
		{name: "a detector by the name that it had", text: "- {detector: ipvs-convergence, kind: a, object: a, " + rest,
			want: []Suppression{{Detector: "proxy-convergence", Kind: "a", Object: "a", Reason: "r", Expires: "2027-01-31", Line: 1}}},
		{name: "all detectors", text: "- {detector: '*', kind: '*', object: '*', " + rest, says: `field detector: "*"; there are ["config-drift" "gone-endpoints"`},
		{name: "no kind", text: "- {detector: image-pin, object: a, " + rest, says: "field kind is missing"},
		{name: "no object", text: "- {detector: image-pin, kind: a, " + rest, says: "field object is missing"},
		{name: "a gap", text: "- {gap: it accepts *, object: worker*, routers: [tor1], " + rest, want: []Suppression{{Gap: "it accepts *", Object: "worker*", Routers: []string{"tor1"}, Reason: "r", Expires: "2027-01-31", Line: 1}}},
		{name: "a gap without object", text: "- {gap: a, " + rest, says: "field object is missing"},
		{name: "a gap of a detector", text: "- {gap: a, object: a, detector: image-pin, " + rest, says: "field gap: expected either gap and object, or detector"},
		{name: "twice", text: "- {id: 2edadcd36f84, " + rest + "\n- {id: 2edadcd36f84, " + rest, says: "s.yaml: line 2: line 1 suppresses 2edadcd36f84 already"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParseSuppressions("s.yaml", []byte(test.text))
			if test.says != "" {
				must.Fail(t, err, test.says)
				must.Equal(t, "lines", 0, strings.Count(fmt.Sprint(err), "\n"))
				return
			}
			must.NoError(t, err)
			must.Equal(t, "", test.want, got)
		})
	}
}

// An accepted suppression has a reason, a date and something to match.
func FuzzParseSuppressions(f *testing.F) {
	f.Add("- {id: 2edadcd36f84, reason: r, expires: 2027-01-31}")
	f.Add("- {detector: image-pin, kind: '*', object: 'DaemonSet kube-system/*', reason: r, expires: 2027-01-31, owner: o}")
	f.Add("- &a {id: *a, <<: *a}")
	f.Add("- {id: 2edadcd36f84, routers: [tor1, *a], reason: r, expires: 2027-01-31}")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := ParseSuppressions("s.yaml", []byte(text))
		if err != nil {
			must.Equal(t, err, [...]int{0, 0}, [...]int{len(all), strings.Count(err.Error(), "\n")})
			must.Contain(t, "begins "+err.Error(), "begins s.yaml: ")
			return
		}
		for _, s := range all {
			must.Get(time.Parse(time.DateOnly, s.Expires))(t)
			must.Equal(t, s, true, strings.TrimSpace(s.Reason) != "" && s.Line > 0 && (s.ID == "") != (s.Detector == ""))
			s.matches(Finding{ID: "2edadcd36f84"})
		}
	})
}

func TestSuppress(t *testing.T) {
	at := time.Date(2027, 1, 31, 23, 59, 59, 0, time.UTC)
	finding := func(state detect.State, detector, kind, object string) Finding {
		f := detect.Finding{Detector: detector, Kind: kind, State: state, Object: detect.Named(object)}
		return Finding{ID: id(f), Finding: f}
	}
	latest := finding(detect.Latent, "image-pin", "latest-tag", "DaemonSet kube-system/a, container a")
	active := finding(detect.Active, "route-ownership", "unannounced", "10.5.115.0/24")
	active.Routers = []string{"tor1", "tor2"}
	kind := func(expires, kind, object string) Suppression {
		return Suppression{Detector: "image-pin", Kind: kind, Object: object, Reason: "r.", Expires: expires, Line: 1}
	}
	for _, test := range []struct {
		name               string
		all                []Suppression
		holds, once        []string
		suppressed, unused int
	}{
		{"none", nil, []string{"active unannounced", "latent latest-tag"}, []string{"active unannounced"}, 0, 0},
		{"by ID, in both reads and in one", []Suppression{{ID: active.ID, Active: true, Expires: "2027-01-31"}}, []string{"latent latest-tag"}, nil, 2, 0},
		{"of an active one, which counts all the same", []Suppression{{ID: active.ID, Expires: "2027-01-31"}}, []string{"active unannounced", "latent latest-tag"}, []string{"active unannounced"}, 0, 0},
		{"on both of its routers", []Suppression{{ID: active.ID, Active: true, Expires: "2027-01-31", Routers: []string{"tor2", "tor1", "tor3"}}}, []string{"latent latest-tag"}, nil, 2, 0},
		{"on one of its routers", []Suppression{{ID: active.ID, Active: true, Expires: "2027-01-31", Routers: []string{"tor1"}}}, []string{"active unannounced", "latent latest-tag"}, []string{"active unannounced"}, 0, 0},
		{"on a router, of what has none", []Suppression{{ID: latest.ID, Expires: "2027-01-31", Routers: []string{"tor1"}}}, []string{"active unannounced", "latent latest-tag"}, []string{"active unannounced"}, 0, 0},
		{"by kind and object", []Suppression{kind("2027-01-31", "latest-*", "DaemonSet kube-system/*")}, []string{"active unannounced"}, []string{"active unannounced"}, 1, 0},
		{"all of a detector", []Suppression{kind("2027-01-31", "*", "*")}, []string{"active unannounced"}, []string{"active unannounced"}, 1, 0},
		{"another object", []Suppression{kind("2027-01-31", "*", "kube-system/*")}, []string{"active unannounced", "latent latest-tag"}, []string{"active unannounced"}, 0, 1},
		{"a pattern is no expression", []Suppression{kind("2027-01-31", "latest.tag", "*")}, []string{"active unannounced", "latent latest-tag"}, []string{"active unannounced"}, 0, 1},
		{"expired", []Suppression{kind("2027-01-30", "*", "*")}, []string{"active unannounced", "latent latest-tag", "latent expired"}, []string{"active unannounced"}, 0, 0},
		{"one that holds and one that has expired", []Suppression{kind("2027-01-30", "*", "*"), {ID: latest.ID, Expires: "2027-03-01"}}, []string{"active unannounced", "latent expired"}, []string{"active unannounced"}, 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			// The reads are older than the suppressions.
			r := Result{Ended: at.AddDate(-1, 0, 0), Findings: []Finding{active, latest}, Once: []Finding{active}, Unread: []snapshot.Missing{{Source: "FIB of tor1", Reason: "no"}}}
			r.Suppress(test.all, at)
			says := func(f Finding) string { return fmt.Sprint(f.State, " ", f.Kind) }
			must.Equal(t, "findings", test.holds, each.Of(r.Findings, says))
			must.Equal(t, "seen once", test.once, each.Of(r.Once, says))
			want := [...]int{test.suppressed, test.unused, 1}
			must.Equal(t, "suppressed, unused, unread", want, [...]int{len(r.Suppressed), len(r.Unused), len(r.Unread)})
			must.Equal(t, "open", true, r.Open())
			must.Get(json.Marshal(r))(t)
		})
	}
}

// A finding that is suppressed by its ID stays suppressed after its detector was renamed.
func TestSuppressRenamed(t *testing.T) {
	f := detect.Finding{Detector: "ipvs-convergence", Kind: detect.FrozenSync, State: detect.Latent, Object: detect.Named("kube-proxy"), Announcer: "edge"}
	s := Suppression{ID: id(f)}
	f.Detector = "proxy-convergence"
	must.Equal(t, "matches", true, s.matches(Finding{ID: id(f), Finding: f}))
	f.Announcer = "core"
	must.Equal(t, "matches of another node", false, s.matches(Finding{ID: id(f), Finding: f}))
}

// The ID of an expired suppression's finding does not depend on the day and on the rest of the file.
func TestExpiredID(t *testing.T) {
	finding := func(at time.Time, line int) Finding {
		var r Result
		r.Suppress([]Suppression{{ID: "2edadcd36f84", Reason: "r", Expires: "2027-01-31", Line: line}}, at)
		return r.Findings[0]
	}
	a, b := finding(time.Date(2027, 2, 1, 0, 0, 0, 0, time.UTC), 1), finding(time.Date(2028, 1, 1, 0, 0, 0, 0, time.UTC), 7)
	must.Equal(t, "ID", a.ID, b.ID)
	must.Contain(t, a.Says, "on line 1 expired after 2027-01-31")
}

// A gap is not open while a suppression matches its reason, all its nodes and all its routers.
func TestSuppressGap(t *testing.T) {
	gap := detect.Gap{Says: "Not judged.", Open: true, Reason: "it accepts fewer", Routers: "tor1", Of: "worker1, worker2"}
	for text, open := range map[string]bool{
		"{gap: it accepts fewer, object: '*', reason: r, expires: 2027-01-31}":          false,
		"{gap: it*, object: worker*, routers: [tor1], reason: r, expires: 2027-01-31}":  false,
		"{gap: another, object: '*', reason: r, expires: 2027-01-31}":                   true,
		"{gap: it*, object: worker1, reason: r, expires: 2027-01-31}":                   true,
		"{gap: it*, object: worker*, routers: [tor2], reason: r, expires: 2027-01-31}":  true,
		"{gap: it*, object: worker*, reason: r, expires: 2026-01-31}":                   true,
		"{detector: image-pin, kind: '*', object: '*', reason: r, expires: 2027-01-31}": true,
	} {
		all := must.Get(ParseSuppressions("s.yaml", []byte("- "+text)))(t)
		r := Result{NotJudged: []detect.Gap{gap}}
		r.Suppress(all, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))
		if r.Open() != open || !open && r.NotJudged[0].Says != "Not judged. Suppressed by line 1 until 2027-01-31." || (len(r.Unused) == 0) == open && !strings.Contains(text, "2026") {
			t.Errorf("%s: %+v, unused %v", text, r.NotJudged, r.Unused)
		}
	}
}
