// Package guest runs Kubernetes nodes that have a kernel of their own: a
// virtual machine inside a Docker container. The container is a member of the
// lab like any other, found and removed by its labels and limited by its
// cgroups; the machine inside it has the container's name, addresses and
// tree, but Debian's kernel in place of the host's.
//
//	lab's network --- eth0 br0 tap0 --- eth0  guest: systemd, containerd, kubelet
//	                  container               |  root: overlay over the container's /
//	machine --------- guest.sock -------------+  agent on a serial port
//
// The bridge joins the guest to the network at layer 2: the guest owns the
// container's addresses, and the container itself has none. The channel to
// the guest's agent does not use the network, so commands run on a guest
// whose network is broken.
//
// Where KVM boots guests they run at full speed. Elsewhere, where the image has
// it, User Mode Linux (UML) does: the kernel is a program in the container, and
// the guest's programs run on the CPU itself, between system calls as fast as
// elsewhere. It has one CPU, no cpuset controller, and one kernel, its own,
// whatever the topology asks for; what tells of a guest asks it with uname. Where
// neither boots, QEMU translates (TCG), and Go programs take 15 to 20 times as
// long. ChooseAccelerator finds out by booting one.
//
// What differs between them is in package launch, their command lines, and in
// package boot, the devices:
//
//	       tree    disk    channel                      interfaces
//	QEMU   9p      vda     virtio serial port           virtio-net, ethN
//	UML    hostfs  ubda    ttyS0, raw and metered       vecN, renamed to ethN
package guest
