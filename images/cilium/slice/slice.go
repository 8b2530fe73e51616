// Package slice is what all slices of Cilium's agent have in common: flags, logging, the connection
// to the API server, and the wiring of pods. The comments of packages agent and rules list which
// decisions are the vendor's.
package slice

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/cilium/cilium/daemon/cmd"
	"github.com/cilium/cilium/pkg/defaults"
	"github.com/cilium/cilium/pkg/k8s"
	"github.com/cilium/cilium/pkg/logging"
	"github.com/cilium/cilium/pkg/logging/logfields"
	"github.com/cilium/cilium/pkg/maps/ctmap"
	"github.com/cilium/cilium/pkg/maps/lbmap"
	"github.com/cilium/cilium/pkg/maps/nat"
	"github.com/cilium/cilium/pkg/maps/neighborsmap"
	"github.com/cilium/cilium/pkg/option"
	"github.com/cilium/cilium/pkg/sysctl"
	"github.com/cilium/cilium/pkg/version"
	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/images/cilium/conflist"
	"github.com/relapse-dev/relapse/images/cilium/end"
)

// Log is the log of the slice's own messages.
var Log = logging.DefaultLogger.WithField(logfields.LogSubsys, "slice")

// Main is a slice's main function. Run returns when the agent is up; a signal then ends the program,
// which leaves behind what the agent leaves.
func Main(run func(context.Context) error) {
	cmd.RootCmd.Run = func(*cobra.Command, []string) {
		// Execute handles the same signals, but comes to end the process
		// only when Run has returned.
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			end.With("Unable to start", err)
		}
	}
	cmd.Execute()
}

// Configure fills option.Config from flags, environment and ConfigMap, as initEnv and runDaemon do.
// Refuse returns an error if a configuration asks for what the slice leaves out. Without it a lab
// would run and not do what its configuration says.
func Configure(refuse func(*option.DaemonConfig) error) error {
	option.Config.SetMapElementSizes(
		ctmap.SizeofCtKey6Global+ctmap.SizeofCtEntry,
		nat.SizeofNatKey6+nat.SizeofNatEntry6,
		neighborsmap.SizeofNeighKey6+neighborsmap.SizeOfNeighValue,
		lbmap.SizeofSockRevNat6Key+lbmap.SizeofSockRevNat6Value)
	option.Config.Populate()
	if err := logging.SetupLogging(option.Config.LogDriver, logging.LogOptions(option.Config.LogOpt), "cilium-agent", option.Config.Debug); err != nil {
		return fmt.Errorf("setting up logging: %w", err)
	}
	option.LogRegisteredOptions(Log)
	Log.Infof("Cilium %s, agent slice", version.Version)
	if err := option.Config.Validate(); err != nil {
		return end.Refused(fmt.Errorf("invalid daemon configuration: %w", err))
	}
	return refuse(option.Config)
}

// Needs are the settings that a slice needs and does not have.
type Needs struct{ errs []error }

// Want adds a setting that is not met.
func (n *Needs) Want(met bool, key, value string) {
	if !met {
		n.errs = append(n.errs, fmt.Errorf("the slice needs %s: %q", key, value))
	}
}

// Err names all settings that are not met; nil if there are none.
func (n *Needs) Err() error { return errors.Join(n.errs...) }

// Connect lets the node forward packets, and connects to the API server.
func Connect() error {
	for _, name := range []string{"net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding"} {
		if err := sysctl.Enable(name); err != nil {
			return fmt.Errorf("enabling sysctl %s: %w", name, err)
		}
	}
	k8s.Configure(option.Config.K8sAPIServer, option.Config.K8sKubeConfigPath, defaults.K8sClientQPSLimit, defaults.K8sClientBurst)
	if err := k8s.Init(option.Config); err != nil {
		return fmt.Errorf("initializing the Kubernetes subsystem: %w", err)
	}
	return nil
}

// Where the slice writes the CNI configuration: below the folder that
// $HOST_PREFIX names. Variable and default are those of the vendor's
// cni-install.sh.
const (
	cniConfiguration  = "etc/cni/net.d/05-cilium.conflist"
	defaultHostPrefix = "/host"
)

// WirePods writes the CNI configuration for the pod CIDR that the vendor's
// code has found. The agent learns of another range only when it starts anew,
// and so does the slice. The MTU is in bytes.
func WirePods(podCIDR netip.Prefix, mtu int) error {
	prefix := os.Getenv("HOST_PREFIX")
	if prefix == "" {
		prefix = defaultHostPrefix
	}
	file := filepath.Join(prefix, cniConfiguration)
	changed, err := conflist.Write(file, conflist.Network{Name: "cilium", PodCIDR: podCIDR, MTU: mtu})
	if err != nil {
		return err
	}
	Log.WithField(logfields.V4Prefix, podCIDR).WithField(logfields.Path, file).WithField("changed", changed).
		Info("Pods are wired by the CNI plugins ptp and host-local")
	return nil
}
