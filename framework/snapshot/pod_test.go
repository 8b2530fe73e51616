package snapshot

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestPodIPs(t *testing.T) {
	text := func(a netip.Addr) string { return strings.TrimPrefix(a.String(), netip.Addr{}.String()) } // "" for none
	for _, test := range []struct {
		name, first string
		all         []string
		ip, ipv6    string
	}{
		{"IPv4", "10.0.0.1", []string{"10.0.0.1"}, "10.0.0.1", ""},
		{"IPv6", "fd00::1", []string{"fd00::1"}, "fd00::1", ""},
		{"both", "10.0.0.1", []string{"10.0.0.1", "fd00::1"}, "10.0.0.1", "fd00::1"},
		{"both, IPv6 first", "fd00::1", []string{"fd00::1", "10.0.0.1"}, "10.0.0.1", "fd00::1"},
		{"none yet", "", nil, "", ""},
	} {
		o := &corev1.Pod{Status: corev1.PodStatus{PodIP: test.first}}
		for _, ip := range test.all {
			o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		ip, ipv6, err := podIPs(o)
		must.NoError(t, err)
		must.Equal(t, test.name, [2]string{test.ip, test.ipv6}, [2]string{text(ip), text(ipv6)})
	}
}
