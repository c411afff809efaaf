#!/usr/bin/env bash
# down.sh FOLDER: ends what up.sh FOLDER started, by its pid files.
folder=$(readlink -f "${1:?the folder of up.sh}")
for file in "$folder"/run/{slurmd.n1,slurmd.n2,slurmctld,munged}.pid; do
    [ -s "$file" ] || continue
    pid=$(cat "$file")
    kill "$pid" 2>/dev/null
    for _ in $(seq 50); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null # a slurmd that never met its controller ignores SIGTERM
done
[ "$(readlink /etc/slurm/slurm.conf)" = "$folder/slurm.conf" ] && rm /etc/slurm/slurm.conf
true
