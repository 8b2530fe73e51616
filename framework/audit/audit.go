// Package audit runs detectors on a live cluster and its routers. It reads both from outside, and changes nothing.
//
// Read reads a cluster, and Judge makes a Result of the reads. Then, in this order, Result.Upgrade adds the effects of
// a planned upgrade, Result.Detail adds statements of each layer and commands that show a finding again, and
// Result.Suppress removes suppressed findings. Redact replaces names and addresses. Package render writes a Result.
package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/nodestate"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// detectors are the detectors whose sources can be read from outside, at least in part.
var detectors = []detect.Detector{
	detect.RouteOwnership{Peering: detect.Observed},
	detect.ServiceRoute{Peering: detect.Observed},
	detect.Layer2{},
	detect.Permission{Peering: detect.Observed},
	detect.ImageDrift{Peering: detect.Observed},
	detect.ImagePin{},
	detect.ReverseName{},
	detect.LostSelector{},
	detect.SessionReset{},
}

// overTime are detectors that judge by all reads so far, because one read may show a transient state, or not enough.
var overTime = []detect.Detector{
	detect.NodeAddress{Peering: detect.Observed},
	detect.GoneEndpoints{},
	detect.ProxyConvergence{},
	detect.SNAT{Peering: detect.Observed},
	detect.StaleFirewallRules{},
	detect.ServiceAddress{},
}

// notRead are sources that no audit reads.
var notRead = []snapshot.Source{snapshot.Tags, snapshot.Sockets}

// scope says what an audit reads besides the cluster's API server.
type scope struct{ routers, nodes bool }

func scopeOf(s snapshot.Snapshot) scope {
	return scope{asked(s, snapshot.Routers), asked(s, snapshot.NAT)}
}

func (extra scope) reads(s snapshot.Source) bool {
	return !slices.Contains(notRead, s) && (extra.routers || s != snapshot.Routers) &&
		(extra.nodes || !slices.Contains(nodestate.Sources, s))
}

// NotRun is a detector that does not run, or not with all that it reads.
type NotRun struct {
	Detector string `json:"detector"`
	// Part is what the detector does not find; empty: it does not run at all.
	Part string `json:"part,omitempty"`
	// Lacks is what the detector would need.
	Lacks string `json:"lacks"`
}

func (n NotRun) String() string {
	if n.Part == "" {
		return fmt.Sprintf("%s needs %s", n.Detector, n.Lacks)
	}
	return fmt.Sprintf("%s finds %s only with %s", n.Detector, n.Part, n.Lacks)
}

// notRun are the detectors that do not run, or that find less than in a lab.
func notRun(extra scope) []NotRun {
	const routers = "the cluster's routers"
	var all []NotRun
	add := func(detector, part, lacks string) { all = append(all, NotRun{detector, part, lacks}) }
	if !extra.routers {
		add(detect.RouteOwnership{}.Name(), "routes that are missing or wrong", routers)
		add(detect.ServiceRoute{}.Name(), "", routers)
		add(detect.Layer2{}.Name(), "stations that nobody names, and stale neighbours", routers)
		add(detect.Permission{}.Name(), "lost routes of the nodes concerned", routers)
		add(detect.ImageDrift{}.Name(), "lost routes of the nodes concerned", routers)
	}
	add(detect.ImagePin{}.Name(), "moved tags", "what the registry has under each name")
	add(detect.SessionReset{}.Name(), "sessions that were reset", "a history that is longer than an audit's")
	if !extra.nodes {
		add(detect.NodeAddress{}.Name(), "missing sessions of Calico's mesh, and the next autodetection",
			"interfaces, routes and BIRD's sessions of the nodes (--nodes)")
		add(detect.GoneEndpoints{}.Name(), "", "the connections that the nodes track (--nodes)")
		add(detect.ProxyConvergence{}.Name(), "", "what the nodes' kube-proxies say, and the Services in their kernels (--nodes)")
		add(detect.StaleFirewallRules{}.Name(), "", "the filter tables of the nodes (--nodes)")
	}
	switch {
	case !extra.nodes:
		add(detect.SNAT{}.Name(), "", "NAT rules and connections of the nodes (--nodes)")
	case !extra.routers:
		add(detect.SNAT{}.Name(), "", routers)
	default:
		add(detect.SNAT{}.Name(), "what BPF programs translate", "the sockets of hosts outside")
	}
	add(configdrift.Detector{}.Name(), "", "the version of an upgrade (--upgrade)")
	return all
}

