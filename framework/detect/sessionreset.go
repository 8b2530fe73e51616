package detect

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Kinds of findings of SessionReset.
const (
	// SessionsReset: BGP sessions ended and came up anew after a Service had changed.
	SessionsReset = "sessions-reset"
	// ResetsAhead: the next change of a Service will reset BGP sessions.
	ResetsAhead = "resets-ahead"
)

// SessionReset finds BGP sessions of MetalLB's speakers in FRR mode that each change of a Service resets
// (metallb#1944). Up to 0.14.5 the configuration that a speaker writes for a peer with a BFD profile lacks a
// line of what FRR runs, so that frr-reload.py removes BFD from the peer and adds it again (metallb#2454).
//
// Latent is a peer with a profile under such a version. A session is reset by a Service if it was up, is down or
// younger a moment after an address of a Service came or went, and the speaker's pod is the same. With a
// version that is not known to do so the second reset of a session is active, and the first one pending.
type SessionReset struct{}

const (
	// keepsBFD is the first version of MetalLB that keeps BFD.
	keepsBFD = "v0.14.6"
	// resetWithin is how long after the change of a Service a session may end by it: a speaker collects changes for
	// 3 s, and a script in Python, which may have to wait for a processor, then reloads FRR.
	resetWithin = 15 * time.Second
	// resetStays is how long a reset is reported: traffic is well again after 2 s, until the next change.
	resetStays = 15 * time.Second
)

func (SessionReset) Name() string { return "session-reset" }

func (SessionReset) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.RunningImages, snapshot.MetalLBPeers, snapshot.Nodes, snapshot.Services, snapshot.Routers}
}

// Detect implements Detector. Findings are in order of the versions, the latent one of each first.
func (d SessionReset) Detect(history []snapshot.Snapshot, _ *Index) (findings []Finding) {
	now := history[len(history)-1]
	byVersion := map[string]map[string]frrSpeaker{}
	if len(profiled(now)) > 0 {
		for node, s := range frrSpeakers(now) {
			if byVersion[s.version] == nil {
				byVersion[s.version] = map[string]frrSpeaker{}
			}
			byVersion[s.version][node] = s
		}
	}
	resets := resetsOf(history)
	for _, r := range resets {
		if _, there := byVersion[r.by.version]; !there {
			byVersion[r.by.version] = nil
		}
	}
	for _, version := range slices.Sorted(maps.Keys(byVersion)) {
		if speakers := byVersion[version]; len(speakers) > 0 && dropsBFD(version) {
			findings = append(findings, Finding{
				Kind: ResetsAhead, State: Latent, Object: Named("MetalLB " + version),
				Says: fmt.Sprintf("MetalLB %s resets the BGP sessions of %s with each Service that gets or loses an address, "+
					"because BGPPeer %s has a BFD profile. 0.14.6 does not.%s",
					version, and(few(slices.Sorted(maps.Keys(speakers)))), and(few(profiled(now))), young(now, speakers)),
			})
		}
		if f, there := resetBy(version, resets); there {
			findings = append(findings, f)
		}
	}
	return findings
}

func resetBy(version string, all []sessionReset) (f Finding, there bool) {
	f = Finding{Kind: SessionsReset, State: Pending, Object: Named(strings.TrimSpace("MetalLB " + version))}
	nodes, routers, times, services := map[string]bool{}, map[string]bool{}, map[[2]string]int{}, map[string]bool{}
	for _, r := range all {
		if r.by.version != version {
			continue
		}
		session := [2]string{r.router, r.node}
		if times[session]++; times[session] > 1 || dropsBFD(version) {
			f.State = Active
		}
		nodes[r.node], routers[r.router], services[r.service] = true, true, true
	}
	f.Routers = slices.Sorted(maps.Keys(routers))
	f.Says = fmt.Sprintf("BGP sessions of %s with %s ended after Service %s had changed, and their speakers are the same: "+
		"the routes of all Services over these nodes were gone until the sessions came up anew.",
		and(few(slices.Sorted(maps.Keys(nodes)))), and(f.Routers), and(few(slices.Sorted(maps.Keys(services)))))
	return f, len(nodes) > 0
}

// dropsBFD reports whether a version of MetalLB is known to reset sessions.
func dropsBFD(version string) bool {
	return version != "" && semver.Compare("v"+version, keepsBFD) < 0
}

func profiled(s snapshot.Snapshot) (names []string) {
	with := each.Where(s.MetalLBPeers.Items, func(p snapshot.MetalLBPeer) bool { return p.BFDProfile != "" })
	return each.Of(with, snapshot.MetalLBPeer.String)
}

// frrSpeaker is a speaker of MetalLB that runs FRR in its pod. Two are equal if it has not been restarted.
type frrSpeaker struct {
	version  string // of its tag; empty if that names no release
	pod      string
	restarts int
	created  time.Time
}

