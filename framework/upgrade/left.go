package upgrade

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// kernelScript prints what a node's kernel holds. It names no table of iptables: naming a table creates it.
const kernelScript = `
echo '== iptables'; iptables-nft-save 2>/dev/null
echo '== ip6tables'; ip6tables-nft-save 2>/dev/null
echo '== nft'; nft -s list table ip kube-proxy 2>/dev/null || true
if [ -e /proc/net/ip_tables_names ]; then echo '== iptables-legacy'; iptables-legacy-save; fi
echo '== ip rule'; ip -4 rule
echo '== ip route'; ip -4 route show table all
echo '== ipset'; ipset save
if [ -e /proc/net/ip_vs ]; then echo '== ipvs'; cat /proc/net/ip_vs; fi
echo '== conntrack'; conntrack -L 2>/dev/null
echo '== ip link'; ip -o link
echo '== ip address'; ip -o address`

const kernelScriptV6 = `
echo '== nft'; nft -s list table ip6 kube-proxy 2>/dev/null || true
echo '== ip -6 rule'; ip -6 rule
echo '== ip route'; ip -6 route show table all
echo '== conntrack'; conntrack -L -f ipv6 2>/dev/null`

// item is a rule, a route or the like in a node's kernel.
type item struct{ kind, what string }

// parseKernel parses the output of kernelScript. It omits what changes by itself: counters, ages, numbers of devices,
// seeds and sizes of hash tables, and link-local IPv6 addresses. Of connections it has only those with a translation,
// which outlives the rule; each is there once, and without the client's port, which always differs. It is long
// because each table of the kernel prints another form.
func parseKernel(text string) ([]item, error) {
	var all []item
	add := func(kind, format string, args ...any) { all = append(all, item{kind, fmt.Sprintf(format, args...)}) }
	var part, table string
	var ipvs strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if name, ok := strings.CutPrefix(line, "== "); ok {
			part, table = name, ""
			continue
		}
		words := strings.Fields(line)
		if len(words) == 0 && part != "ipvs" {
			continue
		}
		switch part {
		case "iptables", "ip6tables", "iptables-legacy":
			switch line[0] {
			case '*':
				table = line[1:]
			case ':': // name, policy and counters
				add("rule", "%s -t %s: chain %s, policy %s", part, table, strings.TrimPrefix(words[0], ":"), words[1])
			case '-', '[':
				add("rule", "%s -t %s %s", part, table, strings.TrimSpace(counters.ReplaceAllString(line, "")))
			}
		case "nft": // a table of blocks: sets, maps and chains
			switch text := strings.TrimSpace(line); {
			case text == "}":
			case strings.HasSuffix(text, "{") && !strings.Contains(text, "="):
				table = strings.TrimSuffix(text, " {")
				add("rule", "nft %s", table)
			default:
				add("rule", "nft %s: %s", table, strings.TrimSuffix(strings.TrimPrefix(text, "elements = "), ","))
			}
		case "ip rule", "ip -6 rule":
			add("rule", part+" %s", strings.Join(words, " "))
		case "ip route":
			if ofLink.MatchString(line) {
				continue
			}
			add("route", "%s", aging.ReplaceAllString(strings.Join(words, " "), ""))
		case "ipset":
			add("set", "%s", aging.ReplaceAllString(strings.Join(words, " "), ""))
		case "ipvs":
			ipvs.WriteString(line + "\n")
		case "conntrack":
			if what := translation(words); what != "" && !slices.Contains(all, item{"connection", what}) {
				add("connection", "%s", what)
			}
		case "ip link":
			if len(words) < 3 {
				return nil, fmt.Errorf("%q is not a link as ip -o link prints it", line)
			}
			state := "down"
			if slices.Contains(strings.FieldsFunc(words[2], func(r rune) bool { return strings.ContainsRune("<,>", r) }), "UP") {
				state = "up"
			}
			add("link", "%s, %s", device(words[1]), state)
		case "ip address":
			if len(words) < 4 {
				return nil, fmt.Errorf("%q is not an address as ip -o address prints it", line)
			}
			if !strings.HasPrefix(words[3], "fe80:") {
				add("address", "%s on %s", words[3], device(words[1]))
			}
		default:
			return nil, fmt.Errorf("%q is in no known part of the kernel's state", line)
		}
	}
	servers, err := snapshot.ParseIPVS(ipvs.String())
	if err != nil {
		return nil, err
	}
	for _, s := range servers {
		add("virtual server", "%s %s %s", s.Protocol, s.Address, s.Scheduler)
		for _, r := range s.Servers {
			add("virtual server", "%s %s to %s, weight %d", s.Protocol, s.Address, r.Address, r.Weight)
		}
	}
	return all, nil
}

