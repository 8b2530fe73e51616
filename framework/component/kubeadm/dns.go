package kubeadm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Corefile is CoreDNS's configuration, as CoreDNS of a lab gets it.
type Corefile struct {
	Text string
	// Zone is the first zone of the plugin kubernetes, without a final dot.
	Zone string
	// Reverse is set if the plugin kubernetes answers for the addresses of pods, and nothing else may.
	Reverse bool
	// Replaced are what the lab has in place of the user's lines, a clause each.
	Replaced []string
}

// defaultCorefile is kubeadm's (cmd/kubeadm/app/phases/addons/dns/manifests.go of 1.34).
const defaultCorefile = `.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
`

var (
	beforeKubernetes = regexp.MustCompile(`(?m)^[ \t]*kubernetes[ \t]`)
	// snippet finds the blocks of a Corefile that import may name in place of files.
	snippet = regexp.MustCompile(`(?m)^[ \t]*\((\S+)\)[ \t]*\{`)
	// otherReverse finds a part of in-addr.arpa that another block or plugin may answer for.
	otherReverse = regexp.MustCompile(`\d\.in-addr\.arpa`)
	// nodeLocal finds what the manifest of NodeLocal DNSCache has: its variables, and its address.
	nodeLocal = regexp.MustCompile(`__PILLAR__|169\.254\.20\.10`)
)

// NewCorefile adapts a Corefile, kubeadm's if it is empty, to a lab with a DNS server for names outside of the cluster.
func NewCorefile(text string, upstream netip.AddrPort) (Corefile, error) {
	users := text != ""
	if !users {
		text = defaultCorefile
	}
	var c Corefile
	var out strings.Builder
	plugins := map[string]bool{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		words := strings.Fields(line)
		if i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "#") }); i >= 0 {
			words = words[:i]
		}
		if len(words) == 0 {
			out.WriteString(line)
			continue
		}
		plugins[words[0]] = true
		switch words[0] {
		case "import":
			switch name := words[min(1, len(words)-1)]; { // a snippet may have arguments
			case slices.ContainsFunc(snippet.FindAllStringSubmatch(text, -1), func(m []string) bool { return m[1] == name }):
			case strings.ContainsAny(name, "*?["): // CoreDNS passes over a pattern that no file matches
				c.Replaced = append(c.Replaced, fmt.Sprintf("line %d: import %s is left out: the lab has no such files; a Corefile with their lines "+
					"in its place has what they change", number, name))
				continue
			default:
				return Corefile{}, fmt.Errorf("line %d: import %s: the lab has no such file: expected its lines in place of the import", number, name)
			}
		case "kubernetes":
			if len(words) > 1 && c.Zone == "" {
				c.Zone = strings.TrimSuffix(words[1], ".")
			}
			c.Reverse = c.Reverse || slices.Contains(words, "in-addr.arpa")
		case "forward":
			if len(words) < 3 {
				return Corefile{}, fmt.Errorf("line %d: %s: expected forward FROM TO", number, strings.TrimSpace(line))
			}
			to, open := words[2:], ""
			if to[len(to)-1] == "{" {
				to, open = to[:len(to)-1], " {"
			}
			if users {
				c.Replaced = append(c.Replaced, fmt.Sprintf("line %d: forward %s to %s is replaced by %s, a DNS server inside the lab", number,
					words[1], strings.Join(to, " "), upstream))
			}
			indent := line[:strings.Index(line, "forward")]
			fmt.Fprintf(&out, "%sforward %s %s%s\n", indent, words[1], upstream, open)
			continue
		}
		out.WriteString(line)
	}
	c.Text = out.String()
	c.addProbed(plugins)
	c.Reverse = c.Reverse && !otherReverse.MatchString(text)
	switch {
	case c.Zone == "" && nodeLocal.MatchString(text):
		return Corefile{}, errors.New("it is of NodeLocal DNSCache: expected that of CoreDNS, as the ConfigMap coredns has it")
	case c.Zone == "":
		return Corefile{}, errors.New("it has no plugin kubernetes with a zone")
	case !plugins["forward"]:
		return Corefile{}, errors.New("it has no plugin forward: expected one, as in forward . /etc/resolv.conf")
	}
	return c, nil
}

