package probe

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/must"
)

// base is when slot 0 of every drawn timeline was due.
var base = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ms(n int) time.Time { return base.Add(time.Duration(n) * time.Millisecond) }

// draw makes a timeline of 10 ms slots from a drawing, one character a slot:
//
//	.  answered        q  lost request
//	_  not sent        r  lost reply
//
// as reported up to the given number of milliseconds.
func draw(slots string, reported int) *Timeline {
	t := &Timeline{Record: Record{Probe: Probe{From: "a", To: "b"}.WithDefaults(), Started: base, Reported: ms(reported), FarReported: ms(reported)}}
	for i, c := range slots {
		slot := uint32(i)
		if c != '_' {
			t.sent.add(slot)
		}
		if c == '.' || c == 'r' {
			t.seen.add(slot)
		}
		if c == '.' {
			t.answered.add(slot)
		}
	}
	return t
}

func TestWindows(t *testing.T) {
	for _, c := range []struct {
		name, slots string
		reported    int
		gap         time.Duration
		want        []Window
	}{
		{"no loss", "........", 1000, 0, nil},
		{"nothing sent", "", 1000, 0, nil},
		{"one packet", "..q..", 1000, 0, []Window{{ms(20), ms(20), 2, 2, 1}}},
		{"two windows", ".qq.r.", 1000, 0, []Window{{ms(10), ms(20), 1, 2, 2}, {ms(40), ms(40), 4, 4, 1}}},
		{"two merged", ".qq.r.", 1000, 20 * time.Millisecond, []Window{{ms(10), ms(40), 1, 4, 3}}},
		{"too far apart to merge", "q..q.", 1000, 20 * time.Millisecond, []Window{{ms(0), ms(0), 0, 0, 1}, {ms(30), ms(30), 3, 3, 1}}},
		{"slots that were not sent do not end one", "q___q.", 1000, 0, []Window{{ms(0), ms(40), 0, 4, 2}}},
		{"open", "..qq", 1000, 0, []Window{{ms(20), ms(30), 2, 3, 2}}},
		{"patience has not run out", "..qq", 269, 0, nil},
		{"patience has run out for the first", "..qq", 270, 0, []Window{{ms(20), ms(20), 2, 2, 1}}},
	} {
		t.Run(c.name, func(t *testing.T) { must.Equal(t, "windows", c.want, draw(c.slots, c.reported).Windows(c.gap)) })
	}
}

func TestClean(t *testing.T) {
	for _, c := range []struct {
		name, slots string
		reported    int
		want        Clean // zero: none
	}{
		{"nothing sent", "", 1000, Clean{}},
		{"from the start", "....", 40, Clean{ms(0), ms(30), 4}},
		{"the last ones are under way", "...qq", 50, Clean{ms(0), ms(20), 3}},
		{"the last ones are lost", "...qq", 500, Clean{}},
		{"recovered", "..qq...", 1000, Clean{ms(40), ms(60), 3}},
		{"recovered before the loss was certain", "..qq...", 70, Clean{ms(40), ms(60), 3}},
		{"first answer after an outage, more under way", "..qq.qq", 70, Clean{ms(40), ms(40), 1}},
		{"slots that were not sent do not break it", "q..__..", 1000, Clean{ms(10), ms(60), 4}},
		{"nothing answered yet", "qqq", 30, Clean{}},
	} {
		got, ok := draw(c.slots, c.reported).Clean()
		must.Equal(t, c.name, c.want, got)
		must.Equal(t, c.name, c.want != Clean{}, ok)
	}
}

// What is unanswered is excused only for as long as the far end did not run.
func TestFarEndThatStoodStill(t *testing.T) {
	for _, c := range []struct {
		name, slots    string
		from, until    int // of the standstill, in ms
		lost, unjudged int
		clean          int // packets of the run at the end
	}{
		{name: "all of it", slots: "..qqq..", from: 20, until: 50, unjudged: 3, clean: 4},
		{name: "lost before and after", slots: strings.Repeat("q", 50) + ".", from: 200, until: 400, lost: 21, unjudged: 29, clean: 1},
		{name: "what was answered in time is received", slots: ".......", from: 20, until: 50, clean: 7},
	} {
		line := draw(c.slots, 5000)
		line.FarStill = []StillTime{{ms(c.from), ms(c.until)}}
		counts := line.Counts()
		run, _ := line.Clean()
		must.Equal(t, c.name, [3]int{c.lost, c.unjudged, c.clean}, [3]int{counts.Lost, counts.Unjudged, run.Packets})
	}
}

