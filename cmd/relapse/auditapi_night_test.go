//go:build night

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/must"
)

// controlPlane is a kube-apiserver with its etcd, as processes on the loopback interface, without nodes. The user
// auditor has the roles that a test binds to it, and all its requests are in the audit log.
type controlPlane struct {
	etcd   string // URL
	admin  *rest.Config
	server string
	log    string // the audit log
}

const (
	adminToken   = "admin-of-this-test"
	auditorToken = "auditor-of-this-test"
)

// startEtcd and then startAPIServer start a control plane, so that objects can be written before the API server starts.
func startEtcd(t *testing.T) *controlPlane {
	t.Helper()
	c := &controlPlane{etcd: "http://" + freeAddress(t)}
	programs := compiled(t, "registry.k8s.io/etcd:3.6.5-0")
	startServer(t, "etcd", programs[0], "--data-dir", filepath.Join(t.TempDir(), "etcd"), "--unsafe-no-fsync", "--quota-backend-bytes", "8589934592",
		"--listen-client-urls", c.etcd, "--advertise-client-urls", c.etcd, "--listen-peer-urls", "http://"+freeAddress(t), "--log-level", "error")
	wait(t, "etcd to be healthy", time.Minute, func() error { return get(http.DefaultClient, c.etcd+"/health", "") })
	return c
}

func (c *controlPlane) startAPIServer(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	key := must.Get(rsa.GenerateKey(rand.Reader, 2048))(t)
	write := func(name, text string) string { return must.Write(t, filepath.Join(dir, name), text) }
	keys := write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	tokens := write("tokens.csv", adminToken+",admin,1,system:masters\n"+auditorToken+",auditor,2\n")
	policy := write("policy.yaml", `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Metadata","users":["auditor"]},{"level":"None"}]}`)
	c.log = filepath.Join(dir, "audit.log")
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	startServer(t, "kube-apiserver", compiled(t, "registry.k8s.io/kube-apiserver:v1.34.4")[0], "--etcd-servers", c.etcd, "--bind-address", "127.0.0.1", "--secure-port", port,
		"--advertise-address", "192.0.2.1", "--endpoint-reconciler-type", "none", "--cert-dir", filepath.Join(dir, "certs"), "--token-auth-file", tokens, "--authorization-mode", "RBAC",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", keys, "--service-account-signing-key-file", keys,
		"--service-cluster-ip-range", "10.96.0.0/12", "--audit-policy-file", policy, "--audit-log-path", c.log)
	c.server = "https://" + address
	c.admin = &rest.Config{Host: c.server, BearerToken: adminToken, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
	client := must.Get(rest.HTTPClientFor(c.admin))(t)
	wait(t, "kube-apiserver to be ready", 5*time.Minute, func() error { return get(client, c.server+"/readyz", adminToken) })
}

// kubeconfig writes the kubeconfig of the user auditor.
func (c *controlPlane) kubeconfig(t *testing.T) string {
	t.Helper()
	return must.Write(t, filepath.Join(t.TempDir(), "kubeconfig"), `{"apiVersion":"v1","kind":"Config","current-context":"a",
"contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],
"clusters":[{"name":"a","cluster":{"server":"`+c.server+`","insecure-skip-tls-verify":true}}],"users":[{"name":"a","user":{"token":"`+auditorToken+`"}}]}`)
}

func (c *controlPlane) permit(t *testing.T, args ...string) {
	t.Helper()
	client := must.Get(kubernetes.NewForConfig(c.admin))(t)
	var role rbacv1.ClusterRole
	must.NoError(t, yaml.Unmarshal([]byte(relapse(t, append([]string{"audit", "--rbac"}, args...)...).stdout), &role))
	must.Get(client.RbacV1().ClusterRoles().Create(t.Context(), &role, metav1.CreateOptions{}))(t)
	must.Get(client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "auditor"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "auditor"}},
	}, metav1.CreateOptions{}))(t)
}

