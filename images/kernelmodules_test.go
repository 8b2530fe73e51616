package images

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// onKernel has images built for a kernel with this configuration, and perhaps with modules.
func onKernel(t *testing.T, modules bool, config string) {
	t.Helper()
	dir, oldModules, oldConfig := t.TempDir(), loadedModules, kernelConfig
	t.Cleanup(func() { loadedModules, kernelConfig = oldModules, oldConfig })
	loadedModules, kernelConfig = filepath.Join(dir, "modules"), filepath.Join(dir, "config.gz")
	if modules {
		must.Write(t, loadedModules, "")
	}
	if config == "" {
		return
	}
	f, err := os.Create(kernelConfig)
	must.NoError(t, err)
	zipped := gzip.NewWriter(f)
	_, err = io.WriteString(zipped, config)
	must.NoError(t, errors.Join(err, zipped.Close(), f.Close()))
}

// moduleReader is vendored with a program that names /proc/modules by the vendor's constant.
func moduleReader(source string) map[string]string {
	files := with(vendored, "v/main/main.go", strings.ReplaceAll(vendored["v/main/main.go"], "vendor.Version", `vendor.Version+" "+vendor.Loaded`))
	return with(files, "v/component.yaml", strings.Replace(files["v/component.yaml"], "    programs:\n",
		"    kernelModules: {source: "+source+", path: /etc/v/modules}\n    programs:\n", 1))
}

// In place of /proc/modules, where the kernel has no such file, the vendor's code reads one of
// the image, which lists what the kernel has built in. Another kernel has another image.
func TestKernelModules(t *testing.T) {
	vendorProxy(t)
	root, cache := newRoot(t, moduleReader("vendor.go")), t.TempDir()
	digests := map[string]bool{}
	for _, test := range []struct {
		name                string
		modules             bool
		config, says, lists string
	}{
		{"modules", true, "CONFIG_IP_NF_RAW=y\n", "1.1.1 v1.1.1 /proc/modules\n", ""},
		{"no modules", false, "CONFIG_IP_NF_RAW=y\n# CONFIG_IP_NF_NAT is not set\nCONFIG_IP_NF_MANGLE=m\nCONFIG_NETFILTER_XT_MATCH_SOCKET=y\n",
			"1.1.1 v1.1.1 /etc/v/modules\n", "iptable_raw 0 0 - Live 0x0\nxt_socket 0 0 - Live 0x0\n"},
		{"no configuration", false, "", "1.1.1 v1.1.1 /etc/v/modules\n", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			onKernel(t, test.modules, test.config)
			c := must.Get(openIn(cache, root))(t)
			refs := must.Get(c.Find(Want{Component: "v", Version: "1.1.1"}))(t)
			built := builtEntry(t, c, refs[0])
			digests[built.Digest.String()] = true
			files := filesOf(t, built)
			program := filepath.Join(t.TempDir(), "v")
			must.NoError(t, os.WriteFile(program, []byte(files["v"]), 0o755))
			must.Equal(t, "it says", test.says, string(must.Get(exec.Command(program).CombinedOutput())(t)))
			lists, there := files["etc/v/modules"]
			must.Equal(t, "its file is there, and lists", [2]any{!test.modules, test.lists}, [2]any{there, lists})
			modules := must.Get(c.TestedModules(t.Context(), refs))(t)
			must.Equal(t, modules[0].With, !test.modules, strings.Contains(modules[0].With, "reading modules from /etc/v/modules"))
		})
	}
	must.Equal(t, digests, 3, len(digests))
}

// A file that does not name /proc/modules is one that the vendor has changed.
func TestKernelModulesNotNamed(t *testing.T) {
	vendorProxy(t)
	onKernel(t, false, "")
	c := open(t, newRoot(t, moduleReader("cmd/main.go")))
	refs := must.Get(c.Find(Want{Component: "v", Version: "1.1.1"}))(t)
	must.Fail(t, must.Err(c.Build(t.Context(), refs, nil)), "cmd/main.go does not name /proc/modules")
}

func filesOf(t *testing.T, built entry) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, layer := range must.Get(must.Get(built.Image(built.Digest))(t).Layers())(t) {
		content := must.Get(layer.Uncompressed())(t)
		for archive := tar.NewReader(content); ; {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must.NoError(t, err)
			files[header.Name] = string(must.Get(io.ReadAll(archive))(t))
		}
	}
	return files
}
