package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/component/chart/releasefile"
	"github.com/relapse-dev/relapse/framework/keptlab"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/scenarios"
)

type qualifyOptions struct {
	storedOptions
	config string // a file, or - for standard input
	portable.Values
	like    string   // a bundle
	without []string // features of the values
	// manifests is a file, a folder, or - for standard input.
	manifests string
	mode      string
	family    family
	maxGap    time.Duration
	maxLost   string // a share of packets, such as 0.1%
	resume    string // the folder of an earlier qualification
	fresh     bool
}

const qualifyHelp = `Qualify judges an upgrade before it is made: the vendor's releases on the way, the effect on your
configuration, on a lab under traffic the upgrade itself and the rollback, and each incident of the
catalogue that tests the component, with both versions, where no earlier run has shown what it does.
FROM may be left out where a file of --values, or a bundle, states it. What a lab cannot have of your
settings is replaced, which is printed.

NO-GO: an incident is introduced, TO does not start, an agent that was restarted in the middle does
not work again, or traffic loses more than --max-gap and --max-lost allow, or more afterwards than at
rest. UNKNOWN: a part that decides could not be judged.

cmd/relapse/README.md, "Qualify", says which settings each component takes, and what is written.

Exit status: 0 GO; 1 NO-GO; 4 UNKNOWN; 2, 3, 6 and 130 as for all commands.`

func qualifyCommand(s *settings) *cobra.Command {
	var o qualifyOptions
	cmd := &cobra.Command{
		Use:   "qualify COMPONENT [FROM] TO",
		Short: "Judge an upgrade of a component: configuration, incidents, and traffic during the rollout",
		Long:  qualifyHelp,
		Example: `  relapse qualify kube-router 1.5.1 2.1.0
  kubectl -n kube-system get configmap cilium-config -o yaml | relapse qualify cilium 1.18.4 1.19.3 --config -
  helm -n kube-system get values cilium -o yaml | relapse qualify cilium 1.18.4 1.19.3 --values -
  kubectl -n kube-system get configmap kube-proxy -o yaml | relapse qualify kube-proxy 1.35.4 1.36.3 --config -
  relapse qualify metallb 0.14.8 0.14.9`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && (len(o.Files) > 0 || o.like != "") {
				return nil // FROM is in the file of the values, or in the bundle
			}
			if o.like != "" && len(args) < 2 {
				return portable.ExactArgs(2, "the name of a component and TO, such as cilium 1.19.5")(cmd, args)
			}
			return portable.ExactArgs(3, "the name of a component and two versions, such as cilium 1.18.4 1.19.3")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			args, notes, err := o.asInBundle(cmd.Context(), args)
			if err != nil {
				return err
			}
			given, args, err := o.givenValues(args, cmd.InOrStdin())
			if err != nil {
				return err
			}
			q, err := o.request(args[0], args[1], args[2], cmd.InOrStdin())
			if err != nil {
				return err
			}
			if err := checkManifests(cmd.Context(), &q); err != nil {
				return err
			}
			q.Told = append(notes, q.Told...)
			if q.Values, err = o.readValues(cmd.Context(), q, given); err != nil {
				return err
			}
			_, err = runQualification(cmd.Context(), s, q, o)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.config, "config", "", "the component's ConfigMap, or YAML that contains it, `FILE`; - is standard input")
	o.Values.Register(flags)
	flags.StringSliceVar(&o.without, "without", nil,
		"go on without what your values ask for and this machine's kernel lacks, `FEATURES`: netkit, encryption, geneve, ipip")
	flags.StringVar(&o.like, "like", "", "take FROM, values, configuration and objects, "+
		"where nothing else gives them, from a bundle (see audit --from), `BUNDLE`")
	flags.StringVar(&o.manifests, "manifests", "", "objects of the component's own types "+
		"(MetalLB's, or of Cilium's BGP and layer 2), `FILE` or folder; - is standard input")
	flags.StringVar(&o.mode, "mode", "", "the `MODE`, if no configuration names one: "+
		"of kube-proxy iptables, nftables or ipvs (default iptables), of MetalLB native or frr (default the chart's)")
	flags.StringVar((*string)(&o.family), "family", "", "the address families of the lab of MetalLB or whole Cilium, `FAMILY`: ipv4, or dual "+
		"(default dual if the values have ipv6.enabled: true, or a pool of the manifests has both)")
	flags.DurationVar(&o.maxGap, "max-gap", time.Second, "how long a path may go unanswered during the rollout")
	flags.StringVar(&o.maxLost, "max-lost", "0.1%",
		"the `SHARE` of a path's packets that may be lost during the rollout; none may be lost after it")
	flags.BoolVar(&o.fresh, "fresh", false, "run incidents also with versions whose result is known from an earlier run (see advise)")
	flags.StringVar(&o.resume, "resume", "", "continue an interrupted qualification, by its folder `DIR`")
	o.register(cmd, "print the plan, and run nothing")
	return cmd
}

