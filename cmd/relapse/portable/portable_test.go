package portable

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/topology/must"
)

// A repeated audit ends by an interrupt, with the status of its last state.
func TestExitStatus(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name                  string
		err                   error
		want, interrupted     int
		says, saysInterrupted string
	}{
		{"done", nil, ExitExpected, ExitInterrupted, "", ""},
		{"latent findings", &Ended{Status: ExitLatent}, ExitLatent, ExitInterrupted, "", ""},
		{"latent findings, of an audit that is repeated", &Ended{Status: ExitLatent, watched: true}, ExitLatent, ExitLatent, "", ""},
		{"a cluster that cannot be read", fmt.Errorf("audit: %w", &Ended{Status: ExitMachine, Why: errors.New("refused")}),
			ExitMachine, ExitInterrupted, "audit: refused", "interrupted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			must.Equal(t, "status", test.want, ExitStatus(t.Context(), test.err))
			must.Equal(t, "status after a signal", test.interrupted, ExitStatus(cancelled, test.err))
			must.Equal(t, "complaint", test.says, Complaint(t.Context(), test.err))
			must.Equal(t, "complaint after a signal", test.saysInterrupted, Complaint(cancelled, test.err))
		})
	}
}

// A finding belongs to the incidents with the same detector and kind, or else to the incidents with its detector.
func TestIncidentsOf(t *testing.T) {
	for _, test := range []struct {
		detector, kind string
		want           []string
	}{
		{detect.RouteOwnership{}.Name(), detect.TwinRange, []string{"twin-cidr"}},
		{detect.RouteOwnership{}.Name(), detect.WrongAnnouncer, []string{"node-drain"}},
		{detect.ImagePin{}.Name(), detect.LatestTag, []string{"unpinned-image"}},
		{detect.Permission{}.Name(), detect.NotPermitted, []string{"lost-permission"}},
		{"another", "kind", nil},
	} {
		var names []string
		for _, i := range incidentsOf(detect.Finding{Detector: test.detector, Kind: test.kind}) {
			names = append(names, i.Name)
		}
		must.Equal(t, test.detector+" "+test.kind, test.want, names)
	}
}

// The line that git archive writes into commit.txt leads to the commit, and to the version that go build would name.
func TestArchived(t *testing.T) {
	const hash = "25c6bb8570f8922f78f4974c527fd7e2507d61cd"
	built := Commit{Hash: hash, Time: "2026-11-26T02:22:31Z"}
	for name, test := range map[string]struct {
		text    string
		commit  Commit
		version string
	}{
		"a checkout":               {"$Format:%H %ct %(describe:tags=true,match=v*)$\n", Commit{}, ""},
		"a tree, not a commit":     {" \n", Commit{}, ""},
		"without a tag":            {hash + " 1795659751 \n", built, "v0.0.0-20261126022231-25c6bb8570f8"},
		"a tag":                    {hash + " 1795659751 v1.4.0\n", built, "v1.4.0"},
		"a tag before":             {hash + " 1795659751 v1.4.0-12-g25c6bb8\n", built, "v0.0.0-20261126022231-25c6bb8570f8"},
		"a tag of a candidate":     {hash + " 1795659751 v1.4.0-rc.1\n", built, "v1.4.0-rc.1"},
		"a tag that is no version": {hash + " 1795659751 vintage\n", built, "v0.0.0-20261126022231-25c6bb8570f8"},
	} {
		t.Run(name, func(t *testing.T) {
			if c, version := archived(test.text); c != test.commit || version != test.version {
				t.Errorf("%+v, %q; want %+v, %q", c, version, test.commit, test.version)
			}
		})
	}
}
