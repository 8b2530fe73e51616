package bgprouter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []Declared
		says       string // in the error
	}{
		{name: "both ways", text: "- {name: tor1, kind: frr, ssh: ops@tor1.example}\n- name: tor2\n  kind: bird\n  command: [docker, exec, tor2]\n",
			want: []Declared{{Name: "tor1", Kind: FRR, SSH: "ops@tor1.example"}, {Name: "tor2", Kind: BIRD, Command: []string{"docker", "exec", "tor2"}}}},
		{name: "empty", says: "routers.yaml: it has no router: expected a list of routers"},
		{name: "an unknown key", text: "- {name: tor1, kind: frr, shh: tor1}", says: "routers.yaml: line 1: field shh not found; expected a list of routers"},
		{name: "no list", text: "name: tor1", says: "routers.yaml: line 1: cannot unmarshal !!map; expected"},
		{name: "no YAML", text: "- [", says: "routers.yaml: line 1: did not find expected node content; expected"},
		{name: "two documents", text: "- {name: a, kind: frr, ssh: a}\n---\n- {name: b}", says: "one list, and nothing after it"},
		{name: "no name", text: "- {kind: frr, ssh: a}", says: `router 1: name "": expected letters`},
		{name: "a name that moves the cursor", text: "- {name: \"a\\e[2J\", kind: frr, ssh: a}", says: `router 1: name "a\x1b[2J": expected letters`},
		{name: "twice", text: "- {name: a, kind: frr, ssh: a}\n- {name: a, kind: frr, ssh: b}", says: "router a: routers 1 and 2 have that name"},
		{name: "a kind that is near", text: "- {name: a, kind: brid, ssh: a}", says: `router a: kind "brid"; nearest is "bird": expected frr, bird, gobgp, mrt or bmp`},
		{name: "no way", text: "- {name: a, kind: frr}", says: "router a: expected either ssh, such as ops@a, or command"},
		{name: "two ways", text: "- {name: a, kind: frr, ssh: a, command: [b]}", says: "router a: expected either ssh"},
		{name: "by sudo", text: "- {name: a, kind: frr, ssh: a, become: sudo}", want: []Declared{{Name: "a", Kind: FRR, SSH: "a", Become: "sudo"}}},
		{name: "by another program", text: "- {name: a, kind: frr, ssh: a, become: sduo}", says: `router a: become "sduo"; nearest is "sudo": expected sudo`},
		{name: "by sudo, of nothing", text: "- {name: a, kind: gobgp, address: 'a:1', become: sudo}", says: "router a: become: expected ssh or command as well"},
		{name: "BMP", text: "- {name: a, kind: bmp, address: 192.0.2.1}", want: []Declared{{Name: "a", Kind: BMP, Address: "192.0.2.1"}}},
		{name: "BMP from a name", text: "- {name: a, kind: bmp, address: tor1}", says: `router a: address "tor1": expected the address from which the router connects`},
		{name: "BMP from one address", text: "- {name: a, kind: bmp, address: 192.0.2.1}\n- {name: b, kind: bmp, address: '::ffff:192.0.2.1'}", says: "router b: a connects from that address"},
		{name: "MRT", text: "- {name: a, kind: mrt, file: a.mrt}", want: []Declared{{Name: "a", Kind: MRT, File: "a.mrt"}}},
		{name: "MRT without a file", text: "- {name: a, kind: mrt}", says: "router a: expected file, a table dump in MRT"},
		{name: "a role", text: "- {name: a, kind: frr, ssh: a, role: spine}", want: []Declared{{Name: "a", Kind: FRR, SSH: "a", Role: "spine"}}},
		{name: "pods", text: "- {name: a, kind: frr, ssh: a, pods: true}", want: []Declared{{Name: "a", Kind: FRR, SSH: "a", Pods: true}}},
		{name: "Services alone", text: "- {name: a, kind: frr, ssh: a, only: services}", want: []Declared{{Name: "a", Kind: FRR, SSH: "a", Only: "services"}}},
		{name: "a family alone", text: "- {name: a, kind: frr, ssh: a, families: [ipv4]}", want: []Declared{{Name: "a", Kind: FRR, SSH: "a", Families: []string{"ipv4"}}}},
		{name: "no family", text: "- {name: a, kind: frr, ssh: a, families: [ipv5]}", says: `router a: families: "ipv5"`},
		{name: "something else alone", text: "- {name: a, kind: frr, ssh: a, only: service}", says: `router a: only "service"`},
		{name: "both", text: "- {name: a, kind: frr, ssh: a, only: services, pods: true}", says: "router a: expected either pods, or only: services"},
		{name: "pods of a spine", text: "- {name: a, kind: frr, ssh: a, role: spine, pods: true}", says: "router a: pods: a spine has aggregates, and no route to each pod range"},
		{name: "a role that is near", text: "- {name: a, kind: frr, ssh: a, role: spien}", says: `router a: role "spien"; nearest is "spine": expected tor, spine or route-server`},
		{name: "a key of another kind", text: "- {name: a, kind: frr, ssh: a, address: a}", says: "router a: address: kind frr has no such key: expected ssh, command"},
		{name: "gRPC", text: "- {name: a, kind: gobgp, address: 'a:50051', ca: c.pem, cert: d.pem, key: e.pem, ssh: a}\n- {name: b, kind: gobgp, address: '[::1]:50051', plaintext: true}",
			want: []Declared{
				{Name: "a", Kind: GoBGP, Address: "a:50051", CA: "c.pem", Cert: "d.pem", Key: "e.pem", SSH: "a"},
				{Name: "b", Kind: GoBGP, Address: "[::1]:50051", Plaintext: true},
			}},
		{name: "gRPC without a port", text: "- {name: a, kind: gobgp, address: a}", says: `router a: address "a": expected HOST:PORT of GoBGP's gRPC API, such as a:50051`},
		{name: "gRPC with a resolver", text: "- {name: a, kind: gobgp, address: 'unix:///a:1'}", says: `router a: address "unix:///a:1": expected HOST:PORT`},
		{name: "TLS and none", text: "- {name: a, kind: gobgp, address: 'a:1', plaintext: true, ca: c.pem}", says: "router a: expected either plaintext, or ca, cert and key"},
		{name: "a certificate without its key", text: "- {name: a, kind: gobgp, address: 'a:1', cert: c.pem}", says: "router a: expected cert and key together"},
		{name: "an option for ssh", text: "- {name: a, kind: frr, ssh: -oProxyCommand=id}", says: `router a: ssh "-oProxyCommand=id": expected USER@HOST`},
		{name: "two words for ssh", text: "- {name: a, kind: frr, ssh: a b}", says: `router a: ssh "a b"`},
		{name: "an option as command", text: "- {name: a, kind: frr, command: [-x]}", says: `router a: command ["-x"]: expected a program`},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Parse("routers.yaml", []byte(test.text))
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error %v, want one line with %q", err, test.says)
				}
				return
			}
			must.NoError(t, err)
			must.Equal(t, "", test.want, got)
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("- {name: tor1, kind: frr, ssh: ops@tor1}")
	f.Fuzz(func(t *testing.T, text string) {
		routers, err := Parse("f", []byte(text))
		if (err == nil) != (len(routers) > 0) {
			t.Errorf("%d routers and error %v", len(routers), err)
		}
	})
}

