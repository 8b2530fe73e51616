package advise

import (
	"bytes"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// Of two results of the same upgrade the later one stays. A line that is no result is refused with its number.
func TestMergeKnown(t *testing.T) {
	old := Known{Component: "c", From: "1.0.0", To: "1.1.0", When: "2026-01-01", Verdict: "GO"}
	later, other := old, old
	later.When, later.Verdict = "2026-02-01", "NO-GO"
	other.Under = "with graceful restart"
	must.Equal(t, "", []Known{later, other}, Merge([]Known{later}, old, other))
	// The configurations of two users differ.
	other.Under, other.Report = UsersOwn, "a"
	theirs := other
	theirs.Report = "b"
	must.Equal(t, "", 2, len(Merge([]Known{other}, theirs)))
	for text, want := range map[string]string{
		`{"component":"c","from":"1.0.0","to":"1.1.0","verdict":"GO","when":"2026-01-01"} {"component":"c"}`:             "result 2: expected a component",
		`{"component":"c","from":"1.0.0","to":"1.1.0","verdict":"fine","when":"2026-01-01"}`:                             `result 1: verdict: "fine"`,
		`{"component":"c","from":"1.0.0","to":"1.1.0","verdict":"GO","when":"yesterday"}`:                                `when: "yesterday"`,
		`{"component":"c","from":"1.0.0","to":"1.1.0","verdict":"unknown","incident":"x","when":"2026-01-01T01:02:03Z"}`: `verdict: "unknown"`,
	} {
		_, err := ReadKnown(bytes.NewBufferString(text))
		must.Fail(t, err, want)
	}
	must.Get(Recorded())(t)
}
