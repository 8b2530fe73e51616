package bgprouter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"al.essio.dev/pkg/shellescape"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/bgp"
	"github.com/relapse-dev/relapse/topology/process"
)

// fib and fib6 list the FIB, neigh the neighbour table. No command changes the router: vtysh gets show commands
// alone, and birdc is restricted (-r).
var (
	fib   = []string{"ip", "-4", "-j", "-N", "route"}
	fib6  = []string{"ip", "-6", "-j", "-N", "route"}
	neigh = []string{"ip", "-j", "neigh"}
)

// maxAnswer is the size in bytes of the longest answer of a program: two million routes of
// FRR, which take about 250 each.
const maxAnswer = 512 << 20

// Readers makes readers of routers that somebody else runs, by name. They change nothing: they run
// the router's own programs, by ssh or by the given command, ask by gRPC, or read a table dump.
// Routers of kind bmp feed the station, which may be nil if there are none. The readers have not
// connected yet. The error names a file that cannot be used.
func Readers(routers []Declared, station *Station) (map[string]snapshot.RouterReader, error) {
	all := map[string]snapshot.RouterReader{}
	turn := make(chan bool, AtOnce)
	for _, d := range routers {
		switch d.Kind {
		case GoBGP:
			source, err := newGRPC(d)
			if err != nil {
				return nil, fmt.Errorf("router %s: %w", d.Name, err)
			}
			all[d.Name] = source
		case BMP:
			if station == nil {
				return nil, fmt.Errorf("router %s: kind bmp: there is no BMP station that it could feed", d.Name)
			}
			all[d.Name] = station.feeds[bmpAddress(d.Address)]
		case MRT:
			if _, err := os.Stat(d.File); err != nil {
				return nil, fmt.Errorf("router %s: file: %w", d.Name, err)
			}
			all[d.Name] = &dumped{router: d}
		default:
			all[d.Name] = &outside{router: d, turn: turn}
		}
	}
	return all, nil
}

var errNoFIB = errors.New("the FIB cannot be read in this way")

// AtOnce is how many routers are asked for their RIB at a time: bgpd does nothing else meanwhile, and a full
// table takes more than a gigabyte here.
const AtOnce = 2

// AnswerWithin bounds how long a command on a router may be silent.
const AnswerWithin = 30 * time.Second

type outside struct {
	router Declared
	turn   chan bool // of all routers: full while AtOnce are asked

	mu sync.Mutex
	// asked is set once a RIB was asked for. ipv4 and ipv6 say why the routes of each family were not read.
	// vrfs are FRR's VRFs; noVRFs says why they were not read.
	asked              bool
	ipv4, ipv6, noVRFs error
	vrfs               []string
}

// answered keeps the errors of reading the routes of each family.
func (o *outside) answered(ipv4, ipv6 error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked, o.ipv4, o.ipv6 = true, ipv4, ipv6
}