// ssh hands the command to a shell: no word of it is split there.
func TestCommandLines(t *testing.T) {
	ssh := strings.Join((&outside{router: Declared{SSH: "ops@tor1"}}).line([]string{"birdc", "-r", "show route all where source = RTS_BGP"}), "|")
	want := "ssh|-T|-a|-x|-o|BatchMode=yes|-o|ConnectTimeout=10|-o|ClearAllForwardings=yes|-o|UpdateHostKeys=no|-o|ControlMaster=no|-o|PermitLocalCommand=no|--|ops@tor1|birdc -r 'show route all where source = RTS_BGP'"
	must.Equal(t, "ssh", want, ssh)
	command := (&outside{router: Declared{Command: []string{"docker", "exec", "tor1"}}}).line(fib)
	must.Equal(t, "command", []string{"docker", "exec", "tor1", "ip", "-4", "-j", "-N", "route"}, command)
}

// as is a router whose command is a script. It gets the router's command as arguments.
func as(t *testing.T, kind Kind, script string) Declared {
	t.Helper()
	file := filepath.Join(t.TempDir(), "run")
	must.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n"+script), 0o755))
	return Declared{Name: "tor1", Kind: kind, Command: []string{file}}
}

func reader(t *testing.T, d Declared) snapshot.RouterReader {
	t.Helper()
	return must.Get(Readers([]Declared{d}, nil))(t)[d.Name]
}

