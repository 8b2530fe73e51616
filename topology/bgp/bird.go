package bgp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// BIRD reads BIRD 2.
type BIRD struct {
	// Ask runs a command of birdc and returns its output.
	Ask func(ctx context.Context, command string) (string, error)
	// When reads a time of the sessions. It is nil where the format and the zone are not known:
	// no time is set then.
	When func(text string) (time.Time, error)
}

// The commands of BIRD's reader.
const (
	BIRDShowRoutes    = "show route all where (net.type = NET_IP4 || net.type = NET_IP6) && source = RTS_BGP"
	BIRDShowProtocols = "show protocols all"
)

// RIB lists the paths of both families, by prefix, then by preference.
func (b BIRD) RIB(ctx context.Context) ([]Path, error) {
	// The sessions are read after the routes, whose protocols they name: the paths of a session
	// that has ended since are gone.
	routes, err := b.Ask(ctx, BIRDShowRoutes)
	if err != nil {
		return nil, err
	}
	return ask(ctx, b.Ask, "birdc ", BIRDShowProtocols, func(protocols string) ([]Path, error) { return BIRDPaths(routes, protocols) })
}

// Neighbors lists the sessions in order of address.
func (b BIRD) Neighbors(ctx context.Context) ([]Neighbor, error) {
	return ask(ctx, b.Ask, "birdc ", BIRDShowProtocols, func(text string) ([]Neighbor, error) { return birdNeighbors(text, b.When) })
}

// BIRDProtocol is one protocol of a BIRD, with the values that birdc prints.
type BIRDProtocol struct {
	Name string `json:"name"`
	// Proto is what it speaks: BGP, Kernel, Device, Direct and so on.
	Proto string `json:"proto"`
	// Since is when it came into its state, as BIRD prints it: a time today, or a date.
	Since string `json:"since"`

	// The fields below are of BGP alone.

	// BGPState is the session's state, such as Established.
	BGPState  string     `json:"bgp_state,omitempty"`
	Neighbor  netip.Addr `json:"neighbor,omitzero"`
	PeerASN   uint32     `json:"peer_asn,omitempty"`
	LastError string     `json:"last_error,omitempty"`
}

// BIRDEstablished is the BGPState of a session that is up.
const BIRDEstablished = "Established"

// BIRDProtocols reads what `birdc show protocols all` prints (BIRD 1.6 and 2).
func BIRDProtocols(text string) ([]BIRDProtocol, error) {
	all, err := parseBIRDProtocols(text)
	var protocols []BIRDProtocol
	for _, p := range all {
		protocols = append(protocols, p.BIRDProtocol)
	}
	return protocols, err
}

// birdProtocol is a protocol with the details of its session.
type birdProtocol struct {
	BIRDProtocol
	routerID           netip.Addr
	localAS            uint32
	imported, filtered uint64 // of all channels
	refused            uint64 // updates that filters have refused so far
}

// birdRestricted is what birdc -r says first.
const birdRestricted = "Access restricted"

func parseBIRDProtocols(text string) ([]birdProtocol, error) {
	var all []birdProtocol
	number, table := 0, false
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, " \r\n")
		var err error
		switch {
		case strings.HasPrefix(line, birdReady), line == "", strings.EqualFold(line, birdRestricted):
		case isBIRDHeader(line):
			table = true
		case !table:
			err = fmt.Errorf("want the table's heading, got %q", line)
		case !strings.HasPrefix(line, " "):
			var p birdProtocol
			p.BIRDProtocol, err = parseBIRDRow(line)
			all = append(all, p)
		case len(all) == 0:
			err = fmt.Errorf("details of no protocol: %q", line)
		default:
			err = all[len(all)-1].detail(line)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d of BIRD's protocols: %w", number, err)
		}
	}
	if !table {
		return nil, errors.New("no table of protocols in BIRD's answer")
	}
	return all, nil
}

func isBIRDHeader(line string) bool {
	words := strings.Fields(strings.ToLower(line))
	return len(words) >= 5 && words[0] == "name" && words[1] == "proto"
}

