package bgp

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

// recorded are the BGP protocols of the recordings: BIRD 1.6.8 with Calico's
// bgp_template, one neighbour that is up, one that never answers, one that is
// disabled and one that there is no route to.
var recorded = []BIRDProtocol{
	{Name: "Mesh_172_30_9_2", Proto: "BGP", BGPState: BIRDEstablished,
		Neighbor: netip.MustParseAddr("172.30.9.2"), PeerASN: 64512},
	{Name: "Mesh_172_30_9_3", Proto: "BGP", BGPState: "Passive",
		Neighbor: netip.MustParseAddr("172.30.9.3"), PeerASN: 64512},
	{Name: "Node_172_30_9_4", Proto: "BGP", BGPState: "Down", Neighbor: netip.MustParseAddr("172.30.9.4"), PeerASN: 64999},
	{Name: "Mesh_192_0_2_9", Proto: "BGP", BGPState: "Active",
		Neighbor: netip.MustParseAddr("192.0.2.9"), PeerASN: 64512, LastError: "Socket: Network is unreachable"},
}

// checkRecorded looks at what was read from a recording, whenever it was made.
func checkRecorded(t *testing.T, got []BIRDProtocol) {
	t.Helper()
	var names []string
	for i := range got {
		names = append(names, got[i].Name)
		if !strings.HasPrefix(got[i].Since, "12:24:1") {
			t.Errorf("%s is as it is since %q", got[i].Name, got[i].Since)
		}
		got[i].Since = ""
	}
	if want := "kernel1 device1 direct1"; len(got) != 7 || strings.Join(names[:3], " ") != want {
		t.Fatalf("protocols are %q, want %s and four more", names, want)
	}
	must.Equal(t, "", recorded, got[3:], byValue)
}

func TestBIRDProtocols(t *testing.T) {
	checkRecorded(t, must.Get(BIRDProtocols(read(t, "bird-1.6.8-protocols.txt")))(t))
}

func TestBIRDProtocolsForms(t *testing.T) {
	const heading = "name     proto    table    state  since       info\n"
	for _, c := range []struct {
		name, text string
		want       BIRDProtocol
		err        string
	}{
		{name: "a date", text: heading + "Mesh_10_0_0_1 BGP      master   up     2026-11-19  Established   \n", want: BIRDProtocol{Name: "Mesh_10_0_0_1", Proto: "BGP", Since: "2026-11-19"}},
		{name: "a date and a time", text: heading + "Mesh_10_0_0_1 BGP      master   up     2026-11-19 12:24:13  Established   \n", want: BIRDProtocol{Name: "Mesh_10_0_0_1", Proto: "BGP", Since: "2026-11-19 12:24:13"}},
		{name: "BIRD 2", text: "BIRD 2.0.12 ready.\nName       Proto      Table      State  Since         Info\nbgp1       BGP        ---        up     12:24:13.055  Established\n", want: BIRDProtocol{Name: "bgp1", Proto: "BGP", Since: "12:24:13.055"}},
		{name: "nothing", err: "no table of protocols"},
		{name: "another answer", text: "Access restricted\nbird: unknown\n", err: "line 2 of BIRD's protocols: want the table's heading"},
		{name: "a short row", text: heading + "Mesh BGP master\n", err: "line 2 of BIRD's protocols: want name, proto"},
		{name: "details first", text: heading + "  BGP state: Idle\n", err: "details of no protocol"},
		{name: "a bad neighbour", text: heading + "Mesh BGP master up 12:24:13\n    Neighbor address: here\n", err: "protocol Mesh: Neighbor address: ParseAddr"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := BIRDProtocols(c.text)
			if c.err != "" {
				must.Fail(t, err, c.err)
				return
			}
			must.NoError(t, err)
			must.Equal(t, "protocols", []BIRDProtocol{c.want}, got, byValue)
		})
	}
}

func FuzzBIRDProtocols(f *testing.F) {
	f.Add(read(f, "bird-1.6.8-protocols.txt"))
	f.Add("name proto table state since\nx BGP t up 2026-11-19 12:0")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := BIRDProtocols(text)
		if err != nil {
			return
		}
		for _, p := range all {
			if p.Name == "" || p.Proto == "" {
				t.Errorf("a protocol without a name: %+v", p)
			}
		}
	})
}

// bird answers one client as a recorded BIRD did.
func bird(t *testing.T, answer func(net.Conn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bird.ctl")
	l := must.Get(net.Listen("unix", path))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		answer(conn)
	}()
	return path
}

func TestAskBIRD(t *testing.T) {
	greeting, rest, _ := strings.Cut(read(t, "bird-1.6.8-control.txt"), "\n")
	asked := make(chan string, 1)
	text := must.Get(AskBIRD(t.Context(), bird(t, func(conn net.Conn) {
		_, _ = io.WriteString(conn, greeting+"\n")
		command, _ := bufio.NewReader(conn).ReadString('\n')
		asked <- command
		_, _ = io.WriteString(conn, rest)
	}), BIRDShowProtocols))(t)
	got := must.Get(BIRDProtocols(text))(t)
	must.Equal(t, "asked", "show protocols all\n", <-asked)
	checkRecorded(t, got)
}

func TestAskBIRDErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(net.Conn)
		want   string
	}{
		{"goes away", func(net.Conn) {}, "waiting for its greeting: unexpected EOF"},
		{"refuses", func(conn net.Conn) {
			_, _ = io.WriteString(conn, "0001 BIRD 1.6.8 ready.\n")
			_, _ = bufio.NewReader(conn).ReadString('\n')
			_, _ = io.WriteString(conn, "9001 syntax error\n")
		}, "show protocols all: it says: syntax error"},
		{"hangs", func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }, "i/o timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			must.Fail(t, must.Err(AskBIRD(ctx, bird(t, c.answer), BIRDShowProtocols)), c.want)
		})
	}
}
