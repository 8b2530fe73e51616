package images

import (
	"fmt"
	"os/exec"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// Cost is what building an image took. Packages that it shares with an image which
// was built before are that one's.
type Cost struct {
	// Took is the time of work on the image, without the time in which it waited for
	// another process, or for the compiler and the network to be free.
	Took time.Duration
	// CPU is the CPU time, user's and system's, of the commands that ran for it, on all
	// CPUs, with their children.
	CPU time.Duration
}

// String is the cost in seconds, such as 98.2 s, 160.4 CPU s.
func (c Cost) String() string {
	return fmt.Sprintf("%.1f s, %.1f CPU s", c.Took.Seconds(), c.CPU.Seconds())
}

// costOf reads the cost from the annotations of an image. Images of earlier versions of
// relapse may have none.
func costOf(image v1.Descriptor) Cost {
	took, _ := time.ParseDuration(image.Annotations[annotationTook])
	cpu, _ := time.ParseDuration(image.Annotations[annotationCPU])
	return Cost{Took: took, CPU: cpu}
}

type meter struct {
	began  time.Time
	waited time.Duration
	cpu    time.Duration
}

func newMeter() *meter { return &meter{began: time.Now()} }

// wait calls a function that waits for work on another image, or for other work on this one.
func (m *meter) wait(until func()) {
	began := time.Now()
	until()
	m.waited += time.Since(began)
}

// lock takes a lock that images share. Until it has it the image waits.
func (m *meter) lock(l sync.Locker) { m.wait(l.Lock) }

// ran adds what a command that has ended has used.
func (m *meter) ran(cmd *exec.Cmd) {
	if state := cmd.ProcessState; state != nil { // nil if it did not start
		m.cpu += state.UserTime() + state.SystemTime()
	}
}

func (c Cost) add(other Cost) Cost { return Cost{Took: c.Took + other.Took, CPU: c.CPU + other.CPU} }

func (m *meter) cost() Cost { return Cost{Took: time.Since(m.began) - m.waited, CPU: m.cpu} }

func ownCPU() time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
