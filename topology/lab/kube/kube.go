// Package kube is the project's client of a Kubernetes API server: e2e-framework's
// klient without its data race.
package kube

import (
	"fmt"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/e2e-framework/klient"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"
)

// Client is a klient.Client that goroutines may share.
//
// Goroutines may not share the client of klient.New (e2e-framework 0.7.0): all results of its Resources
// are one value, and each call changes its namespace. Here each call returns a copy, which uses the same
// connections and type information.
//
// Pods' logs need a client of client-go, made from RESTConfig, because klient has no call for them.
type Client struct {
	config *rest.Config
	shared *resources.Resources // never changed, only copied
}

var _ klient.Client = (*Client)(nil)

// New makes a client of config's API server. It does not connect yet.
func New(config *rest.Config) (*Client, error) {
	shared, err := resources.New(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", config.Host, err)
	}
	return &Client{config: config, shared: shared}, nil
}

// RESTConfig is the client's configuration: address, credentials, limits.
func (c *Client) RESTConfig() *rest.Config { return c.config }

// Resources reads and writes objects. List is limited to the namespace, if one is
// given; Get, Create, Patch and Delete use the namespace of their arguments. It
// panics if there is more than one namespace.
func (c *Client) Resources(namespace ...string) *resources.Resources {
	own := *c.shared
	switch len(namespace) {
	case 0:
		return &own
	case 1:
		return own.WithNamespace(namespace[0])
	}
	panic(fmt.Sprintf("Resources takes one namespace, not %q", namespace))
}
