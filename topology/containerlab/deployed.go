package containerlab

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Deployed is what containerlab has deployed from a folder.
type Deployed struct {
	// Clusters are the names of its clusters of kind, sorted.
	Clusters []string
	// Containers are the containers of its nodes of kind linux, by the names that relapse has written
	// into labels, or by the names of containerlab's file.
	Containers map[string]string
	// External are the containers that it has not made: its nodes of kind ext-container, sorted.
	External []string
}

// ReadDeployed reads what containerlab has deployed from a folder, from the file
// topology-data.json that it leaves below it.
func ReadDeployed(dir string) (Deployed, error) {
	found, err := filepath.Glob(filepath.Join(dir, "clab-*", "topology-data.json"))
	if err != nil {
		return Deployed{}, fmt.Errorf("looking for what containerlab has deployed in %s: %w", dir, err)
	}
	if len(found) != 1 {
		return Deployed{}, fmt.Errorf("%s has %d files clab-*/topology-data.json, which containerlab deploy writes; expected "+
			"the folder of one deployed topology", dir, len(found))
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		return Deployed{}, fmt.Errorf("reading what containerlab has deployed: %w", err)
	}
	var data struct {
		Nodes map[string]struct {
			LongName string            `json:"longname"`
			Kind     string            `json:"kind"`
			Labels   map[string]string `json:"labels"`
		} `json:"nodes"`
	}
	if err := json.Unmarshal(text, &data); err != nil {
		return Deployed{}, fmt.Errorf("reading %s: %w", found[0], err)
	}
	d := Deployed{Containers: map[string]string{}}
	for short, n := range data.Nodes {
		switch n.Kind {
		case kindCluster:
			d.Clusters = append(d.Clusters, short)
		case kindNode:
			d.External = append(d.External, n.LongName)
		case kindOther:
			d.Containers[cmp.Or(n.Labels[labelName], short)] = n.LongName
		}
	}
	slices.Sort(d.Clusters)
	slices.Sort(d.External)
	return d, nil
}
