package page

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/net/html"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var began = time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)

func at(ms int64) time.Time { return began.Add(milliseconds(ms)) }

// drained is a run in which a removed node takes another node's range with it: the fault comes at
// 10 s, and the routers lose the route 300 ms later.
func drained() (r report.Report) {
	if err := json.Unmarshal(drainedText, &r); err != nil {
		panic(err)
	}
	return r
}

//go:embed testdata/drained.json
var drainedText []byte

// layers are what the layers say: with or without the node, and the route to a range.
func layers(node1, route bool) snapshot.Snapshot {
	prefix, hop := netip.MustParsePrefix("10.5.115.0/24"), netip.MustParseAddr("10.4.94.23")
	s := snapshot.Snapshot{
		Time: began,
		Nodes: snapshot.List[snapshot.Node]{Read: true, Items: []snapshot.Node{
			{Name: "master2", InternalIPs: []netip.Addr{netip.MustParseAddr("10.4.94.21")}, Ready: true, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.5.114.0/24")}},
		}},
		CiliumNodes: snapshot.List[snapshot.CiliumNode]{Read: true, Items: []snapshot.CiliumNode{{Name: "master2", PodCIDRs: []netip.Prefix{prefix}}}},
	}
	if node1 {
		s.Nodes.Items = append(s.Nodes.Items, snapshot.Node{Name: "node1", InternalIPs: []netip.Addr{hop}, Ready: true, PodCIDRs: []netip.Prefix{prefix}})
	}
	for _, name := range []string{"tor1", "tor2"} {
		r := snapshot.Router{
			Name:      name,
			Paths:     snapshot.List[snapshot.Path]{Read: true},
			Routes:    snapshot.List[snapshot.Route]{Read: true, Items: []snapshot.Route{{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Type: snapshot.RouteUnreachable}}},
			Neighbors: snapshot.List[snapshot.Neighbor]{Read: true},
		}
		if route {
			r.Paths.Items = append(r.Paths.Items, snapshot.Path{Prefix: prefix, NextHop: hop, Best: true})
			r.Routes.Items = append(r.Routes.Items, snapshot.Route{Prefix: prefix, Type: snapshot.RouteUnicast, NextHops: []snapshot.NextHop{{Address: hop, Interface: "eth0"}}})
		}
		s.Routers = append(s.Routers, r)
	}
	return s
}

// packets is the timeline of a probe from 5 s on, one packet each 10 ms. The requests in
// [from, to) are lost.
func packets(name, target string, until, from, to int64) probe.Timeline {
	ends := strings.Split(name, "->")
	s := probe.Stored{Record: probe.Record{
		Probe:  probe.Probe{From: ends[0], To: ends[1], Timeout: time.Second}.WithDefaults(),
		Target: netip.MustParseAddrPort(target), Started: at(5000), Reported: at(until), FarReported: at(until),
	}}
	for ms := int64(5000); ms < until; ms += 10 {
		slot := uint32((ms - 5000) / 10)
		s.Sent.Add(slot)
		if ms < from || ms >= to {
			s.Answered.Add(slot)
			s.Seen.Add(slot)
		}
	}
	return s.At(at(until))
}

// remember writes the record of a variant with the node's removal, as a run does.
func remember(t *testing.T, dir string) {
	t.Helper()
	h := &history.History{}
	h.Create(dir, time.Time{}, history.Begin{Scenario: "node-drain"})
	lost := detect.Finding{Detector: "route-ownership", Kind: "unannounced", State: "active", Object: detect.Prefix(netip.MustParsePrefix("10.5.115.0/24")), Owner: "master2", Routers: []string{"tor1", "tor2"}}
	for _, p := range []struct {
		ms       int64
		snapshot snapshot.Snapshot
		findings []detect.Finding
	}{
		{9000, layers(true, true), nil},
		{10700, layers(false, false), []detect.Finding{lost}},
		{22000, layers(false, false), []detect.Finding{lost}},
		{22500, layers(false, false), nil},
		{23000, layers(false, false), []detect.Finding{lost}},
		{24000, layers(false, false), []detect.Finding{lost}},
	} {
		h.AddPoll(p.snapshot, history.Poll{Began: at(p.ms), Ended: at(p.ms), Findings: p.findings})
	}
	h.AddPackets([]probe.Timeline{packets("outside->master2", "10.5.115.2:7007", 12000, 10300, 12000)})
	h.AddPackets([]probe.Timeline{
		packets("outside->master2", "10.5.115.2:7007", 30000, 10300, 22400), packets("outside->node1", "10.5.112.2:7007", 30000, 0, 0),
	})
	must.NoError(t, h.Close())
}

func folder(t *testing.T, r report.Report) string {
	t.Helper()
	dir := t.TempDir()
	evidence := map[string]any{
		"cilium-1.11.6/01-snapshot-baseline.json":    layers(true, true),
		"cilium-1.11.6/03-snapshot-after-fault.json": layers(false, false),
		"cilium-1.11.6/06-log-tor1.txt":              "a line\n",
		"cilium-1.12.0/01-snapshot-baseline.json":    layers(true, true),
		"cilium-1.12.0/02-snapshot-observed.json":    layers(false, true),
	}
	for name, v := range evidence {
		text, isText := v.(string)
		if !isText {
			text = string(must.Get(json.Marshal(v))(t))
		}
		must.Write(t, filepath.Join(dir, "evidence", name), text)
	}
	remember(t, filepath.Join(dir, "evidence/cilium-1.11.6"))
	must.NoError(t, r.Write(dir))
	return dir
}

type document struct {
	*html.Node
	text string
}

func rendered(t *testing.T, dir string) document {
	t.Helper()
	must.NoError(t, Write(dir, nil))
	return parsed(t, filepath.Join(dir, Name))
}

func parsed(t *testing.T, path string) document {
	t.Helper()
	text := must.Read(t, path)
	return document{must.Get(html.Parse(strings.NewReader(string(text))))(t), string(text)}
}

// all are the elements of a name, or of a class where it begins with a dot.
func (d document) all(what string) []document {
	var found []document
	class, byClass := strings.CutPrefix(what, ".")
	for n := range d.Descendants() {
		if n.Type == html.ElementNode && (!byClass && n.Data == what || byClass && slices.Contains(strings.Fields(attribute(n, "class")), class)) {
			found = append(found, document{n, d.text})
		}
	}
	return found
}

func (d document) first(t *testing.T, what string) document {
	t.Helper()
	all := d.all(what)
	if len(all) == 0 {
		t.Fatalf("there is no %s", what)
	}
	return all[0]
}

// says is the text of an element, its white space folded.
func (d document) says() string {
	var b strings.Builder
	for n := range d.Descendants() {
		switch {
		case n.Type == html.TextNode:
			b.WriteString(n.Data)
		case slices.Contains([]string{"td", "th", "li", "p", "div"}, n.Data):
			b.WriteString(" ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func texts(all []document) []string {
	return each.Of(all, document.says)
}

func TestFirstScreen(t *testing.T) {
	page := rendered(t, folder(t, drained()))
	must.Equal(t, "the sentence", "✕ outside->master2 gets no answer: unannounced at 10.5.115.0/24 (master2, tor1, tor2), since 03:04:10.300 UTC "+
		"(300ms after the fault). ✔ Fastest remedy: static route: traffic was back after 15ms.", page.first(t, "h1").says())
	want := []string{
		"✔ static route 15ms", "✔ Cilium 1.12.0 8.4s no active findings after 9s",
		"? pods made anew not judged expected: recovers; a step broke", "– restart every agent does not help",
	}
	remedies := page.first(t, ".remedies")
	must.Equal(t, "remedies", want, texts(remedies.first(t, "ol").all("li")))
	must.Equal(t, "deleted", []string{"restart every agent"}, texts(remedies.all("del")))
	must.Equal(t, "of the other variants it says", "✔ prevented cilium-1.12.0 fixed, cilium 1.12.0", remedies.first(t, ".others").says())
}

func TestPaths(t *testing.T) {
	page := rendered(t, folder(t, drained()))
	want := []string{
		"outside ╌╌ tor1 ╌╌ master2 outside ━━ tor1 ✕ requests of outside->master2: tor1 has no route to 10.5.115.2 (unreachable 0.0.0.0/0)",
		"outside ╌╌ tor2 ╌╌ master2 outside ━━ tor2 ✕ requests of outside->master2: tor2 has no route to 10.5.115.2 (unreachable 0.0.0.0/0)",
	}
	paths := page.first(t, ".paths")
	must.Equal(t, "it breaks", want, texts(paths.all("li")))
	must.Equal(t, "a member", "tor1 router uplink 10.4.36.239nodes 10.4.94.239", paths.all("tr")[1].says())
}

func TestLayers(t *testing.T) {
	page := rendered(t, folder(t, drained()))
	must.Equal(t, "layers", []string{
		"intended owner, as route-ownership knows it master2 master2 =",
		"API Node.spec.podCIDRs node1 nothing ◀ first disagreement",
		"agent CiliumNode.spec.ipam.podCIDRs master2 master2 =",
		"RIB tor1 next hop 10.4.94.23 (node1) nothing ≠",
		"RIB tor2 next hop 10.4.94.23 (node1) nothing ≠",
		"FIB tor1 via 10.4.94.23 (node1) dev eth0 nothing ≠",
		"FIB tor2 via 10.4.94.23 (node1) dev eth0 nothing ≠",
		"packet outside->master2 none lost 388 of 2000 lost ≠",
	}, texts(page.first(t, ".layers").first(t, "tbody").all("tr")))
}

func TestTimeAxis(t *testing.T) {
	dir := folder(t, drained())
	page := rendered(t, dir)
	axis := page.first(t, ".axis")
	flags := each.Of(axis.all(".flag"), func(f document) string { return f.says() + " " + attribute(f.Node, "style") })
	want := []string{ // 5 s to 30 s
		"F fault left: 20%; top: calc(0 * 1.2rem)", "L first loss left: 21.2%; top: calc(1 * 1.2rem)", "D found left: 22.8%; top: calc(2 * 1.2rem)",
		"R1 restart every agent left: 28%; top: calc(3 * 1.2rem)", "R2 Cilium 1.12.0 left: 36%; top: calc(0 * 1.2rem)",
		"✓2 back left: 69.6%; top: calc(1 * 1.2rem)", "R3 static route left: 76%; top: calc(2 * 1.2rem)", "✓3 back left: 76.06%; top: calc(3 * 1.2rem)",
	}
	must.Equal(t, "flags", want, flags)
	lanes := each.Of(axis.all(".lane"), func(l document) string { return l.first(t, ".name").says() })
	must.Equal(t, "lanes", []string{
		"outside->master2 1210 of 2500 lost", "unannounced 10.5.115.0/24 active",
		"absent-node 10.5.112.0/24 latent from here on",
		"API Node node1 1 change", "API Node.spec.podCIDRs 1 change", "RIB tor1 1 change", "RIB tor2 1 change", "FIB tor1 1 change", "FIB tor2 1 change",
		"outside->node1 none lost",
	}, lanes)
	// The loss of the newest record, and no other: from 10.3 s to 22.39 s of 5 to 30.
	for lane, want := range [][]string{{"left: 21.2%; width: 48.36%"}, {"left: 22.8%; width: 45.2%", "left: 72%; width: 4%"}} {
		drawn := each.Of(axis.all(".lane")[lane].all(".thick"), func(i document) string { return attribute(i.Node, "style") })
		must.Equal(t, lane, want, drawn)
	}
}

// Whatever a report holds, the page is well-formed, loads nothing and runs nothing of
// it, and its links lead somewhere.
func TestPagesAreSafe(t *testing.T) {
	evil := `"><script>alert(1)</script><img src=x onerror=alert(1)>` + "`|\n"
	r := drained()
	r.Incident.Title, r.Command, r.Half, r.Ablated = evil, evil, evil, evil
	v := &r.Variants[0]
	v.Components = map[string]string{evil: evil}
	v.Reasons, v.ProbesHurt = []string{evil}, append(v.ProbesHurt, evil)
	v.Findings[1].Says, v.Findings[1].Owner, v.Findings[1].Pods = evil, evil, []string{evil}
	v.Remedies[1].Name, v.Checks[0].Name, v.Probes[0].Name = evil, evil, evil
	r.Topology.Members[1].Name = evil
	r.NotRun = []report.NotRun{{Name: evil, Reason: evil}}
	old := drained()
	old.Incident, old.Topology, old.Command = nil, nil, ""
	for i := range old.Variants {
		v := &old.Variants[i]
		v.Began, v.Fault, v.Ends = nil, nil, nil
		for i := range v.Findings {
			v.Findings[i].At = nil
		}
		for i := range v.Remedies {
			v.Remedies[i].Began, v.Remedies[i].Applied = nil, nil
		}
	}
	begun := drained()
	begun.Verdict, begun.Variants = "inconclusive", begun.Variants[:1]
	begun.Unfinished = &report.Unfinished{At: at(11000), Steps: []string{"cilium-1.11.6: symptom"}}
	begun.Variants[0].Verdict = ""
	for name, r := range map[string]report.Report{
		"as it was": drained(), "with a lab's malice": r, "of before there was a page": old, "that was killed": begun,
		"in which nothing ran": {Schema: report.Schema, Scenario: "node-drain", Verdict: "inconclusive"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t, r)
			if name == "with a lab's malice" {
				must.NoError(t, os.WriteFile(filepath.Join(dir, "evidence/cilium-1.11.6", "07-\"><script>.txt"), nil, 0o644))
			}
			checkPage(t, dir, rendered(t, dir))
		})
	}
}

func checkPage(t *testing.T, dir string, page document) {
	t.Helper()
	ids := map[string]bool{}
	for n := range page.Descendants() {
		if id := attribute(n, "id"); id != "" {
			if ids[id] {
				t.Errorf("the id %q is there twice", id)
			}
			ids[id] = true
		}
	}
	for n := range page.Descendants() {
		for _, a := range n.Attr {
			switch {
			case strings.HasPrefix(a.Key, "on"), a.Key == "src", a.Key == "srcdoc":
				t.Errorf("<%s> has the attribute %s", n.Data, a.Key)
			case a.Key != "href":
			case strings.HasPrefix(a.Val, "#"):
				if !ids[a.Val[1:]] {
					t.Errorf("the link %s leads nowhere", a.Val)
				}
			case a.Val != "junit.xml":
				must.Get(os.Stat(filepath.Join(dir, must.Get(url.PathUnescape(a.Val))(t))))(t)
			}
		}
	}
	for what, want := range map[string]int{"script": 1, "style": 1, "link": 0, "img": 0, "iframe": 0, "h1": 1} {
		if got := len(page.all(what)); got > want {
			t.Errorf("there are %d <%s>, want %d", got, what, want)
		}
	}
	for _, loads := range []string{"url(", "@import", "fetch(", "serviceWorker", "http://", "https://"} {
		for _, own := range append(page.all("style"), page.all("script")...) {
			if strings.Contains(own.says(), loads) {
				t.Errorf("<%s> has %s", own.Data, loads)
			}
		}
	}
	must.Equal(t, "html/template has refused a value", false, strings.Contains(page.text, "ZgotmplZ"))
}

func TestUnfinished(t *testing.T) {
	r := drained()
	r.Verdict = "inconclusive"
	r.Unfinished = &report.Unfinished{At: at(11000), Steps: []string{"cilium-1.11.6: symptom"}}
	page := rendered(t, folder(t, r))
	must.Contain(t, page.first(t, ".alarm").says(), "has not ended: last written 2026-01-02 03:04:11 UTC, during cilium-1.11.6: symptom.")
}

// Evidence that was cut short by a crash is named, and the rest is in the page.
func TestEvidenceThatCannotBeRead(t *testing.T) {
	dir := folder(t, drained())
	for name, text := range map[string]string{"01-snapshot-baseline.json": `{"nodes":`, history.FileName: "no record"} {
		must.Write(t, filepath.Join(dir, "evidence/cilium-1.11.6", name), text)
	}
	page := rendered(t, dir)
	must.Contain(t, page.first(t, "footer").says(), "01-snapshot-baseline.json: unexpected end of JSON input", history.FileName)
	page.first(t, ".axis").first(t, ".lane")
}

func TestWriteRefuses(t *testing.T) {
	must.Fail(t, Write(t.TempDir(), nil), "report.json")
	r := drained()
	r.Variants[0].EvidenceDir = "../../etc" // a stored report may be anybody's
	must.Fail(t, Write(folder(t, r), nil), `"../../etc", and not below evidence`)
}

// Ten minutes of 50 probes at 10 ms that lose packets all the time are drawn in less than 5 MB.
func TestLargeRun(t *testing.T) {
	r := drained()
	v := &r.Variants[0]
	v.Probes, v.ProbesHurt = nil, nil
	random := rand.New(rand.NewPCG(1, 2))
	var all []probe.Timeline
	for n := range 50 {
		p := probe.Stored{Record: probe.Record{
			Probe:   probe.Probe{Name: fmt.Sprintf("probe%d->other", n), From: "outside", To: "master2", Timeout: time.Second}.WithDefaults(),
			Started: at(0), Reported: at(600_000),
		}}
		for slot, lost := uint32(0), uint32(0); slot < 60_000; slot++ {
			p.Sent.Add(slot)
			if slot >= lost+2 {
				p.Answered.Add(slot)
			}
			if slot == lost+2 {
				lost += 11 + uint32(random.Int32N(200))
			}
		}
		line := p.At(at(600_000))
		all = append(all, line)
		v.ProbesHurt = append(v.ProbesHurt, p.Probe.Name)
		v.Probes = append(v.Probes, report.Probe{Name: p.Probe.Name, Due: 60000, Sent: 60000, Lost: line.Counts().Lost})
	}
	dir := folder(t, r)
	h := &history.History{}
	h.AddPackets(all)
	must.NoError(t, Write(dir, map[string]*history.History{v.EvidenceDir: h}))
	page := parsed(t, filepath.Join(dir, Name))
	must.Equal(t, "the page has more than 5 MB", false, len(page.text) > 5e6)
	lanes := page.first(t, ".axis").all(".lane")
	if len(lanes) < 50 {
		t.Fatalf("%d lanes, want one for each of 50 probes", len(lanes))
	}
	for _, l := range lanes {
		if n := len(l.all(".thick")); n > pieces {
			t.Errorf("a lane has %d pieces, want %d at most", n, pieces)
		}
	}
}

func TestIssue(t *testing.T) {
	page := rendered(t, folder(t, drained()))
	goldentest.Compare(t, "issue.md", strings.TrimSpace(page.first(t, "textarea").FirstChild.Data)+"\n")
}

// A run of another person writes text into the issue, and nothing else.
func TestIssueOfAnother(t *testing.T) {
	const hostile = "x\n```\n@octocat <!-- \x1b[2J|"
	r := drained()
	r.Command = hostile
	r.Incident.Title, r.Incident.Reproduction, r.Incident.Source = hostile, hostile, hostile
	r.Variants[0].Name, r.Variants[0].Verdict, r.Variants[0].Findings[0].Says = hostile, hostile, hostile
	r.Variants[0].Remedies[0].Name = hostile
	dir := folder(t, drained())
	must.NoError(t, r.Write(dir))
	text := rendered(t, dir).first(t, "textarea").FirstChild.Data
	must.Equal(t, "the issue has", 4, strings.Count(text, "```"))
	_, rest, _ := strings.Cut(text, "### Versions")
	must.Equal(t, "a mention, a comment, a control character", [3]bool{}, [3]bool{
		regexp.MustCompile("(?m)(^|[^']) ?@octocat").MatchString(rest), strings.Contains(rest, "<!--"), strings.Contains(text, "\x1b"),
	})
}

func TestIndex(t *testing.T) {
	dir := t.TempDir()
	for n, change := range []func(*report.Report){
		func(*report.Report) {},
		func(r *report.Report) { r.Ablated, r.Variants[0].Ablated = "fault", "fault" },
		func(r *report.Report) {
			r.Verdict, r.Variants[1].Verdict = "fail", "reproduced"
			r.Variants[1].ProbesHurt = []string{"outside->master2"}
		},
	} {
		r := drained()
		r.Started = began.Add(time.Duration(n) * time.Hour)
		r.Run = r.Started.Format("2006-01-02T15-04-05Z")
		change(&r)
		must.NoError(t, r.Write(filepath.Join(dir, "node-drain", r.Run)))
	}
	must.NoError(t, os.Symlink("2026-01-02T05-04-00Z", filepath.Join(dir, "node-drain", "latest")))
	runs := must.Get(Runs(dir))(t)
	must.Equal(t, "runs, of which a link is none", 3, len(runs))
	for _, run := range runs {
		must.NoError(t, Write(run, nil))
	}
	must.NoError(t, WriteIndex(dir, runs))
	index := parsed(t, filepath.Join(dir, IndexName))
	checkPage(t, dir, index)
	must.Equal(t, "the strip", "✔✔✘", index.first(t, ".strip").says())
	want := []string{"cilium 1.11.6 cilium-1.11.6 affected ✔ reproduced reproduced 2", "cilium 1.12.0 cilium-1.12.0 fixed ✔ reproduced prevented 3"}
	must.Equal(t, "versions", want, texts(index.first(t, "tbody").all("tr")))
}

func TestRunsThatAreNotThere(t *testing.T) {
	must.Fail(t, must.Err(Runs(filepath.Join(t.TempDir(), "no-such"))), "no-such")
}

// FuzzWrite renders a folder of a run whose report and record may be anything: the page
// is written or refused, and nothing outside of the folder is.
func FuzzWrite(f *testing.F) {
	for _, name := range []string{"../testdata/full.json", "../testdata/bare.json"} {
		text := must.Read(f, name)
		f.Add(string(text), `{"at":"2026-01-02T03:04:05Z","probes":[{"probe":{"Name":"a->b","Interval":10000000},"started":"2026-01-02T03:04:05Z","sent":[[0,9]]}]}`)
	}
	f.Add(`{"schema":"relapse.report/v2","scenario":"../x","variants":[{"evidence":"../.."}]}`, ``)
	f.Add(`{"schema":"relapse.report/v2","variants":[{"repeats":{"runs":[{"onset_ms":-9223372036854775808},{"onset_ms":9223372036854775807}]}}]}`, `{"poll":null}`)
	f.Fuzz(func(t *testing.T, text, record string) {
		top := t.TempDir()
		dir := filepath.Join(top, "run")
		for name, text := range map[string]string{"report.json": text, "evidence/a/" + history.FileName: compressed(t, record)} {
			must.Write(t, filepath.Join(dir, name), text)
		}
		err := Write(dir, nil)
		if r, unread := report.Read(filepath.Join(dir, "report.json")); unread == nil && err == nil {
			Screen(dir, r)
		}
		must.Equal(t, "the folder, and nothing beside it", 1, len(must.Get(os.ReadDir(top))(t)))
	})
}

func compressed(t *testing.T, lines string) string {
	encoder := must.Get(zstd.NewWriter(nil))(t)
	return string(encoder.EncodeAll([]byte(`{"begin":{"schema":"`+history.Schema+"\"}}\n"+lines+"\n"), nil))
}
