//go:build !dist

package main

import "github.com/spf13/cobra"

// packedSource is empty in a program of a checkout, which has the source beside it.
var packedSource []byte

func distCommands() []*cobra.Command { return nil }
