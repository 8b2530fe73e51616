// Package kindlab makes a topology real: Kubernetes nodes by kind, routers
// and hosts as Docker containers, all on Docker networks that have no way
// out of the machine.
//
// kind creates the first node of each cluster, the control plane, and writes
// kubeadm's configuration. kubeadm init is run here, because what kind does
// after it takes seconds and nothing of a lab needs it: nodes register, and
// boot, while kubeadm is at work. There is no StorageClass. The other nodes run
// the same image but are started and joined here, because kind can neither give
// a node a chosen address nor add one to a running cluster. They do not bear
// kind's label: kind would take them for its own while it creates the
// control plane beside them.
//
// # What a lab leaves on the machine
//
// Everything bears the lab's name, and Down finds it by that alone:
//
//   - containers and volumes, by the label dev.relapse.lab, or by kind's
//     cluster label for the containers that kind makes itself;
//   - Docker networks, by the same label; their bridges are named rl-*;
//   - one nftables table, relapse-<lab>, that closes the bridges' way out;
//   - one folder, StateDir/<lab>, with the kubeconfigs and sockets (0700).
//
// Down needs no state: it works after kill -9 at any moment, and twice.
package kindlab
