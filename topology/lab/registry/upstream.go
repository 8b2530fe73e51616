package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/relapse-dev/relapse/topology/status"
)

// Upstreams are the base URLs of the vendors' registries, by the host in the names of images.
type Upstreams map[string]string

var own = Upstreams{
	"docker.io":       "https://registry-1.docker.io",
	"gcr.io":          "https://gcr.io",
	"quay.io":         "https://quay.io",
	"registry.k8s.io": "https://registry.k8s.io",
}

// NewUpstreams returns the vendors' own registries, or their mirrors by host. The error
// names every URL or host that is not valid.
func NewUpstreams(mirrors map[string]string) (Upstreams, error) {
	u := maps.Clone(own)
	var errs []error
	for _, host := range slices.Sorted(maps.Keys(mirrors)) {
		if _, ok := own[host]; !ok {
			errs = append(errs, fmt.Errorf("unknown vendor's host %q; expected one of %s", host, strings.Join(own.Hosts(), ", ")))
			continue
		}
		at, err := url.Parse(mirrors[host])
		// Messages and reports name the URL: it must hold no password.
		if err != nil || (at.Scheme != "http" && at.Scheme != "https") || at.Host == "" || strings.Trim(at.Path, "/") != "" ||
			at.User != nil || at.RawQuery != "" || at.Fragment != "" {
			errs = append(errs, fmt.Errorf("%s: %q is not the URL of a registry such as https://mirror.example:5000",
				host, withoutPassword(mirrors[host])))
			continue
		}
		u[host] = strings.TrimSuffix(mirrors[host], "/")
	}
	return u, errors.Join(errs...)
}

func withoutPassword(text string) string {
	if at, err := url.Parse(text); err == nil {
		return at.Redacted()
	}
	return text
}

// Hosts lists the hosts, in order.
func (u Upstreams) Hosts() []string { return slices.Sorted(maps.Keys(u)) }

// HostOf is the host in an image's name; docker.io if it has none.
func HostOf(image string) (string, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", fmt.Errorf("image %q: %w", image, err)
	}
	if host := ref.Context().RegistryStr(); host != name.DefaultRegistry {
		return host, nil
	}
	return "docker.io", nil
}

// Failed says that the registry of a host does not answer, or, if there is an image, does not serve it.
func (u Upstreams) Failed(host, image string, err error) error {
	what := fmt.Sprintf("the registry of %s, %s, cannot be reached", host, u[host])
	if image != "" {
		what = fmt.Sprintf("%s does not serve image %s", u[host], image)
	}
	return status.Machine("%s: %w: set a mirror with --upstream %s=URL, or run without --images=upstream", what, err, host)
}

const reachWithin = 10 * time.Second

// Reach checks that the registries of hosts answer. A request for a login is an
// answer. The error names each registry that does not answer.
func (u Upstreams) Reach(ctx context.Context, hosts []string) error {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	var errs []error
	for _, host := range hosts {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, u[host]+"/v2/", nil)
		if err != nil {
			return fmt.Errorf("the registry of %s: %w", host, err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			if request, ok := errors.AsType[*url.Error](err); ok {
				err = request.Err // without the URL
			}
			errs = append(errs, u.Failed(host, "", err))
			continue
		}
		response.Body.Close()
	}
	return errors.Join(errs...)
}
