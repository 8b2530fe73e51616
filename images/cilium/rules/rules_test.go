package rules

import (
	"errors"
	"strings"
	"testing"

	ipamOption "github.com/cilium/cilium/pkg/ipam/option"
	"github.com/cilium/cilium/pkg/option"
)

func TestRefuse(t *testing.T) {
	for _, test := range []struct {
		name     string
		datapath bool // the slice can attach BPF programs
		change   func(*option.DaemonConfig)
		want     []string // keys that the error names
	}{
		{"native routing", false, func(*option.DaemonConfig) {}, nil},
		{"other IPAM", false, func(c *option.DaemonConfig) { c.IPAM = "cluster-pool" }, []string{"ipam"}},
		{"tunnel", false, func(c *option.DaemonConfig) { c.Tunnel = option.TunnelVXLAN }, []string{"tunnel"}},
		{"BPF instead of kube-proxy", false, func(c *option.DaemonConfig) { c.KubeProxyReplacement = option.KubeProxyReplacementStrict }, []string{"kube-proxy-replacement"}},
		{"two at once", false, func(c *option.DaemonConfig) {
			c.EnableIPv6 = true
			c.EnableIPMasqAgent = true
		}, []string{"enable-ipv6", "enable-ip-masq-agent"}},
		{"BPF", true, func(c *option.DaemonConfig) { c.KubeProxyReplacement = option.KubeProxyReplacementPartial }, nil},
		{"more than is attached", true, func(c *option.DaemonConfig) { c.KubeProxyReplacement = option.KubeProxyReplacementStrict }, []string{"too much"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &option.DaemonConfig{
				EnableIPv4: true, IPAM: ipamOption.IPAMKubernetes, Tunnel: option.TunnelDisabled,
				KubeProxyReplacement: option.KubeProxyReplacementDisabled,
			}
			test.change(c)
			var datapath *Datapath
			if test.datapath {
				datapath = &Datapath{Refuse: func(c *option.DaemonConfig) error {
					if c.KubeProxyReplacement == option.KubeProxyReplacementStrict {
						return errors.New("too much")
					}
					return nil
				}}
			}
			err := refuse(c, datapath)
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

func TestFallBack(t *testing.T) {
	for _, test := range []struct {
		name                      string
		masquerade, bpf, nodePort bool
		want                      bool // BPF masquerades
	}{
		{"iptables", true, false, false, false},
		{"BPF without NodePort", true, true, false, false},
		{"BPF with NodePort", true, true, true, true},
		{"off", false, true, false, true}, // as configured: nobody asks
	} {
		t.Run(test.name, func(t *testing.T) {
			option.Config.EnableBPFMasquerade, option.Config.EnableNodePort = test.bpf, test.nodePort
			fallBack(Version{Masquerade: func() bool { return test.masquerade }})
			if got := option.Config.EnableBPFMasquerade; got != test.want {
				t.Errorf("BPF masquerades: %v, want %v", got, test.want)
			}
		})
	}
}
