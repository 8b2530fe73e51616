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
// images, an image.yaml, or a component.yaml for several versions of a component. A new image is a new folder; nothing else changes.
//
// An image.yaml is decoded strictly. All its fields:
//
//	images:
//	  - ref: docker.io/cilium/cilium:v1.11.6  # the vendor's name, or relapse.dev/NAME:TAG
//	    component: cilium       # what it holds; with version and form: reports quote them
//	    version: 1.11.6         # of the component, without a leading v; the tag may be another,
//	                            # where another component requires it (kubeadm: etcd:3.6.5-0)
//	    module: github.com/cilium/cilium # which Go module holds it: see Versions below
//	    form: slice             # whole: the vendor's own program; slice: a main of ours
//	                            # around the vendor's packages. None for our own programs
//	    base: relapse.dev/debian:bookworm  # ref of another image; none means scratch
//	    debian:                 # needs root, as debootstrap and chroot do
//	      suite: bookworm       # only without base: debootstrap, variant minbase
//	      packages: [bird]      # with a Debian base: apt-get install over it
//	      versions: {bird: 1.6.8} # what packages must turn out to be
//	      slim: true            # nothing else of the base than packages and what they
//	                            # depend on: no shell if none is named, never apt
//	    programs:               # go build -trimpath, CGO off, ldflags "-s -w" and these
//	      - package: ./agent    # a package of the module in the folder "in"
//	        in: .               # folder with the go.mod, relative to this one; "." if absent,
//	                            # "../.." is the root module
//	        path: /usr/bin/cilium-agent
//	        ldflags: -X github.com/cilium/cilium/pkg/version.ciliumVersion=1.11.6
//	        tags: [ipam_provider_operator]
//	    licenses: /usr/share/doc/tor/licenses # folder for the licences of Go and of all modules
//	                            # in the programs
//	    files:
//	      - source: files/etc   # file, or folder taken with all below it; in this folder
//	        path: /etc          # where it goes: the file's or the folder's new name
//	        mode: "0644"        # of files; absent: 0755 if executable, else 0644
//	      - in: ../..           # source is in this folder instead
//	        source: go.mod
//	        path: /opt/relapse/go.mod
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
// Ref, run, package and ldflags may name ${version}, ${major}, ${minor} and ${patch} (its first
// three numbers), ${module} and ${revision} (the commit, where the module's version names one). In
// ldflags they are the values of the module that the program comes from.
//
// # Components
//
// A component.yaml describes the images of a vendor's component for ranges of
// its versions, each way of building for the versions that it serves. The lab's own
// image of the component may be in an image.yaml beside it:
//
//	go: "1.26"                  # language version of the go.mod files
//	modules:                    # where the versions are, and what our go.mod says
//	  - module: github.com/cilium/cilium # otherwise than the vendor's
//	    from: 1.8.1             # the range: this version
//	    below: 1.9.0            # and the versions below this one
//	    atLeast: {golang.org/x/sys: v0.30.0} # raises what the vendor requires
//	    go: vendor              # language version in place of that above: the vendor's own
//	    replace: {k8s.io/client-go: github.com/cilium/client-go v1.2.3}
//	    unreplaced: [k8s.io/apimachinery] # as required, without the vendor's replacement
//	    unused: [github.com/aws/aws-sdk-go-v2/service/ec2] # never called: compiled without optimisation
//	    published: {3.28.5: v1.11.0-0.20250813170300-a0db560f0520} # if not as v3.28.5
//	    unlisted: [github.com/cilium/client-go] # Go's checksum database lacks them
//	    requirements: requirements.mod # in place of a vendor's go.mod that is not there
//	    staging:                # modules that a release keeps in its own tree:
//	      folder: staging/src   # those that are published for it nowhere, and the version
//	      modules: [k8s.io/api] # under which it publishes the others
//	      published: v0.${minor}.${patch}
//	images:                     # entries as in an image.yaml, without version and module, and
//	  - ref: quay.io/cilium/cilium:v${version}
//	    from: 1.11.5
//	    below: 1.12.0
//	    versions: [1.11.6]      # in the catalogue
//	    kernelModules:          # for programs that end on a kernel without /proc/modules: there the
//	      source: pkg/modules.go # constant in this file of the vendor's is compiled as path, a file
//	      path: /etc/modules     # of the image that lists what the kernel has built in
//	lacking:                    # why no entry of images builds some versions
//	  - ref: quay.io/cilium/cilium:v${version}
//	    from: 1.10.0
//	    below: 1.11.0
//	    why: Cilium announces pod CIDRs from 1.11.0 on
//
// The go.mod of a version, versions/VERSION.mod, is derived: it is the vendor's own at that version
// with what modules say, and with the indirect requirements that Go adds. Programs are built with
// it by -modfile, in the module whose root is the component's folder. A new version of the
// catalogue is one more in versions; go test ./images -run Derivation -update then writes its
// go.mod and go.sum. A version that is in a range and not in the catalogue can be built all the
// same (Catalogue.Find, relapse images build NAME@VERSION): its go.mod and go.sum are kept in the
// cache, in the folder modules. Pre-releases belong to the version that they lead to: 1.12.0-rc1 is
// in a range from 1.12.0, and not in one below it, unless the end is a pre-release itself.
//
// A releases.txt beside it lists the vendor's releases, for module proxies that do
// not list them all (Catalogue.Releases, relapse versions NAME): versions without a
// leading v, any number in a line, comments behind a #. Whether the proxy serves
// one is asked when it is built; if not, the error is a NotPublishedError.
//
// # Versions
//
// A recipe that names a component says what proves its version. For a Go module: the go.mod must
// require that version, which Open checks, and the programs must have it in their build
// information, which Build checks. For a Debian package: its version among those that dpkg has
// installed. No image is made where they differ; what link flags make a program say proves nothing.
//
// # Cache
//
// An image's key is the hash of all that goes into it: its entry in the
// recipe, with its version, go.mod, go.sum and local sources of the modules that
// its programs come from, files, the Go version, the architecture and its base's key. The
// cache has an OCI image layout for each key, whose index names the ref and what building the
// image took. Images share their files of a layer by hard links. Layers that were built are stored uncompressed: all that read them run on this machine,
// so that compression would cost time and save nothing.
package images
