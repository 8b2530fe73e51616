// Package nodestate answers with what one node alone knows, for relapse audit: interfaces and
// routes, rules of iptables, connections, Services of IPVS and nftables, and what kube-proxy and BIRD say. The
// readers are in package snapshot. No request changes anything.
package nodestate

import (
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

const (
	// Port is where the program listens, on the node's address, with TLS.
	Port = 19767
	// Path is the one path that it answers.
	Path = "/node"
	// KeyHeader is the header of a request that has the key.
	KeyHeader = "Relapse-Key"
	// MaxAnswer bounds an answer, in bytes of JSON.
	MaxAnswer = 32 << 20
	maxFlows  = 20_000
	// maxObjects bounds the objects of an answer: connections, rules, routes, interfaces.
	maxObjects = 10 * maxFlows
	// within bounds the reading of each source, on a node whose processors are busy.
	within = 10 * time.Second
)

// Sources are what a node answers with.
var Sources = []snapshot.Source{snapshot.NodeNetworks, snapshot.NodeTables, snapshot.Firewalls, snapshot.NAT, snapshot.Proxies}

// Handler answers a GET that has the key with a snapshot of Sources of this node, as gzipped
// JSON, and one request at a time. It does not stop until ctx ends.
//
// Of the nat table it has the chains for packets that leave the node. Of the connections it has translated ones, and
// connections of UDP to an address for which another one answers: detectors read other connections only with the
// sockets of hosts outside, and there may be a hundred times as many.
//
// key is the installation's; the node's own Key opens the handler, until a time.
func Handler(ctx context.Context, node, key string, until time.Time, machine snapshot.Machine) (http.Handler, error) {
	if key == "" {
		return nil, errors.New("there is no key: everybody could read this node")
	}
	collector, err := snapshot.Open(ctx, one{node, machine}, Sources...)
	if err != nil {
		return nil, err
	}
	collector.Allow(within)
	opens, free := []byte(Key(key, node)), make(chan bool, 1) // full while a request is answered
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case subtle.ConstantTimeCompare([]byte(r.Header.Get(KeyHeader)), opens) != 1:
			http.Error(w, "the key is not this one", http.StatusUnauthorized)
			return
		case time.Now().After(until):
			http.Error(w, "the key ended at "+until.Format(time.RFC3339), http.StatusGone)
			return
		case r.URL.Path != Path:
			http.NotFound(w, r)
			return
		case r.Method != http.MethodGet:
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		select {
		case free <- true:
			defer func() { <-free }()
		case <-r.Context().Done():
			return
		}
		s := collector.Collect(r.Context())
		cut(&s)
		text, err := json.Marshal(s)
		if err == nil && len(text) > MaxAnswer {
			err = fmt.Errorf("the answer has %d bytes, and may have %d", len(text), MaxAnswer)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/gzip")
		zip := gzip.NewWriter(w)
		_, _ = zip.Write(text) // the client is gone, or sees that the end is missing
		_ = zip.Close()
	}), nil
}

// Key opens one node; it is made of an installation's key. Who reads it on its way reads no other node.
func Key(installation, node string) string {
	mac := hmac.New(sha256.New, []byte(installation))
	mac.Write([]byte(node))
	return hex.EncodeToString(mac.Sum(nil))
}

// cut leaves out what no detector reads, and all connections if there are too many.
func cut(s *snapshot.Snapshot) {
	for i := range s.NAT {
		n := &s.NAT[i]
		chains := snapshot.ChainsFrom(n.Rules.Items, "POSTROUTING")
		n.Rules.Items = slices.DeleteFunc(n.Rules.Items, func(r snapshot.Rule) bool { return !slices.Contains(chains, r.Chain) })
		n.Flows.Items = slices.DeleteFunc(n.Flows.Items, func(f snapshot.Flow) bool {
			return !f.Translated() && !(f.Protocol == "udp" && f.Redirected)
		})
		if many := len(n.Flows.Items); many > maxFlows {
			n.Flows = snapshot.List[snapshot.Flow]{Error: fmt.Sprintf("%d connections are translated, and %d are sent at most", many, maxFlows)}
		}
	}
}

// Read reads an answer of Handler's of at most some bytes of JSON, and returns how many it has.
// What it holds comes from the node, and may be anything.
func Read(answer io.Reader, most int64) (s snapshot.Snapshot, size int64, err error) {
	zip, err := gzip.NewReader(answer)
	if err != nil {
		return s, 0, fmt.Errorf("the answer is not gzip: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(zip, most+1))
	size = int64(len(text))
	switch {
	case err != nil:
		return s, size, fmt.Errorf("the answer ends early: %w", err)
	case size > most:
		return s, size, fmt.Errorf("the answer has more than %d bytes", most)
	}
	if s, err = snapshot.Parse(text, maxObjects); err != nil {
		return snapshot.Snapshot{}, size, fmt.Errorf("the answer is no snapshot: %w", err)
	}
	return s, size, nil
}

// Proxied returns the URL path by which the API server passes a request on to a pod.
func Proxied(namespace, pod string) string {
	return fmt.Sprintf("/api/v1/namespaces/%s/pods/https:%s:%d/proxy%s", namespace, pod, Port, Path)
}

// Pod returns the name of the pod that such a path asks, and whether it is one.
func Pod(path, namespace string) (name string, found bool) {
	before, after, _ := strings.Cut(Proxied(namespace, "*"), "*")
	name, begins := strings.CutPrefix(path, before)
	name, ends := strings.CutSuffix(name, after)
	return name, begins && ends && name != "" && !strings.ContainsAny(name, "/:%")
}

type one struct {
	name    string
	machine snapshot.Machine
}

var errNotRead = errors.New("a node reads itself alone")

func (o one) Kubernetes(context.Context) (*rest.Config, error) { return nil, errNotRead }
func (o one) Routers(context.Context) (map[string]snapshot.RouterReader, error) {
	return nil, errNotRead
}
func (o one) Nodes(context.Context) (map[string]snapshot.Machine, error) {
	return map[string]snapshot.Machine{o.name: o.machine}, nil
}
func (o one) Outside(context.Context) (map[string]snapshot.Machine, error) { return nil, errNotRead }
func (o one) Registry(context.Context) (snapshot.Registry, error)          { return nil, errNotRead }
