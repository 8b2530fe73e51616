// Command tor is the BGP router of labs: see package router. It runs in the foreground
// and logs to standard error. Its exit status is 0 after SIGTERM or SIGINT, 2 if its
// configuration is not valid, and 1 after any other error.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/relapse-dev/relapse/topology/lab/router"
)

func main() {
	file := flag.String("config", "/etc/tor.json", "`file` with the configuration, in JSON")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(flag.CommandLine.Output(), "tor: unexpected argument %q\n", flag.Arg(0))
		flag.Usage()
		os.Exit(2)
	}
	l := log.New(os.Stderr, "", log.LstdFlags|log.Lmicroseconds|log.LUTC)
	config, err := readConfig(*file)
	if err != nil {
		l.Print(err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := router.Run(ctx, config, l); err != nil {
		l.Print(err)
		os.Exit(1)
	}
}

func readConfig(file string) (router.Config, error) {
	f, err := os.Open(file)
	if err != nil {
		return router.Config{}, fmt.Errorf("opening the configuration: %w", err)
	}
	defer f.Close()
	c, err := router.ReadConfig(f)
	if err != nil {
		return router.Config{}, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}
