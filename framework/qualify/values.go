package qualify

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/chart/published"
	"github.com/relapse-dev/relapse/framework/component/chart/releasefile"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/cilium/labvalues"
	"github.com/relapse-dev/relapse/framework/component/cilium/reference"
	ciliumrelease "github.com/relapse-dev/relapse/framework/component/cilium/release"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/host"
)

// Values are the user's values of the vendor's chart, and their effect in a lab.
type Values struct {
	// Sources are the files, the first one first.
	Sources []string `json:"sources"`
	// Told says which values were not read.
	Told []string `json:"told,omitempty"`
	// Mode is the mode that Cilium's values choose; nil for other components.
	Mode *labvalues.Mode `json:"mode,omitempty"`
	// BGP is the implementation of BGP that MetalLB's values choose; empty for other components.
	BGP string `json:"bgp,omitempty"`
	// Without are the requested features that the user goes without.
	Without []string `json:"without,omitempty"`
	// Parts are the parts of the component that the values switch on, with their role in the lab.
	Parts []labvalues.Part `json:"parts,omitempty"`
	// Concerns are the paths of the lab, with the values that concern them.
	Concerns []labvalues.Concern `json:"concerns,omitempty"`
	// Replaced are the values that the lab's release replaces.
	Replaced []chart.Replacement `json:"replaced"`
	// NotOfFrom and NotOfTo are values that only the other chart reads. Unread are sentences on values that neither reads.
	NotOfFrom []string `json:"not_of_from"`
	NotOfTo   []string `json:"not_of_to"`
	Unread    []string `json:"unread,omitempty"`

	// lab are the values of the lab's release. They are not stored: values may contain secrets.
	lab map[string]any
	// rendered compares what both charts render with the user's own values.
	rendered Charts
	// refusals are drifts with which the new version does not start.
	refusals []configdrift.Drift
}

// CheckWithout returns an error if a user cannot go without a feature.
func CheckWithout(features ...string) error {
	for _, f := range features {
		if allFeatures := labvalues.Features(); !slices.Contains(allFeatures, f) {
			return fmt.Errorf("%q is no feature to go without%s", f, topology.Nearest(f, allFeatures))
		}
	}
	return nil
}

// ReadValues renders the charts of both versions with the user's values. It downloads missing charts. The error is an
// *images.NotPublishedError if a version has no chart, a *host.UnfitError if no lab of this machine can run the mode,
// and else one sentence about the values.
func ReadValues(
	ctx context.Context, component, from, to string, subnets netip.Prefix, given releasefile.Given, without ...string,
) (*Values, error) {
	v := &Values{Sources: given.Sources, Told: given.Told, Without: without}
	if given.Version != "" && given.Version != from {
		v.Told = append(v.Told, fmt.Sprintf("%s is of version %s of the chart, and %s was asked for",
			strings.Join(v.Sources, ", "), given.Version, from))
	}
	charts := make([]*chart.Chart, 2)
	downloads, within := errgroup.WithContext(ctx)
	for i, version := range []string{from, to} {
		downloads.Go(func() (err error) {
			charts[i], err = published.Of(within, component, version)
			return err
		})
	}
	if err := downloads.Wait(); err != nil {
		return nil, err
	}
	if component == "metallb" {
		return v, v.adaptMetalLB(ctx, charts[0], charts[1], given.Values)
	}
	declared, err := upgrade.Of(component, from, to, upgrade.Settings{Subnets: subnets})
	if err != nil {
		return nil, err
	}
	return v, v.adapt(ctx, labvalues.Of(declared.Topology), charts[0], charts[1], given.Values)
}

// InputError says what is wrong with the user's values, manifests or bundle.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }
func (e *InputError) Unwrap() error { return e.Err }

func (v *Values) wrong(err error) error {
	return &InputError{fmt.Errorf("%s: %w", strings.Join(v.Sources, ", "), err)}
}

// unreadWithin bounds the search for values without effect. A real file with 13 values that the chart has no
// defaults for took 40 s on two busy CPUs.
const unreadWithin = time.Minute

