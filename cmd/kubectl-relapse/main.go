// Command kubectl-relapse is a plugin of kubectl with the commands of relapse that need no lab.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework/report/plain"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the next signal ends it at once
	err := command().ExecuteContext(ctx)
	if text := portable.Complaint(ctx, err); text != "" {
		fmt.Fprintln(os.Stderr, "relapse: "+plain.Text(text))
	}
	os.Exit(portable.ExitStatus(ctx, err))
}

func command() *cobra.Command {
	var s portable.Settings
	root := portable.Root(&s, "Find documented Kubernetes network incidents in a cluster, and say which ones an upgrade has",
		`kubectl relapse audits a cluster and its routers for documented network incidents, and changes
nothing. What takes a lab is in the program relapse, for Linux on amd64.`)
	root.AddCommand(portable.Audit(&s), portable.Describe(), portable.Advise(), portable.Page(), &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, and Go's version",
		Args:  portable.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { portable.PrintVersion(cmd.OutOrStdout()) },
	})
	return root
}
