package probe

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// Record is what is known of a probe besides the outcome of each packet.
//
// Times are the slots' times: a packet left at most one interval after that, mostly some tens of
// microseconds.
type Record struct {
	Probe  Probe          `json:"probe"`
	Target netip.AddrPort `json:"target"`
	// Started is when slot 0 was due; zero if the probe was never started.
	Started time.Time `json:"started,omitzero"`
	// Reported is up to when the sender has reported all that it knows. What was
	// sent later is not in here yet.
	Reported time.Time `json:"reported,omitzero"`
	// Stopped is when the probe was stopped, zero while it runs.
	Stopped time.Time `json:"stopped,omitzero"`
	// Gone is when the sender's end went away, and GoneWhy the reason.
	Gone    time.Time `json:"gone,omitzero"`
	GoneWhy string    `json:"gone_why,omitempty"`

	// RequestTTL counts packets by the TTL that they arrived with at the far end. They start out
	// with 64.
	RequestTTL map[uint8]int `json:"request_ttl,omitempty"`
	// Sources are the addresses that the far end saw the probe come from, in
	// order of their first appearance. A MySQL server reports them itself.
	Sources []Source `json:"sources,omitempty"`
	// Errors counts the packets that the sender's kernel refused (ENETUNREACH, EPERM and so on) or
	// that it was told were refused (ECONNREFUSED), by errno, and the lookups that failed, by
	// reason. They are lost, too, but for the refused ones of a probe with RefusalAnswers.
	Errors map[string]int `json:"errors,omitempty"`

	// Still are the times in which the sender's agent did not run.
	Still []StillTime `json:"still,omitempty"`

	// FarReported, FarGone and FarStill are what Reported, Gone and Still are, for the far end.
	// They are zero if the far end is no agent of the set.
	FarReported time.Time   `json:"far_reported,omitzero"`
	FarGone     time.Time   `json:"far_gone,omitzero"`
	FarStill    []StillTime `json:"far_still,omitempty"`
}

// StillTime is a time in which an agent did not run.
type StillTime struct {
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
}

// Timeline is the outcome of a probe's packets, as of one moment. The ones
// that a Set returns are copies and do not change. Their times carry a monotonic reading of this
// machine and compare with time.Now.
type Timeline struct {
	Record
	sent, answered, seen, denied slots
	resolved, unresolved, broken slots
}

// Source is an address that a probe's packets were seen to come from.
type Source struct {
	Address netip.Addr `json:"address"`
	// First is when the first of these packets was sent.
	First   time.Time `json:"first"`
	Packets int       `json:"packets"`
	// The fields from here on are set only if the far end is a MySQL server.
	// Last is when the last of the packets was sent. Client is USER(), Account
	// is CURRENT_USER(): the account that admitted the client. Denied counts the
	// denied logins, and Error is the server's message for the last of them.
	Last    time.Time `json:"last,omitzero"`
	Client  string    `json:"client,omitempty"`
	Account string    `json:"account,omitempty"`
	Denied  int       `json:"denied,omitempty"`
	Error   string    `json:"error,omitempty"`
}

// Side says which packet of an exchange was lost.
type Side string

// Sides of a loss.
const (
	// Request: the far end never saw it.
	Request Side = "request"
	// Reply: the far end saw the request, its answer never came back.
	Reply Side = "reply"
	// Denied: the server denied the login.
	Denied Side = "denied"
	// Unresolved: the lookup gave no address to send to.
	Unresolved Side = "unresolved"
	// Resolved: the lookup gave an address, and that did not answer.
	Resolved Side = "resolved"
	// Unknown: the far end is no agent, or has not reported yet.
	Unknown Side = "unknown"
)

// Window is a time of loss.
type Window struct {
	// Start and End are when the first and the last lost packet were sent,
	// First and Last their sequence numbers.
	Start, End  time.Time
	First, Last uint32
	Lost        int // packets
}

// Counts are packets.
type Counts struct {
	Sent     int
	Received int
	Lost     int
	// LostRequest and LostReply are the losses whose side is known.
	LostRequest int
	LostReply   int
	// Denied are the losses that were denied logins.
	Denied int
	// Unresolved and Resolved are the losses of a DNS probe without and with
	// an address to connect to.
	Unresolved int
	Resolved   int
	// Unjudged are unanswered, and were sent while an agent of the two did not
	// run: whether they were lost is unknown.
	Unjudged int
	// InFlight were sent less than Patience before the last report.
	InFlight int
	// Skipped are slots for which the sender woke up too late. They were not
	// sent, and many of them make a probe that proves little.
	Skipped int
}

