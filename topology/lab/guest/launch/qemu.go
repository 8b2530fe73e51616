package launch

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/relapse-dev/relapse/topology/lab/guest/agent"
	"github.com/relapse-dev/relapse/topology/lab/guest/boot"
)

// Files for QEMU.
const (
	kernel    = "/boot/vmlinuz"
	initramfs = "/boot/initramfs"
)

// qemuCommand is QEMU's command line. taps are the tap devices of p's links.
func qemuCommand(c Config, p boot.Parameters, taps []string) []string {
	args := append(machine(c),
		"-append", kernelCommandLine(c, p),
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", channelFD),
		"-device", "virtio-serial-pci",
		"-device", "virtserialport,chardev=agent,name="+agent.Port,
		// The container's file system contains mounts (hosts, resolv.conf, registry
		// mirrors): remap avoids equal inode numbers.
		"-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=root,mount_tag="+boot.RootTag,
		// The disk is not needed after the container, so it is never flushed.
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

// machine is the part of the command line that a probe also uses: QEMU with our kernel,
// its console on standard output, and no default devices. A reboot ends the guest.
func machine(c Config) []string {
	cpu := "host"
	accel := "kvm"
	if c.Accelerator == TCG {
		cpu = "max" // other models do not boot faster
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

// translated bounds TCG's cache of code, in MiB. QEMU's default is an eighth of the
// machine's memory, 1 GiB at most. A guest that starts many programs fills it, and
// QEMU would exceed the container's limit.
const translated = 256

// qemu is the program's name.
var qemu = "qemu-system-" + qemuArch[runtime.GOARCH]

// qemuArch are QEMU's names of Go's architectures.
var qemuArch = map[string]string{"amd64": "x86_64"}

func kernelCommandLine(c Config, p boot.Parameters) string {
	words := []string{
		"console=ttyS0",
		// Warnings only: each line on a serial console takes time.
		"loglevel=4", "systemd.show_status=auto",
		"edd=off",  // there is no BIOS disk to query
		"panic=-1", // restart at once, which ends the guest
		"net.ifnames=0",
		"mitigations=off", // the guest's programs are trusted
		"systemd.unified_cgroup_hierarchy=1",
	}
	if c.Accelerator == TCG {
		// A translated CPU sometimes stalls, which is no error of the guest.
		words = append(words, "nowatchdog", "tsc=nowatchdog", "rcupdate.rcu_cpu_stall_suppress=1")
	}
	return strings.TrimSpace(strings.Join(words, " ") + " " + p.CommandLine())
}
