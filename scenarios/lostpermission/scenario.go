package lostpermission

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/cilium/release"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
)

// The version of the agents, and the versions of the charts.
const (
	old      = "1.18.4"
	affected = "1.19.3"
	fixed    = "1.19.5"

	affectedVariant = "cilium-" + old + "-chart-" + affected
	fixedVariant    = "cilium-" + old + "-chart-" + fixed
)

// The agent of worker1 is restarted.
const master, worker1, worker2 = topology.Master, topology.Worker1, topology.Worker2

var (
	nodes = []string{master, worker1, worker2}
	tors  = []string{"tor1", "tor2"}
	rack  = topology.NewRack(68)
)

// lab is the cluster that Record draws. The ToRs keep the routes of an agent that restarts.
var lab = rack.Three("lost-permission").Behind(topology.GracefulRestart(topology.TwoToRs(rack.Nodes, rack.Uplink)))

// Scenario is the incident on a lab.
var Scenario = framework.Scenario{
	Incident: Record,
	Topology: lab,
	Owner:    framework.Maintainers, Slow: true,
	Labels:     []framework.Label{framework.BGP, framework.Upgrade},
	NeedsValue: "bgpControlPlane.enabled",
	OnlyOwnLab: "whole Cilium leaves BPF programs and policy routes on nodes, which are not known to come back",
	SecondLab:  netip.MustParsePrefix("10.208.96.0/20"),
	Budget:     framework.Budget{Whole: 600 * time.Second, Lab: 60 * time.Second, Detect: time.Second},
	Variants: []framework.Variant{
		upgrade{old, affected}.variant(framework.Affected),
		upgrade{old, fixed}.variant(framework.Fixed),
	},
	Tested: []framework.Tested{
		{Name: "cilium.from", Default: old},
		{Name: "cilium.to", Default: affected, Varied: true},
	},
	At: func(versions map[string]string) framework.Variant {
		return upgrade{versions["cilium.from"], versions["cilium.to"]}.variant(framework.Unclassified)
	},
}

// upgrade is half an upgrade: the agents are still at version from, and all else is at version to.
type upgrade struct{ from, to string }

func (u upgrade) variant(role framework.Role) framework.Variant {
	v := framework.Variant{
		Name: "cilium-" + u.from + "-chart-" + u.to, Role: role, Form: framework.Whole,
		Components: map[string]string{"cilium.from": u.from, "cilium.to": u.to},
		Images:     append(append(release.Images(u.from), release.Images(u.to)...), workload.ProbeImage),
	}
	if role == framework.Affected {
		v.Images = append(v.Images, release.Images(fixed)...)
	}
	v.Script = func() framework.Script {
		s := u.common()
		switch role {
		case framework.Affected:
			s.Precursors = []framework.Precursor{u.upgraded(u.lost(detect.Latent)), u.watchesEnd()}
			s.Aftermath = []framework.Check{
				sessions("no-session", "the routers have sessions with all nodes but "+worker1, master, worker2),
				{ID: "says-ok", Name: "cilium-dbg status on " + worker1 + " says OK", Holds: saysOK},
				{ID: "log", Name: "the log of the agent on " + worker1 + " says what is forbidden", Holds: logs(worker1), Bound: 30 * time.Second},
			}
			s.Remedies = u.remedies()
		case framework.Fixed:
			s.Precursors = []framework.Precursor{u.upgraded()}
			up := sessions("sessions-up", "the routers have sessions with all nodes", nodes...)
			up.Bound = 30 * time.Second // routers keep the routes of an agent whose session is not up yet
			s.Aftermath = []framework.Check{up, permitted}
		default: // without precursors
			s.Install = framework.InOrder(s.Install, at(u.to).Apply)
		}
		if role != framework.Fixed {
			active := u.lost(detect.Active)
			active.Owner, active.Routers = worker1, tors
			if role != framework.Affected {
				active.Words = nil // another version may lack another permission
			}
			s.Expected = []framework.Finding{active, {
				Detector: detect.RouteOwnership{}.Name(), Kind: detect.Unannounced, State: detect.Active, Owner: worker1,
				Routers: tors, AnyObject: true,
			}}
		}
		return s
	}
	return v
}

func (u upgrade) lost(state detect.State) framework.Finding {
	return framework.Finding{
		Detector: detect.Permission{}.Name(), Kind: detect.NotPermitted, State: state,
		Object: detect.Named("ServiceAccount kube-system/cilium, " + cilium.Agent(u.from)),
		Words:  []string{"may not list and watch ciliumbgppeeringpolicies.cilium.io,"},
	}
}