var (
	birdDate = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`)
	birdTime = regexp.MustCompile(`^\d{2}:\d{2}`)
)

// parseBIRDRow reads name, proto, table, state and since.
func parseBIRDRow(line string) (BIRDProtocol, error) {
	words := strings.Fields(line)
	if len(words) < 5 {
		return BIRDProtocol{}, fmt.Errorf("want name, proto, table, state and since, got %q", line)
	}
	p := BIRDProtocol{Name: words[0], Proto: words[1], Since: words[4]}
	if birdDate.MatchString(p.Since) && len(words) > 5 && birdTime.MatchString(words[5]) { // "iso long"
		p.Since += " " + words[5]
	}
	return p, nil
}

var birdCounts = regexp.MustCompile(`^(\d+) imported, (?:(\d+) filtered, )?`)

// detail reads an indented line. It ignores most.
func (p *birdProtocol) detail(line string) error {
	label, value, _ := strings.Cut(strings.TrimSpace(line), ":")
	if value = strings.TrimSpace(value); value == "" || p.Proto != "BGP" {
		return nil
	}
	var err error
	number := func(text string, bits int) (n uint64) {
		if err == nil && text != "" {
			n, err = strconv.ParseUint(text, 10, bits)
		}
		return n
	}
	switch label {
	case "BGP state":
		p.BGPState = value
	case "Neighbor address":
		p.Neighbor, err = netip.ParseAddr(value)
	case "Neighbor AS":
		p.PeerASN = uint32(number(value, 32))
	case "Local AS":
		p.localAS = uint32(number(value, 32))
	case "Neighbor ID":
		p.routerID, err = netip.ParseAddr(value)
	case "Routes":
		if m := birdCounts.FindStringSubmatch(value); m != nil {
			p.imported += number(m[1], 64)
			p.filtered += number(m[2], 64)
		}
	case "Import updates": // received, rejected, filtered, ignored, accepted
		if counts := strings.Fields(value); len(counts) == 5 && counts[2] != "---" {
			p.refused += number(counts[2], 64)
		}
	case "Last error":
		p.LastError = value
	}
	if err != nil {
		return fmt.Errorf("protocol %s: %s: %w", p.Name, label, err)
	}
	return nil
}

// session is the neighbour of a protocol. When reads a time, unless it is nil.
func (p birdProtocol) session(when func(string) (time.Time, error)) (Neighbor, error) {
	n := Neighbor{Address: p.Neighbor, AS: p.PeerASN, State: strings.ToLower(p.BGPState)}
	switch n.State {
	case "passive":
		n.State = "active" // RFC 4271's word for a peer whose connection is awaited
	case StateEstablished: // in other states Since and Routes do not describe the session
		n.RouterID, n.Accepted, n.Received = p.routerID, p.imported, p.imported+p.filtered
		n.MayReject = p.refused > 0 && p.filtered == 0 // without "import keep filtered" they are not counted
		if when != nil {
			var err error
			if n.Established, err = when(p.Since); err != nil {
				return Neighbor{}, fmt.Errorf("protocol %s of BIRD: since: %w", p.Name, err)
			}
		}
	}
	return n, nil
}

// birdReady is the beginning of birdc's output.
const birdReady = "BIRD "

// birdSessions reads the sessions of a whole answer: one that was cut off has no sessions.
// Protocols that only accept sessions from a range are left out.
func birdSessions(text string) ([]birdProtocol, error) {
	if !strings.HasPrefix(text, birdReady) {
		return nil, fmt.Errorf("reading BIRD's protocols: want %q and a heading first, got %q", birdReady, firstLine(text))
	}
	all, err := parseBIRDProtocols(text)
	return slices.DeleteFunc(all, func(p birdProtocol) bool { return !p.Neighbor.IsValid() }), err
}

func birdNeighbors(text string, when func(string) (time.Time, error)) ([]Neighbor, error) {
	sessions, err := birdSessions(text)
	if err != nil {
		return nil, err
	}
	neighbors := []Neighbor{}
	for _, s := range sessions {
		n, err := s.session(when)
		if err != nil {
			return nil, err
		}
		neighbors = append(neighbors, n)
	}
	sortNeighbors(neighbors)
	return neighbors, nil
}

// birdRoute is the first line of a route: the prefix, which other routes to it do not
// repeat, the type, the protocol, the time, and an asterisk on the route that is used.
var birdRoute = regexp.MustCompile(`^(\S*)\s+([a-z]+) \[(\S+) ([^\]]+?)(?: from \S+)?\]( [*!])?`)

// BIRDPaths reads the RIB that `birdc show route all` prints, with the sessions that
// `birdc show protocols all` prints (BIRD 2), by prefix, then by preference. A path that
// discards packets is not the best one. Routes of other protocols are left out. No time is set.
//
// BIRD marks the best route of all sources. If that is a static route, the first path by rank is
// marked instead.
func BIRDPaths(routes, protocols string) ([]Path, error) {
	sessions, err := birdSessions(protocols)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(routes, birdReady) {
		return nil, fmt.Errorf("reading BIRD's RIB: want %q first, got %q", birdReady, firstLine(routes))
	}
	var all []ranked
	var prefix netip.Prefix
	current := -1 // the index in all; -1 in a route of another source
	number := 0
	for line := range strings.Lines(routes) {
		number++
		line = strings.TrimRight(line, "\n")
		wrong := func(err error) error {
			return fmt.Errorf("line %d of BIRD's routes: %w: %q", number, err, line)
		}
		if detail, indented := strings.CutPrefix(line, "\t"); indented {
			if current >= 0 {
				if err := all[current].birdDetail(detail); err != nil {
					return nil, wrong(err)
				}
			}
			continue
		}
		m := birdRoute.FindStringSubmatch(line)
		if m == nil {
			if line == "" || strings.HasPrefix(line, "Table ") || strings.HasPrefix(line, birdReady) || line == birdRestricted {
				continue
			}
			return nil, wrong(errors.New("it is no route"))
		}
		if m[5] == " !" {
			return nil, wrong(errors.New("the kernel has refused it"))
		}
		if m[1] != "" {
			if prefix, err = netip.ParsePrefix(m[1]); err != nil {
				return nil, wrong(err)
			}
		}
		i := slices.IndexFunc(sessions, func(s birdProtocol) bool { return s.Name == m[3] })
		if current = -1; i < 0 {
			continue
		}
		s := sessions[i]
		p := Path{Prefix: prefix, Neighbor: s.Neighbor, LocalPref: defaultLocalPref, Internal: s.PeerASN == s.localAS, Best: m[5] != ""}
		current = len(all)
		all = append(all, ranked{Path: p, rank: rank{internal: p.Internal, localPref: p.LocalPref}, discards: m[2] != "unicast"})
	}
	if i := slices.IndexFunc(all, func(p ranked) bool { return !p.NextHop.IsValid() }); i >= 0 {
		// BIRD 3 calls the attributes by other names.
		return nil, fmt.Errorf("reading BIRD's RIB: the path to %s has no BGP.next_hop, which BIRD 2 prints", all[i].Prefix)
	}
	return bestOf(all), nil
}

func (p *ranked) birdDetail(line string) (err error) {
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
		p.rank.origin = uint8(slices.Index(origins, p.Origin))
	case "BGP.as_path":
		// The members of an AS_SET are in braces, and count as one.
		set := false
		for word := range strings.FieldsSeq(value) {
			opens, closes := strings.HasPrefix(word, "{"), strings.HasSuffix(word, "}")
			if word = strings.Trim(word, "{}"); word != "" {
				p.ASPath = append(p.ASPath, number(word))
			}
			if !set {
				p.rank.asPathLen++
			}
			set = (set || opens) && !closes
		}
	case "BGP.next_hop":
		global, _, _ := strings.Cut(value, " ") // a next hop of IPv6 has a link-local address as well
		p.NextHop, err = netip.ParseAddr(global)
	case "BGP.med":
		p.MED = number(value)
	case "BGP.local_pref":
		p.LocalPref = number(value)
	}
	p.rank.med, p.rank.localPref = p.MED, p.LocalPref
	return err
}

// birdReply is a line of BIRD's control protocol: a code of four digits, then
// "-" where more lines follow and a blank on the last one. A line with no code
// but a blank has the code of the one before (BIRD's client/client.c).
var birdReply = regexp.MustCompile(`^(\d{4})([ -])(.*)$`)

// maxBIRDReply bounds an answer: hundreds of sessions are some 100 kB.
const maxBIRDReply = 8 << 20

// AskBIRD sends a command to the BIRD that listens on a unix socket, and returns what birdc
// prints: without a program on the machine. The error is of package net if nothing listens.
func AskBIRD(ctx context.Context, socket, command string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return "", fmt.Errorf("connecting to BIRD: %w", err)
	}
	defer conn.Close()
	// Reads and writes do not take ctx.
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	text, err := askBIRD(conn, command)
	if err != nil {
		return "", fmt.Errorf("asking BIRD at %s: %w", socket, err)
	}
	return text, nil
}

func askBIRD(conn io.ReadWriter, command string) (string, error) {
	lines := bufio.NewScanner(io.LimitReader(conn, maxBIRDReply))
	var b strings.Builder
	answer := func() error {
		for lines.Scan() {
			line := lines.Text()
			m := birdReply.FindStringSubmatch(line)
			if m == nil {
				fmt.Fprintln(&b, strings.TrimPrefix(line, " "))
				continue
			}
			code, last, text := m[1], m[2] == " ", m[3]
			if code[0] == '8' || code[0] == '9' { // runtime and syntax errors
				return fmt.Errorf("%s: it says: %s", command, text)
			}
			if text != "" {
				fmt.Fprintln(&b, text)
			}
			if last {
				return nil
			}
		}
		if err := lines.Err(); err != nil {
			return err
		}
		return io.ErrUnexpectedEOF
	}
	if err := answer(); err != nil {
		return "", fmt.Errorf("waiting for its greeting: %w", err)
	}
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		return "", err
	}
	err := answer()
	return b.String(), err
}
