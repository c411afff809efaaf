#!/usr/bin/env bash
# Boots the guest for one script: boot.sh BUILT SCRIPT OUT SECONDS. Ends with the script's status, or 125 where it gave none.
#
# BUILT is build.sh's folder, SCRIPT a path on this computer, OUT a folder where the guest leaves guest.log and status, and
# where pmem.img, the memory behind DAX, outlives it. The guest has no network and changes nothing else here.
#
#   node 0: 2 cores, 2 GiB         node 1: 512 MiB without cores, 300 ns and 20 GB/s says its HMAT: a CXL card
#   node 2: 512 MiB of persistent memory that becomes system memory (kmem), in a lower tier of Linux's
#   pmem.img: 512 MiB of persistent memory for a file system; and 128 MiB for a DAX device
#
# TCG, QEMU's own processor, is used everywhere: what it computes does not depend on the computer. Paging of five levels
# and checks of the kernel against itself only cost time. On a loaded computer the timer ticks too late for the kernel's check
# of it, which ends in a panic: no_timer_check. The self-tests of its cryptography once hung before anything else began.
# QEMU 7.2 computes AVX2 wrongly (seen: 44 of 100 calls of NumPy's `unique` of 2 to 80 integers): the guest has no AVX.
set -euo pipefail
built=$1 script=$2 out=$(readlink -f "$3") seconds=$4
rm -f "$out/status" "$out/guest.log"
[ -e "$out/pmem.img" ] || truncate -s 514M "$out/pmem.img" # of which 2 MiB are labels

latency() { echo "hmat-lb,initiator=0,target=$1,hierarchy=memory,data-type=access-latency,latency=$2"; }
bandwidth() { echo "hmat-lb,initiator=0,target=$1,hierarchy=memory,data-type=access-bandwidth,bandwidth=$2"; }

timeout -k 5 "$seconds" qemu-system-x86_64 -accel tcg,thread=multi,tb-size=1024 \
    -cpu max,avx=off,avx2=off,la57=off,pku=off,smap=off,smep=off -smp 2 -machine q35,nvdimm=on,hmat=on -m 2560M,slots=6,maxmem=8G \
    -object memory-backend-ram,id=m0,size=2G -object memory-backend-ram,id=m1,size=512M \
    -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,memdev=m1,initiator=0 -numa node,nodeid=2,initiator=0 \
    -numa dist,src=0,dst=1,val=28 -numa dist,src=0,dst=2,val=40 -numa dist,src=1,dst=2,val=40 \
    -numa "$(latency 0 80)" -numa "$(bandwidth 0 100G)" -numa "$(latency 1 300)" -numa "$(bandwidth 1 20G)" \
    -object memory-backend-file,id=p0,size=514M,mem-path="$out/pmem.img",share=on \
    -device nvdimm,memdev=p0,label-size=2M,node=0 \
    -object memory-backend-ram,id=p1,size=130M -device nvdimm,memdev=p1,label-size=2M,node=1 \
    -object memory-backend-ram,id=p2,size=514M -device nvdimm,memdev=p2,label-size=2M,node=2 \
    -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
    -virtfs local,path="$out",mount_tag=out,security_model=none \
    -kernel "$built/vmlinuz" -initrd "$built/initramfs.gz" \
    -append "console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check cryptomgr.notests mitigations=off audit=0 guest=$script " \
    -display none -monitor none -net none -no-reboot -serial "file:$out/console.log" || true
exit "$(cat "$out/status" 2>/dev/null || echo 125)"
