package detect

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Kinds of findings of ProxyConvergence.
const (
	// FrozenSync: kube-proxy reports that its last sync is too long ago.
	FrozenSync = "frozen-sync"
	// NetlinkDeadlock: goroutines of kube-proxy wait for the kernel's answer about IPVS, which does
	// not come. On a node that has differences, it is pending from the first snapshot with such
	// goroutines to the one that proves the deadlock.
	NetlinkDeadlock = "netlink-deadlock"
	// MissingService: a Service with ready endpoints is not in the table.
	MissingService = "missing-service"
	// MissingEndpoint: ready endpoints of a Service get no connections.
	MissingEndpoint = "missing-endpoint"
	// StaleEndpoint: connections go to what is no endpoint of the Service.
	StaleEndpoint = "stale-endpoint"
	// UnreadableSet is latent: a set of another program crashes the nft of a kube-proxy in mode nftables, which then
	// can write no rule. It is a hint of another vendor's build, whose nft is not known.
	UnreadableSet = "unreadable-set"
)

// DefaultSettle is how long kube-proxy may take: healthy ones need some
// tens of milliseconds after a change of one Service, and some seconds on a
// node that has a thousand of them or no processor to spare.
const DefaultSettle = 10 * time.Second

// stuckFor is how far apart two snapshots must be that prove a deadlock. The kernel answers within
// milliseconds; a guest without hardware support once did not run for 2 s on a busy machine.
const stuckFor = 5 * time.Second / 2

// failedSettle is how long a difference lasts that a failed sync of nftables leaves: kube-proxy tries it again after 30 s.
const failedSettle = time.Second

// ProxyConvergence compares the tables of IPVS and of nftables that kube-proxies keep with Services and
// EndpointSlices. A difference is pending at first: neither a rollout nor a slow sync is a fault. It is active once
// it has lasted for DefaultSettle and kube-proxy has stopped: it does not answer, all its syncs have failed, or it
// has finished none for SlowSync. In mode nftables, where it syncs on a change alone, SlowSync begins with the first
// change since the last sync. It is also active once it has lasted for twice DefaultSettle and kube-proxy has
// finished two syncs meanwhile, the second of them begun after the difference; or for failedSettle, if kube-proxy in
// mode nftables has counted a failed sync of the family meanwhile. A Service without endpoints is no difference.
//
// Where two goroutines wait for each other's answers, which never ends, a difference is active at
// once. Two snapshots prove that: in both the same goroutines are in the same calls, and no sync
// was finished in between. In a slow kube-proxy, one call has ended and the next has begun.
//
// An old sync alone, and goroutines that wait, are latent findings: no connections
// fail until a Service changes. They are active on a node that has differences.
//
// A node that gives packets to its own endpoints alone (internalTrafficPolicy Local) must have these, and of
// endpoints that are meant for some zones or nodes (topology hints) it must have one. Endpoints that terminate serve
// where none is ready. Services that kube-proxy leaves to another proxy are not examined, and neither are nodes whose
// kube-proxy is known to run in another mode.
type ProxyConvergence struct {
	// SlowSync is how long a kube-proxy may go without finishing a sync before it counts as
	// stopped; zero means DefaultSettle. It is for nodes on which a sync takes longer.
	SlowSync time.Duration
	// Except reports which Services, by namespace/name, are not examined; nil: all are. It is for Services that a
	// load changes without pause: on a healthy node too, some of them are always pending.
	Except func(service string) bool
}

func (ProxyConvergence) Name() string { return "proxy-convergence" }

func (ProxyConvergence) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.Services, snapshot.EndpointSlices, snapshot.Proxies}
}

