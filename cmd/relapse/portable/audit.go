package portable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/audit/bundle"
	"github.com/relapse-dev/relapse/framework/audit/render"
	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/status"
)

type auditFlags struct {
	overrides                                                                             clientcmd.ConfigOverrides
	kubeconfig, routers, bmp, output, save, from, suppress, upgrade, nodes, image, listen string
	rbac, rules, redact, manifest, calico                                                 bool
	rate                                                                                  int
	every                                                                                 time.Duration
	// bundle is the bundle of --from; nil if --from names saved reads.
	bundle *bundle.Bundle
}

const auditHelp = `Audit names the incidents that a live cluster and its routers have, or wait for. It reads both
from outside, and only lists: every other request is refused before it is sent. Without --routers
no route is judged, and without --nodes nothing that nodes alone know. With --from, it reads what a
collector has written for a bug report.

framework/audit/README.md says how routers are given, what is read, judged and permitted, and how to
suppress findings.

Exit status: 0 all was read, and nothing found; 1 active findings; 5 latent findings alone; 4 nothing
found, but not all was read or has settled; 2 bad input; 3 the cluster cannot be read, or the result not
written; 130 interrupted. With --every it is that of the last state.`

// kubectlFlags choose the cluster and the user, as kubectl's flags of these names do.
var kubectlFlags = []string{"kubeconfig", "context", "cluster", "user", "as", "as-group", "request-timeout"}

// Audit is the command audit.
func Audit(s *Settings) *cobra.Command {
	var f auditFlags
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Find what is wrong, or waits to happen, in a cluster of your own; changes nothing",
		Long:  auditHelp,
		Example: strings.ReplaceAll(`  relapse audit --routers routers.yaml
  relapse audit --routers routers.yaml --as system:serviceaccount:net:audit   # under the role that --rbac prints
  relapse audit --nodes-manifest --image REGISTRY/nodestate:dev > nodes.yaml; kubectl apply -f nodes.yaml
  relapse audit --routers routers.yaml --nodes nodes.yaml
  relapse audit --routers routers.yaml --every 5m --listen :9110
  relapse audit --from cilium-sysdump.zip`, "relapse audit", self()+" audit"),
		Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := s.Logger(os.Stderr); err != nil {
				return err
			}
			return f.run(cmd, s.Quiet)
		},
	}
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "`FILE` with the cluster (default KUBECONFIG, or ~/.kube/config)")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	auth, target := names.AuthOverrideFlags, names.ContextOverrideFlags
	clientcmd.BindOverrideFlags(&f.overrides, cmd.Flags(), clientcmd.ConfigOverrideFlags{
		CurrentContext: names.CurrentContext, Timeout: names.Timeout,
		AuthOverrideFlags: clientcmd.AuthOverrideFlags{
			Impersonate: auth.Impersonate, ImpersonateGroups: auth.ImpersonateGroups,
		},
		ContextOverrideFlags: clientcmd.ContextOverrideFlags{
			ClusterName: target.ClusterName, AuthInfoName: target.AuthInfoName,
		},
	})
	cmd.Flags().StringVar(&f.routers, "routers", "", "`FILE` with the routers")
	cmd.Flags().StringVar(&f.bmp, "bmp", "", "wait on `ADDRESS`, such as :11019, for the routers of kind bmp to feed their routes")
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", strings.Join(render.Formats(), ", "))
	cmd.Flags().StringVar(&f.save, "save", "", "keep what was read in a folder, `DIR`")
	cmd.Flags().StringVar(&f.from, "from", "", "audit a bundle, `DIR|FILE`, without a cluster: "+
		"a sysdump, must-gather, cluster-info dump or support bundle, or what --save has kept")
	cmd.Flags().StringVar(&f.suppress, "suppress", "", "`FILE` with the findings that do not count")
	cmd.Flags().StringVar(&f.upgrade, "upgrade", "", "find what an upgrade changes: `COMPONENT=VERSION`, such as cilium=1.19.5")
	cmd.Flags().BoolVar(&f.redact, "redact", false, "replace names and addresses in what is printed and saved")
	cmd.Flags().BoolVar(&f.rbac, "rbac", false, "print the ClusterRole (with --upgrade also the Role), and do nothing else")
	cmd.Flags().BoolVar(&f.rules, "prometheus-rules", false, "print alerts on what --listen serves, and do nothing else")
	cmd.Flags().IntVar(&f.rate, "rate", audit.RequestsPerSecond, "requests per second, `N`, to the API server")
	cmd.Flags().DurationVar(&f.every, "every", 0, "audit again each `TIME`, such as 5m, and print findings as they come and go")
	cmd.Flags().StringVar(&f.listen, "listen", "", "with --every: serve the last state for Prometheus on `ADDRESS`, such as :9110")
	cmd.Flags().StringVar(&f.nodes, "nodes", "", "`FILE` with the manifest of the pods that read the nodes")
	cmd.Flags().BoolVar(&f.manifest, "nodes-manifest", false, "print a manifest for --nodes, with a new key, and do nothing else")
	cmd.Flags().StringVar(&f.image, "image", "", "for --nodes-manifest: the image as the nodes pull it, `REF`, best with its digest")
	cmd.Flags().BoolVar(&f.calico, "calico", false, "for --nodes-manifest: read Calico's BIRD as well")
	return cmd
}