// define creates the CustomResourceDefinition of CiliumNodes, and waits until they can be listed.
func (c *controlPlane) define(t *testing.T) {
	t.Helper()
	client := must.Get(dynamic.NewForConfig(c.admin))(t)
	crd := map[string]any{}
	must.NoError(t, yaml.Unmarshal([]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"ciliumnodes.cilium.io"},
"spec":{"group":"cilium.io","scope":"Cluster","names":{"plural":"ciliumnodes","singular":"ciliumnode","kind":"CiliumNode","listKind":"CiliumNodeList"},
"versions":[{"name":"v2","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`), &crd))
	must.Get(client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).Create(t.Context(), &unstructured.Unstructured{Object: crd}, metav1.CreateOptions{}))(t)
	wait(t, "CiliumNodes to be served", time.Minute, func() error {
		_, err := client.Resource(schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"}).List(t.Context(), metav1.ListOptions{})
		return err
	})
}

// put writes objects to etcd, as the API server stores them, 100 in a transaction.
func (c *controlPlane) put(t *testing.T, n int, object func(i int) (key string, o runtime.Object)) {
	t.Helper()
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	for from := 0; from < n; from += 100 {
		var ops []map[string]any
		for i := from; i < min(from+100, n); i++ {
			key, o := object(i)
			data, err := json.Marshal(o)
			if _, custom := o.(*unstructured.Unstructured); !custom {
				data, err = runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, schema.GroupVersions(scheme.Scheme.PrioritizedVersionsAllGroups())), o)
			}
			must.NoError(t, err)
			ops = append(ops, map[string]any{"requestPut": map[string][]byte{"key": []byte("/registry/" + key), "value": data}})
		}
		body := must.Get(json.Marshal(map[string]any{"success": ops}))(t)
		response := must.Get(http.Post(c.etcd+"/v3/kv/txn", "application/json", bytes.NewReader(body)))(t)
		response.Body.Close()
		must.Equal(t, "status of etcd", http.StatusOK, response.StatusCode)
	}
}

// fill writes a cluster: for each node 30 pods, 2 Services and 4 EndpointSlices of realistic size.
func (c *controlPlane) fill(t *testing.T, nodes int) {
	t.Helper()
	created := metav1.NewTime(time.Now().Add(-time.Hour))
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", len(name), time.Now().UnixNano()&0xffffffffffff)), CreationTimestamp: created,
			// In real clusters managedFields are a third of an object.
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &created, FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:labels":{".":{},"f:app":{},"f:pod-template-hash":{}},"f:ownerReferences":{}},"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:env":{},"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:ports":{},"f:resources":{},"f:volumeMounts":{}}},"f:dnsPolicy":{},"f:restartPolicy":{},"f:schedulerName":{},"f:terminationGracePeriodSeconds":{}}}`)}}},
		}
	}
	ip := func(first byte, i int) string { return net.IPv4(first, byte(i>>16), byte(i>>8), byte(i)).String() }
	node := func(i int) string { return fmt.Sprintf("node-%05d", i) }
	c.put(t, nodes, func(i int) (string, runtime.Object) {
		o := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: meta("", node(i)), Spec: corev1.NodeSpec{PodCIDRs: []string{ip(10, i<<8) + "/24"}, PodCIDR: ip(10, i<<8) + "/24"}}
		o.Labels = map[string]string{"kubernetes.io/hostname": o.Name, "kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "a"}
		o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip(172, i)}, {Type: corev1.NodeHostName, Address: o.Name}}
		for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
			o.Status.Conditions = append(o.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status", LastHeartbeatTime: created})
		}
		for n := range 50 {
			o.Status.Images = append(o.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example/team/image-%d@sha256:%064x", n, n), fmt.Sprintf("registry.example/team/image-%d:1.%d", n, n)}, SizeBytes: 1 << 26})
		}
		return "minions/" + o.Name, o
	})
	c.put(t, nodes, func(i int) (string, runtime.Object) {
		return "cilium.io/ciliumnodes/" + node(i), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "cilium.io/v2", "kind": "CiliumNode",
			"metadata": map[string]any{"name": node(i), "uid": fmt.Sprintf("00000000-0000-4000-9000-%012x", i), "creationTimestamp": created.UTC().Format(time.RFC3339), "generation": 1},
			"spec":     map[string]any{"addresses": []any{map[string]any{"type": "InternalIP", "ip": ip(172, i)}}, "ipam": map[string]any{"podCIDRs": []any{ip(10, i<<8) + "/24"}}},
		}}
	})
	c.put(t, 30*nodes, func(i int) (string, runtime.Object) {
		o := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: meta(fmt.Sprintf("team-%d", i%100), fmt.Sprintf("app-%d-5d4f8c7b9-%06d", i/30, i))}
		o.Labels = map[string]string{"app": fmt.Sprintf("app-%d", i/30), "pod-template-hash": "5d4f8c7b9"}
		controller := true
		o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: fmt.Sprintf("app-%d-5d4f8c7b9", i/30), UID: "u", Controller: &controller}}
		o.Spec = corev1.PodSpec{NodeName: node(i % nodes), ServiceAccountName: "default", RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{
			{Name: "app", Image: fmt.Sprintf("registry.example/team/app-%d:1.2.3", i/300), ImagePullPolicy: corev1.PullIfNotPresent},
			{Name: "proxy", Image: "registry.example/mesh/proxy:2.0.1", ImagePullPolicy: corev1.PullIfNotPresent},
		}}
		for n := range 10 {
			o.Spec.Containers[0].Env = append(o.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_NUMBER_%d", n), Value: fmt.Sprintf("the value of setting %d of app %d", n, i/30)})
		}
		o.Status = corev1.PodStatus{Phase: corev1.PodRunning, HostIP: ip(172, i%nodes), PodIP: ip(10, (i%nodes)<<8+2+i/nodes), StartTime: &created}
		o.Status.PodIPs = []corev1.PodIP{{IP: o.Status.PodIP}}
		for _, c := range o.Spec.Containers {
			o.Status.ContainerStatuses = append(o.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: c.Name, Image: c.Image, ImageID: fmt.Sprintf("%s@sha256:%064x", strings.Split(c.Image, ":")[0], i/300), ContainerID: fmt.Sprintf("containerd://%064x", i), Ready: true,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: created}},
			})
		}
		return "pods/" + o.Namespace + "/" + o.Name, o
	})
	c.put(t, 2*nodes, func(i int) (string, runtime.Object) {
		o := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta(fmt.Sprintf("team-%d", i%100), fmt.Sprintf("app-%d", i))}
		o.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip(10, 96<<16+i+1), ClusterIPs: []string{ip(10, 96<<16+i+1)}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}}
		return "services/specs/" + o.Namespace + "/" + o.Name, o
	})
	c.put(t, 4*nodes, func(i int) (string, runtime.Object) {
		o := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: meta(fmt.Sprintf("team-%d", i/2%100), fmt.Sprintf("app-%d-%05d", i/2, i)), AddressType: discoveryv1.AddressTypeIPv4}
		o.Labels = map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("app-%d", i/2)}
		name, port := "http", int32(8080)
		o.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port}}
		for n := range 8 {
			on, ready := node((i+n)%nodes), true
			o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip(10, (i+n)%nodes<<8+2+n)}, NodeName: &on, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
		}
		return "endpointslices/" + o.Namespace + "/" + o.Name, o
	})
}

