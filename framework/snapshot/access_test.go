package snapshot

import (
	"context"
	"errors"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/relapse-dev/relapse/topology/must"
)

// fakeAccess gives what it has. What is nil it does not have.
type fakeAccess struct {
	api      *rest.Config
	routers  map[string]RouterReader
	nodes    map[string]Machine
	outside  map[string]Machine
	registry Registry
}

func given[T any](what T, there bool, name string) (T, error) {
	if !there {
		return what, errors.New("no " + name + " was given")
	}
	return what, nil
}

func (a fakeAccess) Kubernetes(context.Context) (*rest.Config, error) {
	return given(a.api, a.api != nil, "kubeconfig")
}
func (a fakeAccess) Routers(context.Context) (map[string]RouterReader, error) {
	return given(a.routers, a.routers != nil, "router")
}
func (a fakeAccess) Nodes(context.Context) (map[string]Machine, error) {
	return given(a.nodes, a.nodes != nil, "access to the nodes")
}
func (a fakeAccess) Outside(context.Context) (map[string]Machine, error) {
	return given(a.outside, a.outside != nil, "host")
}
func (a fakeAccess) Registry(context.Context) (Registry, error) {
	return given(a.registry, a.registry != nil, "registry")
}

// fakeMachine answers as its fields say. Access that is nil is denied.
type fakeMachine struct {
	exec  func(ctx context.Context, command ...string) (string, error)
	netns func(context.Context) (string, error)
	path  func(context.Context) (string, error)
	pid   int
}

var errClosed = errors.New("it has a kernel of its own")

func (m fakeMachine) Exec(ctx context.Context, command ...string) (string, error) {
	if m.exec == nil {
		return "", errClosed
	}
	return m.exec(ctx, command...)
}

func (m fakeMachine) PID(context.Context) (int, error) {
	if m.pid == 0 {
		return 0, errClosed
	}
	return m.pid, nil
}

func (m fakeMachine) Netns(ctx context.Context) (string, error) {
	if m.netns == nil {
		return "", errClosed
	}
	return m.netns(ctx)
}

func (m fakeMachine) Path(ctx context.Context, _ string) (string, error) {
	if m.path == nil {
		return "", errClosed
	}
	return m.path(ctx)
}

// open is Open in a test that closes the collector at its end.
func open(t testing.TB, access Access, sources ...Source) *Collector {
	t.Helper()
	c := must.Get(Open(t.Context(), access, sources...))(t)
	t.Cleanup(func() { must.NoError(t, c.Close()) })
	return c
}
