package images

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Want is a version of a component that somebody asks for, until a manifest needs refs.
type Want struct {
	// Component is its name, or the ref of one image without the tag.
	Component, Version string
	// Form is the form in which it must be built; empty: any.
	Form Form
}

func (w Want) wants(r *Recipe) bool {
	return r.Component == w.Component && w.Component != "" || strings.HasPrefix(r.Ref, w.Component+":")
}

// UnknownVersionError says that no recipe builds a version of a component, or any version, if it names none.
type UnknownVersionError struct {
	Name, Version string
	// Known says which versions there are; where no component has the name, which components.
	Known []string
	// Why says what the version lacks; empty if that is not known.
	Why string
}

func (e *UnknownVersionError) Error() string {
	if e.Version == "" {
		return fmt.Sprintf("no recipe builds a component %q; there are %s", e.Name, strings.Join(e.Known, ", "))
	}
	why := e.Why
	if why != "" {
		why = ": " + why
	}
	return fmt.Sprintf("no recipe builds %s at version %s%s; there are %s", e.Name, e.Version, why, strings.Join(e.Known, ", "))
}

// RelapseStatus is 2: bad input.
func (*UnknownVersionError) RelapseStatus() int { return 2 }

// FormError says that a version of a component is built in another form.
type FormError struct {
	Want  Want
	Built Form
}

func (e *FormError) Error() string {
	return fmt.Sprintf("%s %s is built %s, not as a %s", e.Want.Component, e.Want.Version, e.Built, e.Want.Form)
}

// RelapseStatus is 2: bad input.
func (*FormError) RelapseStatus() int { return 2 }

// Find returns the refs of the images of what is wanted. The version need not be one of the catalogue: from here on the
// catalogue knows the refs, and Build derives what such a version requires from the vendor's own go.mod. The error is
// an *UnknownVersionError if the version is in no recipe's range, or a *FormError.
func (c *Catalogue) Find(w Want) ([]string, error) {
	c.recipesMu.Lock()
	defer c.recipesMu.Unlock()
	var refs []string
	for _, ref := range c.refs {
		if r := c.recipes[ref]; w.wants(r) && r.Version == w.Version {
			refs = append(refs, ref)
		}
	}
	for _, described := range c.components {
		for _, image := range described.Images {
			if !w.wants(&image.Recipe) || !image.contain(w.Version) {
				continue
			}
			r, err := described.recipe(image, w.Version)
			if err != nil {
				return nil, err
			}
			if c.recipes[r.Ref] == nil {
				c.recipes[r.Ref] = r
			}
			if !slices.Contains(refs, r.Ref) { // else it is the catalogue's
				refs = append(refs, r.Ref)
			}
		}
	}
	if len(refs) == 0 {
		return nil, c.unknownVersion(w)
	}
	for _, ref := range refs {
		if built := c.recipes[ref].Form; w.Form != "" && built != w.Form {
			return nil, &FormError{w, built}
		}
	}
	return refs, nil
}

// unknownVersion says which versions there are in place of the wanted one.
func (c *Catalogue) unknownVersion(w Want) error {
	e := &UnknownVersionError{Name: w.Component, Version: w.Version}
	var components []string
	for _, ref := range c.refs {
		r := c.recipes[ref]
		components = append(components, r.Component)
		if w.wants(r) && r.build == nil {
			e.Known = append(e.Known, r.Version)
		}
	}
	for _, described := range c.components {
		for _, l := range described.Lacking {
			if strings.HasPrefix(l.Ref, w.Component+":") && l.contain(w.Version) {
				e.Why = l.Why
			}
		}
		for _, image := range described.Images {
			components = append(components, image.Component)
			if w.wants(&image.Recipe) {
				e.Known = append(e.Known, fmt.Sprintf("those from %s and below %s", image.From, image.Below))
			}
		}
	}
	if len(e.Known) == 0 {
		e.Known = components
	}
	slices.Sort(e.Known)
	e.Known = slices.DeleteFunc(slices.Compact(e.Known), func(k string) bool { return k == "" })
	return e
}

// Know makes the catalogue describe images of other versions. The error joins an *UnknownVersionError for each unknown.
func (c *Catalogue) Know(refs ...string) error {
	var errs []error
	for _, ref := range refs {
		if _, unknown := c.Recipe(ref); unknown == nil {
			continue
		}
		name, tag, _ := strings.Cut(ref, ":") // vendors' refs have no port
		_, err := c.Find(Want{Component: name, Version: strings.TrimPrefix(tag, "v")})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
