package snapshot

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestPodIPs(t *testing.T) {
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
		text := func(a netip.Addr) string {
			if !a.IsValid() {
				return ""
			}
			return a.String()
		}
		ip, ipv6, err := podIPs(o)
		if err != nil || text(ip) != test.ip || text(ipv6) != test.ipv6 {
			t.Errorf("%s: %s, %s, %v; want %s, %s", test.name, ip, ipv6, err, test.ip, test.ipv6)
		}
	}
}
