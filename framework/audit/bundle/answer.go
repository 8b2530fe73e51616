package bundle

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Config is the configuration of clients that ask the bundle. Nothing is sent.
func (b *Bundle) Config() *rest.Config {
	return &rest.Config{Host: "http://bundle.invalid", Transport: b, QPS: -1}
}

// RoundTrip implements http.RoundTripper: it answers requests for a list or an object like an API server with the
// objects of the bundle. The clock of this server, by which Leases are judged, shows when the Leases were read: nodes
// renew their Leases each 10 s, and other objects may have been read minutes later.
func (b *Bundle) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		r.Body.Close()
	}
	answer, status := b.answer(r)
	text, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header:        http.Header{"Content-Type": {"application/json"}, "Date": {cmp.Or(b.renewed, b.newest).UTC().Format(http.TimeFormat)}},
		ContentLength: int64(len(text)), Body: io.NopCloser(bytes.NewReader(text)),
	}, nil
}

func refused(status int, reason metav1.StatusReason, format string, args ...any) (any, int) {
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(status),
		Reason: reason, Message: fmt.Sprintf(format, args...)}, status
}

// asked matches the path of a list of all objects of a resource, or of an object in a namespace.
var asked = regexp.MustCompile(`^/api(?:s/([^/]+))?/([^/]+)/(?:namespaces/([^/]+)/([^/]+)/([^/]+)|([^/]+))$`)

func (b *Bundle) answer(r *http.Request) (any, int) {
	m := asked.FindStringSubmatch(r.URL.Path)
	if m == nil || r.Method != http.MethodGet {
		return refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "a bundle has lists, and no %s %s", r.Method, r.URL.Path)
	}
	resource, k := schema.GroupVersionResource{Group: m[1], Version: m[2], Resource: m[4] + m[6]}, key{m[3], m[5]}
	c, why := b.kinds[resource], b.lacks(resource)
	switch {
	case k.name != "" && c != nil && c.objects[k].json != nil:
		return json.RawMessage(c.objects[k].json), http.StatusOK
	case k.name != "":
		if b.named["cilium.io"] && !b.requested[r.URL.Path] { // audits read only the ConfigMap cilium-config
			b.ask(r.URL.Path)
		}
		return refused(http.StatusNotImplemented, "", "the bundle does not have it")
	case resource.GroupResource() == definitions:
		return b.definitions(), http.StatusOK
	case why == "" || c != nil && partial(resource.GroupResource()) && len(c.objects) > 0:
		return c.items(r)
	case b.otherwise(resource) || !b.mayServe(resource.GroupResource()):
		return refused(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	}
	b.note(resource)
	return refused(http.StatusNotImplemented, "", "%s", why)
}

// otherwise reports whether the bundle has a resource only in another version of its API.
func (b *Bundle) otherwise(r schema.GroupVersionResource) bool {
	for other, c := range b.kinds {
		if other.GroupResource() == r.GroupResource() && other != r && c.lacks == "" && b.kinds[r] == nil {
			return true
		}
	}
	return false
}

// definitions is a list of the CustomResourceDefinitions that are wanted, and that the cluster may have.
func (b *Bundle) definitions() any {
	list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []metav1.PartialObjectMetadata{}}
	for r := range b.wanted {
		if vendors[r.Group] != nil && b.mayServe(r) {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: r.String()}})
		}
	}
	return list
}

func (c *collected) items(r *http.Request) (any, int) {
	wantedFields, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	wantedLabels, err2 := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil || err2 != nil {
		return refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "%s", r.URL.RawQuery)
	}
	list := metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: c.GroupVersion().String(), Kind: c.kind + "List"},
		ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []runtime.RawExtension{}}
	// The next page begins where its token says.
	names := slices.SortedFunc(maps.Keys(c.objects), key.compare)
	begins, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	for i, k := range names[min(max(begins, 0), len(names)):] {
		if limit > 0 && i == limit {
			list.Continue = strconv.Itoa(begins + limit)
			break
		}
		o := c.objects[k]
		var has about
		if err := json.Unmarshal(o.json, &has); err != nil {
			return refused(http.StatusInternalServerError, metav1.StatusReasonInternalError, "%s: %s", o.at, errJSON)
		}
		if wantedLabels.Matches(labels.Set(has.Metadata.Labels)) &&
			wantedFields.Matches(fields.Set{"status.phase": has.Status.Phase, "metadata.namespace": k.namespace}) {
			list.Items = append(list.Items, runtime.RawExtension{Raw: o.json})
		}
	}
	return list, http.StatusOK
}
