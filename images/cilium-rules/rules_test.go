package rules

import (
	"strings"
	"testing"

	ipamOption "github.com/cilium/cilium/pkg/ipam/option"
	"github.com/cilium/cilium/pkg/option"
)

// bpf is a configuration with BPF NodePort.
func bpf(c *option.DaemonConfig) {
	c.KubeProxyReplacement, c.EnableNodePort = option.KubeProxyReplacementPartial, true
	c.NodePortMode, c.NodePortAcceleration = option.NodePortModeDSR, option.NodePortAccelerationDisabled
	c.Devices, c.DirectRoutingDevice = []string{"eth0"}, "eth0"
	c.EnableRemoteNodeIdentity = true
}

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
		{"BPF", true, bpf, nil},
		{"BPF, but the slice has none", false, bpf, []string{"kube-proxy-replacement"}},
		{"all of kube-proxy replaced", true, func(c *option.DaemonConfig) {
			bpf(c)
			c.KubeProxyReplacement = option.KubeProxyReplacementStrict
		}, []string{"kube-proxy-replacement"}},
		{"BPF without a device, and with conditions of other versions", true, func(c *option.DaemonConfig) {
			bpf(c)
			c.Devices, c.DirectRoutingDevice, c.EgressMasqueradeInterfaces, c.EnableRemoteNodeIdentity = nil, "", "eth1", false
		}, []string{"devices", "direct-routing-device", "egress-masquerade-interfaces", "enable-remote-node-identity"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &option.DaemonConfig{
				EnableIPv4: true, IPAM: ipamOption.IPAMKubernetes, Tunnel: option.TunnelDisabled,
				KubeProxyReplacement: option.KubeProxyReplacementDisabled,
			}
			test.change(c)
			err := refuse(c, test.datapath)
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
