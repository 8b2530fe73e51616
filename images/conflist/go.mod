// The CNI configuration that slices write. A module of its own, so that slices of every
// version of a vendor's code can use it.
module github.com/relapse-dev/relapse/images/conflist

go 1.26
