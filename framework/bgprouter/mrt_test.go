package bgprouter

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// dumpFile writes a dump of FRR, whose records are as old as is told.
func dumpFile(t *testing.T, name string, age time.Duration, pack func([]byte) []byte) string {
	t.Helper()
	text, err := os.ReadFile("../../topology/lab/router/testdata/frr-10.3.mrt")
	if err != nil {
		t.Fatal(err)
	}
	at := uint32(time.Now().Add(-age).Unix())
	copy(text, []byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)}) // of the first record
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, pack(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func asIs(text []byte) []byte { return text }

func gzipped(text []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(text)
	_ = w.Close()
	return b.Bytes()
}

// A dump is read anew each time. Its age is told, and that it has no FIB.
func TestDump(t *testing.T) {
	for _, test := range []struct {
		name string
		age  time.Duration
		pack func([]byte) []byte
		old  bool
	}{
		{"rib.mrt", time.Minute, asIs, false},
		{"rib.mrt.gz", 47 * time.Minute, gzipped, true},
		{"rib.of-the-future.mrt", -time.Hour, asIs, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := reader(t, Declared{Name: "tor1", Kind: MRT, File: dumpFile(t, test.name, test.age, test.pack)})
			if _, err := r.Neighbors(t.Context()); err == nil {
				t.Error("neighbours of a dump that was not read")
			}
			paths, err := r.RIB(t.Context())
			if err != nil || len(paths) == 0 {
				t.Fatalf("%d paths, %v", len(paths), err)
			}
			neighbors, err := r.Neighbors(t.Context())
			if err != nil || len(neighbors) == 0 {
				t.Errorf("%d neighbours, %v", len(neighbors), err)
			}
			is := snapshot.Router{Name: "tor1"}
			r.(snapshot.RouterDescriber).Describe(&is)
			if !is.RIBOnly || !is.IPv6 || time.Since(is.At)-test.age > time.Minute || len(is.Remarks) == 0 || is.Remarks[0].Open {
				t.Errorf("%+v", is)
			}
			if old := len(is.Remarks) > 1 && is.Remarks[1].Open && strings.HasPrefix(is.Remarks[1].Says, "The table dump of tor1 is old: "); old != test.old {
				t.Errorf("old %t, want %t: %+v", old, test.old, is.Remarks)
			}
		})
	}
}

func TestDumpErrors(t *testing.T) {
	for want, pack := range map[string]func([]byte) []byte{
		"it has no PEER_INDEX_TABLE":    func([]byte) []byte { return nil },
		"unexpected EOF":                func(text []byte) []byte { return gzipped(text)[:40] },
		"bzip2 data invalid":            func([]byte) []byte { return []byte("BZh9 and something else") },
		"the dump has no route of IPv4": func(text []byte) []byte { return text[:12+int(text[11])] },
	} {
		r := reader(t, Declared{Name: "tor1", Kind: MRT, File: dumpFile(t, "rib", 0, pack)})
		if _, err := r.RIB(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := r.Neighbors(t.Context()); err == nil {
			t.Errorf("%s: the neighbours were read", want)
		}
	}
	if _, err := Readers([]Declared{{Name: "a", Kind: MRT, File: filepath.Join(t.TempDir(), "none")}}, nil); err == nil || !strings.HasPrefix(err.Error(), "router a: file: ") {
		t.Errorf("%v", err)
	}
}
