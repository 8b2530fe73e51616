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
	outcomeOf := t.outcomes(oneWay)
	var longest, now Gap
	within := t.from(to)
	end := t.sent.end()
	for slot := t.from(from); slot < end; slot++ {
		open := !now.Began.IsZero()
		if slot >= within && !open {
			break
		}
		switch outcomeOf(slot) {
		case lost:
			if !open {
				now.Began = t.at(slot)
			}
			now.Lasted = t.at(slot).Add(t.Probe.Interval).Sub(now.Began)
		case received:
			if open {
				now.Lasted = t.at(slot).Sub(now.Began)
			}
			if now.Lasted > longest.Lasted {
				longest = now
			}
			now = Gap{}
		}
	}
	if now.Lasted > longest.Lasted {
		longest = now
	}
	return longest
}

// LongestSilence returns the longest time with a packet that was due at or after from, and
// before to, in which no packet is known to have been answered: packets were lost, were not
// sent, or have no known outcome. Began is the first of these packets. Like a gap it is the
// rest of one that began earlier, and all of one that ends later. With oneWay the outcomes are those
// of OneWay.
func (t *Timeline) LongestSilence(from, to time.Time, oneWay bool) Gap {
	outcomeOf := t.outcomes(oneWay)
	if t.Started.IsZero() {
		return Gap{from, to.Sub(from)}
	}
	var longest, now Gap
	within := t.from(to)
	for slot := t.from(from); slot < max(within, t.sent.end()); slot++ {
		open := !now.Began.IsZero()
		if slot >= within && !open {
			break
		}
		if outcomeOf(slot) == received {
			now = Gap{}
			continue
		}
		if !open {
			now.Began = t.at(slot)
		}
		if now.Lasted = t.at(slot + 1).Sub(now.Began); now.Lasted > longest.Lasted {
			longest = now
		}
	}
	return longest
}

// OneWay returns the packets that were sent at or after from, and before to, by the outcome of the
// requests: one that the far end saw was received, whether or not its answer came back. If the far
// end is no agent, or did not report, a packet without an answer is unjudged.
func (t *Timeline) OneWay(from, to time.Time) Counts {
	return t.count(t.from(from), min(t.from(to), t.sent.end()), t.outcomeOneWay)
}

func (t *Timeline) outcomes(oneWay bool) func(slot uint32) outcome {
	if oneWay {
		return t.outcomeOneWay
	}
	return t.outcome
}

// outcomeOneWay is the outcome of a slot's request.
func (t *Timeline) outcomeOneWay(slot uint32) outcome {
	f := t.outcome(slot)
	if f == skipped || f == received {
		return f
	}
	switch {
	case t.seen.has(slot):
		return received
	case f == lost && t.side(slot) != Request:
		return unjudged
	}
	return f
}