// The API server's audit log of a whole audit has lists only, and the ClusterRole permits all of them.
func TestAuditReadsOnly(t *testing.T) {
	c := startEtcd(t)
	c.startAPIServer(t)
	c.define(t)
	c.fill(t, 20)
	c.permit(t)
	got := relapse(t, "audit", "--kubeconfig", c.kubeconfig(t), "--rate", "100", "-o", "json")
	must.Equal(t, got, true, got.status == exitExpected || got.status == exitLatent)
	must.Equal(t, got, 0, strings.Count(got.stdout, "not permitted"))
	verbs := c.verbs(t)
	t.Logf("requests by verb: %v", verbs)
	must.Equal(t, "lists of two reads", true, verbs["list"] >= 40)
	for verb := range verbs {
		must.Equal(t, verb, true, verb == "get" || verb == "list")
	}
}

// A real API server leads to the same findings as the fake one, in healthy clusters and in clusters with one fault.
func TestAuditFaults(t *testing.T) { faultsOnServer(t, "TestFalseAlarms", 60) }

// faultsOnServer runs a test of package audit on a real API server. The test must have at least least subtests.
func faultsOnServer(t *testing.T, test string, least int, flags ...string) {
	t.Helper()
	c := startEtcd(t)
	c.startAPIServer(t)
	cmd := exec.CommandContext(t.Context(), "go", append(append([]string{"test"}, flags...), "-count=1", "-v", "-run", "^"+test+"$", "../../framework/audit")...)
	cmd.Env = append(os.Environ(), "RELAPSE_TEST_API="+c.server, "RELAPSE_TEST_ETCD="+c.etcd, "RELAPSE_TEST_TOKEN="+adminToken)
	out, err := cmd.CombinedOutput()
	faults := strings.Count(string(out), "    --- PASS: "+test+"/")
	if t.Logf("%d clusters", faults); err != nil || faults < least {
		t.Errorf("%v\n%s", err, out)
	}
}

