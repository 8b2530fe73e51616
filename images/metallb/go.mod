// This file marks the folder of a module and is never read: programs are built
// with -modfile=versions/VERSION.mod, which the derivation makes (component.yaml).
module github.com/relapse-dev/relapse/images/metallb

go 1.24.0