// Clean is an unbroken run of answered packets.
type Clean struct {
	// Since and Until are when the first and the last of them were sent.
	Since, Until time.Time
	Packets      int
}

type outcome int

const (
	skipped outcome = iota
	received
	inFlight
	unjudged
	lost
)

func (t *Timeline) outcome(slot uint32) outcome {
	switch {
	case !t.sent.has(slot):
		return skipped
	case t.answered.has(slot):
		return received
	case t.denied.has(slot), t.unresolved.has(slot):
		return lost
	case t.Reported.Sub(t.at(slot)) < Patience:
		return inFlight
	case t.stoodStill(t.at(slot)), t.farStoodStill(t.at(slot)):
		return unjudged
	}
	return lost
}

// stoodStill says whether the sender's agent stopped running between taking the time of a packet
// and sending it: when the packet left is unknown.
func (t *Timeline) stoodStill(at time.Time) bool {
	return slices.ContainsFunc(t.Still, func(s StillTime) bool {
		return at.After(s.From.Add(-t.Probe.Interval)) && at.Before(s.Until)
	})
}

// farStoodStill says whether the far end did not run when a packet of a time may have arrived.
func (t *Timeline) farStoodStill(at time.Time) bool {
	return slices.ContainsFunc(t.FarStill, func(s StillTime) bool {
		return at.After(s.From.Add(-wire.ReportInterval)) && at.Before(s.Until)
	})
}

// Known says whether the outcome of every packet that was sent before a time is final. Packets
// that the far end has received and not answered yet are not considered. Before the Timeout is
// over, an outcome is final if the packet was answered or denied. Both ends must have reported:
// a far end that has not reported may not have run.
func (t *Timeline) Known(before time.Time) bool {
	far := t.FarReported.IsZero() || !t.FarGone.IsZero() || !t.FarReported.Before(before)
	reported := !t.Reported.Before(before.Add(t.Probe.Timeout)) ||
		// A packet leaves within an interval of its slot.
		!t.Reported.Before(before.Add(t.Probe.Interval)) && t.unanswered(t.from(before)) == 0
	return !t.Stopped.IsZero() || reported && far
}

// unanswered counts the packets of the slots before end from which something may still come.
func (t *Timeline) unanswered(end uint32) int {
	n := 0
	for i := range min(int(end+63)/64, len(t.sent)) {
		open := t.sent[i] &^ (t.answered.word(i) | t.denied.word(i) | t.unresolved.word(i))
		if rest := int(end) - 64*i; rest < 64 {
			open &= 1<<rest - 1
		}
		n += bits.OnesCount64(open)
	}
	return n
}

func (t *Timeline) side(slot uint32) Side {
	switch {
	case t.denied.has(slot):
		return Denied
	case t.unresolved.has(slot):
		return Unresolved
	case t.resolved.has(slot):
		return Resolved
	case slices.Contains([]Protocol{TCP, MySQL, DNS}, t.Probe.Protocol), t.FarReported.IsZero() && t.FarGone.IsZero():
		return Unknown
	case t.seen.has(slot):
		return Reply
	case !t.FarGone.IsZero() && t.at(slot).After(t.FarReported):
		// Sent before it went, it may have been seen and not reported; sent
		// after, nothing was there to observe it.
		if t.at(slot).Before(t.FarGone) {
			return Unknown
		}
		return Request
	case t.FarReported.Sub(t.at(slot)) < Patience:
		return Unknown
	}
	return Request
}

func (t *Timeline) at(slot uint32) time.Time {
	return t.Started.Add(time.Duration(slot) * t.Probe.Interval)
}

func (t *Timeline) from(at time.Time) uint32 {
	d := at.Sub(t.Started)
	if d <= 0 {
		return 0
	}
	n := d / t.Probe.Interval
	if d%t.Probe.Interval > 0 {
		n++
	}
	return uint32(min(n, 1<<32-1))
}

// Counts returns the packets of the whole probe.
func (t *Timeline) Counts() Counts { return t.count(0, t.sent.end(), t.outcome) }

// Between returns the packets that were sent at or after from, and before to.
func (t *Timeline) Between(from, to time.Time) Counts {
	return t.count(t.from(from), min(t.from(to), t.sent.end()), t.outcome)
}

// Due returns how many packets the probe's rate asks for in a time, as far as
// the probe ran in it: from its start until it was stopped.
func (t *Timeline) Due(from, to time.Time) int {
	if !t.Stopped.IsZero() && t.Stopped.Before(to) {
		to = t.Stopped
	}
	if t.Started.IsZero() {
		return 0
	}
	return max(0, int(t.from(to))-int(t.from(from)))
}

