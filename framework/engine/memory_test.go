package engine

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/must"
)

func heapInUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// A run with --wait 2m needs 10 MiB for 144,000 packets of 12 probes, two without any answer, and for 600 polls,
// whose findings change each second. Memory grows with the time.
func TestMemory(t *testing.T) {
	const wait, most = 2 * time.Minute, 10 << 20
	synctest.Test(t, func(t *testing.T) {
		w, s := fakeWorld()
		ends := []framework.Endpoint{{Name: "out", Host: "out"}, framework.PodOn("a"), framework.PodOn("b"), framework.PodOn("c")}
		s.Variants = s.Variants[:1]
		atFirst, heapAtEnd := heapInUse(), uint64(0)
		ctx, over := context.WithCancel(t.Context())
		defer over()
		s.Variants[0].Script = func() framework.Script {
			script := w.affected()
			script.Endpoints, script.Probes = ends, nil
			for _, from := range ends {
				for _, to := range ends {
					if p := from.To(to); from.Name != to.Name {
						p.Interval = 10 * time.Millisecond
						script.Probes = append(script.Probes, p)
					}
				}
			}
			script.Impacted = []probe.Probe{ends[0].To(ends[1]), ends[1].To(ends[0])}
			script.Fault = w.common(func() { w.breaks("out->a", "a->out") }).Fault
			before(&script.Fault.Inject, func() { go sentences(ctx, w) })
			script.Remedies = script.Remedies[:1]
			script.Remedies[0].Apply = doing(func() { heapAtEnd = heapInUse(); over() }) // after the wait
			return script
		}
		e := New(s, &fakeLabs{world: w}, Options{Output: t.TempDir(), Wait: wait})
		e.Run(t.Context(), UndoWithin)
		polls := len(e.variants[0].h.View().Polls())
		r, _ := e.Report()
		if v := r.Variants[0]; v.Verdict != string(framework.Reproduced) || v.Packets.Sent == 0 || polls < int(wait/e.variants[0].c.Every())-20 {
			t.Fatalf("verdict %s, %d packets, %d polls: %v", v.Verdict, v.Packets.Sent, polls, v.Reasons)
		}
		ended := heapInUse()
		runtime.KeepAlive(e)
		t.Logf("MiB in use: %d after the wait, %d at the end, after %d polls", (heapAtEnd-atFirst)>>20, (ended-atFirst)>>20, polls)
		must.Equal(t, "it is measured, and in bounds", true, heapAtEnd >= atFirst && max(heapAtEnd, ended) <= atFirst+most)
	})
}

// sentences has four findings say something else each second.
func sentences(ctx context.Context, w *world) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var found []detect.Finding
		for i := range 4 {
			f := theFinding
			if i > 0 {
				f.State, f.Object = detect.Latent, detect.Named(fmt.Sprint("a", i))
			}
			f.Says = fmt.Sprintf("The route to %s is lost for %d s: the routers have had no route to it since the session of its announcer ended.", f.Object, n)
			found = append(found, f)
		}
		// w.do would note the traffic of each moment.
		w.mu.Lock()
		if len(w.lost) > 0 {
			w.found = found
		}
		w.mu.Unlock()
	}
}
