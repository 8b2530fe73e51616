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
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report/archive"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Redaction replaces the names and addresses of a cluster and its routers, as relapse archive
// --redact does those of a run.
type Redaction struct{ by *archive.Replacing }

// mentions are how errors name machines: USER@HOST, what ssh connects to, hosts of URLs, and names
// that are looked up.
var mentions = regexp.MustCompile(`(?: -- |://|lookup |hostname |connect to host |can-reach=)((?:[A-Za-z0-9._-]+@)?[A-Za-z][A-Za-z0-9._-]*)|([A-Za-z0-9._-]+@[A-Za-z0-9._-]+)`)

// Errors also name files, in whose paths are names of users; the words before a router's command; and
// the names in a certificate. Keys of ConfigMaps have names of the DNS.
var (
	files    = regexp.MustCompile(`/((?:home|root|Users|mnt|srv|opt|etc|tmp|var|data|work)/[^\s"':,;]+)`)
	reached  = regexp.MustCompile(`running (.+?) '?(?:vtysh|birdc|ip) `)
	validFor = regexp.MustCompile(`certificate is valid for ([^"]+?), not ([A-Za-z0-9.-]+)`)
	domains  = regexp.MustCompile(`\b(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}\b`)
)

// ownRule are comments of rules that programs have written which every cluster has; the names of
// namespaces and Services in them are replaced. ownChain are chains that are theirs or the kernel's.
var (
	ownRule  = regexp.MustCompile(`^(?:$|cali:|cilium|kubernetes |kube-|kubelet|flanneld|[a-z0-9-]+/[a-z0-9-]+(?:[: ]|$)|generated |block incoming |Kubernetes |masquerade|pod range )`)
	ownChain = regexp.MustCompile(`^(?:PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING|KUBE-.*|(?:OLD_)?CILIUM_.*|cali-.*|FLANNEL-.*|CNI-.*|DOCKER.*|LIBVIRT_.*)$`)
)

// everywhere are names that objects have in many clusters, and words that sentences are made of.
var everywhere = []string{"default", "default-pool", "default-ipv4-ippool", "default-ipv6-ippool", "kubernetes"}

// hostsIn are the names of machines, and the files, that a text tells as errors do.
func hostsIn(text string) (all []string) {
	for _, found := range mentions.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.TrimRight(cmp.Or(found[1], found[2]), "."))
	}
	for _, found := range files.FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	for _, found := range reached.FindAllStringSubmatch(text, -1) {
		if !strings.HasPrefix(found[1], "ssh ") && found[1] != "" { // that of ssh is a mention
			all = append(all, found[1])
		}
	}
	for _, found := range validFor.FindAllStringSubmatch(text, -1) {
		for _, name := range append(strings.Split(found[1], ", "), found[2]) {
			if _, err := netip.ParseAddr(name); err != nil && !strings.HasPrefix(name, "kubernetes") && name != "localhost" {
				all = append(all, strings.TrimPrefix(name, "*."))
			}
		}
	}
	return all
}

// Redact chooses the replacements for some reads. By says how routers are reached, which errors
// tell; hosts are further names of machines, and texts further texts that may hold addresses.
//
// Replaced are addresses, and the names of nodes, routers, pods, namespaces, Services, pools, what is
// announced and to whom, chains and comments of rules that are no known program's, and, outside of the
// namespaces that are the same everywhere, of workloads, ServiceAccounts, the objects that these may
// use, and registries.
// Versions, the names of containers and what images are called in their registry stay: findings need
// them.
func Redact(reads []snapshot.Snapshot, by []bgprouter.Declared, hosts []string, texts ...string) (Redaction, error) {
	others := map[string][]string{"host": hosts}
	add := func(kind string, names ...string) {
		for _, name := range names {
			if !slices.Contains(everywhere, name) {
				others[kind] = append(others[kind], strings.TrimLeft(name, "/.~ "))
			}
		}
	}
	for _, r := range by {
		add("router", r.Name)
		add("host", r.SSH, r.File)
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
			add("host", hostsIn(text)...)
		}
		for _, r := range s.Routers {
			add("router", r.Name)
			add("object", r.VRFs...)
			for _, remark := range r.Remarks {
				add("host", hostsIn(remark.Says)...)
			}
		}
		for _, o := range s.CiliumNodes.Items {
			for _, p := range o.Pools {
				add("pool", p.Name)
			}
		}
		for _, o := range s.CalicoPools.Items {
			add("pool", o.Name)
		}
		for _, o := range s.CalicoPeers.Items {
			add("object", append(o.Filters, o.Name)...)
		}
		for _, o := range s.CalicoAgents.Items {
			add("host", hostsIn(o.Method)...)
		}
		for _, o := range s.BGPAdvertisements.Items {
			add("object", append(o.Peers, o.Name)...)
			add("pool", o.PodPools...)
		}
		for _, rules := range rulesOf(s) {
			for _, r := range rules {
				if !ownRule.MatchString(r.Comment) {
					add("rule", r.Comment)
				}
				if !ownChain.MatchString(r.Chain) {
					add("rule", r.Chain)
				}
			}
		}
		for _, o := range s.Services.Items {
			if own(o.Namespace) {
				add("service", o.Name)
			}
			add("pool", o.MetalLBPool)
			image(o.Class)
		}
		for _, o := range s.EndpointSlices.Items {
			add("node", o.ReadyOn...)
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
			add("account", o.ServiceAccount)
			for _, c := range o.Containers {
				image(c.Image)
				image(c.ImageID)
			}
		}
		for _, o := range s.Accounts.Items {
			for _, p := range o.Permissions {
				if own(p.Namespace) {
					add("namespace", p.Namespace)
				}
				if own(o.Namespace) {
					add("object", p.Names...)
				}
			}
			if own(o.Namespace) {
				add("account", o.Name)
			}
		}
		for _, o := range s.ConfigMaps.Items {
			add("host", o.Data["cluster-name"])
			for _, value := range o.Data {
				add("host", hostsIn(value)...)
				add("host", domains.FindAllString(value, -1)...)
			}
		}
	}
	others["host"] = slices.DeleteFunc(others["host"], func(name string) bool { return slices.Contains(others["router"], name) })
	replacing, err := archive.Replace(reads, others, texts...)
	return Redaction{replacing}, err
}

// rulesOf are the rules of all nodes.
func rulesOf(s snapshot.Snapshot) (all [][]snapshot.Rule) {
	for _, n := range s.NAT {
		all = append(all, n.Rules.Items)
	}
	for _, n := range s.Firewalls {
		all = append(all, n.Rules.Items)
	}
	return all
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
	// IDs of what was not found are those of the cluster as well: whoever guesses its names can check
	// them by an ID.
	other := func(id string) string {
		if _, known := renamed[id]; !known {
			renamed[id] = fmt.Sprintf("%012x", len(renamed))
		}
		return renamed[id]
	}
	for i := range to.Unused {
		if s := &to.Unused[i]; s.ID != "" {
			s.ID = other(s.ID)
		}
	}
	for i := range to.Findings {
		f := &to.Findings[i]
		was, _, _ := strings.Cut(strings.TrimPrefix(f.Object.String(), suppressionOf), " ")
		if f.Detector != SuppressionDetector || !anID.MatchString(was) {
			continue
		}
		is := other(was)
		f.Says = strings.ReplaceAll(f.Says, was, is)
		f.Object = detect.Named(strings.Replace(f.Object.String(), was, is, 1))
		f.ID = id(f.Finding)
	}
	return to, nil
}

// Text returns a text with replacements.
func (x Redaction) Text(text string) string { return x.by.Text(text) }
