#!/bin/sh
# Builds and tests everything, warnings being errors, on a fresh Debian 12 or a machine like it: installs what it needs, then
#
#   full      the whole suite, hazard checker on; the program; the example consumer against the installed library; with a CUDA
#             toolkit also the CUDA module, for one GPU (nothing of it runs without: those tests say so). Beside it, once more as on
#             another machine: what names bytes, slots or budgets, with kernels held to SSE4.1, on one processor
#   sanitize  the tests in C under AddressSanitizer and UBSan
#   threads   the concurrency tests under ThreadSanitizer (one OpenMP thread)
#   bare      without CUDA, oneDNN, hwloc, jemalloc and OpenMP: builds, and one test of each part passes
#
# usage: tools/test.sh [--list] [CONFIGURATION ...]      build folders: build-test/ (TIDE_TEST_BUILD to move them)
# --list names the configurations that would run, a line each, and does no more. CC=clang builds with clang.
# The last line counts what really ran: "N passed, N failed[, N skipped]". Exit status 0 only if nothing failed, 2 for usage.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/dev/packages.sh
build=${TIDE_TEST_BUILD:-$PWD/build-test}
logs=$build/logs # of all that ran, for test_count.py
started=$(date +%s)
# Twice as many programs at once as there are processors: many wait most of their time, for teams and streams and sleeping parts (a
# third of the whole suite's time).
at_once=$((2 * $(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)))
CMOCKA_MESSAGE_OUTPUT=TAP; export CMOCKA_MESSAGE_OUTPUT
# Several programs share the processors: a team that spins at its end takes them from another (a tenth to a fifth of the time).
OMP_WAIT_POLICY=passive; export OMP_WAIT_POLICY

say() { echo "== $(($(date +%s) - started)) s: $*"; }

list=""
[ "${1:-}" != --list ] || { list=yes; shift; }
wanted=${*:-full sanitize threads bare}
for configuration in $wanted; do
    case $configuration in
    full | sanitize | threads | bare) [ -z "$list" ] || echo "$configuration" ;;
    *) echo "tools/test.sh: no configuration $configuration (full, sanitize, threads, bare)" >&2; exit 2 ;;
    esac
done
[ -z "$list" ] || exit 0

fail_count() { # LABEL: what could not even run counts as one failure
    echo "$1:1=$build/did-not-run" >>"$logs"
}

configure() { # LABEL OPTIONS...
    label=$1; shift
    say "$label: building"
    tide_build_folder "$build/$label" || return 1
    if [ -f "$build/$label/build.ninja" ]; then verb=configure; else verb=setup; fi
    # No debugger reads these builds; a sanitizer's report names lines.
    meson $verb "$build/$label" -Dwerror=true -Dtests=enabled -Ddebug=false "$@" >"$build/$label.log" 2>&1 || { tail -n 20 "$build/$label.log"; return 1; }
}

compile() { # LABEL [TARGET ...]: ninja speaks only when it fails
    label=$1; shift
    rm -f "$build/$label.built"
    ninja --quiet -C "$build/$label" "$@" >"$build/$label.log" 2>&1 || { tail -n 40 "$build/$label.log"; return 1; }
    : >"$build/$label.built"
}

programs_of() { # LABEL PATTERN: the programs of the tests that match and what those load, for ninja
    meson introspect --tests --targets "$build/$1" | python3 -c '
import json, os, re, sys
told = json.load(sys.stdin)
files = {target["id"]: target["filename"][0] for target in told["targets"]}
for test in told["tests"]:
    if re.search(sys.argv[2], test["name"]):
        for path in [test["cmd"][0]] + [files[name] for name in test["depends"] if name in files]:
            if path.startswith(sys.argv[1] + os.sep):
                print(os.path.relpath(path, sys.argv[1]))' "$(realpath "$build/$1")" "$2" | sort -u
}

# In meson's order, by priority: it runs what it is given in the order in which it is given.
tests_named() { # LABEL PATTERN: the names of tests that match
    meson test -C "$build/$1" --list --no-rebuild 2>/dev/null | sed 's/.* [-/] //; s/^tidepool://' | grep -E "$2" | awk '!seen[$0]++'
}

# meson's own status goes to the count too: a harness that dies must not look like tests that passed, nor may the log of an earlier
# run. What $under says comes before the command.
under=""
check() { # LABEL FOLDER PATTERN TIMEOUT-FACTOR
    label=$1 folder=$2
    log=$build/$folder/meson-logs/$label.json
    rm -f "$log"
    names=$(tests_named "$folder" "$3")
    if [ -z "$names" ]; then # meson would take no name for every test
        say "$label: no test is named like $3"
        fail_count "$label"
        return
    fi
    say "$label: $(echo "$names" | wc -l) test programs"
    # shellcheck disable=SC2086 # words are meant to split
    $under meson test -C "$build/$folder" --no-rebuild -t "$4" --num-processes "$at_once" --logbase "$label" $names >"$build/$label.test.log" 2>&1
    echo "$label:$?=$log" >>"$logs"
}

