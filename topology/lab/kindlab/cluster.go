package kindlab

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	docker "github.com/moby/moby/client"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/klient/k8s"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	"sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/kind/pkg/exec"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/guest"
	"github.com/relapse-dev/relapse/topology/lab/kube"
)

// Images of every cluster, under the vendors' names.
const (
	nodeImage = "relapse.dev/node:v1.34.4"
	apiPort   = 6443
)

// controlPlaneImages are the images that kubeadm and kubelet pull.
var controlPlaneImages = []string{
	"registry.k8s.io/etcd:3.6.5-0",
	"registry.k8s.io/kube-apiserver:v1.34.4",
	"registry.k8s.io/kube-controller-manager:v1.34.4",
	"registry.k8s.io/kube-scheduler:v1.34.4",
	"registry.k8s.io/pause:3.10",
}

// Cluster is a running Kubernetes cluster of a lab.
type Cluster struct {
	Name string
	// Kubeconfig is the path of the administrator's kubeconfig (0600).
	Kubeconfig string
	// Client accesses the API server as the administrator.
	Client *kube.Client

	// authority is the API server's CA certificate, in PEM.
	authority []byte
	spec      topology.Cluster
	lab       *Lab
}

// Nodes returns the names of the declared nodes, in the order of the topology.
func (c *Cluster) Nodes() []string {
	return each.Of(c.spec.Nodes, func(n topology.Node) string { return n.Name })
}

// Kube is klient's client behind the interface of controller-runtime, which has server-side apply
// and DeleteAllOf.
func (c *Cluster) Kube() client.Client { return c.Client.Resources().GetControllerRuntimeClient() }

// APIServer is the address and port at which the cluster's nodes, and pods in their networks, reach
// the API server. It needs no Service proxy and no name server.
func (c *Cluster) APIServer() netip.AddrPort {
	if c.lab.foreign != nil {
		return c.lab.foreign.api
	}
	return apiEndpoint(c.spec)
}

// PodRanges reads a node's Node.spec.podCIDRs: one of each family of the lab.
func (c *Cluster) PodRanges(ctx context.Context, node string) ([]netip.Prefix, error) {
	var object corev1.Node
	if err := c.Kube().Get(ctx, client.ObjectKey{Name: node}, &object); err != nil {
		return nil, fmt.Errorf("reading the pod ranges of node %q: %w", node, err)
	}
	var given []netip.Prefix
	for _, text := range object.Spec.PodCIDRs {
		one, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("reading Node.spec.podCIDRs of %q: %w", node, err)
		}
		if !one.Addr().Is6() || c.lab.Topology.Dual { // a cluster of somebody else may have both
			given = append(given, one)
		}
	}
	if families := c.lab.Topology.Families(); len(given) != len(families) {
		return nil, fmt.Errorf("Node.spec.podCIDRs of %q are %v: want one of each of %v", node, given, families)
	}
	return given, nil
}

func kindName(lab, cluster string) string { return "relapse-" + lab + "-" + cluster }

func (l *Lab) nodeContainer(c topology.Cluster, n topology.Node) string {
	if n.Role == topology.ControlPlane {
		return kindName(l.Topology.Name, c.Name) + "-control-plane" // kind's choice
	}
	return kindName(l.Topology.Name, c.Name) + "-" + n.Name
}

// apiEndpoint is the API server's address and port on the nodes' network. It is
// no name, so that nodes do not depend on Docker's name server.
func apiEndpoint(c topology.Cluster) netip.AddrPort {
	return netip.AddrPortFrom(c.Nodes[0].Links[0].Address, apiPort)
}

