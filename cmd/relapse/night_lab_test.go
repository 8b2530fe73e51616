//go:build lab && night

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

// The tests of this file take many minutes: make test-all runs them.

// TestOneLab runs all that can be tested on one lab, one after the other. It checks exit statuses and report.json.
func TestOneLab(t *testing.T) {
	docker := onlyLab(t)
	run := func(variant string, more ...string) []string {
		return append([]string{"run", scenario, "--variant", variant, "--keep", "--reuse"}, more...)
	}
	fakeUplink(t)
	uplinks := startCapture(t)
	ok := t.Run("the affected version, while somebody else tries as well", func(t *testing.T) {
		before := listeners(t)
		first := start(t, nil, run(affected)...)
		first.printed("routers and hosts", 2*time.Minute)
		second := whole(t, exitMachine, nil, "run", scenario, "--output", first.dir)
		must.Contain(t, second.stderr.String(), `lab "node-drain" is held by process`, fmt.Sprint(first.cmd.Process.Pid))
		for _, args := range [][]string{{"down"}, {"down", scenario}} {
			relapse(t, args...).complains(t, exitMachine, "is held by process")
		}
		first.printed("lab is up", 2*time.Minute)
		must.Equal(t, "listening for others", before, listeners(t))
		first.ends(exitExpected, 5*time.Minute)
		v := first.judged("pass", "reproduced")
		must.Equal(t, "reasons", 0, len(v.Reasons))
		must.Equal(t, "remedies", len(must.Get(scenarioNamed(scenario))(t).Variants[0].Script().Remedies), len(v.Remedies))
		must.Equal(t, "half a pair", true, first.report().Half != "")
		must.Contain(t, first.output(), "node-drain: PASS (half a pair: no fixed variant ran")
		evidence := must.Get(os.ReadDir(filepath.Join(report.Latest(first.dir, scenario), v.EvidenceDir)))(t)
		must.Equal(t, evidence, true, len(evidence) >= 10 && strings.HasPrefix(evidence[0].Name(), "01-"))
		// The second had no lab.
		must.Equal(t, "a run and the link to it", 2, len(must.Get(os.ReadDir(filepath.Join(first.dir, scenario)))(t)))
		uplinks.quiet(t)
	})
	if !ok {
		return
	}
	t.Run("the lab has no way out", func(t *testing.T) {
		stranger := strangers.Addr().Next()
		if out, err := inside(t, "outside", "ping", "-c", "1", "-W", "1", "10.4.94.32"); err != nil {
			t.Fatalf("ping works for nobody: %v, %s", err, out)
		}
		for _, way := range []string{"", "10.4.36.1"} { // over the routers, and around them
			if way != "" {
				if out, err := inside(t, "outside", "ip", "route", "add", strangers.String(), "via", way); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				defer inside(t, "outside", "ip", "route", "del", strangers.String(), "via", way)
			}
			_, err := inside(t, "outside", "ping", "-c", "3", "-i", "0.2", "-W", "1", stranger.String())
			must.Fail(t, err, "") // nothing outside of the lab answers
		}
		uplinks.quiet(t)
	})
	t.Run("every part is switched off in turn", func(t *testing.T) {
		s := start(t, nil, "run", scenario, "--ablate", "all", "--keep", "--reuse")
		s.ends(exitExpected, 30*time.Minute)
		scenariotest.EachPartMatters(t, must.Get(scenarioNamed(scenario))(t), s.report())
	})
	t.Run("without the detectors the run fails", func(t *testing.T) {
		s := whole(t, exitUnexpected, nil, run(affected, "--ablate", "detector")...)
		v := s.judged("fail", "missed")
		must.Equal(t, "without", "detector", s.report().Ablated)
		must.Equal(t, "probes hurt, and findings of nobody", [...]int{2, 0}, [...]int{len(v.ProbesHurt), len(v.Findings)})
	})
	t.Run("a fixed version declared as affected fails the run", func(t *testing.T) {
		v := whole(t, exitUnexpected, []string{rolesExchanged + "=1"}, run(fixed)...).judged("fail", "prevented")
		must.Equal(t, "role, and expected", [...]string{"affected", "reproduced"}, [...]string{v.Role, v.Expected})
	})
	t.Run("a lab that is kept is there, and up does not touch it", func(t *testing.T) {
		relapse(t, "up", scenario).complains(t, exitUsage, `lab "node-drain" exists already: relapse down node-drain`)
	})
	t.Run("SIGTERM after the fault", func(t *testing.T) {
		s := start(t, nil, run(affected)...)
		s.printed("ok   cilium-1.11.6          fault", 2*time.Minute)
		s.signal(syscall.SIGTERM)
		s.interrupted(docker)
		s.unknown("")
		uplinks.quiet(t)
	})
}

