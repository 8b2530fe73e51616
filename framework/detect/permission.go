package detect

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// NotPermitted is the kind of the findings of Permission.
const NotPermitted = "not-permitted"

// Permission compares what RBAC permits the ServiceAccount of a running pod with what the
// vendor's charts of the minor version that runs in it grant its program. The two differ where an
// upgrade changes a role before it has replaced the pods, or where a role was edited. A
// program that runs may not notice, because it has read what it asks for, and the API server
// does not end a watch that it has accepted; one that starts does.
//
// What the charts grant is a table, made of the vendor's charts with their default values, of Cilium's agent, which
// is recognized by its image. A version is judged by what all charts of its minor version in the table grant: a rule
// that came or went within a minor version is for other pods, such as the agents of the version before. Minor
// versions that the table lacks, and images without a version, are not judged (Ungranted). The finding is latent,
// because a chart may grant more than its program asks for, and active for a node whose pods a router has no route to.
type Permission struct {
	// Peering says which routers are expected to have a route to a node's pods.
	Peering Peering
}

func (Permission) Name() string { return "permission" }

func (d Permission) Reads() []snapshot.Source {
	return append([]snapshot.Source{snapshot.RunningImages, snapshot.Accounts, snapshot.Nodes, snapshot.Pods, snapshot.CiliumNodes,
		snapshot.CalicoBlocks, snapshot.Routers}, d.Peering.announcing()...)
}

// Detect implements Detector. For each account and image, in their order, there is one latent
// finding, and an active one for each node, which is then its Owner.
func (d Permission) Detect(history []snapshot.Snapshot, x *Index) []Finding {
	now := history[len(history)-1]
	if !now.PodImages.Read || !now.Accounts.Read {
		return nil
	}
	view := newViews(history, x, d.Peering).now()
	hasChart := map[string]bool{}                    // images
	type group struct{ account, image, node string } // node: of an active finding
	pods, routers := map[group][]string{}, map[group][]string{}
	for _, p := range now.PodImages.Items {
		for _, c := range p.Containers {
			if _, seen := hasChart[c.Image]; !seen {
				_, _, charts := grants(c.Image)
				hasChart[c.Image] = charts != nil
			}
			if !hasChart[c.Image] || c.Init {
				continue
			}
			g := group{p.Namespace + "/" + p.ServiceAccount, c.Image, ""}
			if without := view.routersWithout(p.Node); len(without) > 0 {
				g.node = p.Node
				routers[g] = without
			}
			pods[g] = append(pods[g], p.String())
		}
	}
	var findings []Finding
	for _, g := range slices.SortedFunc(maps.Keys(pods), func(a, b group) int {
		return strings.Compare(a.account+" "+a.image+" "+a.node, b.account+" "+b.image+" "+b.node)
	}) {
		i := slices.IndexFunc(now.Accounts.Items, func(a snapshot.Account) bool { return a.String() == g.account })
		if i < 0 {
			continue // the pod was made after the accounts were read
		}
		granted, name, charts := grants(g.image)
		missing := each.Of(against(granted, now.Accounts.Items[i].Permissions, false), sayPermission)
		if len(missing) == 0 {
			continue
		}
		f := Finding{
			Kind: NotPermitted, State: Latent, Object: Named("ServiceAccount " + g.account + ", " + g.image), Pods: pods[g],
			Says: fmt.Sprintf("ServiceAccount %s may not %s, which the vendor's %s of %s %s %s: %s %s with it, and may not work after a restart",
				g.account, and(missing), plural(len(charts), "chart", "charts"), name, and(charts), plural(len(charts), "grants",
					"all grant"), pods[g][0], others(len(pods[g])-1)+g.image),
		}
		if g.node != "" {
			f.State, f.Owner, f.Routers = Active, g.node, routers[g]
			f.Says += fmt.Sprintf("; %s no route to the pods on %s", do(f.Routers, "has", "have"), g.node)
		}
		f.Says += "."
		findings = append(findings, f)
	}
	return findings
}

