package fault

import "testing"

// The new interface must be the last in the order in which the kernel lists
// them, whichever kernel it is.
func TestNewestIndex(t *testing.T) {
	for _, c := range []struct {
		name    string
		present []int
		want    int
	}{
		{"a machine", []int{1, 2}, 3},
		{"a container", []int{1, 2347}, 2348},
		{"past a multiple of 256", []int{1, 511}, 512}, // the remainder cannot be beaten
		{"with a higher remainder below", []int{1, 200, 513}, 713},
	} {
		if got := newestIndex(c.present); got != c.want {
			t.Errorf("%s: index %d beside %v, want %d", c.name, got, c.present, c.want)
		}
	}
}
