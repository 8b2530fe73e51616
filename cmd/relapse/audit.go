package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/scenarios"
)

// auditFlags are those of an audit.
type auditFlags struct {
	kubeconfig, context, routers, bmp, output, save, from string
	rbac, watching                                        bool
	rate                                                  int
	interval                                              time.Duration
}

func auditCommand(s *settings) *cobra.Command {
	var f auditFlags
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Find what is wrong, or waits to happen, in a cluster of your own; changes nothing",
		Long: `Audit reads a live cluster and its routers, and runs the detectors on them whose sources
can be read from outside. It reads both twice, 3 s apart, and a third time if the reads
disagree. A finding counts if the last read and the one before it have it. What was not
read comes first.

The cluster is that of a kubeconfig. The client only lists, in pages of 500, at most --rate
requests a second: every other request is refused before it is sent. --rbac prints the
ClusterRole that an audit needs. What is not permitted is named, and the rest is audited.
Requests, bytes and memory are printed at the end.

--watch goes on until Ctrl-C. It lists once and then watches (--rbac --watch prints that
ClusterRole), reads the routers every --interval, and sooner after a change that concerns
routes. It prints a line for each finding that comes (+), with its state, or goes (-), as two
reads have or lack it, and for what is not read or not judged any more and again; with
-o json one object a line. A source whose watch is down for 30 s is not read, and its findings
stay until they can be looked for again.

Routers are those of a YAML file; without it no route is judged. They are read in the default
VRF, for IPv4 and IPv6:
  - {name: tor1, kind: frr, ssh: ops@tor1.example}                # vtysh, and ip
  - {name: tor2, kind: bird, command: [docker, exec, tor2]}       # birdc -r, and ip
  - {name: tor3, kind: gobgp, address: "tor3:50051", ca: ca.pem}  # gRPC
  - {name: spine1, kind: mrt, file: rib.mrt.gz, role: spine}      # a table dump
  - {name: rs1, kind: bmp, address: 192.0.2.1, role: route-server}  # feeds --bmp :11019
ssh is the system's, and must log in without a question. A router is expected to have a
node's pod range if it has learned a pod range of the cluster by BGP, and the node is one of
its BGP neighbours. What that leaves out is printed as not judged, and so is what cannot be
seen in the way in which a router is read, such as its FIB.

Exit status: 0 all was read, and nothing found; 1 active findings; 2 bad input; 3 the
cluster cannot be read, or the findings or reads not written; 4 something was not read, has not
settled or is left open, and nothing was found in the rest; 5 latent findings only; 130 interrupted.
With --watch it is that of the last state, and 130 before anything was judged.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := s.logger(); err != nil {
				return err
			}
			return f.run(cmd, s.quiet)
		},
	}
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "`FILE` with the cluster (default KUBECONFIG, or ~/.kube/config)")
	cmd.Flags().StringVar(&f.context, "context", "", "`NAME` of a context of the kubeconfig (default the current one)")
	cmd.Flags().StringVar(&f.routers, "routers", "", "`FILE` with the routers")
	cmd.Flags().StringVar(&f.bmp, "bmp", "", "wait on `ADDRESS`, such as :11019, for the routers of kind bmp to feed their routes")
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "text or json")
	cmd.Flags().StringVar(&f.save, "save", "", "keep what was read in a folder, `DIR`")
	cmd.Flags().StringVar(&f.from, "from", "", "audit what --save has kept in `DIR`, without a cluster")
	cmd.Flags().BoolVar(&f.rbac, "rbac", false, "print the ClusterRole, and do nothing else")
	cmd.Flags().IntVar(&f.rate, "rate", audit.RequestsPerSecond, "requests per second, `N`, to the API server")
	cmd.Flags().BoolVar(&f.watching, "watch", false, "go on, and print findings as they come and go")
	cmd.Flags().DurationVar(&f.interval, "interval", 10*time.Second, "with --watch: `TIME` from one read of the routers to the next")
	return cmd
}

// auditError is an audit that did not end with status 0. Without a reason all is printed.
type auditError struct {
	status int
	why    error
	// watched is set if an interrupt is how it ends.
	watched bool
}

func (e *auditError) Error() string {
	if e.why == nil {
		return fmt.Sprintf("status %d", e.status)
	}
	return e.why.Error()
}

func (e *auditError) Unwrap() error { return e.why }

func (f auditFlags) run(cmd *cobra.Command, quiet bool) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	if f.rbac {
		_, err := fmt.Fprint(cmd.OutOrStdout(), audit.Role(f.watching))
		return err
	}
	tell := func(text string) {
		if !quiet {
			fmt.Fprintln(plain.Writer(cmd.ErrOrStderr()), "audit: "+text)
		}
	}
	if f.watching {
		return f.watch(cmd, tell)
	}
	reads, cost, err := f.reads(cmd.Context(), tell)
	if err != nil {
		return err
	}
	result, unreadable := audit.Judge(reads, incidentsOf)
	result.Cost = cost
	var text bytes.Buffer
	switch {
	case unreadable != nil:
	case f.output == "json":
		out := json.NewEncoder(&text)
		out.SetIndent("", "  ")
		if err := out.Encode(result); err != nil {
			return &auditError{status: exitMachine, why: fmt.Errorf("writing the findings: %w", err)}
		}
	default:
		printAudit(plain.Writer(&text), result)
	}
	// What was found is told, whether or not the reads can be kept.
	_, err = cmd.OutOrStdout().Write(text.Bytes())
	if f.save != "" {
		err = errors.Join(err, audit.Save(f.save, reads))
	}
	if err = errors.Join(unreadable, err); err != nil {
		return &auditError{status: exitMachine, why: err} // 1 would be active findings
	}
	if status := auditStatus(result); status != exitExpected {
		return &auditError{status: status}
	}
	return nil
}

// check refuses flags that exclude each other.
func (f auditFlags) check(cmd *cobra.Command) error {
	if f.bmp != "" && f.routers == "" && f.from == "" && !f.rbac {
		return usagef("--bmp: expected --routers, with the routers of kind bmp")
	}
	if f.output != "text" && f.output != "json" {
		return usagef("-o: %q: expected text or json", f.output)
	}
	for alone, others := range map[string][]string{
		"rbac":  {"kubeconfig", "context", "routers", "bmp", "output", "save", "from", "rate"},
		"from":  {"kubeconfig", "context", "routers", "bmp", "save", "watch", "rate"},
		"watch": {"save"},
	} {
		for _, other := range others {
			if cmd.Flags().Changed(alone) && cmd.Flags().Changed(other) {
				return usagef("--%s and --%s exclude each other", alone, other)
			}
		}
	}
	switch {
	case f.rate < 1:
		return usagef("--rate: %d: expected 1 or more", f.rate)
	case f.interval < audit.Between:
		return usagef("--interval: %s: expected %s or more", f.interval, audit.Between)
	case cmd.Flags().Changed("interval") && !f.watching:
		return usagef("--interval is for --watch alone")
	}
	return nil
}

// reads are those of the cluster, and what they took, or those of a folder.
func (f auditFlags) reads(ctx context.Context, tell func(string)) ([]snapshot.Snapshot, *audit.Cost, error) {
	if f.from != "" {
		reads, err := audit.Saved(f.from)
		if err != nil {
			return nil, nil, usagef("--from: %w", err)
		}
		return reads, nil, nil
	}
	on, err := f.connect(ctx, tell)
	if err != nil {
		return nil, nil, err
	}
	defer on.Close()
	if f.save != "" {
		if err := audit.Prepare(f.save); err != nil {
			return nil, nil, usagef("--save: %w", err)
		}
	}
	reads, err := audit.Read(ctx, on.Access, audit.Between, tell)
	cost := on.meter.Cost()
	return reads, &cost, err
}

// fedWithin is how long routers have to feed their routes by BMP. They connect again after a time
// of their own: of FRR 30 s at first, and later more.
const fedWithin = 3 * time.Minute

// connection reaches a cluster and its routers.
type connection struct {
	audit.Access
	// meter counts what reading the cluster takes.
	meter *audit.Meter
	// station is what routers feed; nil without --bmp.
	station *bgprouter.Station
}

// Close ends the station.
func (c *connection) Close() error {
	if c.station == nil {
		return nil
	}
	return c.station.Close()
}

// connect prepares to read the cluster and the routers, and waits until those are there that feed
// their routes. The connection must be closed.
func (f auditFlags) connect(ctx context.Context, tell func(string)) (_ *connection, err error) {
	on := &connection{}
	defer func() {
		if err != nil {
			on.Close()
		}
	}()
	if f.routers != "" {
		text, err := os.ReadFile(f.routers)
		if err != nil {
			return nil, usagef("--routers: %w", err)
		}
		declared, err := bgprouter.Parse(f.routers, text)
		if err != nil {
			return nil, usagef("--routers: %w", err)
		}
		feeds := slices.ContainsFunc(declared, func(d bgprouter.Declared) bool { return d.Kind == bgprouter.BMP })
		switch {
		case feeds != (f.bmp != ""):
			return nil, usagef("--bmp and routers of kind bmp in %s: expected both or neither", f.routers)
		case feeds:
			if on.station, err = bgprouter.Listen(f.bmp, declared, tell); err != nil {
				return nil, usagef("--bmp: %w", err)
			}
		}
		if on.Routing, err = bgprouter.Readers(declared, on.station); err != nil {
			return nil, usagef("--routers: %s: %w", f.routers, err)
		}
	}
	config, name, err := audit.Client{Kubeconfig: f.kubeconfig, Context: f.context, Version: thisVersion(), Rate: f.rate, Watch: f.watching}.Config()
	if err != nil {
		return nil, usagef("%w", err)
	}
	on.Config = config
	tell(fmt.Sprintf("cluster %s of context %q, %d routers", config.Host, name, len(on.Routing)))
	on.meter = audit.Measure(config)
	if on.station != nil {
		if err := on.station.Await(ctx, fedWithin); err != nil {
			return nil, err
		}
	}
	return on, nil
}

// costs is what reading took, in one line.
func costs(c audit.Cost) string {
	return fmt.Sprintf("%s, %s received, at most %s of memory", amount(c.Requests, "request"), units.HumanSize(float64(c.Bytes)), units.BytesSize(float64(c.PeakMemory)))
}

// auditStatus is the exit status of an audit.
func auditStatus(r audit.Result) int {
	switch {
	case len(r.Of(detect.Active)) > 0:
		return exitUnexpected
	case len(r.Of(detect.Latent)) > 0:
		return exitLatent
	case r.Open():
		return exitInconclusive
	}
	return exitExpected
}

// incidentsOf are the incidents of the catalogue with a finding of that kind; if none has one,
// those with its detector.
func incidentsOf(f detect.Finding) []audit.Incident {
	kind, detector := []audit.Incident{}, []audit.Incident{}
	for _, s := range scenarios.All {
		is := audit.Incident{Name: s.Incident.Name, Describe: "relapse describe " + s.Incident.Name}
		found := findingsOf(s)
		if slices.ContainsFunc(found, func(o framework.Finding) bool { return o.Detector == f.Detector && o.Kind == f.Kind }) {
			kind = append(kind, is)
		}
		if slices.ContainsFunc(found, func(o framework.Finding) bool { return o.Detector == f.Detector }) {
			detector = append(detector, is)
		}
	}
	if len(kind) > 0 {
		return kind
	}
	return detector
}

// findingsOf are the findings that a scenario expects.
func findingsOf(s framework.Scenario) []framework.Finding {
	var all []framework.Finding
	for _, v := range s.Variants {
		script := v.Script()
		all = append(all, slices.Concat(script.Latent, script.Expected)...)
		for _, p := range script.Precursors {
			all = append(all, p.Expected...)
		}
	}
	return all
}

// printAudit prints what was not read first, and then the findings, the worst first.
func printAudit(out io.Writer, r audit.Result) {
	fmt.Fprintf(out, "read %d times: %s, %s\n", r.Reads, amount(r.Nodes, "node"), amount(len(r.Routers), "router"))
	section := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintf(out, "\n%s\n", title)
		for _, line := range lines {
			fmt.Fprintln(out, "  "+plain.Line(line))
		}
	}
	section("Not read", r.Unread)
	if slices.ContainsFunc(r.Unread, audit.Forbidden) {
		fmt.Fprintln(out, "  "+audit.RoleHint)
	}
	var notRun []string
	for _, n := range r.NotRun {
		notRun = append(notRun, n.String())
	}
	section("Not run", notRun)
	var notJudged []string
	for _, gap := range r.NotJudged {
		notJudged = append(notJudged, gap.Says)
	}
	section("Not judged", notJudged)
	for _, of := range []struct {
		title    string
		findings []audit.Finding
	}{
		{"Active", r.Of(detect.Active)},
		{"Settling (may pass by itself: audit again)", r.Of(detect.Pending)},
		{"Seen in one of the last two reads (audit again)", r.Once},
		{"Latent", r.Of(detect.Latent)},
		{"Hints", r.Of(detect.Hint)},
	} {
		if len(of.findings) > 0 {
			fmt.Fprintf(out, "\n%s\n", of.title)
		}
		for _, f := range of.findings {
			printFinding(out, f)
		}
	}
	fmt.Fprintf(out, "\n%s\n", summed(r))
	if r.Cost != nil {
		fmt.Fprintln(out, costs(*r.Cost))
	}
}

// summed is the last line.
func summed(r audit.Result) string {
	if len(r.Findings) == 0 {
		switch auditStatus(r) {
		case exitExpected:
			return "nothing found"
		default:
			return "nothing found that holds, but not all could be judged"
		}
	}
	var counts []string
	for _, state := range []detect.State{detect.Active, detect.Pending, detect.Latent, detect.Hint} {
		if n := len(r.Of(state)); n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, state))
		}
	}
	return "findings: " + strings.Join(counts, ", ")
}

func printFinding(out io.Writer, f audit.Finding) {
	fmt.Fprintf(out, "  %s %s, %s: %s\n", f.ID, f.Detector, f.Kind, plain.Line(f.Says))
	objects := []string{"object " + f.Object.String()}
	for _, o := range []struct{ what, is string }{
		{"owner ", f.Owner}, {"announcer ", f.Announcer}, {"routers ", strings.Join(f.Routers, ", ")},
	} {
		if o.is != "" {
			objects = append(objects, o.what+o.is)
		}
	}
	if n := len(f.Pods); n > 0 {
		objects = append(objects, amount(n, "pod"))
	}
	fmt.Fprintf(out, "    %s\n", plain.Line(strings.Join(objects, "; ")))
	for _, i := range f.Incidents {
		fmt.Fprintf(out, "    incident %s: %s\n", i.Name, i.Describe)
	}
}

// amount is a number of things.
func amount(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
