package images

import (
	"slices"
	"testing"
)

// The archive's signature is checked whatever the machine and the mirror are.
func TestDebootstrapCommand(t *testing.T) {
	for _, test := range []struct {
		name, mirror string
		packages     []string
		want         []string
	}{
		{"plain", "", nil, []string{"debootstrap", "--force-check-gpg", "--variant=minbase", "bookworm", "/tree"}},
		{"packages and a mirror", "https://mirror.example/debian", []string{"a", "b"},
			[]string{"debootstrap", "--force-check-gpg", "--variant=minbase", "--include=a,b", "bookworm", "/tree", "https://mirror.example/debian"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := debootstrapCommand(&Debian{Suite: "bookworm", Packages: test.packages}, "/tree", test.mirror)
			if !slices.Equal(got, test.want) {
				t.Errorf("it is %q, want %q", got, test.want)
			}
		})
	}
}
