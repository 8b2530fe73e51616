package labaccess

import (
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Attach gives the script of a run the lab that it acts on.
func Attach(r *framework.Run, l *kindlab.Lab) { r.Lab = l }

// Lab is the lab that the script of a run acts on; nil where it is tried without one.
func Lab(r *framework.Run) *kindlab.Lab {
	l, _ := r.Lab.(*kindlab.Lab)
	return l
}

// Cluster is the first cluster of the lab that the script of a run acts on; nil where
// there is none.
func Cluster(r *framework.Run) *kindlab.Cluster {
	if l := Lab(r); l != nil && len(l.Clusters) > 0 {
		return l.Clusters[0]
	}
	return nil
}
