package kindlab

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/guest"
	"github.com/relapse-dev/relapse/topology/lab/guest/launch"
)

// Resources of a guest. A node with kube-proxy and a few pods uses 300 MiB of its
// memory; under TCG QEMU uses as much again (guest.Overhead).
const (
	guestCPUs   = 2
	guestMemory = 1024 // MiB
	// guestBoots bounds the time from power-on to the first command: 3 s under UML,
	// 6 to 12 s under TCG on two idle cores, several times that if other labs run.
	guestBoots = 2 * time.Minute
)

// Labels of a guest's container. A later run that attaches to the lab reads them.
const (
	labelAccelerator = "dev.relapse.accelerator"
	labelNotKVM      = "dev.relapse.not-kvm" // why
	labelNotUML      = "dev.relapse.not-uml" // why
)

func guestImages(t topology.Topology) []string { return each.Once(each.Of(t.Guests(), imageOf)) }

func (l *Lab) runGuest(ctx context.Context, node *Node, n topology.Node, image string) error {
	choice, err := l.chooseAccelerator(ctx, n.Kernel, image)
	if err != nil {
		return err
	}
	dir, err := l.makeRunFolder(n.Name)
	if err != nil {
		return err
	}
	config, host := guest.Container(guest.Options{
		Image: image, Hostname: node.container, Dir: dir, Binds: []string{l.mirrorsBind()},
		Config: launch.Config{Accelerator: choice.Accelerator, CPUs: guestCPUs, Seat: l.seat(n.Name), Memory: guestMemory},
	})
	config.Labels = map[string]string{
		labelAccelerator: string(choice.Accelerator), labelNotKVM: choice.NotKVM, labelNotUML: choice.NotUML,
	}
	return node.run(ctx, n.Links, config, host)
}

// seat numbers the guests of a lab consecutively, from a hash of the lab's name.
// Guests of two labs may share a CPU of a machine that has few.
func (l *Lab) seat(node string) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, l.Topology.Name) // a hash does not fail
	place := slices.IndexFunc(l.Topology.Guests(), func(n topology.Node) bool { return n.Name == node })
	return int(h.Sum32()>>1) + place
}

func (l *Lab) chooseAccelerator(ctx context.Context, kernel, image string) (guest.Choice, error) {
	l.choosing.Lock()
	defer l.choosing.Unlock()
	var choice guest.Choice
	err := l.options.step("accelerator for guests with kernel "+kernel, func() (err error) {
		choice, err = guest.ChooseAccelerator(ctx, l.docker, image,
			map[string]string{labelLab: l.Topology.Name}, filepath.Join(StateDir, "accelerator-"+kernel))
		return err
	})
	if err != nil {
		return choice, err
	}
	switch choice.Accelerator {
	case launch.UML:
		l.options.note("guests run under User Mode Linux, with its kernel instead of %s: %s", kernel, choice.NotKVM)
	case launch.TCG:
		l.options.note("guests with kernel %s run under QEMU without KVM, 15 to 20 times slower; KVM: %s; User Mode Linux: %s",
			kernel, choice.NotKVM, choice.NotUML)
	}
	return choice, nil
}

// GuestFacts describe the kernel and the accelerator of a guest.
type GuestFacts struct {
	Node        string
	Kernel      string // its release, as uname -r prints it
	Accelerator string // a launch.Accelerator
	// NotKVM and NotUML say why KVM and UML are not used; empty if it is used or was not tried.
	NotKVM, NotUML string
}

// Guests describes all running guests of the lab, in the order of the topology.
func (l *Lab) Guests(ctx context.Context) ([]GuestFacts, error) {
	var all []GuestFacts
	for _, n := range l.Topology.Guests() {
		node := l.Node(n.Name)
		release, err := node.Exec(ctx, "uname", "-r")
		if err != nil {
			return all, fmt.Errorf("reading the kernel release of %s: %w", n.Name, err)
		}
		info, err := node.inspect(ctx)
		if err != nil {
			return all, err
		}
		all = append(all, GuestFacts{
			Node: n.Name, Kernel: strings.TrimSpace(release),
			Accelerator: info.Config.Labels[labelAccelerator],
			NotKVM:      info.Config.Labels[labelNotKVM], NotUML: info.Config.Labels[labelNotUML],
		})
	}
	return all, nil
}
