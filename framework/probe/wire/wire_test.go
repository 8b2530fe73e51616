package wire

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestRuns(t *testing.T) {
	for _, c := range []struct {
		name string
		add  []uint32
		want Runs
	}{
		{"none", nil, nil},
		{"one run", []uint32{3, 4, 5}, Runs{{3, 5}}},
		{"a gap", []uint32{0, 2, 3}, Runs{{0, 0}, {2, 3}}},
		{"reordered and twice", []uint32{1, 3, 2, 2}, Runs{{1, 1}, {3, 3}, {2, 2}, {2, 2}}},
		{"no run wraps around", []uint32{1<<32 - 1, 0}, Runs{{1<<32 - 1, 1<<32 - 1}, {0, 0}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r Runs
			for _, slot := range c.add {
				r.Add(slot)
			}
			must.Equal(t, "runs", c.want, r)
			must.Equal(t, "All", c.add, slices.Collect(r.All))
			must.Equal(t, "Len", len(c.add), r.Len())
		})
	}
}

func TestPacketRoundTrip(t *testing.T) {
	want := Packet{Kind: ReplyPacket, Set: 1 << 50, Probe: 7, Slot: 1<<32 - 1, Sent: 123456789}
	b := make([]byte, PacketSize)
	want.Put(b)
	must.Equal(t, "", want, must.Get(ParsePacket(b))(t))
	for name, bad := range map[string][]byte{
		"empty":      {},
		"short":      b[:31],
		"long":       append(slices.Clone(b), 0),
		"magic":      append([]byte("GET "), b[4:]...),
		"no kind":    append(slices.Concat(b[:4], []byte{0}), b[5:]...),
		"other kind": append(slices.Concat(b[:4], []byte{3}), b[5:]...),
	} {
		_, err := ParsePacket(bad)
		must.Equal(t, name+" is read", false, err == nil)
	}
}

func TestDecodeRequestRefuses(t *testing.T) {
	for _, c := range []struct{ name, line, want string }{
		{"no JSON", `start`, "invalid character"},
		{"unknown", `{"n":1,"op":"dance"}`, `unknown request "dance"`},
		{"no probe", `{"n":1,"op":"start"}`, "without a probe"},
		{"no set", `{"n":1,"op":"hello"}`, "number of a set"},
		{"login to no database", `{"n":1,"op":"start","probe":{"id":1,"kind":"tcp","to":"127.0.0.1:7","interval":10000000,"timeout":1,"login":{"user":"app"}}}`, "a login is for kind mysql"},
		{"database without a login", `{"n":1,"op":"start","probe":{"id":1,"kind":"mysql","to":"127.0.0.1:7","interval":10000000,"timeout":1}}`, "which must have one"},
		{"no lookup", `{"n":1,"op":"start","probe":{"id":1,"kind":"dns","to":"127.0.0.1:7","interval":10000000,"timeout":1}}`, "a lookup is for kind dns"},
		{"no server", `{"n":1,"op":"start","probe":{"id":1,"kind":"dns","lookup":{"name":"x.","server":""},"to":"127.0.0.1:7","interval":10000000,"timeout":1}}`, `lookup of "x."`},
	} {
		t.Run(c.name, func(t *testing.T) { must.Fail(t, must.Err(DecodeRequest([]byte(c.line))), c.want) })
	}
}

func TestClock(t *testing.T) {
	mono := Monotonic()
	if d := time.Since(TimeOf(mono)); d < 0 || d > time.Second {
		t.Errorf("CLOCK_MONOTONIC of just now is %s ago", d)
	}
}

// FuzzDecodeMessage: decoding never panics, and never accepts a message that the harness cannot handle.
func FuzzDecodeMessage(f *testing.F) {
	var b bytes.Buffer
	_ = Encode(&b, Message{At: 1, Report: &Report{
		Probes: []Sender{{ID: 1, Sent: Runs{{0, 9}}, Got: Runs{{0, 1}}, RTT: []uint32{5, 6}, Errors: map[string]int{"EPERM": 1}}},
		Seen:   []Responder{{ID: 1, Source: netip.MustParseAddr("10.0.0.1"), Seen: Runs{{0, 9}}}},
	}})
	f.Add(b.Bytes())
	f.Add([]byte(`{"n":1,"at":5,"epoch":10}`))
	f.Add([]byte(`{"report":{"probes":[{"sent":[[0,4294967295]]}]}}`))
	f.Add([]byte(`{"report":{"probes":[{"got":[[5,4]],"rtt":[]}]}}`))
	f.Add([]byte(`{"report":{"probes":[{"sent":[[0,1]],"logins":[{"client":"app@10.0.0.1","address":"10.0.0.1","denied":"no","slots":[[0,4294967295]]}]}]}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := DecodeMessage(line)
		if err != nil || m.Report == nil {
			return
		}
		for _, p := range m.Report.Probes {
			must.Equal(t, "", len(p.RTT), p.Got.Len())
			for _, run := range slices.Concat(p.Sent, p.Got) {
				if run[1] < run[0] || run[1]-run[0] >= maxRun {
					t.Errorf("run %v", run)
				}
			}
		}
	})
}
