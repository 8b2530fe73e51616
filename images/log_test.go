package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// The commands of a build beside a lab have the lowest priority, in their session and, where the
// kernel schedules by session, among the sessions.
func TestBesideLab(t *testing.T) {
	log := &buildLog{must.Get(os.Create(filepath.Join(t.TempDir(), "log")))(t)}
	defer log.file.Close()
	// The priorities are set once the command runs.
	const yields = `for try in $(seq 100); do
		[ "$(nice)" = 19 ] && { [ ! -e /proc/self/autogroup ] || grep -q "nice 19" /proc/self/autogroup; } && exit
		sleep 0.05
	done
	nice; cat /proc/self/autogroup; exit 1`
	if err := log.run(BesideLab(t.Context()), exec.Command("bash", "-c", yields)); err != nil {
		tail, _ := log.tail()
		t.Errorf("%v: %q", err, tail)
	}
}
