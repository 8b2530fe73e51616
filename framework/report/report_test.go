package report_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

// full has every field set.
func full() report.Report {
	began := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	return report.Report{
		Schema: report.Schema, Scenario: "node-drain", Run: "2026-01-02T03-04-00Z", Verdict: "fail", Ablated: "remedy", Started: began,
		Unfinished: &report.Unfinished{At: began.Add(time.Minute), Steps: []string{"cilium-1.11.6: remedy: fixed-speaker"}},
		Incident: &report.Incident{
			Title: "a removed node leaves another node's pods unreachable", Source: "an issue", Symptom: "pods are gone", Cause: "the wrong range",
			Affected: "1.10, 1.11", Fixed: "1.12.0", Remedies: []string{"upgrade"}, Reproduction: "no datapath", NotAsserted: []string{"how often: nobody counted"},
		},
		Command: "relapse run node-drain --ablate=remedy", Owner: "@relapse-dev",
		Topology: report.TopologyOf(topology.Topology{
			Networks: []topology.Network{{Name: "nodes", Subnet: netip.MustParsePrefix("10.4.94.0/24")}},
			Routers:  []topology.Router{{Name: "tor1", ASN: 64524, Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.4.94.239")}}}},
			Hosts:    []topology.Host{{Name: "outside", Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.4.94.10")}}, Via: []string{"tor1"}}},
			Clusters: []topology.Cluster{{ASN: 64513, Nodes: []topology.Node{{
				Name: "master1", Role: topology.ControlPlane, Kernel: "6.1", Via: []string{"tor1"},
				Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.4.94.32")}},
			}}}},
		}),
		Steps: []report.Step{
			{Scope: "lab", Name: "lab is up", Began: began, Ended: new(began.Add(time.Second))},
			{Scope: "cilium-1.11.6", Name: "fault", Began: began.Add(time.Second), Ended: new(began.Add(2 * time.Second)), Failed: "it did not take hold", Broke: true},
			{Scope: "cilium-1.11.6", Name: "remedy: fixed-speaker", Began: began.Add(3 * time.Second)},
		},
		Variants: []report.Variant{{
			Name: "cilium-1.11.6", Role: "affected", Components: map[string]string{"cilium": "1.11.6"},
			Form: "slice", Labels: []string{"bgp", "cilium"}, Expected: "reproduced", Verdict: "reproduced",
			Reasons:    []string{"remedy: fixed-speaker: traffic did not come back"},
			Began:      &began,
			Baseline:   report.Baseline{Probes: 12, Seconds: 5, Lost: 0},
			Fault:      &report.Fault{Began: began.Add(5 * time.Second), Struck: began.Add(5200 * time.Millisecond)},
			ToBeHurt:   []string{"outside->master2", "master2->outside"},
			Ends:       []report.End{{Name: "outside", On: "outside"}, {Name: "db"}},
			Onset:      new(began.Add(5678901 * time.Microsecond)),
			ProbesHurt: []string{"outside->master2", "master2->outside"},
			Packets:    report.Packets{Sent: 4210, Lost: 388},
			Findings: []report.Finding{
				{Finding: detect.Finding{Detector: "route-ownership", Kind: "wrong-announcer", State: "latent", Object: detect.Prefix(netip.MustParsePrefix("10.5.113.0/24")), Says: "swapped"}, During: "baseline"},
				{
					Finding: detect.Finding{
						Detector: "route-ownership", Kind: "unannounced", State: "active", Object: detect.Prefix(netip.MustParsePrefix("10.5.115.0/24")),
						Says: "nobody announces it",
					}, During: "fault", CameMS: new(int64(1412)), TimeToDetectMS: new(int64(412)), At: new(began.Add(6412 * time.Millisecond)),
				},
			},
			Remedies: []report.Remedy{
				{Name: "restart", Expected: "does-not-help", Verdict: "does-not-help"},
				{Name: "fixed-speaker", Expected: "recovers", Verdict: "recovers", TimeToRecoverMS: new(int64(2300)), Reason: "late", Began: new(began.Add(7 * time.Second)), Applied: new(began.Add(8 * time.Second))},
			},
			Checks:    []report.Check{{Name: "routers follow", Holds: true}, {Name: "swap", Reason: "agreed by luck"}},
			ElapsedMS: 61000, EvidenceDir: "evidence/cilium-1.11.6",
		}},
		NotRun:  []report.NotRun{{Name: "cilium-1.9.0", Reason: "only with --images=upstream"}},
		Timings: report.Timings{Images: 1, Lab: 26000, Total: 81000},
		Machine: map[string]any{"kernel": "6.1.0", "cpus": 2.0, "memory_gib": 24.0, "docker": "20.10"},
		Guests:  []report.Guest{{Node: "worker", Kernel: "6.1.0-56-amd64", Accelerator: "tcg", NotKVM: "there is no /dev/kvm", NotUML: "the image has none"}},
	}
}

// bare is the report of a run that came to nothing.
func bare() report.Report {
	return report.Report{
		Schema: report.Schema, Scenario: "node-drain", Verdict: "inconclusive",
		Started: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC),
		Variants: []report.Variant{{
			Name: "cilium-1.11.6", Role: "affected", Form: "slice", Expected: "reproduced", Verdict: "unknown",
			ProbesHurt: []string{}, Findings: []report.Finding{}, Remedies: []report.Remedy{},
		}},
	}
}

func TestGolden(t *testing.T) {
	for name, r := range map[string]report.Report{"full": full(), "bare": bare()} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "reports", r.Scenario) // is made
			must.NoError(t, r.Write(dir))
			goldentest.Compare(t, name+".json", string(must.Read(t, filepath.Join(dir, "report.json"))))
			back := must.Get(report.Read(filepath.Join(dir, "report.json")))(t)
			if diff := cmp.Diff(r, back, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, detect.Object{})); diff != "" {
				t.Errorf("read back (-written +read):\n%s", diff)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
				t.Errorf("%v, %v; want report.json alone", entries, err)
			}
		})
	}
}

