// An assembly file, if an empty one, lets the compiler accept a function without a body (go:linkname).