// Broken returns how many connections of a stream broke at or after from, and before to.
func (t *Timeline) Broken(from, to time.Time) int {
	n := 0
	for slot := t.from(from); slot < min(t.from(to), t.broken.end()); slot++ {
		if t.broken.has(slot) {
			n++
		}
	}
	return n
}

func (t *Timeline) count(first, end uint32, outcomeOf func(slot uint32) outcome) Counts {
	var c Counts
	for slot := first; slot < end; slot++ {
		switch outcomeOf(slot) {
		case skipped:
			c.Skipped++
			continue
		case received:
			c.Received++
		case inFlight:
			c.InFlight++
		case unjudged:
			c.Unjudged++
		case lost:
			c.Lost++
			switch t.side(slot) {
			case Request:
				c.LostRequest++
			case Reply:
				c.LostReply++
			case Denied:
				c.Denied++
			case Unresolved:
				c.Unresolved++
			case Resolved:
				c.Resolved++
			}
		}
		c.Sent++
	}
	return c
}

// FirstOutage returns when the first outage began, at or after since, in which all packets were lost
// for as long as lasting. With 0 one lost packet is enough. A time in which no packet was sent for longer
// than the probe's timeout does not count: a sender that did not run knows nothing about the path.
func (t *Timeline) FirstOutage(since time.Time, lasting time.Duration) (began time.Time, out bool) {
	var last time.Time // packet of the outage, zero where there is none
	var lasted time.Duration
	for slot := t.from(since); slot < t.sent.end(); slot++ {
		switch t.outcome(slot) {
		case received:
			last = time.Time{}
		case lost:
			at := t.at(slot)
			if last.IsZero() {
				began, lasted = at, 0
			} else if more := at.Sub(last); more <= max(t.Probe.Timeout, t.Probe.Interval) {
				lasted += more
			}
			if last = at; lasted >= lasting {
				return began, true
			}
		}
	}
	return time.Time{}, false
}

// Windows returns the times of loss in order. Losses that are at most gap
// apart are one window: with gap 0, every answered packet ends one.
func (t *Timeline) Windows(gap time.Duration) []Window {
	var ws []Window
	answered := false // since the last loss
	for slot := range t.sent.end() {
		switch t.outcome(slot) {
		case received:
			answered = true
		case lost:
			at := t.at(slot)
			if len(ws) == 0 || answered && at.Sub(ws[len(ws)-1].End) > gap {
				ws = append(ws, Window{Start: at, First: slot})
			}
			w := &ws[len(ws)-1]
			w.End, w.Last = at, slot
			w.Lost++
			answered = false
		}
	}
	return ws
}

// Clean returns the unbroken run of answered packets that reaches up to the
// present; the package's comment says what breaks it. It returns false when the
// last packet whose outcome is known was lost, or when no packet was answered.
func (t *Timeline) Clean() (Clean, bool) {
	var c Clean
	for slot := t.sent.end(); slot > 0; {
		slot--
		switch f := t.outcome(slot); {
		case f == received:
			if c.Packets == 0 {
				c.Until = t.at(slot)
			}
			c.Since = t.at(slot)
			c.Packets++
		case f == lost, f == inFlight && c.Packets > 0:
			return c, c.Packets > 0
		}
	}
	return c, c.Packets > 0
}

func (c Clean) dense(interval time.Duration) bool {
	return Enough(c.Packets, int(c.Until.Sub(c.Since)/interval))
}

// Enough says whether so many packets prove something where a probe's rate asks for due: a tenth of
// them do. Two labs at once on two processors were seen to send 16% of the packets of a probe every
// 10 ms; a sender that does not run sends none.
func Enough(packets, due int) bool { return 10*packets >= due }

// String is the state of the probe in one line.
func (t *Timeline) String() string {
	var b strings.Builder
	c := t.Counts()
	fmt.Fprintf(&b, "%s: %d sent, %d received, %d lost", t.Probe.Name, c.Sent, c.Received, c.Lost)
	if c.Lost > 0 {
		switch {
		case c.Denied > 0:
			fmt.Fprintf(&b, " (%d denied: %s)", c.Denied, t.denial())
		case t.Probe.Protocol == DNS:
			fmt.Fprintf(&b, " (%d not resolved, %d resolved and not answered)", c.Unresolved, c.Resolved)
		default:
			fmt.Fprintf(&b, " (%d requests, %d replies)", c.LostRequest, c.LostReply)
		}
		ws := t.Windows(0)
		w := ws[len(ws)-1]
		fmt.Fprintf(&b, ", last from %s to %s", clock(w.Start), clock(w.End))
	}
	if run, ok := t.Clean(); ok {
		fmt.Fprintf(&b, ", clean since %s", clock(run.Since))
	}
	if n := t.broken.runs().Len(); n > 0 {
		fmt.Fprintf(&b, ", %d connections broken", n)
	}
	for errno, n := range t.Errors {
		fmt.Fprintf(&b, ", %d times %s", n, errno)
	}
	switch {
	case t.Started.IsZero():
		b.WriteString(", not started")
	case !t.Gone.IsZero():
		fmt.Fprintf(&b, ", endpoint %s gone since %s (%s)", t.Probe.From, clock(t.Gone), t.GoneWhy)
	default:
		fmt.Fprintf(&b, ", reported up to %s", clock(t.Reported))
	}
	return b.String()
}