// initPatches change the configuration that kind writes for kubeadm
// (v1beta3, up to Kubernetes 1.35).
var initPatches = template.Must(template.New("init").Parse(`kind: ClusterConfiguration
metadata: {name: config}
controlPlaneEndpoint: "{{.Endpoint}}"
{{- if .Dual}}
networking: {podSubnet: "{{.Pods}}", serviceSubnet: "{{.Services}}"}
{{- end}}
featureGates: # the 16 keys of a control plane take seconds with RSA
  PublicKeysECDSA: true
etcd:
  local:
    extraArgs: # a lab's state need not survive a power cut
      unsafe-no-fsync: "true"
controllerManager:
  extraArgs: # the only instance need not wait for a lease after a restart
    leader-elect: "false"
    node-cidr-mask-size-ipv4: "{{.NodeMask}}" # kubeadm knows only this name of the flag
{{- if .Dual}}
    node-cidr-mask-size-ipv6: "{{.NodeMaskV6}}"
{{- end}}
    # With its default of 20 requests a second it takes 5 s to start its controllers.
    kube-api-qps: "1000"
    kube-api-burst: "1000"
scheduler:
  extraArgs:
    leader-elect: "false"
---
kind: InitConfiguration
metadata: {name: config}
# kind's own token is the same everywhere, and lasts a day: whoever reaches the API server could
# join a node with it.
bootstrapTokens:
- {token: "{{.Token}}", ttl: 1m0s}
nodeRegistration:
  name: "{{.Name}}"
{{- if .Dual}}
  kubeletExtraArgs: {node-ip: "{{.Addresses}}"}
{{- end}}
# Pods may run on the first node, so it has no taint; registerAll sets its label.
# The last phase would restart kubelet to rotate certificates valid for a year.
skipPhases: [preflight, mark-control-plane, addon, kubelet-finalize]
---
kind: KubeletConfiguration
metadata: {name: config}
serializeImagePulls: false
registryPullQPS: 0
`))

func (l *Lab) kindProvider() *cluster.Provider {
	return cluster.NewProvider(cluster.ProviderWithDocker(), cluster.ProviderWithLogger(kindLogger{log: l.log}))
}

// kindConfig is kind's configuration of a cluster, whose first node has this image.
func (l *Lab) kindConfig(c topology.Cluster, image string) (*v1alpha4.Cluster, error) {
	first := c.Nodes[0]
	var patches strings.Builder
	id, secret := newToken()
	// kind itself makes a cluster of IPv4: Docker gives its node no address of IPv6, addIPv6 does.
	err := initPatches.Execute(&patches, map[string]any{
		"Endpoint": apiEndpoint(c), "NodeMask": c.NodeMask, "Name": first.Name, "Token": id + "." + secret,
		"Dual": l.Topology.Dual, "Pods": l.Topology.Prefixes(c.PodCIDR), "Services": l.Topology.Prefixes(c.ServiceCIDR),
		"Addresses": l.Topology.Addrs(first.Links[0].Address), "NodeMaskV6": c.NodeMask + topology.V6Bits,
	})
	if err != nil {
		return nil, fmt.Errorf("rendering kubeadm's configuration of cluster %q: %w", c.Name, err)
	}
	return &v1alpha4.Cluster{
		TypeMeta: v1alpha4.TypeMeta{APIVersion: "kind.x-k8s.io/v1alpha4", Kind: "Cluster"},
		Networking: v1alpha4.Networking{
			DisableDefaultCNI: true,
			KubeProxyMode:     "none",
			PodSubnet:         c.PodCIDR.String(),
			ServiceSubnet:     c.ServiceCIDR.String(),
			APIServerAddress:  "127.0.0.1",
		},
		Nodes: []v1alpha4.Node{{
			Role:  v1alpha4.ControlPlaneRole,
			Image: image,
			ExtraMounts: []v1alpha4.Mount{{
				HostPath: l.mirrorsDir(), ContainerPath: "/etc/containerd/certs.d", Readonly: true,
			}},
		}},
		KubeadmConfigPatches: strings.Split(patches.String(), "---\n"),
	}, nil
}

