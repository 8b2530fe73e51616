// Package guest runs Kubernetes nodes with their own kernel: a virtual machine in a
// Docker container. The container is an ordinary member of the lab, with labels and
// cgroup limits. The guest has the container's name, addresses and file system, but
// Debian's kernel instead of the machine's.
//
//	lab's network --- eth0 br0 tap0 --- eth0  guest: systemd, containerd, kubelet
//	                  container               |  root: overlay over the container's /
//	machine --------- guest.sock -------------+  agent on a serial port
//
// The bridge connects the guest to the network at layer 2: the guest has the
// container's addresses, and the container has none. The channel to the guest's
// agent does not use the network, so commands run even if that is broken.
//
// With KVM guests run at full speed. The second choice is User Mode Linux (UML), if the image has
// it: the kernel is a program in the container, and the guest's programs run directly on the CPU,
// slower only in system calls. UML has one CPU, no cpuset controller, and one kernel, regardless of
// the topology. The last choice is QEMU's translator (TCG), with which Go programs run 15 to 20
// times slower. ChooseAccelerator decides by booting a guest.
//
// Their differences are in package launch (command lines) and in package boot (devices):
//
//	       tree    disk    channel                      interfaces
//	QEMU   9p      vda     virtio serial port           virtio-net, ethN
//	UML    hostfs  ubda    ttyS0, raw and metered       vecN, renamed to ethN
package guest
