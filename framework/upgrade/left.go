package upgrade

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// kernelScript prints what a node's kernel holds, part by part. A table of iptables is
// not named: to name one makes it where it is not there.
const kernelScript = `
echo '== iptables'; iptables-nft-save 2>/dev/null
echo '== ip6tables'; ip6tables-nft-save 2>/dev/null
if [ -e /proc/net/ip_tables_names ]; then echo '== iptables-legacy'; iptables-legacy-save; fi
echo '== ip rule'; ip -4 rule
echo '== ip route'; ip -4 route show table all
echo '== ipset'; ipset save
if [ -e /proc/net/ip_vs ]; then echo '== ipvs'; cat /proc/net/ip_vs; fi
echo '== conntrack'; conntrack -L 2>/dev/null
echo '== ip link'; ip -o link
echo '== ip address'; ip -o address`

// thing is something that a kernel holds.
type thing struct{ kind, what string }

// parseKernel reads what kernelScript prints. What changes by itself is left out:
// counters, ages, numbers of devices, seeds and sizes of hash tables, addresses of
// link-local IPv6. Of connections those are told whose addresses are translated, each
// sort once: a kernel keeps to what it has once done to a connection, whoever has made
// the rule, and a port of the client's is another one with each.
func parseKernel(text string) ([]thing, error) {
	var all []thing
	add := func(kind, format string, args ...any) { all = append(all, thing{kind, fmt.Sprintf(format, args...)}) }
	var part, table string
	var ipvs strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if name, is := strings.CutPrefix(line, "== "); is {
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
		case "ip rule":
			add("rule", "ip rule %s", strings.Join(words, " "))
		case "ip route":
			add("route", "%s", aging.ReplaceAllString(strings.Join(words, " "), ""))
		case "ipset":
			add("set", "%s", aging.ReplaceAllString(strings.Join(words, " "), ""))
		case "ipvs":
			ipvs.WriteString(line + "\n")
		case "conntrack":
			if what := translation(words); what != "" && !slices.Contains(all, thing{"connection", what}) {
				add("connection", "%s", what)
			}
		case "ip link":
			if len(words) < 3 {
				return nil, fmt.Errorf("%q is no link", line)
			}
			state := "down"
			if slices.Contains(strings.FieldsFunc(words[2], func(r rune) bool { return strings.ContainsRune("<,>", r) }), "UP") {
				state = "up"
			}
			add("link", "%s, %s", device(words[1]), state)
		case "ip address":
			if len(words) < 4 {
				return nil, fmt.Errorf("%q is no address", line)
			}
			if !strings.HasPrefix(words[3], "fe80:") {
				add("address", "%s on %s", words[3], device(words[1]))
			}
		default:
			return nil, fmt.Errorf("%q is in no part of what a kernel holds", line)
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
	aging    = regexp.MustCompile(` (timeout|expires|hashsize|bucketsize|initval|packets|bytes) \S+`)
)

// translation says what a kernel does to the addresses of a connection, by what
// conntrack -L prints of it; empty where it leaves them.
func translation(words []string) string {
	values := map[string][]string{} // there, and then back
	for _, word := range words {
		if key, value, is := strings.Cut(word, "="); is {
			values[key] = append(values[key], value)
		}
	}
	for _, key := range []string{"src", "dst", "sport", "dport"} {
		if len(values[key]) < 2 {
			return "" // it has no ports
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

// device is the name of a device without that of its other end.
func device(word string) string {
	name, _, _ := strings.Cut(strings.TrimSuffix(word, ":"), "@")
	return name
}

// differences are those between what the kernels of nodes held before and after, in
// order of node, kind and thing.
func (u Upgrade) differences(before, after map[string]string) ([]Difference, error) {
	all := []Difference{}
	for _, node := range u.Nodes {
		count := map[thing]int{}
		for _, side := range []struct {
			text string
			n    int
		}{{before[node], -1}, {after[node], 1}} {
			things, err := parseKernel(side.text)
			if err != nil {
				return nil, fmt.Errorf("node %s: %w", node, err)
			}
			for _, t := range things {
				if u.Steady != nil {
					t.what = u.Steady(t.kind, t.what)
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
		return cmp.Or(cmp.Compare(slices.Index(u.Nodes, a.Node), slices.Index(u.Nodes, b.Node)), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.What, b.What))
	})
	return all, nil
}
