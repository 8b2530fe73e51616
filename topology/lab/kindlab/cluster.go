package kindlab

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"golang.org/x/sync/errgroup"
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
	"github.com/relapse-dev/relapse/topology/lab/kube"
)

// Images of every cluster, under the vendors' names.
const (
	nodeImage = "relapse.dev/node:v1.34.4"
	apiPort   = 6443
)

// controlPlaneImages are what kubeadm and kubelet ask the registry for.
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
	// Client speaks to the API server as the administrator.
	Client *kube.Client

	// authority is the certificate that signs the API server's, in PEM.
	authority []byte
	spec      topology.Cluster
	lab       *Lab
}

// Nodes names the cluster's declared nodes, in the order of the topology.
func (c *Cluster) Nodes() []string {
	var names []string
	for _, n := range c.spec.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// APIServer is the address and port at which the cluster's nodes, and pods in
// their networks, reach the API server. It needs no Service proxy and no name
// server.
func (c *Cluster) APIServer() netip.AddrPort { return apiEndpoint(c.spec) }

// PodRange asks the cluster for the range of addresses that
// kube-controller-manager has given to a node's pods: Node.spec.podCIDR.
func (c *Cluster) PodRange(ctx context.Context, node string) (netip.Prefix, error) {
	var object corev1.Node
	if err := c.Client.Resources().GetControllerRuntimeClient().Get(ctx, client.ObjectKey{Name: node}, &object); err != nil {
		return netip.Prefix{}, fmt.Errorf("asking for the pod range of node %q: %w", node, err)
	}
	given, err := netip.ParsePrefix(object.Spec.PodCIDR)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("reading Node.spec.podCIDR of %q: %w", node, err)
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

// apiEndpoint is the API server's address and port on the nodes' network. Nodes
// are given the address and not a name, so that no node depends on Docker's
// name server.
func apiEndpoint(c topology.Cluster) netip.AddrPort {
	return netip.AddrPortFrom(c.Nodes[0].Links[0].Address, apiPort)
}

// initPatches change the configuration that kind writes for kubeadm
// (v1beta3, up to Kubernetes 1.35).
var initPatches = template.Must(template.New("init").Parse(`kind: ClusterConfiguration
metadata: {name: config}
controlPlaneEndpoint: "{{.Endpoint}}"
featureGates: # the 16 keys of a control plane take seconds with RSA
  PublicKeysECDSA: true
etcd:
  local:
    extraArgs: # the lab's state is worth nothing after a power cut
      unsafe-no-fsync: "true"
controllerManager:
  extraArgs: # alone, it need not wait for a lease after a restart
    leader-elect: "false"
    node-cidr-mask-size-ipv4: "{{.NodeMask}}" # the one of its names that kubeadm knows
    # With its default of 20 requests a second it takes 5 s to start its controllers.
    kube-api-qps: "1000"
    kube-api-burst: "1000"
scheduler:
  extraArgs:
    leader-elect: "false"
---
kind: InitConfiguration
metadata: {name: config}
nodeRegistration:
  name: "{{.Name}}"
# Pods may run on the first node, so that it needs no taint, and Register labels it.
# The last phase would have kubelet start anew, to renew certificates that are good
# for a year.
skipPhases: [preflight, mark-control-plane, addon, kubelet-finalize]
---
kind: KubeletConfiguration
metadata: {name: config}
serializeImagePulls: false
registryPullQPS: 0
`))

// kindProvider drives kind. It uses Docker's command line.
func (l *Lab) kindProvider() *cluster.Provider {
	return cluster.NewProvider(cluster.ProviderWithDocker(), cluster.ProviderWithLogger(kindLogger{l.log}))
}

// createControlPlane has kind create the cluster's first node, as far as kubeadm's
// configuration. What kind would do then is done by initControlPlane, and beside it
// what else needs no more than an API server.
func (l *Lab) createControlPlane(ctx context.Context, c topology.Cluster, image string) error {
	first := c.Nodes[0]
	var patches strings.Builder
	err := initPatches.Execute(&patches, map[string]any{
		"Endpoint": apiEndpoint(c), "NodeMask": c.NodeMask, "Name": first.Name,
	})
	if err != nil {
		return fmt.Errorf("rendering kubeadm's configuration of cluster %q: %w", c.Name, err)
	}
	config := &v1alpha4.Cluster{
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
	}
	// kind reads the network's name from the environment and nowhere else.
	if err := os.Setenv("KIND_EXPERIMENTAL_DOCKER_NETWORK", networkName(l.Topology.Name, first.Links[0].Network)); err != nil {
		return err
	}
	created := make(chan error, 1)
	// kind starts its container when it gets there, and does not stop for ctx. So the
	// lock is kept, also when this function has returned, until the container runs or
	// kind has ended. Why it does not run is kind's to say.
	kindCtx, kindHasEnded := context.WithCancel(context.WithoutCancel(ctx))
	endpoints.Lock()
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
			err = fmt.Errorf("%w: %s", err, lastLines(string(failed.Output), 15))
		}
		return fmt.Errorf("creating cluster %q with kind: %w", c.Name, err)
	}
	return nil
}

