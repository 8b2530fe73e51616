package snapshot

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// VirtualServer is an entry of a kernel's IPVS table.
type VirtualServer struct {
	Protocol  string         `json:"protocol"` // TCP, UDP or SCTP
	Address   netip.AddrPort `json:"address"`
	Scheduler string         `json:"scheduler"`
	Servers   []RealServer   `json:"servers,omitempty"`
}

// RealServer is a destination of a VirtualServer.
type RealServer struct {
	Address netip.AddrPort `json:"address"`
	// Weight is 0 for one that gets no new connections.
	Weight int `json:"weight"`
	// Active and Inactive are connections: established TCP ones, and all
	// others that the kernel still remembers.
	Active   int `json:"active"`
	Inactive int `json:"inactive"`
}

// ParseIPVS reads what /proc/net/ip_vs says, in its order. Virtual servers
// that are a firewall mark and not an address are left out.
func ParseIPVS(table string) ([]VirtualServer, error) {
	const header = 3 // lines
	var servers []VirtualServer
	skipping := false
	number := 0
	for line := range strings.Lines(table) {
		number++
		words := strings.Fields(line)
		if number <= header || len(words) == 0 {
			continue
		}
		wrap := func(err error) error { return fmt.Errorf("line %d of /proc/net/ip_vs: %w", number, err) }
		switch {
		case words[0] == "FWM":
			skipping = true
		case words[0] != "->":
			if len(words) < 3 {
				return nil, wrap(fmt.Errorf("%q is no virtual server", line))
			}
			address, err := parseHexAddress(words[1])
			if err != nil {
				return nil, wrap(err)
			}
			skipping = false
			servers = append(servers, VirtualServer{Protocol: words[0], Address: address, Scheduler: words[2]})
		case skipping:
		default:
			server, err := parseRealServer(words)
			if err != nil {
				return nil, wrap(err)
			}
			if len(servers) == 0 {
				return nil, wrap(fmt.Errorf("real server %s has no virtual server", server.Address))
			}
			last := &servers[len(servers)-1]
			last.Servers = append(last.Servers, server)
		}
	}
	return servers, nil
}

// parseRealServer takes "->", address, forwarding method, weight, active and inactive connections.
func parseRealServer(words []string) (RealServer, error) {
	if len(words) < 6 {
		return RealServer{}, fmt.Errorf("%q is no real server", strings.Join(words, " "))
	}
	var s RealServer
	var err error
	if s.Address, err = parseHexAddress(words[1]); err != nil {
		return s, err
	}
	for i, n := range []*int{&s.Weight, &s.Active, &s.Inactive} {
		if *n, err = strconv.Atoi(words[3+i]); err != nil {
			return s, err
		}
	}
	return s, nil
}

// parseHexAddress reads an address as the kernel prints it: 0A600001:01BB,
// or [2001:db8:0:0:0:0:0:1]:01BB with the port alone in hexadecimal digits.
func parseHexAddress(text string) (netip.AddrPort, error) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return netip.AddrPort{}, fmt.Errorf("%q has no port", text)
	}
	port, err := hex.DecodeString(text[i+1:])
	if err != nil || len(port) != 2 {
		return netip.AddrPort{}, fmt.Errorf("%q has no port", text)
	}
	var addr netip.Addr
	if strings.HasPrefix(text, "[") {
		if addr, err = netip.ParseAddr(strings.Trim(text[:i], "[]")); err != nil {
			return netip.AddrPort{}, err
		}
	} else {
		bytes, err := hex.DecodeString(text[:i])
		if err != nil || len(bytes) != 4 {
			return netip.AddrPort{}, fmt.Errorf("%q is no IPv4 address", text)
		}
		addr = netip.AddrFrom4([4]byte(bytes))
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port)), nil
}
