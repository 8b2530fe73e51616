package boot

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RootTag is the mount tag of the root file system on virtio-9p.
const RootTag = "root"

// Folders of the initramfs, which the image's recipe makes.
const (
	// modulesDir holds kernel modules, and a list of their names in an order in which
	// they can be loaded.
	modulesDir  = "/modules"
	modulesList = modulesDir + "/order"
)

// devices are the devices that the launcher gives to a guest.
type devices struct {
	// tree is the container's file system: the source, type and data of its mount.
	tree, treeType, treeData string
	disk, diskData           string
}

var (
	qemuDevices = devices{
		// The image does not change while the guest runs, so it may be cached.
		tree: RootTag, treeType: "9p", treeData: "trans=virtio,version=9p2000.L,msize=512000,cache=loose",
		disk: "/dev/vda",
	}
	umlDevices = devices{
		tree: "container", treeType: "hostfs",
		// The disk is not needed after the container, and a flush is an fsync on the machine.
		disk: "/dev/ubda", diskData: "nobarrier",
	}
)

func (p Parameters) devices() devices {
	if p.UML {
		return umlDevices
	}
	return qemuDevices
}

// Run is the init of the initramfs, process 1. It executes the init of the root file
// system, or switches the guest off.
func Run() {
	err := run()
	fmt.Println("relapse: the guest cannot boot:", err)
	restart()
}

// restart ends the guest: QEMU runs with -no-reboot, User Mode Linux with noreboot.
func restart() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

func run() error {
	if err := mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	p, err := Running()
	if err != nil {
		return err
	}
	if p.Probe {
		fmt.Println(ProbeMarker)
		restart()
	}
	if err := mount("devtmpfs", "/dev", "devtmpfs", 0, ""); err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	if p.UML {
		if err := addClockSpeed(); err != nil {
			return err
		}
	}
	const root = "/root"
	if err := mountRoot(root, p.devices()); err != nil {
		return err
	}
	if err := network(p.Links); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	_ = os.RemoveAll(modulesDir) // frees memory
	return switchRoot(root)
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mounting %s (%s) on %s: %w", source, kind, target, err)
	}
	return nil
}

func loadModules() error {
	list, err := os.Open(modulesList)
	if err != nil {
		return fmt.Errorf("reading the list of modules: %w", err)
	}
	defer list.Close()
	for lines := bufio.NewScanner(list); lines.Scan(); {
		if err := loadModule(filepath.Join(modulesDir, lines.Text())); err != nil {
			return fmt.Errorf("loading module %s: %w", lines.Text(), err)
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(path, ".ko") { // .ko.xz: the kernel unpacks it
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	err = unix.FinitModule(int(f.Fd()), "", flags)
	switch {
	case errors.Is(err, unix.EEXIST): // built in or loaded already
		return nil
	case errors.Is(err, unix.ENODEV): // a faster variant of a module, for another CPU
		return nil
	}
	return err
}

// mountRoot mounts the root file system. The folders of containerd and kubelet are on
// the disk itself: an overlay cannot be the upper layer of containerd's overlays.
func mountRoot(root string, d devices) error {
	const lower, scratch = "/lower", "/scratch"
	err := mount(d.tree, lower, d.treeType, unix.MS_RDONLY, d.treeData)
	if err != nil {
		return err
	}
	// The driver has found the disk, but the file in /dev may appear later.
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err = os.Stat(d.disk); err == nil || time.Now().After(limit) {
			break
		}
	}
	if err := mount(d.disk, scratch, "ext4", unix.MS_NOATIME, d.diskData); err != nil {
		return err
	}
	upper, work := scratch+"/upper", scratch+"/work"
	for _, dir := range []string{upper, work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mount("root", root, "overlay", unix.MS_NOATIME, "lowerdir="+lower+",upperdir="+upper+",workdir="+work); err != nil {
		return err
	}
	for _, dir := range []string{"/var/lib/containerd", "/var/lib/kubelet", "/var/log"} {
		if err := os.MkdirAll(scratch+dir, 0o755); err != nil {
			return err
		}
		if err := mount(scratch+dir, root+dir, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

// network sets the interfaces' names and addresses. Package kindlab sets the routes
// later by the agent.
func network(links []Link) error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bringing lo up: %w", err)
	}
	for _, want := range links {
		link, err := linkByMAC(want.MAC)
		if err != nil {
			return fmt.Errorf("finding interface %s: %w", want.Name, err)
		}
		// User Mode Linux has vecN where others have ethN.
		if err := netlink.LinkSetName(link, want.Name); err != nil {
			return fmt.Errorf("renaming interface %s to %s: %w", link.Attrs().Name, want.Name, err)
		}
		address, err := netlink.ParseAddr(want.Address.String())
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("adding address %s to %s: %w", want.Address, want.Name, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("bringing %s up: %w", want.Name, err)
		}
	}
	return nil
}

func linkByMAC(mac net.HardwareAddr) (netlink.Link, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, link := range all {
		if bytes.Equal(link.Attrs().HardwareAddr, mac) {
			return link, nil
		}
	}
	return nil, fmt.Errorf("none has the MAC address %s", mac)
}

// addClockSpeed adds a CPU clock rate to /proc/cpuinfo, which User Mode Linux omits.
// kubelet's cAdvisor requires one to start and does not use the value.
func addClockSpeed() error {
	const cpuinfo, ours = "/proc/cpuinfo", "/cpuinfo"
	text, err := os.ReadFile(cpuinfo)
	if err != nil {
		return err
	}
	// An empty line ends the last paragraph, which gets the line.
	text = append(bytes.TrimSpace(text), "\ncpu MHz\t\t: 1000.000\n\n"...)
	if err := os.WriteFile(ours, text, 0o444); err != nil {
		return err
	}
	if err := unix.Mount(ours, cpuinfo, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s on %s: %w", ours, cpuinfo, err)
	}
	return nil
}

// switchRoot makes root the root file system and runs its init.
func switchRoot(root string) error {
	for _, dir := range []string{"/dev", "/proc"} {
		if err := mount(dir, root+dir, "", unix.MS_MOVE, ""); err != nil {
			return err
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving the root file system to /: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	const init = "/sbin/init"
	return fmt.Errorf("running %s: %w", init,
		unix.Exec(init, []string{init}, []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=linux"}))
}
