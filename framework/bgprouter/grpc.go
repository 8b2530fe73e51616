package bgprouter

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/relapse-dev/relapse/topology/bgp"
)

// overGRPC is a GoBGP. Its FIB is read like the FIB of other routers.
type overGRPC struct {
	*outside
	api *bgp.GoBGP
	io.Closer
}

func (g overGRPC) RIB(ctx context.Context) ([]bgp.Path, error) {
	return g.both(ctx, g.api.RIB)
}

func (g overGRPC) Neighbors(ctx context.Context) ([]bgp.Neighbor, error) { return g.api.Neighbors(ctx) }

// newGRPC makes a reader of a GoBGP, which does not connect yet.
func newGRPC(d Declared) (overGRPC, error) {
	secure, err := d.credentials()
	if err != nil {
		return overGRPC{}, err
	}
	conn, err := grpc.NewClient("passthrough:///"+d.Address, grpc.WithTransportCredentials(secure), grpc.WithUserAgent("relapse-audit"))
	if err != nil {
		return overGRPC{}, err
	}
	return overGRPC{&outside{router: d}, bgp.NewGoBGP(conn), conn}, nil
}

func (d Declared) credentials() (credentials.TransportCredentials, error) {
	if d.Plaintext {
		return insecure.NewCredentials(), nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if d.CA != "" {
		text, err := os.ReadFile(d.CA)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("ca: %s has no certificate: expected PEM", d.CA)
		}
	}
	if d.Cert != "" {
		pair, err := tls.LoadX509KeyPair(d.Cert, d.Key)
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config), nil
}