// frrSpeakers are the speakers by node. Vendor's and distributions' manifests give the containers these names.
func frrSpeakers(s snapshot.Snapshot) map[string]frrSpeaker {
	all := map[string]frrSpeaker{}
	for _, p := range s.PodImages.Items {
		entry, frr, speaker := frrSpeaker{pod: p.UID, created: p.Created}, false, false
		for _, c := range p.Containers {
			entry.restarts += c.Restarts
			frr = frr || c.Name == "frr" && !c.Init
			if ref, err := snapshot.ParseReference(c.Image); c.Name == "speaker" && err == nil &&
				(path.Base(path.Dir(ref.Name)) == "metallb" || strings.Contains(path.Base(ref.Name), "metallb")) {
				speaker = true
				entry.version = metalLBRelease(ref.Tag)
			}
		}
		if frr && speaker {
			all[p.Node] = entry
		}
	}
	return all
}

type sessionReset struct {
	router, node, service string
	by                    frrSpeaker
}

// resetsOf are the resets of the last resetStays, by speakers of peers with a BFD profile.
func resetsOf(history []snapshot.Snapshot) (all []sessionReset) {
	now := history[len(history)-1]
	nodes := map[string]string{}
	for _, n := range now.Nodes.Items {
		for _, a := range n.InternalIPs {
			nodes[a.String()] = n.Name
		}
	}
	service, changed := "", time.Time{}
	for i := 1; i < len(history); i++ {
		before, after := history[i-1], history[i]
		if name := changedService(before, after); name != "" {
			service, changed = name, after.Time
		}
		if service == "" || after.Time.Sub(changed) > resetWithin || now.Time.Sub(after.Time) > resetStays ||
			len(profiled(before)) == 0 || len(profiled(after)) == 0 {
			continue
		}
		for _, ended := range endedSessions(before, after) {
			node := nodes[ended.neighbor.Address.String()]
			by, found := frrSpeakers(before)[node]
			if found && frrSpeakers(after)[node] == by {
				all = append(all, sessionReset{ended.router, node, service, by})
			}
		}
	}
	return all
}

type endedSession struct {
	router   string
	neighbor snapshot.Neighbor
}

// endedSessions are the sessions that were up in one snapshot, and in the next one are down or have come up since.
func endedSessions(before, after snapshot.Snapshot) (all []endedSession) {
	for _, was := range before.Routers {
		i := slices.IndexFunc(after.Routers, func(r snapshot.Router) bool { return r.Name == was.Name })
		if i < 0 || !was.Neighbors.Read || !after.Routers[i].Neighbors.Read {
			continue
		}
		for _, n := range was.Neighbors.Items {
			stays := func(o snapshot.Neighbor) bool {
				return o.Address == n.Address && o.State == n.State && o.Established.Equal(n.Established)
			}
			if n.State == snapshot.SessionEstablished && !slices.ContainsFunc(after.Routers[i].Neighbors.Items, stays) {
				all = append(all, endedSession{was.Name, n})
			}
		}
	}
	return all
}

// changedService names a Service whose addresses are others than in the snapshot before; empty if none is.
func changedService(before, after snapshot.Snapshot) string {
	if !before.Services.Read || !after.Services.Read {
		return ""
	}
	same := func(a, b snapshot.Service) bool {
		return a.Name == b.Name && a.Namespace == b.Namespace && slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs)
	}
	if slices.EqualFunc(before.Services.Items, after.Services.Items, same) {
		return ""
	}
	a, b := withAddress(before), withAddress(after)
	i := 0
	for i < len(a) && i < len(b) && same(a[i], b[i]) {
		i++
	}
	// The first Service that is gone, or new.
	next := each.Of(slices.Concat(a[i:min(i+1, len(a))], b[i:min(i+1, len(b))]), snapshot.Service.String)
	if len(next) == 0 {
		return ""
	}
	return slices.Min(next)
}

func withAddress(s snapshot.Snapshot) []snapshot.Service {
	return each.Where(s.Services.Items, func(o snapshot.Service) bool { return len(o.LoadBalancerIPs) > 0 })
}

// young says that all sessions of speakers came up a moment after the newest Service was created, if that is so
// and the speakers are older: what one snapshot shows of a reset.
func young(s snapshot.Snapshot, speakers map[string]frrSpeaker) string {
	all := withAddress(s)
	if len(all) == 0 {
		return ""
	}
	newest := slices.MaxFunc(all, func(a, b snapshot.Service) int { return a.Created.Compare(b.Created) })
	created, sessions := s.Time.Add(-s.Age(newest.Created)), 0
	for _, n := range s.Nodes.Items {
		for _, r := range s.Routers {
			for _, neighbor := range r.Neighbors.Items {
				speaker, found := speakers[n.Name]
				if !found || !slices.Contains(n.InternalIPs, neighbor.Address) || neighbor.State != snapshot.SessionEstablished {
					continue
				}
				if delay := neighbor.Established.Sub(created); delay < 0 || delay > resetWithin || !speaker.created.Before(newest.Created) {
					return ""
				}
				sessions++
			}
		}
	}
	if sessions == 0 {
		return ""
	}
	return fmt.Sprintf(" All %d sessions came up within %s after Service %s was created, and the speakers are older.",
		sessions, resetWithin, newest)
}
