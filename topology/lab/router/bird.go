package router

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/relapse-dev/relapse/topology/bgp"
)

// Paths of Debian's package.
const (
	birdProgram = "/usr/sbin/bird"
	birdConfig  = "/etc/bird/relapse.conf"
	birdSocket  = "/run/bird/bird.ctl" // birdc's default
)

// birdWithin bounds a command of BIRD.
const birdWithin = 10 * time.Second

type bird struct {
	config Config
	log    *log.Logger
	fail   func(error)

	process *process
	last    steady
}

// birdTime is the format "iso long us". The zone is the process's, UTC.
const birdTime = "2006-01-02 15:04:05.999999"

func (b *bird) reader() bgp.BIRD {
	return bgp.BIRD{Ask: b.run, When: func(text string) (time.Time, error) { return time.Parse(birdTime, text) }}
}

// birdTemplate is BIRD's configuration. Its routes have one metric in the kernel (the default, 32): BIRD
// replaces a route of one source by a route of another only under the same metric.
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
{{- range $f := .Families}}
protocol kernel {
	{{$f}} { import none; export all; };
	merge paths on limit 64;
}
protocol static {
	{{$f}};
{{- range $.Statics}}
{{- if eq .Prefix.Addr.Is4 (eq $f "ipv4")}}
	route {{.Prefix}}{{range .NextHops}} via {{.}}{{end}};
{{- end}}
{{- end}}
}
{{- end}}
{{- range $i, $p := .Peers}}
protocol bgp peers{{$i}} {
	local{{with $p.Local}} {{.}}{{end}} as {{$.AS}};
	neighbor range {{$p.Prefix}} as {{$p.AS}};
	dynamic name "peers{{$i}}_";
	direct;
	passive;
	hold time {{$.Hold}};
	keepalive time {{$.Keepalive}};
	error wait time 1, 1; # by default a peer is refused for a minute after an error
	graceful restart {{if $p.GracefulRestart}}aware{{else}}off{{end}};
{{- range $.Families}}
	{{.}} { import all; export where source = RTS_BGP;{{if $.Dual}} next hop prefer global;{{end}} };
{{- end}}
}
{{- end}}
`))

// birdPeers are Peers with the router's address on their network.
type birdPeers struct {
	Peers
	Local string // empty if there is none
}

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
	err = b.process.answers(ctx, "BIRD", func(ctx context.Context) error {
		_, err := b.run(ctx, "show status")
		return err
	})
	if err != nil || len(b.config.Peers) == 0 { // without peers it does not listen
		return err
	}
	return awaitListening(ctx, b.config.Listen)
}

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
	if b.process != nil {
		b.process.end(b.log)
	}
}

func (b *bird) paths(ctx context.Context) ([]bgp.Path, error) { return b.reader().RIB(ctx) }

func (b *bird) neighbors(ctx context.Context) ([]bgp.Neighbor, error) {
	neighbors, err := b.reader().Neighbors(ctx)
	return b.last.steadied(neighbors), err
}

func (b *bird) clear(ctx context.Context, neighbor netip.Addr) error {
	text, err := b.run(ctx, "show protocols all")
	if err != nil {
		return err
	}
	protocols, err := bgp.BIRDProtocols(text)
	for _, p := range protocols {
		if p.Neighbor != neighbor {
			continue
		}
		if _, err := b.run(ctx, "restart "+p.Name); err != nil {
			return err
		}
	}
	return err
}

func (b *bird) setStatics(ctx context.Context, statics []Static) error {
	if err := b.configure(statics); err != nil {
		return err
	}
	_, err := b.run(ctx, "configure")
	return err
}

func (b *bird) run(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, birdWithin)
	defer cancel()
	return bgp.AskBIRD(ctx, birdSocket, command)
}
