//go:build lab

package kindlab_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/router"
	"github.com/relapse-dev/relapse/topology/must"
)

// onlyRootReaches checks that a process of another user reaches neither the lab's registry and its router nor
// its API server, which root does, and that the lab does not reach a port of the machine.
func onlyRootReaches(ctx context.Context, t *testing.T, lab *kindlab.Lab) {
	connect := func(uid uint32, to netip.AddrPort) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", to.Addr(), to.Port()))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	api := lab.Clusters[0].Client.RESTConfig().Host
	tor := lab.Topology.Routers[0].Links[1].Address
	for what, to := range map[string]netip.AddrPort{
		"router's BGP": netip.AddrPortFrom(tor, 179), "router's gRPC": netip.AddrPortFrom(tor, router.GoBGPPort),
		"registry": lab.Registry().Addr, "API server": netip.MustParseAddrPort(strings.TrimPrefix(api, "https://")),
	} {
		if err := connect(0, to); err != nil {
			t.Fatalf("root does not reach the %s at %s: %v", what, to, err)
		}
		before := droppedIn(t, lab.Topology.Name, "output")
		if err := connect(65534, to); err == nil {
			t.Errorf("uid 65534 reaches the %s at %s", what, to)
		}
		if droppedIn(t, lab.Topology.Name, "output") == before {
			t.Errorf("the rules have dropped nothing to the %s", what)
		}
	}
	// The first address of a network is the machine's.
	machine := lab.Topology.Networks[0].Subnet.Addr().Next().String()
	before := droppedIn(t, lab.Topology.Name, "input")
	node := lab.Topology.Clusters[0].Nodes[0].Name
	said, err := lab.Node(node).Exec(ctx, "timeout", "1", "bash", "-c", "exec 3<>/dev/tcp/"+machine+"/22")
	if err == nil || strings.Contains(err.Error(), "refused") || droppedIn(t, lab.Topology.Name, "input") == before {
		t.Errorf("a connection from %s to %s port 22 is not dropped: %s %v", node, machine, said, err)
	}
}

// kindsToken is the bootstrap token that kind gives all its clusters.
const kindsToken = "abcdef.0123456789abcdef"

// tokensAreOwn checks that nobody joins a node by a token that the lab did not make.
func tokensAreOwn(ctx context.Context, t *testing.T, lab *kindlab.Lab) {
	config := rest.AnonymousClientConfig(lab.Clusters[0].Client.RESTConfig())
	config.BearerToken = kindsToken
	client := must.Get(kubernetes.NewForConfig(config))(t)
	if _, err := client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the API server answers kind's token: %v; want it to be unauthorized", err)
	}
}

// asksNoNameServer checks that no question for a name leaves the machine, whoever asks it.
func asksNoNameServer(ctx context.Context, t *testing.T, lab *kindlab.Lab) {
	routes, err := netlink.RouteGet(net.IPv4(192, 0, 2, 1))
	if err != nil {
		t.Skipf("this machine has no uplink: %v", err)
	}
	protocol := unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	socket := must.Get(unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol))(t)
	defer unix.Close(socket)
	must.NoError(t, unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: uint16(protocol), Ifindex: routes[0].LinkIndex}))
	name := "relapse" + strings.ToLower(rand.Text())
	ask := []string{"timeout", "2", "getent", "hosts", name + ".example.org"}
	var asking sync.WaitGroup
	for _, m := range lab.Topology.Members() {
		asking.Go(func() {
			if said, err := lab.Host(m.Name).Exec(ctx, ask...); err == nil {
				t.Errorf("%s gets an answer: %s", m.Name, said)
			}
		})
	}
	asking.Wait()
	packet := make([]byte, 1<<16)
	for {
		n, err := unix.Read(socket, packet)
		if err != nil {
			return // nothing is left to be read
		}
		if bytes.Contains(packet[:n], []byte(name)) {
			t.Fatal("a question of the lab has left the machine")
		}
	}
}

// droppedIn counts the packets that a chain of a lab's table has dropped.
func droppedIn(t *testing.T, lab, chain string) (packets uint64) {
	t.Helper()
	conn := must.Get(nftables.New())(t)
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: "relapse-" + lab}
	for _, r := range must.Get(conn.GetRules(table, &nftables.Chain{Name: chain, Table: table}))(t) {
		for _, e := range r.Exprs {
			if counter, ok := e.(*expr.Counter); ok {
				packets += counter.Packets
			}
		}
	}
	return packets
}
