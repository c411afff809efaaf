#!/usr/bin/env bash
# The tests of this folder in a virtual machine with three memory nodes and persistent memory: make test-vm.
# Needs root and Debian, whose kernel and QEMU it takes; says loudly where these cannot be had, and ends with 0.
#
#   run.sh [PYTEST ARGUMENTS]     BUILT=FOLDER keeps the guest's kernel, KEEP=1 what the guest left; SLOW=1 adds figure 10
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
limit_s=${AUTOTM_VM_SECONDS:-1500}

skip() {
    echo "!!! SKIPPED: $1; nothing was tested on two real kinds of memory"
    exit 0
}

[ "$(uname -m)" = x86_64 ] || skip "the guest is an x86-64 machine"
[ "$(id -u)" -eq 0 ] || skip "files are shared with a guest as root only"
commands=(qemu-system-x86_64 busybox ndctl daxctl mkfs.ext4 modprobe cpio numactl strip)
if [ "$(command -v "${commands[@]}" | wc -l)" -lt ${#commands[@]} ]; then
    command -v apt-get >/dev/null || skip "QEMU is not installed, and there is no apt-get to install it"
    export DEBIAN_FRONTEND=noninteractive
    flock "${TMPDIR:-/tmp}/autotm.apt.lock" sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends \
        qemu-system-x86 busybox-static ndctl daxctl e2fsprogs kmod cpio numactl libnuma1 binutils' >/dev/null 2>&1 \
        || skip "QEMU cannot be installed"
fi

out=$(mktemp -d "${TMPDIR:-/tmp}/autotm-vm.XXXXXX")
cleanup() { if [ -n "${KEEP:-}" ]; then echo "guest's files kept: $out"; else rm -rf "$out"; fi; }
trap cleanup EXIT
built=${BUILT:-$out/built}
begun=$SECONDS
PYTHONPATH=$here/../helpers "${PYTHON:-python3}" "$here/guest_kernels.py" "$out/kernels"
"$here/build.sh" "$built" || skip "Debian's kernel cannot be had"

# boot NAME TESTS: its status is that of the tests; all of them where TESTS is empty.
boot() {
    local status=0
    printf 'here=%q\npython=%q\nslow=%q\nboot=%q\ntests=%q\n' "$here" "${PYTHON:-python3}" "${SLOW:-}" "$@" >"$out/asked"
    "$here/boot.sh" "$built" "$here/guest.sh" "$out" $((limit_s - (SECONDS - begun))) || status=$?
    cat "$out/guest.log"
    if [ $status -eq 125 ]; then
        echo "The guest ended without a result, or took longer than the $limit_s s for all; the end of what it wrote:"
        tail -n 20 "$out"/*.log
    fi
    return $status
}
boot first "$*"
boot second ""