// What is unanswered is excused if its sender did not run on from there, and nothing that
// was sent before or later.
func TestSenderThatStoodStill(t *testing.T) {
	line := draw(".qqq.....", 5000) // one each 10 ms
	line.Still = []StillTime{{ms(21), ms(30)}}
	must.Equal(t, "lost, unjudged", [2]int{2, 1}, [2]int{line.Counts().Lost, line.Counts().Unjudged})
}

func TestKnown(t *testing.T) {
	all := strings.Repeat(".", 200)
	for _, c := range []struct {
		name, slots string
		edit        func(*Timeline)
		want        bool
	}{
		{"both have reported", "..qr", func(*Timeline) {}, true},
		{"a reply may still come", "...r", func(t *Timeline) { t.Reported = ms(1099) }, false},
		{"a request may still be under way", "q...", func(t *Timeline) { t.Reported = ms(1099) }, false},
		{"each was answered", all, func(t *Timeline) { t.Reported = ms(110) }, true},
		{"each was answered, and the last may not have been sent", all, func(t *Timeline) { t.Reported = ms(109) }, false},
		{"each was answered, and the far end says nothing", all, func(t *Timeline) { t.Reported, t.FarReported = ms(110), ms(99) }, false},
		{"the last was not answered", all[:9] + "r", func(t *Timeline) { t.Reported = ms(1099) }, false},
		{"one that was sent later was not answered", all[:10] + "r", func(t *Timeline) { t.Reported = ms(110) }, true},
		{"some were turned away, or had nowhere to go", "..qqq", func(t *Timeline) {
			t.Reported = ms(110)
			t.denied.add(2)
			t.unresolved.add(3)
			t.unresolved.add(4)
		}, true},
		{"one had where to go, and no answer", "..qqq", func(t *Timeline) {
			t.Reported = ms(1099)
			t.denied.add(2)
			t.unresolved.add(3)
			t.resolved.add(4)
		}, false},
		{"some were not sent", "_.__.", func(t *Timeline) { t.Reported = ms(110) }, true},
		{"the far end says nothing", "....", func(t *Timeline) { t.FarReported = ms(99) }, false},
		{"the far end is gone", "..q.", func(t *Timeline) { t.FarReported, t.FarGone = ms(50), ms(60) }, true},
		{"the far end is no agent", "..q.", func(t *Timeline) { t.FarReported = time.Time{} }, true},
		{"stopped", "..q.", func(t *Timeline) { t.Reported, t.FarReported, t.Stopped = ms(50), ms(50), ms(50) }, true},
	} {
		line := draw(c.slots, 1100)
		c.edit(line)
		must.Equal(t, c.name, c.want, line.Known(ms(100)))
	}
	// Sets are kept in words of 64.
	for _, unanswered := range []int{0, 62, 63, 64, 127, 128, 199} {
		line := draw(all[:unanswered]+"q"+all[unanswered+1:], 2100)
		for before := range 201 {
			must.Equal(t, [2]int{unanswered, before}, before <= unanswered, line.unanswered(uint32(before)) == 0)
		}
	}
}

func TestSide(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Timeline)
		slot uint32
		want Side
	}{
		{"the far end reports and did not see it", func(*Timeline) {}, 0, Request},
		{"the far end saw it", func(*Timeline) {}, 1, Reply},
		{"the far end has not reported yet", func(t *Timeline) { t.FarReported = ms(100) }, 0, Unknown},
		{"the far end is no agent", func(t *Timeline) { t.FarReported = time.Time{} }, 0, Unknown},
		{"TCP", func(t *Timeline) { t.Probe.Protocol = TCP }, 1, Unknown},
		{"the far end was gone", func(t *Timeline) { t.FarReported, t.FarGone = ms(-150), ms(-50) }, 0, Request},
		{"the far end went before it could report", func(t *Timeline) { t.FarReported, t.FarGone = ms(-50), ms(50) }, 0, Unknown},
		{"it was gone before it ever reported", func(t *Timeline) { t.FarReported, t.FarGone = time.Time{}, ms(-50) }, 0, Request},
	} {
		line := draw("qr.", 1000)
		c.edit(line)
		must.Equal(t, c.name, c.want, line.side(c.slot))
	}
}

