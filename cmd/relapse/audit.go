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
	kubeconfig, context, routers, nodes, output, save, from string
	rbac, manifest, calico                                  bool
	image                                                   string
}

func auditCommand(s *settings) *cobra.Command {
	var f auditFlags
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Find what is wrong, or waits to happen, in a cluster of your own; changes nothing",
		Long: `Audit reads a live cluster and its routers, and runs the detectors on them whose sources
can be read from outside. It reads both twice, 3 s apart (10 s with --nodes), and a third
time if the reads disagree. A finding counts if the last read and the one before it have it.
What was not read comes first.

The cluster is that of a kubeconfig. The client only lists, and with --nodes reads by pods:
every other request is refused before it is sent. --rbac prints the ClusterRole that an audit
needs.

What only nodes know (rules, connections, IPVS, kube-proxy, BIRD) is read by pods that you
start and remove:
  relapse audit --nodes-manifest --image REGISTRY/nodestate:dev > nodes.yaml
  kubectl apply -f nodes.yaml
  relapse audit --nodes nodes.yaml
  kubectl delete -f nodes.yaml
The manifest says of each privilege what it is for. The image is relapse.dev/nodestate:dev
(relapse images build), which the nodes must be able to pull as REF. nodes.yaml has a key.

Routers are those of a YAML file; without it no route is judged. On FRR an audit runs
vtysh, on BIRD 2 birdc -r, and on both ip, for IPv4 in the default VRF:
  - {name: tor1, kind: frr, ssh: ops@tor1.example}
  - {name: tor2, kind: bird, command: [docker, exec, tor2]}
ssh is the system's, and must log in without a question. A router is expected to have a
node's pod range if it has learned a pod range of the cluster by BGP, and the node is one of
its BGP neighbours. What that leaves out is printed as not judged.

Exit status: 0 all was read, and nothing found; 1 active findings; 2 bad input; 3 the
cluster cannot be read, or the findings or reads not written; 4 something was not read, has not
settled or is left open, and nothing was found in the rest; 5 latent findings only; 130 interrupted.`,
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
	cmd.Flags().StringVar(&f.nodes, "nodes", "", "`FILE` with the manifest of the pods that read the nodes")
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "text or json")
	cmd.Flags().StringVar(&f.save, "save", "", "keep what was read in a folder, `DIR`")
	cmd.Flags().StringVar(&f.from, "from", "", "audit what --save has kept in `DIR`, without a cluster")
	cmd.Flags().BoolVar(&f.rbac, "rbac", false, "print the ClusterRole, and do nothing else")
	cmd.Flags().BoolVar(&f.manifest, "nodes-manifest", false, "print a manifest for --nodes, with a new key, and do nothing else")
	cmd.Flags().StringVar(&f.image, "image", audit.NodeImage, "for --nodes-manifest: the image, `REF`")
	cmd.Flags().BoolVar(&f.calico, "calico", false, "for --nodes-manifest: read Calico's BIRD as well")
	return cmd
}

// auditError is an audit that did not end with status 0. Without a reason all is printed.
type auditError struct {
	status int
	why    error
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
		_, err := fmt.Fprint(cmd.OutOrStdout(), audit.Role())
		return err
	}
	if f.manifest {
		text, err := audit.NodesManifest(f.image, f.calico)
		if err != nil {
			return usagef("--image: %w", err)
		}
		_, err = fmt.Fprint(cmd.OutOrStdout(), text)
		return err
	}
	tell := func(text string) {
		if !quiet {
			fmt.Fprintln(plain.Writer(cmd.ErrOrStderr()), "audit: "+text)
		}
	}
	reads, err := f.reads(cmd.Context(), tell)
	if err != nil {
		return err
	}
	result, unreadable := audit.Judge(reads, incidentsOf)
	var text bytes.Buffer
	switch {
	case unreadable != nil:
	case f.output == "json":
		out := json.NewEncoder(&text)
		out.SetIndent("", "  ")
		if err := out.Encode(result); err != nil {
			return &auditError{exitMachine, fmt.Errorf("writing the findings: %w", err)}
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
		return &auditError{exitMachine, err} // 1 would be active findings
	}
	if status := auditStatus(result); status != exitExpected {
		return &auditError{status: status}
	}
	return nil
}

// check refuses flags that exclude each other.
func (f auditFlags) check(cmd *cobra.Command) error {
	if f.output != "text" && f.output != "json" {
		return usagef("-o: %q: expected text or json", f.output)
	}
	for _, of := range []string{"image", "calico"} {
		if cmd.Flags().Changed(of) && !f.manifest {
			return usagef("--%s is for --nodes-manifest", of)
		}
	}
	for alone, others := range map[string][]string{
		"rbac":           {"kubeconfig", "context", "routers", "nodes", "output", "save", "from"},
		"nodes-manifest": {"kubeconfig", "context", "routers", "nodes", "output", "save", "from", "rbac"},
		"from":           {"kubeconfig", "context", "routers", "nodes", "save"},
	} {
		for _, other := range others {
			if cmd.Flags().Changed(alone) && cmd.Flags().Changed(other) {
				return usagef("--%s and --%s exclude each other", alone, other)
			}
		}
	}
	return nil
}

// reads are those of the cluster, or of a folder.
func (f auditFlags) reads(ctx context.Context, tell func(string)) ([]snapshot.Snapshot, error) {
	if f.from != "" {
		reads, err := audit.Saved(f.from)
		if err != nil {
			return nil, usagef("--from: %w", err)
		}
		return reads, nil
	}
	var access audit.Access
	if f.routers != "" {
		text, err := os.ReadFile(f.routers)
		if err != nil {
			return nil, usagef("--routers: %w", err)
		}
		declared, err := bgprouter.Parse(f.routers, text)
		if err != nil {
			return nil, usagef("--routers: %w", err)
		}
		if access.Routing, err = bgprouter.Readers(declared); err != nil {
			return nil, usagef("--routers: %s: %w", f.routers, err)
		}
	}
	between := audit.Between
	if f.nodes != "" {
		text, err := os.ReadFile(f.nodes)
		if err != nil {
			return nil, usagef("--nodes: %w", err)
		}
		if access.ByNode, err = audit.ParseNodes(f.nodes, text); err != nil {
			return nil, usagef("--nodes: %w", err)
		}
		between = audit.BetweenNodes
	}
	if f.save != "" {
		if err := audit.Prepare(f.save); err != nil {
			return nil, usagef("--save: %w", err)
		}
	}
	config, name, err := audit.Cluster(f.kubeconfig, f.context, thisVersion(), access.ByNode)
	if err != nil {
		return nil, usagef("%w", err)
	}
	access.Config = config
	tell(fmt.Sprintf("cluster %s of context %q, %d routers", config.Host, name, len(access.Routing)))
	return audit.Read(ctx, access, between, tell)
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
