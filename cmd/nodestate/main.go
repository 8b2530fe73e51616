// Command nodestate answers for relapse audit --nodes with what its node alone knows, as a pod of
// the manifest that relapse audit --nodes-manifest prints.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/relapse-dev/relapse/framework/nodestate"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	node := flag.String("node", "", "name of the node")
	address := flag.String("address", "", "address of the node to listen on")
	flag.Parse()
	if err := run(ctx, *node, *address, os.Getenv("RELAPSE_KEY"), os.Getenv("RELAPSE_UNTIL")); err != nil {
		fmt.Fprintf(os.Stderr, "nodestate: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, node, address, key, end string) error {
	if node == "" || address == "" {
		return errors.New("--node and --address are needed, and the key in RELAPSE_KEY")
	}
	until, err := time.Parse(time.RFC3339, end)
	if err != nil {
		return fmt.Errorf("RELAPSE_UNTIL, the end of the key: %w", err)
	}
	answers, err := nodestate.Handler(ctx, node, key, until, snapshot.Own{})
	if err != nil {
		return err
	}
	// The API server does not verify a pod's certificate: TLS hides the key on the way.
	certificate, secret, err := cert.GenerateSelfSignedCertKey(address, nil, nil)
	if err != nil {
		return fmt.Errorf("making a certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, secret)
	if err != nil {
		return fmt.Errorf("making a certificate: %w", err)
	}
	server := &http.Server{
		Addr:              net.JoinHostPort(address, strconv.Itoa(nodestate.Port)),
		Handler:           answers,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       10 * time.Second,
		// One answer is written at a time: a client that has disconnected must not block the node.
		WriteTimeout:   time.Minute,
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServeTLS("", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving at %s: %w", server.Addr, err)
	}
	return nil
}
