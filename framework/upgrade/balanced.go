package upgrade

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// loadBalancer is the endpoint at the address of the Service of type LoadBalancer.
const loadBalancer = "LoadBalancer address"

// balancedEnd is that endpoint, with the addresses that the Service got.
func balancedEnd(given *[]netip.Addr) framework.Endpoint {
	e := framework.PodEndpoint(beside)
	at := func(family int) func(*framework.Run) netip.AddrPort {
		return func(*framework.Run) netip.AddrPort {
			if family >= len(*given) {
				return netip.AddrPort{}
			}
			return netip.AddrPortFrom((*given)[family], wire.DefaultPort)
		}
	}
	e.Name, e.Address, e.V6 = loadBalancer, at(0), at(1)
	return e
}

// announces asks the BGP speaker of a node for what it has not done yet: the addresses of a new
// Service are announced by it to each router, and withdrawn when the Service is gone. The next
// new Service gets the same addresses.
func announces(ctx context.Context, r *framework.Run, node string, labels map[string]string) error {
	var announced []netip.Addr
	err := withFresh(ctx, r, freshlyBalanced(labels), func(addresses []netip.Addr) (err error) {
		announced = addresses
		for _, a := range addresses {
			err = errors.Join(err, labaccess.Lab(r).Announced(ctx, node, a))
		}
		return err
	})
	for _, a := range announced {
		if err == nil {
			err = labaccess.Lab(r).Withdrawn(ctx, node, a)
		}
	}
	return err
}

// announcesAnew waits for new sessions with a node, and then asks its speaker as announces does.
func announcesAnew(labels map[string]string) askAgent {
	return func(ctx context.Context, r *framework.Run, node, version string, began time.Time) error {
		if err := labaccess.Lab(r).SessionsUp(ctx, []string{node}, began); err != nil {
			return err
		}
		return announces(ctx, r, node, labels)
	}
}

// balanced is the Service of type LoadBalancer in front of the pod beside: no other probe from
// outside goes to that pod. Cilium's connection tracking has the translation of a flow for some
// time after it. Its tuple has the client and the pod, so the replies to a new flow from
// the same port to the pod itself would come from the Service's address.
var balanced = workload.LoadBalancer{Name: "balanced", Pod: beside.Name}

func freshlyBalanced(labels map[string]string) workload.LoadBalancer {
	return workload.LoadBalancer{Name: "fresh", Pod: beside.Name, Labels: labels}
}

// withFresh does something while there is a new Service that has its addresses.
func withFresh(ctx context.Context, r *framework.Run, fresh workload.LoadBalancer, do func([]netip.Addr) error) error {
	if err := fresh.Create(ctx, r); err != nil {
		return err
	}
	addresses, err := fresh.Given(ctx, r)
	if err == nil {
		err = do(addresses)
	}
	return errors.Join(err, fresh.Remove(context.WithoutCancel(ctx), r))
}

// balance is the action that creates the Service balanced, and addressed the one that notes its
// addresses.
func balance(labels map[string]string) framework.Action {
	b := balanced
	b.Labels = labels
	return b.Create
}

func addressed(given *[]netip.Addr) framework.Action {
	return func(ctx context.Context, r *framework.Run) (err error) {
		*given, err = balanced.Given(ctx, r)
		return err
	}
}
