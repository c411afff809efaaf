#!/bin/bash
# Put all Optane modules of a socket into App Direct mode (1LM) or memory mode (2LM) from the next boot on.
#
#   scripts/optane_mode.sh 1lm|2lm SOCKET [--execute]
#
# Without --execute the script only prints its commands; with it they run, as root. The BIOS must be set to the same mode.
# Empty namespaces of the socket are destroyed. If one is mounted, is part of another device, carries a signature (of a file
# system, a partition table, ...) or has no block device to look at, the script fails before it changes anything.
#
# Never run on Optane modules; tests/test_scripts.py runs it with stand-ins for the tools.
set -euo pipefail

fail() { echo "optane_mode.sh: $*" >&2; exit 1; }

[[ $# -eq 2 || ( $# -eq 3 && $3 == --execute ) ]] || fail "usage: optane_mode.sh 1lm|2lm SOCKET [--execute]"
mode=$1 socket=$2 execute=${3-}
case $mode in
    1lm) goal=(MemoryMode=0 PersistentMemoryType=AppDirect) next="then run scripts/optane_filesystem.sh" ;;
    2lm) goal=(MemoryMode=100) next="set memory_mode: true in the machine file" ;;
    *) fail "the mode is '$mode'; give 1lm or 2lm" ;;
esac
for tool in ipmctl ndctl lsblk blkid lscpu python3; do
    command -v "$tool" > /dev/null || fail "$tool is not installed: apt-get install ipmctl ndctl util-linux python3"
done
[[ -z $execute || $(id -u) -eq 0 ]] || fail "--execute needs root: run it with sudo"

sockets=$(lscpu --parse=SOCKET,NODE | grep -v '^#' | sort -u)
[[ $'\n'$sockets == *$'\n'"$socket,"* ]] ||
    fail "there is no socket '$socket'; sockets and their memory nodes: ${sockets//$'\n'/ }"
listed=$(ndctl list --regions --namespaces --idle) || fail "ndctl list failed; nothing was changed"
# One line for each namespace of the socket: its name and its block device, if it has one. A region of a node without cores
# may belong to any socket. A namespace of size 0 is the kernel's template for new ones.
namespaces=$(python3 -c '
import json, sys
listed, sockets, socket = sys.argv[1:]
found = json.loads(listed or "[]")
regions = found.get("regions", [found]) if isinstance(found, dict) else found
socket_of = {node: each for each, node in (line.split(",") for line in sockets.split())}
for region in regions:
    if socket_of.get(str(region.get("numa_node")), socket) == socket:
        for namespace in region.get("namespaces", []):
            if namespace.get("size") != 0:
                print(namespace["dev"], namespace.get("blockdev", ""))
' "$listed" "$sockets" "$socket") || fail "cannot read what ndctl list printed; nothing was changed"

empty=()
while read -r namespace device; do
    [[ -n $namespace ]] || continue
    [[ -n $device ]] || fail "$namespace has no block device to search for data; if it is empty, destroy it by ndctl"
    # The first line is the device; further ones are partitions and devices made of it. The second column is a mount point.
    used=$(lsblk --noheadings --raw --output NAME,MOUNTPOINT "/dev/$device") || fail "lsblk failed for /dev/$device"
    [[ $used =~ ^"$device"\ *$ ]] || fail "/dev/$device is in use: ${used//$'\n'/, }; nothing was changed"
    # blkid ends with 2 where it finds no signature, but also, without a message, where it cannot read the device.
    head --bytes 4096 "/dev/$device" > /dev/null || fail "cannot read /dev/$device; run this with sudo"
    status=0
    signature=$(blkid -p -o value "/dev/$device" 2>&1) || status=$?
    [[ $status -eq 2 && -z $signature ]] ||
        fail "/dev/$device holds data: ${signature//$'\n'/, }; save it, run wipefs on the device, and try again"
    empty+=("$namespace")
done <<< "$namespaces"

run() {
    echo "$*"
    [[ -z $execute ]] || "$@"
}
for namespace in "${empty[@]}"; do run ndctl destroy-namespace --force "$namespace"; done
run ipmctl create -f -goal -socket "$socket" "${goal[@]}"
[[ -n $execute ]] || echo "# nothing was changed; --execute runs these commands" >&2
echo "# after that: reboot, $next" >&2
