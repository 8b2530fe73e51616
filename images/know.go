package images

import (
	"errors"
	"strings"
)

// Know makes the catalogue describe images of versions that it does not have yet. The
// error joins an *UnknownVersionError for each image that no recipe builds.
func (c *Catalogue) Know(refs ...string) error {
	var errs []error
	for _, ref := range refs {
		if _, err := c.Recipe(ref); err == nil {
			continue
		}
		name, tag, _ := strings.Cut(ref, ":") // vendors' refs have no port
		if _, err := c.At(name, strings.TrimPrefix(tag, "v")); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
