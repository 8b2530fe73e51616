package archive

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type scanner struct {
	// ip maps an address, given with the prefix length after it, -1 for none.
	ip  func(netip.Addr, int) netip.Addr
	mac func(net.HardwareAddr) net.HardwareAddr
	// words are whole words with their replacements.
	words map[string]string
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isWord(c rune) bool  { return unicode.IsLetter(c) || unicode.IsDigit(c) || unicode.IsMark(c) }

// aName is letters and digits, in words.
var aName = regexp.MustCompile(`[\pL\p{Nd}\pM]+(?:[-_.]+[\pL\p{Nd}\pM]+)*`)

// startsWord reports whether a letter or a digit is at a place.
func startsWord(text string, at int) bool {
	if at >= len(text) {
		return false
	}
	c, _ := utf8.DecodeRuneInString(text[at:])
	return isWord(c)
}

// hexColons may be a MAC or an IPv6 address, dotted an IPv4 address, and length the prefix length after it.
var (
	hexColons = regexp.MustCompile(`^[0-9A-Fa-f:]+`)
	dotted    = regexp.MustCompile(`^[\d.]*\d`)
	length    = regexp.MustCompile(`^/(\d+)`)
)

// ends are the places where a name may end that begins at a place, the last one first: a name is also
// found inside names that are composed of it.
func ends(text string, at int) (all []int) {
	inside := false
	for i, c := range text[at:] {
		if inside && !isWord(c) {
			all = append(all, at+i)
		}
		if inside = isWord(c); !inside && !strings.ContainsRune("-_.", c) { // which a name may have between its words
			break
		}
	}
	if inside {
		all = append(all, len(text))
	}
	slices.Reverse(all)
	return all
}

func (s scanner) plain(text string) string {
	return s.each(text, func(from int) (end int, with string) {
		all := ends(text, from)
		for _, end := range all {
			if to := s.words[text[from:end]]; to != "" {
				return end, to
			}
		}
		end = all[len(all)-1]
		return end, text[from:end]
	})
}

// each replaces addresses, and words by what word returns: the end of the word, and its replacement.
func (s scanner) each(text string, word func(from int) (end int, with string)) string {
	var out strings.Builder
	for i := 0; i < len(text); {
		if n := escape(text[i:]); n > 0 {
			out.WriteString(text[i : i+n])
			i += n
			continue
		}
		colon := text[i] == ':' && i+1 < len(text) && text[i+1] == ':'
		if !colon && !startsWord(text, i) {
			out.WriteByte(text[i])
			i++
			continue
		}
		end, with := s.colons(text, i)
		if end == 0 {
			end, with = s.dots(text, i)
		}
		if end == 0 && colon {
			end, with = i+1, ":"
		}
		if end == 0 {
			end, with = word(i)
		}
		out.WriteString(with)
		i = end
	}
	return out.String()
}

// escapes are escaped characters of URLs and quoted strings. Their letters belong to no word.
var escapes = regexp.MustCompile(`^(?:%[0-9A-Fa-f]{2}|\\(?:u[0-9a-f]{4}|x[0-9a-f]{2}|[abfnrtv]))`)

// escape is the length of the escape at the beginning of a text; 0 if there is none.
func escape(text string) int {
	if text[0] != '%' && text[0] != '\\' {
		return 0
	}
	return len(escapes.FindString(text[:min(len(text), 6)]))
}

// colons returns the end of the MAC or IPv6 address at a place, and its replacement; 0: none.
func (s scanner) colons(text string, at int) (end int, with string) {
	token := hexColons.FindString(text[at:])
	end = at + len(token)
	if strings.Count(token, ":") < 2 || at > 0 && text[at-1] == ':' ||
		end < len(text) && (startsWord(text, end) || text[end] == '.' && end+1 < len(text) && isDigit(text[end+1])) {
		return 0, ""
	}
	if m, err := net.ParseMAC(token); err == nil && len(m) == 6 {
		return end, s.mac(m).String()
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

// dots is colons for an IPv4 address.
func (s scanner) dots(text string, at int) (end int, with string) {
	if !isDigit(text[at]) || at > 1 && text[at-1] == '.' && startsWord(text, at-2) {
		return 0, ""
	}
	token := dotted.FindString(text[at:]) // without the dot at the end of a sentence
	end = at + len(token)
	a, err := netip.ParseAddr(token)
	if err != nil || startsWord(text, end) {
		return 0, ""
	}
	return s.address(text, a, end)
}

// address returns the end of an address and its replacement, by the length after it.
func (s scanner) address(text string, a netip.Addr, end int) (int, string) {
	bits := -1
	if found := length.FindStringSubmatch(text[end:]); found != nil && !startsWord(text, end+len(found[0])) {
		if n, err := strconv.Atoi(found[1]); err == nil && n <= a.BitLen() {
			bits = n
		}
	}
	return end, s.ip(a, bits).String()
}

// Addresses in other forms: bytes as in C, and base64 text, such as the comment at the
// end of Cilium's node_config.h.
var (
	inBytes = regexp.MustCompile(`0x[0-9a-fA-F]{1,2}(?:, ?0x[0-9a-fA-F]{1,2})+`)
	encoded = regexp.MustCompile(`[A-Za-z0-9+/]{64,}={0,2}`)
)

func (s scanner) text(text string) string {
	if strings.Contains(text, "0x") {
		text = inBytes.ReplaceAllStringFunc(text, s.bytes)
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

// bytes replaces a MAC address, or an IPv4 address, in a list of bytes.
func (s scanner) bytes(list string) string {
	parts := strings.Split(list, ",")
	var all []byte
	for _, part := range parts {
		n, _ := strconv.ParseUint(strings.TrimSpace(part), 0, 8) // inBytes matches only valid ones
		all = append(all, byte(n))
	}
	var to []byte
	switch len(all) {
	case 6:
		to = s.mac(all)
	case 4:
		to = s.ip(netip.AddrFrom4([4]byte(all)), -1).AsSlice()
	}
	if to == nil || bytes.Equal(to, all) {
		return list
	}
	for i := range parts {
		parts[i] = fmt.Sprintf("0x%x", to[i])
	}
	return strings.Join(parts, ",")
}

type place struct {
	// key is the key of the value, or of the list around it. above are the keys around that, the
	// outermost first.
	key   string
	above []string
	isKey bool
}

// eachString replaces the strings of JSON and leaves everything else as it is. What is no JSON is one
// string, to its end.
func eachString(text []byte, replace func(place, string) string) []byte {
	var out []byte
	var above []string
	copied, key := 0, ""
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	for {
		before := decoder.InputOffset()
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return append(out, text[copied:]...)
		}
		if err != nil {
			return append(out, replace(place{above: above}, string(text[copied:]))...)
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			above = append(above, key)
			if token == json.Delim('{') {
				key = ""
			}
		case json.Delim('}'), json.Delim(']'):
			key, above = above[len(above)-1], above[:len(above)-1]
		}
		value, isString := token.(string)
		if !isString {
			continue
		}
		end := int(decoder.InputOffset())
		begin := int(before) + bytes.IndexByte(text[before:end], '"')
		at := place{key, above, bytes.HasPrefix(bytes.TrimLeft(text[end:], " \r\n\t"), []byte(":"))}
		if at.isKey {
			key = value
		}
		if with := replace(at, value); with != value {
			out = append(append(out, text[copied:begin]...), quoted(with)...)
			copied = end
		}
	}
}

// quoted is a JSON string. A ">" is not escaped: probes' names have it, and people read them.
func quoted(text string) []byte {
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string, which cannot fail
	return []byte(strings.TrimSuffix(out.String(), "\n"))
}
