// Package images is the image factory: it builds every container image of a lab from pinned Go
// modules and Debian packages, without a container engine and without a container registry, keeps
// the images in a cache on this machine, and hands them on to a lab's registry or to the Docker
// engine. The README of its folder has the fields of recipes, and what keys are made of.
package images
