// Package adopt runs a scenario on a lab that somebody else has brought up.
//
// The lab is what containerlab has deployed from a folder on this machine: one cluster of
// kind, routers with FRR, and hosts. Its containers give what scripts need of a lab, as those
// of relapse's own do: commands, network namespaces and power of nodes; tables, static routes
// and sessions of routers; a network namespace of hosts for the probe agent. A registry is
// not part of such a lab, so that one is added for the time of the run (kindlab.Adopt).
// Nothing of this works for a cluster on other machines, of which there is only a kubeconfig:
// its nodes' power and namespaces cannot be reached by it.
//
// Nothing is touched before three questions are answered. Is it a lab? Its namespace
// kube-system has the label containerlab.LabLabel, or the user says so. Can the scenario leave
// it as it was (framework.Scenario.Foreign)? Has it all that the scenario declares, under
// the declared names and addresses, and nothing that would be in its way? Check names
// everything that is missing, at once. Afterwards the lab is put back by comparison with what
// it was, whatever the script has done.
package adopt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/docker/client"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kind/pkg/cluster"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/topology/containerlab"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/kube"
)

// Lab is a lab that somebody else has brought up.
type Lab struct {
	docker  *client.Client
	api     *kube.Client
	nodes   map[string]corev1.Node
	routers []bgprouter.Declared
	foreign kindlab.Foreign
	// controls are those of foreign.Routers.
	controls []*bgprouter.Control
}

// InputError says that a folder or a file cannot be used.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }

func (e *InputError) Unwrap() error { return e.Err }

// Open reads the lab that containerlab has deployed from a folder, and the file of its routers
// (bgprouter.Parse), by default the one that relapse has written into the folder. It connects
// to the cluster, and to no router. The error is an *InputError if the folder or the file
// cannot be used.
func Open(ctx context.Context, docker *client.Client, dir, routers string) (*Lab, error) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, &MissingError{[]string{fmt.Sprintf(
			"a folder that containerlab has deployed on this machine: %s is a file; by a kubeconfig alone the nodes' power and network namespaces cannot be reached", dir)}}
	}
	deployed, err := containerlab.ReadDeployed(dir)
	if err != nil {
		return nil, &InputError{err}
	}
	if len(deployed.Clusters) != 1 {
		return nil, &InputError{fmt.Errorf("%s has %d clusters of kind %q; expected one", dir, len(deployed.Clusters), deployed.Clusters)}
	}
	if routers == "" {
		routers = filepath.Join(dir, containerlab.RoutersFile)
	}
	text, err := os.ReadFile(routers)
	if err != nil {
		return nil, &InputError{fmt.Errorf("reading the file of the routers: %w", err)}
	}
	l := &Lab{docker: docker, nodes: map[string]corev1.Node{}}
	if l.routers, err = bgprouter.Parse(routers, text); err != nil {
		return nil, &InputError{err}
	}
	l.foreign = kindlab.Foreign{Containers: deployed.Containers, Routers: map[string]kindlab.RouterControl{}}
	for _, d := range l.routers {
		control, err := bgprouter.NewControl(d)
		if err != nil {
			return nil, &MissingError{[]string{err.Error()}}
		}
		l.controls, l.foreign.Routers[d.Name] = append(l.controls, control), control
	}
	return l, l.openCluster(ctx, deployed.Clusters[0])
}

// openCluster connects to a cluster of kind, and finds the containers of its nodes.
func (l *Lab) openCluster(ctx context.Context, name string) error {
	kubeconfig, err := cluster.NewProvider(cluster.ProviderWithDocker()).KubeConfig(name, false)
	if err != nil {
		return fmt.Errorf("asking kind for the kubeconfig of cluster %q: %w", name, err)
	}
	l.foreign.Kubeconfig = []byte(kubeconfig)
	config, err := clientcmd.RESTConfigFromKubeConfig(l.foreign.Kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig of cluster %q: %w", name, err)
	}
	if l.api, err = kube.New(config); err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := l.api.Resources().List(ctx, &nodes); err != nil {
		return fmt.Errorf("listing the nodes of cluster %q: %w", name, err)
	}
	for _, n := range nodes.Items {
		l.nodes[n.Name] = n
		if container, is := strings.CutPrefix(n.Spec.ProviderID, "kind://docker/"+name+"/"); is {
			l.foreign.Containers[n.Name] = container
		}
	}
	return nil
}

// Labs makes this lab that of a scenario, which Check has accepted.
func (l *Lab) Labs(o suite.Options) engine.Labs { return labs{suite.Adopted(o, l.foreign), l} }

type labs struct {
	engine.Labs
	lab *Lab
}

func (l labs) Up(ctx context.Context, s framework.Scenario, variants []framework.Variant, reuse bool) (engine.Lab, error) {
	up, err := l.Labs.Up(ctx, s, variants, reuse)
	if up == nil {
		return nil, err
	}
	return lab{up, l.lab.controls}, err
}

// lab is a lab whose routers are restored with it.
type lab struct {
	engine.Lab
	routers []*bgprouter.Control
}

func (l lab) Down(ctx context.Context) error {
	var err error
	for _, r := range l.routers {
		err = errors.Join(err, r.Restore(ctx))
	}
	return errors.Join(err, l.Lab.Down(ctx))
}
