package bgp

import (
	"context"
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

// FRR reads FRR 7 to 10.
type FRR struct {
	// Show runs a command of vtysh and returns its output.
	Show func(ctx context.Context, command string) (string, error)
}

// RIB lists the paths of the default VRF's unicast table of IPv4, or of IPv6, by prefix, the best
// path and other forwarding paths first. The error is an ErrRefused if FRR has no such table.
func (f FRR) RIB(ctx context.Context, v6 bool) ([]Path, error) {
	command := "show bgp ipv4 unicast json"
	if v6 {
		command = "show bgp ipv6 unicast json"
	}
	return ask(ctx, f.Show, vtysh, command, FRRPaths)
}

// Neighbors lists the sessions in order of address.
func (f FRR) Neighbors(ctx context.Context) ([]Neighbor, error) {
	return ask(ctx, f.Show, vtysh, "show bgp neighbors json", FRRNeighbors)
}

// VRFs lists the names of the VRFs with a BGP instance, but for the default one, in order.
func (f FRR) VRFs(ctx context.Context) ([]string, error) {
	return ask(ctx, f.Show, vtysh, "show bgp vrfs json", FRRVRFs)
}

const vtysh = "vtysh -c "

func ask[T any](
	ctx context.Context, run func(context.Context, string) (string, error), program, command string, read func(string) (T, error),
) (answer T, err error) {
	text, err := run(ctx, command)
	if err != nil {
		return answer, err
	}
	if answer, err = read(text); err != nil {
		return answer, fmt.Errorf("%s%s: %w", program, command, err)
	}
	return answer, nil
}

// frrListed is a path in the output of `show bgp ipv4 unicast json`, which has less than with "detail", and
// the same form from FRR 7 to 10.
type frrListed struct {
	BestPath  bool
	Multipath bool
	PathFrom  string // external, internal
	PeerID    string // an interface for a session without addresses
	NhVRFName string // only in paths that are imported from another VRF
	Path      string
	Origin    string
	Metric    uint32
	LocPrf    *uint32
	NextHops  []struct{ IP netip.Addr }
}

// frrNoPeer is the peer of a path that the router itself originates, or has imported from another VRF.
const frrNoPeer = "(unspec)"

// ErrRefused is the error of a router that refuses a request, for example for an address family that it
// does not have.
var ErrRefused = errors.New("refused")

// FRRPaths reads the RIB that `vtysh -c 'show bgp ipv4 unicast json'` (or ipv6) prints, without the times at
// which paths were received. A path of a session that has no address is an error. A refusal of FRR is
// an ErrRefused.
//
// The prefixes are read one by one: of a million, all at once would take three times the memory.
func FRRPaths(text string) ([]Path, error) {
	if err := frrRefusal(text); err != nil {
		return nil, fmt.Errorf("reading FRR's RIB: %w", err)
	}
	var warning string
	var paths []Path
	decoder := json.NewDecoder(strings.NewReader(text))
	err := fields(decoder, func(name string) error {
		switch name {
		case "warning":
			return decoder.Decode(&warning)
		case "routes":
			paths = []Path{}
			return fields(decoder, func(text string) error {
				prefix, err := netip.ParsePrefix(text)
				if err != nil {
					return err
				}
				var listed []frrListed
				if err := decoder.Decode(&listed); err != nil {
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
		return decoder.Decode(&other)
	})
	if err == nil {
		err = ended(decoder)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading FRR's RIB: %w", err)
	case warning != "":
		return nil, fmt.Errorf("reading FRR's RIB: %w: %s", ErrRefused, warning)
	case paths == nil:
		return nil, errors.New("reading FRR's RIB: the answer has no routes")
	}
	sortPaths(paths)
	return paths, nil
}

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
	if from.PeerID != frrNoPeer || from.Path != "" || from.NhVRFName != "" {
		if !p.NextHop.IsValid() {
			return Path{}, fmt.Errorf("the path to %s from %q has no next hop", prefix, from.PeerID)
		}
		var err error
		if p.Neighbor, err = netip.ParseAddr(from.PeerID); err != nil && !p.NextHop.IsUnspecified() {
			p.Neighbor = p.NextHop // on an interface without addresses, or in another VRF; an aggregate has none
		}
	}
	for word := range strings.FieldsFuncSeq(from.Path, func(r rune) bool { return strings.ContainsRune(" {},()", r) }) {
		as, err := parseAS(word)
		if err != nil {
			return Path{}, fmt.Errorf("AS path %q of %s: %w", from.Path, prefix, err)
		}
		p.ASPath = append(p.ASPath, as)
	}
	return p, nil
}

// fields reads an object of JSON. One reads the value of a field.
func fields(decoder *json.Decoder, one func(name string) error) error {
	return elements(decoder, '{', func() error {
		name, err := decoder.Token()
		if err != nil {
			return err
		}
		return one(name.(string)) // the decoder takes nothing else here
	})
}

// elements reads a JSON array or object. One reads an element.
func elements(decoder *json.Decoder, opens json.Delim, one func() error) error {
	if token, err := decoder.Token(); err != nil {
		return err
	} else if token != opens {
		return fmt.Errorf("want %s, got %v", opens, token)
	}
	for decoder.More() {
		if err := one(); err != nil {
			return err
		}
	}
	_, err := decoder.Token()
	return err
}

// ended returns an error if something follows what was read.
func ended(decoder *json.Decoder) error {
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after the end of the JSON")
	}
	return nil
}

// frrRefusal is the error for a message of vtysh in place of JSON.
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

// frrDefaultVRF is FRR's name for the default VRF.
const frrDefaultVRF = "default"

// FRRVRFs reads what `vtysh -c 'show bgp vrfs json'` prints: the names of the VRFs with a BGP
// instance, but for the default one, in order. A refusal of FRR is an ErrRefused.
func FRRVRFs(text string) ([]string, error) {
	var answer struct {
		Warning string
		VRFs    map[string]struct{}
	}
	err := frrRefusal(text)
	if err == nil {
		err = json.Unmarshal([]byte(text), &answer)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading FRR's VRFs: %w", err)
	case answer.Warning != "":
		return nil, fmt.Errorf("reading FRR's VRFs: %w: %s", ErrRefused, answer.Warning)
	case answer.VRFs == nil:
		return nil, errors.New("reading FRR's VRFs: the answer has no vrfs")
	}
	delete(answer.VRFs, frrDefaultVRF)
	return slices.Sorted(maps.Keys(answer.VRFs)), nil
}

// parseAS reads an AS number, as a number or in the notation of FRR's "as-notation dot".
func parseAS(text string) (uint32, error) {
	high, low, dotted := strings.Cut(text, ".")
	if !dotted {
		as, err := strconv.ParseUint(text, 10, 32)
		return uint32(as), err
	}
	first, err := strconv.ParseUint(high, 10, 16)
	if err != nil {
		return 0, err
	}
	second, err := strconv.ParseUint(low, 10, 16)
	return uint32(first<<16 | second), err
}

// frrAS is an AS number, which is a string in the notation with dots.
type frrAS uint32

func (a *frrAS) UnmarshalJSON(text []byte) error {
	as, err := parseAS(strings.Trim(string(text), `"`))
	*a = frrAS(as)
	return err
}

// frrNeighbor is a value in FRR 10's output of `show bgp neighbors json`. The key is an address, or an
// interface for a session without addresses.
type frrNeighbor struct {
	// BGPNeighborAddr is the link-local address of a neighbour on an interface.
	BGPNeighborAddr string
	RemoteAS        frrAS
	RemoteRouterID  netip.Addr
	BGPState        string
	// BGPTimerUpEstablishedEpoch is in seconds since 1970. It is set while the session is up.
	BGPTimerUpEstablishedEpoch int64
	// PrefixStats is not there in FRR 7.
	PrefixStats       *struct{ InboundFiltered uint64 }
	AddressFamilyInfo struct {
		IPv4Unicast frrFamily
	}
	PeerBFDInfo struct{ Status string }
}

// frrFamily is an address family of a neighbour.
type frrFamily struct {
	AcceptedPrefixCounter uint64
	// InboundPathPolicyConfig is set if there is a filter; the others are its names.
	InboundPathPolicyConfig                                         bool
	RouteMapForIncomingAdvertisements                               string
	IncomingUpdatePrefixFilterList, IncomingUpdateNetworkFilterList string
}

func (f frrFamily) filters() bool {
	lists := f.IncomingUpdatePrefixFilterList + f.IncomingUpdateNetworkFilterList
	return f.InboundPathPolicyConfig || f.RouteMapForIncomingAdvertisements+lists != ""
}

// FRRNeighbors reads what `vtysh -c 'show bgp neighbors json'` prints. A session on an interface
// has the address of the neighbour there, which is not known before it has been up.
func FRRNeighbors(text string) ([]Neighbor, error) {
	if err := frrRefusal(text); err != nil {
		return nil, fmt.Errorf("reading FRR's neighbours: %w", err)
	}
	byAddress := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(text), &byAddress); err != nil {
		return nil, fmt.Errorf("reading FRR's neighbours: %w", err)
	}
	neighbors := []Neighbor{}
	for key, value := range byAddress {
		if key == "warning" {
			return nil, fmt.Errorf("reading FRR's neighbours: %s", value)
		}
		if !strings.HasPrefix(string(value), "{") {
			continue // an attribute of the instance, such as "vrfName"
		}
		var from frrNeighbor
		if err := json.Unmarshal(value, &from); err != nil {
			return nil, fmt.Errorf("reading FRR's neighbour %s: %w", key, err)
		}
		addr, err := netip.ParseAddr(key)
		if err != nil {
			addr, _ = netip.ParseAddr(from.BGPNeighborAddr)
		}
		n := Neighbor{Address: addr, AS: uint32(from.RemoteAS), State: strings.ToLower(from.BGPState),
			BFD: strings.ToLower(from.PeerBFDInfo.Status)}
		if n.State == StateEstablished {
			n.RouterID = from.RemoteRouterID
			n.Established = time.Unix(from.BGPTimerUpEstablishedEpoch, 0).UTC()
			n.Accepted = from.AddressFamilyInfo.IPv4Unicast.AcceptedPrefixCounter
			n.Received = n.Accepted
			if from.PrefixStats != nil {
				n.Received += from.PrefixStats.InboundFiltered
			}
			n.MayReject = from.PrefixStats == nil && from.AddressFamilyInfo.IPv4Unicast.filters()
		}
		neighbors = append(neighbors, n)
	}
	sortNeighbors(neighbors)
	return neighbors, nil
}
