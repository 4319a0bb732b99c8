#!/bin/sh
# Runs the tests of a build as on other machines, once under each condition:
#
#   isa_...        oneDNN and the other kernels limited to SSE4.1, AVX2, AVX-512, AVX-512 with bf16
#                  (ONEDNN_MAX_CPU_ISA)
#   threads_...    1, 2, 3 and 7 OpenMP threads
#   one_processor  only the first processor
#   load           a loop that computes on every processor at the same time
#   memory_6GiB    a memory cgroup of 6 GiB (version 1, or version 2 through systemd)
#   slow_disk      every write to a file takes 2 ms longer and every fsync 50 ms (tests/support/slow_disk.c)
#
# usage: tools/dev/conditions.sh [--only CONDITION,...] [--tests PATTERN] BUILD
# BUILD is a folder that `tools/test.sh full` made, or a similar one, with the tests built. --tests runs only
# the tests whose names match. Prints TAP, a case for each condition, and at the end a table. Prints each
# failure and its reason on standard error; the logs are in BUILD/meson-logs. Exit status 1 if anything
# failed, 2 for a wrong command line.
set -u
usage() { echo "tools/dev/conditions.sh: $1 (usage: tools/dev/conditions.sh [--only CONDITION,...] [--tests PATTERN] BUILD)" >&2; exit 2; }

known="isa_SSE41 isa_AVX2 isa_AVX512_CORE isa_AVX512_CORE_BF16 threads_1 threads_2 threads_3 threads_7 one_processor load memory_6GiB
    slow_disk"
wanted=$known pattern=.
[ "${1:-}" != --help ] || { sed -n '2,/^set /{ /^#/s/^# \{0,1\}//p; }' "$0"; exit 0; }
while [ $# -gt 1 ]; do
    case $1 in
    --only) wanted=$(echo "$2" | tr , ' ') ;;
    --tests) pattern=$2 ;;
    *) usage "what is '$1'?" ;;
    esac
    shift 2
done
# shellcheck disable=SC2086 # words are meant to split
for condition in $wanted; do
    printf '%s\n' $known | grep -qxF "$condition" || usage "no condition $condition"
done
[ -f "${1:-}/build.ninja" ] || usage "'${1:-}' is no build folder"
build=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit 1
logs=$build/meson-logs
names=$(meson test -C "$build" --list --no-rebuild 2>/dev/null | sed 's/.* \/ //; s/^tidepool://' | grep -E "$pattern" | awk '!seen[$0]++')
[ -n "$names" ] || usage "no test is named like $pattern"
said=$(ninja -C "$build" tests/slow_disk.so) || { echo "$said" >&2; exit 1; }
processors=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
CMOCKA_MESSAGE_OUTPUT=TAP OMP_WAIT_POLICY=passive # as in tools/test.sh
export CMOCKA_MESSAGE_OUTPUT OMP_WAIT_POLICY

# ---- the conditions: each function runs "$@" under one ----

lacks() { # FLAG...: the first instruction set that the processor lacks, as a reason to skip
    for flag in "$@"; do
        grep -qE "^flags.* $flag( |\$)" /proc/cpuinfo || { echo "no $flag here"; return; }
    done
}

beside_load() {
    loops=""
    for _ in $(seq "$processors"); do
        sh -c 'while :; do :; done' &
        loops="$loops $!"
    done
    # shellcheck disable=SC2064,SC2086 # $loops as it is now; words are meant to split
    trap "kill $loops" EXIT
    "$@"
    status=$?
    # shellcheck disable=SC2086
    kill $loops
    trap - EXIT
    return $status
}

memory_bytes=$((6 << 30))
# The path of this process's memory cgroup in version 1, in which a child group can be made; empty in version
# 2, where a group with processes can have no child groups.
memory_group() { sed -n 's|^[0-9]*:memory:|/sys/fs/cgroup/memory|p' /proc/self/cgroup; }

in_memory_group() {
    if [ -z "$(memory_group)" ]; then
        systemd-run --quiet --scope --property "MemoryMax=$memory_bytes" "$@"
        return
    fi
    group=$(memory_group)/tidepool-conditions-$$
    mkdir "$group" && echo "$memory_bytes" >"$group/memory.limit_in_bytes" || return 1
    # shellcheck disable=SC2016 # the inner shell expands these
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
    status=$?
    rmdir "$group"
    return $status
}

no_memory_group() { # why no memory cgroup can be made; nothing if one can
    if [ -n "$(memory_group)" ]; then
        [ -w "$(memory_group)/cgroup.procs" ] || echo "no right to make a cgroup in $(memory_group)"
    else
        systemd-run --quiet --scope --property "MemoryMax=$memory_bytes" true 2>&1 | head -n 1
    fi
}

skip_reason() {
    case $1 in
    isa_AVX2) lacks avx2 fma f16c ;;
    isa_AVX512_CORE) lacks avx512f avx512bw avx512dq avx512vl ;;
    isa_AVX512_CORE_BF16) lacks avx512_bf16 ;;
    memory_6GiB) no_memory_group ;;
    esac
}

under() { # CONDITION COMMAND...
    condition=$1; shift
    case $condition in
    isa_*) ONEDNN_MAX_CPU_ISA=${condition#isa_} "$@" ;;
    threads_*) OMP_NUM_THREADS=${condition#threads_} "$@" ;;
    one_processor) taskset -c "$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" "$@" ;;
    load) beside_load "$@" ;;
    memory_6GiB) in_memory_group "$@" ;;
    slow_disk) LD_PRELOAD=$build/tests/slow_disk.so "$@" ;;
    esac
}

# ---- the runs ----

number=0 failures=0
table="| condition | passed | failed | skipped | seconds |
|---|---:|---:|---:|---:|"
for condition in $wanted; do
    number=$((number + 1))
    reason=$(skip_reason "$condition")
    if [ -n "$reason" ]; then
        echo "ok $number - $condition # SKIP $reason"
        table="$table
| $condition ($reason) | 0 | 0 | 1 | 0 |"
        continue
    fi
    began=$(date +%s)
    rm -f "$logs/$condition.json"
    # The time limits, which are for tests that hang, are 20 times as long: these conditions make tests slow.
    # shellcheck disable=SC2086 # words are meant to split
    under "$condition" meson test -C "$build" --no-rebuild -t 20 --num-processes $((2 * processors)) --logbase "$condition" $names \
        >"$logs/$condition.out" 2>&1
    python3 tools/dev/test_count.py "$condition:$?=$logs/$condition.json" >"$logs/$condition.sum"
    status=$?
    [ $status -eq 0 ] || { failures=1; grep -v ': SKIPPED: ' "$logs/$condition.sum" >&2; }
    sum=$(tail -n 1 "$logs/$condition.sum")
    seconds=$(($(date +%s) - began))
    echo "$([ $status -eq 0 ] || printf 'not ')ok $number - $condition: $sum, $seconds s"
    table="$table
$(echo "$sum" | awk -v name="$condition" -v seconds=$seconds '{ printf "| %s | %d | %d | %d | %d |", name, $1, $3, $5, seconds }')"
done
echo "1..$number"
echo "$table"
exit $failures