# What a sanitizer watches: the tests in C. Not the program, which is tested as it is used; not pool_sites, which takes
# orderings away on purpose, so that its races are real. The GPU's kernels on the CPU, whose shared memory and order are watched in
# every configuration, and what is long, trainer_bits of every family, golden and frozen runs and kernels at large sizes, are left
# to tools/campaign.sh.
more_units='program_options|program_output|program_report'
units() { tests_named "$1" . | grep -vE '^(program_.*|bench_gpu_fake|pool_sites|kernels_(matmul_long|attention_long|large)|cuda_statuses|kernel_counts|check_words|.*_?cuda_on_cpu|cuda_tile_on_cpu|cuda_matmul(_choice)?|cuda_device_kernels|trainer_bits(_[a-z0-9]+)?|trainer_(golden|vocabulary|frozen|faults_qwen3|frozen_llama|fp16_llama|memory_llama|allocations_llama))$|^$' | tr '\n' '|' | sed 's/|$//'; }

# PyPI's perfetto reads what `tidepool trace perfetto` writes; where it can't be had that test reads with a parser of its own alone.
# cuobjdump and nvdisasm, which not every toolkit has, read the kernels' machine code for kernel_counts.
pypi_install() {
    TIDE_PYPI=$build/pypi; export TIDE_PYPI
    pypi_package perfetto perfetto==0.59.1 protobuf==7.36.2
    if command -v nvcc /usr/local/cuda/bin/nvcc >/dev/null && ! command -v cuobjdump nvdisasm >/dev/null; then
        pypi_package nvidia/cu13/bin/cuobjdump nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37
    fi
}
pypi_package() { # WHAT-IT-BRINGS PACKAGE...
    [ ! -e "$TIDE_PYPI/$1" ] || return 0
    shift
    say "PyPI: $* for one test, into $TIDE_PYPI"
    timeout 120 python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --target "$TIDE_PYPI" \
        "$@" >"$build/pypi.log" 2>&1 || say "PyPI: not to be had: $(tail -n 1 "$build/pypi.log")"
}

# Kernels with other workspaces, threads that wait for one another: what a budget holds, and what is said of it, must not change.
# tools/dev/conditions.sh has more such machines.
narrow='^(gpt2_vocabulary|pool_(extremes|machine)|trainer(_allocations|_gpu|_memory)?|offload_memory|free_memory|cgroup|program_(input|files|preset|report))$'
run_narrow() {
    under="taskset -c $(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" at_once=2
    ONEDNN_MAX_CPU_ISA=SSE41 check narrow full "$narrow" 6
}

run_full() {
    pypi_install
    configure full -Dgpu_architectures=90 && compile full || { fail_count full; return; }
    run_narrow &
    check full full . 3
    wait
}

run_sanitize() {
    # jemalloc would take malloc away from the sanitizer.
    configure sanitize -Db_sanitize=address,undefined -Db_lundef=false -Djemalloc=disabled \
        -Doptimization=1 -Dc_args=-g1 -Dcpp_args=-g1 '-Dgpu_architectures=[]' || { fail_count sanitize; return; }
    pattern="^($(units sanitize)|$more_units)\$"
    compile sanitize $(programs_of sanitize "$pattern") || { fail_count sanitize; return; }
    LSAN_OPTIONS="suppressions=$PWD/tools/dev/lsan.supp print_suppressions=0" \
        ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
        check sanitize sanitize "$pattern" 6
}

# Of what tools/campaign.sh has whole, pool_random is enough of a slice.
run_threads() {
    pattern='^(offload_[a-z]+|offload_cuda_host|cuda_device|cuda_clock|cuda_guest|free_memory|pool|pool_calls|pool_gradients|pool_lock|pool_random|pool_stall|trace|trainer_weights)$'
    configure threads -Db_sanitize=thread -Db_lundef=false -Djemalloc=disabled -Doptimization=1 -Dc_args=-g1 -Dcpp_args=-g1 \
        '-Dgpu_architectures=[]' && compile threads $(programs_of threads "$pattern") || { fail_count threads; return; }
    OMP_NUM_THREADS=1 TSAN_OPTIONS="suppressions=$PWD/tools/dev/tsan.supp history_size=4 halt_on_error=0 exitcode=66" \
        check threads threads "$pattern" 10
}

run_bare() {
    pattern='^(kernels_pointwise|kernels_matmul|adam|hazard|offload_(host|null|memory)|layout|manager(_pieces)?|pool(_states)?|data|program_(options|output|report|preset))$'
    # The kernels, too, are compiled at 2 here.
    configure bare -Dc_args=-O2 -Dcuda=disabled -Donednn=disabled -Dhwloc=disabled -Djemalloc=disabled -Dopenmp=disabled \
        && compile bare tools/tidepool $(programs_of bare "$pattern") || { fail_count bare; return; }
    check bare bare "$pattern" 3
}

# shellcheck disable=SC2086 # words are meant to split
tide_packages_install $TIDE_BUILD_PACKAGES $TIDE_TEST_PACKAGES || exit 1
mkdir -p "$build"
: >"$logs"
for configuration in $wanted; do "run_$configuration"; done
say "done"
# shellcheck disable=SC2086 # words are meant to split
exec python3 tools/dev/test_count.py $(cat "$logs")
