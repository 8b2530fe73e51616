package launch

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/relapse-dev/relapse/topology/lab/guest/agent"
	"github.com/relapse-dev/relapse/topology/lab/guest/boot"
)

// Files that QEMU is given.
const (
	kernel    = "/boot/vmlinuz"
	initramfs = "/boot/initramfs"
)

// qemuCommand is QEMU's command line. taps are the names of the tap devices, in
// the order of p's links.
func qemuCommand(c Config, p boot.Parameters, taps []string) []string {
	args := append(machine(c),
		"-append", kernelCommandLine(c, p),
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", channelFD),
		"-device", "virtio-serial-pci",
		"-device", "virtserialport,chardev=agent,name="+agent.Port,
		// The container's tree holds mounts (hosts, resolv.conf, registry
		// mirrors): remap keeps their inode numbers apart.
		"-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=root,mount_tag="+boot.RootTag,
		// Nobody needs the disk after the container: nothing is ever flushed.
		"-drive", "if=none,id=disk,format=raw,cache=unsafe,discard=unmap,file="+disk,
		"-device", "virtio-blk-pci,drive=disk",
	)
	for i, link := range p.Links {
		args = append(args,
			"-netdev", fmt.Sprintf("tap,id=%s,ifname=%s,script=no,downscript=no", link.Name, taps[i]),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=%s,mac=%s", link.Name, link.MAC),
		)
	}
	return args
}

// machine is the part of the command line that a probe has too: QEMU with
// our kernel, its console on standard output, and no device that is not asked
// for. A guest that reboots ends.
func machine(c Config) []string {
	cpu := "host"
	accel := "kvm"
	if c.Accelerator == TCG {
		cpu = "max" // what QEMU can translate; other models boot no faster
		accel = fmt.Sprintf("tcg,thread=multi,tb-size=%d", translated)
	}
	return []string{
		qemu,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-machine", "q35", "-accel", accel, "-cpu", cpu,
		"-smp", fmt.Sprint(c.CPUs), "-m", fmt.Sprintf("%dM", c.Memory),
		"-kernel", kernel, "-initrd", initramfs,
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
	}
}

// translated bounds the code that TCG keeps, in MiB. QEMU's own bound is an
// eighth of the machine's memory, 1 GiB at most, and a guest in which programs
// come and go fills it: the container's limit then kills QEMU.
const translated = 256

// qemu is the program's name.
var qemu = "qemu-system-" + qemuArch[runtime.GOARCH]

// qemuArch are QEMU's names of Go's architectures.
var qemuArch = map[string]string{"amd64": "x86_64"}

func kernelCommandLine(c Config, p boot.Parameters) string {
	words := []string{
		"console=ttyS0",
		// Print warnings only: each line on a serial console costs time.
		"loglevel=4", "systemd.show_status=auto",
		"edd=off",  // there is no BIOS disk to ask for
		"panic=-1", // restart at once, that is, end
		"net.ifnames=0",
		"mitigations=off", // whoever is in the guest is trusted
		"systemd.unified_cgroup_hierarchy=1",
	}
	if c.Accelerator == TCG {
		// A translated CPU stalls now and then: no fault of the guest.
		words = append(words, "nowatchdog", "tsc=nowatchdog", "rcupdate.rcu_cpu_stall_suppress=1")
	}
	return strings.TrimSpace(strings.Join(words, " ") + " " + p.CommandLine())
}