const (
	// restartTime is for how long routers keep the routes of an agent that has no session:
	// several times what an agent takes to be back, which was 8 s, and 25 s on a machine on
	// which other programs took most of the processors.
	restartTime = 60 * time.Second
	// within bounds a remedy. An agent that may not list pauses for up to 30 s, twice that
	// with its jitter, before it tries again (client-go's reflector).
	within = 3 * time.Minute
)

// at is a release: native routing, no masquerade, BGP, and no Services.
func at(version string) release.Release {
	return release.Release{Version: version, Values: release.NativeRouting(), NoServices: true}
}

var (
	pod     = framework.PodOn
	outside = framework.HostEndpoint(lab.Hosts[0])
)

// common is what all variants do. They differ in versions, and in nothing else.
func (u upgrade) common() framework.Script {
	return framework.Script{
		Install: framework.InOrder(
			release.Uninstalled(nodes, rack.Pods), labaccess.SessionsUp(nodes, install(u.from)), workload.ProbesOn(nodes...)),
		Endpoints: append(framework.PodsOn(nodes...), outside),
		// A ring inside the cluster: pods reach each other without the routers.
		Probes: append(outside.Both(framework.PodsOn(nodes...)...),
			pod(master).To(pod(worker1)), pod(worker1).To(pod(worker2)), pod(worker2).To(pod(master))),
		Detectors:      []detect.Detector{detect.Permission{}, detect.RouteOwnership{}},
		Baseline:       []framework.Check{sessions("sessions", "the routers have sessions with all nodes", nodes...)},
		Fault:          u.restarted(),
		Impacted:       outside.Both(pod(worker1)),
		SymptomWithin:  restartTime + 30*time.Second,
		ExpectedWithin: 30 * time.Second,
		Observe:        restartTime + 10*time.Second,
	}
}

// upgraded is the release taken to the new version, whose DaemonSet leaves the pods alone.
func (u upgrade) upgraded(expected ...framework.Finding) framework.Precursor {
	return framework.Precursor{
		ID: "release-upgraded", Name: "helm upgrade to " + u.to + ", with updateStrategy OnDelete",
		Fault: framework.Fault{
			Name:   "helm upgrade to " + u.to,
			Inject: at(u.to).Apply, TookEffect: release.Pods[1].Run(cilium.Operator(u.to)), Undo: at(u.from).Apply, Replaced: true,
		},
		Expected: expected,
		Aftermath: []framework.Check{
			{ID: "agents-are-old", Name: "the agents on all nodes are of " + u.from, Holds: release.Pods[0].Run(cilium.Agent(u.from), nodes...)},
			sessions("sessions-stay", "the routers have sessions with all nodes", nodes...),
		},
	}
}

// watchesEnd closes the connections from worker2 to the API server, which ends each watch after some
// minutes by itself. The agent there lists again, and is refused.
func (u upgrade) watchesEnd() framework.Precursor {
	return framework.Precursor{
		ID: "watches-end", Name: "the watches of the agent on " + worker2 + ", which runs, end",
		Fault: framework.Fault{
			Name: "end of the connections from " + worker2 + " to the API server",
			Inject: func(ctx context.Context, r *framework.Run) error {
				api := labaccess.Cluster(r).APIServer()
				_, err := labaccess.Lab(r).Node(worker2).
					Exec(ctx, "ss", "--kill", "--tcp", "dst", api.Addr().String(), "dport", "=", strconv.Itoa(int(api.Port())))
				return err
			},
			TookEffect: logs(worker2), // clients have connected again, and there is nothing to undo
		},
		Expected:  []framework.Finding{u.lost(detect.Latent)},
		Aftermath: []framework.Check{sessions("sessions-without-watches", "the routers have sessions with all nodes", nodes...)},
	}
}

// restarted is the fault: the agent restarts under the new release. If no precursor has applied the
// release, as in repeated runs of the fault alone, the fault does.
func (u upgrade) restarted() framework.Fault {
	f, release := restarted(), u.upgraded().Fault
	again := f.TookEffect
	f.Inject = framework.InOrder(release.Inject, f.Inject)
	f.TookEffect = func(ctx context.Context, r *framework.Run) (bool, string, error) {
		if upgraded, saw, err := release.TookEffect(ctx, r); !upgraded || err != nil {
			return upgraded, saw, err
		}
		return again(ctx, r)
	}
	return f
}

