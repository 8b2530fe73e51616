package router

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/relapse-dev/relapse/topology/await"
)

// Paths of Debian's package.
const (
	birdProgram = "/usr/sbin/bird"
	birdConfig  = "/etc/bird/relapse.conf"
	birdSocket  = "/run/bird/bird.ctl" // birdc's default
)

// birdWithin bounds a command of BIRD.
const birdWithin = 10 * time.Second

// bird is BIRD 2: Debian's program as a process. It installs its routes.
type bird struct {
	config Config
	log    *log.Logger
	fail   func(error)

	process *process
	mu      sync.Mutex // of the connection
	conn    net.Conn
	answers *bufio.Reader

	// The times of the last answers: see steady.
	established steady[string]
	received    steady[pathKey]
}

// pathKey identifies a path in the RIB.
type pathKey struct {
	prefix   netip.Prefix
	neighbor netip.Addr
}

// steady replaces times that differ by less than jitter from those of the last answer by
// these. BIRD computes wall-clock times for each answer from its monotonic clock, and the
// same time comes out some microseconds apart: more where BIRD waits for a CPU between
// reading one clock and the other. 1.04 ms was seen.
type steady[K comparable] struct {
	mu   sync.Mutex
	last map[K]time.Time
}

// No peer opens a session again so soon.
const jitter = 100 * time.Millisecond

// steadied replaces the times of an answer.
func steadied[K comparable, T any](s *steady[K], answer []T, of func(*T) (K, *time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := map[K]time.Time{}
	for i := range answer {
		key, at := of(&answer[i])
		if before, known := s.last[key]; known && at.Sub(before).Abs() < jitter {
			*at = before
		}
		now[key] = *at
	}
	s.last = now
}

func newBIRD(c Config, l *log.Logger, fail func(error)) *bird {
	return &bird{config: c, log: l, fail: fail}
}

// birdTemplate is BIRD's configuration. Its routes have one metric in the kernel (the
// default, 32): it replaces a route by one of another source only under the same metric.
// "direct" has iBGP resolve next hops on the router's links, as eBGP does. "passive" also
// applies to the sessions that BIRD creates for dynamic neighbours: without it BIRD dials
// them when their session has ended. Only routes learned by BGP are announced.
var birdTemplate = template.Must(template.New("bird.conf").Parse(`log stderr all;
router id {{.RouterID}};
timeformat route iso long us;
timeformat protocol iso long us;
debug protocols { states };
protocol device {
}
protocol kernel {
	ipv4 { import none; export all; };
	merge paths on limit 64;
}
protocol static {
	ipv4;
{{- range .Statics}}
	route {{.Prefix}}{{range .NextHops}} via {{.}}{{end}};
{{- end}}
}
{{- range $i, $p := .Peers}}
protocol bgp peers{{$i}} {
	local {{$p.Local}} as {{$.AS}};
	neighbor range {{$p.Prefix}} as {{$p.AS}};
	dynamic name "peers{{$i}}_";
	direct;
	passive;
	hold time {{$.Hold}};
	keepalive time {{$.Keepalive}};
	error wait time 1, 1; # by default a peer is refused for a minute after an error
	graceful restart {{if $p.GracefulRestart}}aware{{else}}off{{end}};
	ipv4 { import all; export where source = RTS_BGP; };
}
{{- end}}
`))

// birdPeers are Peers with the router's address on their network.
type birdPeers struct {
	Peers
	Local string // empty if there is none
}

// birdConf is BIRD's configuration.
func birdConf(c Config, statics []Static) (string, error) {
	data := struct {
		settings
		Peers   []birdPeers
		Statics []Static
	}{settings: settingsOf(c), Statics: statics}
	for _, p := range c.Peers {
		peers := birdPeers{Peers: p}
		if i := slices.IndexFunc(c.Listen, p.Prefix.Contains); i >= 0 {
			peers.Local = c.Listen[i].String()
		}
		data.Peers = append(data.Peers, peers)
	}
	var text strings.Builder
	if err := birdTemplate.Execute(&text, data); err != nil {
		return "", fmt.Errorf("writing BIRD's configuration: %w", err)
	}
	return text.String(), nil
}

func (b *bird) start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			b.stop()
		}
	}()
	if err := os.MkdirAll(filepath.Dir(birdSocket), 0o755); err != nil {
		return fmt.Errorf("making a folder of BIRD: %w", err)
	}
	if err := b.configure(nil); err != nil {
		return err
	}
	if b.process, err = startProcess(b.log, b.fail, birdProgram, "-f", "-c", birdConfig); err != nil {
		return err
	}
	err = await.Until(ctx, "BIRD to answer", 5*time.Millisecond, startWithin, func(ctx context.Context) (bool, string, error) {
		_, err := b.run(ctx, "show status")
		return err == nil || b.process.ended() != nil, fmt.Sprint(err), nil
	})
	if err := cmp.Or(b.process.ended(), err); err != nil {
		return err
	}
	if len(b.config.Peers) == 0 {
		return nil // it does not listen
	}
	return awaitListening(ctx, b.config.Listen)
}

