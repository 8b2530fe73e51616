package router

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/bgp"
	"github.com/relapse-dev/relapse/topology/each"
)

// Folders of Debian's package.
const (
	frrPrograms = "/usr/lib/frr"
	frrConfig   = "/etc/frr"
	frrRun      = "/run/frr"
	// frrUser runs the daemons, as in Debian. They refuse root, which is not in their group
	// of terminals.
	frrUser = "frr"
)

// startWithin bounds the start of each program of FRR and BIRD.
const startWithin = 10 * time.Second

// frrDaemons are the programs in the order in which they start: mgmtd holds the
// configuration of static routes for staticd, and zebra installs the routes of both
// others. Without watchfrr, which would restart one that ends: the router fails instead.
var frrDaemons = []string{"mgmtd", "zebra", "staticd", "bgpd"}

type frr struct {
	config Config
	log    *log.Logger
	fail   func(error)

	processes []*process
	// bgp and mgmt are the terminals of bgpd and mgmtd.
	bgp, mgmt *vty
	// statics are the configured static routes.
	statics  []Static
	sessions steady
}

func newFRR(c Config, l *log.Logger, fail func(error)) *frr {
	terminal := func(daemon string) *vty { return &vty{path: filepath.Join(frrRun, daemon+".vty")} }
	return &frr{config: c, log: l, fail: fail, bgp: terminal("bgpd"), mgmt: terminal("mgmtd")}
}

// bgpdTemplate is bgpd's configuration. It makes FRR behave like the other kinds: eBGP needs no policy, and
// paths of equal length through different autonomous systems share a prefix. zebra and staticd have no
// configuration: without a default route zebra has no route out.
var bgpdTemplate = template.Must(template.New("bgpd.conf").Parse(`frr defaults traditional
log stdout informational
router bgp {{.AS}}
 bgp router-id {{.RouterID}}
 bgp log-neighbor-changes
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 bgp bestpath as-path multipath-relax
 bgp listen limit 5000
{{- range $i, $p := .Peers}}
 neighbor peers{{$i}} peer-group
 neighbor peers{{$i}} remote-as {{$p.AS}}
 neighbor peers{{$i}} timers {{$.Keepalive}} {{$.Hold}}
 neighbor peers{{$i}} passive
 neighbor peers{{$i}} graceful-restart-{{if $p.GracefulRestart}}helper{{else}}disable{{end}}
{{- if $p.BFD.Multiplier}}
 neighbor peers{{$i}} bfd profile peers{{$i}}
{{- end}}
 bgp listen range {{$p.Prefix}} peer-group peers{{$i}}
{{- end}}
{{- range .Families}}
 address-family {{.}} unicast
  maximum-paths 64
  maximum-paths ibgp 64
{{- range $i, $p := $.Peers}}
  neighbor peers{{$i}} activate
{{- if $.Dual}}
  neighbor peers{{$i}} route-map global in
{{- end}}
{{- end}}
 exit-address-family
{{- end}}
exit
{{- if .Dual}}
route-map global permit 10
 set ipv6 next-hop prefer-global
exit
{{- end}}
`))

// settings are a Config with its timers in seconds and its families, for templates.
type settings struct {
	Config
	Hold, Keepalive int
	Families        []topology.Family
}

func settingsOf(c Config) settings {
	return settings{Config: c, Hold: holdTime, Keepalive: holdTime / 3, Families: topology.Topology{Dual: c.Dual}.Families()}
}

// FRRConfig is the configuration of FRR's bgpd for a router.
func FRRConfig(c Config) (string, error) {
	var text strings.Builder
	if err := bgpdTemplate.Execute(&text, settingsOf(c)); err != nil {
		return "", fmt.Errorf("writing bgpd's configuration: %w", err)
	}
	return text.String(), nil
}

// bfdConfig is the configuration of FRR's bfdd for a router; empty if no peers have BFD.
func bfdConfig(c Config) string {
	var text strings.Builder
	for i, p := range c.Peers {
		if p.BFD == (topology.BFD{}) {
			continue
		}
		fmt.Fprintf(&text, "bfd\n profile peers%d\n  detect-multiplier %d\n  receive-interval %d\n  transmit-interval %d\n exit\n",
			i, p.BFD.Multiplier, p.BFD.Receive.Milliseconds(), p.BFD.Transmit.Milliseconds())
		for _, peer := range p.BFDPeers {
			fmt.Fprintf(&text, " peer %s\n  profile peers%d\n exit\n", peer, i)
		}
		text.WriteString("exit\n")
	}
	return text.String()
}

