//go:build !dist

package main

import "github.com/spf13/cobra"

// packedSource is empty in a program that was built in a checkout, where the source is beside it.
var packedSource []byte

func distCommands() []*cobra.Command { return nil }
