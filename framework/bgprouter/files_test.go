package bgprouter

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// Routers are read from recorded answers of FRR 10.3 and BIRD 2.17, also if a file is missing.
func TestFiles(t *testing.T) {
	testdata := func(name string) string { return filepath.Join("..", "..", "topology", "bgp", "testdata", name) }
	vrfs := filepath.Join(t.TempDir(), "vrfs.json")
	must.NoError(t, os.WriteFile(vrfs, []byte(`{"vrfs":{"default":{"type":"DFLT","vrfId":0}},"totalVrfs":1}`), 0o600))
	frr := map[string]string{
		"bgp4": testdata("frr-10.3-rib-plain.json"), "neighbors": testdata("frr-10.3-neighbors.json"), "routes4": testdata("ip-route-frr.json"), "vrfs": vrfs,
	}
	bird := map[string]string{"routes": testdata("bird-2.17-routes.txt"), "protocols": testdata("bird-2.17-protocols.txt"), "routes4": testdata("ip-route-bird.json"), "routes6": testdata("ip6-route-bird.json")}
	without := func(files map[string]string, name string) map[string]string {
		rest := maps.Clone(files)
		delete(rest, name)
		return rest
	}
	for _, c := range []struct {
		name  string
		kind  Kind
		files map[string]string
		// paths are the prefixes of the RIB, neighbors and routes the numbers of entries.
		paths             string
		neighbors, routes int
		says              string
	}{
		{"FRR", FRR, frr, "10.5.112.0/24 10.5.113.0/24 10.5.114.0/24 203.0.113.0/24", 2, 6, ""},
		{"BIRD", BIRD, bird, "10.5.112.0/24 10.5.112.0/24 10.5.113.0/24 10.5.114.0/24 10.5.116.0/24", 2, 18, ""},
		{"FRR without its FIB", FRR, without(frr, "routes4"), "10.5.112.0/24 10.5.113.0/24 10.5.114.0/24 203.0.113.0/24", 2, 0, "the FIB cannot be read in this way"},
		{"no file", FRR, map[string]string{"bgp4": testdata("none.json"), "neighbors": testdata("none.json")}, "", 0, 0, "none.json: no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := reader(t, Declared{Name: "tor1", Kind: c.kind, Files: c.files})
			paths, err := r.RIB(t.Context())
			neighbors, err2 := r.Neighbors(t.Context())
			routes, err3 := r.FIB(t.Context())
			must.Equal(t, "RIB", c.paths, each.Joined(paths, " ", func(p snapshot.Path) string { return p.Prefix.String() }))
			must.Equal(t, "sessions and routes", []int{c.neighbors, c.routes}, []int{len(neighbors), len(routes)})
			if said := fmt.Sprint(err, err2, err3); !strings.Contains(said, c.says) || c.says == "" && said != "<nil> <nil> <nil>" {
				t.Errorf("%s, want %q", said, c.says)
			}
		})
	}
	must.NoError(t, os.Chtimes(vrfs, time.Time{}, time.Now().Add(-time.Hour)))
	for now, says := range map[time.Duration]string{
		0: "The files of tor1 are old: 1h0m0s.", -time.Hour: "", -3 * time.Hour: "The files of tor1 are younger than the rest: 2h0m0s.",
	} {
		files := map[string]string{"vrfs": vrfs, "routes4": frr["routes4"] + "none"}
		router := described(reader(t, Declared{Name: "tor1", Kind: FRR, Now: time.Now().Add(now), Files: files}))
		said := ""
		if len(router.Remarks) == 1 && router.Remarks[0].Open {
			said = router.Remarks[0].Says
		}
		must.Equal(t, "files", says, said)
		must.Equal(t, "their time", "1h0m0s", time.Since(router.At).Round(time.Minute).String())
	}
	for _, c := range []struct {
		kind  Kind
		files map[string]string
		says  string
	}{
		{FRR, map[string]string{"bgp4": "a", "neighbours": "b"}, "files: neighbours: expected bgp4"},
		{FRR, without(frr, "neighbors"), "files: expected neighbors as well, with what vtysh -c 'show bgp neighbors json' prints"},
		{BIRD, without(bird, "protocols"), "files: expected protocols as well, with what birdc -r 'show protocols all' prints"},
	} {
		must.Fail(t, Declared{Name: "tor1", Kind: c.kind, Files: c.files}.check(), c.says)
	}
}
