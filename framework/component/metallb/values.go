package metallb

import (
	"fmt"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/host"
)

// Modes of MetalLB: which implementation of BGP its speakers have.
const (
	Native = "native"
	FRR    = "frr"
	// FRRK8s runs FRR by the operator frr-k8s. A lab does not have it.
	FRRK8s = "frr-k8s"
)

// frrByDefault is the first version whose chart enables FRR unless the values say otherwise:
// speaker.frr.enabled in values.yaml, which was compared with the charts by TestRender.
const frrByDefault = "0.13.10"

const (
	frrEnabled     = "speaker.frr.enabled"
	frrk8sEnabled  = "frrk8s.enabled"
	frrk8sExternal = "frrk8s.external"
)

// Mode is the mode that the values choose, or the chart's default.
func (r Release) Mode() string {
	set := func(path string) (value string) {
		if v, there := chart.Get(r.Values, path); there && v != nil {
			value = fmt.Sprint(v)
		}
		return value
	}
	switch enabled := set(frrEnabled); {
	case set(frrk8sEnabled) == "true" || set(frrk8sExternal) == "true":
		return FRRK8s
	case enabled == "true", enabled == "" && semver.Compare("v"+r.Version, "v"+frrByDefault) >= 0:
		return FRR
	}
	return Native
}

// ModeOf is the mode of an upgrade: of both releases, or FROM to TO where only one of the charts enables FRR.
func ModeOf(from, to Release) string {
	if from.Mode() == to.Mode() {
		return from.Mode()
	}
	return from.Mode() + " to " + to.Mode()
}

// NoFRRK8s is the error of a lab in the mode frr-k8s.
func NoFRRK8s() error {
	return noMode("no lab runs MetalLB in the mode frr-k8s", "the module of frr-k8s asks for versions that the module proxy does not serve",
		"it runs on a cluster that has it; the modes native and frr run in a lab")
}

// NoIPv6 is the error of a dual lab in a mode other than FRR.
func NoIPv6(mode string) error {
	return noMode("no lab of two families runs MetalLB in the mode "+mode, NativeIPv4, "--mode frr, or --family ipv4")
}

func noMode(want, found, cure string) error {
	return &host.UnfitError{Checks: []host.Check{{Name: "mode", State: host.Fatal, Want: want, Found: found, Cure: cure}}}
}

// In returns a copy of values that chooses a mode: one of the above, or FRRK8s.
func In(mode string, values map[string]any) map[string]any {
	values = chart.Merge(values)
	chart.Set(values, frrEnabled, mode == FRR)
	if mode == FRRK8s {
		chart.Set(values, frrk8sEnabled, true)
	}
	return values
}

// Settings are the values that a lab sets, whatever the user's say.
func (r Release) Settings() []chart.Setting {
	const often = "the lab waits for the pods"
	all := []chart.Setting{{Path: "speaker.updateStrategy", Value: map[string]any{"type": "OnDelete"},
		Why: "speakers are replaced node by node"}}
	for _, probe := range []string{"speaker.readinessProbe.", "controller.readinessProbe."} {
		all = append(all, chart.Setting{Path: probe + "initialDelaySeconds", Value: int64(0), Why: often},
			chart.Setting{Path: probe + "periodSeconds", Value: int64(1), Why: often})
	}
	if r.Mode() == FRR {
		all = append(all,
			chart.Setting{Path: "speaker.frr.image.repository", Value: frrRepository, Why: builtFRR},
			chart.Setting{Path: "speaker.frr.image.tag", Value: frrVersion, Why: builtFRR},
			// FRR starts within a second or two, and has as long as with the chart's defaults.
			chart.Setting{Path: "speaker.startupProbe.periodSeconds", Value: int64(1), Why: often},
			chart.Setting{Path: "speaker.startupProbe.failureThreshold", Value: int64(150), Why: often})
	}
	return all
}

const builtFRR = "the FRR of a lab is Debian 13's"

