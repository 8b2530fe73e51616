package datapath

import (
	"strings"
	"testing"

	"github.com/cilium/cilium/pkg/option"
)

func TestRefuse(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*option.DaemonConfig)
		want   []string // keys that the error names
	}{
		{"programs of one card", func(*option.DaemonConfig) {}, nil},
		{"all of kube-proxy replaced", func(c *option.DaemonConfig) {
			c.KubeProxyReplacement = option.KubeProxyReplacementStrict
		}, []string{"kube-proxy-replacement"}},
		{"programs of sockets and of the driver", func(c *option.DaemonConfig) {
			c.EnableHostReachableServices, c.NodePortAcceleration = true, option.NodePortAccelerationNative
		}, []string{"enable-host-reachable-services", "node-port-acceleration"}},
		{"no device, and conditions of one of the versions", func(c *option.DaemonConfig) {
			c.EnableNodePort, c.Devices, c.DirectRoutingDevice = false, nil, ""
			c.EgressMasqueradeInterfaces, c.EnableRemoteNodeIdentity = "eth1", false
		}, []string{"enable-node-port", "devices", "direct-routing-device", "egress-masquerade-interfaces", "enable-remote-node-identity"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &option.DaemonConfig{
				KubeProxyReplacement: option.KubeProxyReplacementPartial, EnableNodePort: true,
				NodePortAcceleration: option.NodePortAccelerationDisabled,
				Devices:              []string{"eth0"}, DirectRoutingDevice: "eth0", EnableRemoteNodeIdentity: true,
			}
			test.change(c)
			err := Refuse(c)
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
