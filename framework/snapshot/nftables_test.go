package snapshot

import (
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/must"
)

// What nft writes of a set's key, by type, length and value, and what an older nft makes of it.
func TestUnreadableSet(t *testing.T) {
	plain := []byte{0, 4, 1, 0, 0, 0, 3, 8, 0, 4, 4, 0, 0, 0, 1, 0} // { type ifname; } of nft 1.1.3
	for _, c := range []struct {
		name, table string
		userData    []byte
		want        string
	}{
		{"a plain type of nft 1.1.3", "guard", plain, "inet guard interfaces"},
		{"kube-proxy's own", "kube-proxy", plain, ""},
		{"the data of a map", "guard", []byte{4, 8, 0, 4, 4, 0, 0, 0, 1, 0}, "inet guard interfaces"},
		{"typeof iifname", "guard", []byte{0, 4, 1, 0, 0, 0, 3, 14, 0, 4, 9, 0, 0, 0, 1, 6, 0, 4, 6, 0, 0, 0}, ""},
		{"a concatenation of nft 1.1.3", "guard", []byte{0, 4, 0, 0, 0, 0, 3, 18, 0, 4, 13, 0, 0, 0, 1, 10, 0, 0, 0, 4, 4, 0, 0, 0, 1, 0, 0, 0}, ""},
		{"nft 1.0.6", "guard", []byte{0, 4, 1, 0, 0, 0}, ""},
		{"none", "guard", nil, ""},
		{"cut short", "guard", []byte{3, 8, 0, 4, 4}, ""},
		{"a length that leads out", "guard", []byte{3, 2, 0, 200}, ""},
	} {
		answer := []byte{unix.NFPROTO_INET, 0, 0, 0}
		for _, a := range []*nl.RtAttr{
			nl.NewRtAttr(unix.NFTA_SET_TABLE, nl.ZeroTerminated(c.table)), nl.NewRtAttr(unix.NFTA_SET_NAME, nl.ZeroTerminated("interfaces")),
			nl.NewRtAttr(unix.NFTA_SET_USERDATA, c.userData),
		} {
			answer = slices.Concat(answer, a.Serialize())
		}
		must.Equal(t, c.name, c.want, unreadableSet(answer))
	}
	must.Equal(t, "an answer without a header", "", unreadableSet([]byte{1}))
}
