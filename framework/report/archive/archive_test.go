package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/schema"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// stored is a run with evidence: a log, and so many bytes that do not compress.
func stored(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	r := report.Report{
		Schema: report.Schema, Scenario: "node-drain", Run: "2026-01-02T03-04-00Z", Verdict: "pass", Started: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC),
		Topology: &report.Topology{
			Networks: []report.Network{{Name: "nodes", Subnet: netip.MustParsePrefix("10.4.94.0/24")}},
			Members: []report.Member{
				{Name: "tor", Kind: report.RouterMember, Links: []report.Link{{Network: "nodes", Address: netip.MustParseAddr("10.4.94.239")}}},
				{Name: "master1", Kind: report.NodeMember, Links: []report.Link{{Network: "nodes", Address: netip.MustParseAddr("10.4.94.32")}}},
			},
		},
		Variants: []report.Variant{{
			Name: "cilium-1.11.6", Role: "affected", Form: "slice", Verdict: "reproduced", Expected: "reproduced",
			EvidenceDir: "evidence/cilium-1.11.6", ProbesHurt: []string{"tor->master1"}, Findings: []report.Finding{{
				Finding: detect.Finding{
					Detector: "route-ownership", Kind: "unannounced", State: "active", Object: detect.Prefix(netip.MustParsePrefix("10.5.115.0/24")), Owner: "master1",
					Pods: []string{"default/web-7", "shop/cart-0"}, Says: "tor has no route to 10.5.115.0/24.",
				}, During: "fault",
			}},
		}},
	}
	random := make([]byte, bytes)
	rand.NewChaCha8([32]byte{}).Read(random)
	for name, text := range map[string]string{
		"report.html": "<p>master1</p>", "junit.xml": "<testsuites/>",
		"evidence/cilium-1.11.6/01-log-master1.txt":  "10.4.94.32 master1 kubelet: pod=\"shop/cart-0\" on build-host: gateway 0x0a045e20, namespace shop, kube-system\n",
		"evidence/cilium-1.11.6/02-random.txt":       hex.EncodeToString(random),
		"evidence/cilium-1.11.6/03-annotations.json": `{"master1": "10.4.94.32/24"}`,
		"evidence/cilium-1.11.6/04-capture.pcap":     "\x00\x01\x0a\x04\x5e\x20",
	} {
		must.Write(t, filepath.Join(dir, name), text)
	}
	must.NoError(t, r.Write(dir))
	return dir
}

// unpacked are the files of an archive, without the folder that they are in.
func unpacked(t *testing.T, file string) (names []string, files map[string]string) {
	t.Helper()
	r := must.Get(gzip.NewReader(bytes.NewReader(must.Read(t, file))))(t)
	files = map[string]string{}
	for entries := tar.NewReader(r); ; {
		header, err := entries.Next()
		if err == io.EOF {
			return names, files
		}
		must.NoError(t, err)
		content := must.Get(io.ReadAll(entries))(t)
		name, ok := strings.CutPrefix(header.Name, "node-drain-2026-01-02T03-04-00Z/")
		if !ok || header.Uid != 0 || header.Uname != "" {
			t.Errorf("%s is of %q", header.Name, header.Uname)
		}
		names, files[name] = append(names, name), string(content)
	}
}

func TestWrite(t *testing.T) {
	const random = "evidence/cilium-1.11.6/02-random.txt"
	for _, test := range []struct {
		name string
		most int64
		left []string
	}{
		{"all of it", 25e6, nil},
		{"the largest does not fit", 100e3, []string{random}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir, file := stored(t, 200e3), filepath.Join(t.TempDir(), "run.tar.gz")
			m := must.Get(Write(dir, file, Options{MaxBytes: test.most}))(t)
			must.Equal(t, "it is too large", false, must.Get(os.Stat(file))(t).Size() > test.most)
			names, files := unpacked(t, file)
			must.Equal(t, "it begins with", []string{"manifest.json", "report.json", "report.html"}, names[:3])
			var inside report.Manifest
			must.NoError(t, json.Unmarshal([]byte(files["manifest.json"]), &inside))
			must.NoError(t, schema.Validate("manifest", []byte(files["manifest.json"])))
			if len(inside.Files) != len(m.Files) || len(inside.Files)+1 != len(files) {
				t.Errorf("the manifest has %d files, and there are %d", len(inside.Files), len(files))
			}
			for _, f := range inside.Files {
				sum := sha256.Sum256([]byte(files[f.Path]))
				if hex.EncodeToString(sum[:]) != f.SHA256 || int64(len(files[f.Path])) != f.Bytes {
					t.Errorf("%s is not what the manifest says", f.Path)
				}
			}
			var left []string
			for _, f := range inside.LeftOut {
				left = append(left, f.Path)
				if f.Why != "the archive would be larger than 100kB" || f.Bytes != 400e3 {
					t.Errorf("left out is %+v", f)
				}
			}
			must.Equal(t, "left out", test.left, left)
		})
	}
}

