package router

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// birdSession is a BGP session of BIRD.
type birdSession struct {
	Neighbor
	protocol string // its name
	localAS  uint32
}

// birdTime is the format "iso long us". The zone is that of the process, UTC.
const birdTime = "2006-01-02 15:04:05.999999"

// birdWhen reads a time of a BIRD that the lab has configured.
func birdWhen(text string) (time.Time, error) { return time.Parse(birdTime, text) }

// parseBIRDSessions reads the sessions of what `birdc show protocols all` prints (BIRD 2).
// Protocols that only accept sessions from a range are left out. When reads a time.
func parseBIRDSessions(text string, when func(string) (time.Time, error)) ([]birdSession, error) {
	var all []birdSession
	current := -1 // in all; -1 in a protocol that is not BGP
	for number, line := range slices.Collect(strings.Lines(text)) {
		wrong := func(err error) error {
			return fmt.Errorf("line %d of BIRD's protocols: %w: %q", number+1, err, line)
		}
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case !strings.HasPrefix(line, " "):
			// Name, Proto, Table, State, Since (date and time, where the lab has configured
			// it), Info.
			if current = -1; len(words) < 5 || words[1] != "BGP" {
				continue
			}
			since, err := when(strings.Join(words[4:min(6, len(words))], " ")) // without Info one word is enough
			if err != nil {
				return nil, wrong(err)
			}
			current = len(all)
			all = append(all, birdSession{protocol: words[0], Neighbor: Neighbor{Established: since}})
		case current >= 0:
			if err := all[current].detail(strings.TrimSpace(line)); err != nil {
				return nil, wrong(err)
			}
		}
	}
	all = slices.DeleteFunc(all, func(s birdSession) bool { return !s.Address.IsValid() })
	for i, s := range all {
		if s.State != StateEstablished { // Since and Routes are of another state
			all[i].Established, all[i].Received, all[i].Accepted = time.Time{}, 0, 0
		}
	}
	return all, nil
}

// birdRestricted is what birdc -r says first.
const birdRestricted = "Access restricted"

var birdRoutes = regexp.MustCompile(`^(\d+) imported, (?:(\d+) filtered, )?`)

// detail reads an indented line of a session.
func (s *birdSession) detail(line string) (err error) {
	label, value, _ := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	number := func(text string, bits int) (n uint64) {
		if err == nil && text != "" {
			n, err = strconv.ParseUint(text, 10, bits)
		}
		return n
	}
	switch label {
	case "BGP state":
		s.State = strings.ToLower(value)
		if s.State == "passive" {
			s.State = "active" // RFC 4271's word for a peer whose connection is awaited
		}
	case "Neighbor address":
		s.Address, err = netip.ParseAddr(value)
	case "Neighbor AS":
		s.AS = uint32(number(value, 32))
	case "Local AS":
		s.localAS = uint32(number(value, 32))
	case "Neighbor ID":
		s.RouterID, err = netip.ParseAddr(value)
	case "Hold timer": // remaining/negotiated
		_, negotiated, _ := strings.Cut(value, "/")
		s.HoldTime = time.Duration(number(negotiated, 16)) * time.Second
	case "Routes":
		if m := birdRoutes.FindStringSubmatch(value); m != nil {
			s.Accepted = number(m[1], 64)
			s.Received = s.Accepted + number(m[2], 64)
		}
	}
	return err
}

// birdRoute is the first line of a route: the prefix, which other routes to it do not
// repeat, the type, the protocol, the time, and an asterisk on the route that is used.
var birdRoute = regexp.MustCompile(`^(\S*)\s+([a-z]+) \[(\S+) ([^\]]+?)(?: from \S+)?\]( [*!])?`)