// runs reports whether a detector runs, at least in part.
func runs(d detect.Detector, without []NotRun) bool {
	return !slices.ContainsFunc(without, func(n NotRun) bool { return n.Detector == d.Name() && n.Part == "" })
}

func sources(extra scope) []snapshot.Source {
	var all []snapshot.Source
	for _, d := range slices.Concat(detectors, overTime) {
		if !runs(d, notRun(extra)) {
			continue
		}
		for _, s := range d.Reads() {
			// Reading Cilium's ConfigMap may fail: see masquerade.
			if !slices.Contains(all, s) && extra.reads(s) && s != snapshot.ConfigMaps(ciliumConfig) {
				all = append(all, s)
			}
		}
	}
	return all
}

const (
	// Between is the time from the end of one read to the beginning of the next. Changing routes converge meanwhile.
	Between = 3 * time.Second
	// BetweenNodes replaces Between if nodes are read: a restart of a kube-proxy or of a BGP session is shorter.
	BetweenNodes = detect.DefaultSettle
	// within bounds each answer: a router takes ten seconds to print all routes of the internet.
	within = 30 * time.Second
	// mostReads bounds the reads. There is a third read only if the first two disagree.
	mostReads = 3
)

// Read reads a cluster, its routers and nodes twice, and a third time if the two reads lead to different findings or
// unread sources. It ends early if the Nodes cannot be read: without them nothing can be judged. It calls tell before
// each read.
func Read(ctx context.Context, access Access, between time.Duration, tell func(string)) ([]snapshot.Snapshot, error) {
	// Each read has its own collector, because pods come and go. Closing one closes the routers, which all share.
	var collectors []*snapshot.Collector
	defer func() {
		for _, c := range collectors {
			c.Close()
		}
	}()
	wanted := sources(scope{routers: len(access.Routing) > 0, nodes: access.ByNode != nil})
	if access.Upgrade || access.ByNode != nil {
		wanted = append(wanted, snapshot.ConfigMaps(ciliumConfig))
	}
	rate := access.rate()
	return repeat(ctx, func(ctx context.Context, number int) (snapshot.Snapshot, error) {
		access := access
		access.nodes, access.unreachable = access.machines(ctx)
		tell(fmt.Sprintf("read %d", number))
		collector, err := snapshot.Open(ctx, access, wanted...)
		if err != nil {
			return snapshot.Snapshot{}, err
		}
		collectors = append(collectors, collector)
		// A page waits for the lists, a node for all lists and nodes.
		collector.Allow(within + durationOf(len(resources), rate))
		collector.Allow(10*bgprouter.AnswerWithin*time.Duration(1+len(access.Routing)/bgprouter.AtOnce), snapshot.Routers)
		collector.Allow(within+snapshot.ListWithin+durationOf(len(access.nodes), rate), nodestate.Sources...)
		return collector.Collect(ctx), nil
	}, between, tell)
}

func durationOf(requests int, rate float32) time.Duration {
	return time.Duration(float64(requests) / float64(rate) * float64(time.Second))
}

