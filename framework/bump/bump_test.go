package bump

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/topology/must"
)

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	all := append([]string{"-C", dir, "-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "commit.gpgsign=false"}, args...)
	if out, err := exec.CommandContext(t.Context(), "git", all...).CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v\n%s", args, err, out)
	}
}

// repository makes the repository of an archive: main alone has the files below before/, a branch alone has the files
// below after/, and both have the others. The branch is committed, and main has newer commits.
func repository(t *testing.T, archive *txtar.Archive) string {
	dir := t.TempDir()
	git(t, dir, "init", "--quiet", "--initial-branch=main")
	git(t, dir, "remote", "add", "origin", "git@git.example.com:infra.git")
	write := func(side string) {
		for _, f := range archive.Files {
			first, rest, _ := strings.Cut(f.Name, "/")
			switch first {
			case side:
			case "before":
				os.Remove(filepath.Join(dir, rest)) // before may have it
				continue
			case "after":
				continue
			default:
				rest = f.Name
			}
			must.Write(t, filepath.Join(dir, rest), string(f.Data))
		}
		git(t, dir, "add", "--all")
		git(t, dir, "commit", "--quiet", "--allow-empty", "--message", side)
	}
	write("before")
	git(t, dir, "checkout", "--quiet", "-b", "change")
	write("after")
	git(t, dir, "checkout", "--quiet", "main")
	must.Write(t, filepath.Join(dir, "later.yaml"), "kind: HelmRelease\nmetadata: {name: cilium, namespace: later}\n"+
		"spec: {chart: {spec: {chart: cilium, version: 1.17.0}}}\n")
	git(t, dir, "add", "--all")
	git(t, dir, "commit", "--quiet", "--message", "main goes on")
	git(t, dir, "checkout", "--quiet", "change")
	return dir
}

func TestPlan(t *testing.T) {
	files := must.Get(filepath.Glob("testdata/*.txtar"))(t)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			var text strings.Builder
			dir := repository(t, must.Get(txtar.ParseFile(file))(t))
			plan := must.Get(Open(t.Context(), dir, "main"))(t).Plan()
			plan.base = "main"
			plan.Write(&text)
			goldentest.Compare(t, name+".golden", text.String())
			must.Equal(t, "a value is printed", false, strings.Contains(text.String(), "hunter2"))
		})
	}
}

// Uncommitted changes count too, for the requested components. A link is not followed out of the repository.
func TestPlanOfWorkTree(t *testing.T) {
	dir := repository(t, txtar.Parse([]byte("-- a.yaml --\nimage: coredns/coredns:1.12.1\nother: quay.io/cilium/cilium:v1.18.6\n")))
	outside := must.Write(t, filepath.Join(t.TempDir(), "values.yaml"), "password: hunter2\n")
	must.NoError(t, os.Symlink(outside, filepath.Join(dir, "values.yaml")))
	release := "kind: HelmRelease\nmetadata: {name: metallb}\nspec: {chart: {spec: {chart: metallb, version: %s}}, " +
		"valuesFrom: [{kind: ConfigMap, name: v}]}\n---\nconfigMapGenerator: [{name: v, files: [values.yaml]}]\n"
	file := must.Write(t, filepath.Join(dir, "kustomization.yaml"), strings.Replace(release, "%s", "0.14.9", 1))
	git(t, dir, "add", "--all")
	git(t, dir, "commit", "--quiet", "--message", "a release")
	git(t, dir, "branch", "--force", "main")
	must.Write(t, file, strings.Replace(release, "%s", "0.15.2", 1))
	must.Write(t, filepath.Join(dir, "a.yaml"), "image: coredns/coredns:1.15.0\nother: quay.io/cilium/cilium:v1.19.3\n")
	plan := must.Get(Open(t.Context(), dir, "main"))(t).Plan("coredns", "metallb")
	must.Equal(t, plan.Raises, 2, len(plan.Raises))
	values := plan.Raises[1].After
	got := [...]any{plan.Raises[0].Component, plan.Raises[1].To, len(values.Files), len(values.NotRead)}
	must.Equal(t, "", [...]any{"coredns", "0.15.2", 0, 1}, got)
	must.Contain(t, values.NotRead[0], "no values are read")
}

func TestVersion(t *testing.T) {
	for written, want := range map[string]string{
		"v1.18.6": "1.18.6", "1.31.4+k3s1": "1.31.4", "v1.12.1-eksbuild.2": "1.12.1", "v1.18.4-build20250101": "1.18.4",
		"1.18.401":    "1.18.4",
		"1.19.0-rc.1": "1.19.0-rc.1", "v1.18.6@sha256:aa": "1.18.6", "sha256:aa": "", "1.18": "", ">=1.18.0": "",
		"{{ v }}": "", "^1.18.0": "",
	} {
		got, err := (&place{component: "cilium", chart: true, written: written}).version()
		must.Equal(t, written, [...]any{want, want == ""}, [...]any{got, err != nil})
	}
}

func TestImageOf(t *testing.T) {
	for name, want := range map[string]string{
		"quay.io/cilium/cilium": "cilium", "rancher/mirrored-cilium-cilium": "cilium", "quay.io/cilium/operator-generic": "",
		"cilium/cilium-envoy":     "",
		"quay.io/metallb/speaker": "metallb", "docker.io/calico/node": "calico", "calico/kube-controllers": "",
		"coredns/coredns":            "coredns",
		"rancher/hardened-coredns":   "coredns",
		"registry.k8s.io/kube-proxy": "kube-proxy", "cloudnativelabs/kube-router": "kube-router", "a/cilium": "",
	} {
		must.Equal(t, name, want, imageOf(name))
	}
}