func (f auditFlags) run(cmd *cobra.Command, quiet bool) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	if f.rbac || f.rules || f.manifest {
		text, err := f.objects()
		if err == nil {
			_, err = fmt.Fprint(cmd.OutOrStdout(), text)
		}
		return err
	}
	tell := func(text string) {
		if !quiet {
			fmt.Fprintln(plain.Writer(cmd.ErrOrStderr()), "audit: "+text)
		}
	}
	var upgrade audit.Upgrade
	var err error
	if f.upgrade != "" {
		if upgrade, err = audit.ParseUpgrade(f.upgrade); err != nil {
			return status.Input("--upgrade: %w", err)
		}
	}
	routing, err := parsed("--routers", f.routers, bgprouter.Parse)
	if err != nil {
		return err
	}
	suppressions, err := parsed("--suppress", f.suppress, audit.ParseSuppressions)
	if err != nil {
		return err
	}
	if f.redact {
		suppressions = audit.Anonymous(suppressions)
	}
	if f.every > 0 {
		return f.repeat(cmd, routing, suppressions, tell)
	}
	reads, cost, err := f.reads(cmd.Context(), routing, tell)
	if err != nil {
		return err
	}
	result, unreadable := audit.Judge(reads)
	if unreadable != nil && f.bundle != nil && !f.redact { // the names of missing files are not redacted
		for _, part := range f.bundle.Parts() {
			tell(part)
		}
	}
	result.Relapse = ThisVersion()
	result.Cost = cost
	if unreadable == nil && f.upgrade != "" {
		// The reads are saved first: the user can audit them by --from with another version.
		if err := result.Upgrade(reads, upgrade); err != nil {
			if f.save != "" && !f.redact {
				err = errors.Join(err, audit.Save(f.save, reads))
			}
			return status.Input("--upgrade: %w", err)
		}
	}
	if unreadable == nil {
		f.finish(&result, reads, suppressions, routing)
	}
	if f.redact {
		if reads, result, unreadable, err = f.redacted(reads, result, unreadable, routing); err != nil {
			return &Ended{Status: ExitMachine, Why: err}
		}
	}
	return f.write(cmd.OutOrStdout(), reads, result, unreadable)
}

// write prints the findings, and saves the reads. Its error has the exit status.
func (f auditFlags) write(out io.Writer, reads []snapshot.Snapshot, result audit.Result, unreadable error) error {
	var text bytes.Buffer
	if unreadable == nil {
		if err := render.Write(&text, f.output, result); err != nil {
			return &Ended{Status: ExitMachine, Why: fmt.Errorf("writing the findings: %w", err)}
		}
	}
	// The findings are printed, whether or not the reads can be saved.
	_, err := out.Write(text.Bytes())
	if f.save != "" {
		err = errors.Join(err, audit.Save(f.save, reads))
	}
	if err = errors.Join(unreadable, err); err != nil {
		return &Ended{Status: ExitMachine, Why: err} // 1 would be active findings
	}
	if status := auditStatus(result); status != ExitExpected {
		return &Ended{Status: status}
	}
	return nil
}

func (f auditFlags) objects() (string, error) {
	switch {
	case f.rules:
		return render.Rules, nil
	case f.rbac && f.upgrade != "":
		return audit.Role() + "---\n" + audit.UpgradeRole(), nil
	case f.rbac:
		return audit.Role(), nil
	}
	text, err := audit.NodesManifest(f.image, f.calico)
	if err != nil {
		return "", status.Input("--image: %w", err)
	}
	return text, nil
}

// finish adds the statements of each layer to a result, and removes suppressed findings.
func (f auditFlags) finish(r *audit.Result, reads []snapshot.Snapshot, suppressions []audit.Suppression, routing []bgprouter.Declared) {
	r.Detail(reads[len(reads)-1], f.reached(routing))
	if f.bundle != nil {
		r.Locate(f.bundle, reads[len(reads)-1], f.redact)
	}
	r.Suppress(suppressions, time.Now())
}

