package archive

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// scanner replaces addresses and words in text.
type scanner struct {
	// ip maps an address, given with the prefix length after it, -1 for none.
	ip  func(netip.Addr, int) netip.Addr
	mac func([6]byte) [6]byte
	// words are whole words with their replacements.
	words index
}

// index finds words by the letters and digits that they begin with.
type index map[string][]replacement

type replacement struct{ from, to string }

// add adds a word. The longest that fits is taken.
func (x index) add(from, to string) {
	head := from[:run(from, 0, isAlphanumeric)]
	x[head] = append(x[head], replacement{from, to})
	slices.SortFunc(x[head], func(a, b replacement) int { return len(b.from) - len(a.from) })
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isHexColon(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' || c == ':'
}

// run is the end of the bytes of a kind that begin at a place.
func run(text string, at int, is func(byte) bool) int {
	for at < len(text) && is(text[at]) {
		at++
	}
	return at
}

// plain replaces in a text without encodings. Words end where letters and digits end, so
// a name is also found inside names that are composed of it.
func (s scanner) plain(text string) string {
	var out strings.Builder
	copied := 0
	put := func(from, to int, with string) {
		out.WriteString(text[copied:from])
		out.WriteString(with)
		copied = to
	}
	for i := 0; i < len(text); {
		c := text[i]
		if n := escape(text[i:]); n > 0 {
			i += n
			continue
		}
		if !isAlphanumeric(c) && !(c == ':' && i+1 < len(text) && text[i+1] == ':') {
			i++
			continue
		}
		if end, with := s.colons(text, i); end > 0 {
			put(i, end, with)
			i = end
			continue
		}
		if end, with := s.dots(text, i); end > 0 {
			put(i, end, with)
			i = end
			continue
		}
		end := max(i+1, run(text, i, isAlphanumeric))
		for _, w := range s.words[text[i:end]] {
			if after := i + len(w.from); strings.HasPrefix(text[i:], w.from) && (after == len(text) || !isAlphanumeric(text[after])) {
				put(i, after, w.to)
				end = after
				break
			}
		}
		i = end
	}
	if copied == 0 {
		return text
	}
	out.WriteString(text[copied:])
	return out.String()
}

// escapes are escaped characters of URLs and quoted strings. Their letters belong to no
// word.
var escapes = regexp.MustCompile(`^(?:%[0-9A-Fa-f]{2}|\\(?:u[0-9a-f]{4}|x[0-9a-f]{2}|[abfnrtv]))`)

// escape is the length of the escape at the beginning of a text; 0 if there is none.
func escape(text string) int {
	if text[0] != '%' && text[0] != '\\' {
		return 0
	}
	return len(escapes.FindString(text[:min(len(text), 6)]))
}

// colons returns the end of the MAC or IPv6 address at a place, and its replacement; 0 if
// there is none.
func (s scanner) colons(text string, at int) (end int, with string) {
	end = run(text, at, isHexColon)
	token := text[at:end]
	if strings.Count(token, ":") < 2 || at > 0 && text[at-1] == ':' ||
		end < len(text) && (isAlphanumeric(text[end]) || text[end] == '.' && end+1 < len(text) && isDigit(text[end+1])) {
		return 0, ""
	}
	var m [6]byte
	if len(token) == 17 && strings.Count(token, ":") == 5 {
		for i, part := range strings.Split(token, ":") {
			n, err := strconv.ParseUint(part, 16, 8)
			if err != nil || len(part) != 2 {
				return 0, ""
			}
			m[i] = byte(n)
		}
		to := s.mac(m)
		return end, fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", to[0], to[1], to[2], to[3], to[4], to[5])
	}
	if !strings.HasSuffix(token, "::") { // a colon after the address
		end -= len(token) - len(strings.TrimSuffix(token, ":"))
		token = text[at:end]
	}
	a, err := netip.ParseAddr(token)
	if err != nil {
		return 0, ""
	}
	return s.address(text, a, end)
}

// dots is the same for an IPv4 address.
func (s scanner) dots(text string, at int) (end int, with string) {
	if !isDigit(text[at]) || at > 1 && text[at-1] == '.' && isAlphanumeric(text[at-2]) {
		return 0, ""
	}
	end = run(text, at, func(c byte) bool { return isDigit(c) || c == '.' })
	for end > at && text[end-1] == '.' { // the end of a sentence
		end--
	}
	a, err := netip.ParseAddr(text[at:end])
	if err != nil || end < len(text) && isAlphanumeric(text[end]) {
		return 0, ""
	}
	return s.address(text, a, end)
}

// address returns the end of an address and its replacement, by the length after it.
func (s scanner) address(text string, a netip.Addr, end int) (int, string) {
	bits := -1
	if rest := text[end:]; strings.HasPrefix(rest, "/") {
		to := run(rest, 1, isDigit)
		if n, err := strconv.Atoi(rest[1:to]); err == nil && n <= a.BitLen() && (to == len(rest) || !isAlphanumeric(rest[to])) {
			bits = n
		}
	}
	return end, s.ip(a, bits).String()
}

// Addresses in other forms: six bytes as in C, and base64 text, such as the comment at the
// end of Cilium's node_config.h.
var (
	sixBytes = regexp.MustCompile(`0x[0-9a-fA-F]{1,2}(?:, ?0x[0-9a-fA-F]{1,2})+`)
	encoded  = regexp.MustCompile(`[A-Za-z0-9+/]{64,}={0,2}`)
)

// text replaces in a text that may contain encoded parts.
func (s scanner) text(text string) string {
	if strings.Contains(text, "0x") {
		text = sixBytes.ReplaceAllStringFunc(text, s.bytes)
	}
	if len(text) >= 64 {
		text = encoded.ReplaceAllStringFunc(text, func(token string) string {
			inner, err := base64.StdEncoding.DecodeString(token)
			if err != nil || !utf8.Valid(inner) {
				return token
			}
			if to := s.text(string(inner)); to != string(inner) {
				return base64.StdEncoding.EncodeToString([]byte(to))
			}
			return token
		})
	}
	return s.plain(text)
}

func (s scanner) bytes(list string) string {
	parts := strings.Split(list, ",")
	if len(parts) != 6 {
		return list
	}
	var m [6]byte
	for i, part := range parts {
		n, _ := strconv.ParseUint(strings.TrimSpace(part), 0, 8) // sixBytes matches only valid ones
		m[i] = byte(n)
	}
	to := s.mac(m)
	if to == m {
		return list
	}
	for i := range parts {
		parts[i] = fmt.Sprintf("0x%x", to[i])
	}
	return strings.Join(parts, ",")
}

// states are fields whose values belong to the format and stay, even if a node has the
// same name.
var states = []string{"role", "kind", "state", "form", "verdict", "expected", "detector", "schema", "scenario", "evidence", "protocol", "type", "origin"}

// json replaces in the strings of JSON and leaves everything else as it is. Keeps reports
// whether a key is a field of a format.
func (s scanner) json(text []byte, keeps func(key string) bool) []byte {
	var out []byte
	copied, key := 0, ""
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '{' || c == '}' || c == '[' || c == ']' || c == ',':
			key = ""
			continue
		case c != '"':
			continue
		}
		begin := i
		for i++; i < len(text) && text[i] != '"'; i++ {
			if text[i] == '\\' {
				i++
			}
		}
		if i >= len(text) {
			break
		}
		raw := text[begin : i+1]
		value := string(raw[1 : len(raw)-1])
		if strings.Contains(value, `\`) && json.Unmarshal(raw, &value) != nil {
			continue
		}
		after := i + 1
		for after < len(text) && (text[after] == ' ' || text[after] == '\n' || text[after] == '\t') {
			after++
		}
		if after < len(text) && text[after] == ':' {
			key = value
			if keeps(key) {
				continue
			}
		} else if slices.Contains(states, key) {
			continue
		}
		with := s.text(value)
		if with == value {
			continue
		}
		out = append(append(out, text[copied:begin]...), quoted(with)...)
		copied = i + 1
	}
	if copied == 0 {
		return text
	}
	return append(out, text[copied:]...)
}

// quoted is a JSON string. A ">" is not escaped: probes' names have it, and people read
// them.
func quoted(text string) []byte {
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string, which cannot fail
	return []byte(strings.TrimSuffix(out.String(), "\n"))
}