// repeat is Read with a function for one read, which gets the number of the read.
func repeat(ctx context.Context, read func(ctx context.Context, number int) (snapshot.Snapshot, error),
	between time.Duration, tell func(string)) ([]snapshot.Snapshot, error) {
	var reads []snapshot.Snapshot
	for len(reads) < mostReads {
		why := ""
		if len(reads) == 2 {
			if agree(reads) {
				break
			}
			why = ", because the first two disagree"
		}
		if len(reads) > 0 {
			tell(fmt.Sprintf("read %d begins in %s%s", len(reads)+1, between, why))
			select {
			case <-time.After(between):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		s, err := read(ctx, len(reads)+1)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, err
		}
		reads = append(reads, s)
		if !s.Nodes.Read {
			break
		}
	}
	return reads, nil
}

// judged is what detectors find at the last of some reads. Most get only the last: seconds are no history of a cluster.
type judged struct {
	findings []detect.Finding
	gaps     []detect.Gap
}

func judge(reads ...snapshot.Snapshot) judged {
	x := detect.NewIndex(reads[len(reads)-1:])
	return judged{append(x.Run(detectors), detect.Run(overTime, reads)...), x.Unjudged()}
}

// agree reports whether two reads lead to the same findings and gaps, and read the same.
func agree(reads []snapshot.Snapshot) bool {
	if !slices.Equal(unread(reads[0]), unread(reads[1])) {
		return false
	}
	one, other := judge(reads[0]), judge(reads[:2]...)
	ids := func(j judged) sets.Set[detect.ID] { return sets.New(each.Of(j.findings, detect.Finding.ID)...) }
	return ids(one).Equal(ids(other)) && slices.Equal(one.gaps, other.gaps)
}

func lacks(s snapshot.Snapshot) []snapshot.Missing {
	// Upgrade and masquerade report a missing ConfigMap themselves. Routers may permit only the commands of older
	// versions of relapse, so the neighbour table is required only where addresses are announced by ARP.
	all := slices.DeleteFunc(s.Unavailable(), func(m snapshot.Missing) bool {
		return m.Source == "ConfigMaps" || len(s.L2Announcements.Items) == 0 && strings.HasPrefix(m.Source, "neighbour table of ")
	})
	if !scopeOf(s).nodes {
		return all
	}
	for _, n := range s.Nodes.Items {
		if len(s.NAT) > 0 && !slices.ContainsFunc(s.NAT, func(nat snapshot.NodeNAT) bool { return nat.Node == n.Name }) {
			all = append(all, snapshot.Missing{Source: "all of " + n.Name, Reason: "the node was added after the nodes were listed"})
		}
	}
	for _, p := range s.Proxies {
		if p.Read && p.Mode == "" && len(p.Table) > 0 && (p.Health.Status != 0 || hasKubeProxy(s, p.Node)) {
			all = append(all, snapshot.Missing{Source: "mode of kube-proxy on " + p.Node,
				Reason: "it does not answer on port 10249 of 127.0.0.1, and there is a table of Services"})
		}
		if p.Read && p.Mode == snapshot.NFTables && p.Syncs == nil {
			all = append(all, snapshot.Missing{Source: "syncs of kube-proxy on " + p.Node,
				Reason: "it does not report its metrics on port 10249 of 127.0.0.1"})
		}
	}
	return all
}

// hasKubeProxy reports whether a pod with kube-proxy is on a node. On other nodes the IPVS table may belong to
// keepalived or to another proxy of Services.
func hasKubeProxy(s snapshot.Snapshot, node string) bool {
	return !s.PodImages.Read || slices.ContainsFunc(s.PodImages.Items, func(p snapshot.PodImages) bool {
		return p.Node == node && slices.ContainsFunc(p.Containers, func(c snapshot.RunningContainer) bool {
			return strings.Contains(c.Image, "kube-proxy") || c.Name == "kube-proxy"
		})
	})
}

func unread(s snapshot.Snapshot) []string {
	return each.Of(lacks(s), func(m snapshot.Missing) string { return m.Source })
}

// Result is what an audit found.
type Result struct {
	Schema string `json:"schema"`
	// Relapse is the version of the program that judged.
	Relapse string `json:"relapse,omitempty"`
	// Began is when the first read began, Ended when the last one did.
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended"`
	Reads int       `json:"reads"`
	Nodes int       `json:"nodes"`
	// Routers are the names of the routers that were asked.
	Routers []string `json:"routers"`
	// Planned is the upgrade whose effects were looked for, if any.
	Planned *Upgrade `json:"upgrade,omitempty"`
	// Unread is what could not be read in one of the last two reads, each with the reason.
	Unread []snapshot.Missing `json:"unread"`
	// Ran are the detectors that ran, at least in part.
	Ran    []string `json:"ran"`
	NotRun []NotRun `json:"not_run"`
	// NotJudged says what routers lack, where it is not known that they should have it.
	NotJudged []detect.Gap `json:"not_judged"`
	// Findings are in both of the last two reads, each with the worse of its two states.
	Findings []Finding `json:"findings"`
	// Once are findings of only one of the last two reads: something changes, and the result of the change is not known.
	Once []Finding `json:"once"`
	// Cost is what reading the API server took; nil for saved reads.
	Cost *Cost `json:"cost,omitempty"`
	// Suppressed were in Findings or Once, and do not count. Unused are suppressions that match nothing.
	Suppressed []Suppressed  `json:"suppressed,omitempty"`
	Unused     []Suppression `json:"unused_suppressions,omitempty"`
}

// Schema names the format of a Result.
const Schema = "relapse.audit/v1"

// Finding is a finding of an audit.
type Finding struct {
	// ID is the same in each audit that finds the same fault, active or latent.
	ID string `json:"id"`
	detect.Finding
	// Layers are what each layer says of the object, from the top down. MoreLayers counts omitted statements.
	Layers     []snapshot.Statement `json:"layers,omitempty"`
	MoreLayers int                  `json:"more_layers,omitempty"`
	// Again are commands that show the finding again.
	Again []Command `json:"again,omitempty"`
	// Bundle is where a bundle has the objects that the finding names, each as FILE:LINE.
	Bundle []string `json:"bundle,omitempty"`
	// Incidents are the incidents of the catalogue with such a finding.
	Incidents []Incident `json:"incidents,omitempty"`
}

// Incident is an incident of the catalogue.
type Incident struct {
	Name string `json:"name"`
	// Describe is the command that describes it.
	Describe string `json:"describe"`
	// Remedies are the documented ones.
	Remedies []string `json:"remedies,omitempty"`
}

// UnreadableError says that a cluster cannot be judged at all.
type UnreadableError struct{ Why string }

func (e *UnreadableError) Error() string { return "the cluster cannot be read: " + hinted(e.Why) }

// hinted adds a hint to the reason why something is not read.
func hinted(why string) string {
	if (snapshot.Missing{Reason: why}).Forbidden() {
		why += " (" + RoleHint + ")"
	}
	return why
}

// Judge judges reads of one cluster, in order of time. The error is an *UnreadableError if the last read has no Nodes.
func Judge(reads []snapshot.Snapshot) (Result, error) {
	last := reads[len(reads)-1]
	if !last.Nodes.Read {
		why := last.Nodes.Error
		for _, s := range last.Sources {
			if s.Unreachable != "" && why == "" {
				why = s.Unreachable
			}
		}
		return Result{}, &UnreadableError{why}
	}
	if len(last.Nodes.Items) == 0 {
		return Result{}, &UnreadableError{"it has no Node"}
	}
	extra := scopeOf(last)
	r := Result{
		Schema: Schema, Began: reads[0].Time, Ended: last.Time.Add(last.Took), Reads: len(reads), Nodes: len(last.Nodes.Items),
		Routers: []string{}, Unread: []snapshot.Missing{}, NotRun: notRun(extra), NotJudged: []detect.Gap{},
		Findings: []Finding{}, Once: []Finding{},
	}
	previous := max(0, len(reads)-2)
	r.masquerade(reads[previous:])
	r.unrouted(last)
	for _, image := range (detect.Permission{}).Ungranted(last) {
		r.NotRun = append(r.NotRun, NotRun{Detector: detect.Permission{}.Name(), Part: "permissions of " + image,
			Lacks: "what the vendor's charts of that version grant it"})
	}
	for _, d := range slices.Concat(detectors, overTime) {
		if runs(d, r.NotRun) {
			r.Ran = append(r.Ran, d.Name())
		}
	}
	r.Routers = append(r.Routers, each.Of(last.Routers, func(o snapshot.Router) string { return o.Name })...)
	judgements := make([]judged, len(reads))
	for i := range reads {
		judgements[i] = judge(reads[:i+1]...)
	}
	for _, gap := range judgements[len(judgements)-1].gaps {
		for _, j := range judgements[:len(judgements)-1] { // a gap is open if an earlier read did not have it
			has := func(g detect.Gap) bool { return g.Says == gap.Says }
			gap.Open = gap.Open || !slices.ContainsFunc(j.gaps, has)
		}
		r.NotJudged = append(r.NotJudged, gap)
	}
	r.Unread = append(r.Unread, lacks(last)...)
	for _, source := range sources(extra) {
		if !asked(last, source) { // only in a saved read
			r.Unread = append(r.Unread, snapshot.Missing{Source: source.String(), Reason: "not asked for"})
		}
	}
	before := reads[previous]
	now := unread(last)
	for i, name := range unread(before) {
		if !slices.Contains(now, name) {
			m := lacks(before)[i]
			m.Reason += " (in the read before the last)"
			r.Unread = append(r.Unread, m)
		}
	}
	r.add(judgements[len(judgements)-1].findings, judgements[previous].findings)
	return r, nil
}

// masquerade notes that masquerading is not judged if Cilium's ConfigMap, which UpgradeRole permits, was not read.
func (r *Result) masquerade(reads []snapshot.Snapshot) {
	d := detect.SNAT{Peering: detect.Observed}
	i := slices.IndexFunc(reads, d.Unasked)
	if i < 0 || !runs(d, r.NotRun) {
		return
	}
	why := cmp.Or(reads[i].ConfigMaps.Error, "it was not asked for")
	r.Unread = append(r.Unread, snapshot.Missing{Source: "ConfigMap " + ciliumConfig, Reason: why})
	r.needs(d, "ConfigMap "+ciliumConfig+", which says what Cilium is to hide (the Role of --rbac --upgrade permits it): "+why)
}

// needs notes that a detector does not run, in place of other notes about it.
func (r *Result) needs(d detect.Detector, lacks string) {
	r.NotRun = slices.DeleteFunc(r.NotRun, func(n NotRun) bool { return n.Detector == d.Name() })
	r.NotRun = append(r.NotRun, NotRun{Detector: d.Name(), Lacks: lacks})
}

// unrouted notes that masquerading by nodes is not judged if no router's FIB shows which pod addresses are routed.
func (r *Result) unrouted(last snapshot.Snapshot) {
	snat := detect.SNAT{}
	if !runs(snat, r.NotRun) || slices.ContainsFunc(last.Routers, func(o snapshot.Router) bool { return o.Routes.Read }) {
		return
	}
	r.needs(snat, "the FIB of a router")
	r.NotJudged = append(r.NotJudged, detect.Gap{Open: true,
		Says: "Whether nodes hide the addresses of pods is not judged, because the FIB of no router was read."})
}

// add adds the findings of the last read and of the read before it.
func (r *Result) add(found, earlier []detect.Finding) {
	both, once := compare(found, earlier)
	r.Findings = append(r.Findings, each.Of(both, identified)...)
	r.Once = append(r.Once, each.Of(once, identified)...)
	r.sort()
}

// sort sorts the worst findings first.
func (r *Result) sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return mildness(a.State) - mildness(b.State) })
}