// createControlPlane lets kind create the first node and kubeadm's configuration, and nothing else.
func (l *Lab) createControlPlane(ctx context.Context, c topology.Cluster, image string) error {
	first := c.Nodes[0]
	config, err := l.kindConfig(c, image)
	if err != nil {
		return err
	}
	created := make(chan error, 1)
	// kind ignores ctx. The lock is held until the container runs or kind has ended,
	// even after this function has returned. kind's own error says why it does not run.
	kindCtx, kindHasEnded := context.WithCancel(context.WithoutCancel(ctx))
	endpoints.Lock()
	// kind reads the network's name only from the environment, before it makes the container.
	if err := os.Setenv("KIND_EXPERIMENTAL_DOCKER_NETWORK", networkName(l.Topology.Name, first.Links[0].Network)); err != nil {
		endpoints.Unlock()
		kindHasEnded()
		return err
	}
	go func() {
		defer endpoints.Unlock()
		_ = l.Node(first.Name).runs(kindCtx)
	}()
	go func() {
		defer kindHasEnded()
		created <- l.kindProvider().Create(
			kindName(l.Topology.Name, c.Name),
			cluster.CreateWithV1Alpha4Config(config),
			cluster.CreateWithStopBeforeSettingUpKubernetes(true),
			cluster.CreateWithRetain(true), // its logs are evidence; Down removes it
			cluster.CreateWithDisplayUsage(false),
			cluster.CreateWithDisplaySalutation(false),
		)
	}()
	select {
	case err = <-created:
	case <-ctx.Done():
		abandon(context.WithoutCancel(ctx), l.Node(first.Name), created)
		err = ctx.Err()
	}
	if err != nil {
		if failed := exec.RunErrorForError(err); failed != nil {
			err = fmt.Errorf("%w: %s", err, guest.LastLines(string(failed.Output), 15))
		}
		return fmt.Errorf("creating cluster %q with kind: %w", c.Name, err)
	}
	if err := l.Node(first.Name).addIPv6(ctx); err != nil {
		return err
	}
	return l.closeControlPlane(ctx, l.Node(first.Name))
}

// closeControlPlane undoes what kind gives the first node beyond a lab's other members. Docker
// would start it again after a reboot, when the lab's rules are gone. And Docker publishes the
// API server on loopback, where only root may reach it.
func (l *Lab) closeControlPlane(ctx context.Context, node *Node) error {
	_, err := l.docker.ContainerUpdate(ctx, node.container, docker.ContainerUpdateOptions{
		RestartPolicy: &container.RestartPolicy{Name: container.RestartPolicyDisabled},
	})
	if err != nil {
		return fmt.Errorf("switching the restarts of container %q off: %w", node.container, err)
	}
	made, err := node.inspect(ctx)
	if err != nil {
		return err
	}
	for _, published := range made.NetworkSettings.Ports[network.MustParsePort(fmt.Sprintf("%d/tcp", apiPort))] {
		port, err := strconv.ParseUint(published.HostPort, 10, 16)
		if err == nil {
			err = onlyRootConnects(l.Topology.Name, uint16(port))
		}
		if err != nil {
			return fmt.Errorf("closing port %s of container %q to other users: %w", published.HostPort, node.container, err)
		}
	}
	return nil
}

func (l *Lab) initControlPlane(ctx context.Context, c topology.Cluster) error {
	// Under cgroup v1 kind returns before systemd has started everything. If kubeadm writes
	// kubelet's configuration meanwhile, systemd starts kubelet, and kubeadm does so again.
	const started = `timeout 60 sh -c 'until systemctl is-system-running --wait | grep -qE "running|degraded"; do sleep 0.1; done'`
	_, err := l.Node(c.Nodes[0].Name).Exec(ctx, "sh", "-ec", started+" && exec kubeadm init --config=/kind/kubeadm.conf --skip-token-print")
	if err != nil {
		return fmt.Errorf("initialising cluster %q: %w", c.Name, err)
	}
	return nil
}

