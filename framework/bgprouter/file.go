// Package bgprouter reads BGP routers that somebody else runs, for snapshots. A file declares how:
// by the routers' own programs, by gRPC, from a table dump, or by a BMP station that they feed.
package bgprouter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
)

// Kind is how a router of a file is read.
type Kind string

// Kinds of routers that can be read from outside.
const (
	FRR   Kind = "frr"
	BIRD  Kind = "bird"
	GoBGP Kind = "gobgp"
	MRT   Kind = "mrt"
	BMP   Kind = "bmp"
)

// Declared is a router of a file: how it is read.
type Declared struct {
	Name string `yaml:"name"`
	Kind Kind   `yaml:"kind"`
	// Role is the role in snapshot.Router, or tor.
	Role string `yaml:"role"`
	// Pods says that the cluster's nodes announce their pod ranges to the router: it is expected
	// to have a route to each, whatever its sessions are.
	Pods bool `yaml:"pods"`
	// Only is services if the nodes announce nothing but Services to the router, or empty.
	Only string `yaml:"only"`
	// Families are the address families that the router carries, ipv4 and ipv6; empty: both may be.
	Families []string `yaml:"families"`
	// SSH is where the system's ssh connects to, USER@HOST or a host of its configuration.
	SSH string `yaml:"ssh"`
	// Command is a command line that runs a command on the router, such as docker exec tor1.
	Command []string `yaml:"command"`
	// Become is the program that runs the command as root: sudo, which must not ask for a password; or empty.
	Become string `yaml:"become"`
	// Address is where GoBGP serves gRPC, HOST:PORT, or the address from which a router connects
	// to a BMP station.
	Address string `yaml:"address"`
	// CA, Cert and Key are files for TLS, in PEM: the authority that signs the router's certificate (empty:
	// an authority of this system), and the certificate and key of this client, if it needs one.
	CA   string `yaml:"ca"`
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
	// Plaintext permits gRPC without TLS.
	Plaintext bool `yaml:"plaintext"`
	// Files are the files with the answers of an FRR or BIRD, by the names of the answers.
	Files map[string]string `yaml:"files"`
	// File is a table dump in MRT, which may be compressed by gzip or bzip2.
	File string `yaml:"file"`
	// Now is the time of the snapshot, by which the age of files is judged; zero: now.
	Now time.Time `yaml:"-"`
}

var keys = map[Kind][]string{
	FRR:   {"ssh", "command", "become", "files"},
	BIRD:  {"ssh", "command", "become", "files"},
	GoBGP: {"address", "ca", "cert", "key", "plaintext", "ssh", "command", "become"},
	MRT:   {"file"},
	BMP:   {"address"},
}

var kinds = []string{string(FRR), string(BIRD), string(GoBGP), string(MRT), string(BMP)}

// given are the keys that a router has, besides name and kind.
func (d Declared) given() []string {
	var all []string
	for _, key := range []struct {
		name  string
		given bool
	}{
		{"ssh", d.SSH != ""}, {"command", len(d.Command) > 0}, {"become", d.Become != ""}, {"address", d.Address != ""},
		{"ca", d.CA != ""}, {"cert", d.Cert != ""}, {"key", d.Key != ""}, {"plaintext", d.Plaintext},
		{"file", d.File != ""}, {"files", len(d.Files) > 0},
	} {
		if key.given {
			all = append(all, key.name)
		}
	}
	return all
}

var roles = []string{tor, snapshot.RoleSpine, snapshot.RoleRouteServer}

// tor is the role that a snapshot does not name.
const tor = "tor"

// services is the value of Only, and carried are the values of Families.
const services = "services"

var carried = []string{"ipv4", "ipv6"}

func (d Declared) runs() bool { return d.SSH != "" || len(d.Command) > 0 }

// as is the command line that runs a command as root if Become says so.
func (d Declared) as(command []string) []string {
	if d.Become == "" {
		return command
	}
	return slices.Concat([]string{sudo, "-n"}, command)
}

const sudo = "sudo"

// Offline reports whether the router is read from files alone.
func (d Declared) Offline() bool { return d.Kind == MRT || len(d.Files) > 0 }

// hasFIB reports whether the router's FIB can be read, and says where the router forwards packets.
func (d Declared) hasFIB() bool {
	return (d.runs() || d.Files["routes4"] != "") && d.Role != snapshot.RoleRouteServer
}

func (d Declared) Describe(router *snapshot.Router) {
	if d.Role != tor {
		router.Role = d.Role
	}
	router.RIBOnly, router.Pods, router.Services, router.Families = !d.hasFIB(), d.Pods, d.Only == services, d.Families
}

// Parse reads a file of routers: a YAML list of Declared, with no other keys. Each router has a
// name of its own, a kind, and the keys that its kind needs. The error is one sentence, with the
// name of the file and what is expected.
func Parse(name string, text []byte) ([]Declared, error) {
	const list = "a list of routers, each with name, kind (frr, bird, gobgp, mrt or bmp) and how it is reached"
	wrong := func(format string, args ...any) ([]Declared, error) {
		return nil, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...))
	}
	var routers []Declared
	if err := Strict(text, &routers, list); err != nil {
		return wrong("%s", err)
	}
	if len(routers) == 0 {
		return wrong("it has no router: expected %s", list)
	}
	for i, r := range routers {
		if !plainName(r.Name) {
			return wrong("router %d: name %q: expected letters, digits, dots, dashes and underscores", i+1, r.Name)
		}
		if j := slices.IndexFunc(routers, func(o Declared) bool { return o.Name == r.Name }); j < i {
			return wrong("router %s: routers %d and %d have that name", r.Name, j+1, i+1)
		}
		if err := r.check(); err != nil {
			return wrong("router %s: %s", r.Name, err)
		}
		same := func(o Declared) bool {
			return r.Kind == BMP && o.Kind == BMP && bmpAddress(o.Address) == bmpAddress(r.Address)
		}
		if j := slices.IndexFunc(routers[:i], same); j >= 0 {
			return wrong("router %s: %s connects from that address: expected one for each router", r.Name, routers[j].Name)
		}
	}
	return routers, nil
}