func (o *outside) Describe(router *snapshot.Router) {
	o.router.Describe(router)
	if len(o.router.Files) > 0 {
		router.At = o.router.written()
		o.router.aged(router, "The files of "+router.Name+" are")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	ipv4, ipv6 := o.asked && o.ipv4 == nil, o.asked && o.ipv6 == nil
	router.IPv6, router.NoIPv4, router.VRFs = ipv6, ipv6 && !ipv4, o.vrfs
	if ipv4 && errors.Is(o.ipv6, bgp.ErrRefused) {
		remark(router, false, "%s is read for IPv4 alone: %s.", router.Name, o.ipv6)
	}
	if ipv6 && errors.Is(o.ipv4, bgp.ErrRefused) {
		remark(router, false, "%s is read for IPv6 alone: %s.", router.Name, o.ipv4)
	}
	if o.noVRFs != nil {
		remark(router, true, "Which VRFs of %s have BGP is not known: %s.", router.Name, o.noVRFs)
	}
}

// remark adds a sentence on how a router was read. Open is as in snapshot.Remark.
func remark(router *snapshot.Router, open bool, format string, args ...any) {
	router.Remarks = append(router.Remarks, snapshot.Remark{Says: fmt.Sprintf(format, args...), Open: open})
}

// both reads the RIBs of both families. A router without one family is read for the other.
func (o *outside) both(ctx context.Context, read func(ctx context.Context, v6 bool) ([]bgp.Path, error)) ([]bgp.Path, error) {
	paths, ipv4 := read(ctx, false)
	if ipv4 != nil && !errors.Is(ipv4, bgp.ErrRefused) {
		o.answered(ipv4, ipv4)
		return nil, ipv4
	}
	more, ipv6 := read(ctx, true)
	o.answered(ipv4, ipv6)
	switch {
	case ipv6 != nil && !errors.Is(ipv6, bgp.ErrRefused):
		return nil, ipv6
	case ipv6 != nil && ipv4 != nil:
		return nil, ipv4
	}
	return append(paths, more...), nil
}

func (o *outside) vtysh(ctx context.Context, command string) (string, error) {
	return o.run(ctx, []string{"vtysh", "-c", command})
}

func (o *outside) birdc(ctx context.Context, command string) (string, error) {
	return o.run(ctx, []string{"birdc", "-r", command})
}

func (o *outside) RIB(ctx context.Context) ([]bgp.Path, error) {
	select {
	case o.turn <- true:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for the answers of other routers: %w", context.Cause(ctx))
	}
	if o.router.Kind == FRR {
		frr := bgp.FRR{Show: o.vtysh}
		vrfs, err := frr.VRFs(ctx)
		o.mu.Lock()
		o.vrfs, o.noVRFs = vrfs, err
		o.mu.Unlock()
		return o.both(ctx, frr.RIB)
	}
	paths, err := bgp.BIRD{Ask: o.birdc}.RIB(ctx)
	o.answered(err, err)
	return paths, err
}

func (o *outside) Neighbors(ctx context.Context) ([]bgp.Neighbor, error) {
	if o.router.Kind == FRR {
		return bgp.FRR{Show: o.vtysh}.Neighbors(ctx)
	}
	return bgp.BIRD{Ask: o.birdc}.Neighbors(ctx)
}

func (o *outside) FIB(ctx context.Context) ([]bgp.Route, error) {
	if !o.router.hasFIB() {
		return nil, errNoFIB
	}
	ipv4, err := o.run(ctx, fib)
	if err != nil {
		return nil, err
	}
	ipv6, err := o.run(ctx, fib6)
	if err != nil {
		return nil, err
	}
	return bgp.KernelRoutes(ipv4, ipv6)
}

// Links implements snapshot.LinkReader. A router that forwards nothing has no entries.
func (o *outside) Links(ctx context.Context) ([]bgp.LinkNeighbor, error) {
	if !o.router.hasFIB() {
		return nil, nil
	}
	text, err := o.run(ctx, neigh)
	if err != nil {
		return nil, err
	}
	return bgp.LinkNeighbors(text)
}

// line is the command line that runs a command on the router. ssh gives one to a shell.
func (o *outside) line(command []string) []string {
	command = o.router.as(command)
	if o.router.SSH == "" {
		return slices.Concat(o.router.Command, command)
	}
	// Without a terminal ssh must not ask for a password or for a new host's key.
	// Forwardings, tunnels and commands of the user's configuration are switched off.
	return []string{
		"ssh", "-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ClearAllForwardings=yes", "-o", "UpdateHostKeys=no",
		"-o", "ControlMaster=no", "-o", "PermitLocalCommand=no", "--", o.router.SSH, shellescape.QuoteCommand(command),
	}
}

func (o *outside) run(ctx context.Context, command []string) (string, error) {
	if len(o.router.Files) > 0 {
		return o.router.answered(command)
	}
	line := o.line(command)
	ctx, cancel := context.WithCancelCause(ctx)
	silence := time.AfterFunc(AnswerWithin, func() { cancel(fmt.Errorf("no answer within %s", AnswerWithin)) })
	defer cancel(nil)
	defer silence.Stop()
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	out, errs := limited{most: maxAnswer, silence: silence}, limited{most: 4 << 10}
	cmd.Stdout, cmd.Stderr = &out, &errs
	process.EndWhole(cmd)
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	said := strings.TrimSpace(errs.text.String())
	switch {
	case out.over:
		err = fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err != nil && said == "":
		said = strings.TrimSpace(out.text.String()) // vtysh writes errors there
	}
	if err == nil {
		return out.text.String(), nil
	}
	if said != "" && ctx.Err() == nil {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(said[strings.LastIndexByte(said, '\n')+1:])) // its last line
	}
	return "", fmt.Errorf("running %s: %w", shellescape.QuoteCommand(line), err)
}

// limited keeps what is written up to a size, and drops the rest.
type limited struct {
	text    strings.Builder // it is not copied
	most    int
	over    bool
	silence *time.Timer // starts again with each write that is kept, and ends at once with one that is not; or nil
}

func (l *limited) Write(text []byte) (int, error) {
	part := text[:min(len(text), l.most-l.text.Len())]
	l.over = l.over || len(part) < len(text)
	l.text.Write(part)
	switch {
	case l.silence == nil:
	case l.over:
		l.silence.Reset(0) // it may never end
	default:
		l.silence.Reset(AnswerWithin)
	}
	return len(text), nil
}