func (o qualifyOptions) request(component, from, to string, stdin io.Reader) (q qualify.Request, err error) {
	if err := o.check(); err != nil {
		return q, err
	}
	if o.config != "" && len(o.Files) > 0 {
		return q, usagef("--values and --config exclude each other: the charts render the ConfigMap from the values")
	}
	q = qualify.Request{Component: component, From: from, To: to, Source: o.config, Command: o.command(component, from, to)}
	if q.Thresholds, err = o.thresholds(); err != nil {
		return q, err
	}
	if !o.fresh {
		if q.Known, err = portable.Results(""); err != nil {
			return q, err
		}
	}
	if err := portable.CheckVersions(from, to); err != nil {
		return q, err
	}
	if q.Subnets, err = o.subnets.prefix(); err != nil {
		return q, err
	}
	if key := upgrade.ConfigKey(component); key != "" && o.config != "" {
		q.Settings.Config, err = o.readText("--config", o.config, stdin, func(text []byte) (string, error) { return qualify.Document(text, key) })
	} else {
		q.Config, err = o.readConfig(component, stdin)
	}
	if err == nil && o.manifests != "" {
		q.Source = o.manifests
		vars, wrong := o.Variables()
		if wrong != nil {
			return q, wrong
		}
		q.Settings.Manifests, err = o.readText("--manifests", o.manifests, stdin, vars.Stream)
	}
	q.Settings.Mode, q.Settings.Family = o.mode, string(o.family)
	return q, err
}

// checkManifests removes fields from the manifests that the types of the component do not have.
func checkManifests(ctx context.Context, q *qualify.Request) (err error) {
	if q.Settings.Manifests == "" {
		return nil
	}
	q.Settings.Manifests, q.Told, err = qualify.CheckManifests(ctx, q.Component, q.From, q.To, q.Settings.Manifests)
	if wrong, ok := errors.AsType[*qualify.InputError](err); ok {
		return usagef("--manifests: %w", wrong)
	}
	return err
}

// asInBundle takes from the bundle of --like what no flag gives: FROM, values, configuration and objects. notes say
// what in the bundle the lab does not have.
func (o *qualifyOptions) asInBundle(ctx context.Context, args []string) (withFrom []string, notes []string, err error) {
	if o.like == "" {
		return args, nil, nil
	}
	from := ""
	if len(args) == 3 {
		from = args[1]
	}
	l, err := qualify.LikenessOf(ctx, args[0], from, o.like)
	if wrong, ok := errors.AsType[*qualify.InputError](err); ok {
		return nil, nil, usagef("--like: %w", wrong)
	} else if err != nil {
		return nil, nil, err
	}
	if o.config == "" && l.NoConfig != "" {
		return nil, nil, usagef("--like: %s: expected --config as well", l.NoConfig)
	}
	o.OfBundle, o.mode = map[string]string{}, cmp.Or(o.mode, l.Mode)
	take := func(flag *string, what, text string) {
		if *flag == "" && text != "" {
			*flag = fmt.Sprintf("%s (%s)", o.like, what)
			o.OfBundle[*flag] = text
		}
	}
	take(&o.config, "configuration", l.Config)
	take(&o.manifests, "objects", l.Manifests)
	if values := ""; len(o.Files) == 0 && l.Values != "" {
		take(&values, "values", l.Values)
		o.Files = []string{values}
	}
	return []string{args[0], l.From, args[len(args)-1]}, l.Told, nil
}

// givenValues reads the files of --values. It returns the arguments with FROM, which may come from a file.
func (o qualifyOptions) givenValues(args []string, stdin io.Reader) (releasefile.Given, []string, error) {
	given, err := o.Given(args[0], stdin)
	switch {
	case err != nil:
		return given, nil, err
	case len(o.Files) == 0, len(args) == 3:
		return given, args, nil
	case given.Version == "":
		return given, nil, usagef("--values: %s states no version of the chart: expected qualify %s FROM %s",
			strings.Join(given.Sources, ", "), args[0], args[1])
	}
	return given, []string{args[0], given.Version, args[1]}, nil
}

func (o qualifyOptions) readText(flag, name string, stdin io.Reader, take func([]byte) (string, error)) (string, error) {
	all, file, err := o.Input(flag, name, stdin)
	if err != nil {
		return "", err
	}
	text, err := take(all)
	if err != nil {
		return "", usagef("%s: %s: %w", flag, file, err)
	}
	if strings.TrimSpace(text) == "" {
		return "", usagef("%s: %s is empty", flag, file)
	}
	return text, nil
}

