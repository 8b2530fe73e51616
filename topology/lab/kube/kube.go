// Package kube is the client of a Kubernetes API server that all code shares:
// e2e-framework's klient, with its data race taken out.
package kube

import (
	"fmt"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/e2e-framework/klient"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"
)

// Client is a klient.Client that goroutines may share.
//
// The one that klient.New makes (e2e-framework 0.7.0) may not be: all results
// of its Resources point to the same value, and each call writes its namespace
// there, so that one goroutine may list the namespace of another. Here each
// call returns a value of its own, over the same connections and the same
// knowledge of the server's types.
//
// A pod's log needs client-go's own client, made from RESTConfig: klient has no
// call for it. All else goes through this one.
type Client struct {
	config *rest.Config
	shared *resources.Resources // never changed, only copied
}

var _ klient.Client = (*Client)(nil)

// New makes a client of the API server that config names. It asks the server
// nothing yet.
func New(config *rest.Config) (*Client, error) {
	shared, err := resources.New(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", config.Host, err)
	}
	return &Client{config: config, shared: shared}, nil
}

// RESTConfig is what the client was made from: address, credentials, limits.
func (c *Client) RESTConfig() *rest.Config { return c.config }

// Resources reads and writes objects. List is restricted to the namespace, if
// one is given; Get, Create, Patch and Delete take theirs from their arguments.
// More than one namespace is an error of the caller's code, and panics.
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