// Detect implements Detector. Findings are in order of node: first what is wrong with its kube-proxy itself, then one
// finding for each kind of difference, which names some of the Services: on a node whose syncs have stopped, all
// Services that change differ sooner or later. Pending differences of a kind make a finding of their own, after the
// active one. Object is kube-proxy or the node, Announcer the node.
func (d ProxyConvergence) Detect(history []snapshot.Snapshot, _ *Index) []Finding {
	var findings []Finding
	indexed := lookups(history)
	for _, p := range history[len(history)-1].Proxies {
		if p.Mode = lastMode(indexed, p.Node); p.Mode != "ipvs" && p.Mode != snapshot.NFTables || !p.Read {
			continue
		}
		for _, f := range d.node(indexed, p) {
			f.Announcer = p.Node
			findings = append(findings, f)
		}
	}
	return findings
}

// lastMode is the mode of a node's kube-proxy: by the last answer that named one, because a kube-proxy that hangs or
// has died does not answer.
func lastMode(history []*lookup, node string) string {
	for _, s := range slices.Backward(history) {
		if p, ok := s.proxy(node); ok && p.Mode != "" {
			return p.Mode
		}
	}
	return ""
}

func (d ProxyConvergence) node(history []*lookup, p snapshot.Proxy) []Finding {
	now := history[len(history)-1].Time
	stuck, stuckSince := waiting(history, p)
	deadlock := len(stuck) > 1 && p.Health.CurrentTime.Sub(stuckSince) >= stuckFor
	by, state := map[State]map[difference]time.Time{Active: {}, Pending: {}}, Latent
	families := map[bool]syncs{true: syncsOf(history, p, netip.IPv4Unspecified()), false: syncsOf(history, p, netip.IPv6Unspecified())}
	for diff, since := range d.lasting(history, p.Node) {
		lasts, syncs := now.Sub(since), families[diff.port.address.Addr().Is4()]
		if deadlock || lasts >= failedSettle && syncs.failedSince(since) || lasts >= DefaultSettle && d.stopped(p, syncs) ||
			lasts >= 2*DefaultSettle && syncs.twiceSince(since) {
			by[Active][diff], state = since, Active
		} else {
			by[Pending][diff] = since
		}
	}
	var findings []Finding
	if p.Health.Late() {
		done := "finished its last sync"
		for _, s := range p.Syncs {
			if s.Last.IsZero() && s.Failed > 0 {
				done = noSync + ","
			}
		}
		findings = append(findings, Finding{
			Kind: FrozenSync, State: state, Object: Named("kube-proxy"),
			Says: fmt.Sprintf("kube-proxy on %s %s %s ago, which it reports as too long (healthz: %d).",
				p.Node, done, seconds(p.Health.Age()), p.Health.Status),
		})
	}
	if deadlock || len(stuck) > 1 && state == Active { // else it would only become latent
		f := Finding{Kind: NetlinkDeadlock, State: state, Object: Named("kube-proxy")}
		f.Says = fmt.Sprintf("goroutines %s of kube-proxy on %s have been waiting for the kernel's answers about IPVS for %s or longer",
			and(stuck), p.Node, seconds(p.Health.CurrentTime.Sub(stuckSince)))
		if deadlock {
			f.Says += ": they share a netlink socket, and each has discarded the answer to the other."
		} else {
			f.State = Pending
			f.Says += fmt.Sprintf("; pending: this counts as a deadlock after %s.", stuckFor)
		}
		findings = append(findings, f)
	}
	findings = append(findings, unreadableSet(p)...)
	given := map[State]string{Pending: fmt.Sprintf(" Pending: this becomes active after %s, or after %s and two syncs "+
		"while kube-proxy finishes syncs.", DefaultSettle, 2*DefaultSettle)}
	for _, kind := range []string{MissingService, MissingEndpoint, StaleEndpoint} {
		for _, state := range []State{Active, Pending} {
			if all := ofKind(by[state], kind); len(all) > 0 {
				text := says(p, kind, all, by[state], now) + given[state]
				findings = append(findings, Finding{Kind: kind, State: state, Object: Named(p.Node), Says: text})
			}
		}
	}
	return findings
}

