# What the guest runs; $here, $python, $tests, $slow and $boot come from /mnt/out/asked. The first boot runs the tests and
# ends in the middle of a run; the second sees what is left of it.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 TMPDIR=/run
. /mnt/out/asked
said() { echo "guest: $* $(cut -d' ' -f1 /proc/uptime) s after it started"; }
. "$here/memories.sh"
said "$(uname -r), memories ready"
cd "${here%/tests/vm}" || exit 7
if [ "$boot" = second ]; then
    "$python" "$here/power_cut.py" after "$AUTOTM_VM_DAX"
    exit
fi
export PYTHONPATH=$here/warm:$here/../helpers:$PWD/src AUTOTM_VM=1 AUTOTM_VM_KERNELS=/mnt/out/kernels
# Imports take most of the time here: no plugins but one, and not what all tests share (tests/conftest.py).
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 TVM_THREAD_POOL_SPIN_COUNT=100
tested() {
    "$python" -u -m pytest -p pytest_timeout --confcutdir="$here" -rs --durations=10 -p no:cacheprovider \
        --basetemp=/run/tests "$@" && said "passed"
}

tested ${tests:-"$here" --ignore="$here/test_figure_10.py"} -m "not slow" || exit 1
if [ -n "$slow" ]; then
    # Jobs take TVM, and half of all packages: imported once, and each job is a fork.
    "$python" "$here/warm/server.py" /run/warm &
    server=$!
    while [ ! -S /run/warm ]; do
        kill -0 $server || exit 6
        sleep 0.5
    done
    said "Python has imported all"
    AUTOTM_VM_WARM=/run/warm tested "$here" -m slow || exit 1
fi
"$python" "$here/power_cut.py" before "$AUTOTM_VM_DAX"
