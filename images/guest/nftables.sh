# Builds nf_tables with IPv4 for the User Mode Linux that is unpacked in the
# current folder, and puts them among its modules: nftables.sh VERSION KNOWN
# APT-OPTIONS. KNOWN is yes where the kernel is, by content, the one that was
# tried. Status 3: the archive does not have what it takes.
#
# A kernel's modules come from its own sources, but the archive has those of a
# later release of the series, which may lay out data otherwise. They are taken
# only as the pair that was tried: its nf_tables have run a node under
# kube-proxy's load.
version=$1
known=$2
shift 2
tried=30a8c5fc63f9028a62e6d7b3f7f43bee67425dbce2a05fceba83f9b87c92083d # linux-source-7.2_7.2.13-1_all.deb

source=linux-source-${version%.*}
apt-get "$@" download "$source" || exit 3
package=$(ls "$source"_*.deb)
case $package in
"${source}_$version-"*) ;;
*)
	if [ "$known" != yes ] || ! echo "$tried  $package" | sha256sum --check; then
		echo "$package is not of kernel $version, nor was it tried with it" >&2
		exit 3
	fi
	;;
esac
dpkg-deb --fsys-tarfile "$package" | tar -xO "./usr/src/$source.tar.xz" |
	tar -xJ --exclude='*/Documentation/*/*' --exclude='*/drivers/*.[ch]' --exclude='*/sound/*.[ch]'

cd "$source"
sed -i "s/^SUBLEVEL = .*/SUBLEVEL = ${version##*.}/; s/^EXTRAVERSION =.*/EXTRAVERSION =/" Makefile
zcat ../usr/share/doc/user-mode-linux/config.gz |
	grep -v -E 'CONFIG_(NF_TABLES_IPV[46]|NFT_NAT|DEBUG_INFO[A-Z_0-9]*)[= ]' >.config
printf 'CONFIG_%s\n' NF_TABLES_IPV4=y NF_TABLES_IPV6=y NFT_NAT=m DEBUG_INFO_NONE=y >>.config
make -s ARCH=um olddefconfig
make -s ARCH=um -j"$(nproc)" modules_prepare
modules="net/netfilter/nf_tables.ko net/netfilter/nft_chain_nat.ko net/netfilter/nft_nat.ko"
# It is not known here what the kernel and its other modules provide.
make -s ARCH=um -j"$(nproc)" KBUILD_MODPOST_WARN=1 $modules >log 2>&1 || {
	cat log >&2
	exit 1
}
cp $modules "../usr/lib/uml/modules/$version/kernel/net/netfilter/"
cd ..
rm -rf "$source" "$package"
