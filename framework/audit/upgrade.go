package audit

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// The name of the ConfigMap of Cilium's agents in the vendor's chart.
const (
	configNamespace = "kube-system"
	configName      = "cilium-config"
	ciliumConfig    = detect.CiliumConfig
)

// ConfigPath is the path of that ConfigMap, which an audit requests for an upgrade or with nodes.
const ConfigPath = "/api/v1/namespaces/" + configNamespace + "/configmaps/" + configName

// Upgrade is a planned upgrade.
type Upgrade struct {
	Component string `json:"component"`
	// From is the version that runs; empty from ParseUpgrade: Result.Upgrade finds it in the cluster.
	From string `json:"from"`
	// Known says where From comes from.
	Known string `json:"known"`
	To    string `json:"to"`
}

func (u Upgrade) String() string {
	return fmt.Sprintf("upgrade of %s from %s (%s) to %s", u.Component, u.From, u.Known, u.To)
}

var aVersion = regexp.MustCompile(`^v?\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

// ParseUpgrade reads COMPONENT=VERSION, or COMPONENT=FROM..TO. The versions that it names have a table of keys.
func ParseUpgrade(text string) (Upgrade, error) {
	const want = "expected the version of an upgrade, such as cilium=1.19.5, or both, such as cilium=1.18.6..1.19.5"
	component, versions, both := strings.Cut(text, "=")
	if !both {
		return Upgrade{}, fmt.Errorf("%q: %s", text, want)
	}
	if component != configdrift.Component {
		components := []string{configdrift.Component}
		return Upgrade{}, fmt.Errorf("no table of the keys of %q%s", component, topology.Nearest(component, components))
	}
	u := Upgrade{Component: component, To: versions}
	if from, to, ok := strings.Cut(versions, ".."); ok {
		u.From, u.To, u.Known = from, to, "as given"
		if err := checkTable(u.From, want); err != nil {
			return Upgrade{}, err
		}
	}
	if err := checkTable(u.To, want); err != nil {
		return Upgrade{}, err
	}
	return u, nil
}

// checkTable returns an error unless there is a table of a version.
func checkTable(version, want string) error {
	if !aVersion.MatchString(version) {
		return fmt.Errorf("version %q: %s", version, want)
	}
	v := configdrift.Setup{Version: version}
	_, err := configdrift.Cilium().Compare(v, v)
	return err
}

// Upgrade adds findings about settings whose effect changes by an upgrade. The error is about the version that runs: it
// cannot be found, or there is no table of its keys. A ConfigMap that was not read is no error, but unread.
func (r *Result) Upgrade(reads []snapshot.Snapshot, u Upgrade) error {
	last := reads[len(reads)-1]
	if u.From == "" {
		var err error
		if u.From, u.Known, err = running(last); err != nil {
			return fmt.Errorf("%w: expected both versions, such as %s=1.11.6..%s", err, u.Component, u.To)
		}
	}
	if err := checkTable(u.From, "expected one such as 1.11.6"); err != nil {
		return fmt.Errorf("the version that runs (%s): %w", u.Known, err)
	}
	r.Planned = &u
	detector := configdrift.Detector{}
	config := func(s snapshot.Snapshot) (snapshot.ConfigMap, bool) {
		return each.First(s.ConfigMaps.Items, func(m snapshot.ConfigMap) bool { return m.String() == ciliumConfig })
	}
	before := reads[max(0, len(reads)-2)]
	now, nowFound := config(last)
	earlier, earlierFound := config(before)
	if !nowFound || !earlierFound {
		missing := snapshot.Missing{Source: "ConfigMap " + ciliumConfig, Reason: "not asked for"}
		if failed := cmp.Or(last.ConfigMaps.Error, before.ConfigMaps.Error); failed != "" {
			missing = snapshot.Missing{Source: "ConfigMaps", Reason: failed}
		}
		r.Unread = append(r.Unread, missing)
		for i := range r.NotRun {
			if r.NotRun[i].Detector == detector.Name() {
				r.NotRun[i].Lacks = "ConfigMap " + ciliumConfig
			}
		}
		return nil
	}
	r.NotRun = slices.DeleteFunc(r.NotRun, func(n NotRun) bool { return n.Detector == detector.Name() })
	r.Ran = append(r.Ran, detector.Name())
	r.NotRun = append(r.NotRun, NotRun{detector.Name(), configdrift.Unjudged(), fmt.Sprintf("the agents of %s and %s", u.From, u.To)})
	find := func(s snapshot.Snapshot, settings snapshot.ConfigMap) []detect.Finding {
		d := configdrift.Detector{Before: configdrift.Setup{Version: u.From, Config: settings.Data}, Version: u.To, ConfigMap: ciliumConfig}
		return detect.Run([]detect.Detector{d}, []snapshot.Snapshot{s})
	}
	r.add(find(last, now), find(before, earlier))
	return nil
}

func running(s snapshot.Snapshot) (version, how string, err error) {
	const agent, daemonSet = "cilium-agent", "DaemonSet kube-system/cilium"
	tag := func(image string) string {
		ref, err := snapshot.ParseReference(image)
		if err != nil || !aVersion.MatchString(ref.Tag) {
			return ""
		}
		return strings.TrimPrefix(ref.Tag, "v")
	}
	versions, pods := map[string]bool{}, 0
	for _, p := range s.PodImages.Items {
		for _, c := range p.Containers {
			if c.Name == agent {
				versions[tag(c.Image)] = true
				pods++
			}
		}
	}
	for _, w := range s.Workloads.Items {
		for _, c := range w.Containers {
			if w.Kind+" "+w.Namespace+"/"+w.Name == daemonSet && c.Name == agent {
				versions[tag(c.Image)] = true
				how = "the tag of the image of " + daemonSet
			}
		}
	}
	how = cmp.Or(how, fmt.Sprintf("the tags of the images of %d pods", pods))
	all := slices.Sorted(maps.Keys(versions))
	switch {
	case len(all) == 0:
		return "", "", fmt.Errorf("no pod with a container %s was read, nor %s: the version of Cilium that runs is not known", agent, daemonSet)
	case slices.Contains(all, ""):
		return "", "", fmt.Errorf("an image of container %s has no tag that is a version: the version of Cilium that runs is not known", agent)
	case len(all) > 1:
		return "", "", fmt.Errorf("containers %s have images of %s: the version of Cilium that runs is not known",
			agent, strings.Join(all, " and "))
	}
	return all[0], how, nil
}

// UpgradeRole is a manifest of the Role that permits reading the ConfigMap at ConfigPath.
func UpgradeRole() string {
	return manifestOf(rbacv1.Role{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
		ObjectMeta: metav1.ObjectMeta{Name: "relapse-audit", Namespace: configNamespace},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{configName},
			Verbs: []string{"get"},
		}},
	})
}
