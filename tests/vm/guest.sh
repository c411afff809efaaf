# What the guest runs; $here, $python, $tests and $boot come from /mnt/out/asked. The first boot runs the tests, in forks of a
# Python that has imported all, and ends in the middle of a run; the second sees what is left of it.
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
export PYTHONPATH=$here/warm:$PWD/src AUTOTM_VM=1
tested() { "$python" -m pytest -rs --durations=5 -p no:cacheprovider --basetemp=/run/tests "$@" && said "passed"; }

# These take TVM, and processes that take half of all packages: imported once, on the other core, while the rest is tested.
heavy=("$here/test_steps.py" "$here/test_rivals.py" "$here/test_study.py")
"$python" "$here/warm/server.py" /run/warm &
server=$! status=0
[ -n "$tests" ] || tested "$here" "${heavy[@]/#/--ignore=}" || status=1
while [ ! -S /run/warm ]; do
    kill -0 $server || exit 6
    sleep 0.5
done
said "Python has imported all"
export AUTOTM_VM_WARM=/run/warm
tested ${tests:-"${heavy[@]}"} && [ $status -eq 0 ] || exit 1
"$python" "$here/power_cut.py" before "$AUTOTM_VM_DAX"
