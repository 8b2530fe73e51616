package bgprouter

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

// realDump is a dump of FRR, with records of this age.
func realDump(t *testing.T, age time.Duration) []byte {
	t.Helper()
	text := must.Read(t, "../../topology/bgp/testdata/frr-10.3.mrt")
	at := uint32(time.Now().Add(-age).Unix())
	copy(text, []byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)}) // the time of the first record
	return text
}

// dumpFile writes a dump to a file of this age.
func dumpFile(t *testing.T, name string, text []byte, age time.Duration) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	must.NoError(t, os.WriteFile(file, text, 0o600))
	at := time.Now().Add(-age)
	must.NoError(t, os.Chtimes(file, at, at))
	return file
}

func gzipped(text []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(text)
	_ = w.Close()
	return b.Bytes()
}

// A dump is read anew each time. Remarks tell its age, and that it has no FIB.
func TestDump(t *testing.T) {
	const old, ahead, others = "The table dump of tor1 is old: ", "The table dump of tor1 is of a time ", "The table dump of tor1 has records that are not read, and that may change routes: 1, the first of type 16, subtype 4."
	update := []byte{0, 0, 0, 0, 0, 16, 0, 4, 0, 0, 0, 0} // BGP4MP, a message, which is empty
	for _, test := range []struct {
		name string
		// age is the age of the dump, and file the age of its file.
		age, file time.Duration
		// beside is the age of the snapshot.
		beside time.Duration
		pack   func([]byte) []byte
		says   []string
	}{
		{name: "rib.mrt", age: time.Minute},
		{name: "rib.mrt.gz", age: 47 * time.Minute, pack: gzipped, says: []string{old}},
		{name: "beside a bundle of its time", age: 47 * time.Minute, beside: 45 * time.Minute},
		{name: "an old file", age: 47 * time.Minute, file: 46 * time.Minute, says: []string{old}},
		{name: "of a clock that is an hour ahead", age: -time.Hour, says: []string{ahead}},
		{name: "of a clock that is a day ahead, a day ago", age: time.Minute, file: 24 * time.Hour, says: []string{ahead, old}},
		{name: "of a clock that is 3 seconds ahead", age: -3 * time.Second},
		{name: "with an update", pack: func(text []byte) []byte { return append(text, update...) }, says: []string{others}},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := realDump(t, test.age)
			if test.pack != nil {
				text = test.pack(text)
			}
			r := reader(t, Declared{Name: "tor1", Kind: MRT, File: dumpFile(t, "rib", text, test.file), Now: time.Now().Add(-test.beside)})
			must.Fail(t, must.Err(r.Neighbors(t.Context()))) // the dump is not read yet
			must.Equal(t, "no path", false, len(must.Get(r.RIB(t.Context()))(t)) == 0)
			must.Equal(t, "no neighbour", false, len(must.Get(r.Neighbors(t.Context()))(t)) == 0)
			router := described(r)
			if age := time.Since(router.At) - max(test.age, test.file); !router.RIBOnly || !router.IPv6 || router.NoIPv4 || age.Abs() > 10*time.Second || len(router.Remarks) != 1+len(test.says) || router.Remarks[0].Open {
				t.Errorf("%+v", router)
			}
			for i, want := range test.says {
				if said := router.Remarks[min(1+i, len(router.Remarks)-1)]; !said.Open || !strings.HasPrefix(said.Says, want) {
					t.Errorf("%+v, want %q", said, want)
				}
			}
		})
	}
}

func TestDumpErrors(t *testing.T) {
	for want, pack := range map[string]func([]byte) []byte{
		"it has no PEER_INDEX_TABLE": func([]byte) []byte { return nil },
		"unexpected EOF":             func(text []byte) []byte { return gzipped(text)[:40] },
		"bzip2 data invalid":         func([]byte) []byte { return []byte("BZh9 and something else") },
		"the dump has no route":      func(text []byte) []byte { return text[:12+int(text[11])] },
	} {
		r := reader(t, Declared{Name: "tor1", Kind: MRT, File: dumpFile(t, "rib", pack(realDump(t, 0)), 0)})
		must.Fail(t, must.Err(r.RIB(t.Context())), want)
		must.Fail(t, must.Err(r.Neighbors(t.Context())))
	}
	none := Declared{Name: "a", Kind: MRT, File: filepath.Join(t.TempDir(), "none")}
	must.Fail(t, must.Err(Readers([]Declared{none}, nil)), "router a: file: ")
}
