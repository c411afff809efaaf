#!/usr/bin/env bash
# up.sh FOLDER: a Slurm of two nodes, n1 and n2, on 127.0.0.1; its files lie in FOLDER. As root; down.sh FOLDER ends it.
set -euo pipefail
folder=$(readlink -f "${1:?a folder for its files}")
host=$(hostname -s)
port=${SLURM_BASE_PORT:-17820}
mkdir -p "$folder"/{run,log,state,spool.n1,spool.n2}
chmod 755 "$folder" "$folder/run"

head -c 1024 /dev/urandom >"$folder/munge.key"
chmod 600 "$folder/munge.key"
/usr/sbin/munged --force --key-file="$folder/munge.key" --socket="$folder/run/munge.sock" \
    --pid-file="$folder/run/munged.pid" --log-file="$folder/log/munged.log" --seed-file="$folder/run/munge.seed"

# No cgroups, no database; a job's memory is polled every second, and too much of it ends the job.
cat >"$folder/slurm.conf" <<CONF
ClusterName=loopback
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=$port
AuthType=auth/munge
AuthInfo=socket=$folder/run/munge.sock
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd.%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
MpiDefault=none
PlugStackConfig=/dev/null
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$folder/log/jobs.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,bf_interval=1
ReturnToService=2
MinJobAge=3600
SlurmdTimeout=30
KillWait=5
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=2 RealMemory=8000 Feature=dram State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=2 RealMemory=8000 Feature=cxl Gres=gpu:1 State=UNKNOWN
PartitionName=small Nodes=n1 Default=YES MaxTime=60 State=UP
PartitionName=big Nodes=n1,n2 MaxTime=60 State=UP
CONF
# A GPU to be given to jobs; no device is behind it.
echo "NodeName=n2 Name=gpu File=/dev/null" >"$folder/gres.conf"
# srun within jobs finds it only here: the executor leaves it no SLURM_CONF.
mkdir -p /etc/slurm
ln -s "$folder/slurm.conf" /etc/slurm/slurm.conf

/usr/sbin/slurmctld -f "$folder/slurm.conf"
/usr/sbin/slurmd -f "$folder/slurm.conf" -N n1
/usr/sbin/slurmd -f "$folder/slurm.conf" -N n2
for _ in $(seq 100); do
    [ "$(timeout 5 sinfo -h -N -t idle -p big 2>/dev/null | wc -l)" -eq 2 ] && exit 0
    sleep 0.1
done
echo "the nodes did not come up; see $folder/log" >&2
exit 1
