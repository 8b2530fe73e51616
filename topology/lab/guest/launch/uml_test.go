package launch

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestUMLCommand(t *testing.T) {
	args := umlCommand(Config{Accelerator: UML, CPUs: 2, Memory: 1024}, 1, twoLinks, []string{"tap0", "tap1"})
	must.Equal(t, "it runs", "taskset --cpu-list 1 /opt/uml/linux", strings.Join(args[:4], " "))
	for _, want := range []string{
		"mem=1024M", "seccomp=on", "noreboot", "ssl0=fd:3", "ubd0=/var/lib/relapse/disk.img",
		"vec0:transport=tap,ifname=tap0,mac=02:42:0a:04:5e:17", "vec1:transport=tap,ifname=tap1,mac=02:42:0a:09:00:01",
		"relapse.uml", "relapse.hostname=node1", "relapse.link=eth1,02:42:0a:09:00:01,10.9.0.1/16",
	} {
		must.Equal(t, want, true, slices.Contains(args, want))
	}
}

// TestUMLProbeCommand checks that a probe has the same machine without devices.
func TestUMLProbeCommand(t *testing.T) {
	args, env, err := probeCommand(UML)
	if err != nil || !slices.Contains(args, "relapse.probe") || !slices.Equal(env, []string{"TMPDIR=/run/uml"}) {
		t.Errorf("%q, %q, %v", args, env, err)
	}
	for _, arg := range args {
		if strings.HasPrefix(arg, "ubd0=") || strings.HasPrefix(arg, "ssl0=") || strings.HasPrefix(arg, "vec0:") {
			t.Errorf("a probe has %s", arg)
		}
	}
}

// TestCheckUML checks that an image without User Mode Linux is a reason and no
// error of the image, unlike one that lost a part of it.
func TestCheckUML(t *testing.T) {
	dir := t.TempDir()
	var broken *ImageError
	if err := checkUML(dir); !errors.As(err, &broken) || broken.Lacks != filepath.Join(dir, "linux") {
		t.Errorf("a broken image: %v", err)
	}
	must.Write(t, filepath.Join(dir, "lacks"), "the archive had none\n")
	err := checkUML(dir)
	if errors.As(err, &broken) || err.Error() != "the image has no User Mode Linux: the archive had none" {
		t.Errorf("an image without: %v", err)
	}
}

func TestNthCPU(t *testing.T) {
	var set unix.CPUSet
	for _, cpu := range []int{1, 4, 70} {
		set.Set(cpu)
	}
	for n, want := range []int{1, 4, 70} {
		must.Equal(t, n, want, nthCPU(&set, n))
	}
}

func TestComplaint(t *testing.T) {
	for _, test := range []struct {
		name            string
		accelerator     Accelerator
		stderr, console string
		want            string
	}{
		{"QEMU", KVM, "Could not access KVM\nqemu: failed to initialize kvm\n", "", "Could not access KVM"},
		{"User Mode Linux", UML, "Checking PROT_EXEC mmap in /run/uml...Operation not permitted\n/run/uml must be not mounted noexec\n", "", "/run/uml must be not mounted noexec"},
		{"its console", UML, "Checking seccomp...OK\n", "Kernel panic\n", "Kernel panic"},
	} {
		t.Run(test.name, func(t *testing.T) {
			must.Equal(t, "", test.want, complaint(test.accelerator, test.stderr, test.console))
		})
	}
}