// described is a router tor1 with the attributes that its reader sets.
func described(r snapshot.RouterReader) snapshot.Router {
	router := snapshot.Router{Name: "tor1"}
	r.(snapshot.RouterDescriber).Describe(&router)
	return router
}

// The answers are recordings of real programs: see testdata of package bgp.
func TestOutside(t *testing.T) {
	testdata := must.Get(filepath.Abs("../../topology/bgp/testdata"))(t)
	script := `case "$*" in
"vtysh -c show bgp ipv4 unicast json") cat ` + testdata + `/frr-10.3-rib-plain.json;;
"vtysh -c show bgp ipv6 unicast json") cat ` + testdata + `/frr-10.3-rib6-plain.json;;
"vtysh -c show bgp vrfs json") echo '{"vrfs":{"default":{"type":"DFLT","numConfiguredPeers":2},"red":{"type":"VRF","vrfId":9}},"totalVrfs":2}';;
"vtysh -c show bgp neighbors json") cat ` + testdata + `/frr-10.3-neighbors.json;;
"birdc -r show route all where (net.type = NET_IP4 || net.type = NET_IP6) && source = RTS_BGP") cat ` + testdata + `/bird-2.17-routes-both.txt;;
"birdc -r show protocols all") cat ` + testdata + `/bird-2.17-protocols-both.txt;;
"ip -4 -j -N route") cat ` + testdata + `/ip-route-frr.json;;
"ip -6 -j -N route") cat ` + testdata + `/ip6-route-frr.json;;
"ip -j neigh") echo '[{"dst":"10.65.4.130","dev":"eth0","lladdr":"02:42:0a:41:04:16","state":["STALE"]}]';;
*) echo "unexpected: $*" >&2; exit 1;;
esac`
	for kind, want := range map[Kind][4]int{FRR: {7, 10, 2, 1}, BIRD: {2, 10, 3, 1}} {
		t.Run(string(kind), func(t *testing.T) {
			r := reader(t, as(t, kind, script))
			paths := must.Get(r.RIB(t.Context()))(t)
			routes := must.Get(r.FIB(t.Context()))(t)
			neighbors := must.Get(r.Neighbors(t.Context()))(t)
			links := must.Get(r.(snapshot.LinkReader).Links(t.Context()))(t)
			must.Equal(t, "", want, [4]int{len(paths), len(routes), len(neighbors), len(links)})
			must.Equal(t, "", snapshot.Router{Name: "tor1", IPv6: true, VRFs: map[Kind][]string{FRR: {"red"}}[kind]}, described(r))
		})
	}
}

