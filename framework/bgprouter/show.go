package bgprouter

import (
	"net"
	"net/netip"
	"slices"

	"al.essio.dev/pkg/shellescape"
)

// shows are, by kind, the commands that show one prefix of a router's RIB. They change nothing.
var shows = map[Kind]func(Declared, netip.Prefix) []string{
	FRR: func(_ Declared, p netip.Prefix) []string {
		return []string{"vtysh", "-c", "show bgp " + either(p, "ipv4", "ipv6") + " unicast " + p.String()}
	},
	BIRD: func(_ Declared, p netip.Prefix) []string {
		return []string{"birdc", "-r", "show route " + p.String() + " all"}
	},
	GoBGP: func(d Declared, p netip.Prefix) []string {
		host, port, _ := net.SplitHostPort(d.Address) // Parse has checked it
		command := []string{"gobgp", "--host=" + host, "--port=" + port}
		if !d.Plaintext {
			command = append(command, "--tls")
		}
		for _, file := range []struct{ flag, name string }{{"--tls-ca-file=", d.CA}, {"--tls-client-cert-file=", d.Cert},
			{"--tls-client-key-file=", d.Key}} {
			if file.name != "" {
				command = append(command, file.flag+file.name)
			}
		}
		return append(command, "global", "rib", p.String(), "--address-family="+either(p, "ipv4", "ipv6"))
	},
	MRT: func(d Declared, p netip.Prefix) []string {
		return []string{"sh", "-c", "bgpdump -m " + shellescape.Quote(d.File) + " | grep -F '|" + p.String() + "|'"}
	},
}

func either(p netip.Prefix, v4, v6 string) string {
	if p.Addr().Is4() {
		return v4
	}
	return v6
}

// Show returns the command lines, for a shell, that show a router's routes to a prefix: its RIB, then
// its FIB. They run where the file of routers is used. The program of a router without a kind, or of
// kind bmp, is not known: then the commands of FRR and of BIRD are returned.
func Show(d Declared, p netip.Prefix) []string {
	var lines []string
	add := func(command []string) { lines = append(lines, d.byHand(command)) }
	switch d.Kind {
	case "", BMP:
		add(shows[FRR](d, p))
		add(shows[BIRD](d, p))
	case GoBGP, MRT: // the router is asked, or the dump read, from here
		lines = append(lines, shellescape.QuoteCommand(shows[d.Kind](d, p)))
	default:
		add(shows[d.Kind](d, p))
	}
	if d.Kind == "" || d.Kind == BMP || d.hasFIB() {
		add([]string{"ip", either(p, "-4", "-6"), "route", "show", "to", "exact", p.String()})
	}
	return lines
}

// ShowLink is the command line that shows the station to which a router sends packets for an address.
func ShowLink(d Declared, p netip.Prefix) []string {
	return []string{d.byHand([]string{"ip", "neigh", "show", "to", p.Addr().String()})}
}

// byHand is the command line, for a shell, that runs a command on the router.
func (d Declared) byHand(command []string) string {
	line := shellescape.QuoteCommand(slices.Concat(d.Command, d.as(command)))
	if d.SSH != "" {
		line = shellescape.QuoteCommand([]string{"ssh", d.SSH, line})
	}
	return line
}
