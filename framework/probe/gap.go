package probe

import "time"

// Gap is a time in which a probe lost every packet whose outcome is known.
type Gap struct {
	// Began is when the first lost packet was sent.
	Began time.Time
	// Lasted is up to when the next one was sent that was not lost, or up to the
	// last that was sent.
	Lasted time.Duration
}

// LongestGap returns the longest gap with a packet that was sent at or after from, and
// before to. Of one that began earlier that is the rest; of one that ends later it is
// all. The zero Gap says that nothing was lost. With oneWay the outcomes are those of OneWay.
func (t *Timeline) LongestGap(from, to time.Time, oneWay bool) Gap {
	return t.longest(t.from(from), t.from(to), t.sent.end(), oneWay, func(f outcome) bool { return f == lost })
}

// LongestSilence returns the longest time with a packet that was due at or after from, and
// before to, in which no packet is known to have been answered: packets were lost, were not
// sent, or have no known outcome. Began is the first of these packets. Like a gap it is the
// rest of one that began earlier, and all of one that ends later. With oneWay the outcomes are those
// of OneWay.
func (t *Timeline) LongestSilence(from, to time.Time, oneWay bool) Gap {
	if t.Started.IsZero() {
		return Gap{from, to.Sub(from)}
	}
	within := t.from(to)
	return t.longest(t.from(from), within, max(within, t.sent.end()), oneWay, func(outcome) bool { return true })
}

// longest is the longest time without a received packet that begins with a slot of [first, within) and ends before
// end. Its first and last slot have outcomes that lengthen it.
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