// A login that is turned away is lost at once, with the address that the server saw.
func TestLogins(t *testing.T) {
	pod, node := netip.MustParseAddr("10.20.30.35"), netip.MustParseAddr("10.4.94.31")
	line := &Timeline{Record: Record{Probe: Probe{From: "a", To: "db", Protocol: MySQL, Login: &Login{User: "app"}}.WithDefaults(), Started: base, Reported: ms(450)}}
	const said = "Access denied for user 'app'@'10.4.94.31' (using password: YES)"
	must.NoError(t, line.addSender(wire.Sender{
		Sent: wire.Runs{{0, 4}}, Got: wire.Runs{{0, 1}}, RTT: []uint32{900, 800},
		Logins: []wire.Answer{
			{Client: "app@10.20.30.35", Address: pod, Account: "app@10.20.30.0/255.255.255.0", Slots: wire.Runs{{0, 1}}},
			{Client: "app@10.4.94.31", Address: node, Denied: said, Slots: wire.Runs{{2, 3}}},
		},
	}, ms(450)))
	// Slot 4 was sent 50 ms ago, and slot 3, which Patience would still wait for, is lost.
	must.Equal(t, "", Counts{Sent: 5, Received: 2, Lost: 2, Denied: 2, InFlight: 1}, line.Counts())
	first, _ := line.FirstOutage(base, 0)
	must.Equal(t, "first loss", ms(200), first)
	must.Equal(t, "windows", []Window{{ms(200), ms(300), 2, 3, 2}}, line.Windows(0))
	sources := []Source{
		{Address: pod, First: ms(0), Packets: 2, Last: ms(100), Client: "app@10.20.30.35", Account: "app@10.20.30.0/255.255.255.0"},
		{Address: node, First: ms(200), Packets: 2, Last: ms(300), Client: "app@10.4.94.31", Denied: 2, Error: said},
	}
	must.Equal(t, "sources", sources, line.Sources)
	must.Contain(t, line.String(), "2 lost (2 denied: "+said+")")
	clone := line.clone()
	line.denied.add(4)
	must.Equal(t, "the copy changes with the original", false, clone.denied.has(4))
	must.Fail(t, line.addSender(wire.Sender{Logins: []wire.Answer{{Address: pod, Slots: wire.Runs{{0, 1000}}}}}, ms(450))) // not due yet
}

func TestFirstLossAndBetween(t *testing.T) {
	line := draw("..q.._.r..", 1000)
	for _, c := range []struct {
		name  string
		since time.Time
		want  time.Time // zero: none
	}{
		{"from the start of time", time.Time{}, ms(20)},
		{"at it", ms(20), ms(20)},
		{"just after it", ms(20).Add(1), ms(70)},
		{"after all", ms(71), time.Time{}},
		{"in a distant future", base.AddDate(400, 0, 0), time.Time{}},
	} {
		got, ok := line.FirstOutage(c.since, 0)
		must.Equal(t, c.name, []any{c.want, !c.want.IsZero()}, []any{got, ok})
	}
	must.Equal(t, "between", Counts{Sent: 4, Received: 3, Lost: 1, LostRequest: 1, Skipped: 1}, line.Between(ms(20), ms(70)))
	must.Equal(t, "all", Counts{Sent: 9, Received: 7, Lost: 2, LostRequest: 1, LostReply: 1, Skipped: 1}, line.Counts())
}