func others(more int) string {
	if more == 0 {
		return "runs "
	}
	return fmt.Sprintf("and %d more run ", more)
}

// granted are what the charts of vendors grant programs, by the end of the image's name and
// by version.
//
//go:embed granted.json
var granted []byte

var grantedBy = sync.OnceValue(func() (by map[string]map[string][]snapshot.Permission) {
	if err := json.Unmarshal(granted, &by); err != nil {
		panic("granted.json: " + err.Error()) // it is a part of the program
	}
	return by
})

// grants returns what all known charts of the minor version of an image grant it, and the name
// and versions of these. There are none for most images.
func grants(image string) (rules []snapshot.Permission, name string, charts []string) {
	name, version := program(image)
	versions := grantedBy()[name]
	for _, v := range slices.SortedFunc(maps.Keys(versions), func(a, b string) int { return semver.Compare("v"+a, "v"+b) }) {
		if semver.MajorMinor("v"+v) != semver.MajorMinor(version) {
			continue
		}
		if charts == nil {
			rules = versions[v]
		}
		rules = against(rules, versions[v], true)
		charts = append(charts, v)
	}
	return rules, name, charts
}

// program is the program of the table that an image has, and its version; empty if it has none. Rancher's images have
// the vendor's name with hyphens.
func program(image string) (name, version string) {
	ref, _ := snapshot.ParseReference(image)
	for candidate := range grantedBy() {
		if strings.HasSuffix("/"+ref.Name, "/"+candidate) || path.Base(ref.Name) == "mirrored-"+strings.ReplaceAll(candidate, "/", "-") {
			return candidate, ref.Tag
		}
	}
	return "", ""
}

// programs are the names of the containers in which the vendors' charts run the programs of the table.
var programs = map[string]string{"cilium-agent": "cilium/cilium"}

// Ungranted are the images of pods whose permissions are not judged: the container's or the image's name tells that
// it runs a program of the table, and the table lacks the image or its version.
func (Permission) Ungranted(s snapshot.Snapshot) (images []string) {
	for _, p := range s.PodImages.Items {
		for _, c := range p.Containers {
			name, _ := program(c.Image)
			if _, _, charts := grants(c.Image); !c.Init && charts == nil && cmp.Or(name, programs[c.Name]) != "" {
				images = append(images, c.Image)
			}
		}
	}
	return each.Once(images)
}

// against are the permissions of some that others include, or else lack, with one entry for each resource.
func against(some, others []snapshot.Permission, included bool) (all []snapshot.Permission) {
	for _, p := range some {
		for _, group := range p.Groups {
			for _, resource := range p.Resources {
				single := snapshot.Permission{Groups: []string{group}, Resources: []string{resource}, Names: p.Names}
				single.Verbs = each.Where(p.Verbs, func(verb string) bool {
					return permit(others, group, resource, verb, p.Names) == included
				})
				if len(single.Verbs) > 0 {
					all = append(all, single)
				}
			}
		}
	}
	return all
}

func sayPermission(p snapshot.Permission) string {
	return and(p.Verbs) + " " + strings.TrimSuffix(p.Resources[0]+"."+p.Groups[0], ".")
}

// permit reports whether some permissions include a verb on a resource in all namespaces: on
// objects of some names, or on all if there are none.
func permit(has []snapshot.Permission, group, resource, verb string, names []string) bool {
	return slices.ContainsFunc(has, func(h snapshot.Permission) bool {
		return h.Namespace == "" && hasEntry(h.Groups, group) && hasEntry(h.Resources, resource) && hasEntry(h.Verbs, verb) &&
			named(h.Names, names)
	})
}

func hasEntry(list []string, what string) bool {
	return slices.Contains(list, "*") || slices.Contains(list, what)
}

// named reports whether a rule for objects of some names permits what one for others does.
func named(has, wants []string) bool {
	return len(has) == 0 || len(wants) > 0 && !slices.ContainsFunc(wants, func(w string) bool { return !slices.Contains(has, w) })
}