func identified(f detect.Finding) Finding { return Finding{ID: id(f), Finding: f} }

// compare returns what two reads have in common, and what one of them has alone.
func compare(found, earlier []detect.Finding) (both, once []detect.Finding) {
	sameNow, sameEarlier, worst := byID(found), byID(earlier), map[string]int{}
	for _, f := range found {
		same, shared := inBoth(f, sameEarlier[id(f)])
		if !shared {
			once = append(once, f)
			continue
		}
		both = append(both, same)
		if worse, ok := worst[id(f)]; !ok || mildness(same.State) < worse {
			worst[id(f)] = mildness(same.State)
		}
	}
	for _, f := range earlier {
		switch same, shared := inBoth(f, sameNow[id(f)]); {
		case !shared:
			once = append(once, f)
		case mildness(same.State) < worst[id(f)] && !(f.State == detect.Pending && judgedOverTime(f)):
			both = append(both, same) // it was worse on a router on which the last read does not have it
		}
	}
	routersOf := map[string][]string{}
	for _, f := range both {
		routersOf[id(f)] = append(routersOf[id(f)], f.Routers...)
	}
	for _, f := range slices.Concat(found, earlier) {
		routers, ok := routersOf[id(f)]
		f.Routers = slices.DeleteFunc(slices.Clone(f.Routers), func(r string) bool { return slices.Contains(routers, r) })
		if ok && len(f.Routers) > 0 {
			once = append(once, f) // on the routers that only one read names
		}
	}
	return both, once
}

