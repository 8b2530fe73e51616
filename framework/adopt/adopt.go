// Package adopt runs a scenario on a lab that somebody else has brought up.
//
// The lab is on this machine's Docker: a folder that containerlab has deployed, or a cluster of kind
// and its kubeconfig. It has one cluster of kind, routers with FRR, and hosts. Their containers give
// scripts what the containers of relapse's own labs give: commands, network namespaces and power of
// nodes; tables, static routes and sessions of routers; network namespaces of hosts for the probe agent.
// Nodes are found by their names, routers and hosts by their names or their addresses. A registry is
// added for the time of the run (kindlab.Adopt). A cluster on other machines cannot be adopted,
// because its nodes' power and namespaces cannot be reached.
//
// Nothing is touched before three questions are answered. Is it a lab? Its namespace kube-system
// has the label containerlab.LabLabel, or the user says so. Can the scenario leave it as it was
// (framework.Scenario.Foreign)? Has it all that the scenario declares, under the declared names and
// addresses, and nothing that would be in its way? Check names everything that is missing, at once.
// Afterwards the lab is put back by comparison with what it was, whatever the script has done.
package adopt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/client"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	kind "sigs.k8s.io/kind/pkg/cluster"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/topology/containerlab"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/kube"
	"github.com/relapse-dev/relapse/topology/status"
)

// Lab is a lab that somebody else has brought up.
type Lab struct {
	docker *client.Client
	api    *kube.Client
	nodes  map[string]corev1.Node
	// elsewhere says why nodes have no container on this machine, by node.
	elsewhere map[string]string
	routers   []bgprouter.Declared
	// Foreign is what kindlab adopts once Check has accepted the lab.
	Foreign kindlab.Foreign
	// controls are the routers' controls.
	controls []*bgprouter.Control
}

// Open reads the lab that containerlab has deployed from a folder, or the cluster of a kubeconfig,
// and the file of its routers (bgprouter.Parse), by default the one that relapse has written into
// the folder. It connects to the cluster, and to no router. The error is of bad input if the
// folder or a file cannot be used.
func Open(ctx context.Context, docker *client.Client, on, routers string) (*Lab, error) {
	l := &Lab{
		docker: docker, nodes: map[string]corev1.Node{}, elsewhere: map[string]string{},
		Foreign: kindlab.Foreign{Containers: map[string]string{}, Routers: map[string]kindlab.ForeignRouter{}},
	}
	kubeconfig := func() ([]byte, error) { return readKubeconfig(on) }
	found := false // the file of the routers, in the folder
	if info, err := os.Stat(on); err != nil || info.IsDir() {
		deployed, err := containerlab.ReadDeployed(on)
		if err != nil {
			return nil, status.Input("%w", err)
		}
		if len(deployed.Clusters) == 0 {
			deployed.Clusters = joined(&deployed, func(name string) (client.ContainerInspectResult, error) {
				return docker.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
			})
		}
		if len(deployed.Clusters) != 1 {
			return nil, status.Input("%s has %d clusters of kind %q: expected one, as a node of kind k8s-kind, or of whose nodes the "+
				"network is shared (network-mode: container:NODE, or ext-container)", on, len(deployed.Clusters), deployed.Clusters)
		}
		l.Foreign.Containers = deployed.Containers
		kubeconfig = func() ([]byte, error) { return kubeconfigOf(deployed.Clusters[0]) }
		if routers == "" {
			routers, found = filepath.Join(on, containerlab.RoutersFile), true
		}
	} else if routers == "" {
		return nil, status.Input("a kubeconfig, %s, says nothing of routers: expected --routers FILE, too", on)
	}
	text, err := os.ReadFile(routers)
	if found && errors.Is(err, fs.ErrNotExist) {
		return nil, status.Input("%s has no %s, which says how its routers are read: expected --routers FILE", on, containerlab.RoutersFile)
	}
	if err != nil {
		return nil, status.Input("reading the file of the routers: %w", err)
	}
	if l.routers, err = bgprouter.Parse(routers, text); err != nil {
		return nil, status.Input("%w", err)
	}
	if err := trusted(l.routers); found && err != nil {
		return nil, status.Input("%s: %w: name the file by --routers if you trust it", routers, err)
	}
	for _, d := range l.routers {
		control, err := bgprouter.NewControl(d)
		if err != nil {
			return nil, unfit(err.Error())
		}
		l.controls = append(l.controls, control)
	}
	if l.Foreign.Kubeconfig, err = kubeconfig(); err != nil {
		return nil, err
	}
	return l, l.openCluster(ctx)
}

// joined are the clusters of kind that containerlab has joined to its topology without deploying them.
// Their nodes are containers of containerlab's kind ext-container, or share their network with containers
// of containerlab. The containers that share a network have none of their own, and so are not hosts.
func joined(deployed *containerlab.Deployed, inspect func(string) (client.ContainerInspectResult, error)) []string {
	var clusters []string
	cluster := func(name string) {
		if info, err := inspect(name); err == nil && info.Container.Config.Labels[clusterLabel] != "" {
			clusters = append(clusters, info.Container.Config.Labels[clusterLabel])
		}
	}
	for _, name := range deployed.External {
		cluster(name)
	}
	for name, made := range deployed.Containers {
		if info, err := inspect(made); err == nil && info.Container.HostConfig.NetworkMode.IsContainer() {
			cluster(info.Container.HostConfig.NetworkMode.ConnectedContainer())
			delete(deployed.Containers, name)
		}
	}
	slices.Sort(clusters)
	return slices.Compact(clusters)
}

// trusted refuses routers whose command relapse has not written: the command runs as root, and the
// folder may be from anybody.
func trusted(routers []bgprouter.Declared) error {
	for _, r := range routers {
		if c := r.Command; len(c) > 0 && !(len(c) == 3 && c[0] == "docker" && c[1] == "exec" && !strings.HasPrefix(c[2], "-")) {
			return fmt.Errorf("router %s runs %q as root", r.Name, c)
		}
	}
	return nil
}

func kubeconfigOf(cluster string) ([]byte, error) {
	text, err := kind.NewProvider(kind.ProviderWithDocker()).KubeConfig(cluster, false)
	if err != nil {
		return nil, fmt.Errorf("asking kind for the kubeconfig of cluster %q: %w", cluster, err)
	}
	return []byte(text), nil
}

func readKubeconfig(path string) ([]byte, error) {
	config, err := clientcmd.LoadFromFile(path)
	if err == nil {
		err = api.MinifyConfig(config)
	}
	if err == nil {
		err = api.FlattenConfig(config)
	}
	var text []byte
	if err == nil {
		text, err = clientcmd.Write(*config)
	}
	if err != nil {
		return nil, status.Input("reading kubeconfig %s: %w", path, err)
	}
	return text, nil
}

func (l *Lab) openCluster(ctx context.Context) error {
	config, err := clientcmd.RESTConfigFromKubeConfig(l.Foreign.Kubeconfig)
	if err != nil {
		return status.Input("reading the kubeconfig: %w", err)
	}
	if l.api, err = kube.New(config); err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := l.api.Resources().List(ctx, &nodes); err != nil {
		return unfit(fmt.Sprintf("nodes of the cluster at %s: %v", config.Host, err))
	}
	for _, n := range nodes.Items {
		l.nodes[n.Name] = n
		container, err := l.containerOf(ctx, n)
		if err != nil {
			l.elsewhere[n.Name] = err.Error()
			continue
		}
		l.Foreign.Containers[n.Name] = container
	}
	return nil
}
