package snapshot

import (
	"net/http"
	"sync/atomic"
	"time"
)

// clockless is a difference of clocks that is none: answers tell the time to the second, and take
// a while.
const clockless = 2 * time.Second

// serverClock is how far an API server's clock is ahead of this machine's, by its answers.
type serverClock struct{ ahead atomic.Int64 }

// difference is that of the newest answer; zero if it is less than clockless.
func (c *serverClock) difference() time.Duration {
	ahead := time.Duration(c.ahead.Load())
	if ahead.Abs() < clockless {
		return 0
	}
	return ahead
}

// wrap notes the time that each answer tells.
func (c *serverClock) wrap(to http.RoundTripper) http.RoundTripper { return timed{to, c} }

type timed struct {
	to    http.RoundTripper
	clock *serverClock
}

func (t timed) RoundTrip(r *http.Request) (*http.Response, error) {
	asked := time.Now()
	response, err := t.to.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	took := time.Since(asked)
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		// The server has cut off what was beyond the second.
		t.clock.ahead.Store(int64(date.Add(time.Second / 2).Sub(asked.Add(took / 2).Round(0))))
	}
	return response, nil
}

// Age is for how long an object of Kubernetes has existed at the moment of the snapshot, by the
// clock of the API server, which also says when it was created.
func (s Snapshot) Age(created time.Time) time.Duration { return s.Time.Add(s.ServerAhead).Sub(created) }
