package kindlab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// sysctls are the kernel settings without a namespace that the programs of a lab's nodes
// change, with the values that they set: a node is a privileged container. They are put back
// when the machine's last lab is down.
//
// kubelet sets the first six (setupKernelTunables in Kubernetes' pkg/kubelet/cm). A Cilium
// agent sets the others. It also sets kernel.unprivileged_bpf_disabled to 1 where that is 0, and
// the kernel keeps a 1 until the next boot.
var sysctls = map[string]string{
	"kernel.panic":              "10",
	"kernel.panic_on_oops":      "1",
	"vm.overcommit_memory":      "1",
	"vm.panic_on_oom":           "0",
	"kernel.keys.root_maxkeys":  "1000000",
	"kernel.keys.root_maxbytes": "25000000",
	"kernel.timer_migration":    "0",
	"net.core.bpf_jit_enable":   "1",
}

// sysctlFile has the settings before the first lab. Like the labs it does not survive a reboot.
var sysctlFile = filepath.Join(StateDir, "sysctl.json")

func sysctlPath(name string) string { return "/proc/sys/" + strings.ReplaceAll(name, ".", "/") }

// exclusively serialises labs of different processes: the first one records, the last one puts
// back.
func exclusively(do func() error) error {
	file, err := os.OpenFile(filepath.Join(StateDir, "sysctl.lock"), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer file.Close() // which unlocks it
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	return do()
}

// recordSysctls records the settings, unless an earlier lab has, and creates the lab's state folder. The
// record is kept while there are such folders.
func recordSysctls(dir string) error {
	err := exclusively(func() error {
		if _, err := os.Stat(sysctlFile); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(err, os.MkdirAll(dir, 0o700))
		}
		was := map[string]string{}
		for name := range sysctls {
			text, err := os.ReadFile(sysctlPath(name))
			if err == nil { // the kernel has it
				was[name] = strings.TrimSpace(string(text))
			}
		}
		text, err := json.Marshal(was)
		if err == nil {
			err = os.WriteFile(sysctlFile, text, 0o600)
		}
		return errors.Join(err, os.MkdirAll(dir, 0o700))
	})
	if err != nil {
		return fmt.Errorf("recording the kernel settings that a lab changes: %w", err)
	}
	return nil
}

// restoreSysctls restores the settings that the labs' programs have set, when there is no lab any longer.
// A setting that has another value by now was changed by somebody else, and stays.
func restoreSysctls() error {
	err := exclusively(func() error {
		labs, err := WithState()
		if len(labs) > 0 || err != nil {
			return err
		}
		text, err := os.ReadFile(sysctlFile)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		was := map[string]string{}
		if err == nil {
			err = json.Unmarshal(text, &was)
		}
		if err != nil {
			return err
		}
		return errors.Join(putSysctlsBack(was), os.Remove(sysctlFile))
	})
	if err != nil {
		return fmt.Errorf("putting back the kernel settings that labs have changed: %w", err)
	}
	return nil
}

func putSysctlsBack(was map[string]string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(was)) {
		text, err := os.ReadFile(sysctlPath(name))
		value := strings.TrimSpace(string(text))
		if err == nil && value != was[name] && value == sysctls[name] {
			err = os.WriteFile(sysctlPath(name), []byte(was[name]), 0)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