// openNewCluster connects to a cluster during kubeadm init. It waits until the administrator may read
// Node objects: kubeadm grants that permission after the API server's start.
func (l *Lab) openNewCluster(ctx context.Context, c topology.Cluster) (*Cluster, error) {
	// kubeadm writes the kubeconfigs before the manifests of static pods.
	manifest, err := l.Node(c.Nodes[0].Name).Path(ctx, "/etc/kubernetes/manifests/etcd.yaml")
	if err != nil {
		return nil, err
	}
	err = await.Until(ctx, "kubeadm to write "+manifest, 20*time.Millisecond, time.Minute,
		func(context.Context) (bool, string, error) {
			_, err := os.Stat(manifest)
			return err == nil, "", err
		})
	if err != nil {
		return nil, err
	}
	if err := l.kindProvider().ExportKubeConfig(kindName(l.Topology.Name, c.Name), l.kubeconfig(c), false); err != nil {
		return nil, fmt.Errorf("writing the kubeconfig of cluster %q with kind: %w", c.Name, err)
	}
	running, err := l.openCluster(c)
	if err != nil {
		return nil, err
	}
	return running, await.Until(ctx, "the API server of cluster "+c.Name, 50*time.Millisecond, controlPlaneServes,
		func(ctx context.Context) (bool, string, error) {
			err := running.Client.Resources().List(ctx, &corev1.NodeList{})
			return err == nil, "", err
		})
}

// controlPlaneServes bounds the time from a control plane component's manifest to its first result:
// some seconds, several times that if other labs run. It is kubeadm's own bound for the API server.
const controlPlaneServes = 4 * time.Minute

func (m *member) runs(ctx context.Context) error {
	return await.Until(ctx, "container "+m.container+" to run", 50*time.Millisecond, 5*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			info, err := m.inspect(ctx)
			if errdefs.IsNotFound(err) {
				return false, "no such container", nil
			}
			if err != nil {
				return false, "", err
			}
			return info.State.Running, string(info.State.Status), nil
		})
}

// abandon makes kind fail, because it cannot be interrupted. It removes kind's
// node, which may not exist yet, until kind has returned.
func abandon(ctx context.Context, node *Node, created <-chan error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		_ = node.Remove(ctx) // repeated, at last by Down
		select {
		case <-created:
			return
		case <-tick.C:
		}
	}
}

func (l *Lab) kubeconfig(c topology.Cluster) string {
	return filepath.Join(stateDir(l.Topology.Name), c.Name+".kubeconfig")
}

func (l *Lab) openCluster(c topology.Cluster) (*Cluster, error) {
	kubeconfig := l.kubeconfig(c)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of cluster %q: %w", c.Name, err)
	}
	// No limits: the default is 5 requests a second, and a snapshot needs many more.
	config.QPS, config.Burst = -1, 0
	api, err := kube.New(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to cluster %q: %w", c.Name, err)
	}
	return &Cluster{Name: c.Name, Kubeconfig: kubeconfig, Client: api, authority: config.CAData, spec: c, lab: l}, nil
}

// startWorker runs a node from an image by Docker's reference, and waits until it can join.
func (l *Lab) startWorker(ctx context.Context, n topology.Node, image string) error {
	node := l.Node(n.Name)
	run := l.runContainer
	if n.Kernel != "" {
		run = l.runGuest
	}
	if err := run(ctx, node, n, image); err != nil {
		return err
	}
	return node.boot(ctx)
}

