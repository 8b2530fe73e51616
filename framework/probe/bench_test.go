package probe_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/must"
)

// BenchmarkFiftyPairs measures what 50 probes at 10 ms cost, in percent of one core: the agents'
// processes (probers%core, user and system time of all their threads, from the scheduler's own
// account) and the harness (harness%core). The agents are real processes of cmd/probe on loopback
// addresses. What the kernel does to deliver a packet runs in the context of its sender here, so it
// is in the figure.
//
// mesh: 8 ends, all of whom probe others, as in a scenario. star: one end probes 50 others, 51
// processes. pairs: 50 senders to 50 responders, where every process is woken 100 times a second
// for one packet; nobody runs that, it is the bound.
func BenchmarkFiftyPairs(b *testing.B) {
	b.Run("mesh", func(b *testing.B) {
		fiftyPairs(b, 8, func(yield func(from, to int) bool) {
			for hop := 1; hop < 8; hop++ {
				for from := range 8 {
					if !yield(from, (from+hop)%8) {
						return
					}
				}
			}
		})
	})
	b.Run("star", func(b *testing.B) {
		fiftyPairs(b, 51, func(yield func(from, to int) bool) {
			for to := 1; to <= 50 && yield(0, to); to++ {
			}
		})
	})
	b.Run("pairs", func(b *testing.B) {
		fiftyPairs(b, 100, func(yield func(from, to int) bool) {
			for from := 0; from < 50 && yield(from, from+50); from++ {
			}
		})
	})
}

func fiftyPairs(b *testing.B, agents int, pairs func(yield func(from, to int) bool)) {
	dir := b.TempDir()
	var ends []probe.End
	var pids []int
	for i := range agents {
		end, process := spawn(b, dir, strconv.Itoa(i))
		ends, pids = append(ends, end), append(pids, process.Process.Pid)
	}
	var probes []probe.Probe
	for from, to := range pairs {
		if len(probes) == 50 {
			break
		}
		probes = append(probes, probe.Probe{From: ends[from].Name, To: ends[to].Name})
	}
	s := must.Get(probe.New(ends, probes))(b)
	must.NoError(b, s.Start(b.Context()))
	must.Get(s.WaitClean(b.Context(), nil, 200*time.Millisecond, 10*time.Second))(b)
	var wall, cpu, harness time.Duration
	for b.Loop() {
		start, startCPU, startHarness := time.Now(), used(b, pids), self(b)
		<-time.After(4 * time.Second)
		wall += time.Since(start)
		cpu += used(b, pids) - startCPU
		harness += self(b) - startHarness
	}
	must.NoError(b, s.Stop(b.Context()))
	var total probe.Counts
	for _, line := range s.Timelines() {
		c := line.Counts()
		total.Sent += c.Sent
		total.Lost += c.Lost
		total.Skipped += c.Skipped
	}
	b.ReportMetric(0, "ns/op") // the time is fixed
	b.ReportMetric(100*cpu.Seconds()/wall.Seconds(), "probers%core")
	b.ReportMetric(100*harness.Seconds()/wall.Seconds(), "harness%core")
	b.ReportMetric(float64(total.Lost), "lost")
	b.ReportMetric(100*float64(total.Skipped)/float64(total.Sent+total.Skipped), "skipped%")
}

// used returns the time that processes have had a processor for, all threads together. The
// scheduler counts it in nanoseconds, where utime and stime are counted in hundredths of a second.
func used(b *testing.B, pids []int) time.Duration {
	var sum time.Duration
	for _, pid := range pids {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil || len(files) == 0 {
			b.Fatalf("no schedstat of process %d: %v", pid, err)
		}
		for _, f := range files {
			stat := must.Read(b, f)
			ns := must.Get(strconv.ParseInt(strings.Fields(string(stat))[0], 10, 64))(b)
			sum += time.Duration(ns)
		}
	}
	return sum
}

func self(b *testing.B) time.Duration {
	var u unix.Rusage
	must.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