// configure writes the configuration.
func (b *bird) configure(statics []Static) error {
	text, err := birdConf(b.config, statics)
	if err != nil {
		return err
	}
	if err := os.WriteFile(birdConfig, []byte(text), 0o644); err != nil {
		return fmt.Errorf("writing BIRD's configuration: %w", err)
	}
	return nil
}

func (b *bird) stop() {
	b.mu.Lock()
	b.disconnect()
	b.mu.Unlock()
	if b.process != nil {
		b.process.end(b.log)
	}
}

func (b *bird) paths(ctx context.Context) ([]Path, error) {
	// Sessions are read last: the paths of one that has ended since are gone.
	routes, err := b.run(ctx, "show route all where source = RTS_BGP")
	if err != nil {
		return nil, err
	}
	sessions, err := b.sessions(ctx)
	if err != nil {
		return nil, err
	}
	paths, err := parseBIRDPaths(routes, sessions, birdWhen)
	steadied(&b.received, paths, func(p *Path) (pathKey, *time.Time) { return pathKey{p.Prefix, p.Neighbor}, &p.Received })
	return paths, err
}

func (b *bird) sessions(ctx context.Context) ([]birdSession, error) {
	text, err := b.run(ctx, "show protocols all")
	if err != nil {
		return nil, err
	}
	sessions, err := parseBIRDSessions(text, birdWhen)
	steadied(&b.established, sessions, func(s *birdSession) (string, *time.Time) { return s.protocol, &s.Established })
	return sessions, err
}

func (b *bird) neighbors(ctx context.Context) ([]Neighbor, error) {
	sessions, err := b.sessions(ctx)
	if err != nil {
		return nil, err
	}
	neighbors := []Neighbor{}
	for _, s := range sessions {
		neighbors = append(neighbors, s.Neighbor)
	}
	sortNeighbors(neighbors)
	return neighbors, nil
}

func (b *bird) clear(ctx context.Context, neighbor netip.Addr) error {
	sessions, err := b.sessions(ctx)
	if err != nil {
		return err
	}
	for _, s := range sessions {
		if s.Address != neighbor {
			continue
		}
		if _, err := b.run(ctx, "restart "+s.protocol); err != nil {
			return err
		}
	}
	return nil
}

func (b *bird) setStatics(ctx context.Context, statics []Static) error {
	if err := b.configure(statics); err != nil {
		return err
	}
	_, err := b.run(ctx, "configure")
	return err
}

// run runs a command as birdc does, over a connection that stays open, and returns what
// birdc prints.
//
// Each line of an answer has a code of four digits and a dash, or a space in the last
// line; a line that begins with a space repeats the code. Codes from 8000 on are errors
// (BIRD's manual, "Remote control"; nest/cli.c).
func (b *bird) run(ctx context.Context, command string) (output string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() {
		if err != nil {
			b.disconnect()
			err = fmt.Errorf("BIRD: %s: %w", command, err)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, birdWithin)
	defer cancel()
	if b.conn == nil {
		var d net.Dialer
		if b.conn, err = d.DialContext(ctx, "unix", birdSocket); err != nil {
			return "", err
		}
		b.answers = bufio.NewReader(b.conn)
		if _, err := b.answer(); err != nil { // the greeting
			return "", err
		}
	}
	conn := b.conn
	_ = conn.SetDeadline(time.Time{}) // only fails on a closed connection, as reads do then
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if _, err := conn.Write([]byte(command + "\n")); err != nil {
		return "", err
	}
	if output, err = b.answer(); ctx.Err() != nil && err != nil {
		err = context.Cause(ctx)
	}
	return output, err
}

// birdErrors are codes of errors: of the command from 8000 on, of its syntax from 9000 on.
const birdErrors = "8000"

// answer reads an answer up to its last line.
func (b *bird) answer() (string, error) {
	var text strings.Builder
	for {
		line, err := b.answers.ReadString('\n')
		if err != nil {
			return "", err
		}
		line = strings.TrimSuffix(line, "\n")
		if rest, continued := strings.CutPrefix(line, " "); continued {
			text.WriteString(rest + "\n")
			continue
		}
		if len(line) < 5 {
			return "", fmt.Errorf("reading an answer: want a code of four digits, got %q", line)
		}
		code, last, rest := line[:4], line[4] == ' ', line[5:]
		if code >= birdErrors {
			return "", errors.New(rest)
		}
		if rest != "" {
			text.WriteString(rest + "\n")
		}
		if last {
			return text.String(), nil
		}
	}
}

func (b *bird) disconnect() {
	if b.conn != nil {
		b.conn.Close()
		b.conn = nil
	}
}