// initControlPlane runs the command with which kind would go on.
func (l *Lab) initControlPlane(ctx context.Context, c topology.Cluster) error {
	_, err := l.Node(c.Nodes[0].Name).Exec(ctx, "kubeadm", "init", "--config=/kind/kubeadm.conf", "--skip-token-print")
	if err != nil {
		return fmt.Errorf("initialising cluster %q: %w", c.Name, err)
	}
	return nil
}

// openNewCluster connects to a cluster that is being initialised, and waits until
// the administrator may read Node objects: kubeadm grants that to the certificate
// in the kubeconfig when the API server has begun to serve.
func (l *Lab) openNewCluster(ctx context.Context, c topology.Cluster) (*Cluster, error) {
	// kubeadm writes kubeconfigs first, and manifests of static pods then.
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

// controlPlaneServes bounds how long a program of a new control plane takes, from its
// manifest to its first work: some seconds, and several times that beside other labs.
// It is kubeadm's own bound for the API server.
const controlPlaneServes = 4 * time.Minute

// runs waits until Docker has started the member's container.
func (m *member) runs(ctx context.Context) error {
	return await.Until(ctx, "container "+m.container+" to run", 50*time.Millisecond, 5*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			info, err := m.docker.ContainerInspect(ctx, m.container)
			if errdefs.IsNotFound(err) {
				return false, "no such container", nil
			}
			if err != nil {
				return false, "", err
			}
			return info.State.Running, info.State.Status, nil
		})
}

// abandon waits until kind has given up creating a cluster. kind cannot be
// interrupted, but it fails when its node is removed. The node may not exist yet
// at the first attempt, so removing it is repeated until kind has returned.
func abandon(ctx context.Context, node *Node, created <-chan error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		_ = node.Remove(ctx) // tried again in a moment, and in the end by Down
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

// openCluster connects to a running cluster.
func (l *Lab) openCluster(c topology.Cluster) (*Cluster, error) {
	kubeconfig := l.kubeconfig(c)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of cluster %q: %w", c.Name, err)
	}
	// A harness that watches a whole cluster many times a second is not the
	// client that the default limits (5 requests a second) are meant for.
	config.QPS, config.Burst = -1, 0
	api, err := kube.New(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to cluster %q: %w", c.Name, err)
	}
	return &Cluster{Name: c.Name, Kubeconfig: kubeconfig, Client: api, authority: config.CAData, spec: c, lab: l}, nil
}

// startWorker runs a node in the image of that name, and waits until it can be
// joined.
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

// runContainer runs a node on the machine's kernel, as kind would run it.
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

// joinScript makes a member of the cluster of the node on which sh reads it. The
// certificate of the cluster comes with it: with a token alone, kubeadm waits until
// kube-controller-manager has signed the ConfigMap cluster-info.
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
  - {name: node-ip, value: "{{.Address}}"}
discovery:
  file: {kubeConfigPath: /kind/discovery.conf}
  tlsBootstrapToken: "{{.Token}}"