func (t *Timeline) denial() string {
	said, last := "", time.Time{}
	for _, s := range t.Sources {
		if s.Denied > 0 && s.Last.After(last) {
			said, last = s.Error, s.Last
		}
	}
	return said
}

func clock(t time.Time) string { return t.Format("15:04:05.000") }

func (t *Timeline) clone() Timeline {
	c := *t
	c.RequestTTL = maps.Clone(t.RequestTTL)
	c.Sources, c.Errors = slices.Clone(t.Sources), maps.Clone(t.Errors)
	c.Still, c.FarStill = slices.Clone(t.Still), slices.Clone(t.FarStill)
	for _, set := range c.sets() {
		*set = slices.Clone(*set)
	}
	return c
}

func (t *Timeline) sets() []*slots {
	return []*slots{&t.sent, &t.answered, &t.seen, &t.denied, &t.resolved, &t.unresolved, &t.broken}
}

// ahead is by how much a report may name slots that are not due yet: two clocks agree only so well.
const ahead = time.Second

// check refuses slots that cannot have been sent by a time.
func (t *Timeline) check(runs wire.Runs, by time.Time) error {
	limit := t.from(by.Add(ahead))
	for _, run := range runs {
		if run[1] > limit {
			return fmt.Errorf("probe %s: slot %d is not due before %s", t.Probe.Name, run[1], clock(t.at(run[1])))
		}
	}
	return nil
}

func (t *Timeline) mark(set *slots, runs wire.Runs, by time.Time) error {
	if err := t.check(runs, by); err != nil {
		return err
	}
	for slot := range runs.All {
		set.add(slot)
	}
	return nil
}

func (t *Timeline) addSender(r wire.Sender, by time.Time) error {
	if err := t.mark(&t.sent, r.Sent, by); err != nil {
		return err
	}
	i := 0
	for slot := range r.Got.All {
		rtt := time.Duration(r.RTT[i]) * time.Microsecond
		i++
		// A reply may be to a packet that was never sent, and too late.
		if t.sent.has(slot) && rtt <= t.Probe.Timeout {
			t.answered.add(slot)
		}
	}
	for errno, n := range r.Errors {
		if t.Errors == nil {
			t.Errors = map[string]int{}
		}
		t.Errors[errno] += n
	}
	err := cmp.Or(t.mark(&t.resolved, r.Resolved, by), t.mark(&t.unresolved, r.Unresolved, by), t.mark(&t.broken, r.Broken, by))
	if err != nil {
		return err
	}
	for _, a := range r.Logins {
		if err := t.check(a.Slots, by); err != nil {
			return err
		}
		t.addLogins(a)
	}
	return nil
}

func (t *Timeline) addLogins(a wire.Answer) {
	if len(a.Slots) == 0 {
		return
	}
	s := t.source(a.Address, t.at(a.Slots[0][0]))
	if s == nil {
		return
	}
	s.Client = a.Client
	s.Packets += a.Slots.Len()
	if last := t.at(a.Slots[len(a.Slots)-1][1]); last.After(s.Last) {
		s.Last = last
	}
	if a.Account != "" {
		s.Account = a.Account
	}
	if a.Denied == "" {
		return
	}
	s.Denied += a.Slots.Len()
	s.Error = a.Denied
	for slot := range a.Slots.All {
		t.denied.add(slot)
	}
}

const maxSources = 64

func (t *Timeline) addResponder(r wire.Responder, by time.Time) error {
	if err := t.mark(&t.seen, r.Seen, by); err != nil || len(r.Seen) == 0 {
		return err
	}
	if t.RequestTTL == nil {
		t.RequestTTL = map[uint8]int{}
	}
	for _, ttl := range r.TTL {
		t.RequestTTL[uint8(ttl[0])] += int(ttl[1])
	}
	if s := t.source(r.Source, t.at(r.Seen[0][0])); s != nil {
		s.Packets += r.Seen.Len()
	}
	return nil
}