// unread fills in which values the charts do not read. It is an error if the old chart refuses the values. If the new
// chart refuses them, Charts.Refused says so.
func (v *Values) unread(ctx context.Context, from, to *chart.Chart, users map[string]any) error {
	var unread [2][]chart.Path
	renders, within := errgroup.WithContext(ctx)
	within, cancel := context.WithTimeout(within, unreadWithin)
	defer cancel()
	for i, c := range []*chart.Chart{from, to} {
		renders.Go(func() (err error) {
			unread[i], err = c.Unread(within, release(c, users, c == to))
			return err
		})
	}
	err := renders.Wait()
	refused, ok := errors.AsType[*chart.RefusedError](err)
	switch {
	case ok && refused.Version == to.Version:
		return nil
	case ok:
		return v.wrong(err)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		v.Unread = append(v.Unread, fmt.Sprintf("which values have no effect was not found out within %s", unreadWithin))
		return nil
	case err != nil:
		return err
	}
	for i, paths := range unread {
		for _, path := range paths {
			also := slices.ContainsFunc(unread[1-i], func(other chart.Path) bool { return slices.Equal(path, other) })
			switch {
			case !also && i == 0:
				v.NotOfFrom = append(v.NotOfFrom, path.String())
			case !also:
				v.NotOfTo = append(v.NotOfTo, path.String())
			case i == 0:
				says := fmt.Sprintf("value %s changes nothing that either chart renders with these values", path)
				if hint := path.Hint(from, to); hint != "" {
					says += " (" + hint + ")"
				}
				v.Unread = append(v.Unread, says)
			}
		}
	}
	return nil
}

// withoutVariables removes variables without a value. The error names the variables that the lab's release needs.
func (v *Values) withoutVariables(from, to *chart.Chart, users map[string]any) (map[string]any, error) {
	all := placeholder.In(users)
	if len(all) == 0 {
		return users, nil
	}
	missing := slices.DeleteFunc(placeholder.In(v.lab), func(x placeholder.Variable) bool {
		return !from.Renders(release(from, v.lab, false), x.Text) && !to.Renders(release(to, v.lab, true), x.Text)
	})
	if err := placeholder.Missing(missing); err != nil {
		return nil, v.wrong(err)
	}
	v.lab, users = chart.Merge(v.lab), chart.Merge(users)
	for _, x := range placeholder.In(v.lab) {
		chart.Path(x.Path).Put(nil, v.lab)
	}
	var left []string
	for _, x := range all {
		chart.Path(x.Path).Put(v.lab, users)
		if at := fmt.Sprintf("%s (%s)", chart.Path(x.Path), x.Name); !slices.Contains(left, at) {
			left = append(left, at)
		}
	}
	v.Told = append(v.Told, "left out, because a variable has no value, and the lab does not need it: "+strings.Join(left, ", "))
	return users, nil
}

func (v *Values) adapt(ctx context.Context, lab labvalues.Lab, from, to *chart.Chart, users map[string]any) error {
	var err error
	v.lab, v.Replaced, err = labvalues.Adapt(lab, []*chart.Chart{from, to}, users, v.Without...)
	if lacking, ok := errors.AsType[*labvalues.LackingError](err); ok {
		return cannotRun(lacking.Path+" "+lacking.Value, lacking.Lacks,
			"it runs on a cluster that has it; the other modes of Cilium run in a lab")
	}
	if err != nil {
		return v.wrong(err)
	}
	v.Without = slices.DeleteFunc(slices.Clone(v.Without), func(feature string) bool {
		return !slices.ContainsFunc(v.Replaced, func(r chart.Replacement) bool { return r.Why == "--without "+feature })
	})
	v.Parts, v.Concerns = labvalues.PartsOf(users), labvalues.ConcernsOf(users, v.lab)
	if users, err = v.withoutVariables(from, to, users); err != nil {
		return err
	}
	users = resolved(lab, users)
	if err := v.unread(ctx, from, to, users); err != nil {
		return err
	}
	inLab, err := configOf(from, v.lab, false)
	if err != nil {
		return v.wrong(err)
	}
	mode := labvalues.ModeOf(inLab)
	v.Mode = &mode
	// The values decide what the lab has, but extraConfig takes precedence over them in the ConfigMap.
	values := ciliumrelease.Values(v.lab)
	if values.Native() != (mode.Routing == "native") || values.BGP() != mode.BGP || values.ReplacesKubeProxy() == mode.KubeProxy {
		return v.wrong(errors.New("something else than routingMode, kubeProxyReplacement and bgpControlPlane.enabled " +
			"sets the mode (extraConfig?): expected these"))
	}
	v.rendered, v.refusals, err = compareCharts(from, to, users)
	if err != nil {
		return v.wrong(err)
	}
	if v.rendered.Refused == "" {
		// The chart may also refuse a value that only the lab has.
		if inLab, err = configOf(to, v.lab, true); err != nil {
			return v.wrong(fmt.Errorf("with what the lab replaces: %w", err))
		}
	}
	return fits(labvalues.ModeOf(inLab), mode)
}

