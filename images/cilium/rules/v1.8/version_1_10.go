//go:build cilium_1_10

package main

import (
	"context"

	"github.com/cilium/cilium/pkg/k8s"
	"github.com/cilium/cilium/pkg/node"
	"github.com/cilium/cilium/pkg/option"

	"github.com/relapse-dev/relapse/images/cilium/rules"
)

var version = rules.Version{
	Node:       func(context.Context) error { return k8s.WaitForNodeInformation() },
	SetRouter:  node.SetInternalIPv4Router,
	Masquerade: func() bool { return option.Config.EnableIPv4Masquerade },
}