// notInLab are values that a lab has otherwise: nil leaves the chart's default.
var notInLab = []struct {
	paths []string
	value any
	why   string
}{
	{[]string{"speaker.image", "controller.image", "speaker.frr.image.pullPolicy", "imagePullSecrets"}, nil,
		"the lab's registry has the images that relapse builds of each version, under the vendor's names"},
	{[]string{"nameOverride", "fullnameOverride"}, nil, "the lab's release is named " + name},
	{[]string{
		"speaker.nodeSelector", "speaker.tolerations", "speaker.tolerateMaster", "speaker.affinity",
		"speaker.priorityClassName", "speaker.runtimeClassName", "controller.nodeSelector", "controller.tolerations",
		"controller.affinity", "controller.priorityClassName", "controller.runtimeClassName",
	}, nil, "a lab's nodes have other labels, taints and classes, and a speaker each"},
	{[]string{"speaker.resources", "speaker.frr.resources", "speaker.reloader.resources", "speaker.frrMetrics.resources",
		"speaker.initContainers", "controller.resources"}, nil, "a lab's nodes are smaller"},
	{[]string{"speaker.extraContainers", "controller.extraContainers"}, nil, "relapse does not build their images"},
	{[]string{"prometheus.secureMetricsPort", "speaker.frr.secureMetricsPort", "prometheus.rbacProxy",
		"prometheus.speakerMetricsTLSSecret", "prometheus.controllerMetricsTLSSecret"}, nil,
		"relapse does not build the image of kube-rbac-proxy, and a lab has no such Secrets"},
	{[]string{"prometheus.podMonitor.enabled", "prometheus.serviceMonitor.enabled",
		"prometheus.prometheusRule.enabled"}, false, "a lab has no Prometheus operator"},
	{[]string{"loadBalancerClass"}, nil, "the lab's Services name no class"},
	{[]string{"speaker.memberlist.mlBindAddrOverride"}, nil, "the nodes' addresses are the lab's"},
	{[]string{"rbac.create", "speaker.serviceAccount", "controller.serviceAccount"}, nil,
		"the lab's release has roles and accounts of its own"},
	{[]string{"speaker.enabled", "controller.enabled", "crds.enabled"}, true, "an upgrade is that of all of MetalLB"},
}

// Adapt returns the user's values for a lab of these versions, and what was replaced in them.
func Adapt(users map[string]any, versions ...string) (map[string]any, []chart.Replacement) {
	values := chart.Merge(users)
	var replaced []chart.Replacement
	for _, not := range notInLab {
		for _, path := range not.paths {
			was, there := chart.Get(values, path)
			if !there || not.value != nil && fmt.Sprint(was) == fmt.Sprint(not.value) {
				continue
			}
			r := chart.Replacement{Users: true, Path: path, Was: chart.Shown(path, was), Why: not.why}
			if not.value == nil {
				chart.Remove(values, path)
			} else {
				chart.Set(values, path, not.value)
				r.Is = chart.Text(not.value)
			}
			replaced = append(replaced, r)
		}
	}
	return values, append(replaced, replace(values, versions)...)
}

// replace replaces the values that differ from the lab's settings for a version, and returns what it has replaced.
func replace(values map[string]any, versions []string) (replaced []chart.Replacement) {
	for _, version := range versions {
		for _, s := range (Release{Version: version, Values: values}).Settings() {
			was, there := chart.Get(values, s.Path)
			if there && fmt.Sprint(was) != fmt.Sprint(s.Value) {
				replaced = append(replaced,
					chart.Replacement{Users: true, Path: s.Path, Was: chart.Shown(s.Path, was), Is: chart.Text(s.Value), Why: s.Why})
				chart.Set(values, s.Path, s.Value)
			}
		}
	}
	return replaced
}

// Overrides are what the lab has in place of these values, for releases whose mode was chosen after Adapt.
func Overrides(values map[string]any, versions ...string) []string {
	return each.Of(replace(chart.Merge(values), versions), chart.Replacement.String)
}
