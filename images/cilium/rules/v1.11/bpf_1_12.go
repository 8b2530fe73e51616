//go:build cilium_1_12

package main

import "github.com/relapse-dev/relapse/images/cilium/rules"

var bpf *rules.Datapath
