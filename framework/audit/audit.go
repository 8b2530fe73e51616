// Package audit points detectors at a live cluster and its routers. It reads both from
// outside, and changes nothing.
//
// Read takes the reads, Judge makes a Result of them. Then, in this order, Result.Upgrade adds what
// a planned upgrade changes, Result.Detail what each layer says and what shows a finding again, and
// Result.Suppress takes out what somebody lives with. Redact replaces names and addresses in reads
// and Result. Package render writes a Result.
package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// detectors are those whose sources can be read from outside, at least in part.
var detectors = []detect.Detector{
	detect.RouteOwnership{Peering: detect.Observed},
	detect.ServiceRoute{Peering: detect.Observed},
	detect.NodeAddress{Peering: detect.Observed},
	detect.Permission{Peering: detect.Observed},
	detect.ImageDrift{Peering: detect.Observed},
	detect.ImagePin{},
}

// notRead are the sources of these detectors that an audit does not read.
var notRead = []snapshot.Source{snapshot.NodeNetworks, snapshot.NodeTables, snapshot.Tags}

// NotRun is a detector that does not run, or not with all that it reads.
type NotRun struct {
	Detector string `json:"detector"`
	// Part is what is not found; empty: the detector does not run at all.
	Part string `json:"part,omitempty"`
	// Lacks is what it would need.
	Lacks string `json:"lacks"`
}

func (n NotRun) String() string {
	if n.Part == "" {
		return fmt.Sprintf("%s needs %s", n.Detector, n.Lacks)
	}
	return fmt.Sprintf("%s finds %s only with %s", n.Detector, n.Part, n.Lacks)
}

// notRun are the detectors that an audit does not run as they run in a lab.
func notRun(withRouters bool) []NotRun {
	all := []NotRun{
		{detect.NodeAddress{}.Name(), "missing sessions of Calico's mesh, and the next autodetection", "interfaces, routes and BIRD's sessions of the nodes"},
		{detect.ImagePin{}.Name(), "moved tags", "what the registry has under each name"},
		{detect.GoneEndpoints{}.Name(), "", "the connections that the nodes track"},
		{detect.IPVSConvergence{}.Name(), "", "kube-proxy's log and the IPVS table of the nodes"},
		{detect.SNAT{}.Name(), "", "NAT rules and connections of the nodes, and the sockets of hosts outside"},
		{detect.StaleFirewallRules{}.Name(), "", "the filter tables of the nodes"},
		{configdrift.Detector{}.Name(), "", "the version of an upgrade (--upgrade)"},
	}
	if withRouters {
		return all
	}
	const routers = "the cluster's routers"
	return append([]NotRun{
		{detect.RouteOwnership{}.Name(), "routes that are missing or wrong", routers},
		{detect.ServiceRoute{}.Name(), "", routers},
		{detect.Permission{}.Name(), "lost routes of the nodes concerned", routers},
		{detect.ImageDrift{}.Name(), "lost routes of the nodes concerned", routers},
	}, all...)
}

// sources are those that an audit reads, each once.
func sources(withRouters bool) []snapshot.Source {
	var all []snapshot.Source
	for _, d := range detectors {
		for _, s := range d.Reads() {
			if !slices.Contains(all, s) && !slices.Contains(notRead, s) && (withRouters || s != snapshot.Routers) {
				all = append(all, s)
			}
		}
	}
	return all
}

const (
	// Between is the time from the end of one read to the beginning of the next: routes of a
	// change that one read saw half of have converged by the next.
	Between = 3 * time.Second
	// within bounds each answer in a read: a router with all routes of the internet takes
	// ten seconds to print them.
	within = 30 * time.Second
	// mostReads is how often all is read: the third time only if the first two disagree.
	mostReads = 3
)

// Read reads a cluster and its routers twice, and a third time if the two reads do not lead
// to the same findings and the same unread sources. It ends early if the Nodes cannot be read:
// without them there is nothing to judge by. Tell is called before each read.
func Read(ctx context.Context, access Access, between time.Duration, tell func(string)) ([]snapshot.Snapshot, error) {
	wanted := sources(len(access.Routing) > 0)
	if access.Upgrade {
		wanted = append(wanted, snapshot.ConfigMaps(ciliumConfig))
	}
	collector, err := snapshot.Open(ctx, access, wanted...)
	if err != nil {
		return nil, err
	}
	defer collector.Close()
	collector.Allow(within)
	return repeat(ctx, collector.Collect, between, tell)
}