func unreadableSet(p snapshot.Proxy) []Finding {
	plain := semver.IsValid("v"+p.Version) && semver.Prerelease("v"+p.Version)+semver.Build("v"+p.Version) == ""
	if len(p.Unreadable) == 0 || plain && !CrashesAtSets(p.Version) {
		return nil
	}
	state, says := Latent, fmt.Sprintf("The nft 1.0.6 in images of kube-proxy %s crashes when it reads that, and kube-proxy "+
		"can write no rule until it is gone.", p.Version)
	if !plain {
		state, says = Hint, fmt.Sprintf("The nft of kube-proxy %s, which is no release of Kubernetes itself, may crash when it reads that: "+
			"the nft 1.0.6 in images before %s does, and which one this build has is not known.",
			cmp.Or(p.Version, "of unknown version"), and(patchedNFT))
	}
	return []Finding{{Kind: UnreadableSet, State: state, Object: Named("kube-proxy"), Says: fmt.Sprintf(
		"Another program than kube-proxy has set %s of nftables on %s, made by nft 1.1.2 or later. %s", and(p.Unreadable), p.Node, says)}}
}

// CrashesAtSets reports whether the nft in the vendor's image of a version of kube-proxy crashes at sets of a later
// nft. Images before distroless-iptables 0.9.4, or 0.8.12, have such an nft (build/common.sh of k8s.io/kubernetes).
func CrashesAtSets(version string) bool {
	for _, fixed := range patchedNFT {
		if semver.MajorMinor("v"+version) == semver.MajorMinor(fixed) {
			return semver.Compare("v"+version, fixed) < 0
		}
	}
	return semver.IsValid("v"+version) && semver.Compare("v"+version, patchedNFT[0]) < 0
}

// patchedNFT has for each minor version the first release whose image is not known to crash.
var patchedNFT = []string{"v1.34.10", "v1.35.7", "v1.36.3"}

// syncs are what a kube-proxy said of the syncs of one family, at the times of the snapshots, oldest first; none if
// it says nothing now.
type syncs []struct {
	at time.Time
	snapshot.ProxySync
}

func syncsOf(history []*lookup, p snapshot.Proxy, ip netip.Addr) (all syncs) {
	if _, read := p.Sync(ip); !read {
		return nil
	}
	for _, s := range history {
		then, there := s.proxy(p.Node)
		then.Mode = p.Mode // of one that answers in part as well
		if sync, read := then.Sync(ip); there && read {
			all = append(all, syncs{{s.Time, sync}}...)
		}
	}
	return all
}

// stopped reports whether a kube-proxy does not answer, has had all its syncs fail, or has finished none for too
// long. That time begins with the first change that it knows of since its last sync, or else with that sync.
func (d ProxyConvergence) stopped(p snapshot.Proxy, all syncs) bool {
	if p.Health.Status == 0 || len(all) == 0 {
		return p.Health.Status == 0
	}
	now := all[len(all)-1]
	if now.Last.IsZero() {
		return now.Failed > 0
	}
	due := now.Last
	for _, s := range slices.Backward(all) {
		if s.Queued.After(now.Last) {
			due = s.Queued
		}
	}
	return p.Health.CurrentTime.Sub(due) >= cmp.Or(d.SlowSync, DefaultSettle)
}

// failedSince reports whether kube-proxy has counted a failed sync since the last snapshot before a moment.
func (all syncs) failedSince(since time.Time) bool {
	for _, s := range slices.Backward(all) {
		if s.Failed < all[len(all)-1].Failed || s.at.Before(since) {
			return s.Failed < all[len(all)-1].Failed
		}
	}
	return false
}

func seconds(d time.Duration) string { return d.Round(time.Second).String() }

// twiceSince reports whether kube-proxy has finished two syncs since a moment.
// The first of them may have begun before it.
func (all syncs) twiceSince(since time.Time) bool {
	finished := map[time.Time]bool{} // one of them at or before that moment
	for _, s := range all {
		if !s.at.Before(since) && !s.Last.IsZero() {
			finished[s.Last] = true
		}
	}
	return len(finished) > 2
}