var (
	counters = regexp.MustCompile(`\[\d+:\d+\]`)
	ofLink   = regexp.MustCompile(`^(\S+ )?(fe80:|ff00:)`)
	aging    = regexp.MustCompile(` (timeout|expires|hashsize|bucketsize|initval|packets|bytes) \S+`)
)

// translation describes the NAT of a connection, by its line of conntrack -L; empty if there is none.
func translation(words []string) string {
	values := map[string][]string{} // first of the original direction, then of the reply
	for _, word := range words {
		if key, value, ok := strings.Cut(word, "="); ok {
			values[key] = append(values[key], value)
		}
	}
	for _, key := range []string{"src", "dst", "sport", "dport"} {
		if len(values[key]) < 2 {
			return "" // a connection without ports
		}
	}
	source, target := values["src"], values["dst"]
	text := fmt.Sprintf("%s from %s to %s:%s", words[0], source[0], target[0], values["dport"][0])
	seenAs, answers := "", ""
	if target[1] != source[0] {
		seenAs = ", seen as " + target[1]
	}
	if source[1] != target[0] || values["sport"][1] != values["dport"][0] {
		answers = fmt.Sprintf(", answered by %s:%s", source[1], values["sport"][1])
	}
	if seenAs+answers == "" {
		return ""
	}
	return text + seenAs + answers
}

// device is the name of a device without its peer's.
func device(word string) string {
	name, _, _ := strings.Cut(strings.TrimSuffix(word, ":"), "@")
	return name
}

// differences are the differences between the nodes' kernels before and after, in order of node, kind and item.
func (u Upgrade) differences(before, after map[string]string) ([]Difference, error) {
	all := []Difference{}
	for _, node := range u.Nodes {
		count := map[item]int{}
		for _, side := range []struct {
			text string
			n    int
		}{{before[node], -1}, {after[node], 1}} {
			items, err := parseKernel(side.text)
			if err != nil {
				return nil, fmt.Errorf("node %s: %w", node, err)
			}
			for _, t := range items {
				if u.Normalize != nil {
					t.what = u.Normalize(t.kind, t.what)
				}
				if t.what != "" {
					count[t] += side.n
				}
			}
		}
		for t, n := range count {
			for range max(n, -n) {
				all = append(all, Difference{Node: node, Kind: t.kind, What: t.what, Added: n > 0})
			}
		}
	}
	slices.SortFunc(all, func(a, b Difference) int {
		node := cmp.Compare(slices.Index(u.Nodes, a.Node), slices.Index(u.Nodes, b.Node))
		return cmp.Or(node, cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.What, b.What))
	})
	return all, nil
}

// withoutPods is a Normalize for a component with pods of its own. It omits the interfaces of pods, kube-proxy's rules
// for the component's Services (a prefix of their names), and connections to ports and to the API server.
func withoutPods(services string, ports ...string) func(kind, what string) string {
	ports = append(ports, ":443")
	return func(kind, what string) string {
		switch kind {
		case "link", "address", "route":
			if strings.Contains(what, "veth") {
				return ""
			}
		case "rule":
			if strings.Contains(what, services) || strings.Contains(what, ": chain KUBE-SEP-") {
				return ""
			}
		case "connection":
			for word := range strings.FieldsSeq(what) {
				if slices.ContainsFunc(ports, func(p string) bool { return strings.HasSuffix(strings.TrimSuffix(word, ","), p) }) {
					return ""
				}
			}
		}
		return what
	}
}