// repeat is Read with what reads once.
func repeat(ctx context.Context, collect func(context.Context) snapshot.Snapshot, between time.Duration, tell func(string)) ([]snapshot.Snapshot, error) {
	var reads []snapshot.Snapshot
	for len(reads) < mostReads {
		why := ""
		if len(reads) == 2 {
			if agree(reads[0], reads[1]) {
				break
			}
			why = ", because the first two disagree"
		}
		if len(reads) > 0 {
			tell(fmt.Sprintf("read %d begins in %s%s", len(reads)+1, between, why))
			if err := pause(ctx, between); err != nil {
				return nil, err
			}
		}
		tell(fmt.Sprintf("read %d", len(reads)+1))
		s := collect(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		reads = append(reads, s)
		if !s.Nodes.Read {
			break
		}
	}
	return reads, nil
}

// pause waits for a time.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// judged is what is found in one read. Each is a history of its own: two that are seconds apart
// are no history of a cluster.
type judged struct {
	findings []detect.Finding
	gaps     []detect.Gap
}

func judge(s snapshot.Snapshot) judged {
	x := detect.NewIndex([]snapshot.Snapshot{s})
	return judged{x.Run(detectors), x.Unjudged()}
}

// agree reports whether two reads lead to the same findings and gaps, and read the same.
func agree(a, b snapshot.Snapshot) bool {
	if !slices.Equal(unread(a), unread(b)) {
		return false
	}
	one, other := judge(a), judge(b)
	return maps.Equal(one.ids(), other.ids()) && slices.Equal(one.gaps, other.gaps)
}

func (j judged) ids() map[detect.ID]bool {
	all := map[detect.ID]bool{}
	for _, f := range j.findings {
		all[f.ID()] = true
	}
	return all
}

// unread are the names of what a read lacks.
func unread(s snapshot.Snapshot) []string {
	var names []string
	for _, text := range s.Unavailable() {
		what, _, _ := strings.Cut(text, ": ")
		names = append(names, what)
	}
	return names
}

// Result is what an audit found.
type Result struct {
	Schema string `json:"schema"`
	// Began is when the first read began, Ended when the last one did.
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended"`
	Reads int       `json:"reads"`
	Nodes int       `json:"nodes"`
	// Routers are the names of those that were asked.
	Routers []string `json:"routers"`
	// Planned is the upgrade whose effects were looked for, if any.
	Planned *Upgrade `json:"upgrade,omitempty"`
	// Unread is what could not be read in one of the last two reads, each with the reason.
	Unread []string `json:"unread"`
	// Ran are the detectors that ran, if not with all that they read.
	Ran    []string `json:"ran"`
	NotRun []NotRun `json:"not_run"`
	// NotJudged says what routers lack without being expected to have it.
	NotJudged []detect.Gap `json:"not_judged"`
	// Findings are those of the last read that the one before has as well.
	Findings []Finding `json:"findings"`
	// Once are those of one of the last two reads alone: something changes, and what it comes
	// to is not known.
	Once []Finding `json:"once"`
	// Cost is what reading the API server took; nil for saved reads.
	Cost *Cost `json:"cost,omitempty"`
	// Suppressed are findings, of both, that do not count. Unused are suppressions that match
	// nothing.
	Suppressed []Suppressed  `json:"suppressed,omitempty"`
	Unused     []Suppression `json:"unused_suppressions,omitempty"`
}

// Schema is that of a Result.
const Schema = "relapse.audit/v1"

// Finding is a finding of an audit.
type Finding struct {
	// ID is the same in each audit that finds the same fault, active or latent.
	ID string `json:"id"`
	detect.Finding
	// Layers are what each layer says of the object, from the top down, and MoreLayers is how
	// many statements were left out.
	Layers     []snapshot.Statement `json:"layers,omitempty"`
	MoreLayers int                  `json:"more_layers,omitempty"`
	// Again are commands that show it again.
	Again []Command `json:"again,omitempty"`
	// Incidents are those of the catalogue that it belongs to.
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

func (e *UnreadableError) Error() string {
	text := "the cluster cannot be read: " + e.Why
	if Forbidden(e.Why) {
		text += " (" + RoleHint + ")"
	}
	return text
}

// Judge judges reads of one cluster, in order of time. Incidents, which may be nil, returns the
// incidents that a finding belongs to. The error is an *UnreadableError if the last read has no
// Nodes.
func Judge(reads []snapshot.Snapshot, incidents func(detect.Finding) []Incident) (Result, error) {
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
	withRouters := asked(last, snapshot.Routers)
	r := Result{
		Schema: Schema, Began: reads[0].Time, Ended: last.Time.Add(last.Took), Reads: len(reads), Nodes: len(last.Nodes.Items),
		Routers: []string{}, Unread: []string{}, NotRun: notRun(withRouters), NotJudged: []detect.Gap{}, Findings: []Finding{}, Once: []Finding{},
	}
	for _, d := range detectors {
		if !slices.ContainsFunc(r.NotRun, func(n NotRun) bool { return n.Detector == d.Name() && n.Part == "" }) {
			r.Ran = append(r.Ran, d.Name())
		}
	}
	for _, router := range last.Routers {
		r.Routers = append(r.Routers, router.Name)
	}
	of := make([]judged, len(reads))
	for i, s := range reads {
		of[i] = judge(s)
	}
	for _, gap := range of[len(of)-1].gaps {
		for _, j := range of[:len(of)-1] { // what an earlier read had is missing now
			has := func(g detect.Gap) bool { return g.Says == gap.Says }
			gap.Open = gap.Open || !slices.ContainsFunc(j.gaps, has)
		}
		r.NotJudged = append(r.NotJudged, gap)
	}
	r.Unread = append(r.Unread, last.Unavailable()...)
	for _, source := range sources(withRouters) {
		if !asked(last, source) { // of a saved read alone
			r.Unread = append(r.Unread, source.String()+": not asked for")
		}
	}
	previous := max(0, len(reads)-2)
	before := reads[previous]
	now := unread(last)
	for i, name := range unread(before) {
		if !slices.Contains(now, name) {
			r.Unread = append(r.Unread, before.Unavailable()[i]+" (in the read before the last)")
		}
	}
	told := func(f detect.Finding) Finding { return identified(f, incidents) }
	found, earlier := of[len(of)-1].findings, of[previous].findings
	sameNow, sameEarlier := byID(found), byID(earlier)
	for _, f := range found {
		if held, in := hold(f, sameEarlier[id(f)]); in {
			r.Findings = append(r.Findings, told(held))
		} else {
			r.Once = append(r.Once, told(f))
		}
	}
	for _, f := range earlier {
		if _, in := hold(f, sameNow[id(f)]); !in {
			r.Once = append(r.Once, told(f))
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return mildness(a.State) - mildness(b.State) })
	return r, nil
}

// identified is a finding with what an audit adds to it.
func identified(f detect.Finding, incidents func(detect.Finding) []Incident) Finding {
	t := Finding{ID: id(f), Finding: f}
	if incidents != nil {
		t.Incidents = incidents(f)
	}
	return t
}

// hold returns what a finding and one of another read have in common: the milder state, and the
// routers that both name. Where they name different ones they are not the same.
func hold(f detect.Finding, others []detect.Finding) (held detect.Finding, in bool) {
	for _, o := range others {
		routers := slices.DeleteFunc(slices.Clone(f.Routers), func(r string) bool { return !slices.Contains(o.Routers, r) })
		if id(o) != id(f) || len(routers) == 0 && len(f.Routers)+len(o.Routers) > 0 {
			continue
		}
		if held = f; mildness(o.State) > mildness(f.State) {
			held = o
		}
		held.Routers = routers
		return held, true
	}
	return detect.Finding{}, false
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

// id is what stays the same of a finding while its state, its routers and its pods change.
func id(f detect.Finding) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{f.Detector, f.Kind, f.Object.String(), f.Owner, f.Announcer}, "\n")))
	return hex.EncodeToString(sum[:6])
}

// Open reports whether something was not read, has not settled, or may be a fault that is not
// judged: that nothing was found does not mean then that nothing is there.
func (r Result) Open() bool {
	return len(r.Unread) > 0 || len(r.Of(detect.Pending)) > 0 || len(r.Once) > 0 ||
		slices.ContainsFunc(r.NotJudged, func(g detect.Gap) bool { return g.Open })
}

// Outcome is what an audit comes to.
type Outcome string

// Outcomes, the worst first.
const (
	SomeActive Outcome = "active"
	SomeLatent Outcome = "latent"
	// Unsettled: nothing was found that holds, and something is open.
	Unsettled Outcome = "open"
	// Nothing was found, and all was read.
	Nothing Outcome = "nothing"
)

// Outcome returns the worst that holds.
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
	return slices.DeleteFunc(slices.Clone(r.Findings), func(f Finding) bool { return f.State != state })
}
