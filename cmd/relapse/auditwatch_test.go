package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/audit"
)

// watched is an API server with one Node and a DaemonSet of an image without a version, whose
// Roles nobody may list. Nothing changes.
func watched(w http.ResponseWriter, r *http.Request) {
	kinds := map[string]string{
		"nodes": "NodeList", "pods": "PodList", "services": "ServiceList", "daemonsets": "DaemonSetList", "deployments": "DeploymentList",
		"statefulsets": "StatefulSetList", "endpointslices": "EndpointSliceList", "clusterrolebindings": "ClusterRoleBindingList",
		"clusterroles": "ClusterRoleList", "rolebindings": "RoleBindingList", "roles": "RoleList", "customresourcedefinitions": "CustomResourceDefinitionList",
	}
	items := map[string]string{
		"nodes":      `{"metadata":{"name":"a"},"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}`,
		"daemonsets": `{"metadata":{"namespace":"shop","name":"cart"},"spec":{"template":{"spec":{"containers":[{"name":"cart","image":"cart:latest","imagePullPolicy":"Always"}]}}}}`,
	}
	at, name := filepath.Split(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis/"), "/api/"))
	w.Header().Set("Content-Type", "application/json")
	status := func(code int, reason string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":%q,"code":%d}`, reason, code)
	}
	switch {
	case kinds[name] == "":
		status(http.StatusNotFound, "NotFound")
	case name == "roles":
		status(http.StatusForbidden, "Forbidden")
	case r.URL.Query().Has("watch"):
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"1"},"items":[%s]}`, kinds[name], strings.TrimSuffix(at, "/"), items[name])
	}
}

// Ctrl-C ends a watch with the status of the last state, and before there is one with that of
// every interrupted command.
func TestAuditWatch(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(watched))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(strings.ReplaceAll(kubeconfigOf, "SERVER", server.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(until string, args ...string) (lines []string, status int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := program(ctx, append([]string{"audit", "--watch", "--quiet", "--rate", "100", "--kubeconfig", kubeconfig}, args...)...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		interrupted := false
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			// The last line has the findings once more: a second interrupt would end the program.
			if lines = append(lines, scanner.Text()); !interrupted && strings.Contains(scanner.Text(), until) {
				interrupted = true
				if err := cmd.Process.Signal(os.Interrupt); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()
		return lines, cmd.ProcessState.ExitCode()
	}
	lines, status := run("not read")
	if status != exitInterrupted || !strings.Contains(lines[0], " + not read: ") {
		t.Errorf("interrupted before the second read: status %d, %q", status, lines)
	}
	lines, status = run("+ latent")
	last := lines[len(lines)-1]
	if status != exitLatent || !strings.Contains(last, " end: findings: 1 latent; ") || !strings.Contains(last, " requests, ") {
		t.Errorf("status %d, %q", status, lines)
	}
	lines, status = run(`"state":"latent"`, "-o", "json")
	var events []string
	for _, line := range lines {
		var e audit.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Time.IsZero() {
			t.Errorf("%v: %s", err, line)
		}
		events = append(events, e.What)
	}
	var end watchEnd
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &end); err != nil || len(end.Findings) != 1 || len(end.Unread) == 0 || end.Cost == nil || end.Cost.Requests == 0 {
		t.Errorf("%v: %s", err, lines[len(lines)-1])
	}
	if status != exitLatent || events[len(events)-1] != "end" || events[len(events)-2] != "finding" {
		t.Errorf("status %d, events %q", status, events)
	}
}
