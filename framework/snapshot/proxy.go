package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// Proxy is the kube-proxy of one node: what it says of itself, and where its node's kernel sends
// connections to Services, by IPVS or by kube-proxy's rules of nftables.
type Proxy struct {
	Node string `json:"node"`
	// Read and Error are as in List. A node on which no kube-proxy answers is read.
	Read  bool   `json:"read"`
	Error string `json:"error,omitempty"`
	// Mode is the one that it runs in, such as ipvs or iptables, in its own
	// words; empty if it does not answer.
	Mode   string      `json:"mode,omitempty"`
	Health ProxyHealth `json:"health"`
	// Version is the version of its build. Syncs are its syncs by family: IPv4 and IPv6, or before 1.33 "", which is both.
	// Only mode nftables has Syncs; nil means that kube-proxy did not report its metrics.
	Version string               `json:"version,omitempty"`
	Syncs   map[string]ProxySync `json:"syncs,omitzero"`
	// Table is the IPVS table or, where there is none and no other mode is known, the tables of nftables.
	Table []VirtualServer `json:"table,omitempty"`
	// Unreadable are sets of other programs, in mode nftables: family, table and name. An nft older than 1.1.2 crashes
	// where it reads their user data.
	Unreadable []string `json:"unreadable,omitempty"`
	// Goroutines are the goroutines that wait for the kernel's answer about IPVS. Dumped is set if they were read: of a
	// kube-proxy that is unwell, or finished no sync since the snapshot before, or where a ProxyQuery asks for more.
	Goroutines []Goroutine `json:"goroutines,omitempty"`
	Dumped     bool        `json:"dumped,omitempty"`
	// Counters are the metrics that a ProxyQuery names, and LogLines the lines of
	// the log that it counts. Counters is nil if kube-proxy did not report its
	// metrics; a metric that it does not have yet is missing from them.
	Counters map[string]float64 `json:"counters,omitempty"`
	LogLines int                `json:"log_lines,omitempty"`
}

// ProxySync is when kube-proxy last finished a sync of its rules and when it last had reason for one, by its node's
// clock, and how many syncs have failed since its start.
type ProxySync struct {
	Last   time.Time `json:"last,omitzero"`
	Queued time.Time `json:"queued,omitzero"`
	Failed int       `json:"failed,omitempty"`
}

// Sync is what is known of the syncs of an address's family.
func (p Proxy) Sync(ip netip.Addr) (s ProxySync, read bool) {
	if p.Mode != NFTables {
		return ProxySync{Last: p.Health.LastUpdated}, p.Health.Status != 0
	}
	s, there := p.Syncs[map[bool]string{true: "IPv4", false: "IPv6"}[ip.Is4()]]
	if !there {
		s = p.Syncs[""]
	}
	return s, p.Syncs != nil
}

// ProxyHealth is what kube-proxy's /healthz says.
type ProxyHealth struct {
	// Status is the HTTP status, 0 if kube-proxy does not answer. 503 says that the last sync is too long ago, unless
	// Leaving is set: the node is deleted, or the autoscaler is about to.
	Status  int  `json:"status"`
	Leaving bool `json:"leaving,omitempty"`
	// LastUpdated is when it last finished a sync, CurrentTime when it said
	// so, both by its node's clock. Before the first sync LastUpdated is zero.
	LastUpdated time.Time `json:"last_updated,omitzero"`
	CurrentTime time.Time `json:"current_time,omitzero"`
}

// Late reports whether kube-proxy says that its last sync is too long ago.
func (h ProxyHealth) Late() bool { return h.Status == http.StatusServiceUnavailable && !h.Leaving }

// Age is how long ago the last sync was finished, zero if that is not known.
func (h ProxyHealth) Age() time.Duration {
	if h.LastUpdated.IsZero() || h.CurrentTime.IsZero() {
		return 0
	}
	return h.CurrentTime.Sub(h.LastUpdated)
}

// proxyTimeout bounds a reading of kube-proxies. A guest whose processors are
// busy may take several seconds to run a command, and is no worse for it.
const proxyTimeout = 15 * time.Second

// Proxies is the source of the nodes' kube-proxies and their tables. That takes
// a command on each node for every snapshot.
var Proxies = perNode("kube-proxies", proxyReader, func(p Proxy) string { return p.Node },
	func(s *Snapshot) *[]Proxy { return &s.Proxies }).within(proxyTimeout)

// NFTables is a mode of kube-proxy.
const NFTables = "nftables"

// Kernel is what part of the kernel Table is of.
func (p Proxy) Kernel() string {
	if p.Mode == NFTables {
		return NFTables
	}
	return "IPVS"
}

// readNFTables reads what a kube-proxy in mode nftables has written, or one of unknown mode may have written.
func (p *Proxy) readNFTables(ctx context.Context, m Machine) (err error) {
	if p.Mode != NFTables && (p.Mode != "" || len(p.Table) > 0) {
		return nil
	}
	if own, ok := m.(Own); ok && p.Mode == "" {
		if has, err := own.has(nfTables); err != nil || !has[0] {
			return err
		}
	}
	if p.Table, err = nftServices(ctx, m); err == nil && p.Mode != "" {
		p.Unreadable, err = unreadableSets(ctx, m)
	}
	return err
}

func (p Proxy) parts() []part {
	return []part{{what: "kube-proxy of " + p.Node, read: p.Read, why: p.Error, state: p.state}}
}

func (p Proxy) state(to *statements) {
	if !p.Read {
		return
	}
	health := "does not answer"
	if p.Health.Status != 0 {
		health = fmt.Sprintf("healthz %d", p.Health.Status)
	}
	to.add(Agent, "kube-proxy on "+p.Node, p.Node, "", "%s, %s", cmp.Or(p.Mode, "mode unknown"), health)
	if !to.bulk {
		return
	}
	for _, v := range p.Table {
		var servers []string
		for _, r := range v.Servers {
			if r.Weight > 0 {
				servers = append(servers, r.Address.Addr().String())
			}
		}
		to.add(Kernel, p.Kernel()+" of "+p.Node, cmp.Or(to.services[v.Address.Addr()], v.Address.String()), "",
			"%s", cmp.Or(strings.Join(servers, ", "), "no real server"))
	}
}

func proxyReader(node string, m Machine) func(context.Context) Proxy {
	var synced time.Time // as of the snapshot before
	return func(ctx context.Context) Proxy {
		answer := list(ctx, func(ctx context.Context) ([]Proxy, error) {
			p, err := ProxyQuery{Health: true, Synced: synced, Table: true}.Ask(ctx, m)
			if err == nil {
				err = p.readNFTables(ctx, m)
			}
			return []Proxy{p}, err
		})
		var p Proxy
		if answer.Read {
			p = answer.Items[0]
			synced = p.Health.LastUpdated
		}
		p.Node, p.Read, p.Error = node, answer.Read, answer.Error
		return p
	}
}
