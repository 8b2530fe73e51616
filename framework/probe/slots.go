package probe

import "math/bits"

// slots is a set of sequence numbers: one bit each, so that ten minutes of a
// probe at 10 ms take 7.5 kB.
type slots []uint64

func (s *slots) add(i uint32) bool {
	word, bit := int(i/64), uint64(1)<<(i%64)
	if word >= len(*s) {
		*s = append(*s, make([]uint64, word+1-len(*s))...)
	}
	if (*s)[word]&bit != 0 {
		return false
	}
	(*s)[word] |= bit
	return true
}

func (s slots) has(i uint32) bool {
	word := int(i / 64)
	return word < len(s) && s[word]&(1<<(i%64)) != 0
}

// word has the 64 numbers from 64*i on, one bit each.
func (s slots) word(i int) uint64 {
	if i < len(s) {
		return s[i]
	}
	return 0
}

// end returns the number after the highest in the set.
func (s slots) end() uint32 {
	for w := len(s) - 1; w >= 0; w-- {
		if s[w] != 0 {
			return uint32(w*64 + bits.Len64(s[w]))
		}
	}
	return 0
}
