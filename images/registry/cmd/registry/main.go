// Registry is the vendor's program without cloud storage, which no lab uses: the
// clients of Azure, Google and Amazon are three quarters of what it is compiled from.
package main

import (
	"os"

	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/proxy"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	if registry.RootCmd.Execute() != nil {
		os.Exit(1) // cobra has said why
	}
}