func TestWriteRefuses(t *testing.T) {
	dir, file := stored(t, 10), filepath.Join(t.TempDir(), "run.tar.gz")
	var large *TooLargeError
	if _, err := Write(dir, file, Options{MaxBytes: 100}); !errors.As(err, &large) || large.Max != 100 {
		t.Errorf("%v; want that it is too large", err)
	}
	must.Is(t, must.Err(os.Stat(file)), fs.ErrNotExist) // no half an archive is left
	must.NoError(t, os.WriteFile(file, nil, 0o644))
	must.Is(t, must.Err(Write(dir, file, Options{MaxBytes: 25e6})), fs.ErrExist)
	must.Get(os.Stat(file))(t) // the file of another program
	must.Is(t, must.Err(Write(t.TempDir(), file+"2", Options{MaxBytes: 25e6})), fs.ErrNotExist)
}

func TestRedact(t *testing.T) {
	dir, file := stored(t, 10), filepath.Join(t.TempDir(), "run.tar.gz")
	m := must.Get(Write(dir, file, Options{MaxBytes: 25e6, Redact: true, Machine: "build-host"}))(t)
	_, files := unpacked(t, file)
	for name, text := range files {
		for _, own := range []string{"master1", "10.4.94.32", "10.4.94.239", "10.4.94.0", "10.5.115.0", "0a045e20", "web-7", "cart-0", "shop", "build-host"} {
			if strings.Contains(text, own) || strings.Contains(name, own) {
				t.Errorf("%s holds %s: %s", name, own, text[max(0, strings.Index(text, own)-40):])
			}
		}
	}
	log := files["evidence/cilium-1.11.6/01-log-node-x1.txt"]
	must.Contain(t, log, "node-x1 kubelet: pod=\"namespace-x1/pod-x", "on machine-x1: ", "kube-system")
	if want := "evidence/cilium-1.11.6/04-capture.pcap"; len(m.LeftOut) != 1 || m.LeftOut[0].Path != want || m.LeftOut[0].Why != "not a text file: names in it cannot be replaced" {
		t.Errorf("left out are %+v, want %s", m.LeftOut, want)
	}
	// The same is replaced by the same, and what is in one subnet stays in one.
	var r report.Report
	must.NoError(t, json.Unmarshal([]byte(files["report.json"]), &r))
	node := r.Topology.Members[1]
	if !r.Topology.Networks[0].Subnet.Contains(node.Links[0].Address) || r.Variants[0].ProbesHurt[0] != "router-x1->node-x1" ||
		!strings.HasPrefix(log, node.Links[0].Address.String()+" ") || r.Variants[0].Role != "affected" {
		t.Errorf("the topology is %+v, the probes %q, the log %q", r.Topology, r.Variants[0].ProbesHurt, log)
	}
	must.Contain(t, files["report.html"], "node-x1") // rendered again, as is the JUnit report
	must.Contain(t, files["junit.xml"], "cilium-1.11.6")
}

// Pods that only the record of a run names are replaced as well.
func TestRedactRecord(t *testing.T) {
	dir, file := stored(t, 10), filepath.Join(t.TempDir(), "run.tar.gz")
	h := &history.History{}
	h.Create(filepath.Join(dir, "evidence", "cilium-1.11.6"), time.Now(), history.Begin{})
	h.AddPoll(snapshot.Snapshot{}, history.Poll{Ended: time.Now(), Findings: []detect.Finding{{
		Detector: "route-ownership", Kind: "unannounced", State: detect.Active, Pods: []string{"bank/vault-0"}, Says: "vault-0 of bank is gone",
	}}})
	must.NoError(t, h.Close())
	must.Get(Write(dir, file, Options{MaxBytes: 25e6, Redact: true}))(t)
	_, files := unpacked(t, file)
	r := must.Get(zstd.NewReader(strings.NewReader(files["evidence/cilium-1.11.6/record.jsonl.zst"])))(t)
	defer r.Close()
	text := string(must.Get(io.ReadAll(r))(t))
	must.Contain(t, text, "namespace-x")
	must.Equal(t, text, false, strings.Contains(text, "vault-0") || strings.Contains(text, "bank"))
}
