#!/usr/bin/env bash
# The tests of this folder on a Slurm of two nodes that lasts as long as they do: make test-slurm.
# Needs root and, on Debian or Ubuntu, installs slurm-wlm and munge; says loudly where that cannot be, and ends with 0.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

skip() {
    echo "!!! SKIPPED: $1; nothing was sent to a Slurm"
    exit 0
}

[ "$(id -u)" -eq 0 ] || skip "a Slurm of one's own is started as root only"
[ ! -e /etc/slurm/slurm.conf ] || skip "this computer has a Slurm already (/etc/slurm/slurm.conf)"
if ! command -v slurmctld slurmd munged sbatch >/dev/null; then
    command -v apt-get >/dev/null || skip "no Slurm is installed, and there is no apt-get to install it"
    export DEBIAN_FRONTEND=noninteractive
    flock "${TMPDIR:-/tmp}/autotm.apt.lock" sh -c '
        apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge' >/dev/null 2>&1 \
        || skip "slurm-wlm and munge cannot be installed"
fi

state=$(mktemp -d "${TMPDIR:-/tmp}/autotm-slurm.XXXXXX")
down() {
    "$here/down.sh" "$state"
    if [ -n "${KEEP:-}" ]; then echo "state and logs kept: $state"; else rm -rf "$state"; fi
}
trap down EXIT
"$here/up.sh" "$state"
AUTOTM_TEST_SLURM=1 SLURM_CONF=$state/slurm.conf "${PYTHON:-python3}" -m pytest -q --basetemp="$state/tests" "$here" "$@"
