package router

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file reads the answers of programs on a router that this package does not run: their
// configuration, clock and time zone are not known.

// frrListed is a path of what FRR prints for `show bgp ipv4 unicast json`: less than with "detail",
// and in one form from FRR 7 to 10.
type frrListed struct {
	BestPath  bool
	Multipath bool
	PathFrom  string // external, internal
	PeerID    string // an interface for a session without addresses
	Path      string
	Origin    string
	Metric    uint32
	LocPrf    *uint32
	NextHops  []struct{ IP netip.Addr }
}

// frrOriginated is the peer of a path that the router itself originates.
const frrOriginated = "(unspec)"

// ErrRefused is the error of a router that does not know what it is asked for, such as an address
// family that it does not have.
var ErrRefused = errors.New("refused")

// FRRPaths reads the RIB that `vtysh -c 'show bgp ipv4 unicast json'` prints, or the one of ipv6,
// without the times at which paths were received. A path of a session that has no address is an
// error. What FRR says in place of a RIB is an ErrRefused.
//
// The prefixes are read one by one: of a million, all at once would take three times the memory.
func FRRPaths(text string) ([]Path, error) {
	if err := frrRefusal(text); err != nil {
		return nil, fmt.Errorf("reading FRR's RIB: %w", err)
	}
	var warning string
	var paths []Path
	in := json.NewDecoder(strings.NewReader(text))
	err := fields(in, func(name string) error {
		switch name {
		case "warning":
			return in.Decode(&warning)
		case "routes":
			paths = []Path{}
			return fields(in, func(text string) error {
				prefix, err := netip.ParsePrefix(text)
				if err != nil {
					return err
				}
				var listed []frrListed
				if err := in.Decode(&listed); err != nil {
					return err
				}
				for _, from := range listed {
					p, err := from.path(prefix)
					if err != nil {
						return err
					}
					paths = append(paths, p)
				}
				return nil
			})
		}
		var other json.RawMessage
		return in.Decode(&other)
	})
	if err == nil {
		err = ended(in)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading FRR's RIB: %w", err)
	case warning != "":
		return nil, fmt.Errorf("reading FRR's RIB: %w: %s", ErrRefused, warning)
	case paths == nil:
		return nil, errors.New("reading FRR's RIB: the answer has no routes")
	}
	slices.SortStableFunc(paths, func(a, b Path) int {
		return cmp.Or(comparePrefixes(a.Prefix, b.Prefix), firstIf(a.Best, b.Best), firstIf(a.Multipath, b.Multipath))
	})
	return paths, nil
}

// path is the path to a prefix.
func (from frrListed) path(prefix netip.Prefix) (Path, error) {
	p := Path{
		Prefix: prefix, Origin: strings.ToLower(from.Origin), LocalPref: defaultLocalPref, MED: from.Metric,
		Internal: from.PathFrom == "internal", Best: from.BestPath, Multipath: from.BestPath || from.Multipath,
	}
	if len(from.NextHops) > 0 {
		p.NextHop = from.NextHops[0].IP
	}
	if from.LocPrf != nil {
		p.LocalPref = *from.LocPrf
	}
	if from.PeerID != frrOriginated {
		var err error
		if p.Neighbor, err = netip.ParseAddr(from.PeerID); err != nil || !p.NextHop.IsValid() {
			return Path{}, fmt.Errorf("the path to %s from %q has no address of a peer, or no next hop", prefix, from.PeerID)
		}
	}
	for word := range strings.FieldsFuncSeq(from.Path, func(r rune) bool { return strings.ContainsRune(" {},()", r) }) {
		as, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return Path{}, fmt.Errorf("AS path %q of %s: %w", from.Path, prefix, err)
		}
		p.ASPath = append(p.ASPath, uint32(as))
	}
	return p, nil
}

// fields reads an object of JSON. One reads the value of a field.
func fields(in *json.Decoder, one func(name string) error) error {
	return elements(in, '{', func() error {
		name, err := in.Token()
		if err != nil {
			return err
		}
		return one(name.(string)) // the decoder takes nothing else here
	})
}

// elements reads what is between a bracket and the one that closes it. One reads an element.
func elements(in *json.Decoder, opens json.Delim, one func() error) error {
	if token, err := in.Token(); err != nil {
		return err
	} else if token != opens {
		return fmt.Errorf("want %s, got %v", opens, token)
	}
	for in.More() {
		if err := one(); err != nil {
			return err
		}
	}
	_, err := in.Token()
	return err
}

// ended returns an error if something follows what was read.
func ended(in *json.Decoder) error {
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after the end of the JSON")
	}
	return nil
}

// frrRefusal is what vtysh says in place of an answer in JSON, as an error.
func frrRefusal(text string) error {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "%") {
		return fmt.Errorf("%w: %s", ErrRefused, firstLine(text))
	}
	if !strings.HasPrefix(text, "{") {
		return fmt.Errorf("want JSON, got %q", firstLine(text))
	}
	return nil
}

func firstLine(text string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return first
}

// frrDefaultVRF is FRR's name for the VRF in which it is where none is named.
const frrDefaultVRF = "default"

// FRRVRFs reads what `vtysh -c 'show bgp vrfs json'` prints: the names of the VRFs with a BGP
// instance, but for the default one, in order. What FRR says in place of them is an ErrRefused.
func FRRVRFs(text string) ([]string, error) {
	var answer struct{ VRFs map[string]struct{} }
	err := frrRefusal(text)
	if err == nil {
		err = json.Unmarshal([]byte(text), &answer)
	}
	if err != nil {
		return nil, fmt.Errorf("reading FRR's VRFs: %w", err)
	}
	if answer.VRFs == nil {
		return nil, errors.New("reading FRR's VRFs: the answer has no vrfs")
	}
	delete(answer.VRFs, frrDefaultVRF)
	return slices.Sorted(maps.Keys(answer.VRFs)), nil
}

