package published

import (
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestNoChart(t *testing.T) {
	must.Fail(t, must.Err(Of(t.Context(), "etcd", "3.6.0")), `no chart of a component "etcd" is known: expected one of cilium, metallb`)
}