// restarted is the restart alone: kubelet starts the same pod again, as after a crash or a reboot.
func restarted() framework.Fault {
	var crashed workload.Crashed
	return framework.Fault{
		Name: "restart of the agent on " + worker1,
		Inject: func(ctx context.Context, r *framework.Run) (err error) {
			if crashed, err = release.Pods[0].Crash(ctx, labaccess.Lab(r), worker1); err != nil {
				return err
			}
			_, err = crashed.Ready(ctx, labaccess.Cluster(r), within)
			return err
		},
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			if crashed.Pod.UID == "" {
				return false, "its processes were not ended", nil
			}
			return crashed.Again(ctx, labaccess.Cluster(r))
		},
		Undo: permit, Replaced: true,
	}
}

func (u upgrade) remedies() []framework.Remedy {
	// back is the broken state again: the release of to, and an agent of from without peers.
	back := framework.InOrder(at(u.to).Apply, restart)
	// agentBack takes the DaemonSet alone back to the old version, and worker1's agent with it.
	agentBack := framework.InOrder(at(u.from).ApplyAgents, at(u.from).Restart(worker1))
	return []framework.Remedy{
		{
			ID: "restart-agent", Name: "restart the agent again", Watch: 20 * time.Second,
			Apply: restarted().Inject,
		},
		{
			ID: "image-back", Name: "kubectl rollout undo of the DaemonSet, to " + u.from + ", and a new pod", Watch: 20 * time.Second,
			Apply: agentBack,
			Undo:  at(u.to).Apply,
		},
		{ID: "rule-back", Name: "the rule put back into the ClusterRole", Helps: true, Bound: within, Apply: permit, Undo: back},
		{
			ID: "agent-" + strings.ReplaceAll(u.to, ".", "-"), Name: "the agent of " + worker1 + " taken to " + u.to, Helps: true, Bound: within,
			Apply: labaccess.SessionsUp([]string{worker1}, at(u.to).Restart(worker1)),
			Undo: func(ctx context.Context, r *framework.Run) error {
				return errors.Join(agentBack(ctx, r), back(ctx, r)) // the lab goes on with the release, whatever became of the agent
			},
		},
		{
			ID: "chart-" + strings.ReplaceAll(fixed, ".", "-"), Name: "the chart of " + fixed, Helps: true, Bound: within,
			Apply: at(fixed).Apply,
		},
	}
}

// restart restarts worker1's agent, which gets no session, and has routers drop what they
// would keep of it for restartTime.
func restart(ctx context.Context, r *framework.Run) error {
	return framework.InOrder(restarted().Inject, labaccess.SessionsCleared(worker1))(ctx, r)
}

func permit(ctx context.Context, r *framework.Run) error {
	role := &rbacv1.ClusterRole{}
	role.Name = "cilium"
	patch := client.RawPatch("application/json-patch+json", []byte(
		`[{"op":"add","path":"/rules/-","value":{"apiGroups":["cilium.io"],"resources":["ciliumbgppeeringpolicies"],"verbs":["list","watch"]}}]`))
	if err := labaccess.Cluster(r).Kube().Patch(ctx, role, patch); err != nil {
		return fmt.Errorf("adding a rule to ClusterRole %s: %w", role.Name, err)
	}
	return nil
}

func install(version string) framework.Action {
	peering := release.Peering{GracefulRestart: true, RestartTime: restartTime}
	return framework.InOrder(at(version).Apply, peering.Apply(release.TypesOf(version)), at(version).Ready(nodes...))
}

func sessions(id, name string, with ...string) framework.Check {
	return framework.Check{ID: id, Name: name, Reads: []snapshot.Source{snapshot.Routers}, Holds: check.Sessions(rack.Nodes.Name, nodes, with)}
}

// permitted asserts that the detector has no finding: latent ones harm no traffic, and nothing
// else looks for them.
var permitted = framework.Check{
	ID: "permitted", Name: "the detector finds no permission that the agents lack", AsksDetectors: true, Bound: 10 * time.Second,
	Holds: func(_ context.Context, r *framework.Run) (bool, string, error) {
		var wrong framework.Mismatches
		for _, f := range r.Findings() {
			if f.Detector == (detect.Permission{}).Name() {
				wrong.Addf("%s", f.Says)
			}
		}
		return wrong.Result()
	},
}

func saysOK(ctx context.Context, r *framework.Run) (bool, string, error) {
	said, err := release.InAgent(ctx, labaccess.Lab(r).Node(worker1), `exec crictl exec --sync "$id" cilium-dbg status --brief`)
	said = strings.TrimSpace(said)
	return said == "OK", said, err
}

func logs(node string) framework.Condition {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		said, err := release.InAgent(ctx, labaccess.Lab(r).Node(node), `crictl logs "$id" 2>&1 | grep forbidden | tail -1`)
		return strings.Contains(said, "failed to list") && strings.Contains(said, "ciliumbgppeeringpolicies.cilium.io is forbidden"), said, err
	}
}
