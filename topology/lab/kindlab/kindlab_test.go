package kindlab

import (
	"context"
	"errors"
	"github.com/moby/moby/api/types/container"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/guest"
	"github.com/relapse-dev/relapse/topology/must"
)

// A name is part of paths that Down removes: a name that leads out of StateDir must be refused before
// anything is touched.
func TestNoLabOutsideStateDir(t *testing.T) {
	for _, name := range []string{"", ".", "..", "../../etc", "a/b", "/etc", "a b", "a.lock", "Upper", "näme", "a\x00"} {
		t.Run(name, func(t *testing.T) {
			_, _, err := lock(name)
			must.Fail(t, err, "is not a lab name")
			// The client is never used: there is no engine behind it.
			docker := must.Get(client.New(client.WithHost("unix:///nonexistent/docker.sock")))(t)
			must.Fail(t, Down(t.Context(), docker, name), "is not a lab name")
		})
	}
	for _, name := range []string{"node-drain", "a", "kindlab-test", "0"} {
		must.Equal(t, name, true, isName(name))
	}
}

func TestLabOf(t *testing.T) {
	mountsOf := func(lab string) []container.MountPoint {
		return []container.MountPoint{{Source: "/lib/modules"}, {Source: mirrorsDir(lab)}}
	}
	for _, test := range []struct {
		name      string
		container container.Summary
		want      string
	}{
		{"ours", container.Summary{Labels: map[string]string{labelLab: "node-drain"}}, "node-drain"},
		{"made by kind", container.Summary{Labels: map[string]string{labelKindCluster: kindName("node-drain", "k8s")}, Mounts: mountsOf("node-drain")}, "node-drain"},
		{"ours outweighs kind's", container.Summary{Labels: map[string]string{labelLab: "a", labelKindCluster: "relapse-b-k8s"}}, "a"},
		{"another kind cluster", container.Summary{Labels: map[string]string{labelKindCluster: "kind"}}, ""},
		{"another person's cluster of such a name", container.Summary{Labels: map[string]string{labelKindCluster: "relapse-dev-1"}}, ""},
		{"another cluster, with our prefix", container.Summary{Labels: map[string]string{labelKindCluster: "relapse-k8s"}}, ""},
		{"another container", container.Summary{Labels: map[string]string{"app": "relapse"}}, ""},
		{"no label", container.Summary{}, ""},
	} {
		t.Run(test.name, func(t *testing.T) { must.Equal(t, "", test.want, labOf(test.container)) })
	}
}

func TestBridgeName(t *testing.T) {
	seen := map[string]string{}
	for _, lab := range []string{"a", "b", strings.Repeat("l", 32)} {
		for _, network := range []string{"nodes", "uplink", strings.Repeat("n", 15)} {
			name := bridgeName(lab, network)
			if len(name) > 15 { // IFNAMSIZ, with its zero
				t.Errorf("%s is longer than the kernel takes", name)
			}
			if !strings.HasPrefix(name, "rl-") {
				t.Errorf("%s has not the prefix of labs' bridges", name)
			}
			if other, found := seen[name]; found {
				t.Errorf("%s/%s and %s have one bridge", lab, network, other)
			}
			seen[name] = lab + "/" + network
		}
	}
	must.Equal(t, "the bridge that the rules which close it find", "a/nodes", seen[bridgeName("a", "nodes")])
}

func TestRegistryAddr(t *testing.T) {
	node := func(addr string) topology.Node {
		return topology.Node{Name: "n" + addr, Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr(addr)}}}
	}
	for _, test := range []struct {
		name, subnet string
		nodes        []string
		want         string
	}{
		{"the highest address", "10.4.94.0/24", []string{"10.4.94.32"}, "10.4.94.254:5000"},
		{"that no member has", "10.4.94.0/24", []string{"10.4.94.254", "10.4.94.253"}, "10.4.94.252:5000"},
		{"of a small network", "10.0.0.0/29", []string{"10.0.0.2"}, "10.0.0.6:5000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := &Lab{Topology: topology.Topology{
				Networks: []topology.Network{{Name: "nodes", Subnet: netip.MustParsePrefix(test.subnet)}},
				Clusters: []topology.Cluster{{Name: "k8s"}},
			}}
			for _, addr := range test.nodes {
				l.Topology.Clusters[0].Nodes = append(l.Topology.Clusters[0].Nodes, node(addr))
			}
			must.Equal(t, "", test.want, l.registryAddr(0).String())
		})
	}
}

