package host

import (
	"os"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestJudgePages(t *testing.T) {
	for _, test := range []struct {
		name, text string
		contained  bool
		found      string
		enlarge    bool
	}{
		{"an old kernel", "", false, "the kernel has no setting for pages of 64 KiB", false},
		{"the kernel's default", "always inherit madvise [never]\n", false, "pages of 64 KiB: never, with which builds of images take longer; set-up changes it", true},
		{"in a container", "always inherit madvise [never]\n", true, "pages of 64 KiB: never", false},
		{"on", "[always] inherit madvise never\n", false, "pages of 64 KiB: always", false},
		{"the owner's choice", "always [inherit] madvise never\n", false, "pages of 64 KiB: inherit", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, enlarge := judgePages(test.text, test.contained)
			if c.State != OK || c.Found != test.found || enlarge != test.enlarge {
				t.Errorf("%s, %q, %t; want ok, %q, %t", c.State, c.Found, enlarge, test.found, test.enlarge)
			}
		})
	}
}

func TestEnlargeAndShrinkPages(t *testing.T) {
	const always, madvise, never = "[always] inherit madvise never\n", "always inherit [madvise] never\n", "always inherit madvise [never]\n"
	for name, test := range map[string]struct {
		since string // what the kernel says by the time of the undo
		want  string // the file after the undo
		step  string // of the undo, after the file's name
	}{
		"unchanged":        {always, "never\n", " back from always to never"},
		"rebooted":         {never, never, ""},
		"set by the owner": {madvise, madvise, " at madvise: it was changed after it was set to always"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hostIn(t.TempDir())
			var steps []string
			announce := func(step string) { steps = append(steps, step) }
			must.NoError(t, h.enlargePages(announce))
			must.Equal(t, "enlarged, the file has", "always\n", read(h.pages))
			must.Write(t, h.pages, test.since)
			steps = nil
			for range 2 { // the second time there is nothing to do
				must.NoError(t, h.undo(t.Context(), announce))
			}
			must.Equal(t, "after the undo the file has", test.want, read(h.pages))
			var said []string
			for _, step := range steps {
				_, after, _ := strings.Cut(step, h.pages)
				said = append(said, after)
			}
			var want []string
			if test.step != "" {
				want = []string{test.step}
			}
			must.Equal(t, "steps of the undo", want, said)
		})
	}
}

// A kernel that refuses the change does not fail the set-up.
func TestRefusedPages(t *testing.T) {
	h := hostIn(t.TempDir())
	must.NoError(t, os.Mkdir(h.pages, 0o755))
	var steps []string
	announce := func(step string) { steps = append(steps, step) }
	if err := h.enlargePages(announce); err != nil || len(steps) != 2 || !strings.HasPrefix(steps[1], "going on with smaller pages: ") {
		t.Errorf("%v, steps %q", err, steps)
	}
}
