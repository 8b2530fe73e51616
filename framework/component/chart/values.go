package chart

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Merge returns the values of several files: of two values with the same path the later one applies, as with Helm.
func Merge(files ...map[string]any) map[string]any {
	all := map[string]any{}
	for _, file := range files {
		merge(all, file)
	}
	return all
}

// merge puts one map into another. Helm's own function prints a warning where only one of two values is a map.
func merge(into, values map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		from, isMap := values[key].(map[string]any)
		if !isMap {
			into[key] = values[key]
			continue
		}
		to, isMap := into[key].(map[string]any)
		if !isMap {
			to = map[string]any{}
			into[key] = to
		}
		merge(to, from)
	}
}

// Get returns the value at a path such as a.b.c.
func Get(values map[string]any, path string) (any, bool) {
	value, there, _ := unstructured.NestedFieldNoCopy(values, strings.Split(path, ".")...)
	return value, there
}

// Set sets the value at a path.
func Set(values map[string]any, path string, value any) {
	for {
		first, rest, deeper := strings.Cut(path, ".")
		if !deeper {
			values[first] = value
			return
		}
		inner, ok := values[first].(map[string]any)
		if !ok {
			inner = map[string]any{}
			values[first] = inner
		}
		values, path = inner, rest
	}
}

// Remove removes the value at a path, so that the chart's default applies.
func Remove(values map[string]any, path string) {
	unstructured.RemoveNestedField(values, strings.Split(path, ".")...)
}

// Put copies the value at this path from one map to another, or removes it there if the first map has none.
func (p Path) Put(from, to map[string]any) {
	key := p[0]
	value, there := from[key]
	if len(p) == 1 {
		if there {
			to[key] = value
		} else {
			delete(to, key)
		}
		return
	}
	source, _ := value.(map[string]any)
	if inner, ok := to[key].(map[string]any); ok {
		p[1:].Put(source, inner)
	}
}

// Default returns the chart's own value at a path.
func (c *Chart) Default(path string) (any, bool) { return Get(c.defaults, path) }

// Setting is a value that a lab sets, whatever the user's values say.
type Setting struct {
	Path  string // such as envoy.enabled
	Value any    // nil removes the chart's default
	Why   string
}

// String is the setting as helm --set takes it.
func (s Setting) String() string {
	if s.Value == nil {
		return s.Path + "=null"
	}
	return fmt.Sprintf("%s=%v", s.Path, s.Value)
}

// With returns a copy of values that has the settings.
func With(values map[string]any, settings []Setting) map[string]any {
	all := Merge(values)
	for _, s := range settings {
		Set(all, s.Path, s.Value)
	}
	return all
}

// Replacement is a value that a lab cannot have as the user or the chart has it.
type Replacement struct {
	Path string `json:"path"` // such as ipam.operator.clusterPoolIPv4MaskSize
	// Was and Is are JSON, or what kind of value it is (Shown). Is is empty if the value is left to the chart's default.
	Was string `json:"was"`
	Is  string `json:"is"`
	// Users is set if the value was the user's, and not the chart's default.
	Users bool   `json:"users"`
	Why   string `json:"why"` // a clause with a subject
}

func (r Replacement) String() string {
	was, replacement := r.Was, r.Is
	if !r.Users {
		was += ", the chart's default,"
	}
	replacement = cmp.Or(replacement, "the chart's default")
	return fmt.Sprintf("%s: %s is replaced by %s: %s", r.Path, was, replacement, r.Why)
}

// Text is a value as JSON.
func Text(value any) string {
	out, err := json.Marshal(value)
	if err != nil { // not of a YAML file
		return fmt.Sprint(value)
	}
	return string(out)
}

// harmless are the paths, or their last parts, whose values a report shows: addresses, devices, AS numbers, versions
// of images, sizes and modes. Any other value may be a secret, whatever its path is called.
var harmless = strings.Fields(`
	cluster.name cluster.id devices device direct-routing-device directRoutingDevice egressMasqueradeInterfaces interface
	k8sServiceHost k8sServicePort clusterPoolIPv4PodCIDRList clusterPoolIPv4MaskSize ipv4NativeRoutingCIDR mlBindAddrOverride
	interfacePattern addresses MTU clusterPoolIPv6PodCIDRList clusterPoolIPv6MaskSize ipv6NativeRoutingCIDR
	cluster-pool-ipv4-cidr cluster-pool-ipv4-mask-size ipv4-native-routing-cidr
	myASN localASN peerASN peerAddress peerPort sourceAddress routerID vrf dynamicASN bfdProfile peers communities
	repository tag digest genericDigest override suffix pullPolicy
	routingMode tunnelProtocol tunnel kubeProxyReplacement datapathMode acceleration dsrDispatch algorithm backend policyEnforcementMode mode
	replicas secureMetricsPort periodSeconds initialDelaySeconds failureThreshold`)

func isHarmless(path string) bool {
	return slices.Contains(harmless, path) || slices.Contains(harmless, path[strings.LastIndexByte(path, '.')+1:])
}

// Shown is a value as a report has it: a switch, a harmless path's scalar or list of scalars, or else what kind it is.
func Shown(path string, value any) string {
	switch value := value.(type) {
	case nil, bool:
		return Text(value)
	case map[string]any:
		return fmt.Sprintf("a map of %d", len(value))
	case []any:
		if len(value) > 0 && (!isHarmless(path) || slices.ContainsFunc(value, nested)) {
			return fmt.Sprintf("a list of %d", len(value))
		}
	case string:
		if value != "" && !isHarmless(path) {
			return "a text"
		}
	default:
		if !isHarmless(path) {
			return "a number"
		}
	}
	return Text(value)
}

func nested(value any) bool {
	switch value.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}

// Secrets are the texts and numbers of values that no report shows: at no harmless path, and long enough to be secret.
func Secrets(values map[string]any) []string {
	var all []string
	var walk func(path string, value any)
	walk = func(path string, value any) {
		switch value := value.(type) {
		case map[string]any:
			for key, inner := range value {
				walk(path+"."+key, inner)
			}
		case []any:
			for _, item := range value {
				walk(path, item)
			}
		case nil, bool:
		default:
			if text := fmt.Sprint(value); !isHarmless(path) && len(text) > 3 && text != "true" && text != "false" {
				all = append(all, text)
			}
		}
	}
	walk("", values)
	return all
}

// WithoutSecrets is a setting that a chart renders, unless it has a secret.
func WithoutSecrets(setting string, secrets []string) string {
	if slices.ContainsFunc(secrets, func(secret string) bool { return strings.Contains(setting, secret) }) {
		return "a text"
	}
	return setting
}
