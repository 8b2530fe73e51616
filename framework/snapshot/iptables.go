package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Rule is one rule of an iptables table: its chain, the addresses and the interface that it matches, and its target.
// Conditional reports that it has other conditions.
type Rule struct {
	Chain       string `json:"chain"`
	Source      Match  `json:"source,omitzero"`
	Destination Match  `json:"destination,omitzero"`
	// Out is the interface that the packet leaves by, with a "!" before it for
	// all others; a "+" at its end is any rest of the name.
	Out string `json:"out,omitempty"`
	// Target is a chain, or what is done: MASQUERADE, ACCEPT, REJECT and so on;
	// empty if there is none. To is the address of an SNAT.
	Target  string     `json:"target,omitempty"`
	To      netip.Addr `json:"to,omitzero"`
	Comment string     `json:"comment,omitempty"`
	// Conditional is true if the rule has other matches as well.
	Conditional bool `json:"conditional,omitempty"`
	// Unmarked is true if one of those conditions is that a mark is not set.
	Unmarked bool `json:"unmarked,omitempty"`
	// Text is the rule as iptables-save prints it.
	Text string `json:"text"`
}

func ruleState(table, node string) func(Rule, *statements) {
	return func(r Rule, to *statements) {
		if to.bulk {
			to.add(Kernel, table+" of "+node, node, "", "%s", r.Text).Rule = true
		}
	}
}

// Match is a range of addresses, or all but that range. The zero Match is any address.
type Match struct {
	Range netip.Prefix `json:"range,omitzero"`
	Not   bool         `json:"not,omitempty"`
}

// Matches reports whether an address is in the match.
func (m Match) Matches(a netip.Addr) bool {
	return !m.Range.IsValid() || m.Range.Contains(a) != m.Not
}

// Tables of iptables that are read here.
const (
	FilterTable = "filter"
	NATTable    = "nat"
)

// ParseRules reads one table from what iptables-save prints, in its order.
func ParseRules(saved, table string) ([]Rule, error) {
	rules := []Rule{}
	section := ""
	number := 0
	for line := range strings.Lines(saved) {
		number++
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			section = name
		}
		if section != table || !strings.HasPrefix(line, "-A ") {
			continue
		}
		rule, err := parseRule(line)
		if err != nil {
			return nil, fmt.Errorf("line %d of iptables-save's output: %w", number, err)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// takesValue are flags whose value may look like a flag.
var takesValue = []string{"-A", "-s", "-d", "-i", "-o", "-j", "-g", "-m", "--comment"}

func parseRule(line string) (Rule, error) {
	words, err := ruleWords(line)
	if err != nil {
		return Rule{}, err
	}
	r := Rule{Text: line}
	not := false
	for len(words) > 0 {
		word, value := words[0], ""
		if words = words[1:]; word == "!" {
			not = true
			continue
		}
		// A flag that takes no value is followed by the next one.
		if len(words) > 0 && (slices.Contains(takesValue, word) || !strings.HasPrefix(words[0], "-") && words[0] != "!") {
			value, words = words[0], words[1:]
		}
		if err := r.take(word, value, not); err != nil {
			return Rule{}, fmt.Errorf("%s in %q: %w", word, line, err)
		}
		not = false
	}
	if r.Chain == "" {
		return Rule{}, fmt.Errorf("no chain in %q", line)
	}
	return r, nil
}

// take notes one flag of the rule, which "!" may precede.
func (r *Rule) take(flag, value string, not bool) error {
	var err error
	switch {
	case flag == "--to-source":
		// The first address; ports, and the rest of a range, are ignored.
		first, _, _ := strings.Cut(value, "-")
		first, _, _ = strings.Cut(first, ":")
		r.To, err = netip.ParseAddr(first)
	case r.Target != "": // what follows the target are its own options
	case flag == "-A":
		r.Chain = value
	case flag == "-s":
		r.Source.Not = not
		r.Source.Range, err = parseRange(value)
	case flag == "-d":
		r.Destination.Not = not
		r.Destination.Range, err = parseRange(value)
	case flag == "-o" && not:
		r.Out = "!" + value
	case flag == "-o":
		r.Out = value
	case flag == "-j" || flag == "-g":
		r.Target = value
	case flag == "--comment":
		r.Comment = value
	case flag == "--mark" && not:
		r.Conditional, r.Unmarked = true, true
	case flag == "-m":
		r.Conditional = r.Conditional || value != "comment"
	default:
		r.Conditional = true
	}
	return err
}

func parseRange(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		addr, err := netip.ParseAddr(text)
		return netip.PrefixFrom(addr, addr.BitLen()), err
	}
	return netip.ParsePrefix(text)
}

// ruleWords splits a line as iptables-restore does: words in double quotes
// may have blanks in them, and a backslash takes the next character as it is.
func ruleWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	begun, quoted, escaped := false, false, false
	for _, c := range line {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\':
			escaped, begun = true, true
		case c == '"':
			quoted, begun = !quoted, true
		case c == ' ' && !quoted:
			if begun {
				words = append(words, word.String())
				word.Reset()
			}
			begun = false
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	if quoted || escaped {
		return nil, fmt.Errorf("a quotation does not end in %q", line)
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

// savedRules are the rules of one table, as one of a node's own programs prints them. The programs of the machine
// that collects may be of another kind (legacy or nft), and would not see the node's rules.
//
// The program is run in the node's namespaces and not by the Machine's Exec, which takes several
// times as long where that is a container: rules are read several times a second. It needs the
// node's process namespace too, for /proc/net, in which iptables-legacy-save finds the tables.
func savedRules(ctx context.Context, m Machine, table, program string, args ...string) ([]Rule, error) {
	pid, err := m.PID(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding the node's process: %w", err)
	}
	command := append([]string{"nsenter", "--target", strconv.Itoa(pid), "--mount", "--net", "--pid", "--", program}, args...)
	_, own := m.(Own)
	if own {
		command = command[slices.Index(command, program):]
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay = time.Second // the program is a child of nsenter's, and may keep the pipe open
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	saved, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("running %s: %w: %s", strings.Join(command, " "), err, strings.TrimSpace(complaint.String()))
	}
	if own && strings.Contains(string(saved), "# Table `"+table+"' is incompatible") {
		return nil, fmt.Errorf("running %s: it cannot print all rules of table %s", program, table)
	}
	return ParseRules(string(saved), table)
}

const (
	nftSave    = "iptables-nft-save"
	legacySave = "iptables-legacy-save"
)

// rulesOfBothKinds are the rules of a table that the nft kind of iptables has made, then the rules of the legacy
// kind.
func rulesOfBothKinds(ctx context.Context, m Machine, table string) ([]Rule, error) {
	var all []Rule
	for _, program := range []string{nftSave, legacySave} {
		if own, is := m.(Own); is {
			saves, err := own.saves(program, table)
			if err != nil {
				return nil, err
			}
			if !saves {
				continue
			}
		}
		// The program is given no table: to name one creates it where it is missing.
		rules, err := savedRules(ctx, m, table, program)
		if err != nil {
			return nil, err
		}
		all = append(all, rules...)
	}
	return all, nil
}

// ChainsFrom are a chain of a table, and the chains that packets can reach from it.
func ChainsFrom(rules []Rule, chain string) []string {
	chains := []string{chain}
	for i := 0; i < len(chains); i++ {
		for _, r := range rules {
			if r.Chain == chains[i] && r.Target != "" && !slices.Contains(chains, r.Target) {
				chains = append(chains, r.Target)
			}
		}
	}
	return chains
}