// TestIPVSDeadlock runs the scenario ipvs-deadlock in the ways in which it must fail.
func TestIPVSDeadlock(t *testing.T) {
	docker := onlyLab(t)
	const name = "ipvs-deadlock"
	const edge = "relapse-" + name + "-k8s-edge" // and a number
	const poweredOn = "relapse: ["               // and its command line, on its console
	t.Run("a guest that does not come up", func(t *testing.T) {
		s := start(t, nil, "run", name)
		eventually(t, "the guest to be powered on", 2*time.Minute, func() (bool, string) {
			console, _ := exec.CommandContext(t.Context(), "docker", "logs", edge+"1").CombinedOutput()
			return strings.Contains(string(console), poweredOn), string(console)
		})
		ran(t, "", "docker", "kill", edge+"1")
		s.ends(exitMachine, 2*time.Minute)
		must.Contain(t, s.stderr.String(), "guest edge1 did not come up: it ended; its console ends with: ")
		s.console("edge1", poweredOn)
		nothingLeft(t, docker)
	})
	t.Run("a guest loses its power under the load", func(t *testing.T) {
		s := start(t, nil, "run", name, "--variant", "kube-proxy-1.13.2", "--reuse")
		s.printed("Services churn", 3*time.Minute)
		ran(t, "", "docker", "kill", edge+"3")
		s.ends(exitInconclusive, 4*time.Minute)
		s.unknown("edge3")
		nothingLeft(t, docker)
	})
}

// TestSecondLab runs the variants of a scenario in two labs. No packet of a lab leaves the machine, and both labs are
// removed, also after a signal while the second lab is brought up.
func TestSecondLab(t *testing.T) {
	docker := onlyLab(t)
	fakeUplink(t)
	uplinks := startCapture(t)
	s := whole(t, exitExpected, nil, "run", scenario, "--parallel", "2")
	r := s.report()
	second := slices.IndexFunc(r.Variants, func(v report.Variant) bool { return v.Topology != nil })
	got := [...]any{r.Verdict, len(r.Variants), second}
	must.Equal(t, "verdict, variants, and that of the second lab", [...]any{"pass", 2, 1}, got)
	relapse(t, "judge", report.Latest(s.dir, scenario)).prints(t, exitExpected)
	uplinks.quiet(t)
	nothingLeft(t, docker)
	up := regexp.MustCompile(`second lab +registry`)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			s := start(t, nil, "run", scenario, "--parallel", "2")
			eventually(t, "the second lab to come up", 3*time.Minute, func() (bool, string) {
				out := s.output()
				return up.MatchString(out), out
			})
			if sig == syscall.SIGINT {
				s.signal(sig)
				s.interrupted(docker)
				return
			}
			s.killed(docker, scenario+"-2")
		})
	}
}

// TestUp brings a lab up without a run, uses it, and interrupts the use in the installation.
func TestUp(t *testing.T) {
	docker := onlyLab(t)
	up := whole(t, exitExpected, nil, "up", scenario)
	must.Contain(t, up.output(), "kubeconfig of cluster k8s: "+filepath.Join(kindlab.StateDir, scenario))
	s := start(t, nil, "run", scenario, "--variant", affected, "--reuse")
	s.printed("lab is up", time.Minute) // next comes the installation
	s.ctrlC()
	s.interrupted(docker)
}

// TestImageThatDoesNotBuild runs a scenario from a source tree in which the recipe of one of its images is broken.
func TestImageThatDoesNotBuild(t *testing.T) {
	docker := onlyLab(t)
	dir := t.TempDir()
	if err := exec.Command("git", "-C", "../..", "ls-files").Run(); err != nil {
		t.Skipf("no checkout to copy: %v", err)
	}
	// Files whose deletion is not committed yet are left out.
	ran(t, "../..", "sh", "-c", "git ls-files -z | tar --create --null --files-from=- --ignore-failed-read | tar --extract --directory="+dir)
	recipe := filepath.Join(dir, "images", "host", "image.yaml")
	text := must.Read(t, recipe)
	text = append(text, "    run: |\n      echo what went wrong; exit 7\n"...)
	must.NoError(t, os.WriteFile(recipe, text, 0o644))
	output := t.TempDir()
	cmd := program(t.Context(), "run", scenario, "--output", output)
	cmd.Dir = dir
	end(t, cmd).complains(t, exitMachine, "building image relapse.dev/host:dev", "the log ", "\twhat went wrong")
	stored := must.Get(report.Read(filepath.Join(report.Latest(output, scenario), "report.json")))(t)
	must.Equal(t, "verdict", "inconclusive", stored.Verdict)
	nothingLeft(t, docker)
}
