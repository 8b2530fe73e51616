package audit

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/topology/must"
)

// An API server, its etcd and an administrator's token, which tests use in place of a fake server. TestAuditFaults of
// cmd/relapse, which runs each night, sets them.
var realAPI, realEtcd, realToken = os.Getenv("RELAPSE_TEST_API"), os.Getenv("RELAPSE_TEST_ETCD"), os.Getenv("RELAPSE_TEST_TOKEN")

// onReal replaces all objects of the audited types on the real API server.
func onReal(t *testing.T, documents []string) *rest.Config {
	t.Helper()
	config := &rest.Config{Host: realAPI, BearerToken: realToken, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
	defined.Do(func() { define(t, config) })
	for _, r := range resources {
		if r.Resource != "customresourcedefinitions" && r.Group != "rbac.authorization.k8s.io" {
			from, to := registry(r, ""), registry(r, "")
			to[len(to)-1] = '0' // the character after /
			inEtcd(t, "deleterange", map[string][]byte{"key": from, "range_end": to})
		}
	}
	for _, document := range documents {
		var o unstructured.Unstructured
		must.NoError(t, yaml.Unmarshal([]byte(document), &o.Object))
		if o.GetUID() == "" {
			_ = unstructured.SetNestedField(o.Object, "00000000-0000-4000-8000-000000000000", "metadata", "uid")
		}
		if at := o.GetCreationTimestamp(); at.IsZero() {
			o.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-24 * time.Hour)))
		}
		i := slices.IndexFunc(resources, func(r schema.GroupVersionResource) bool {
			return kinds[r.Resource] == o.GetKind()+"List" && r.GroupVersion().String() == o.GetAPIVersion()
		})
		name := strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
		inEtcd(t, "put", map[string][]byte{"key": registry(resources[i], name), "value": must.Get(json.Marshal(o.Object))(t)})
	}
	return config
}

var defined sync.Once

// define creates the CustomResourceDefinitions of the vendors' types, without schemas of their fields.
func define(t *testing.T, config *rest.Config) {
	t.Helper()
	client := must.Get(dynamic.NewForConfig(config))(t)
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	made := map[string]map[string]any{}
	for _, r := range resources {
		if !strings.Contains(r.Group, ".") || strings.HasSuffix(r.Group, "k8s.io") {
			continue
		}
		kind, scope := strings.TrimSuffix(kinds[r.Resource], "List"), "Cluster"
		if strings.HasSuffix(r.Group, "metallb.io") {
			scope = "Namespaced"
		}
		name := r.Resource + "." + r.Group
		if made[name] == nil {
			made[name] = map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": name}, "spec": map[string]any{
				"group": r.Group, "scope": scope, "versions": []any{},
				"names": map[string]any{"plural": r.Resource, "singular": strings.ToLower(kind), "kind": kind, "listKind": kind + "List"},
			}}
		}
		spec := made[name]["spec"].(map[string]any)
		versions := spec["versions"].([]any)
		spec["versions"] = append(versions, map[string]any{
			"name": r.Version, "served": true, "storage": len(versions) == 0,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
		})
	}
	for _, crd := range made {
		must.Get(definitions.Create(t.Context(), &unstructured.Unstructured{Object: crd}, metav1.CreateOptions{}))(t)
	}
	for _, r := range resources { // they are served a moment later
		for deadline := time.Now().Add(time.Minute); ; {
			if _, err := client.Resource(r).List(t.Context(), metav1.ListOptions{}); err == nil {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("%s: %v", r, err)
			}
		}
	}
}

// registry is the key in etcd of an object, or the prefix of a resource's keys.
func registry(r schema.GroupVersionResource, name string) []byte {
	at := map[string]string{"nodes": "minions", "services": "services/specs"}[r.Resource]
	switch {
	case strings.Contains(r.Group, ".") && !strings.HasSuffix(r.Group, "k8s.io"):
		at = r.Group + "/" + r.Resource
	case at == "":
		at = r.Resource
	}
	return []byte("/registry/" + at + "/" + name)
}

func inEtcd(t *testing.T, what string, fields map[string][]byte) {
	t.Helper()
	response := must.Get(http.Post(realEtcd+"/v3/kv/"+what, "application/json", bytes.NewReader(must.Get(json.Marshal(fields))(t))))(t)
	response.Body.Close()
	must.Equal(t, "status of etcd", http.StatusOK, response.StatusCode)
}
