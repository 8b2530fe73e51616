// This file marks the folder of a module and is never read: programs are built
// with -modfile=versions/VERSION.mod, which the derivation makes (component.yaml).
module github.com/relapse-dev/relapse/images/tigera-operator

go 1.26
