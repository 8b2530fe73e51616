package bgp

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// LinkNeighbor is an entry of a kernel's neighbour table: the station on a link to which packets for an
// address are sent.
type LinkNeighbor struct {
	Address   netip.Addr `json:"address"`
	Interface string     `json:"interface"`
	// MAC is empty while the kernel knows no station.
	MAC string `json:"mac,omitempty"`
	// Confirmed is set if the station has answered just now, or the entry is configured: the states
	// REACHABLE and PERMANENT. In others the kernel asks again once something is sent.
	Confirmed bool `json:"confirmed,omitempty"`
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

// LinkNeighbors reads the output of `ip -j neigh`, in order of address and interface.
func LinkNeighbors(text string) ([]LinkNeighbor, error) {
	var entries []struct {
		Dst, Dev, LLAddr string
		State            []string
	}
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		return nil, fmt.Errorf("reading the output of ip -j neigh: %w", err)
	}
	var all []LinkNeighbor
	for _, e := range entries {
		address, err := netip.ParseAddr(e.Dst)
		if err != nil {
			return nil, fmt.Errorf("reading the output of ip -j neigh: %w", err)
		}
		if slices.Contains(e.State, "FAILED") || slices.Contains(e.State, "INCOMPLETE") {
			e.LLAddr = ""
		}
		confirmed := slices.Contains(e.State, "REACHABLE") || slices.Contains(e.State, "PERMANENT")
		all = append(all, LinkNeighbor{Address: address, Interface: e.Dev, MAC: e.LLAddr, Confirmed: confirmed})
	}
	slices.SortFunc(all, CompareLinkNeighbors)
	return all, nil
}

// CompareLinkNeighbors orders entries by address, then by interface.
func CompareLinkNeighbors(a, b LinkNeighbor) int {
	return CompareNextHops(NextHop{Address: a.Address, Interface: a.Interface}, NextHop{Address: b.Address, Interface: b.Interface})
}
