# Puts the User Mode Linux that is unpacked in the current folder into the image:
# umlinstall.sh VERSION KNOWN APT-OPTIONS. KNOWN is yes where the kernel is, by
# content, one that was tried.
version=$1
work=$PWD

# A node needs iptables, for which 7.2um1 lacks the tables of IPv4 in both of
# their forms.
if ! zgrep -q -E '^CONFIG_(NF_TABLES_IPV4|IP_NF_IPTABLES_LEGACY)=' usr/share/doc/user-mode-linux/config.gz; then
	sh -e /kind/nftables.sh "$@"
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
/opt/uml/linux --version # fails unless both were replaced