// runContainer runs a node on the machine's kernel, with the options that kind uses.
func (l *Lab) runContainer(ctx context.Context, node *Node, n topology.Node, image string) error {
	return node.run(ctx, n.Links, &container.Config{
		Image:    image,
		Hostname: node.container,
		Tty:      true,
		Volumes:  map[string]struct{}{"/var": {}},
	}, &container.HostConfig{
		Privileged:   true,
		CgroupnsMode: container.CgroupnsModePrivate,
		SecurityOpt:  []string{"seccomp=unconfined", "apparmor=unconfined", "label=disable"},
		Tmpfs:        map[string]string{"/tmp": "", "/run": ""},
		Binds:        []string{"/lib/modules:/lib/modules:ro", l.mirrorsBind()},
	})
}

// joinScript joins the node on which sh runs it to the cluster. It contains the CA
// certificate: with a token alone, kubeadm waits until kube-controller-manager has
// signed the ConfigMap cluster-info.
var joinScript = template.Must(template.New("join").Parse(`cat >/kind/discovery.conf <<'end'
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://{{.Endpoint}}", certificate-authority-data: "{{.Authority}}"}}]
users: [{name: node, user: {}}]
contexts: [{name: lab, context: {cluster: lab, user: node}}]
current-context: lab
end
cat >/kind/kubeadm.conf <<'end'
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
nodeRegistration:
  name: "{{.Name}}"
  criSocket: unix:///run/containerd/containerd.sock
  kubeletExtraArgs:
  - {name: node-ip, value: "{{.Addresses}}"}
discovery:
  file: {kubeConfigPath: /kind/discovery.conf}
  tlsBootstrapToken: "{{.Token}}"
# kubeadm would poll kubelet once a second; join waits for more than that.
skipPhases: [preflight, kubelet-wait-bootstrap]
end
kubeadm join --config /kind/kubeadm.conf
`))

// registerAll creates the Node objects of a new cluster, with pod ranges in the
// order of the topology. kube-controller-manager starts later than the API server
// and would assign them in any order.
func (c *Cluster) registerAll(ctx context.Context) error {
	objects := c.Client.Resources()
	for i, given := range c.spec.NodeRanges() {
		n := c.spec.Nodes[i]
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
		all := c.lab.Topology.Prefixes(given)
		node.Spec.PodCIDR, node.Spec.PodCIDRs = given.String(), strings.Split(all, ",")
		err := objects.Create(ctx, node)
		if i == 0 && (err == nil || apierrors.IsAlreadyExists(err)) {
			// Its kubelet may have created the object. A kubelet must not set this label.
			err = objects.Patch(ctx, node, k8s.Patch{PatchType: types.MergePatchType, Data: fmt.Appendf(nil,
				`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}},"spec":{"podCIDR":%q,"podCIDRs":["%s"]}}`,
				given, strings.ReplaceAll(all, ",", `","`))})
		}
		if err != nil {
			return fmt.Errorf("registering node %q: %w", n.Name, err)
		}
	}
	return nil
}

// controllersRun waits until kube-controller-manager has created the ServiceAccount
// of the namespace default: no pod can be created there before.
func (c *Cluster) controllersRun(ctx context.Context) error {
	return await.Until(ctx, "kube-controller-manager to create ServiceAccount default/default", 50*time.Millisecond, controlPlaneServes,
		func(ctx context.Context) (bool, string, error) {
			err := c.Client.Resources().Get(ctx, "default", metav1.NamespaceDefault, &corev1.ServiceAccount{})
			return err == nil, "", err
		})
}

// registerTries bounds how often a node is registered until it gets the lowest free range. Two failures
// in a row were never seen.
const registerTries = 4

// Register creates the Node object of a node that has not joined yet, and waits
// until kube-controller-manager has assigned it the lowest free pod range.
//
// kube-controller-manager guarantees no order. It sometimes allocates twice for one node, if the
// node's second event arrives before its own update. It releases the second range, but continues
// after it. Register then restarts kube-controller-manager and registers the node again.
func (c *Cluster) Register(ctx context.Context, node string) error {
	var given, lowest netip.Prefix
	for range registerTries {
		var err error
		if given, lowest, err = c.register(ctx, node); err != nil || given == lowest {
			return err
		}
		c.lab.log.Info("node did not get the lowest free pod range", "node", node, "given", given, "lowest", lowest)
		if err := c.Client.Resources().Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}); err != nil {
			return fmt.Errorf("registering node %q again: %w", node, err)
		}
		if err := c.restartControllerManager(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("registering node %q: after %d attempts its pod range is %s; expected %s", node, registerTries, given, lowest)
}

