module example.org/vendor

go 1.20

require (
	example.org/forked v1.0.0
	example.org/kept v1.5.0
	example.org/old v1.0.0
	example.org/own v1.0.0
	example.org/part v0.0.0
	example.org/tool v1.0.0
	example.org/unserved v1.0.0
)

require example.org/indirect v0.1.0 // indirect

replace (
	example.org/forked => example.org/fork v1.0.1
	example.org/part => ./part
)
