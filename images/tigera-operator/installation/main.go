// Command installation is the part of Calico's operator that turns an
// Installation into calico-node's DaemonSet: the vendor's renderer, with no
// cluster behind it. It reads the Installation as YAML from the environment
// variable INSTALLATION, and prints the DaemonSet as JSON.
//
// What the operator would look up in the cluster is made up here, and none of it
// is in the addresses that calico-node takes: certificates, and the address of
// the API server. Defaults that the operator's controller writes into an
// Installation are not filled in.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	operatorv1 "github.com/tigera/operator/api/v1"
	"github.com/tigera/operator/pkg/render"
	"github.com/tigera/operator/pkg/tls/certificatemanagement"
)

func main() {
	set, err := daemonSet([]byte(os.Getenv("INSTALLATION")))
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(set)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "installation:", err)
		os.Exit(1)
	}
}

// daemonSet renders an Installation. A field that there is not is an error, as it
// is to the API server.
func daemonSet(text []byte) (*appsv1.DaemonSet, error) {
	var installation operatorv1.Installation
	if err := yaml.UnmarshalStrict(text, &installation); err != nil {
		return nil, fmt.Errorf("reading the Installation: %w", err)
	}
	secret, err := certificatemanagement.CreateSelfSignedSecret(render.NodeTLSSecretName, "calico-system", "calico-node", nil)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	pair := certificatemanagement.NewKeyPair(secret, nil, "cluster.local")
	component := render.Node(&render.NodeConfiguration{
		Installation: &installation.Spec,
		TLS: &render.TyphaNodeTLS{
			TrustedBundle: certificatemanagement.CreateTrustedBundle(pair),
			TyphaSecret:   pair, NodeSecret: pair,
		},
		ClusterDomain: "cluster.local",
	})
	if err := component.ResolveImages(nil); err != nil {
		return nil, fmt.Errorf("naming images: %w", err)
	}
	objects, _ := component.Objects()
	for _, o := range objects {
		if set, ok := o.(*appsv1.DaemonSet); ok {
			return set, nil
		}
	}
	return nil, errors.New("the operator rendered no DaemonSet")
}