func (o qualifyOptions) thresholds() (qualify.Thresholds, error) {
	if o.maxGap < 0 {
		return qualify.Thresholds{}, usagef("--max-gap: %s: expected 0 or more", o.maxGap)
	}
	number, ok := strings.CutSuffix(o.maxLost, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(percent >= 0 && percent <= 100) {
		return qualify.Thresholds{}, usagef("--max-lost: %q is not a share of packets: expected one such as 0.1%%", o.maxLost)
	}
	return qualify.Thresholds{MaxGapMS: o.maxGap.Milliseconds(), MaxLost: percent / 100}, nil
}

func (o qualifyOptions) command(component, from, to string) string {
	words := []string{"relapse", "qualify", component, from, to}
	for _, file := range o.Files {
		if _, has := o.OfBundle[file]; !has {
			words = append(words, "--values", file)
		}
	}
	for _, pair := range o.SetVars {
		name, _, _ := strings.Cut(pair, "=")
		words = append(words, "--set-var", name+"=VALUE") // the value may be a secret
	}
	for _, flag := range [][3]string{
		{"--like", o.like, ""}, {"--vars", o.Vars, ""}, {"--without", strings.Join(o.without, ","), ""},
		{"--config", o.config, ""}, {"--manifests", o.manifests, ""}, {"--mode", o.mode, ""},
		{"--family", string(o.family), ""}, {"--max-gap", o.maxGap.String(), "1s"}, {"--max-lost", o.maxLost, "0.1%"},
		{"--timeout", o.timeout.String(), "1h0m0s"}, {"--subnets", string(o.subnets), ""},
	} {
		if _, has := o.OfBundle[flag[1]]; flag[1] != flag[2] && !has {
			words = append(words, flag[0], flag[1])
		}
	}
	if o.fresh {
		words = append(words, "--fresh")
	}
	return shellescape.QuoteCommand(words)
}

func (o qualifyOptions) readConfig(component string, stdin io.Reader) (*qualify.ConfigMap, error) {
	if o.config == "" {
		return nil, nil
	}
	text, file, err := o.Input("--config", o.config, stdin)
	if err != nil {
		return nil, err
	}
	name, _ := qualify.ConfigMapOf(component) // a stream's only ConfigMap may have any name
	c, err := qualify.ReadConfigMap(bytes.NewReader(text), name)
	if err != nil {
		return nil, usagef("--config: %s: %w", file, err)
	}
	return &c, nil
}

func (o qualifyOptions) readValues(ctx context.Context, q qualify.Request, given releasefile.Given) (*qualify.Values, error) {
	if len(o.Files) == 0 {
		return nil, nil
	}
	if err := advise.CheckValues(q.Component, q.From, q.To); err != nil {
		return nil, usagef("--values: %w", err)
	}
	if err := qualify.CheckWithout(o.without...); err != nil {
		return nil, usagef("--without: %w", err)
	}
	v, err := qualify.ReadValues(ctx, q.Component, q.From, q.To, q.Subnets, given, o.without...)
	if wrong, ok := errors.AsType[*qualify.InputError](err); ok {
		return nil, usagef("--values: %w", wrong)
	}
	return v, err
}

// runQualification runs a qualification, or prints its plan. The runner is nil if it cannot begin.
func runQualification(ctx context.Context, s *settings, q qualify.Request, o qualifyOptions) (*qualify.Runner, error) {
	r, err := qualify.New(q, scenarios.All)
	if err != nil {
		return nil, usagef("%w", err)
	}
	catalogue, _, err := openCatalogue()
	if err != nil {
		return nil, err
	}
	if err := r.LookUp(ctx, catalogue); err != nil {
		return nil, err
	}
	if o.resume != "" {
		if err := r.Resume(o.resume); err != nil {
			return nil, usagef("--resume: %w", err)
		}
	}
	r.WritePlan(plain.Writer(os.Stdout))
	if o.dryRun {
		return r, nil
	}
	if err := r.Fit(); err != nil {
		return nil, err
	}
	l, err := s.openLabs(ctx, catalogue, r.Topologies()...)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if r.Dir == "" {
		if r.Dir, err = o.folder("qualify", fmt.Sprintf("%s-%s-to-%s", q.Component, q.From, q.To)); err != nil {
			return nil, err
		}
	}
	r.Relapse, r.Progress = l.Relapse, l.display
	err = r.Run(ctx, qualify.Machine{
		Catalogue: catalogue, Labs: suite.Labs(l.Options), Options: l.Options.Options,
		NewLab:  func() *keptlab.Lab { return l.runsIn(r.Dir, o.timeout) },
		IsUnfit: func(err error) bool { return exitStatus(ctx, err) == exitMachine },
	})
	l.display.Close()
	if err != nil {
		fmt.Fprintf(plain.Writer(os.Stdout), "\nresults so far: %s\ncontinue with: %s --resume %s\n",
			r.Dir, q.Command, shellescape.Quote(r.Dir))
		return nil, err
	}
	result := r.Result()
	fmt.Fprintf(plain.Writer(os.Stdout), "\n%s\nreports: %s\n", result.Text(), r.Dir)
	if err := r.Broken(); err != nil && result.Verdict == qualify.Go {
		l.Log.Warn("parts that do not decide could not be checked", "error", err)
	}
	switch result.Verdict {
	case qualify.Go:
		return r, nil
	case qualify.NoGo:
		return r, judgedAs(framework.Fail, r.Broken())
	}
	return r, judgedAs(framework.Inconclusive, r.Broken())
}