// source returns an address's entry in Sources, and makes it; nil if there is no room.
func (t *Timeline) source(addr netip.Addr, first time.Time) *Source {
	i := slices.IndexFunc(t.Sources, func(s Source) bool { return s.Address == addr })
	if i < 0 {
		if len(t.Sources) == maxSources {
			return nil
		}
		i = len(t.Sources)
		t.Sources = append(t.Sources, Source{Address: addr, First: first})
	}
	return &t.Sources[i]
}

// slots is a set of sequence numbers: one bit each, so that ten minutes of a
// probe at 10 ms take 7.5 kB.
type slots []uint64

func (s *slots) add(i uint32) {
	word := int(i / 64)
	if word >= len(*s) {
		*s = append(*s, make([]uint64, word+1-len(*s))...)
	}
	(*s)[word] |= 1 << (i % 64)
}

func (s slots) has(i uint32) bool { return s.word(int(i/64))&(1<<(i%64)) != 0 }

// word has the 64 numbers from 64*i on, one bit each.
func (s slots) word(i int) uint64 {
	if i < len(s) {
		return s[i]
	}
	return 0
}

// end returns the number after the highest in the set.
func (s slots) end() uint32 {
	for w := len(s) - 1; w >= 0; w-- {
		if s[w] != 0 {
			return uint32(w*64 + bits.Len64(s[w]))
		}
	}
	return 0
}

// Gap is a time in which a probe lost every packet whose outcome is known.
type Gap struct {
	// Began is when the first lost packet was sent.
	Began time.Time
	// Lasted is up to the next packet that was received, or else past the last lost packet.
	Lasted time.Duration
}

// LongestGap returns the longest gap with a packet that was sent at or after from, and
// before to. Of a gap that began before from the rest counts; a gap that ends after to counts as a
// whole. The zero Gap says that nothing was lost. With oneWay the outcomes are as in OneWay.
func (t *Timeline) LongestGap(from, to time.Time, oneWay bool) Gap {
	return t.longest(t.from(from), t.from(to), t.sent.end(), oneWay, func(f outcome) bool { return f == lost })
}

// LongestSilence returns the longest time with a packet that was due at or after from, and
// before to, in which no packet is known to have been answered: packets were lost, were not
// sent, or have no known outcome. Began is the first of these packets. It counts as a gap does if
// it began earlier or ends later. With oneWay the outcomes are as in OneWay.
func (t *Timeline) LongestSilence(from, to time.Time, oneWay bool) Gap {
	if t.Started.IsZero() {
		return Gap{from, to.Sub(from)}
	}
	within := t.from(to)
	return t.longest(t.from(from), within, max(within, t.sent.end()), oneWay, func(outcome) bool { return true })
}

// longest is the longest time without a received packet that begins with a slot of [first, within) and ends before
// end: from an outcome that lengthens it to the next received packet, or else past the last such outcome.
func (t *Timeline) longest(first, within, end uint32, oneWay bool, lengthens func(outcome) bool) Gap {
	outcomeOf := t.outcome
	if oneWay {
		outcomeOf = t.outcomeOneWay
	}
	var longest, now Gap
	for slot := first; slot < end && (slot < within || !now.Began.IsZero()); slot++ {
		switch f := outcomeOf(slot); {
		case f == received && !now.Began.IsZero():
			now.Lasted = t.at(slot).Sub(now.Began)
			longest, now = longer(longest, now), Gap{}
		case f != received && lengthens(f):
			if now.Began.IsZero() {
				now.Began = t.at(slot)
			}
			now.Lasted = t.at(slot + 1).Sub(now.Began)
		}
	}
	return longer(longest, now)
}

func longer(a, b Gap) Gap {
	if b.Lasted > a.Lasted {
		return b
	}
	return a
}

// OneWay returns the packets that were sent at or after from, and before to, by the outcome of the
// requests: one that the far end saw was received, whether or not its answer came back. If the far
// end is no agent, or did not report, a packet without an answer is unjudged.
func (t *Timeline) OneWay(from, to time.Time) Counts {
	return t.count(t.from(from), min(t.from(to), t.sent.end()), t.outcomeOneWay)
}

func (t *Timeline) outcomeOneWay(slot uint32) outcome {
	f := t.outcome(slot)
	switch {
	case f == skipped:
		return f
	case t.seen.has(slot):
		return received
	case f == lost && t.side(slot) != Request:
		return unjudged
	}
	return f
}