// register creates a Node object and returns its assigned pod range, and the
// lowest one that no other node has.
func (c *Cluster) register(ctx context.Context, node string) (given, lowest netip.Prefix, err error) {
	objects := c.Client.Resources()
	// The annotation of kube-controller-manager's TTL controller. Without it the node
	// would have an early second event: see Register.
	err = objects.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: node, Annotations: map[string]string{corev1.ObjectTTLAnnotationKey: "0"},
	}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return given, lowest, fmt.Errorf("registering node %q: %w", node, err)
	}
	used := map[string]bool{}
	err = await.Until(ctx, "a pod range for node "+node, 20*time.Millisecond, 2*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			var nodes corev1.NodeList
			if err := objects.List(ctx, &nodes); err != nil {
				return false, "", err
			}
			clear(used)
			for _, n := range nodes.Items {
				if n.Name != node {
					used[n.Spec.PodCIDR] = true
				} else if n.Spec.PodCIDR != "" {
					given, err = netip.ParsePrefix(n.Spec.PodCIDR)
				}
			}
			return given.IsValid(), "Node.spec.podCIDR is empty", err
		})
	if err != nil {
		return given, lowest, err
	}
	lowest = netip.PrefixFrom(c.spec.PodCIDR.Masked().Addr(), c.spec.NodeMask)
	for used[lowest.String()] {
		lowest = topology.NextRange(lowest)
	}
	return given, lowest, nil
}

// tokenLifetime is the validity of a bootstrap token. kubelets use it within
// seconds to get their certificates.
const tokenLifetime = 10 * time.Minute

func (c *Cluster) joinToken(ctx context.Context) (string, error) {
	id, secret := newToken()
	// k8s.io/cluster-bootstrap/token/api has the keys. kubeadm grants the
	// permissions of a joining node to the group.
	err := c.Client.Resources().Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret,
			"expiration":                     time.Now().Add(tokenLifetime).UTC().Format(time.RFC3339),
			"usage-bootstrap-authentication": "true",
			"auth-extra-groups":              "system:bootstrappers:kubeadm:default-node-token",
		},
	})
	if err != nil {
		return "", fmt.Errorf("creating a bootstrap token: %w", err)
	}
	return id + "." + secret, nil
}

// newToken returns the ID (6 characters) and the secret (16) of a bootstrap token,
// in lower-case letters and digits.
func newToken() (id, secret string) {
	text := strings.ToLower(rand.Text()) // 26 characters of base 32
	return text[:6], text[6:22]
}

func (c *Cluster) join(ctx context.Context, n topology.Node, token string) error {
	var script strings.Builder
	err := joinScript.Execute(&script, map[string]any{
		"Name": n.Name, "Addresses": c.lab.Topology.Addrs(n.Links[0].Address), "Token": token,
		"Endpoint": apiEndpoint(c.spec), "Authority": base64.StdEncoding.EncodeToString(c.authority),
	})
	if err != nil {
		return fmt.Errorf("rendering kubeadm's configuration of node %q: %w", n.Name, err)
	}
	node := c.lab.Node(n.Name)
	if _, err := node.ExecInput(ctx, strings.NewReader(script.String()), "sh", "-e"); err != nil {
		return fmt.Errorf("joining node %q: %w", n.Name, err)
	}
	if err = c.takesPods(ctx, n.Name); err == nil && n.Kernel != "" {
		// A guest's kernel may delay writes for half a minute. The node must also boot
		// after its power is cut.
		_, err = node.Exec(ctx, "sync")
	}
	if err != nil {
		return fmt.Errorf("joining node %q: %w", n.Name, err)
	}
	return nil
}