// inBoth returns what a finding has in common with a finding of another read.
//
// The worse state counts, so that a suppression of a latent finding does not hide an active one. A finding that is
// pending in one read is not active yet, unless its detector has judged by both reads. Only the routers that both
// findings name stay: findings without a common router are different ones. But a milder finding may name no router,
// such as the finding of a range that no router has yet.
func inBoth(f detect.Finding, others []detect.Finding) (common detect.Finding, found bool) {
	if slices.ContainsFunc(others, func(o detect.Finding) bool { return o.ID() == f.ID() }) {
		return f, true
	}
	for _, o := range others {
		worse, milder := f, o
		if mildness(o.State) < mildness(f.State) {
			worse, milder = o, f
		}
		routers := slices.DeleteFunc(slices.Clone(worse.Routers), func(r string) bool { return !slices.Contains(milder.Routers, r) })
		if len(milder.Routers) == 0 && worse.State != milder.State {
			routers = worse.Routers
		}
		if id(o) != id(f) || len(routers) == 0 && len(f.Routers)+len(o.Routers) > 0 {
			continue
		}
		switch {
		case o.State == detect.Pending && judgedOverTime(f):
			common = f
		case worse.State == detect.Active && milder.State == detect.Pending:
			common = milder
		default:
			common = worse
		}
		common.Routers = routers
		return common, true
	}
	return detect.Finding{}, false
}

