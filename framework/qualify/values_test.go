package qualify

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/cilium/labvalues"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/host"
	"github.com/relapse-dev/relapse/topology/must"
)

var aLab = labvalues.Lab{APIServer: netip.MustParseAddr("10.62.4.11"), Device: "eth0", Pods: netip.MustParsePrefix("10.62.64.0/20"), NodeMask: 24}

func adapted(t *testing.T, text string, without ...string) (*Values, error) {
	t.Helper()
	var charts []*chart.Chart
	for _, version := range []string{"1.18.0", "1.19.0"} {
		module := filepath.Join("testdata/charts", version)
		c := must.Get(chart.Load(filepath.Join(module, "chart")))(t)
		c.Module = module
		charts = append(charts, c)
	}
	users := must.Get(placeholder.Values{}.Map([]byte(text)))(t)
	v := &Values{Sources: []string{"my.yaml"}, Without: without}
	return v, v.adapt(t.Context(), aLab, charts[0], charts[1], users)
}

func valued(t *testing.T, v *Values) Request {
	t.Helper()
	return Request{Component: "cilium", From: "1.18.0", To: "1.19.0", Values: v, Thresholds: bounds, Command: again}
}

func TestValues(t *testing.T) {
	v := must.Get(adapted(t, `
routingMode: native
kubeProxyReplacement: true
devices: [bond0, bond1]
k8sServiceHost: api.example.com
k8sServicePort: 443
image: {repository: registry.example.com/cilium, tag: v1.18.0-ours}
tolerations: [{operator: Exists}]
bgpControlPlane: {enabled: true}
debug: {old: true, verbose: flow}
extraConfig: {only-old: "1", devices: bond0}
`))(t)
	want := labvalues.Mode{Routing: "native", IPAM: "cluster-pool", Masquerade: "none", BGP: true}
	must.Equal(t, "mode", &want, v.Mode)
	r := must.Get(New(valued(t, v), catalogue))(t)
	r.inputs.Path = noPath
	var plan strings.Builder
	r.WritePlan(&plan)
	goldentest.Compare(t, "values.txt", plan.String()+"\n"+r.Result().Text())

	for path, want := range map[string]string{
		"devices": "eth0", "k8sServiceHost": "10.62.4.11", "routingMode": "native", "extraConfig.devices": "eth0", "extraConfig.only-old": "1",
	} {
		got, _ := chart.Get(r.Values.OfLab(), path)
		must.Equal(t, path, any(want), got)
	}
	for _, path := range []string{"image.repository", "image.tag", "tolerations"} {
		_, there := chart.Get(r.Values.OfLab(), path)
		must.Equal(t, path, false, there) // it is the chart's own
	}
}

func TestValuesAreRefusedByTheNewChart(t *testing.T) {
	r := must.Get(New(valued(t, must.Get(adapted(t, "routingMode: old"))(t)), catalogue))(t)
	q := r.Result()
	want := "the chart of 1.19.0 refuses the values of my.yaml: routingMode old has been removed in v1.19"
	must.Equal(t, "", [...]any{NoGo, want, false}, [...]any{q.Verdict, q.Why, r.upgradable})
	must.Contain(t, r.inputs.Upgrade.Why+"end", "removed in v1.19end")
}

func TestValuesAreUnread(t *testing.T) {
	v := must.Get(adapted(t,
		"{bgpControlPlane: {enable: true}, routingmode: native, debug.old: true, debug: {old: true}, routingMode: tunnel}"))(t)
	want := []string{
		"value bgpControlPlane.enable changes nothing that either chart renders with these values (nearest: bgpControlPlane.enabled)",
		`value "debug.old" changes nothing that either chart renders with these values ("debug.old" is one key with dots in it: expected debug: {old: ...})`,
		"value routingmode changes nothing that either chart renders with these values (nearest: routingMode)",
	}
	must.Equal(t, "", want, v.Unread)
	rows := must.Get(New(valued(t, v), catalogue))(t).Result().Rows
	r, _ := each.First(rows, func(r Row) bool { return r.Name == "values without effect" })
	must.Equal(t, rows, [...]any{Warning, strings.Join(want, "; ")}, [...]any{r.State, r.Says})
}

// A variable without a value is missed if the lab's release needs it.
func TestValuesWithVariables(t *testing.T) {
	v := must.Get(adapted(t, "{devices: [$DEVICE], ipam: {operator: {clusterPoolIPv4MaskSize: '${MASK}'}}, unread: {x: 'a ${X}'}}"))(t)
	want := []string{"left out, because a variable has no value, and the lab does not need it: " +
		"devices (DEVICE), ipam.operator.clusterPoolIPv4MaskSize (MASK), unread.x (X)"}
	must.Equal(t, "", want, v.Told)
	err := must.Err(adapted(t, "{devices: $DEVICE, extraConfig: {a: '${A}', b: '{{ b }}'}}"))
	const missing = "my.yaml: no value is given for the variables A (extraConfig.a), b (extraConfig.b): " +
		"expected --set-var A=VALUE for each, or --vars FILE with a ConfigMap or lines NAME=VALUE"
	must.Equal(t, "error", missing, fmt.Sprint(err))
	must.Equal(t, "of the values", true, errors.As(err, new(*InputError)))
}