func TestFirstOutage(t *testing.T) {
	const lasting = 30 * time.Millisecond
	for _, c := range []struct {
		name, slots string
		want        int // slot
		ok          bool
	}{
		{"no loss", "......", 0, false},
		{"single packets", ".q.r.q..q.", 0, false},
		{"not long enough", ".qqq.qqq..", 0, false},
		{"just long enough", ".qqqq.", 1, true},
		{"the second is long enough", ".qq.qqqqq.", 4, true},
		{"slots that were not sent do not end it", ".q_q_q.", 1, true},
		{"a sender that did not run knows nothing", ".q___q.", 0, false},
		{"nor after it", ".qq____qq", 0, false},
		{"but what it knew before and after it counts", ".qq____qqq.", 1, true},
		{"nor do they make it longer", ".q____.", 0, false},
		{"it goes on", "..qqqqqqqq", 2, true},
		{"it began before", "qqqqqqqq", 0, true},
	} {
		line := draw(c.slots, 1000)
		line.Probe.Timeout = 20 * time.Millisecond
		began, ok := line.FirstOutage(base, lasting)
		if ok != c.ok || ok && began != ms(10*c.want) {
			t.Errorf("%s: %s, %v; want slot %d, %v", c.name, began, ok, c.want, c.ok)
		}
	}
	// Packets whose outcome is not known are neither.
	began, ok := draw(".qqqqq", 280).FirstOutage(base, lasting)
	must.Equal(t, began, false, ok)
}

func TestReplies(t *testing.T) {
	for _, c := range []struct {
		name string
		got  wire.Runs
		rtt  []uint32 // µs
		want Counts
	}{
		{"in time", wire.Runs{{0, 2}}, []uint32{100, 200, 300}, Counts{Sent: 3, Received: 3}},
		{"none", nil, nil, Counts{Sent: 3, Lost: 3}},
		{"after the patience, before the timeout", wire.Runs{{0, 2}}, []uint32{100, 999_999, 100}, Counts{Sent: 3, Received: 3}},
		{"after the timeout", wire.Runs{{0, 2}}, []uint32{100, 1_000_001, 100}, Counts{Sent: 3, Received: 2, Lost: 1}},
		{"twice", wire.Runs{{0, 0}, {0, 2}}, []uint32{100, 100, 100, 100}, Counts{Sent: 3, Received: 3}},
		{"reordered", wire.Runs{{2, 2}, {0, 1}}, []uint32{100, 100, 100}, Counts{Sent: 3, Received: 3}},
		{"to what was never sent", wire.Runs{{0, 3}}, []uint32{100, 100, 100, 100}, Counts{Sent: 3, Received: 3}},
	} {
		line := draw("", 2000)
		line.FarReported = time.Time{}
		for _, r := range []wire.Sender{{Sent: wire.Runs{{0, 2}}}, {Got: c.got, RTT: c.rtt}} {
			must.NoError(t, line.addSender(r, ms(2000)))
		}
		must.Equal(t, c.name, c.want, line.Counts())
	}
}

func TestImpossibleSlotsAreRefused(t *testing.T) {
	line := draw("", 0)
	far := wire.Runs{{1 << 30, 1 << 30}}
	must.Fail(t, line.addSender(wire.Sender{Sent: far}, ms(1000)))
	must.Fail(t, line.addResponder(wire.Responder{Seen: far}, ms(1000)))
}

func TestSources(t *testing.T) {
	pod, node := netip.MustParseAddr("10.5.115.7"), netip.MustParseAddr("10.4.94.21")
	line := draw("", 1000)
	for _, r := range []wire.Responder{
		{Source: pod, Seen: wire.Runs{{0, 9}}, TTL: []wire.TTL{{62, 10}}},
		{Source: node, Seen: wire.Runs{{10, 14}}, TTL: []wire.TTL{{62, 5}}},
		{Source: pod, Seen: wire.Runs{{15, 15}}, TTL: []wire.TTL{{63, 1}}},
	} {
		must.NoError(t, line.addResponder(r, ms(1000)))
	}
	want := []Source{{Address: pod, First: ms(0), Packets: 11}, {Address: node, First: ms(100), Packets: 5}}
	must.Equal(t, "sources", want, line.Sources)
	must.Equal(t, "TTLs", map[uint8]int{62: 15, 63: 1}, line.RequestTTL)
}

