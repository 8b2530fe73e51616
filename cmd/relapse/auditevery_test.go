package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/topology/must"
)

// watched is an API server with one Node and a DaemonSet of an image without a version. Listing Roles is forbidden.
func watched(w http.ResponseWriter, r *http.Request) {
	kinds := map[string]string{
		"nodes": "NodeList", "pods": "PodList", "services": "ServiceList", "daemonsets": "DaemonSetList", "deployments": "DeploymentList",
		"statefulsets": "StatefulSetList", "endpointslices": "EndpointSliceList", "clusterrolebindings": "ClusterRoleBindingList",
		"clusterroles": "ClusterRoleList", "rolebindings": "RoleBindingList", "roles": "RoleList", "customresourcedefinitions": "CustomResourceDefinitionList",
	}
	items := map[string]string{
		"nodes":      `{"metadata":{"name":"a"},"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}`,
		"daemonsets": `{"metadata":{"namespace":"shop","name":"cart"},"spec":{"template":{"spec":{"hostNetwork":true,"containers":[{"name":"cart","image":"cart:latest","imagePullPolicy":"Always"}]}}}}`,
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
	default:
		fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"1"},"items":[%s]}`, kinds[name], strings.TrimSuffix(at, "/"), items[name])
	}
}

// Ctrl-C ends the audit with the status of the last state. Before the first state, it is 130.
func TestAuditEvery(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(watched))
	t.Cleanup(server.Close)
	kubeconfig := kubeconfigOf(t, server.URL)
	run := func(until string, meanwhile func(), args ...string) (lines []string, status int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := program(ctx, append([]string{"audit", "--every", "10s", "--rate", "100", "--kubeconfig", kubeconfig}, args...)...)
		out := must.Get(cmd.StdoutPipe())(t)
		cmd.Stderr = cmd.Stdout
		must.NoError(t, cmd.Start())
		interrupted := false
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			// The last line repeats the findings: a second interrupt would end the program.
			if lines = append(lines, scanner.Text()); !interrupted && strings.Contains(scanner.Text(), until) {
				interrupted = true
				meanwhile()
				must.NoError(t, cmd.Process.Signal(os.Interrupt))
			}
		}
		_ = cmd.Wait()
		return lines, cmd.ProcessState.ExitCode()
	}
	none := func() {}
	lines, status := run("read 2 begins", none)
	must.Equal(t, lines, exitInterrupted, status)
	listen := freeAddress(t)
	var page string
	lines, status = run("+ latent", func() { page = scraped(t, listen) }, "--listen", listen)
	must.Equal(t, lines, exitLatent, status)
	must.Contain(t, lines[len(lines)-1], " end: findings: 1 latent; ", " requests, ")
	must.Contain(t, page, `relapse_audit_findings{state="latent"} 1.0`, `relapse_build_info{version="`+portable.ThisVersion()+`"} 1.0`)
	lines, status = run(`"state":"latent"`, none, "--quiet", "-o", "json")
	var events []string
	for _, line := range lines {
		var e audit.Event
		must.NoError(t, json.Unmarshal([]byte(line), &e))
		must.Equal(t, line, false, e.Time.IsZero())
		events = append(events, e.What)
	}
	var end audit.Result
	must.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &end))
	must.Equal(t, end, [...]any{1, true, true}, [...]any{len(end.Findings), len(end.Unread) > 0, end.Cost.Requests > 0})
	got := [...]any{status, events[0], events[len(events)-1], slices.Contains(events, "finding")}
	must.Equal(t, events, [...]any{exitLatent, "unread", "end", true}, got)
}

// scraped is the metrics page after the first audit. The line about a finding is printed before the page exists.
func scraped(t *testing.T, address string) (page string) {
	t.Helper()
	eventually(t, "the metrics", 10*time.Second, func() (bool, string) {
		response, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return false, err.Error()
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		page = string(text)
		return err == nil && response.StatusCode == http.StatusOK, response.Status
	})
	return page
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().String()
}