# kubeadm would look once a second whether kubelet is up; join waits for more.
skipPhases: [preflight, kubelet-wait-bootstrap]
end
kubeadm join --config /kind/kubeadm.conf
`))

// registerAll creates the Node objects of a new cluster. It gives them the pod ranges
// that kube-controller-manager would give them if they came one after the other:
// that starts later than the API server, and gives nodes that are there already
// theirs in any order.
func (c *Cluster) registerAll(ctx context.Context) error {
	objects := c.Client.Resources()
	given := netip.PrefixFrom(c.spec.PodCIDR.Masked().Addr(), c.spec.NodeMask)
	for i, n := range c.spec.Nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
		node.Spec.PodCIDR, node.Spec.PodCIDRs = given.String(), []string{given.String()}
		err := objects.Create(ctx, node)
		if i == 0 && (err == nil || apierrors.IsAlreadyExists(err)) {
			// Its kubelet runs already and may have been first. The label is one that
			// a kubelet must not set.
			err = objects.Patch(ctx, node, k8s.Patch{PatchType: types.MergePatchType, Data: fmt.Appendf(nil,
				`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}},"spec":{"podCIDR":%[1]q,"podCIDRs":[%[1]q]}}`, given)})
		}
		if err != nil {
			return fmt.Errorf("registering node %q: %w", n.Name, err)
		}
		given = next(given)
	}
	return nil
}

// controllersRun waits until kube-controller-manager has given the namespace default
// its ServiceAccount: before that no pod can be created there.
func (c *Cluster) controllersRun(ctx context.Context) error {
	return await.Until(ctx, "kube-controller-manager to make ServiceAccount default/default", 50*time.Millisecond, controlPlaneServes,
		func(ctx context.Context) (bool, string, error) {
			err := c.Client.Resources().Get(ctx, "default", metav1.NamespaceDefault, &corev1.ServiceAccount{})
			return err == nil, "", err
		})
}

// registerTries bounds how often a node is registered anew because it was given
// another range than the next free one. That was never seen twice in a row.
const registerTries = 4

// Register creates the Node object of a node that has not joined yet, and
// waits until kube-controller-manager has given it the lowest pod range that
// is free.
//
// kube-controller-manager promises no order. Now and then it allocates twice
// for one node, because the second event of the node comes before its own
// update; it gives the second range back, but goes on behind it. Such a node
// is registered anew with a fresh kube-controller-manager.
func (c *Cluster) Register(ctx context.Context, node string) error {
	var given, lowest netip.Prefix
	for range registerTries {
		var err error
		if given, lowest, err = c.register(ctx, node); err != nil || given == lowest {
			return err
		}
		c.lab.log.Info("node got another pod range than the lowest that is free", "node", node, "given", given, "lowest", lowest)
		if err := c.Client.Resources().Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}); err != nil {
			return fmt.Errorf("registering node %q anew: %w", node, err)
		}
		if err := c.restartControllerManager(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("registering node %q: after %d tries it has pod range %s, not %s", node, registerTries, given, lowest)
}

// register creates a Node object and returns the pod range that it is given,
// and the lowest one that no other node has.
func (c *Cluster) register(ctx context.Context, node string) (given, lowest netip.Prefix, err error) {
	objects := c.Client.Resources()
	// With the annotation that kube-controller-manager's TTL controller would add,
	// there is no second event so early: see Register.
	err = objects.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: node, Annotations: map[string]string{corev1.ObjectTTLAnnotationKey: "0"},
	}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return given, lowest, fmt.Errorf("registering node %q: %w", node, err)
	}
	taken := map[string]bool{}
	err = await.Until(ctx, "a pod range for node "+node, 20*time.Millisecond, 2*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			var nodes corev1.NodeList
			if err := objects.List(ctx, &nodes); err != nil {
				return false, "", err
			}
			clear(taken)
			for _, n := range nodes.Items {
				if n.Name != node {
					taken[n.Spec.PodCIDR] = true
				} else if n.Spec.PodCIDR != "" {
					given, err = netip.ParsePrefix(n.Spec.PodCIDR)
				}
			}
			return given.IsValid(), "Node.spec.podCIDR is empty", err
		})
	if err != nil {
		return given, lowest, err
	}
	for lowest = netip.PrefixFrom(c.spec.PodCIDR.Masked().Addr(), c.spec.NodeMask); taken[lowest.String()]; lowest = next(lowest) {
	}
	return given, lowest, nil
}

// next is the IPv4 prefix of the same length that comes after p.
func next(p netip.Prefix) netip.Prefix {
	addr := p.Addr().As4()
	after := binary.BigEndian.Uint32(addr[:]) + 1<<(32-p.Bits())
	binary.BigEndian.PutUint32(addr[:], after)
	return netip.PrefixFrom(netip.AddrFrom4(addr), p.Bits())
}

// tokenLives is how long a token to join with is good for. kubelets get their own
// certificates with it within seconds.
const tokenLives = 10 * time.Minute

// joinToken makes a bootstrap token, with which nodes can join.
func (c *Cluster) joinToken(ctx context.Context) (string, error) {
	id, secret := newToken()
	// The keys are those of k8s.io/cluster-bootstrap/token/api, the group is the one
	// to which kubeadm grants what a joining node needs.
	err := c.Client.Resources().Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret,
			"expiration":                     time.Now().Add(tokenLives).UTC().Format(time.RFC3339),
			"usage-bootstrap-authentication": "true",
			"auth-extra-groups":              "system:bootstrappers:kubeadm:default-node-token",
		},
	})
	if err != nil {
		return "", fmt.Errorf("making a token for nodes to join with: %w", err)
	}
	return id + "." + secret, nil
}

// newToken returns the two parts of a bootstrap token: 6 and 16 lower-case letters
// and digits, of which the 16 are secret.
func newToken() (id, secret string) {
	text := strings.ToLower(rand.Text()) // 26 characters of base 32
	return text[:6], text[6:22]
}

// join makes a running node a member of the cluster, to which pods can be bound.
func (c *Cluster) join(ctx context.Context, n topology.Node, token string) error {
	var script strings.Builder
	err := joinScript.Execute(&script, map[string]any{
		"Name": n.Name, "Address": n.Links[0].Address, "Token": token,
		"Endpoint": apiEndpoint(c.spec), "Authority": base64.StdEncoding.EncodeToString(c.authority),
	})
	if err != nil {
		return fmt.Errorf("rendering kubeadm's configuration of node %q: %w", n.Name, err)
	}
	node := c.lab.Node(n.Name)
	if _, err := node.ExecInput(ctx, strings.NewReader(script.String()), "sh", "-e"); err != nil {
		return fmt.Errorf("joining node %q: %w", n.Name, err)
	}
	// The Node object was created without a capacity. If a pod is bound
	// before the kubelet has written one, it rejects the pod for good (OutOfpods).
	err = await.Until(ctx, "kubelet to say how many pods it takes", 50*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			var object corev1.Node
			if err := c.Client.Resources().Get(ctx, n.Name, "", &object); err != nil {
				return false, "", err
			}
			return !object.Status.Allocatable.Pods().IsZero(), "Node.status.allocatable has no pods", nil
		})
	if err == nil && n.Kernel != "" {
		// A guest's kernel may keep what kubeadm has written for half a minute. If
		// its power is cut, it must come up as a node again all the same.
		_, err = node.Exec(ctx, "sync")
	}
	if err != nil {
		return fmt.Errorf("joining node %q: %w", n.Name, err)
	}
	return nil
}

// ReplaceNodes brings declared nodes back after Remove, as new machines of the
// same names and addresses. In their order their new Node objects get the lowest
// pod ranges that are free: those of the old ones, when the newest nodes are
// replaced in the order in which they joined.
func (c *Cluster) ReplaceNodes(ctx context.Context, names ...string) error {
	step := c.lab.options.step
	var nodes []topology.Node
	for _, name := range names {
		i := slices.IndexFunc(c.spec.Nodes, func(n topology.Node) bool { return n.Name == name })
		if i < 0 {
			return fmt.Errorf("cluster %q has no node %q", c.Name, name)
		}
		nodes = append(nodes, c.spec.Nodes[i])
	}
	steps, stepsCtx := errgroup.WithContext(ctx)
	for _, n := range nodes {
		steps.Go(func() error {
			image, err := c.lab.options.Images.LoadDocker(stepsCtx, c.lab.docker, imageOf(n))
			if err != nil {
				return err
			}
			return step(n.Name+" boots", func() error { return c.lab.startWorker(stepsCtx, n, image) })
		})
	}
	steps.Go(func() error {
		return step("kube-controller-manager starts anew", func() error {
			// One that keeps running would go on from the last range that it gave,
			// and not give out the freed ones.
			if err := c.restartControllerManager(stepsCtx); err != nil {
				return err
			}
			for _, n := range nodes {
				if err := c.Register(stepsCtx, n.Name); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err := steps.Wait(); err != nil {
		return err
	}
	token, err := c.joinToken(ctx)
	if err != nil {
		return err
	}
	joins, joinsCtx := errgroup.WithContext(ctx)
	for _, n := range nodes {
		joins.Go(func() error {
			return step(n.Name+" joins", func() error { return c.join(joinsCtx, n, token) })
		})
	}
	return joins.Wait()
}

// restartControllerManager replaces the kube-controller-manager's process.
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
			return apierrors.IsNotFound(err), "its pod is still there", err
		})
	if err != nil {
		return err
	}
	// With another label it is another pod, to a kubelet, which would make one
	// that it has started before wait: 10 s the second time, and ever longer.
	another := fmt.Sprintf(`
sed -e '/relapse.dev\/started:/d' -e 's|^  labels:$|&\n    relapse.dev/started: "%d"|' /kind/kube-controller-manager.yaml >/kind/another.yaml &&
mv /kind/another.yaml %s`, time.Now().UnixNano(), manifest)
	if _, err := first.Exec(ctx, "sh", "-c", another); err != nil {
		return fmt.Errorf("starting kube-controller-manager: %w", err)
	}
	return nil
}