func (f auditFlags) redacted(reads []snapshot.Snapshot, result audit.Result, unreadable error, routing []bgprouter.Declared,
) ([]snapshot.Snapshot, audit.Result, error, error) {
	hosts := []string{f.nodes}
	if f.bundle != nil {
		hosts = append(hosts, f.bundle.Namespaces()...)
	}
	if f.from == "" {
		config, _, err := f.client().Config()
		if err != nil {
			return nil, result, nil, err
		}
		hosts = append(hosts, config.Host)
	}
	x, err := audit.Redact(reads, result, routing, hosts)
	if err != nil {
		return nil, result, nil, err
	}
	if reads, err = x.Reads(reads); err != nil {
		return nil, result, nil, err
	}
	if unreadable != nil {
		return reads, result, errors.New(x.Text(unreadable.Error())), nil
	}
	result, err = x.Result(result)
	return reads, result, nil, err
}

// check refuses flags that exclude each other.
func (f auditFlags) check(cmd *cobra.Command) error {
	if f.bmp != "" && f.routers == "" && f.from == "" && !f.rbac {
		return status.Input("--bmp: expected --routers, with the routers of kind bmp")
	}
	formats := render.Formats()
	if f.every > 0 {
		formats = []string{"text", "json"}
	}
	if !slices.Contains(formats, f.output) {
		return status.Input("-o: %q: expected %s%s", f.output, strings.Join(formats, ", "), topology.Nearest(f.output, formats))
	}
	if f.manifest && f.image == "" {
		return status.Input("--nodes-manifest: expected --image, with the reference by which the nodes pull %s (relapse images "+
			"build and save make it)", audit.NodeImage)
	}
	for _, flag := range []string{"image", "calico"} {
		if cmd.Flags().Changed(flag) && !f.manifest {
			return status.Input("--%s is for --nodes-manifest", flag)
		}
	}
	audits := append([]string{"routers", "bmp", "nodes", "output", "save", "from", "rate", "suppress", "redact", "every"}, kubectlFlags...)
	for alone, others := range map[string][]string{
		"rbac":             audits,
		"nodes-manifest":   append([]string{"upgrade", "rbac", "prometheus-rules"}, audits...),
		"prometheus-rules": append([]string{"upgrade", "rbac"}, audits...),
		"from":             append([]string{"bmp", "nodes", "save", "every", "rate"}, kubectlFlags...),
		"every":            {"save", "redact", "upgrade"},
	} {
		for _, other := range others {
			if other == "save" && alone == "from" && f.redact {
				continue // a redacted copy of saved reads
			}
			if cmd.Flags().Changed(alone) && cmd.Flags().Changed(other) {
				return status.Input("--%s and --%s exclude each other", alone, other)
			}
		}
	}
	switch {
	case f.rate < 1:
		return status.Input("--rate: %d: expected 1 or more", f.rate)
	case cmd.Flags().Changed("every") && f.every < auditsApart:
		return status.Input("--every: %s: expected %s or more", f.every, auditsApart)
	case f.listen != "" && f.every == 0:
		return status.Input("--listen is for --every alone")
	}
	return nil
}

// parsed returns the parsed file of a flag; the zero value without a file.
func parsed[T any](flag, file string, parse func(name string, text []byte) (T, error)) (read T, err error) {
	if file == "" {
		return read, nil
	}
	text, err := os.ReadFile(file)
	if err == nil {
		read, err = parse(file, text)
	}
	if err != nil {
		return read, status.Input("%s: %w", flag, err)
	}
	return read, nil
}

func (f auditFlags) reached(routing []bgprouter.Declared) audit.Reached {
	if f.redact { // redaction does not find paths, hosts and users by their form
		return audit.Reached{Incidents: incidentsOf}
	}
	by := audit.Reached{Routers: routing, Incidents: incidentsOf}
	o := f.overrides
	for _, flag := range []struct{ name, value string }{
		{"--kubeconfig=", f.kubeconfig}, {"--context=", o.CurrentContext}, {"--cluster=", o.Context.Cluster}, {"--user=", o.Context.AuthInfo},
		{"--as=", o.AuthInfo.Impersonate},
	} {
		if flag.value != "" {
			by.Kubectl = append(by.Kubectl, flag.name+flag.value)
		}
	}
	for _, group := range o.AuthInfo.ImpersonateGroups {
		by.Kubectl = append(by.Kubectl, "--as-group="+group)
	}
	return by
}

func (f *auditFlags) reads(ctx context.Context, routing []bgprouter.Declared, tell func(string)) ([]snapshot.Snapshot, *audit.Cost, error) {
	if f.save != "" {
		if err := audit.Prepare(f.save); err != nil {
			return nil, nil, status.Input("--save: %w", err)
		}
	}
	if f.from != "" {
		reads, err := f.storedReads(ctx, routing, tell)
		return reads, nil, err
	}
	on, err := f.connect(ctx, routing, tell)
	if err != nil {
		return nil, nil, err
	}
	defer on.Close()
	reads, err := on.read(ctx, tell)
	cost := on.meter.Cost()
	return reads, &cost, err
}