func TestString(t *testing.T) {
	must.Equal(t, "", "a->b: 6 sent, 4 received, 2 lost (2 requests, 0 replies), last from 03:04:05.020 to 03:04:05.030, "+
		"clean since 03:04:05.040, reported up to 03:04:06.000", draw("..qq..", 1000).String())
}

// What was not sent, and what has no known outcome, is no gap, but silence: no answer.
func TestLongest(t *testing.T) {
	gap, silence := (*Timeline).LongestGap, (*Timeline).LongestSilence
	for _, c := range []struct {
		name         string
		longest      func(line *Timeline, from, to time.Time, oneWay bool) Gap
		slots        string
		from, to     int // ms
		want, oneWay time.Duration
		began        int
	}{
		{"no loss", gap, "......", 0, 1000, 0, 0, 0},
		{"one packet", gap, "..q...", 0, 1000, 10 * time.Millisecond, 10 * time.Millisecond, 20},
		{"the longest of two", gap, ".q..qqq..", 0, 1000, 30 * time.Millisecond, 30 * time.Millisecond, 40},
		{"a reply that was lost is no gap one way", gap, ".rr.q.", 0, 1000, 20 * time.Millisecond, 10 * time.Millisecond, 10},
		{"slots that were not sent do not end it", gap, ".q__q.", 0, 1000, 40 * time.Millisecond, 40 * time.Millisecond, 10},
		{"up to the last that was sent", gap, "..qq", 0, 1000, 20 * time.Millisecond, 20 * time.Millisecond, 20},
		{"one that goes on after the time is whole", gap, "..qqqq.", 0, 30, 40 * time.Millisecond, 40 * time.Millisecond, 20},
		{"of one that began before it is the rest", gap, "..qqqq.", 40, 1000, 20 * time.Millisecond, 20 * time.Millisecond, 40},
		{"one that begins after the time is another's", gap, "...q.", 0, 30, 0, 0, 0},
		{"all is answered", silence, "......", 0, 60, 0, 0, 0},
		{"a loss", silence, "..q...", 0, 60, 10 * time.Millisecond, 10 * time.Millisecond, 20},
		{"slots that were not sent", silence, ".____.", 0, 60, 40 * time.Millisecond, 40 * time.Millisecond, 10},
		{"slots that were not sent, and then a loss", silence, ".__q.", 0, 50, 30 * time.Millisecond, 30 * time.Millisecond, 10},
		{"a lost reply is an answer one way", silence, ".rr__.", 0, 60, 40 * time.Millisecond, 20 * time.Millisecond, 10},
		{"a sender that ends before the time", silence, "..", 0, 100, 80 * time.Millisecond, 80 * time.Millisecond, 20},
		{"silence that goes on after the time", silence, ".____.", 0, 20, 40 * time.Millisecond, 40 * time.Millisecond, 10},
		{"silence that begins after the time", silence, "..__.", 0, 20, 0, 0, 0},
	} {
		line := draw(c.slots, 1000)
		got := c.longest(line, ms(c.from), ms(c.to), false)
		if got.Lasted != c.want || got.Lasted > 0 && !got.Began.Equal(ms(c.began)) {
			t.Errorf("%s: %s from %s, want %s from %s", c.name, got.Lasted, got.Began, c.want, ms(c.began))
		}
		must.Equal(t, c.name+": one way", c.oneWay, c.longest(line, ms(c.from), ms(c.to), true).Lasted)
	}
	must.Equal(t, "a probe that was not started", 50*time.Millisecond, (&Timeline{}).LongestSilence(ms(0), ms(50), false).Lasted)
}

func TestOneWay(t *testing.T) {
	line := draw("..rrq_.q", 1000)
	must.Equal(t, "", Counts{Sent: 7, Received: 5, Lost: 2, LostRequest: 2, Skipped: 1}, line.OneWay(ms(0), ms(1000)))
	must.Equal(t, "two requests that arrived", Counts{Sent: 2, Received: 2}, line.OneWay(ms(20), ms(40)))
	line.FarReported = time.Time{} // it has not reported
	line.seen = nil
	want := Counts{Sent: 7, Received: 3, Unjudged: 4, Skipped: 1}
	must.Equal(t, "where the far end does not report", want, line.OneWay(ms(0), ms(1000)))
}
