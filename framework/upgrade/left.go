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
echo '== ip link'; ip -o link
echo '== ip address'; ip -o address`

// thing is something that a kernel holds.
type thing struct{ kind, what string }

// parseKernel reads what kernelScript prints. What changes by itself is left out:
// counters, ages, numbers of devices, seeds and sizes of hash tables, addresses of
// link-local IPv6.
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
