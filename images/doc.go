// Package images is the image factory: it builds every container image of a
// lab from pinned Go modules and Debian packages, without a container engine
// and without a container registry, keeps the images in a cache on this
// machine, and hands them on to a lab's registry or to the Docker engine.
//
// # Recipes
//
// Each folder beside this file holds pinned inputs: a go.mod and go.sum (a
// module of its own, so that one vendor's dependencies never move
// another's), perhaps local main packages and files, and, where it makes
// images, an image.yaml. A new image is a new folder; nothing else changes.
//
// An image.yaml is decoded strictly. All its fields:
//
//	images:
//	  - ref: docker.io/cilium/cilium:v1.11.6  # the vendor's name, or relapse.dev/NAME:TAG
//	    component: cilium       # what it holds; with version and form: reports quote them
//	    version: 1.11.6         # of the component, without a leading v
//	    form: slice             # whole: the vendor's own program; slice: a main of ours
//	                            # around the vendor's packages. None for our own programs
//	    base: relapse.dev/debian:bookworm  # ref of another image; none means scratch
//	    debian:                 # needs root, as debootstrap and chroot do
//	      suite: bookworm       # only without base: debootstrap, variant minbase
//	      packages: [bird]      # with a Debian base: apt-get install over it
//	    programs:               # go build -trimpath, CGO off, ldflags "-s -w" and these
//	      - package: ./agent    # a package of the module in the folder "in"
//	        in: .               # folder with the go.mod, relative to this one; "." if absent,
//	                            # "../.." is the root module
//	        path: /usr/bin/cilium-agent
//	        ldflags: -X github.com/cilium/cilium/pkg/version.ciliumVersion=1.11.6
//	        tags: [ipam_provider_operator]
//	        overlay:            # the compiler sees a folder of a module, at the version that
//	          module: k8s.io/kubernetes  # the go.mod asks for, in a folder of this tree that
//	          source: staging/src/k8s.io/kube-proxy  # holds a go.mod and that a replace names
//	          path: ../kube-proxy-api
//	    files:
//	      - source: files/etc   # file, or folder taken with all below it; in this folder
//	        path: /etc          # where it goes: the file's or the folder's new name
//	        mode: "0644"        # of files; absent: 0755 if executable, else 0644
//	      - module: sigs.k8s.io/kind   # source is inside this module instead, at the
//	        in: ../..                  # version that the go.mod in the folder "in" asks for
//	        source: images/base/files/etc
//	        path: /etc
//	    directories: [/tmp]     # mode 0755, /tmp 1777
//	    links: {/sbin/init: /usr/lib/systemd/systemd}  # path: target
//	    run: |                  # sh -e, as root in the image's tree, after all of the above;
//	      systemctl enable x    # needs root on this machine and sh in base
//	    entrypoint: [/usr/bin/cilium-agent]
//	    cmd: [--debug]
//	    env: {container: docker}
//	    user: "0"
//	    workdir: /
//	    stopSignal: SIGRTMIN+3
//	    labels: {key: value}
//
// # Cache
//
// An image's key is the hash of all that goes into it: its entry in the
// recipe, go.mod, go.sum and local sources of the modules that its programs
// come from, files, the Go version, the architecture and its base's key. The
// cache is an OCI image layout whose index names ref and key. Layers are
// stored uncompressed: all that read them run on this machine, so that
// compression would cost time and save nothing.
package images
