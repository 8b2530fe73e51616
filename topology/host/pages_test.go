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
			must.Equal(t, "", [3]any{OK, test.found, test.enlarge}, [3]any{c.State, c.Found, enlarge})
		})
	}
}

// TestRaiseAndLowerLimits has the other cases of an undo.
func TestEnlargeAndShrinkPages(t *testing.T) {
	h := hostIn(t.TempDir())
	must.Write(t, h.pages, "always inherit madvise [never]\n")
	h.enlargePages(func(string) {})
	must.Equal(t, "enlarged, the file has", "always\n", read(h.pages))
	must.Write(t, h.pages, "[always] inherit madvise never\n") // as the kernel says it
	must.NoError(t, h.undo(t.Context(), func(string) {}))
	must.Equal(t, "after the undo the file has", "never\n", read(h.pages))
}

// A kernel that refuses the change does not fail the set-up.
func TestRefusedPages(t *testing.T) {
	h := hostIn(t.TempDir())
	must.NoError(t, os.Mkdir(h.pages, 0o755))
	var steps []string
	announce := func(step string) { steps = append(steps, step) }
	h.enlargePages(announce)
	if len(steps) != 2 || !strings.HasPrefix(steps[1], "going on with smaller pages: ") {
		t.Errorf("steps %q", steps)
	}
}