// FRRNeighbors reads what `vtysh -c 'show bgp neighbors json'` prints. Sessions without
// addresses are left out.
func FRRNeighbors(text string) ([]Neighbor, error) {
	if err := frrRefusal(text); err != nil {
		return nil, fmt.Errorf("reading FRR's neighbours: %w", err)
	}
	return parseFRRNeighbors(text, func(epoch int64) time.Time { return time.Unix(epoch, 0).UTC() })
}

// untimed leaves a time of BIRD out: its format is configured, and its zone is not printed.
func untimed(string) (time.Time, error) { return time.Time{}, nil }

const (
	// birdReady begins what birdc prints, and birdHeader the list of protocols.
	birdReady  = "BIRD "
	birdHeader = "Name "
)

// birdSessions reads the sessions of a whole answer: one that was cut off has no sessions.
func birdSessions(protocols string) ([]birdSession, error) {
	if !strings.HasPrefix(protocols, birdReady) || !strings.Contains(protocols, "\n"+birdHeader) {
		return nil, fmt.Errorf("reading BIRD's protocols: want %q and a header first, got %q", birdReady, firstLine(protocols))
	}
	return parseBIRDSessions(protocols, untimed)
}

// BIRDPaths reads the RIB that `birdc -r show route all` prints, with the sessions of what
// `birdc -r show protocols all` prints (BIRD 2). No time is set.
func BIRDPaths(routes, protocols string) ([]Path, error) {
	sessions, err := birdSessions(protocols)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(routes, birdReady) {
		return nil, fmt.Errorf("reading BIRD's RIB: want %q first, got %q", birdReady, firstLine(routes))
	}
	paths, err := parseBIRDPaths(routes, sessions, untimed)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(paths, func(p Path) bool { return !p.NextHop.IsValid() }); i >= 0 {
		// BIRD 3 calls the attributes by other names.
		return nil, fmt.Errorf("reading BIRD's RIB: the path to %s has no BGP.next_hop, which BIRD 2 prints", paths[i].Prefix)
	}
	return paths, nil
}

// BIRDNeighbors reads the sessions that `birdc -r show protocols all` prints, in order of
// address. No time is set.
func BIRDNeighbors(protocols string) ([]Neighbor, error) {
	sessions, err := birdSessions(protocols)
	if err != nil {
		return nil, err
	}
	neighbors := []Neighbor{}
	for _, s := range sessions {
		neighbors = append(neighbors, s.Neighbor)
	}
	sortNeighbors(neighbors)
	return neighbors, nil
}

// kernelRoute is a route of `ip -j -N route`. Types and protocols are numbers; those of
// most routes, unicast and boot, are left out.
type kernelRoute struct {
	Type     string
	Dst      string
	Gateway  netip.Addr
	Dev      string
	Protocol string
	Metric   int
	PrefSrc  netip.Addr
	NextHops []struct {
		Gateway netip.Addr
		Dev     string
	}
}

// KernelRoutes reads the main tables that `ip -4 -j -N route` and `ip -6 -j -N route` print, by
// prefix, then by metric. FRR's static routes are of ProtocolStatic.
func KernelRoutes(ipv4, ipv6 string) ([]Route, error) {
	routes, err := kernelRoutes(ipv4, defaultPrefix)
	if err != nil {
		return nil, err
	}
	more, err := kernelRoutes(ipv6, netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	return append(routes, more...), err
}

// kernelRoutes reads the table of a family, whose default route has a prefix.
func kernelRoutes(text string, byDefault netip.Prefix) ([]Route, error) {
	number := func(text string, absent uint8) (uint8, error) {
		if text == "" {
			return absent, nil
		}
		n, err := strconv.ParseUint(text, 10, 8)
		return uint8(n), err
	}
	routes := []Route{}
	in := json.NewDecoder(strings.NewReader(text))
	err := elements(in, '[', func() error {
		var from kernelRoute
		if err := in.Decode(&from); err != nil {
			return err
		}
		r := Route{Prefix: byDefault, Metric: from.Metric, Source: from.PrefSrc}
		kind, err := number(from.Type, uint8(TypeUnicast))
		r.Type = Type(kind)
		var by uint8
		if err == nil {
			by, err = number(from.Protocol, uint8(ProtocolBoot))
		}
		if r.Protocol = Protocol(by); r.Protocol == protocolZStatic {
			r.Protocol = ProtocolStatic
		}
		if err == nil && from.Dst != "default" {
			r.Prefix, err = prefixOrAddress(from.Dst)
		}
		if err != nil {
			return fmt.Errorf("the route to %q: %w", from.Dst, err)
		}
		if from.Dev != "" && r.Type == TypeUnicast { // of IPv6 those that discard packets are on lo
			r.NextHops = append(r.NextHops, NextHop{Address: from.Gateway, Interface: from.Dev})
		}
		for _, hop := range from.NextHops {
			r.NextHops = append(r.NextHops, NextHop{Address: hop.Gateway, Interface: hop.Dev})
		}
		slices.SortFunc(r.NextHops, compareHops)
		routes = append(routes, r)
		return nil
	})
	if err == nil {
		err = ended(in)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the routes of ip(8): %w", err)
	}
	slices.SortFunc(routes, compareRoutes)
	return routes, nil
}

// prefixOrAddress reads a prefix; ip(8) prints that of one address without its length.
func prefixOrAddress(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return netip.ParsePrefix(text)
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return a.Prefix(a.BitLen())
}
