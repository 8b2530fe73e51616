package snapshot

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// FirewallReader lists the rules of a node's filter table.
type FirewallReader func(context.Context) ([]Rule, error)

// Firewall is the filter table of one node.
type Firewall struct {
	Node  string     `json:"node"`
	Rules List[Rule] `json:"rules"`
}

// Rule is one rule of a filter table, as far as it is understood here: where
// it stands, whom it concerns and where it leads.
type Rule struct {
	Chain string `json:"chain"`
	// Source and Destination are invalid where the rule does not look at them,
	// or excludes what it names.
	Source      netip.Prefix `json:"source,omitzero"`
	Destination netip.Prefix `json:"destination,omitzero"`
	// Target is a chain, or a verdict such as ACCEPT; empty if there is none.
	Target  string `json:"target,omitempty"`
	Comment string `json:"comment,omitempty"`
	// Conditional tells that the rule looks at something else as well.
	Conditional bool `json:"conditional,omitempty"`
}

// ParseFilter reads the filter table from what iptables-save prints, in its
// order.
func ParseFilter(saved string) ([]Rule, error) {
	var rules []Rule
	table := ""
	number := 0
	for line := range strings.Lines(saved) {
		number++
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = name
		}
		if table != "filter" || !strings.HasPrefix(line, "-A ") {
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
var takesValue = []string{"-A", "-s", "-d", "-j", "-g", "-m", "--comment"}

func parseRule(line string) (Rule, error) {
	words, err := ruleWords(line)
	if err != nil {
		return Rule{}, err
	}
	var r Rule
	negated := false
	for len(words) > 0 && r.Target == "" { // what follows the target are its own options
		word, value := words[0], ""
		if words = words[1:]; word == "!" {
			negated = true
			continue
		}
		// A flag that takes no value is followed by the next one.
		if len(words) > 0 && (slices.Contains(takesValue, word) || !strings.HasPrefix(words[0], "-") && words[0] != "!") {
			value, words = words[0], words[1:]
		}
		switch word {
		case "-A":
			r.Chain = value
		case "-s", "-d":
			prefix, err := parseRange(value)
			switch {
			case err != nil:
				return Rule{}, err
			case negated:
				r.Conditional = true
			case word == "-s":
				r.Source = prefix
			default:
				r.Destination = prefix
			}
		case "-j", "-g":
			r.Target = value
		case "--comment":
			r.Comment = value
		case "-m":
			r.Conditional = r.Conditional || value != "comment"
		default:
			r.Conditional = true
		}
		negated = false
	}
	if r.Chain == "" {
		return Rule{}, fmt.Errorf("no chain in %q", line)
	}
	return r, nil
}

func parseRange(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, err
		}
		return netip.PrefixFrom(addr, addr.BitLen()), nil
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
