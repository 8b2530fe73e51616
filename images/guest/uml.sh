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
	lacks "the package archive had none when the image was built"
known=yes
echo "$tried" | sed '/^$/d' | sha256sum --check || known=no
for package in *.deb; do
	dpkg-deb --extract "$package" .
done
version=$(ls usr/lib/uml/modules)

# A node needs iptables, for which 7.2um1 lacks the tables of IPv4 in both of
# their forms.
if ! zgrep -q -E '^CONFIG_(NF_TABLES_IPV4|IP_NF_IPTABLES_LEGACY)=' usr/share/doc/user-mode-linux/config.gz; then
	sh -e /kind/nftables.sh "$version" "$known" $unstable || lacks "iptables cannot work with its kernel $version"
fi

# Of the modules, those of virtual devices and of the network.
cd "usr/lib/uml/modules/$version/kernel"
find drivers -name '*.ko*' |
	grep -v -E '^drivers/((block|char|md|virtio)/|net/([^/]*$|(bonding|ipvlan|team|vxlan|wireguard)/))' |
	xargs rm -f
find fs -name '*.ko*' | grep -v -E '^fs/(fuse|overlayfs)/' | xargs rm -f
mkdir -p "$work/initramfs/modules" /lib/modules
cp fs/overlayfs/overlay.ko "$work/initramfs/modules/"
echo overlay.ko >"$work/initramfs/modules/order"
find . -name '*.ko' -print0 | xargs -0 xz -0 --check=crc32
find . -type d -empty -delete
mv "$work/usr/lib/uml/modules/$version" /lib/modules/
depmod "$version"

# The kernel is a program, and needs a newer C library than the image has: both
# paths of that in it are replaced by others of the same length.
cd "$work/usr/lib/x86_64-linux-gnu"
cp --dereference libc.so.6 libgcc_s.so.1 /opt/uml/
cp --dereference ld-linux-x86-64.so.2 /opt/uml/ld-linux-x86-64.so
mv "$work/initramfs" /opt/uml/initramfs.d
LC_ALL=C sed 's,/lib64/ld-linux-x86-64.so.2,/opt/uml/ld-linux-x86-64.so,; s,/lib64:/lib,/opt/uml///,' \
	"$work/usr/bin/linux.uml" >/opt/uml/linux
chmod 755 /opt/uml/linux
/opt/uml/linux --version
