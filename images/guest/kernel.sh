# Puts the kernel of a Debian meta package into the image, with the modules
# that a node can use and an initramfs that reaches its root file system. It
# takes the package's files only: installing it would build an initramfs for
# machines of all kinds, and bring udev into the guest.
meta=$1
work=$(mktemp -d)
cd "$work"

# Newer kernels for a release come with its security updates.
sed 's,/debian \([a-z]*\) ,/debian-security \1-security ,' /etc/apt/sources.list >/etc/apt/sources.list.d/security.list
apt-get -q update
package=$(apt-cache depends "$meta" | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p')
if [ -z "$package" ]; then
	echo "the package archive has no kernel package $meta" >&2
	exit 1
fi
apt-get -q download "$package"
dpkg-deb --extract linux-image-*.deb .
rm -rf /etc/apt/sources.list.d/security.list /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
version=$(ls lib/modules)

# Of the drivers, those of virtual devices.
cd "lib/modules/$version/kernel"
find drivers sound -name '*.ko*' |
	grep -v -E '^drivers/((block|char|md|virtio)/|net/([^/]*$|(bonding|ipvlan|team|vxlan|wireguard)/))' |
	xargs rm -f
find . -type d -empty -delete
mkdir -p /lib/modules
mv "$work/lib/modules/$version" /lib/modules/
mv "$work/boot/vmlinuz-$version" "$work/boot/config-$version" /boot/
ln -s "vmlinuz-$version" /boot/vmlinuz
depmod "$version"

# The initramfs: our init, and the modules in an order in which they load.
mkdir -p "$work/initramfs/modules"
cd "$work/initramfs"
cp /usr/local/bin/guest init
for module in virtio_pci virtio_blk virtio_net virtio_console 9p 9pnet_virtio overlay ext4 crc32c_generic; do
	modprobe --show-depends --set-version "$version" "$module" >>"$work/insmods"
done
sed -n 's/^insmod \([^ ]*\).*/\1/p' "$work/insmods" | awk '!seen[$0]++' >"$work/files"
xargs -a "$work/files" cp -t modules
sed 's,.*/,,' "$work/files" >modules/order
find . | sort | cpio --quiet -o -H newc --reproducible >/boot/initramfs
rm -rf "$work"

# That of User Mode Linux, where the image has it: see uml.sh.
if [ -d /opt/uml/initramfs.d ]; then
	cd /opt/uml/initramfs.d
	cp /usr/local/bin/guest init
	find . | sort | cpio --quiet -o -H newc --reproducible >/opt/uml/initramfs
	cd /
	rm -rf /opt/uml/initramfs.d
fi

systemctl enable relapse-agent.service
# Of no use to a node, and a fifth of a translated guest's boot.
systemctl mask systemd-update-utmp.service systemd-update-utmp-runlevel.service systemd-sysusers.service \
	modprobe@configfs.service modprobe@dm_mod.service modprobe@drm.service modprobe@efi_pstore.service \
	modprobe@fuse.service modprobe@loop.service
# In a guest /sys is the guest's own: nothing to hide from pods.
jq 'del(.hooks)' /etc/containerd/cri-base.json >/etc/containerd/cri-base.json.new
mv /etc/containerd/cri-base.json.new /etc/containerd/cri-base.json