// judgedOverTime reports whether the detector of a finding judges by all reads so far.
func judgedOverTime(f detect.Finding) bool {
	return slices.ContainsFunc(overTime, func(d detect.Detector) bool { return d.Name() == f.Detector })
}

func byID(findings []detect.Finding) map[string][]detect.Finding {
	by := map[string][]detect.Finding{}
	for _, f := range findings {
		by[id(f)] = append(by[id(f)], f)
	}
	return by
}

// mildness orders states, the worst first.
func mildness(s detect.State) int {
	return slices.Index([]detect.State{detect.Active, detect.Pending, detect.Latent, detect.Hint}, s)
}

// id identifies a finding while its state, its routers and its pods change.
func id(f detect.Finding) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{f.Detector, f.Kind, f.Object.String(), f.Owner, f.Announcer}, "\n")))
	return hex.EncodeToString(sum[:6])
}

// Open reports whether something was not read, has not settled, or may be a fault that is not judged. Then no finding
// does not mean no fault.
func (r Result) Open() bool {
	return len(r.Unread) > 0 || len(r.Of(detect.Pending)) > 0 || len(r.Once) > 0 ||
		slices.ContainsFunc(r.NotJudged, func(g detect.Gap) bool { return g.Open })
}

// Outcome summarizes an audit.
type Outcome string

// Outcomes, the worst first.
const (
	SomeActive Outcome = "active"
	SomeLatent Outcome = "latent"
	// Unsettled: there is no finding in both reads, and something is open.
	Unsettled Outcome = "open"
	// Nothing was found, and all was read.
	Nothing Outcome = "nothing"
)

// Outcome returns the worst outcome that applies.
func (r Result) Outcome() Outcome {
	switch {
	case len(r.Of(detect.Active)) > 0:
		return SomeActive
	case len(r.Of(detect.Latent)) > 0:
		return SomeLatent
	case r.Open():
		return Unsettled
	}
	return Nothing
}

// Of are the findings in a state.
func (r Result) Of(state detect.State) []Finding {
	return each.Where(r.Findings, func(f Finding) bool { return f.State == state })
}
