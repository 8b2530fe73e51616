//go:build lab && night

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/cmd/relapse/display"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

// killPoints is a variable with the number of boundaries at which runs are killed, or "all"; by default sampledPoints.
const (
	killPoints    = "RELAPSE_KILL_POINTS"
	sampledPoints = 4
	// leastBoundaries is the least number of boundaries of a run. Fewer mean that the program no longer logs its steps.
	leastBoundaries = 40
)

const (
	// goneWithin bounds the time after down in which the kernel and Docker finish removing the lab.
	goneWithin = 10 * time.Second
	// staysGoneFor is how long nothing may come back: Docker may still create what the killed process has requested.
	staysGoneFor = 2 * time.Second
	toldWithin   = 6 * time.Minute
)

// killMark is a variable in the environment of a run that is killed, and so in the environment of its children.
const killMark = "RELAPSE_TEST_KILLED_RUN"

// boundary is a line of a run's log: a step begins, or ends.
type boundary struct {
	event, scope, step string
	number             int // counts the boundaries with the same event, scope and step, from 1
}

func (b boundary) String() string {
	text := fmt.Sprintf("%s: %s %s", b.scope, b.step, strings.TrimPrefix(b.event, "step "))
	if b.number > 1 {
		text += fmt.Sprintf(" for the %d. time", b.number)
	}
	return text
}

var logged = regexp.MustCompile(`(\w+)=("(?:[^"\\]|\\.)*"|\S*)`)

func boundaryOf(line string) (boundary, bool) {
	said := map[string]string{}
	for _, found := range logged.FindAllStringSubmatch(line, -1) {
		value := found[2]
		if unquoted, err := strconv.Unquote(value); err == nil {
			value = unquoted
		}
		said[found[1]] = value
	}
	b := boundary{event: said["msg"], scope: said["scope"], step: said["step"]}
	return b, b.event == display.StepBegins || b.event == display.StepEnds
}

type toldRun struct {
	boundaries []boundary
	stderr     []string
	stdout     string
	state      *os.ProcessState
	lasted     time.Duration
}

// follow runs the scenario, and calls reached at each boundary. If that returns true, it kills the run's process only.
func follow(t *testing.T, env []string, output string, reached func(boundary) (kill bool)) toldRun {
	t.Helper()
	out := must.Get(os.Create(filepath.Join(t.TempDir(), "stdout")))(t)
	defer out.Close()
	read, write, err := os.Pipe()
	must.NoError(t, err)
	defer read.Close()
	ctx, cancel := context.WithTimeout(t.Context(), toldWithin)
	defer cancel()
	cmd := program(ctx, "run", scenario, "--variant", fixed, "--log-level", "debug", "--output", output)
	cmd.Env = append(cmd.Env, env...)
	// Files, which Wait does not copy: it would wait for a child that outlives the run and holds them open.
	cmd.Stdout, cmd.Stderr = out, write
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	began := time.Now()
	must.NoError(t, cmd.Start())
	write.Close()
	var run toldRun
	done := make(chan struct{})
	go func() {
		defer close(done)
		numbers := map[boundary]int{}
		scanner := bufio.NewScanner(read)
		scanner.Buffer(nil, 1<<20) // libraries log long lines
		for scanner.Scan() {
			run.stderr = append(run.stderr, scanner.Text())
			b, ok := boundaryOf(scanner.Text())
			if !ok {
				continue
			}
			numbers[b]++
			b.number = numbers[boundary{b.event, b.scope, b.step, 0}]
			run.boundaries = append(run.boundaries, b)
			if reached(b) {
				_ = cmd.Process.Kill() // it may have ended by itself
			}
		}
	}()
	_ = cmd.Wait() // the caller looks at the state
	run.lasted = time.Since(began)
	// The rest of the pipe is read at once, and not until its end: a child may hold it open.
	_ = read.SetReadDeadline(time.Now().Add(time.Second))
	<-done
	run.state = cmd.ProcessState
	run.stdout = string(must.Read(t, out.Name()))
	return run
}