// takesPods waits until kubelet has said how many pods the node can run. The Node object has
// no capacity at first, and kubelet permanently rejects a pod that is bound before it has
// written one (OutOfpods).
func (c *Cluster) takesPods(ctx context.Context, node string) error {
	return await.Until(ctx, "kubelet to report how many pods it can run", 50*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			var object corev1.Node
			if err := c.Client.Resources().Get(ctx, node, "", &object); err != nil {
				return false, "", err
			}
			return !object.Status.Allocatable.Pods().IsZero(), "Node.status.allocatable has no pods", nil
		})
}

// ReplaceNodes creates declared nodes again after Remove, as new machines with the same names and
// addresses. Their Node objects get the lowest free pod ranges, in the order of names: the previous
// ranges, if the newest nodes are replaced in the order in which they joined.
func (c *Cluster) ReplaceNodes(ctx context.Context, names ...string) error {
	var nodes []topology.Node
	for _, name := range names {
		i := slices.IndexFunc(c.spec.Nodes, func(n topology.Node) bool { return n.Name == name })
		if i < 0 {
			return fmt.Errorf("cluster %q has no node %q", c.Name, name)
		}
		nodes = append(nodes, c.spec.Nodes[i])
	}
	if c.lab.foreign != nil {
		return c.lab.putBack(ctx, names)
	}
	var token string
	all := c.lab.actions(ctx)
	registered := all.add("kube-controller-manager restarts", func(ctx context.Context) (err error) {
		// Without a restart it would continue after the last range that it assigned, and
		// not use the freed ones.
		if err = c.restartControllerManager(ctx); err != nil {
			return err
		}
		for _, n := range nodes {
			if err = c.Register(ctx, n.Name); err != nil {
				return err
			}
		}
		token, err = c.joinToken(ctx)
		return err
	})
	for _, n := range nodes {
		booted := all.add(n.Name+" boots", func(ctx context.Context) error {
			image, err := c.lab.options.Images.LoadDocker(ctx, c.lab.docker, imageOf(n))
			if err != nil {
				return err
			}
			return c.lab.startWorker(ctx, n, image)
		})
		all.add(n.Name+" joins", func(ctx context.Context) error { return c.join(ctx, n, token) }, booted, registered)
	}
	return all.Wait()
}

func (c *Cluster) restartControllerManager(ctx context.Context) error {
	const manifest = "/etc/kubernetes/manifests/kube-controller-manager.yaml"
	first := c.lab.Node(c.spec.Nodes[0].Name)
	if _, err := first.Exec(ctx, "mv", manifest, "/kind/"); err != nil {
		return fmt.Errorf("stopping kube-controller-manager: %w", err)
	}
	pod := "kube-controller-manager-" + c.spec.Nodes[0].Name
	objects := c.Client.Resources(metav1.NamespaceSystem)
	err := await.Until(ctx, "kube-controller-manager to stop", 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			err := objects.Get(ctx, pod, metav1.NamespaceSystem, &corev1.Pod{})
			return apierrors.IsNotFound(err), "its pod still exists", err
		})
	if err != nil {
		return err
	}
	// A changed label makes it a new pod. The kubelet would delay the restart of a
	// known one: 10 s the second time, then longer.
	relabel := fmt.Sprintf(`
sed -e '/relapse.dev\/started:/d' -e 's|^  labels:$|&\n    relapse.dev/started: "%d"|' \
	/kind/kube-controller-manager.yaml >/kind/relabelled.yaml &&
mv /kind/relabelled.yaml %s`, time.Now().UnixNano(), manifest)
	if _, err := first.Exec(ctx, "sh", "-c", relabel); err != nil {
		return fmt.Errorf("starting kube-controller-manager: %w", err)
	}
	return nil
}