// fits returns a *host.UnfitError if this machine's kernel lacks what a mode needs.
func fits(modes ...labvalues.Mode) error {
	for _, mode := range modes {
		for kind, value := range mode.Devices() {
			// Without root there is an error, but no lab either.
			lacks, err := host.Lacks(kind)
			switch {
			case err == nil && lacks:
				cure := "it runs on a machine whose kernel has " + kernels[kind].option
				if feature := kernels[kind].feature; feature != "" {
					cure += "; --without " + feature + " goes on without it"
				}
				return cannotRun(value, "this machine's kernel has no "+kernels[kind].what, cure)
			case kind == "xfrm":
				return cannotRun(value, "a lab has no Secret with the keys of IPsec",
					"it runs on a cluster that has one; --without encryption goes on without it")
			}
		}
	}
	return nil
}

// kernels describe the kinds of Mode.Devices: a noun, the kernel's option, and the feature that a user may go without.
var kernels = map[string]struct{ what, option, feature string }{
	"vxlan":     {"VXLAN devices", "CONFIG_VXLAN", ""},
	"geneve":    {"GENEVE devices", "CONFIG_GENEVE", "geneve"},
	"wireguard": {"WireGuard devices", "CONFIG_WIREGUARD, such as Debian's", "encryption"},
	"ipip":      {"IPIP devices", "CONFIG_NET_IPIP", "ipip"},
	"xfrm":      {"IPsec with AES-GCM", "CONFIG_INET_ESP, such as Debian's", "encryption"},
	"netkit":    {"netkit devices", "CONFIG_NETKIT (6.7 or newer)", "netkit"},
}

func cannotRun(value, found, cure string) error {
	return &host.UnfitError{Checks: []host.Check{{
		Name: "values", State: host.Fatal, Found: found,
		Want: "the values ask for " + value + ", which a lab on this machine cannot run", Cure: cure,
	}}}
}

func release(c *chart.Chart, values map[string]any, upgrade bool) chart.Release {
	namespaces := map[string]string{"cilium": "kube-system", "metallb": "metallb-system"}
	return chart.Release{
		Name: c.Name, Namespace: namespaces[c.Name], Values: values, KubeVersion: kubeadm.KubernetesVersion, Upgrade: upgrade,
		// Values may ask for objects of these types. A chart refuses the values if the cluster lacks the types.
		APIVersions: []string{"monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1/GatewayClass"},
	}
}

func configOf(c *chart.Chart, values map[string]any, upgrade bool) (map[string]string, error) {
	rendered, err := c.Render(release(c, values, upgrade))
	if err != nil {
		return nil, err
	}
	name, _ := ConfigMapOf(c.Name)
	found := chart.Find(rendered.Objects, "ConfigMap", name)
	if found == nil {
		return nil, fmt.Errorf("the chart of %s %s renders no ConfigMap %s with these values", c.Name, c.Version, name)
	}
	data, _, err := unstructured.NestedStringMap(found.Object, "data")
	if err != nil {
		return nil, fmt.Errorf("the ConfigMap %s that the chart of %s %s renders: %w", name, c.Name, c.Version, err)
	}
	return data, nil
}

