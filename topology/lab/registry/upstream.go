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
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Upstreams are the base URLs of the vendors' registries, by the host in the names of
// images.
type Upstreams map[string]string

// own are the vendors' own registries.
var own = Upstreams{
	"docker.io":       "https://registry-1.docker.io",
	"gcr.io":          "https://gcr.io",
	"quay.io":         "https://quay.io",
	"registry.k8s.io": "https://registry.k8s.io",
}

// NewUpstreams returns the vendors' own registries, with the base URLs of mirrors for
// the hosts in instead. The error names every URL or host that is not valid.
func NewUpstreams(instead map[string]string) (Upstreams, error) {
	u := maps.Clone(own)
	var errs []error
	for _, host := range slices.Sorted(maps.Keys(instead)) {
		if _, known := own[host]; !known {
			errs = append(errs, fmt.Errorf("unknown vendor's host %q; expected one of %s", host, strings.Join(own.Hosts(), ", ")))
			continue
		}
		at, err := url.Parse(instead[host])
		// Messages and reports name the URL: it must hold no password.
		if err != nil || (at.Scheme != "http" && at.Scheme != "https") || at.Host == "" || strings.Trim(at.Path, "/") != "" ||
			at.User != nil || at.RawQuery != "" || at.Fragment != "" {
			errs = append(errs, fmt.Errorf("%s: %q is not the URL of a registry such as https://mirror.example:5000", host, withoutPassword(instead[host])))
			continue
		}
		u[host] = strings.TrimSuffix(instead[host], "/")
	}
	return u, errors.Join(errs...)
}

// withoutPassword is a URL as it may be printed.
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

// UpstreamError says that a vendor's registry does not answer, or does not serve an
// image.
type UpstreamError struct {
	Host, URL string
	// Image is the requested image. It is empty if the registry does not answer.
	Image string
	Err   error
	// Alone is set if no run with --images=upstream needs the registry.
	Alone bool
}

func (e *UpstreamError) Error() string {
	what := fmt.Sprintf("the registry of %s, %s, cannot be reached", e.Host, e.URL)
	if e.Image != "" {
		what = fmt.Sprintf("%s does not serve image %s", e.URL, e.Image)
	}
	text := fmt.Sprintf("%s: %v: set a mirror with --upstream %s=URL", what, e.Err, e.Host)
	if e.Alone {
		return text
	}
	return text + ", or run without --images=upstream"
}

func (e *UpstreamError) Unwrap() error { return e.Err }

// reachWithin bounds the wait for a registry's first answer.
const reachWithin = 10 * time.Second

// Reach checks that the registries of hosts answer. A request for a login is an
// answer. The error joins an *UpstreamError for each registry that does not answer.
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
			errs = append(errs, &UpstreamError{Host: host, URL: u[host], Err: reason(err)})
			continue
		}
		response.Body.Close()
	}
	return errors.Join(errs...)
}

// At is the name of an image in its vendor's registry by a digest ("sha256:...").
func (u Upstreams) At(image, digest string) (name.Digest, error) {
	repository, _, err := u.locate(image)
	return repository.Digest(digest), err
}

// locate finds the repository of an image in its vendor's registry, and its tag.
func (u Upstreams) locate(image string) (name.Repository, name.Tag, error) {
	host, err := HostOf(image)
	if err != nil {
		return name.Repository{}, name.Tag{}, err
	}
	tag, err := name.NewTag(image)
	if err != nil {
		return name.Repository{}, name.Tag{}, fmt.Errorf("image %q: %w", image, err)
	}
	at, err := url.Parse(u[host])
	if err != nil || at.Host == "" {
		return name.Repository{}, name.Tag{}, fmt.Errorf("image %s: no upstream for %s", image, host)
	}
	var options []name.Option
	if at.Scheme == "http" {
		options = append(options, name.Insecure)
	}
	repository, err := name.NewRepository(at.Host+"/"+tag.RepositoryStr(), options...)
	return repository, repository.Tag(tag.TagStr()), err
}