// verbs counts the auditor's requests in the audit log. A request that was refused is an error.
func (c *controlPlane) verbs(t *testing.T) map[string]int {
	t.Helper()
	f := must.Get(os.Open(c.log))(t)
	defer f.Close()
	verbs := map[string]int{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Stage, Verb, RequestURI string
			User                    struct{ Username string }
			ResponseStatus          struct{ Code int }
		}
		must.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		must.Equal(t, "the log has requests of", "auditor", e.User.Username)
		must.Equal(t, "forbidden: "+e.Verb+" "+e.RequestURI, false, e.ResponseStatus.Code == http.StatusForbidden)
		if e.Stage == "RequestReceived" {
			verbs[e.Verb]++
		}
	}
	must.NoError(t, lines.Err())
	return verbs
}

// At a raised rate, a large cluster is read within a minute and 1 GiB, and the time is proportional to the number of
// objects. RELAPSE_AUDIT_NODES is the number of nodes; by default 5000.
func TestAuditLarge(t *testing.T) {
	nodes := chosen(t, "RELAPSE_AUDIT_NODES", 5000)
	for _, n := range []int{nodes / 10, nodes} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := startEtcd(t)
			began := time.Now()
			c.fill(t, n)
			filled := time.Now()
			c.startAPIServer(t)
			c.define(t)
			t.Logf("%d nodes, %d pods, %d Services, %d EndpointSlices: filled in %s, API server ready in %s", n, 30*n, 2*n, 4*n, filled.Sub(began), time.Since(filled))
			c.permit(t)
			kubeconfig := c.kubeconfig(t)
			for _, rate := range []string{"1000", "5"} {
				began := time.Now()
				cmd := program(t.Context(), "audit", "--kubeconfig", kubeconfig, "--rate", rate, "-o", "json", "--quiet")
				out, _ := cmd.Output() // the exit status depends on the findings
				took := time.Since(began)
				var r audit.Result
				must.NoError(t, json.Unmarshal(out, &r))
				one := r.Ended.Sub(r.Began)
				t.Logf("rate %s: the audit took %s, its %d reads %s; %d requests, %d MB, at most %d MiB of memory", rate, took, r.Reads, one, r.Cost.Requests, r.Cost.Bytes>>20, r.Cost.PeakMemory>>20)
				must.Equal(t, r.Unread, [...]int{0, n}, [...]int{len(r.Unread), r.Nodes})
				// Between Began and Ended there are two reads, and the pause between them.
				must.Equal(t, "a read took a minute at most", true, rate != "1000" || (one-audit.Between)/2 <= time.Minute)
				must.Equal(t, "1 GiB of memory at most", true, r.Cost.PeakMemory <= 1<<30)
				if n < nodes {
					break
				}
			}
		})
	}
}

func chosen(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	return must.Get(strconv.Atoi(cmp.Or(os.Getenv(variable), strconv.Itoa(otherwise))))(t)
}

func compiled(t *testing.T, ref string) []string {
	t.Helper()
	return must.Get(must.Get(images.Open("../.."))(t).Compile(t.Context(), ref, t.TempDir()))(t)
}

func startServer(t *testing.T, name, file string, args ...string) {
	t.Helper()
	log := must.Get(os.Create(filepath.Join(t.TempDir(), name+".log")))(t)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, file, args...)
	cmd.Stdout, cmd.Stderr = log, log
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("the end of the log of %s:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
}

func wait(t *testing.T, what string, bound time.Duration, try func() error) {
	t.Helper()
	eventually(t, what, bound, func() (bool, string) {
		err := try()
		return err == nil, fmt.Sprint(err)
	})
}

func get(client *http.Client, url, token string) error {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", response.Status)
	}
	return nil
}
