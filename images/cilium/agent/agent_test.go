package agent

import (
	"strings"
	"testing"

	ipamOption "github.com/cilium/cilium/pkg/ipam/option"
	"github.com/cilium/cilium/pkg/option"
)

func TestRefuse(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*option.DaemonConfig)
		want   []string // keys that the error names
	}{
		{"cluster-pool", func(*option.DaemonConfig) {}, nil},
		{"kubernetes", func(c *option.DaemonConfig) { c.IPAM = ipamOption.IPAMKubernetes }, nil},
		{"other IPAM", func(c *option.DaemonConfig) { c.IPAM = ipamOption.IPAMENI }, []string{"ipam"}},
		{"tunnel", func(c *option.DaemonConfig) { c.Tunnel = option.TunnelVXLAN }, []string{"tunnel"}},
		{"two at once", func(c *option.DaemonConfig) {
			c.EnableIPv4Masquerade = true
			c.BGPAnnounceLBIP = true
		}, []string{"enable-ipv4-masquerade", "bgp-announce-lb-ip"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &option.DaemonConfig{EnableIPv4: true, IPAM: ipamOption.IPAMClusterPool, Tunnel: option.TunnelDisabled}
			test.change(c)
			err := refuse(c)
			if (err != nil) != (len(test.want) > 0) {
				t.Fatalf("error %v, want one that names %v", err, test.want)
			}
			for _, key := range test.want {
				if !strings.Contains(err.Error(), key) {
					t.Errorf("error %q does not name %s", err, key)
				}
			}
		})
	}
}
