// The place of k8s.io/kube-proxy at 1.13, which has the types of kube-proxy's
// configuration and is published for later releases only: the recipes of
// kube-proxy 1.13 overlay it with the copy inside k8s.io/kubernetes.
module k8s.io/kube-proxy

go 1.24.0