// storedReads returns the reads that --save wrote, or the read of a bundle (--from).
func (f *auditFlags) storedReads(ctx context.Context, routing []bgprouter.Declared, tell func(string)) ([]snapshot.Snapshot, error) {
	if audit.IsSaved(f.from) {
		reads, err := audit.Saved(f.from)
		if err != nil {
			return nil, status.Input("--from: %w", err)
		}
		return reads, nil
	}
	defer debug.SetGCPercent(debug.SetGCPercent(50)) // a list of all Pods has hundreds of megabytes of garbage
	var err error
	if f.bundle, err = bundle.Open(f.from, audit.Bundled); err != nil {
		return nil, status.Input("--from: %w", err)
	}
	for i, d := range routing {
		if !d.Offline() {
			return nil, status.Input("--routers: router %s: with a bundle, expected files, or kind mrt: nothing is connected to", d.Name)
		}
		routing[i].Now = f.bundle.Time()
	}
	by, err := bgprouter.Readers(routing, nil)
	if err != nil {
		return nil, status.Input("--routers: %s: %w", f.routers, err)
	}
	if !f.redact { // the text names files
		tell(f.bundle.String())
	}
	s, err := audit.FromBundle(ctx, f.bundle, by)
	return []snapshot.Snapshot{s}, err
}

// fedWithin is how long routers have to feed their routes by BMP. FRR reconnects after 30 s at first, and later more.
const fedWithin = 3 * time.Minute

type connection struct {
	audit.Access
	meter *audit.Meter
	// station receives the routes of routers by BMP; nil without --bmp.
	station *bgprouter.Station
}

func (c *connection) read(ctx context.Context, tell func(string)) ([]snapshot.Snapshot, error) {
	between := audit.Between
	if c.ByNode != nil {
		between = audit.BetweenNodes
	}
	return audit.Read(ctx, c.Access, between, tell)
}

// Close ends the station.
func (c *connection) Close() error {
	if c.station == nil {
		return nil
	}
	return c.station.Close()
}

// connect prepares to read the cluster and the routers, and waits for the routers that feed their routes by BMP. The
// caller closes the connection.
func (f auditFlags) connect(ctx context.Context, routing []bgprouter.Declared, tell func(string)) (_ *connection, err error) {
	on := &connection{Access: audit.Access{Upgrade: f.upgrade != ""}}
	defer func() {
		if err != nil {
			on.Close()
		}
	}()
	if f.routers != "" {
		feeds := slices.ContainsFunc(routing, func(d bgprouter.Declared) bool { return d.Kind == bgprouter.BMP })
		switch {
		case feeds != (f.bmp != ""):
			return nil, status.Input("--bmp and routers of kind bmp in %s: expected both or neither", f.routers)
		case feeds:
			heard := tell
			if f.redact { // its events name routers and addresses
				heard = func(string) {}
			}
			if on.station, err = bgprouter.Listen(f.bmp, routing, heard); err != nil {
				return nil, status.Input("--bmp: %w", err)
			}
		}
		if on.Routing, err = bgprouter.Readers(routing, on.station); err != nil {
			return nil, status.Input("--routers: %s: %w", f.routers, err)
		}
	}
	if on.ByNode, err = parsed("--nodes", f.nodes, audit.ParseNodes); err != nil {
		return nil, err
	}
	client := f.client()
	client.Nodes = on.ByNode
	config, name, err := client.Config()
	if err != nil {
		return nil, status.Input("%w", err)
	}
	on.Config = config
	if !f.redact { // redacted output may be sent to other people
		tell(fmt.Sprintf("cluster %s of context %q, %d routers", config.Host, name, len(on.Routing)))
	}
	on.meter = audit.Measure(config)
	if on.station != nil {
		if err := on.station.Await(ctx, fedWithin); err != nil {
			return nil, err
		}
	}
	return on, nil
}

func (f auditFlags) client() audit.Client {
	return audit.Client{
		Kubeconfig: f.kubeconfig, Overrides: f.overrides, Version: ThisVersion(), Rate: f.rate, Cilium: f.upgrade != "" || f.nodes != "",
	}
}

func auditStatus(r audit.Result) int {
	switch r.Outcome() {
	case audit.SomeActive:
		return ExitUnexpected
	case audit.SomeLatent:
		return ExitLatent
	case audit.Unsettled:
		return ExitInconclusive
	}
	return ExitExpected
}