// parseBIRDPaths reads the RIB of what `birdc show route all` prints (BIRD 2), by prefix,
// then by preference. A path that discards packets is not the best one. Routes that are not of one of the sessions are left out. When reads a
// time.
//
// BIRD marks the best of all sources. A static route is better than a path: the first of
// the paths by rank is then the best.
func parseBIRDPaths(text string, sessions []birdSession, when func(string) (time.Time, error)) ([]Path, error) {
	type ranked struct {
		Path
		rank rank
		// discards is set for an unreachable next hop, for example.
		discards bool
	}
	var all []ranked
	var prefix netip.Prefix
	current := -1 // in all; -1 in a route of another source
	for number, line := range slices.Collect(strings.Lines(text)) {
		line = strings.TrimRight(line, "\n")
		wrong := func(err error) error {
			return fmt.Errorf("line %d of BIRD's routes: %w: %q", number+1, err, line)
		}
		if detail, indented := strings.CutPrefix(line, "\t"); indented {
			if current >= 0 {
				if err := all[current].birdDetail(detail, &all[current].rank); err != nil {
					return nil, wrong(err)
				}
			}
			continue
		}
		m := birdRoute.FindStringSubmatch(line)
		if m == nil {
			if line == "" || strings.HasPrefix(line, "Table ") || strings.HasPrefix(line, "BIRD ") || line == birdRestricted {
				continue
			}
			return nil, wrong(errors.New("it is no route"))
		}
		if m[5] == " !" {
			return nil, wrong(errors.New("the kernel has refused it"))
		}
		var err error
		if m[1] != "" {
			if prefix, err = netip.ParsePrefix(m[1]); err != nil {
				return nil, wrong(err)
			}
		}
		current = -1
		i := slices.IndexFunc(sessions, func(s birdSession) bool { return s.protocol == m[3] })
		if i < 0 {
			continue
		}
		s := sessions[i]
		p := Path{Prefix: prefix, Neighbor: s.Address, LocalPref: defaultLocalPref, Internal: s.AS == s.localAS, Best: m[5] != ""}
		if p.Received, err = when(m[4]); err != nil {
			return nil, wrong(err)
		}
		current = len(all)
		all = append(all, ranked{Path: p, rank: rank{internal: p.Internal, localPref: p.LocalPref}, discards: m[2] != "unicast"})
	}
	slices.SortStableFunc(all, func(a, b ranked) int {
		return cmp.Or(comparePrefixes(a.Prefix, b.Prefix), firstIf(a.Best, b.Best), compareRanks(a.rank, b.rank))
	})
	paths := []Path{}
	var best rank
	for i, p := range all {
		if i == 0 || all[i-1].Prefix != p.Prefix {
			best, p.Best = p.rank, true
		}
		p.Multipath = p.rank == best
		if p.discards {
			p.Best, p.Multipath = false, false
		}
		paths = append(paths, p.Path)
	}
	return paths, nil
}

// birdDetail reads an indented line of a path.
func (p *Path) birdDetail(line string, r *rank) (err error) {
	label, value, _ := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	number := func(text string) (n uint32) {
		if err == nil {
			var v uint64
			v, err = strconv.ParseUint(text, 10, 32)
			n = uint32(v)
		}
		return n
	}
	switch label {
	case "BGP.origin":
		p.Origin = strings.ToLower(value)
		r.origin = uint8(slices.Index([]string{"igp", "egp", "incomplete"}, p.Origin))
	case "BGP.as_path":
		// The members of an AS_SET are in braces, and count as one.
		set := false
		for word := range strings.FieldsSeq(value) {
			opens, closes := strings.HasPrefix(word, "{"), strings.HasSuffix(word, "}")
			if word = strings.Trim(word, "{}"); word != "" {
				p.ASPath = append(p.ASPath, number(word))
			}
			if !set {
				r.asPathLen++
			}
			set = (set || opens) && !closes
		}
	case "BGP.next_hop":
		global, _, _ := strings.Cut(value, " ") // one of IPv6 has a link-local address as well
		p.NextHop, err = netip.ParseAddr(global)
	case "BGP.med":
		p.MED = number(value)
	case "BGP.local_pref":
		p.LocalPref = number(value)
	}
	r.med, r.localPref = p.MED, p.LocalPref
	return err
}
