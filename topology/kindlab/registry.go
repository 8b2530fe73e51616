package kindlab

import "net/netip"

// Registry is the registry that a lab's nodes pull from, whatever host an
// image's name has.
type Registry struct {
	member
	// Addr is where it listens.
	Addr netip.AddrPort
}

// Registry is the handle of the lab's registry. A lab without clusters has
// none.
func (l *Lab) Registry() *Registry { return &Registry{*l.member("registry"), l.registryAddr()} }