func (r toldRun) says() string {
	tail := r.stderr[max(0, len(r.stderr)-20):]
	return fmt.Sprintf("%s\n%s\n%s", r.state, r.stdout, strings.Join(tail, "\n"))
}

func listed(t *testing.T, command ...string) []string {
	t.Helper()
	got := end(t, exec.Command(command[0], command[1:]...))
	must.Equal(t, command, ended{0, got.stdout, got.stderr}, got)
	return strings.Split(strings.TrimSpace(got.stdout), "\n")
}

// inventory is the state of the machine that a run could change: machineState, all objects of Docker, rules, routes,
// namespaces, cgroups, files, and processes of containers.
func inventory(t *testing.T, docker *client.Client) map[string]string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	all := machineState(t, docker)
	note := func(kind, what string) { all[kind+" "+what] = "is there" }
	info := must.Get(docker.Info(ctx, client.InfoOptions{}))(t).Info
	for _, c := range must.Get(docker.ContainerList(ctx, client.ContainerListOptions{All: true}))(t).Items {
		all["container "+c.Names[0]+" "+c.ID] = string(c.State)
	}
	for _, n := range must.Get(docker.NetworkList(ctx, client.NetworkListOptions{}))(t).Items {
		note("Docker network", n.Name+" "+n.ID)
	}
	for _, i := range must.Get(docker.ImageList(ctx, client.ImageListOptions{All: true}))(t).Items {
		note("Docker image", fmt.Sprint(i.ID, " ", i.RepoTags))
	}

	table := ""
	for _, line := range listed(t, "nft", "--stateless", "list", "ruleset") {
		if strings.HasPrefix(line, "table ") {
			table = line
		}
		note("nftables", table+" "+strings.TrimSpace(line))
	}
	passing := regexp.MustCompile(` expires \d+sec| tentative`)
	for _, family := range []string{"-4", "-6"} {
		for _, what := range [][]string{{"rule"}, {"route", "show", "table", "all"}, {"address"}} {
			for _, line := range listed(t, append([]string{"ip", "-oneline", family}, what...)...) {
				note("ip "+family+" "+what[0], passing.ReplaceAllString(line, ""))
			}
		}
	}

	// The namespaces of all processes, and the processes that belong to containers.
	for _, process := range must.Get(filepath.Glob("/proc/[0-9]*"))(t) {
		if ns, err := os.Readlink(filepath.Join(process, "ns", "net")); err == nil { // it may have ended
			note("network namespace", ns)
		}
		name, _ := os.ReadFile(filepath.Join(process, "comm"))
		for _, prefix := range []string{"containerd-shim", "runc", "docker-proxy", "docker-init"} {
			if strings.HasPrefix(string(name), prefix) {
				note("process", filepath.Base(process)+" "+strings.TrimSpace(string(name)))
			}
		}
	}
	below := func(kind, dir string, depth int) {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil { // it does not exist, or not any more
				return nil
			}
			note(kind, path)
			if e.IsDir() && strings.Count(path, "/")-strings.Count(dir, "/") >= depth {
				return fs.SkipDir
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	cgroups := must.Get(filepath.Glob("/sys/fs/cgroup/*"))(t)
	for _, hierarchy := range cgroups { // files in them come and go with the folders
		_ = filepath.WalkDir(hierarchy, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				note("cgroup", path)
			}
			return nil
		})
	}
	below("file", kindlab.StateDir, 8)
	below("file", "/run/netns", 1)
	// Not netns: Docker removes a container's mount there at once, but the empty file up to a minute later.
	below("file", "/run/docker/containerd", 5)
	below("file", "/run/docker/plugins", 1)
	below("file", "/run/docker/runtime-runc", 2)
	below("file", "/run/docker/runtime-runc-caps", 2)
	below("file", "/var/lib/relapse", 4)
	for _, dir := range []string{"containers", "volumes", "overlay2"} {
		below("file", filepath.Join(info.DockerRootDir, dir), 1)
	}
	below("file", filepath.Join(must.Get(os.UserCacheDir())(t), "relapse", "images", "tmp"), 2)
	for _, path := range must.Get(filepath.Glob(filepath.Join(os.TempDir(), "*relapse*")))(t) {
		note("file", path)
	}
	return all
}

