package bgprouter

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	api "github.com/osrg/gobgp/v3/api"
	gobgp "github.com/osrg/gobgp/v3/pkg/server"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// selfSigned writes a certificate of 127.0.0.1, which signs itself, and its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	private := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.ParseIP(routerIP)},
		IsCA: true, BasicConstraintsValid: true,
	}
	signed := must.Get(x509.CreateCertificate(rand.Reader, template, template, private.Public(), private))(t)
	text := must.Get(x509.MarshalECPrivateKey(private))(t)
	write := func(name, kind string, bytes []byte) string {
		file := filepath.Join(dir, name)
		must.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600))
		return file
	}
	return write("cert.pem", "CERTIFICATE", signed), write("key.pem", "EC PRIVATE KEY", text)
}

// A GoBGP that requires a client certificate is read with one, and not without one or in plaintext.
func TestGRPC(t *testing.T) {
	cert, key := selfSigned(t)
	pool := x509.NewCertPool()
	must.Equal(t, cert, true, pool.AppendCertsFromPEM(must.Read(t, cert)))
	own := must.Get(tls.LoadX509KeyPair(cert, key))(t)
	secure := credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert})
	address := fmt.Sprintf("%s:%d", routerIP, freePort(t))
	pair(t, []string{"10.5.112.0/24", "fd00:10:5:112::/64"}, gobgp.GrpcListenAddress(address), gobgp.GrpcOption([]grpc.ServerOption{grpc.Creds(secure)}))

	r := reader(t, Declared{Name: "tor1", Kind: GoBGP, Address: address, CA: cert, Cert: cert, Key: key})
	paths := must.Get(r.RIB(t.Context()))(t)
	node := netip.MustParseAddr(nodeIP)
	path := snapshot.Path{
		Prefix: netip.MustParsePrefix("10.5.112.0/24"), NextHop: node, Neighbor: node, ASPath: []uint32{nodeAS}, Origin: "igp", LocalPref: 100,
		Best: true, Multipath: true,
	}
	want := []snapshot.Path{path, path}
	want[1].Prefix, want[1].NextHop = netip.MustParsePrefix("fd00:10:5:112::/64"), paths[len(paths)-1].NextHop
	must.Equal(t, "paths", want, paths, byValue)
	neighbors := must.Get(r.Neighbors(t.Context()))(t)
	states := each.Of(neighbors, func(n snapshot.Neighbor) string { return fmt.Sprintf("%s (AS %d) %s", n.Address, n.AS, n.State) })
	must.Equal(t, "neighbours", []string{"127.0.0.2 (AS 64513) established", "127.0.0.9 (AS 64513) active"}, states)
	for name, d := range map[string]Declared{
		"without a certificate":         {Name: "a", Kind: GoBGP, Address: address, CA: cert},
		"of another authority":          {Name: "a", Kind: GoBGP, Address: address, Cert: cert, Key: key},
		"plaintext":                     {Name: "a", Kind: GoBGP, Address: address, Plaintext: true},
		"TLS, and nothing that listens": {Name: "a", Kind: GoBGP, Address: fmt.Sprintf("%s:%d", routerIP, freePort(t))},
	} {
		_, err := reader(t, d).RIB(t.Context())
		must.Equal(t, name+": it is read", false, err == nil)
	}
}

// A GoBGP without IPv4 is read for IPv6, with a remark.
func TestGRPCWithoutIPv4(t *testing.T) {
	address := fmt.Sprintf("%s:%d", routerIP, freePort(t))
	s := gobgp.NewBgpServer(gobgp.GrpcListenAddress(address))
	go s.Serve()
	t.Cleanup(s.Stop)
	const ipv6Unicast = 1 // in the order of GoBGP's configuration
	must.NoError(t, s.StartBgp(t.Context(), &api.StartBgpRequest{Global: &api.Global{Asn: routerAS, RouterId: "192.0.2.1", ListenPort: -1, Families: []uint32{ipv6Unicast}}}))
	announce(t, s, "fd00:10:5:112::/64")
	listens(t, address)
	r := reader(t, Declared{Name: "tor1", Kind: GoBGP, Address: address, Plaintext: true})
	paths := must.Get(r.RIB(t.Context()))(t)
	must.Equal(t, "paths", "fd00:10:5:112::/64", each.Joined(paths, " ", func(p snapshot.Path) string { return p.Prefix.String() }))
	router := described(r)
	if !router.IPv6 || !router.NoIPv4 || len(router.Remarks) != 1 || !strings.HasPrefix(router.Remarks[0].Says, "tor1 is read for IPv6 alone: ") {
		t.Errorf("%+v", router)
	}
}

// An unusable file is an error before any router is read.
func TestReadersErrors(t *testing.T) {
	cert, _ := selfSigned(t)
	none := filepath.Join(t.TempDir(), "none")
	for want, d := range map[string]Declared{
		"router a: ca: open " + none:                              {Name: "a", Kind: GoBGP, Address: "a:1", CA: none},
		"router a: ca: " + os.Args[0] + " has no certificate":     {Name: "a", Kind: GoBGP, Address: "a:1", CA: os.Args[0]},
		"router a: cert and key: tls: found a certificate rather": {Name: "a", Kind: GoBGP, Address: "a:1", Cert: cert, Key: cert},
	} {
		must.Fail(t, must.Err(Readers([]Declared{d}, nil)), want)
	}
}
