package audit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/report/archive"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Redaction replaces the names and addresses of a cluster and its routers, as relapse archive
// --redact does those of a run.
type Redaction struct{ by *archive.Replacing }

// mentions are how errors name machines: USER@HOST, what ssh connects to, hosts of URLs, and names
// that are looked up.
var mentions = regexp.MustCompile(`(?: -- |://|lookup )((?:[A-Za-z0-9._-]+@)?[A-Za-z][A-Za-z0-9._-]*)|([A-Za-z0-9._-]+@[A-Za-z0-9._-]+)`)

// Redact chooses the replacements for some reads. By says how routers are reached, which errors
// tell; hosts are further names of machines, and texts further texts that may hold addresses.
//
// Replaced are addresses, and the names of nodes, routers, pods, namespaces, Services, and, outside
// of the namespaces that are the same everywhere, of workloads, ServiceAccounts and registries.
// Versions, the names of containers and what images are called in their registry stay: findings need
// them.
func Redact(reads []snapshot.Snapshot, by []bgprouter.Declared, hosts []string, texts ...string) (Redaction, error) {
	others := map[string][]string{"host": hosts}
	add := func(kind, name string) { others[kind] = append(others[kind], name) }
	for _, r := range by {
		add("router", r.Name)
		add("host", r.SSH)
		if host, _, err := net.SplitHostPort(r.Address); err == nil {
			if _, err := netip.ParseAddr(host); err != nil { // an address is found by its form
				add("host", host)
			}
		}
		if len(r.Command) > 0 {
			add("host", shellescape.QuoteCommand(r.Command))
		}
	}
	// Where a vendor's own workloads run, their names are no secret.
	own := func(namespace string) bool { return !slices.Contains(archive.WellKnown(), namespace) }
	image := func(ref string) {
		if host, _, more := strings.Cut(ref, "/"); more && strings.ContainsAny(host, ".:") {
			add("host", host)
		}
	}
	for _, s := range reads {
		for _, text := range s.Unavailable() {
			for _, found := range mentions.FindAllStringSubmatch(text, -1) {
				add("host", strings.TrimRight(cmp.Or(found[1], found[2]), "."))
			}
		}
		for _, r := range s.Routers {
			add("router", r.Name)
		}
		for _, o := range s.Services.Items {
			if own(o.Namespace) {
				add("service", o.Name)
			}
		}
		for _, o := range s.EndpointSlices.Items {
			if own(o.Namespace) {
				add("service", o.Service)
			}
		}
		for _, o := range s.Workloads.Items {
			if !own(o.Namespace) {
				continue
			}
			add("workload", o.Name)
			for _, c := range o.Containers {
				image(c.Image)
			}
		}
		for _, o := range s.PodImages.Items {
			if !own(o.Namespace) {
				continue
			}
			if o.OwnerKind != "Node" {
				add("workload", o.OwnerName)
			}
			for _, c := range o.Containers {
				image(c.Image)
				image(c.ImageID)
			}
		}
		for _, o := range s.Accounts.Items {
			if own(o.Namespace) && o.Name != "default" {
				add("account", o.Name)
			}
		}
		for _, o := range s.ConfigMaps.Items {
			if name := o.Data["cluster-name"]; name != "default" {
				add("host", name)
			}
		}
	}
	others["host"] = slices.DeleteFunc(others["host"], func(name string) bool { return slices.Contains(others["router"], name) })
	replacing, err := archive.Replace(reads, others, texts...)
	return Redaction{replacing}, err
}

// Reads returns reads with replacements.
func (x Redaction) Reads(reads []snapshot.Snapshot) ([]snapshot.Snapshot, error) {
	var all []snapshot.Snapshot
	for _, s := range reads {
		replaced, err := x.by.Snapshot(s)
		if err != nil {
			return nil, err
		}
		all = append(all, replaced)
	}
	return all, nil
}

// Result returns a result with replacements. The IDs of its findings are those that an audit of the
// replaced reads gives them.
func (x Redaction) Result(r Result) (Result, error) {
	var to Result
	text, err := json.Marshal(r)
	if err == nil {
		err = json.Unmarshal(x.by.JSON(text), &to)
	}
	if err != nil {
		return to, fmt.Errorf("replacing names and addresses of the findings: %w", err)
	}
	to.Ran, to.NotRun, to.Planned = r.Ran, r.NotRun, r.Planned // they name no part of the cluster
	renamed := map[string]string{}
	rename := func(old string, f *Finding) {
		f.ID = id(f.Finding)
		renamed[old] = f.ID
	}
	for i := range to.Findings {
		rename(r.Findings[i].ID, &to.Findings[i])
	}
	for i := range to.Once {
		rename(r.Once[i].ID, &to.Once[i])
	}
	for i := range to.Suppressed {
		s := &to.Suppressed[i]
		rename(r.Suppressed[i].ID, &s.Finding)
		if s.By.ID != "" {
			s.By.ID = renamed[r.Suppressed[i].By.ID]
		}
	}
	return to, nil
}

// Text returns a text with replacements.
func (x Redaction) Text(text string) string { return x.by.Text(text) }