// marked lists the processes that descend from a run with a mark.
func marked(mark string) []string {
	var all []string
	environments, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is right
	for _, path := range environments {
		text, err := os.ReadFile(path)
		if err != nil || !slices.Contains(strings.Split(string(text), "\x00"), killMark+"="+mark) {
			continue // not of the run, or ended
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		all = append(all, fmt.Sprintf("process %s %s", filepath.Base(filepath.Dir(path)), strings.ReplaceAll(string(command), "\x00", " ")))
	}
	return all
}

// bystander is what another user has on the machine: a container (with a network, a volume, and the labels of a node of
// a kind cluster), an nftables table, and two kubeconfigs. Its name is similar to the names of labs.
type bystander struct {
	docker *client.Client
	home   string // has a .kube/config
	config string // another kubeconfig
}

const bystanderName = "relapsed-neighbour"

const bystanderConfig = `apiVersion: v1
kind: Config
clusters: [{name: neighbour, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: neighbour, context: {cluster: neighbour, user: neighbour}}]
users: [{name: neighbour, user: {token: theirs}}]
current-context: neighbour
`

// newBystander creates a bystander. Its container has the image of the labs' hosts.
func newBystander(t *testing.T, docker *client.Client) bystander {
	t.Helper()
	ctx := t.Context()
	b := bystander{docker: docker, home: t.TempDir()}
	b.config = filepath.Join(b.home, "theirs")
	must.NoError(t, os.Mkdir(filepath.Join(b.home, ".kube"), 0o700))
	for _, path := range []string{b.config, filepath.Join(b.home, ".kube", "config")} {
		must.Write(t, path, bystanderConfig)
	}

	conn := must.Get(nftables.New())(t)
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: bystanderName}
	conn.AddTable(table)
	chain := conn.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Counter{}}})
	must.NoError(t, conn.Flush())
	t.Cleanup(func() {
		conn.DelTable(table)
		must.NoError(t, conn.Flush())
	})

	hosts, err := docker.ImageList(ctx, client.ImageListOptions{Filters: client.Filters{}.Add("reference", "relapse.dev/host")})
	if err != nil || len(hosts.Items) == 0 {
		t.Fatalf("no image of a lab's hosts: %v", err)
	}
	must.Get(docker.NetworkCreate(ctx, bystanderName, client.NetworkCreateOptions{Driver: "bridge"}))(t)
	t.Cleanup(func() {
		must.Get(docker.NetworkRemove(context.WithoutCancel(ctx), bystanderName, client.NetworkRemoveOptions{}))(t)
	})
	must.Get(docker.VolumeCreate(ctx, client.VolumeCreateOptions{Name: bystanderName}))(t)
	t.Cleanup(func() {
		must.Get(docker.VolumeRemove(context.WithoutCancel(ctx), bystanderName, client.VolumeRemoveOptions{}))(t)
	})
	must.Get(docker.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: bystanderName,
		Config: &container.Config{
			Image: hosts.Items[0].ID, Entrypoint: []string{"sleep", "infinity"},
			Labels: map[string]string{"io.x-k8s.kind.cluster": bystanderName, "io.x-k8s.kind.role": "worker"},
		},
		HostConfig: &container.HostConfig{NetworkMode: bystanderName, Binds: []string{bystanderName + ":/theirs"}},
	}))(t)
	t.Cleanup(func() {
		must.Get(docker.ContainerRemove(context.WithoutCancel(ctx), bystanderName, client.ContainerRemoveOptions{Force: true}))(t)
	})
	must.Get(docker.ContainerStart(ctx, bystanderName, client.ContainerStartOptions{}))(t)
	// The kernel adds routes only after it has found that no other host has the address.
	eventually(t, "the bystander's addresses to be in use", 10*time.Second, func() (bool, string) {
		all := strings.Join(listed(t, "ip", "-oneline", "-6", "address"), "\n")
		return !strings.Contains(all, " tentative"), all
	})
	return b
}