func TestImagesOf(t *testing.T) {
	whole := ImagesOf(topology.Topology{
		Clusters: make([]topology.Cluster, 1), Routers: make([]topology.Router, 1), Hosts: make([]topology.Host, 1),
	})
	for _, ref := range append([]string{registryImage, nodeImage, RouterImage(""), hostImage}, controlPlaneImages...) {
		must.Equal(t, ref, true, slices.Contains(whole, ref))
	}
	hosts := []topology.Host{{Image: "relapse.dev/mariadb:10.11"}, {}, {Image: "relapse.dev/mariadb:10.11"}}
	must.Equal(t, "hosts need", []string{registryImage, "relapse.dev/mariadb:10.11", hostImage}, ImagesOf(topology.Topology{Hosts: hosts}))
	routers := []topology.Router{{Kind: topology.FRR}, {Kind: topology.BIRD}, {Kind: topology.FRR}, {Kind: topology.GoBGP}}
	want := []string{registryImage, "relapse.dev/frr:10.3", "relapse.dev/bird:2.17", "relapse.dev/tor:dev"}
	must.Equal(t, "routers of all kinds need", want, ImagesOf(topology.Topology{Routers: routers}))
	for _, kind := range topology.RouterKinds {
		if routerImages[kind] == "" {
			t.Errorf("routers of the kind %q have no image", kind)
		}
	}
	must.Equal(t, "an empty lab needs", []string{registryImage}, ImagesOf(topology.Topology{}))
}

func guests(t *testing.T) *Lab {
	t.Helper()
	docker := must.Get(client.New(client.WithHost("unix:///nonexistent/docker.sock")))(t)
	return &Lab{docker: docker, Topology: topology.Topology{Name: "l", Clusters: []topology.Cluster{{Name: "k8s", Nodes: []topology.Node{
		{Name: "a", Role: topology.ControlPlane}, {Name: "b", Kernel: "6.12"}, {Name: "c", Kernel: "6.1"}, {Name: "d", Kernel: "6.12"},
	}}}}}
}

func TestImagesOfGuests(t *testing.T) {
	l := guests(t)
	must.Equal(t, "", []string{"relapse.dev/guest:6.1", "relapse.dev/guest:6.12"}, guestImages(l.Topology))
	if got := ImagesOf(l.Topology); !slices.Contains(got, "relapse.dev/guest:6.12") || !slices.Contains(got, nodeImage) {
		t.Errorf("%v", got)
	}
}

// The machine cannot enter a guest's namespaces: the error comes before any request to Docker.
func TestGuestsAreOutOfReach(t *testing.T) {
	l := guests(t)
	node := l.Node("b")
	_, noPID := node.PID(t.Context())
	_, noNetns := node.Netns(t.Context())
	for _, err := range []error{noPID, noNetns, node.InNetns(t.Context(), func() error { return errors.New("it was reached") })} {
		must.Fail(t, err, "b is a guest with its own kernel")
	}
	if l.Node("a").guest != nil {
		t.Error("a container is taken for a guest")
	}
}

// The API server takes no other form (k8s.io/cluster-bootstrap/token/api).
func TestNewToken(t *testing.T) {
	form := regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)
	seen := map[string]bool{}
	for range 100 {
		id, secret := newToken()
		if token := id + "." + secret; !form.MatchString(token) || seen[token] {
			t.Fatalf("%s is no token, or there was one like it", token)
		} else {
			seen[token] = true
		}
	}
}

// An action begins when the actions that it needs have succeeded, and never after a failure.
func TestActions(t *testing.T) {
	l := &Lab{options: Options{Step: func(name string) func(error) {
		must.Equal(t, "step", "named", name)
		return func(error) {}
	}}}
	var order []string
	note := func(name string) func(context.Context) error {
		return func(context.Context) error { order = append(order, name); return nil }
	}
	all := l.actions(t.Context())
	first := make(chan struct{})
	named := all.add("named", note("named"), first)
	all.add("", note("last"), first, named)
	order = append(order, "begun")
	close(first)
	must.NoError(t, all.Wait())
	must.Equal(t, "order", []string{"begun", "named", "last"}, order)

	broken := errors.New("broken")
	all = l.actions(t.Context())
	failed := all.add("", func(context.Context) error { return broken })
	all.add("", func(context.Context) error { t.Error("it began after a failure"); return nil }, failed)
	must.Equal(t, "", broken, all.Wait())
}

func TestErrorsSayWhatToDo(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{&HeldError{Lab: "node-drain", PID: 17, Command: "relapse run node-drain", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
			`lab "node-drain" is held by process 17 (relapse run node-drain) since 03:04:05: wait for it to end, or interrupt it`},
		{&guest.ExitError{Member: "master1", Command: []string{"sh", "-c", "exit 3"}, Status: 3, Output: "no\n"},
			"on master1: sh -c 'exit 3': exit status 3: no"},
		{&guest.ExitError{Member: "master1", Command: []string{"sh", "-c", "set -e\nfalse\ntrue\n"}, Status: 1, Output: "no\n"},
			"on master1: sh -c 'set -e ... (3 more lines): exit status 1: no"},
	} {
		must.Equal(t, "", test.want, test.err.Error())
	}
	long := &guest.ExitError{Member: "m", Command: []string{"x"}, Output: strings.Repeat("line\n", 1000)}
	if n := strings.Count(long.Error(), "\n"); n > 15 {
		t.Errorf("a failed command's error has %d lines", n)
	}
}
