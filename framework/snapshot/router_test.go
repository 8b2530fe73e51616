package snapshot

import (
	"context"
	"errors"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// ribOnly reads no FIB, and says so.
type ribOnly struct{ is bool }

func (ribOnly) RIB(context.Context) ([]Path, error)           { return nil, nil }
func (ribOnly) FIB(context.Context) ([]Route, error)          { return nil, errors.New("refused") }
func (ribOnly) Neighbors(context.Context) ([]Neighbor, error) { return nil, nil }
func (r ribOnly) Describe(to *Router)                         { to.RIBOnly = r.is }

// A FIB that cannot be read is not among what is unavailable, and one that could be is.
func TestRIBOnly(t *testing.T) {
	for is, want := range map[bool][]Missing{true: nil, false: {{"FIB of tor1", "refused"}}} {
		r := routerReader("tor1", ribOnly{is})(t.Context())
		s := Snapshot{Sources: []Asked{{Name: Routers.String()}}, Routers: []Router{r}}
		must.Equal(t, is, want, s.Unavailable())
		must.Equal(t, is, false, r.Routes.Read)
	}
}
