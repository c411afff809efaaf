# Within the guest, sourced: persistent memory as a file system with DAX, as a DAX device, and as a memory node.
for region in /sys/bus/nd/devices/region*; do
    namespace=namespace${region##*/region}.0
    # The order of regions is not that of the devices; the node tells them apart.
    case $(cat "$region/target_node") in 0) mode=fsdax ;; *) mode=devdax ;; esac
    if [ "$(cat "/sys/bus/nd/devices/$namespace/mode")" = raw ]; then
        ndctl create-namespace -f -e "$namespace" --mode "$mode" --map mem >/dev/null || exit 3
    fi
done
for device in /sys/bus/dax/devices/*; do
    if [ "$(cat "$device/target_node")" = 2 ]; then
        daxctl reconfigure-device --mode=system-ram "${device##*/}" >/dev/null || exit 4
    else
        export AUTOTM_VM_DEVICE=/dev/${device##*/}
    fi
done
export AUTOTM_VM_DAX=/mnt/dax
disk=$(echo /dev/pmem*)
mkdir -p $AUTOTM_VM_DAX
mount -o dax=always "$disk" $AUTOTM_VM_DAX 2>/dev/null \
    || { mkfs.ext4 -q -F -b 4096 "$disk" && mount -o dax=always "$disk" $AUTOTM_VM_DAX; } || exit 5
