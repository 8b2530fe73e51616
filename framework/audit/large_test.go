package audit

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/relapse-dev/relapse/framework/audit/internal/large"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// heap is what is in use, in MiB.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// BenchmarkOld is temporary.
func BenchmarkOld(b *testing.B) {
	for _, n := range []int{64, 32} {
		before := heap()
		s := large.Full(1 / float64(n)).Snapshot()
		b.Logf("1/%d: %.0f MiB", n, heap()-before)
		for _, d := range detectors {
			b.Run(fmt.Sprintf("%s-%d", d.Name(), n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if f := detect.Run([]detect.Detector{d}, []snapshot.Snapshot{s}); len(f) > 0 {
						b.Fatal(f[0], len(f))
					}
				}
			})
		}
		b.Run("unjudged", func(b *testing.B) {
			for b.Loop() {
				if f := detect.Unjudged(s); len(f) > 0 {
					b.Fatal(f)
				}
			}
		})
	}
}
