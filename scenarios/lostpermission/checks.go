package lostpermission

import (
	"context"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/cilium/release"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

func sessions(id, name string, with ...string) framework.Check {
	return framework.Check{ID: id, Name: name, Reads: []snapshot.Source{snapshot.Routers}, Holds: check.Sessions(nodeNet.Name, nodes, with)}
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

func (u upgrade) agentsAreOld(_ context.Context, r *framework.Run) (bool, string, error) {
	runs := map[string]string{}
	for _, p := range r.Snapshot().PodImages.Items {
		for _, c := range p.Containers {
			if c.Name == "cilium-agent" {
				runs[p.Node] = c.Image
			}
		}
	}
	var wrong framework.Mismatches
	for _, node := range nodes {
		if runs[node] != cilium.Agent(u.from) {
			wrong.Addf("%s runs %q", node, runs[node])
		}
	}
	return wrong.Result()
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