// A mode that a lab cannot run is an UnfitError, and no InputError.
func TestValuesOfAnotherCloud(t *testing.T) {
	err := must.Err(adapted(t, "{ipam: {mode: eni}}"))
	must.Equal(t, "error", "the values ask for ipam.mode eni, which a lab on this machine cannot run "+
		"(found: it takes addresses from AWS, which a lab does not reach): "+
		"it runs on a cluster that has it; the other modes of Cilium run in a lab", fmt.Sprint(err))
	must.Equal(t, "of the values, or of the machine", true, errors.As(err, new(*InputError)) != errors.As(err, new(*host.UnfitError)))
}

// Every kind of device that a mode may need is described, and the kernel can be asked for it.
func TestKernelsNeeds(t *testing.T) {
	for _, mode := range []labvalues.Mode{{Tunnel: "vxlan"}, {Tunnel: "geneve"}, {Encryption: "wireguard"}, {Encryption: "ipsec"}, {IPIP: true}, {Netkit: true}} {
		for kind := range mode.Devices() {
			must.Equal(t, kernels[kind], false, kernels[kind].what == "" || kernels[kind].option == "")
			must.Equal(t, kind, 0, strings.Count(fmt.Sprint(must.Err(host.Lacks(kind))), "no test of"))
		}
	}
}

// A path that is not clean before the upgrade is named with the user's values that concern it.
func TestValuesThatConcernPaths(t *testing.T) {
	m := harmless()
	m.Upgrade, m.Back = nil, nil
	inputs := Inputs{Values: &Values{Concerns: []labvalues.Concern{
		{Path: "node port", Values: []string{"loadBalancer.mode dsr"}}, {Path: "->", Values: []string{"routingMode native"}},
	}}, Upgrade: Upgrade{Measures: m}}
	for path, want := range map[string]string{
		"outside->node port of worker1": "; your values that concern these paths: loadBalancer.mode dsr",
		"worker1->worker2":              "; your values that concern these paths: routingMode native",
	} {
		m.Stopped = upgrade.Unclean + path + ": lost 9 of 10"
		must.Contain(t, Judge(inputs, bounds, again).Why+"end", m.Stopped+want+"end")
	}
	m.Stopped = "no lab: outside->node port"
	must.Equal(t, "values", 0, strings.Count(Judge(inputs, bounds, again).Why, "your values"))
}

func TestValuesWithout(t *testing.T) {
	v := must.Get(adapted(t, "{encryption: {enabled: true, type: wireguard}}", "netkit", "encryption"))(t)
	heading := Judge(Inputs{Values: v, Family: "dual"}, bounds, again).Heading()
	must.Contain(t, "begins "+heading, "begins UNKNOWN with IPv4 and IPv6, without encryption: ")
	must.Equal(t, "encryption", "", v.Mode.Encryption)
	must.Fail(t, CheckWithout("netkit", "encryptoin"), `"encryptoin" is no feature to go without; nearest is "encryption"`)
}

func TestResumeWithOtherValues(t *testing.T) {
	r := must.Get(New(valued(t, must.Get(adapted(t, "{}"))(t)), catalogue))(t)
	dir := t.TempDir()
	must.NoError(t, r.Result().Write(dir))
	must.NoError(t, r.Resume(dir))
	other := must.Get(New(valued(t, nil), catalogue))(t)
	must.Fail(t, other.Resume(dir), dir+" is of other values: give the same files with --values")
}

// A record is judged with the paths of the mode that was measured.
func TestValuesOfRecord(t *testing.T) {
	for _, v := range []*Values{
		nil, {Mode: &labvalues.Mode{Routing: "tunnel", Tunnel: "vxlan", KubeProxy: true}}, {Mode: &labvalues.Mode{Routing: "native", BGP: true}},
	} {
		values := v.ofRecord()
		u := must.Get(upgrade.Of("cilium", "1.18.4", "1.19.3", upgrade.Settings{Values: values}))(t)
		runs := slices.ContainsFunc(u.ImagesOf("1.18.4", "1.19.3"), func(ref string) bool { return strings.Contains(ref, "kube-proxy") })
		must.Equal(t, values, v == nil || v.Mode.KubeProxy, runs)
		if v != nil {
			must.Equal(t, "routing", any(v.Mode.Routing), values["routingMode"])
		}
	}
}