func (c *Corefile) addProbed(plugins map[string]bool) {
	added := each.Where([]string{"health", "ready"}, func(p string) bool { return !plugins[p] && plugins["kubernetes"] })
	if len(added) > 0 {
		at := beforeKubernetes.FindStringIndex(c.Text)[0]
		c.Text = c.Text[:at] + "    " + strings.Join(added, "\n    ") + "\n" + c.Text[at:]
		c.Replaced = append(c.Replaced, fmt.Sprintf("the plugins %s are added: the probes of kubeadm's Deployment ask them",
			strings.Join(added, " and ")))
	}
}

// DNS is CoreDNS at a version, with a Corefile of its own, by kubeadm's manifest.
type DNS struct {
	Version string
	Config  Corefile
}

// DNSImage is the vendor's name of CoreDNS's image of a version.
func DNSImage(version string) string { return "registry.k8s.io/coredns/coredns:v" + version }

// DNSAddress is CoreDNS's Service: the tenth address of the Services' range.
var DNSAddress = netip.AddrPortFrom(netip.MustParseAddr("10.96.0.10"), 53)

// DNSReplicas is how many pods kubeadm's Deployment of CoreDNS has.
const DNSReplicas = 2

// Apply is the action that brings CoreDNS to this version and Corefile, and waits until only its pods run, all ready.
func (d DNS) Apply(bound time.Duration) framework.Action {
	return d.rolled(bound, func(*appsv1.Deployment) {})
}

// Restart is the action that replaces the pods one after the other, as kubectl rollout restart does.
func (d DNS) Restart(bound time.Duration) framework.Action {
	return d.rolled(bound, func(set *appsv1.Deployment) {
		set.Spec.Template.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": time.Now().Format(time.RFC3339)}
	})
}

func (d DNS) rolled(bound time.Duration, change func(*appsv1.Deployment)) framework.Action {
	return labaccess.OnLab(func(ctx context.Context, lab *kindlab.Lab) error {
		if err := d.declare(ctx, lab, change); err != nil {
			return err
		}
		if err := CoreDNS.Ready(ctx, lab.Clusters[0], bound); err != nil {
			return err
		}
		return CoreDNS.Pods.Started(ctx, lab.Clusters[0], DNSReplicas, bound)
	})
}

// heldFor is how long ApplyHalf holds a rollout: far longer than anybody waits for it.
const heldFor = time.Hour

// ApplyHalf begins what Apply does, and waits until the rollout has ready pods of this version, and others. The rollout
// stays there until Apply: no new pod counts as available, and kubeadm's strategy keeps one old pod until one does.
func (d DNS) ApplyHalf(ctx context.Context, lab *kindlab.Lab, bound time.Duration) error {
	err := d.declare(ctx, lab, func(set *appsv1.Deployment) {
		set.Spec.MinReadySeconds = int32(heldFor.Seconds())
		set.Spec.ProgressDeadlineSeconds = new(int32(2 * heldFor.Seconds())) // has to be longer
	})
	if err != nil {
		return err
	}
	return await.Until(ctx, "CoreDNS to be half "+d.Version, 100*time.Millisecond, bound, func(ctx context.Context) (bool, string, error) {
		pods, err := CoreDNS.Pods.List(ctx, lab.Clusters[0])
		if err != nil {
			return false, "", err
		}
		ok, saw := d.half(pods)
		return ok, saw, nil
	})
}

// half reports whether a rollout is where ApplyHalf stops it: with pods of this version and others, all ready.
func (d DNS) half(pods []corev1.Pod) (bool, string) {
	count := map[bool]int{}
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil || !workload.Ready(pod) {
			return false, workload.DescribePod(pod)
		}
		count[pod.Spec.Containers[0].Image == DNSImage(d.Version)]++
	}
	// One of two may be unavailable (kubeadm's maxUnavailable), and one more made (maxSurge of a quarter).
	return count[true] == DNSReplicas && count[false] == 1, fmt.Sprintf("%d pods of it, %d others", count[true], count[false])
}

func (d DNS) declare(ctx context.Context, lab *kindlab.Lab, change func(*appsv1.Deployment)) error {
	return apply(ctx, lab, changes{
		"ConfigMap": changed(func(m *corev1.ConfigMap) { m.Data["Corefile"] = d.Config.Text }),
		"Deployment": changed(func(set *appsv1.Deployment) {
			set.Spec.Template.Spec.Containers[0].Image = DNSImage(d.Version)
			// The lab waits for it: it is asked each second instead of every ten.
			set.Spec.Template.Spec.Containers[0].ReadinessProbe.PeriodSeconds = 1
			change(set)
		}),
	}, "coredns")
}
