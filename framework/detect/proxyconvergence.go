package detect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/snapshot"
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
	// can write no rule.
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

// ProxyConvergence compares the tables of IPVS and of nftables that kube-proxies keep with Services and EndpointSlices.
// A difference is a finding, an active one, when it has lasted for Settle and kube-proxy has
// stopped: it has finished no sync for SlowSync, or does not answer. It also is one when it has
// lasted for twice Settle and two syncs were finished meanwhile, the second of which must have
// begun after it. So neither a rollout nor a slow sync is one. Until then a difference is pending.
// A Service without endpoints is no difference. In mode nftables a difference of failedSettle is one as well,
// if kube-proxy counts a failed sync since it began.
//
// Where two goroutines wait for each other's answers, which never ends, a difference is active at
// once. Two snapshots prove that: in both the same goroutines are in the same calls, and no sync
// was finished in between. In a slow kube-proxy, one call has ended and the next has begun.
//
// An old sync alone, and goroutines that wait, are latent findings: no connections
// fail until a Service changes. They are active on a node that has differences.
//
// A node that gives packets to its own endpoints alone (internalTrafficPolicy Local) must have
// those, and where endpoints are meant for some zones or nodes (topology hints) it needs some of
// them. Endpoints that terminate serve where none is ready. Services that kube-proxy leaves to
// another proxy are not examined, and neither are nodes whose kube-proxy is known to run in
// another mode.
type ProxyConvergence struct {
	// SlowSync is how long a kube-proxy may go without finishing a sync before it counts as
	// stopped; zero means DefaultSettle. It is for nodes on which a sync takes longer.
	SlowSync time.Duration
	// Except reports which Services, by namespace/name, are not examined; nil: all
	// are. It is for those of a load that changes them without pause: on a healthy
	// node too, some of them are always pending.
	Except func(service string) bool
}

func (ProxyConvergence) Name() string { return "proxy-convergence" }

func (ProxyConvergence) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.Services, snapshot.EndpointSlices, snapshot.Proxies}
}

// Detect implements Detector. Findings are in order of node; those of one node begin with what is
// wrong with kube-proxy itself, and go on with one for each kind of difference, which names some of
// the Services: on a node whose syncs have stopped, all that change differ sooner or later.
// Differences of a kind that are pending make a finding of their own, after the active one. Object
// is kube-proxy or the node, Announcer the node.
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
	stopped := p.Health.Status == 0 || p.Health.Age() >= cmp.Or(d.SlowSync, DefaultSettle)
	overdue, pending := map[difference]time.Time{}, map[difference]time.Time{}
	for diff, since := range d.lasting(history, p.Node) {
		lasts := now.Sub(since)
		if deadlock || lasts >= failedSettle && failedSince(history, p, since) || lasts >= DefaultSettle && stopped || lasts >= 2*DefaultSettle && syncedTwice(history, p.Node, since) {
			overdue[diff] = since
		} else {
			pending[diff] = since
		}
	}
	state := Latent
	if len(overdue) > 0 {
		state = Active
	}
	var findings []Finding
	if p.Health.Late() {
		findings = append(findings, Finding{
			Kind: FrozenSync, State: state, Object: Named("kube-proxy"),
			Says: fmt.Sprintf("kube-proxy on %s finished its last sync %s ago, which it reports as too long (healthz: %d).",
				p.Node, seconds(p.Health.Age()), p.Health.Status),
		})
	}
	switch {
	case deadlock:
		findings = append(findings, Finding{
			Kind: NetlinkDeadlock, State: state, Object: Named("kube-proxy"),
			Says: fmt.Sprintf("goroutines %s of kube-proxy on %s have been waiting for the kernel's answers about IPVS for %s "+
				"or longer: they share a netlink socket, and each has discarded the answer to the other.",
				and(stuck), p.Node, seconds(p.Health.CurrentTime.Sub(stuckSince))),
		})
	case len(stuck) > 1 && state == Active: // else it would only become latent
		findings = append(findings, Finding{
			Kind: NetlinkDeadlock, State: Pending, Object: Named("kube-proxy"),
			Says: fmt.Sprintf("goroutines %s of kube-proxy on %s have been waiting for the kernel's answers about IPVS for %s "+
				"or longer; pending: this counts as a deadlock after %s.",
				and(stuck), p.Node, seconds(p.Health.CurrentTime.Sub(stuckSince)), stuckFor),
		})
	}
	if len(p.Unreadable) > 0 && CrashesAtSets(p.Version) {
		findings = append(findings, Finding{
			Kind: UnreadableSet, State: Latent, Object: Named("kube-proxy"),
			Says: fmt.Sprintf("Another program than kube-proxy has set %s of nftables on %s, made by nft 1.1.2 or later. The nft 1.0.6 in images of "+
				"kube-proxy %s crashes when it reads that, and kube-proxy can write no rule until it is gone.", and(p.Unreadable), p.Node, p.Version),
		})
	}
	for _, kind := range []string{MissingService, MissingEndpoint, StaleEndpoint} {
		if differences := ofKind(overdue, kind); len(differences) > 0 {
			findings = append(findings, Finding{Kind: kind, State: Active, Object: Named(p.Node), Says: says(p, kind, differences, now)})
		}
		if differences := ofKind(pending, kind); len(differences) > 0 {
			given := fmt.Sprintf(" Pending: this becomes active after %s, or after %s and two syncs while kube-proxy finishes syncs.", DefaultSettle,
				2*DefaultSettle)
			findings = append(findings, Finding{Kind: kind, State: Pending, Object: Named(p.Node), Says: says(p, kind, differences, now) + given})
		}
	}
	return findings
}