func TestEvidenceOf(t *testing.T) {
	for name, want := range map[string][2]string{
		"03-snapshot-after-fault.json": {"snapshot", "after-fault"}, "12-probes.json": {"", ""},
		"09-probes-observed.txt": {}, "09-pulls.json": {}, "snapshot-baseline.json": {}, "09-snapshots.json": {},
	} {
		if kind, moment := report.EvidenceOf(name); string(kind) != want[0] || moment != want[1] {
			t.Errorf("%s: %q, %q; want %q", name, kind, moment, want)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	for name, test := range map[string]struct{ text, says string }{
		"half a report":      {`{"schema":"relapse.report/v2","scenario":`, "unexpected end of JSON input"},
		"no JSON":            {"PASS", "invalid character"},
		"empty":              {"", "unexpected end of JSON input"},
		"another's JSON":     {`{"kind":"List"}`, `its schema is "", not "relapse.report/v2"`},
		"an earlier schema":  {`{"schema":"relapse.report/v1"}`, `its schema is "relapse.report/v1", not "relapse.report/v2"`},
		"a field's type":     {`{"schema":"relapse.report/v2","variants":"none"}`, "variants"},
		"two reports in one": {`{"schema":"relapse.report/v2"}{"schema":"relapse.report/v2"}`, "after top-level value"},
	} {
		t.Run(name, func(t *testing.T) {
			path := must.Write(t, filepath.Join(t.TempDir(), "report.json"), test.text)
			must.Fail(t, must.Err(report.Read(path)), test.says, path)
		})
	}
	t.Run("no file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "report.json")
		if _, err := report.Read(path); err == nil || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v; want it to say that %s is not there", err, path)
		}
	})
}

func TestWriteThatFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	must.Fail(t, full().Write(filepath.Join(file, "reports")), "the report's folder")
	r := full()
	r.Machine = func() {}
	must.Fail(t, r.Write(t.TempDir()), `"node-drain"`)
}