// state is the part of a bystander that must not change and that is not in the inventory.
func (b bystander) state(t *testing.T) map[string]string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	all := map[string]string{}
	inspected, err := b.docker.ContainerInspect(ctx, bystanderName, client.ContainerInspectOptions{})
	if err != nil {
		return map[string]string{"the bystander's container": err.Error()}
	}
	c := inspected.Container
	all["the bystander's container"] = fmt.Sprintf("%s, process %d, started %s, restarted %d times", c.State.Status, c.State.Pid, c.State.StartedAt, c.RestartCount)
	all["the bystander's endpoints"] = string(must.Get(json.Marshal(c.NetworkSettings.Networks))(t))
	for _, path := range []string{b.config, filepath.Join(b.home, ".kube", "config")} {
		text, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err := errors.Join(err, statErr); err != nil {
			all["the bystander's "+path] = err.Error()
			continue
		}
		all["the bystander's "+path] = fmt.Sprintf("%s of %s: %s", info.Mode(), info.ModTime(), text)
	}
	kubeconfigs, err := os.ReadDir(filepath.Join(b.home, ".kube"))
	all["the bystander's kubeconfigs"] = fmt.Sprint(kubeconfigs, err)
	return all
}

func (b bystander) reaches(t *testing.T) {
	t.Helper()
	c, err := b.docker.ContainerInspect(context.WithoutCancel(t.Context()), bystanderName, client.ContainerInspectOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	gateway := c.Container.NetworkSettings.Networks[bystanderName].Gateway.String()
	out, err := exec.Command("docker", "exec", bystanderName, "ping", "-c", "1", "-W", "2", gateway).CombinedOutput()
	if err != nil {
		t.Errorf("no packet gets through the bystander's network any more: %v: %s", err, out)
	}
}

type matrix struct {
	docker *client.Client
	by     bystander
	env    []string // of every run
	before map[string]string
	last   boundary
	// planned are the steps in the report of a complete run. Other steps are parts of them.
	planned []string
	rows    []string
}

func (m *matrix) look(t *testing.T) map[string]string {
	all := inventory(t, m.docker)
	maps.Copy(all, m.by.state(t))
	return all
}

// TestKillAtEachStep kills runs at the boundaries of their steps, and of the parts of bringing the lab up and down.
// The first run is complete: its log has the boundaries. After a kill, down removes the lab and changes nothing else.
func TestKillAtEachStep(t *testing.T) {
	docker := onlyLab(t)
	m := &matrix{docker: docker}
	m.env = ownHome(t)
	output := filepath.Join(t.TempDir(), "reports")
	whole := follow(t, m.env, output, func(boundary) bool { return false })
	if status := whole.state.ExitCode(); status != exitExpected && status != exitInconclusive {
		t.Fatalf("the run that tells of its steps has failed: %s", whole.says())
	}
	if len(whole.boundaries) < leastBoundaries {
		t.Fatalf("a run tells of %d boundaries, want %d at least: %s", len(whole.boundaries), leastBoundaries, whole.says())
	}
	points := sampled(t, whole.boundaries)
	t.Logf("a run tells of %d boundaries in %s; %d runs are killed", len(whole.boundaries), whole.lasted.Round(time.Second), len(points))
	m.last = whole.boundaries[len(whole.boundaries)-1]
	for _, s := range must.Get(report.Read(filepath.Join(report.Latest(output, scenario), "report.json")))(t).Steps {
		m.planned = append(m.planned, s.Scope+": "+s.Name)
	}

	m.by = newBystander(t, docker)
	m.before = m.look(t)
	t.Cleanup(func() { m.print(t, len(whole.boundaries)) })
	for i, b := range points {
		t.Run(fmt.Sprintf("%02d %s", slices.Index(whole.boundaries, b)+1, b), func(t *testing.T) {
			env := append(slices.Clone(m.env), "HOME="+m.by.home)
			if i%2 == 1 {
				env = append(env, "KUBECONFIG="+m.by.config)
			}
			m.kill(t, slices.Index(whole.boundaries, b)+1, b, env)
			if t.Failed() {
				// What this run has left must not count for the next one.
				_ = end(t, program(context.WithoutCancel(t.Context()), "down"))
				m.before = m.look(t)
			}
		})
	}
}

// ownHome is an environment in which the caches stay in use although HOME is another folder.
func ownHome(t *testing.T) []string {
	t.Helper()
	env := []string{"XDG_CACHE_HOME=" + must.Get(os.UserCacheDir())(t)}
	for _, name := range []string{"GOCACHE", "GOENV", "GOMODCACHE", "GOPATH"} {
		env = append(env, name+"="+listed(t, "go", "env", name)[0])
	}
	return env
}

// sampled returns some of the boundaries, evenly spread, with the first and the last.
func sampled(t *testing.T, all []boundary) []boundary {
	t.Helper()
	wanted := os.Getenv(killPoints)
	n := sampledPoints
	switch number, err := strconv.Atoi(wanted); {
	case wanted == "all":
		n = len(all)
	case err == nil && number >= 2:
		n = min(number, len(all))
	case wanted != "":
		t.Fatalf("%s=%q: want a number from 2 on, or all", killPoints, wanted)
	}
	var points []boundary
	for i := range n {
		points = append(points, all[i*(len(all)-1)/(n-1)])
	}
	return points
}

// kill kills a run at a boundary, takes down its lab, and checks the machine and the run's report.
func (m *matrix) kill(t *testing.T, number int, at boundary, env []string) {
	output, temporary := filepath.Join(t.TempDir(), "reports"), t.TempDir()
	mark := fmt.Sprintf("%d-%d", os.Getpid(), number)
	env = append(env, "TMPDIR="+temporary, killMark+"="+mark)
	var came time.Time
	began := time.Now()
	run := follow(t, env, output, func(b boundary) bool {
		if b == at {
			came = time.Now()
		}
		return b == at
	})
	must.Equal(t, "told: "+run.says(), false, came.IsZero())
	// The process may have ended by itself between the last boundary and the kill.
	must.Equal(t, "killed: "+run.says(), true, run.state.Sys().(syscall.WaitStatus).Signaled() || at == m.last)

	left := append(parts(t, m.docker), marked(mark)...)
	downBegan := time.Now()
	down := program(t.Context(), "down")
	down.Env = append(down.Env, env[:len(env)-1]...) // without killMark: it is no process of the run
	took := end(t, down)
	must.Equal(t, "down", ended{exitExpected, took.stdout, ""}, took)
	downTook := time.Since(downBegan)
	still := func() []string {
		all := append(differences(m.before, m.look(t)), marked(mark)...)
		files, err := os.ReadDir(temporary)
		if err != nil {
			all = append(all, err.Error())
		}
		for _, f := range files {
			all = append(all, "file "+f.Name()+" in TMPDIR")
		}
		return all
	}
	gone := m.isGone(t, still)
	m.by.reaches(t)
	reported, judged := m.report(t, output, at)
	rest := "nothing"
	if gone != nil {
		t.Error(gone)
		rest = "**something**"
	}
	m.rows = append(m.rows, fmt.Sprintf("| %d | %s | %.1f s | %s | %.1f s | %s | %s | %s |",
		number, at, came.Sub(began).Seconds(), counted(left), downTook.Seconds(), rest, reported, judged))
}

// isGone waits until nothing differs from the state before, and then checks that nothing comes back.
func (m *matrix) isGone(t *testing.T, still func() []string) error {
	look := func(clean bool) await.Condition {
		return func(context.Context) (bool, string, error) {
			all := still()
			return (len(all) == 0) == clean, strings.Join(all, "; "), nil
		}
	}
	err := await.Until(t.Context(), "what the killed run has left to be gone", 100*time.Millisecond, goneWithin, look(true))
	if err != nil {
		return err
	}
	var came string
	err = await.Until(t.Context(), "something of it to come back", 200*time.Millisecond, staysGoneFor, func(context.Context) (bool, string, error) {
		came = strings.Join(still(), "; ")
		return came != "", "", nil
	})
	if err == nil {
		return fmt.Errorf("after down it was gone, and has come back: %s", came)
	}
	return nil
}

func (m *matrix) report(t *testing.T, output string, at boundary) (reported, judged string) {
	t.Helper()
	runs, err := page.Runs(output)
	if err != nil || len(runs) != 1 {
		t.Errorf("reports: %q, %v; want one", runs, err)
		return "none", ""
	}
	r, err := report.Read(filepath.Join(runs[0], "report.json"))
	if err != nil {
		t.Error(err)
		return "not readable", ""
	}
	text, err := os.ReadFile(filepath.Join(runs[0], page.Name))
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(text)), "</html>") {
		t.Errorf("the page is not whole: %v", err)
	}
	reported = "ended: " + r.Verdict
	if r.Unfinished != nil {
		reported = "in " + strings.Join(r.Unfinished.Steps, ", ")
		if len(r.Unfinished.Steps) == 0 {
			reported = "between steps"
		}
		must.Contain(t, string(text), "This run has not ended")
	} else {
		must.Equal(t, "ended", m.last, at)
	}
	// The report was written before the step began.
	step := at.scope + ": " + at.step
	if planned := slices.Contains(m.planned, step); at.event == display.StepBegins && planned && r.Unfinished != nil &&
		!slices.ContainsFunc(r.Steps, func(s report.Step) bool { return s.Scope+": "+s.Name == step }) {
		t.Errorf("the report does not know of the step %q", step)
	}

	got := end(t, program(t.Context(), "judge", runs[0]))
	sentence, more, _ := strings.Cut(strings.TrimSpace(got.stderr), "\n")
	switch {
	case got.status == exitInconclusive && got.stdout == "" && more == "": // one line: why nothing can be judged
	case slices.Contains([]int{exitExpected, exitUnexpected}, got.status) && got.stderr == "":
		sentence, _, _ = strings.Cut(got.stdout, "\n")
	default:
		t.Errorf("judge: %+v", got)
	}
	must.Equal(t, got, false, sentence == "")
	sentence = strings.TrimPrefix(strings.ReplaceAll(sentence, runs[0]+": ", ""), "relapse: ")
	return reported, fmt.Sprintf("%d: %s", got.status, sentence)
}

