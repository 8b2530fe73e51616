package bgp

import (
	"net/netip"
	"time"
)

// LinkNeighbor is an entry of a kernel's neighbour table: the station on a link to which packets for an
// address are sent.
type LinkNeighbor struct {
	Address   netip.Addr `json:"address"`
	Interface string     `json:"interface"`
	// MAC is empty while the kernel knows no station.
	MAC string `json:"mac,omitempty"`
	// Answers are the stations that were heard for the address, where somebody listens on the link.
	Answers []Answer `json:"answers,omitempty"`
}

// Answer is what one station has said on a link for an address.
type Answer struct {
	MAC string `json:"mac"`
	// Replied is when it answered a question last, and Gratuitous how often it announced the address
	// without one, which it did last at Announced.
	Replied    time.Time `json:"replied,omitzero"`
	Gratuitous int       `json:"gratuitous,omitempty"`
	Announced  time.Time `json:"announced,omitzero"`
}

// CompareLinkNeighbors orders entries by address, then by interface.
func CompareLinkNeighbors(a, b LinkNeighbor) int {
	return CompareNextHops(NextHop{Address: a.Address, Interface: a.Interface}, NextHop{Address: b.Address, Interface: b.Interface})
}
