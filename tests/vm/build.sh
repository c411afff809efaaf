#!/usr/bin/env bash
# The guest's kernel and first file system: build.sh FOLDER. Debian's kernel, unpacked and not installed, with the modules
# that nodes, DAX and 9p take, and a busybox that mounts this computer's files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && cd "$1"

if [ ! -e vmlinuz ]; then
    package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ {print $2; exit}')
    apt-get download -qq "$package" >/dev/null 2>&1
    dpkg -x "$package"_*.deb kernel
    rm "$package"_*.deb
    mv kernel/boot/vmlinuz-* vmlinuz
fi
version=$(ls kernel/lib/modules)
[ -s "kernel/lib/modules/$version/modules.dep" ] || depmod -b kernel "$version"

first=$(mktemp -d)
trap 'rm -rf "$first"' EXIT
mkdir -p "$first"/{bin,modules,proc,sys,dev,host,overlay}
cp /bin/busybox "$first/bin/"
for name in sh mount insmod mkdir cat echo poweroff chroot; do ln -s busybox "$first/bin/$name"; done
for module in virtio_pci 9pnet_virtio 9p overlay crc32c_generic ext4 xfs nfit nd_pmem dax_pmem device_dax kmem; do
    # -C: a line that ndctl puts into /etc/modprobe.d hides what its modules need.
    modprobe -C /dev/null -d kernel -S "$version" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$first/modules/"
    strip -g "$first/modules/${file##*/}"
    echo "${file##*/}" >>"$first/modules/order"
done
install -m 755 "$here/init" "$first/init"
(cd "$first" && find . | cpio -o -H newc --quiet | gzip -1) >initramfs.gz