// waiting names the goroutines that wait for IPVS now and were in the same calls in
// every snapshot since, by the clock of kube-proxy's node, while it finished no sync.
// They were dumped after kube-proxy reported that time.
func waiting(history []*lookup, p snapshot.Proxy) (_ []int, since time.Time) {
	stuck := p.Goroutines
	for _, s := range slices.Backward(history) {
		then, ok := s.proxy(p.Node)
		if !ok {
			continue // not read
		}
		still := slices.DeleteFunc(slices.Clone(stuck), func(g snapshot.Goroutine) bool {
			return !slices.ContainsFunc(then.Goroutines, func(h snapshot.Goroutine) bool { return g.ID == h.ID && g.Call == h.Call })
		})
		if len(still) < 2 || then.Health.Status == 0 || !then.Health.LastUpdated.Equal(p.Health.LastUpdated) {
			break
		}
		stuck, since = still, then.Health.CurrentTime
	}
	return each.Of(stuck, func(g snapshot.Goroutine) int { return g.ID }), since
}

type servicePort struct {
	service  string // namespace/name
	protocol string
	address  netip.AddrPort
}

func (p servicePort) String() string {
	return fmt.Sprintf("%s:%d/%s", p.service, p.address.Port(), p.protocol)
}

// difference is one entry of a table that is missing or wrong.
type difference struct {
	port   servicePort
	kind   string
	server netip.AddrPort // the real server that is missing or superfluous
}

func (d ProxyConvergence) lasting(history []*lookup, node string) map[difference]time.Time {
	since := map[difference]time.Time{}
	now := history[len(history)-1]
	open := d.differences(now, node)
	for diff := range open {
		since[diff] = now.Time
	}
	for _, s := range slices.Backward(history[:len(history)-1]) {
		if len(open) == 0 {
			break
		}
		if _, read := s.proxy(node); !read || !s.Services.Read || !s.EndpointSlices.Read {
			continue // not read
		}
		then := d.differences(s, node)
		for diff := range open {
			if then[diff] {
				since[diff] = s.Time
			} else {
				delete(open, diff)
			}
		}
	}
	return since
}

func (d ProxyConvergence) differences(s *lookup, node string) map[difference]bool {
	found := map[difference]bool{}
	p, read := s.proxy(node)
	if !read || !s.Services.Read || !s.EndpointSlices.Read {
		return found
	}
	table := map[servicePort]*snapshot.VirtualServer{}
	for i, v := range slices.Backward(p.Table) { // the first of an address
		table[servicePort{"", v.Protocol, v.Address}] = &p.Table[i]
	}
	for _, service := range s.Services.Items {
		if service.OtherProxy || d.Except != nil && d.Except(service.String()) {
			continue
		}
		for _, port := range service.Ports {
			wants := wantedOn(s, service, port, node)
			for _, ip := range service.ClusterIPs {
				sp := servicePort{service.String(), port.Protocol, netip.AddrPortFrom(ip, port.Port)}
				compare(found, sp, wants, table[servicePort{"", sp.protocol, sp.address}])
			}
		}
	}
	return found
}

// wanted are the endpoints of a port that a node is to send connections to.
type wanted struct {
	// must get connections: each of them or, with some, one of them at least.
	must map[netip.AddrPort]bool
	some bool
	// may get some as well, such as terminating endpoints while none is ready.
	may map[netip.AddrPort]bool
}

func wantedOn(s *lookup, service snapshot.Service, port snapshot.ServicePort, node string) wanted {
	w := wanted{may: map[netip.AddrPort]bool{}}
	w.must = servers(s, service, port, func(slice snapshot.EndpointSlice) []netip.Addr {
		w.some = w.some || slice.Hinted
		if !service.InternalLocal || len(slice.ReadyOn) != len(slice.Ready) {
			return slice.Ready
		}
		var own []netip.Addr
		for i, on := range slice.ReadyOn {
			if on == node {
				own = append(own, slice.Ready[i])
			}
		}
		return own
	})
	if len(w.must) == 0 {
		w.may = servers(s, service, port, func(slice snapshot.EndpointSlice) []netip.Addr { return slice.Draining })
	}
	return w
}

