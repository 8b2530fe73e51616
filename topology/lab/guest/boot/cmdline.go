// Package boot runs in the initramfs, between a guest's kernel and its init. The root
// file system is an overlay. Its lower layer is the container's file system, by
// virtio-9p or User Mode Linux's hostfs. Its upper layer is on the guest's disk.
package boot

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
)

// Parameters are the parameters of the initramfs in the kernel's command line.
type Parameters struct {
	// Probe requests only ProbeMarker on the console, and power off.
	Probe bool
	// UML says that the kernel is User Mode Linux, whose devices differ from QEMU's.
	UML bool
	// Hostname is the guest's host name.
	Hostname string
	// Links are the guest's interfaces.
	Links []Link
}

// Link is an interface of the guest.
type Link struct {
	Name string
	MAC  net.HardwareAddr
	// Address is the interface's IPv4 address, with the network's prefix length.
	Address netip.Prefix
}

// Names in the kernel's command line. The kernel ignores a name with a dot that is no module's.
const (
	paramProbe    = "relapse.probe"
	paramUML      = "relapse.uml"
	paramHostname = "relapse.hostname"
	paramLink     = "relapse.link"
)

// ProbeMarker is the console output of a probed guest whose user space runs.
const ProbeMarker = "relapse: a guest runs"

// CommandLine renders the parameters as a part of the kernel's command line.
func (p Parameters) CommandLine() string {
	var words []string
	if p.Probe {
		words = append(words, paramProbe)
	}
	if p.UML {
		words = append(words, paramUML)
	}
	if p.Hostname != "" {
		words = append(words, paramHostname+"="+p.Hostname)
	}
	for _, l := range p.Links {
		words = append(words, fmt.Sprintf("%s=%s,%s,%s", paramLink, l.Name, l.MAC, l.Address))
	}
	return strings.Join(words, " ")
}

// Running returns the parameters of the running kernel. It needs /proc.
func Running() (Parameters, error) {
	text, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return Parameters{}, err
	}
	return Parse(string(text))
}

// Parse reads the parameters from a kernel's command line, and skips all others.
func Parse(commandLine string) (Parameters, error) {
	var p Parameters
	for word := range strings.FieldsSeq(commandLine) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case paramProbe:
			p.Probe = true
		case paramUML:
			p.UML = true
		case paramHostname:
			p.Hostname = value
		case paramLink:
			link, err := parseLink(value)
			if err != nil {
				return Parameters{}, fmt.Errorf("kernel parameter %q: %w", word, err)
			}
			p.Links = append(p.Links, link)
		}
	}
	return p, nil
}

func parseLink(value string) (Link, error) {
	fields := strings.Split(value, ",")
	if len(fields) != 3 || fields[0] == "" {
		return Link{}, fmt.Errorf("expected NAME,MAC,ADDRESS/BITS")
	}
	mac, err := net.ParseMAC(fields[1])
	if err != nil {
		return Link{}, err
	}
	address, err := netip.ParsePrefix(fields[2])
	if err != nil {
		return Link{}, err
	}
	return Link{Name: fields[0], MAC: mac, Address: address}, nil
}
