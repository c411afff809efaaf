#!/bin/bash
# Turn a region of Optane modules in App Direct mode into an ext4 file system with DAX, mounted on an empty folder.
#
#   scripts/optane_filesystem.sh REGION FOLDER [--execute]
#
# `ndctl list --regions` shows the regions, e.g. region1. Without --execute the script only prints its commands; with it they
# run, as root. It fails before it changes anything if the region has a namespace or something is on FOLDER. The machine file
# names FOLDER/public, where everybody may write. After a boot: mount -o dax /dev/pmemN FOLDER.
#
# Never run on Optane modules; tests/test_scripts.py runs it with stand-ins for the tools.
set -euo pipefail

fail() { echo "optane_filesystem.sh: $*" >&2; exit 1; }

[[ $# -eq 2 || ( $# -eq 3 && $3 == --execute ) ]] || fail "usage: optane_filesystem.sh REGION FOLDER [--execute]"
region=$1 folder=$2 execute=${3-}
[[ $folder == /* ]] || fail "the folder is '$folder'; give its whole path, from / on"
for tool in ndctl findmnt mkfs.ext4; do
    command -v "$tool" > /dev/null || fail "$tool is not installed: apt-get install ndctl util-linux e2fsprogs"
done
[[ -z $execute || $(id -u) -eq 0 ]] || fail "--execute needs root: run it with sudo"

# ndctl prints nothing about a region that does not exist.
[[ -n $(ndctl list --regions --region "$region") ]] || fail "there is no region '$region': ndctl list --regions"
listed=$(ndctl list --namespaces --idle --region "$region") || fail "ndctl list failed for $region; nothing was changed"
# A namespace of size 0 is the kernel's template for new ones.
[[ ! $listed =~ \"size\":\ *[1-9] ]] || fail "$region has a namespace, which may hold data: $listed"
! findmnt --mountpoint "$folder" > /dev/null || fail "something is mounted on $folder; take another folder"
[[ ! -e $folder || ( -d $folder && -z $(ls -A "$folder") ) ]] || fail "$folder is not an empty folder; take another one"

run() {
    echo "$*"
    [[ -z $execute ]] || "$@"
}
device=DEVICE
echo "ndctl create-namespace --region $region --mode fsdax"
if [[ -n $execute ]]; then
    made=$(ndctl create-namespace --region "$region" --mode fsdax)
    [[ $made =~ \"blockdev\":\ *\"([^\"]+)\" ]] || fail "ndctl made a namespace without a block device: $made"
    device=/dev/${BASH_REMATCH[1]}
fi
# Extents that begin at 2 MiB (512 blocks of 4 KiB) are mapped by huge pages.
run mkfs.ext4 -q -b 4096 -E stride=512 -L autotm-optane "$device"
run install -d "$folder"
run mount -o dax "$device" "$folder"
run install -d -m 1777 "$folder/public"
if [[ -z $execute ]]; then
    echo "# nothing was changed; --execute runs these commands" >&2
elif ! findmnt --noheadings --output OPTIONS --mountpoint "$folder" | grep -qE '(^|,)dax(=always)?(,|$)'; then
    fail "$folder is mounted without DAX; dmesg says why"
else
    echo "# the folder of slow memory for the machine file: $folder/public" >&2
fi