// counted counts things by kind, which is the first word of each.
func counted(things []string) string {
	var kinds []string
	count := map[string]int{}
	for _, thing := range things {
		kind, _, _ := strings.Cut(thing, " ")
		if count[kind]++; count[kind] == 1 {
			kinds = append(kinds, kind)
		}
	}
	all := each.Of(kinds, func(kind string) string { return fmt.Sprintf("%d %s", count[kind], kind) })
	if all == nil {
		return "nothing"
	}
	return strings.Join(all, ", ")
}

// print prints the matrix as Markdown, and writes it to the folder of the reports.
func (m *matrix) print(t *testing.T, total int) {
	table := fmt.Sprintf("%d of %d boundaries at which a run of %s was killed, and then `relapse down`:\n\n", len(m.rows), total, scenario) +
		"| | killed when | after | what was left | down took | left after down | report | judge |\n" +
		"|---|---|---|---|---|---|---|---|\n" + strings.Join(m.rows, "\n") + "\n"
	t.Log("\n" + table)
	if keep := os.Getenv("RELAPSE_REPORTS"); keep != "" {
		must.NoError(t, errors.Join(os.MkdirAll(keep, 0o755), os.WriteFile(filepath.Join(keep, "kills.md"), []byte(table), 0o644)))
	}
}