// Two routers at a time print their RIBs.
func TestOutsideInTurn(t *testing.T) {
	dir := t.TempDir()
	script := fmt.Sprintf(`case "$*" in *vrfs*) echo '{"vrfs":{},"totalVrfs":0}';; *) touch %[1]s/$$; ls %[1]s | wc -l >>%[1]s.most; sleep 0.05; rm %[1]s/$$; echo '{"routes":{}}';; esac`, dir)
	var declared []Declared
	for i := range 6 {
		d := as(t, FRR, script)
		d.Name = fmt.Sprint("tor", i)
		declared = append(declared, d)
	}
	var all sync.WaitGroup
	for _, r := range must.Get(Readers(declared, nil))(t) {
		all.Go(func() {
			if _, err := r.RIB(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if most := string(must.Read(t, dir+".most")); strings.ContainsAny(most, "3456") || !strings.Contains(most, "2") {
		t.Errorf("asked at a time:\n%s", most)
	}
}

// A router without IPv6 is read for IPv4, and one that does not answer is not read.
func TestWithoutIPv6(t *testing.T) {
	for answer, want := range map[string]snapshot.Router{
		"echo '{\"routes\":{}}'": {Name: "tor1", IPv6: true},
		"echo '{\"warning\":\"no such family\"}'": {
			Name: "tor1", Remarks: []snapshot.Remark{{Says: "tor1 is read for IPv4 alone: vtysh -c show bgp ipv6 unicast json: reading FRR's RIB: refused: no such family."}},
		},
		"exit 1": {Name: "tor1"},
	} {
		r := reader(t, as(t, FRR, `case "$*" in *vrfs*) echo '{"vrfs":{},"totalVrfs":0}';; *ipv6*) `+answer+`;; *) echo '{"routes":{}}';; esac`))
		must.Equal(t, answer, answer == "exit 1", must.Err(r.RIB(t.Context())) != nil)
		must.Equal(t, answer, want, described(r))
	}
}

// A router that does not list its VRFs is read, with a remark that it may have some.
func TestWithoutVRFs(t *testing.T) {
	r := reader(t, as(t, FRR, `case "$*" in *vrfs*) echo '% Unknown command: show bgp vrfs json';; *) echo '{"routes":{}}';; esac`))
	must.Get(r.RIB(t.Context()))(t)
	must.Equal(t, "", snapshot.Router{Name: "tor1", IPv6: true, Remarks: []snapshot.Remark{{
		Says: "Which VRFs of tor1 have BGP is not known: vtysh -c show bgp vrfs json: reading FRR's VRFs: refused: % Unknown command: show bgp vrfs json.", Open: true,
	}}}, described(r))
}

// The attributes of a router in a snapshot follow from the file.
func TestDescribe(t *testing.T) {
	for _, test := range []struct {
		name     string
		declared Declared
		want     snapshot.Router
	}{
		{"tor", Declared{Name: "a", Kind: FRR, SSH: "a", Role: "tor"}, snapshot.Router{}},
		{"pods", Declared{Name: "a", Kind: FRR, SSH: "a", Pods: true}, snapshot.Router{Pods: true}},
		{"Services alone", Declared{Name: "a", Kind: FRR, SSH: "a", Only: "services"}, snapshot.Router{Services: true}},
		{"a family", Declared{Name: "a", Kind: FRR, SSH: "a", Families: []string{"ipv4"}}, snapshot.Router{Families: []string{"ipv4"}}},
		{"spine", Declared{Name: "a", Kind: BIRD, SSH: "a", Role: "spine"}, snapshot.Router{Role: snapshot.RoleSpine}},
		{"route server", Declared{Name: "a", Kind: FRR, SSH: "a", Role: "route-server"}, snapshot.Router{Role: snapshot.RoleRouteServer, RIBOnly: true}},
		{"gRPC alone", Declared{Name: "a", Kind: GoBGP, Address: "a:1"}, snapshot.Router{RIBOnly: true}},
		{"gRPC and ssh", Declared{Name: "a", Kind: GoBGP, Address: "a:1", SSH: "a"}, snapshot.Router{}},
	} {
		var got snapshot.Router
		reader(t, test.declared).(snapshot.RouterDescriber).Describe(&got)
		must.Equal(t, test.name, test.want, got)
	}
}

func TestOutsideErrors(t *testing.T) {
	for _, test := range []struct{ name, script, want string }{
		{"refused", "echo 'Warning: added'; echo 'Permission denied (publickey).' >&2; exit 255", "exit status 255: Permission denied (publickey)."},
		{"refused on standard output", "echo '% Unknown command: show bgp'; exit 1", "exit status 1: % Unknown command: show bgp"},
		{"another answer", "echo no", `want JSON, got "no"`},
		{"no answer", "sleep 60", "no answer within 100ms"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := t.Context()
			if test.name == "no answer" {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, 100*time.Millisecond, errors.New("no answer within 100ms"))
				defer cancel()
			}
			must.Fail(t, must.Err(reader(t, as(t, FRR, test.script)).RIB(ctx)), test.want)
		})
	}
	must.Fail(t, must.Err(reader(t, Declared{Kind: FRR, Command: []string{"no-such-program"}}).FIB(t.Context())), "no-such-program")
}