// resolved replaces k8sServiceHost auto, with which a template asks the cluster, by the lab's API server.
func resolved(lab labvalues.Lab, users map[string]any) map[string]any {
	if host, _ := chart.Get(users, "k8sServiceHost"); host == "auto" {
		users = chart.Merge(users)
		chart.Set(users, "k8sServiceHost", lab.APIServer.String())
	}
	return users
}

// compareCharts compares what both charts render from the user's values. With the drifts the new one does not start.
func compareCharts(from, to *chart.Chart, users map[string]any) (Charts, []configdrift.Drift, error) {
	before, err := configOf(from, users, false)
	if err != nil {
		return Charts{}, nil, err
	}
	c := Charts{ConfigMap: cilium.ConfigMap, From: len(before), Changes: []Change{}, Defaults: []Effective{}}
	after, err := configOf(to, users, true)
	if refused, ok := errors.AsType[*chart.RefusedError](err); ok {
		c.Refused = refused.Why
		return c, nil, nil
	}
	if err != nil {
		return Charts{}, nil, err
	}
	c.To = len(after)
	var notes []reference.Note
	if bisect.Minor(from.Version) != bisect.Minor(to.Version) { // notes are written for each minor
		newer := to
		if bisect.Compare(from.Version, to.Version) > 0 { // a downgrade takes the newer version's changes back
			newer = from
		}
		if notes, err = reference.Notes(filepath.Join(newer.Module, "Documentation/operations")); err != nil {
			return Charts{}, nil, err
		}
	}
	table := configdrift.Cilium()
	for _, side := range []*chart.Chart{from, to} {
		stated, err := reference.Read(side.Module, side.Version)
		if err != nil {
			return Charts{}, nil, err
		}
		table = table.With(stated)
	}
	drifts, err := table.Compare(configdrift.Setup{Version: from.Version, Config: before},
		configdrift.Setup{Version: to.Version, Config: after})
	if err != nil {
		return Charts{}, nil, err
	}
	c.compare(before, after, users, notes)
	c.noted(users, notes)
	return c, c.drifts(drifts), nil
}

// concerned says which values concern the paths that a text names, or else which values concern all paths.
func (v *Values) concerned(text string) string {
	var all []string
	if v == nil {
		return ""
	}
	for _, c := range v.Concerns {
		if strings.Contains(text, c.Path) && (len(all) == 0 || c.Path != "->") {
			all = append(all, c.Values...)
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return "; your values that concern these paths: " + strings.Join(slices.Compact(all), ", ")
}

// pins are the user's values that choose the version of an image.
func (v *Values) pins() []string {
	var all []string
	for _, r := range v.Replaced {
		switch r.Path[strings.LastIndexByte(r.Path, '.')+1:] {
		case "tag", "digest", "genericDigest", "override":
			all = append(all, r.Path+" "+r.Was)
		}
	}
	return all
}

func (v *Values) write(line func(name, text string)) {
	line("values", fmt.Sprintf("%s: %s", strings.Join(v.Sources, ", "), v.mode()))
	for _, p := range v.Parts {
		line("", "  "+p.String())
	}
	for _, says := range slices.Concat(v.Told, v.Unread) {
		line("", "  "+says)
	}
	for _, r := range v.Replaced {
		line("", "  "+r.String())
	}
}

func (v *Values) mode() string {
	if v.Mode == nil {
		return "BGP " + v.BGP
	}
	return v.Mode.String()
}

// OfLab are the values of the lab's release; nil without values.
func (v *Values) OfLab() map[string]any {
	if v == nil {
		return nil
	}
	return chart.Merge(v.lab)
}

// ofRecord are values that choose the mode of a recorded upgrade, and so its paths; nil without values.
func (v *Values) ofRecord() map[string]any {
	if v == nil || v.Mode == nil { // MetalLB's mode is stored beside them
		return nil
	}
	return map[string]any{
		"routingMode": v.Mode.Routing, "kubeProxyReplacement": !v.Mode.KubeProxy, "bgpControlPlane": map[string]any{"enabled": v.Mode.BGP},
	}
}
