package configdrift

import (
	"slices"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Detector finds what an upgrade changes in the effect of a cluster's ConfigMap.
type Detector struct {
	// Before is what the agents run with, or ran with before the upgrade.
	Before Setup
	// Version is the one that reads the ConfigMap next, or has read it.
	Version string
	// ConfigMap is its name, as namespace/name.
	ConfigMap string
}

func (Detector) Name() string { return "config-drift" }

func (d Detector) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.ConfigMaps(d.ConfigMap)}
}

// Detect implements detect.Detector. What changes is latent: whether traffic is
// lost is for other detectors to find. A key whose value in force stays the same,
// but that the new version does not read, or calls by another name, is a hint.
func (d Detector) Detect(history []snapshot.Snapshot, _ *detect.Index) []detect.Finding {
	maps := history[len(history)-1].ConfigMaps.Items
	i := slices.IndexFunc(maps, func(m snapshot.ConfigMap) bool { return m.String() == d.ConfigMap })
	if i < 0 {
		return nil
	}
	drifts, err := Cilium().Compare(d.Before, Setup{Version: d.Version, Config: maps[i].Data})
	if err != nil {
		return nil
	}
	var findings []detect.Finding
	for _, drift := range drifts {
		state := detect.Latent
		if !drift.Changed() {
			state = detect.Hint
		}
		findings = append(findings, detect.Finding{
			Kind: string(drift.Kind), State: state,
			Object: detect.Named("ConfigMap " + d.ConfigMap + ", " + drift.Key), Says: drift.Says,
		})
	}
	return findings
}