func servers(s *lookup, service snapshot.Service, port snapshot.ServicePort,
	wanted func(snapshot.EndpointSlice) []netip.Addr) map[netip.AddrPort]bool {
	found := map[netip.AddrPort]bool{}
	for _, slice := range s.slicesOf()[service.String()] {
		for _, target := range slice.Ports {
			if target.Name != port.Name || target.Protocol != port.Protocol {
				continue
			}
			for _, ip := range wanted(*slice) {
				found[netip.AddrPortFrom(ip, target.Port)] = true
			}
		}
	}
	return found
}

// compare adds the differences of one port of one cluster IP, whose virtual server may be missing.
func compare(found map[difference]bool, port servicePort, wants wanted, virtual *snapshot.VirtualServer) {
	if virtual == nil {
		if len(wants.must) > 0 { // without endpoints no connection could succeed anyway
			found[difference{port: port, kind: MissingService}] = true
		}
		return
	}
	serving, enough := map[netip.AddrPort]bool{}, false
	for _, server := range virtual.Servers {
		if server.Weight == 0 {
			continue // it gets no new connections
		}
		serving[server.Address] = true
		enough = enough || wants.some && wants.must[server.Address]
		if !wants.must[server.Address] && !wants.may[server.Address] {
			found[difference{port, StaleEndpoint, server.Address}] = true
		}
	}
	for address := range wants.must {
		// Another family's endpoints are behind the Service's other address.
		if address.Addr().Is4() == port.address.Addr().Is4() && !serving[address] && !enough {
			found[difference{port, MissingEndpoint, address}] = true
		}
	}
}

func ofKind(all map[difference]time.Time, kind string) []difference {
	matches := each.Where(slices.Collect(maps.Keys(all)), func(d difference) bool { return d.kind == kind })
	slices.SortFunc(matches, func(a, b difference) int {
		return cmp.Or(cmp.Compare(a.port.service, b.port.service), a.port.address.Compare(b.port.address),
			cmp.Compare(a.port.protocol, b.port.protocol), a.server.Compare(b.server))
	})
	return matches
}

const noSync = "has finished no sync since its start"

func says(p snapshot.Proxy, kind string, all []difference, since map[difference]time.Time, now time.Time) string {
	oldest := slices.MinFunc(all, func(a, b difference) int { return since[a].Compare(since[b]) })
	named := few(each.Of(all, func(d difference) string {
		if kind == MissingService {
			return fmt.Sprintf("%s (%s)", d.port, d.port.address)
		}
		return fmt.Sprintf("%s of %s", d.server, d.port)
	}))
	what := map[string]string{
		MissingService:  "has nothing for Services with ready endpoints",
		MissingEndpoint: "sends no connection to ready endpoints",
		StaleEndpoint:   "sends connections to addresses that are in no EndpointSlice",
	}[kind]
	last, read := p.Sync(oldest.port.address.Addr())
	sync := fmt.Sprintf("kube-proxy's last sync was %s ago", seconds(p.Health.CurrentTime.Sub(last.Last)))
	switch {
	case p.Health.Status == 0:
		sync = "kube-proxy does not answer"
	case !read:
		sync = "kube-proxy's syncs were not read"
	case last.Last.IsZero():
		sync = "kube-proxy " + noSync
	}
	if last.Failed > 0 {
		sync += fmt.Sprintf(" (%d failed)", last.Failed)
	}
	return fmt.Sprintf("The %s table of %s %s: %s; the oldest difference has lasted for %s or longer, and %s.",
		p.Kernel(), p.Node, what, and(named), seconds(now.Sub(since[oldest])), sync)
}
