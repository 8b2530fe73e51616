# Puts User Mode Linux into the image: the kernel and its C library in /opt/uml,
# its modules among the others. Only Debian's unstable branch has a version that
# runs processes by seccomp (since 6.16). An image that cannot have it does
# without; /opt/uml/lacks then says why.
#
# Versions rotate there. These are the tried ones, by content; where the archive
# has moved on, what it has now is taken.
tried='
f947c9244fd79d481299df2ad68961f6b3b7703bff38c4b0e726f861161da62c  user-mode-linux_7.2um1_amd64.deb
5c71715c51103beb4fbba9fe9f8dff604af6610dfa71c70bff342f54a7860803  libc6_2.43-7_amd64.deb
d251ea642c3795e8723ac2b9eeebe511467ca04590ba70f3d555a7616787d7e3  libgcc-s1_16.2.0-4_amd64.deb
'
tools="bc bison flex gcc libc6-dev make xz-utils"

mkdir -p /opt/uml
work=$(mktemp -d)
cleanup() {
	cd /
	apt-get -q -y purge --autoremove $tools
	rm -rf "$work" /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
}
trap cleanup EXIT
cd "$work"
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q -y --no-install-recommends install $tools

lacks() {
	echo "$1" | tee /opt/uml/lacks
	exit 0
}

# Nothing else of that branch may reach the image: its packages are unpacked,
# and not installed. A mirror that stands still will do.
sed 's,^deb \([^ ]*\) .*,deb [check-valid-until=no] \1 unstable main,' /etc/apt/sources.list >unstable.list
unstable="-q -o Dir::Etc::SourceList=$work/unstable.list -o Dir::Etc::SourceParts=- -o Acquire::Languages=none"
apt-get $unstable update && apt-get $unstable download user-mode-linux libc6 libgcc-s1 ||
	lacks "it could not be had from the package archive when the image was built"
known=yes
echo "$tried" | sed '/^$/d' | sha256sum --check || known=no
for package in *.deb; do
	dpkg-deb --extract "$package" .
done
version=$(ls usr/lib/uml/modules)

# With the tried versions whatever fails is a fault of this machine or of these
# scripts, and fails the image, but for status 3: the archive lacks something.
# Other versions may differ in more than a number.
status=0
sh -e /kind/umlinstall.sh "$version" "$known" $unstable || status=$?
if [ "$status" != 0 ]; then
	[ "$known" = no ] || [ "$status" = 3 ] || exit "$status"
	rm -rf /opt/uml/* "/lib/modules/$version"
	lacks "its kernel $version cannot be put into the image"
fi
