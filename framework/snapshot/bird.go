package snapshot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// BIRDProtocol is one protocol of a BIRD, in its own words.
type BIRDProtocol struct {
	Name string `json:"name"`
	// Proto is what it speaks: BGP, Kernel, Device, Direct and so on.
	Proto string `json:"proto"`
	// State is the protocol's: up, start, stop or down.
	State string `json:"state"`
	// Since is when it came into its state, as BIRD prints it: a time today,
	// or a date.
	Since string `json:"since"`
	Info  string `json:"info,omitempty"`

	// What follows is of BGP alone.

	// BGPState is the session's: Established, or what it is instead.
	BGPState  string     `json:"bgp_state,omitempty"`
	Neighbor  netip.Addr `json:"neighbor,omitzero"`
	PeerASN   uint32     `json:"peer_asn,omitempty"`
	Source    netip.Addr `json:"source,omitzero"` // of an established session
	LastError string     `json:"last_error,omitempty"`
}

// Established is the BGPState of a session that is up.
const Established = "Established"

// ParseBIRDProtocols reads what `birdc show protocols all` prints (BIRD 1.6;
// the table's columns and BGP's lines are the same in 2.0).
func ParseBIRDProtocols(text string) ([]BIRDProtocol, error) {
	var all []BIRDProtocol
	number, table := 0, false
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, " \r\n")
		switch {
		case strings.HasPrefix(line, "BIRD "), line == "", strings.HasPrefix(strings.ToLower(line), "access restricted"):
		case isBIRDHeader(line):
			table = true
		case !table:
			return nil, fmt.Errorf("line %d of BIRD's protocols: want the table's heading, got %q", number, line)
		case !strings.HasPrefix(line, " "):
			p, err := parseBIRDRow(line)
			if err != nil {
				return nil, fmt.Errorf("line %d of BIRD's protocols: %w", number, err)
			}
			all = append(all, p)
		case len(all) == 0:
			return nil, fmt.Errorf("line %d of BIRD's protocols: details of no protocol: %q", number, line)
		default:
			if err := all[len(all)-1].detail(line); err != nil {
				return nil, fmt.Errorf("line %d of BIRD's protocols: %w", number, err)
			}
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

// parseBIRDRow reads name, proto, table, state, since and info.
func parseBIRDRow(line string) (BIRDProtocol, error) {
	words := strings.Fields(line)
	if len(words) < 5 {
		return BIRDProtocol{}, fmt.Errorf("want name, proto, table, state and since, got %q", line)
	}
	p := BIRDProtocol{Name: words[0], Proto: words[1], State: words[3], Since: words[4]}
	words = words[5:]
	if birdDate.MatchString(p.Since) && len(words) > 0 && birdTime.MatchString(words[0]) { // "iso long"
		p.Since += " " + words[0]
		words = words[1:]
	}
	p.Info = strings.Join(words, " ")
	return p, nil
}

// detail reads an indented line. Most are of no interest here.
func (p *BIRDProtocol) detail(line string) error {
	label, value, found := strings.Cut(strings.TrimSpace(line), ":")
	if value = strings.TrimSpace(value); !found || value == "" {
		return nil
	}
	var err error
	switch label {
	case "BGP state":
		p.BGPState = value
	case "Neighbor address":
		p.Neighbor, err = netip.ParseAddr(value)
	case "Source address":
		p.Source, err = netip.ParseAddr(value)
	case "Neighbor AS":
		var as uint64
		as, err = strconv.ParseUint(value, 10, 32)
		p.PeerASN = uint32(as)
	case "Last error":
		p.LastError = value
	}
	if err != nil {
		return fmt.Errorf("protocol %s: %s: %w", p.Name, label, err)
	}
	return nil
}

// birdSocket is BIRD's control socket on a node: calico-node's pod has the
// node's /var/run/calico for its own. It is named without the symbolic link
// /var/run, which would lead out of the node.
const birdSocket = "/run/calico/bird.ctl"

// birdOf asks a node's BIRD for its protocols, through its control socket:
// what birdc does, without a program on the node. It only reads. Where nothing
// listens no BIRD runs, which is not an error.
func birdOf(ctx context.Context, m Machine) ([]BIRDProtocol, error) {
	own, isOwn := m.(Own)
	if isOwn {
		if listens, err := own.listens("/calico/bird.ctl"); !listens {
			return nil, err
		}
	}
	path, err := m.Path(ctx, birdSocket)
	if err != nil {
		return nil, fmt.Errorf("finding BIRD's socket: %w", err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if !isOwn && errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("BIRD listens, but %s is not mounted here", path)
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to BIRD: %w", err)
	}
	defer conn.Close()
	// Reads and writes know nothing of ctx.
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	text, err := askBIRD(conn, "show protocols all")
	if err != nil {
		return nil, fmt.Errorf("asking BIRD at %s: %w", path, err)
	}
	return ParseBIRDProtocols(text)
}

// birdReply is a line of BIRD's control protocol: a code of four digits, then
// "-" where more lines follow and a blank on the last one. A line with no code
// but a blank has the code of the one before (BIRD's client/client.c).
var birdReply = regexp.MustCompile(`^(\d{4})([ -])(.*)$`)

// maxBIRDReply bounds an answer: hundreds of sessions are some 100 kB.
const maxBIRDReply = 8 << 20

// askBIRD sends one command and returns the answer as birdc prints it.
func askBIRD(conn io.ReadWriter, command string) (string, error) {
	lines := bufio.NewScanner(io.LimitReader(conn, maxBIRDReply))
	answer := func(banner bool) (string, error) {
		var b strings.Builder
		for lines.Scan() {
			line := lines.Text()
			m := birdReply.FindStringSubmatch(line)
			if m == nil {
				fmt.Fprintln(&b, strings.TrimPrefix(line, " "))
				continue
			}
			switch code, more, text := m[1], m[2] == "-", m[3]; {
			case code[0] == '8' || code[0] == '9': // runtime and syntax errors
				return "", fmt.Errorf("%s: it says: %s", command, text)
			case banner && code == "0001":
				return "", nil
			case code == "0000":
				return b.String(), nil
			default:
				fmt.Fprintln(&b, text)
				if !more && code[0] == '0' {
					return b.String(), nil
				}
			}
		}
		if err := lines.Err(); err != nil {
			return "", err
		}
		return "", io.ErrUnexpectedEOF
	}
	if _, err := answer(true); err != nil {
		return "", fmt.Errorf("waiting for its greeting: %w", err)
	}
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		return "", err
	}
	return answer(false)
}