func (d Declared) check() error {
	has, ok := keys[d.Kind]
	if !ok {
		return fmt.Errorf("kind %q%s: expected %s", d.Kind, topology.Nearest(string(d.Kind), kinds), oneOf(kinds))
	}
	if d.Role != "" && !slices.Contains(roles, d.Role) {
		return fmt.Errorf("role %q%s: expected %s", d.Role, topology.Nearest(d.Role, roles), oneOf(roles))
	}
	if d.Pods && d.Role == snapshot.RoleSpine {
		return fmt.Errorf("pods: a %s has aggregates, and no route to each pod range", snapshot.RoleSpine)
	}
	switch {
	case d.Only != "" && d.Only != services:
		return fmt.Errorf("only %q%s: expected %s", d.Only, topology.Nearest(d.Only, []string{services}), services)
	case d.Only != "" && d.Pods:
		return fmt.Errorf("expected either pods, or only: %s", services)
	}
	for _, f := range d.Families {
		if !slices.Contains(carried, f) {
			return fmt.Errorf("families: %q%s: expected %s", f, topology.Nearest(f, carried), oneOf(carried))
		}
	}
	for _, key := range d.given() {
		if !slices.Contains(has, key) {
			return fmt.Errorf("%s: kind %s has no such key: expected %s", key, d.Kind, strings.Join(has, ", "))
		}
	}
	switch {
	case d.SSH != "" && len(d.Command) > 0, slices.Contains([]Kind{FRR, BIRD}, d.Kind) && d.runs() == (len(d.Files) > 0):
		return fmt.Errorf("expected either ssh, such as ops@%s, or command, such as [docker, exec, %s], or files", d.Name, d.Name)
	case d.Become != "" && d.Become != sudo:
		return fmt.Errorf("become %q%s: expected %s", d.Become, topology.Nearest(d.Become, []string{sudo}), sudo)
	case d.Become != "" && !d.runs():
		return errors.New("become: expected ssh or command as well")
	case strings.HasPrefix(d.SSH, "-") || strings.ContainsFunc(d.SSH, func(c rune) bool { return c <= ' ' || c == 0x7f }):
		// ssh would take the first for an option.
		return fmt.Errorf("ssh %q: expected USER@HOST, or a host of ssh's configuration", d.SSH)
	case slices.Contains(d.Command, "") || len(d.Command) > 0 && strings.HasPrefix(d.Command[0], "-"):
		return fmt.Errorf("command %q: expected a program and its arguments", d.Command)
	case len(d.Files) > 0 && d.filed() != nil:
		return d.filed()
	case d.Kind == MRT && d.File == "":
		return errors.New("expected file, a table dump in MRT")
	case d.Kind == BMP && !bmpAddress(d.Address).IsValid():
		return fmt.Errorf("address %q: expected the address from which the router connects, such as 192.0.2.1", d.Address)
	case d.Kind == GoBGP && !hostAndPort(d.Address):
		return fmt.Errorf("address %q: expected HOST:PORT of GoBGP's gRPC API, such as %s:50051", d.Address, d.Name)
	case d.Plaintext && d.CA+d.Cert+d.Key != "":
		return errors.New("expected either plaintext, or ca, cert and key")
	case (d.Cert == "") != (d.Key == ""):
		return errors.New("expected cert and key together")
	}
	return nil
}

func oneOf(words []string) string {
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

func hostAndPort(text string) bool {
	host, port, err := net.SplitHostPort(text)
	n, wrong := strconv.ParseUint(port, 10, 16)
	_, literal := netip.ParseAddr(host)
	return err == nil && wrong == nil && n > 0 && (literal == nil || plainName(host))
}

// inGo finds the Go types in an error.
var inGo = regexp.MustCompile(` (in type|into) [][.\w]+`)

// Strict reads a YAML list and refuses keys that its type does not have. The error is one line, with what is expected.
func Strict(text []byte, list any, expected string) error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(list); err != nil && !errors.Is(err, io.EOF) {
		says := strings.TrimPrefix(err.Error(), "yaml: ")
		if wrong, ok := errors.AsType[*yaml.TypeError](err); ok && len(wrong.Errors) > 0 {
			says = inGo.ReplaceAllString(wrong.Errors[0], "")
		}
		return fmt.Errorf("%s; expected %s", strings.ReplaceAll(says, "\n", " "), expected)
	}
	if err := decoder.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return errors.New("expected one list, and nothing after it")
	}
	return nil
}

// plainName reports whether a name can be printed, and can name a router.
func plainName(name string) bool {
	return name != "" && len(name) <= 128 && !strings.ContainsFunc(name, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", c))
	})
}