// Digest is the digest under which an image's registry serves its tag now: that of what was
// read, whatever the registry says of it. An error is an *UpstreamError.
func (u Upstreams) Digest(ctx context.Context, image string) (v1.Hash, error) {
	_, tag, err := u.locate(image)
	if err != nil {
		return v1.Hash{}, err
	}
	host, _ := HostOf(image)
	ctx, cancel := context.WithTimeoutCause(ctx, digestWithin, fmt.Errorf("no answer within %s", digestWithin))
	defer cancel()
	found, err := remote.Get(tag, remote.WithContext(ctx), remote.WithUserAgent("relapse"), remote.WithTransport(u.transport(host)))
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return v1.Hash{}, &UpstreamError{Host: host, URL: u[host], Image: image, Err: reason(err), Alone: true}
	}
	return found.Digest, nil
}

// digestWithin bounds Digest.
const digestWithin = 30 * time.Second

// transport is that to a host's registry. The library asks by HTTP where it takes a registry
// for a local one and HTTPS fails; what is asked for by HTTPS must not be answered so.
func (u Upstreams) transport(host string) http.RoundTripper {
	if strings.HasPrefix(u[host], "http://") {
		return remote.DefaultTransport
	}
	return onlyHTTPS{}
}

type onlyHTTPS struct{}

func (onlyHTTPS) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, fmt.Errorf("%s is not asked by HTTP", r.URL.Host)
	}
	return remote.DefaultTransport.RoundTrip(r)
}

// AskWithin bounds Ask.
const AskWithin = 3 * time.Second

// Ask finds out which images the vendors' registries serve under digests ("sha256:..." by
// image): all at once, and within AskWithin in all. It returns why the others are not
// served; an *UpstreamError has no image where the registry does not answer at all.
func (u Upstreams) Ask(ctx context.Context, digests map[string]string) map[string]error {
	late := fmt.Errorf("no answer within %s", AskWithin)
	ctx, cancel := context.WithTimeoutCause(ctx, AskWithin, late)
	defer cancel()
	type answer struct {
		image string
		err   error
	}
	answers := make(chan answer, len(digests)) // one that comes too late blocks nobody
	refused := map[string]error{}
	for image, digest := range digests {
		host, _ := HostOf(image)
		refused[image] = &UpstreamError{Host: host, URL: u[host], Err: late}
		go func() { answers <- answer{image, u.ask(ctx, host, image, digest)} }()
	}
	for range digests {
		select {
		case a := <-answers:
			if refused[a.image] = a.err; a.err == nil {
				delete(refused, a.image)
			}
		case <-ctx.Done():
			return refused
		}
	}
	return refused
}

// ask asks for one image, without a login and once.
func (u Upstreams) ask(ctx context.Context, host, image, digest string) error {
	at, err := u.At(image, digest)
	if err != nil {
		return err
	}
	_, err = remote.Head(at, remote.WithContext(ctx), remote.WithUserAgent("relapse"), remote.WithTransport(u.transport(host)), remote.WithRetryBackoff(remote.Backoff{Steps: 1}))
	var answer *transport.Error
	var request *url.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return &UpstreamError{Host: host, URL: u[host], Err: context.Cause(ctx)}
	case errors.As(err, &answer):
		return &UpstreamError{Host: host, URL: u[host], Image: image, Err: fmt.Errorf("it answers %d %s to a request for the pinned digest", answer.StatusCode, http.StatusText(answer.StatusCode))}
	case errors.As(err, &request):
		return &UpstreamError{Host: host, URL: u[host], Err: request.Err}
	}
	return &UpstreamError{Host: host, URL: u[host], Image: image, Err: err}
}

// reason is an error without the URL, which UpstreamError has already.
func reason(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err
	}
	return err
}
