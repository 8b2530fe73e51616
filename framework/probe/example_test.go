package probe_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/agent"
)

// Two ends on this machine, and a probe each way between them. In a lab the agents run in pods and
// hosts, and are reached by Dial; here they run in the program itself.
func ExampleSet() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var ends []probe.End
	for _, name := range []string{"outside", "worker"} {
		end := probe.End{Name: name, Address: address()}
		a, err := agent.Open(end.Address, false)
		if err != nil {
			log.Fatal(err)
		}
		defer a.Close()
		ours, theirs := net.Pipe()
		go func() { _ = a.Session(ctx, theirs) }()
		if end.Agent, err = probe.Connect(ctx, name, ours); err != nil {
			log.Fatal(err)
		}
		defer end.Agent.Close()
		ends = append(ends, end)
	}

	probes := []probe.Probe{{From: "outside", To: "worker"}, {From: "worker", To: "outside"}}
	set, err := probe.New(ends, probes)
	if err != nil {
		log.Fatal(err)
	}
	if err := set.Start(ctx); err != nil {
		log.Fatal(err)
	}
	// Half a second in which every packet is answered, within five.
	if _, err := set.WaitClean(ctx, nil, 500*time.Millisecond, 5*time.Second); err != nil {
		log.Fatal(err)
	}
	if err := set.Stop(ctx); err != nil {
		log.Fatal(err)
	}
	for _, timeline := range set.Timelines() {
		fmt.Printf("%s: lost %d\n", timeline.Probe.Name, timeline.Counts().Lost)
	}
	// Output:
	// outside->worker: lost 0
	// worker->outside: lost 0
}
