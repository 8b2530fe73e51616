package main

import (
	"unsafe"

	"github.com/relapse-dev/relapse/images/cilium/rules"
)

// waitForLock does what IptablesManager.Init does first.
func waitForLock() { initArgs(ip4tables, rules.LockSeconds()) }

//go:linkname ip4tables github.com/cilium/cilium/pkg/datapath/iptables.ip4tables
var ip4tables unsafe.Pointer // to an ipt

//go:linkname initArgs github.com/cilium/cilium/pkg/datapath/iptables.(*ipt).initArgs
func initArgs(ipt unsafe.Pointer, seconds int)
