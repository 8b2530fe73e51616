package kindlab

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/guest"
)

// What a guest gets. A node that runs kube-proxy and a few pods takes 300 MiB
// of its memory; under TCG QEMU takes as much again (guest.Overhead).
const (
	guestCPUs   = 2
	guestMemory = 1024 // MiB
	// guestBoots bounds the time from power-on to the first command: 6 to 12 s
	// under TCG on two idle cores, several times that beside other labs; 3 s
	// under UML.
	guestBoots = 2 * time.Minute
)

// Labels of a guest's container. A later run that attaches to the lab reads them.
const (
	labelAccelerator = "dev.relapse.accelerator"
	labelNotKVM      = "dev.relapse.not-kvm" // why
	labelNotUML      = "dev.relapse.not-uml" // why
)

// guestImages names the images of a topology's guests.
func guestImages(t topology.Topology) []string {
	var refs []string
	for _, n := range guestsOf(t) {
		refs = append(refs, imageOf(n))
	}
	slices.Sort(refs)
	return slices.Compact(refs)
}

func guestsOf(t topology.Topology) []topology.Node {
	var guests []topology.Node
	for _, c := range t.Clusters {
		for _, n := range c.Nodes {
			if n.Kernel != "" {
				guests = append(guests, n)
			}
		}
	}
	return guests
}

// runGuest runs a node with a kernel of its own.
func (l *Lab) runGuest(ctx context.Context, node *Node, n topology.Node, image string) error {
	choice, err := l.chooseAccelerator(ctx, n.Kernel, image)
	if err != nil {
		return err
	}
	dir := l.runFolder(n.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the run folder of %s: %w", n.Name, err)
	}
	config, host := guest.Container(guest.Options{
		Image: image, Hostname: node.container, Dir: dir, Binds: []string{l.mirrorsBind()},
		Accelerator: choice.Accelerator, CPUs: guestCPUs, Seat: l.seat(n.Name), Memory: guestMemory,
	})
	config.Labels = map[string]string{
		labelAccelerator: string(choice.Accelerator), labelNotKVM: choice.NotKVM, labelNotUML: choice.NotUML,
	}
	return node.run(ctx, n.Links, config, host)
}

// seat numbers the guests of a lab one after the other, from a number of the
// lab's own. On a machine with few CPUs those of two labs may share one.
func (l *Lab) seat(node string) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, l.Topology.Name) // a hash does not fail
	place := slices.IndexFunc(guestsOf(l.Topology), func(n topology.Node) bool { return n.Name == node })
	return int(h.Sum32()>>1) + place
}

// chooseAccelerator finds out what executes guests on this machine, and says
// so where that is not KVM.
func (l *Lab) chooseAccelerator(ctx context.Context, kernel, image string) (guest.Choice, error) {
	l.choosing.Lock()
	defer l.choosing.Unlock()
	var choice guest.Choice
	err := l.options.step("what boots guests with kernel "+kernel, func() (err error) {
		choice, err = guest.ChooseAccelerator(ctx, l.docker, image,
			map[string]string{labelLab: l.Topology.Name}, filepath.Join(StateDir, "accelerator-"+kernel))
		return err
	})
	if err != nil {
		return choice, err
	}
	switch choice.Accelerator {
	case guest.UML:
		l.options.note("guests run under User Mode Linux, with its kernel in place of %s: %s", kernel, choice.NotKVM)
	case guest.TCG:
		l.options.note("guests with kernel %s run without KVM, 15 to 20 times slower: %s; nor under User Mode Linux: %s",
			kernel, choice.NotKVM, choice.NotUML)
	}
	return choice, nil
}

// GuestFacts say what a node with a kernel of its own runs on.
type GuestFacts struct {
	Node        string
	Kernel      string // its release, as uname -r prints it
	Accelerator guest.Accelerator
	// NotKVM and NotUML say why those are not used; empty where one is, or was
	// not tried.
	NotKVM, NotUML string
}

// Guests tells of every running guest of the lab, in the order of the
// topology.
func (l *Lab) Guests(ctx context.Context) ([]GuestFacts, error) {
	var all []GuestFacts
	for _, n := range guestsOf(l.Topology) {
		node := l.Node(n.Name)
		release, err := node.Exec(ctx, "uname", "-r")
		if err != nil {
			return all, fmt.Errorf("asking for the kernel of %s: %w", n.Name, err)
		}
		info, err := l.docker.ContainerInspect(ctx, node.container)
		if err != nil {
			return all, fmt.Errorf("inspecting container %q: %w", node.container, err)
		}
		all = append(all, GuestFacts{
			Node: n.Name, Kernel: strings.TrimSpace(release),
			Accelerator: guest.Accelerator(info.Config.Labels[labelAccelerator]),
			NotKVM:      info.Config.Labels[labelNotKVM], NotUML: info.Config.Labels[labelNotUML],
		})
	}
	return all, nil
}
