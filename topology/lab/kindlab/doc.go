// Package kindlab brings a topology up: Kubernetes nodes by kind, routers and hosts as Docker
// containers, all on Docker networks without a route out of the machine.
//
// kind creates the first node of each cluster, the control plane, and writes kubeadm's
// configuration. This package runs kubeadm init, because kind's later steps take seconds and no lab
// needs them: nodes boot and register meanwhile. There is no StorageClass. The other nodes run the
// same image. This package starts and joins them, because kind can neither choose a node's address
// nor add a node to a running cluster. They do not have kind's label: kind would treat them as its
// own while it creates the control plane.
//
// # What a lab leaves on the machine
//
// Everything has the lab's name, and Down needs nothing else to find it:
//
//   - containers and volumes, by the label dev.relapse.lab, or by kind's
//     cluster label for the containers that kind makes;
//   - Docker networks, by the same label; their bridges are named rl-*;
//   - one nftables table, relapse-<lab>, that isolates the bridges;
//   - one folder, StateDir/<lab>, with the kubeconfigs and sockets (0700).
//
// Down needs no state. It works after kill -9 at any moment, and can be repeated.
package kindlab