func (f *frr) start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			f.stop()
		}
	}()
	uid, gid, err := idsOf(frrUser)
	if err != nil {
		return fmt.Errorf("preparing FRR: %w", err)
	}
	for _, dir := range []string{frrRun, "/var/lib/frr"} { // the second has mgmtd's records
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("making a folder of FRR: %w", err)
		}
		if err := os.Chown(dir, uid, gid); err != nil {
			return fmt.Errorf("making a folder of FRR: %w", err)
		}
	}
	text, err := FRRConfig(f.config)
	if err != nil {
		return err
	}
	configs, daemons := map[string]string{"bgpd": text}, frrDaemons
	if text := bfdConfig(f.config); text != "" {
		configs["bfdd"], daemons = text, append([]string{"mgmtd", "zebra", "bfdd"}, frrDaemons[2:]...)
	}
	for _, daemon := range daemons {
		args := []string{"--log", "stdout", "--vty_port", "0"} // no terminals by TCP
		if text := configs[daemon]; text != "" {
			file := filepath.Join(frrConfig, "relapse-"+daemon+".conf")
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				return fmt.Errorf("writing %s's configuration: %w", daemon, err)
			}
			args = append(args, "-f", file)
		}
		if daemon == "bgpd" {
			for _, a := range f.config.listen() {
				args = append(args, "-l", a.String())
			}
		}
		// A socket of an earlier life would answer with an error, instead of not existing.
		socket := filepath.Join(frrRun, daemon+".vty")
		if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("removing an old socket: %w", err)
		}
		p, err := startProcess(f.log, f.fail, filepath.Join(frrPrograms, daemon), args...)
		if err != nil {
			return err
		}
		f.processes = append(f.processes, p)
		terminal := &vty{path: socket}
		err = p.answers(ctx, daemon, func(ctx context.Context) error {
			_, err := terminal.run(ctx, "show version")
			return err
		})
		terminal.close()
		if err != nil {
			return err
		}
	}
	return awaitListening(ctx, f.config.Listen)
}

func idsOf(name string) (uid, gid int, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, err
	}
	if uid, err = strconv.Atoi(u.Uid); err != nil {
		return 0, 0, err
	}
	gid, err = strconv.Atoi(u.Gid)
	return uid, gid, err
}

func awaitListening(ctx context.Context, addrs []netip.Addr) error {
	return await.Until(ctx, fmt.Sprintf("a program to listen on port %d", bgpPort), 5*time.Millisecond, startWithin,
		func(context.Context) (bool, string, error) {
			sockets, err := netlink.SocketDiagTCP(unix.AF_INET)
			if err != nil {
				return false, "", fmt.Errorf("listing sockets: %w", err)
			}
			var on []netip.Addr
			for _, s := range sockets {
				if s.State == netlink.TCP_LISTEN && s.ID.SourcePort == bgpPort {
					a, _ := netip.AddrFromSlice(s.ID.Source)
					on = append(on, a.Unmap())
				}
			}
			all := slices.Contains(on, netip.IPv4Unspecified()) ||
				!slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !slices.Contains(on, a) })
			return all, fmt.Sprintf("listening on %v, want %v", on, addrs), nil
		})
}

func (f *frr) stop() {
	f.bgp.close()
	f.mgmt.close()
	// bgpd first: it closes the sessions. zebra removes its routes when it ends.
	for _, p := range slices.Backward(f.processes) {
		p.end(f.log)
	}
}

func (f *frr) reader() bgp.FRR {
	return bgp.FRR{Show: func(ctx context.Context, command string) (string, error) { return f.bgp.run(ctx, command) }}
}

func (f *frr) paths(ctx context.Context) (paths []bgp.Path, err error) {
	for _, v6 := range families(f.config.Dual) {
		some, failed := f.reader().RIB(ctx, v6)
		paths, err = append(paths, some...), errors.Join(err, failed)
	}
	return paths, err
}

func (f *frr) neighbors(ctx context.Context) ([]bgp.Neighbor, error) {
	neighbors, err := f.reader().Neighbors(ctx)
	return f.sessions.steadied(neighbors), err
}

// clear fails for a neighbour without a session, whose paths FRR retains. FRR's clear
// resets sessions alone, and all other commands that drop the paths reset the sessions of
// the whole peer group.
func (f *frr) clear(ctx context.Context, neighbor netip.Addr) error {
	there, err := f.neighbors(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(there, func(n bgp.Neighbor) bool { return n.Address == neighbor })
	if i < 0 {
		return nil
	}
	if there[i].State != bgp.StateEstablished {
		return fmt.Errorf("FRR cannot clear %s: its session is %s, and FRR drops the paths of a neighbour without a session "+
			"only when its restart time is over", neighbor, there[i].State)
	}
	_, err = f.bgp.run(ctx, "clear bgp "+neighbor.String())
	return err
}

func (f *frr) setStatics(ctx context.Context, statics []Static) error {
	have, want := staticCommands(f.statics), staticCommands(statics)
	commands := each.Where(want, func(c string) bool { return !slices.Contains(have, c) })
	for _, c := range have {
		if !slices.Contains(want, c) {
			commands = append(commands, "no "+c)
		}
	}
	if len(commands) == 0 {
		return nil
	}
	if _, err := f.mgmt.run(ctx, slices.Concat([]string{"configure terminal"}, commands, []string{"end"})...); err != nil {
		return err
	}
	f.statics = statics
	return nil
}

func staticCommands(statics []Static) []string {
	var commands []string
	for _, s := range statics {
		for _, a := range s.NextHops {
			protocol := "ip"
			if a.Is6() {
				protocol = "ipv6"
			}
			commands = append(commands, fmt.Sprintf("%s route %s %s", protocol, s.Prefix, a))
		}
	}
	return commands
}
