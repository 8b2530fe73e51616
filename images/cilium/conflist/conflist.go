// Package conflist writes the CNI configuration of a node whose pods are
// wired by the standard plugins ptp and host-local.
package conflist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// Network is what the configuration says about a node's pods.
type Network struct {
	// Name is the network's name; host-local keeps its reservations under it.
	Name string
	// PodCIDR is the range that pods of this node get their addresses from.
	PodCIDR netip.Prefix
	// MTU is that of the pods' interfaces, in bytes.
	MTU int
}

type list struct {
	CNIVersion string   `json:"cniVersion"`
	Name       string   `json:"name"`
	Plugins    []plugin `json:"plugins"`
}

type plugin struct {
	Type   string `json:"type"`
	MTU    int    `json:"mtu"`
	IPMasq bool   `json:"ipMasq"`
	IPAM   ipam   `json:"ipam"`
}

type ipam struct {
	Type   string    `json:"type"`
	Ranges [][]span  `json:"ranges"`
	Routes []network `json:"routes"`
}

type span struct {
	Subnet netip.Prefix `json:"subnet"`
}

type network struct {
	Dst netip.Prefix `json:"dst"`
}

// Render returns n as a CNI network configuration list: each pod gets a veth
// pair with the node as gateway, an address of n.PodCIDR and a default route.
// Nothing is masqueraded: pods are known by their own addresses everywhere.
func Render(n Network) ([]byte, error) {
	l := list{
		CNIVersion: "1.0.0",
		Name:       n.Name,
		Plugins: []plugin{{
			Type: "ptp",
			MTU:  n.MTU,
			IPAM: ipam{
				Type:   "host-local",
				Ranges: [][]span{{{Subnet: n.PodCIDR}}},
				Routes: []network{{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0)}},
			},
		}},
	}
	out, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("rendering the CNI configuration of network %q: %w", n.Name, err)
	}
	return append(out, '\n'), nil
}

// Write makes the file at path say n and reports whether it had to be
// changed. The container runtime watches the folder, so that the file appears
// complete or not at all; a file that says n already is left alone, because a
// new one makes the runtime load its configuration again.
func Write(path string, n Network) (changed bool, err error) {
	content, err := Render(n)
	if err != nil {
		return false, err
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return false, nil
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, fmt.Errorf("making the folder of CNI configurations: %w", err)
	}
	// The temporary name must not end as a configuration's does.
	temp, err := os.CreateTemp(dir, filepath.Base(path)+".*.tmp")
	if err != nil {
		return false, fmt.Errorf("writing CNI configuration %s: %w", path, err)
	}
	defer os.Remove(temp.Name())
	if _, err := temp.Write(content); err != nil {
		temp.Close()
		return false, fmt.Errorf("writing CNI configuration %s: %w", path, err)
	}
	if err := temp.Close(); err != nil {
		return false, fmt.Errorf("writing CNI configuration %s: %w", path, err)
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return false, fmt.Errorf("writing CNI configuration %s: %w", path, err)
	}
	return true, nil
}