// CrashesAtSets reports whether the vendor's image of a version of kube-proxy has an nft that crashes at sets of a later one:
// those before distroless-iptables 0.9.4, or 0.8.12 (build/common.sh of k8s.io/kubernetes).
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

// failedSince reports whether a kube-proxy counts more failed syncs than in the last snapshot before a moment.
func failedSince(history []*lookup, p snapshot.Proxy, since time.Time) bool {
	for _, s := range slices.Backward(history) {
		if then, read := s.proxy(p.Node); read && s.Time.Before(since) && then.Mode != "" {
			return p.FailedSyncs > then.FailedSyncs
		}
	}
	return false
}

func seconds(d time.Duration) string { return d.Round(time.Second).String() }

// syncedTwice reports whether a kube-proxy has finished two syncs since a moment.
// The first of them may have begun before it.
func syncedTwice(history []*lookup, node string, since time.Time) bool {
	finished := map[time.Time]bool{} // one of them at or before that moment
	for _, s := range history {
		if p, read := s.proxy(node); read && !s.Time.Before(since) && !p.Health.LastUpdated.IsZero() {
			finished[p.Health.LastUpdated] = true
		}
	}
	return len(finished) > 2
}

// waiting names the goroutines that wait for IPVS now and were in the same calls in
// every snapshot since, by the clock of kube-proxy's node, while it finished no sync.
// They were dumped after kube-proxy reported that time.
func waiting(history []*lookup, p snapshot.Proxy) (ids []int, since time.Time) {
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
	for _, g := range stuck {
		ids = append(ids, g.ID)
	}
	return ids, since
}

// servicePort is a port of a cluster IP.
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
	type key struct {
		protocol string
		address  netip.AddrPort
	}
	table := map[key]*snapshot.VirtualServer{}
	for i := range slices.Backward(p.Table) { // the first of an address
		table[key{p.Table[i].Protocol, p.Table[i].Address}] = &p.Table[i]
	}
	for _, service := range s.Services.Items {
		if service.OtherProxy || d.Except != nil && d.Except(service.String()) {
			continue
		}
		for _, port := range service.Ports {
			wants := wantedOn(s, service, port, node)
			for _, ip := range service.ClusterIPs {
				sp := servicePort{service.String(), port.Protocol, netip.AddrPortFrom(ip, port.Port)}
				compare(found, sp, wants, table[key{sp.protocol, sp.address}])
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
	// may get some as well, such as those that terminate while none is ready.
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
	for _, i := range s.slicesOf()[service.String()] {
		slice := s.EndpointSlices.Items[i]
		for _, target := range slice.Ports {
			if target.Name != port.Name || target.Protocol != port.Protocol {
				continue
			}
			for _, ip := range wanted(slice) {
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

// lasted is a difference and since when it has existed.
type lasted struct {
	difference
	since time.Time
}

func ofKind(differences map[difference]time.Time, kind string) []lasted {
	var all []lasted
	for d, since := range differences {
		if d.kind == kind {
			all = append(all, lasted{d, since})
		}
	}
	slices.SortFunc(all, func(a, b lasted) int {
		return cmp.Or(cmp.Compare(a.port.service, b.port.service), a.port.address.Compare(b.port.address),
			cmp.Compare(a.port.protocol, b.port.protocol), a.server.Compare(b.server))
	})
	return all
}

// says is one sentence about all differences of a kind on a node.
func says(p snapshot.Proxy, kind string, all []lasted, now time.Time) string {
	oldest := now
	var named []string
	for _, d := range all {
		if d.since.Before(oldest) {
			oldest = d.since
		}
		switch {
		case len(named) == maxNamed:
		case kind == MissingService:
			named = append(named, fmt.Sprintf("%s (%s)", d.port, d.port.address))
		default:
			named = append(named, fmt.Sprintf("%s of %s", d.server, d.port))
		}
	}
	if more := len(all) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	what := map[string]string{
		MissingService:  "has nothing for Services with ready endpoints",
		MissingEndpoint: "sends no connection to ready endpoints",
		StaleEndpoint:   "sends connections to addresses that are in no EndpointSlice",
	}[kind]
	sync := "kube-proxy does not answer"
	if p.Health.Status != 0 {
		sync = fmt.Sprintf("kube-proxy's last sync was %s ago", seconds(p.Health.Age()))
		if p.FailedSyncs > 0 {
			sync += fmt.Sprintf(" (%d failed)", p.FailedSyncs)
		}
	}
	return fmt.Sprintf("The %s table of %s %s: %s; the oldest difference has lasted for %s or longer, and %s.",
		p.Kernel(), p.Node, what, and(named), seconds(now.Sub(oldest)), sync)
}
