// Command cilium-agent is a slice of Cilium's agent at versions 1.11 and 1.12: its
// configuration and its iptables rules, by the vendor's packages. Package
// rules says which decisions are the vendor's and which are the slice's. BPF
// programs are attached at versions 1.11 alone.
package main

import (
	"context"
	_ "unsafe" // for go:linkname

	"github.com/cilium/cilium/pkg/k8s"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/cilium/cilium/pkg/node"
	"github.com/cilium/cilium/pkg/option"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/images/cilium/rules"
)

func main() {
	rules.Main(rules.Version{
		Node:      func(ctx context.Context) error { return k8s.WaitForNodeInformation(ctx, nodes{}) },
		SetRouter: node.SetInternalIPv4Router,
		KubeProxyReplacement: func() error {
			_, err := initKubeProxyReplacementOptions()
			return err
		},
		Masquerade:        func() bool { return option.Config.EnableIPv4Masquerade },
		NativeRoutingCIDR: option.Config.GetIPv4NativeRoutingCIDR,
		// As in Reinitialize (pkg/datapath/loader/base.go), for the first
		// initialization.
		Install: func(ctx context.Context, hostDevice string) error {
			waitForLock()
			return install(ctx, hostDevice)
		},
		Datapath: bpf,
	})
}

// nodes stands for the agent's watcher, which has the same from the same API
// server. From 1.12.5 on it is asked for CiliumNodes as well.
type nodes struct{}

func (nodes) GetK8sNode(ctx context.Context, name string) (*corev1.Node, error) {
	return k8s.Client().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

func (nodes) GetCiliumNode(ctx context.Context, name string) (*ciliumv2.CiliumNode, error) {
	return k8s.CiliumClient().CiliumV2().CiliumNodes().Get(ctx, name, metav1.GetOptions{})
}

//go:linkname initKubeProxyReplacementOptions github.com/cilium/cilium/daemon/cmd.initKubeProxyReplacementOptions
func initKubeProxyReplacementOptions() (bool, error)
