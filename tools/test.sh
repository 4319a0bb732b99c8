#!/bin/sh
# Builds and tests everything, with warnings as errors, on Debian 12 or a similar system. Installs the
# packages that it needs, then builds and tests these configurations:
#
#   full      the whole suite, with the hazard checker; the program; the example consumer against the
#             installed library; with a CUDA toolkit also the CUDA module (without a GPU its kernels are not
#             optimised and its tests skip themselves). At the same time the tests that name bytes, slots or
#             budgets run a second time as on another machine: with kernels limited to SSE4.1, on one
#             processor
#   sanitize  the tests in C under AddressSanitizer and UBSan
#   threads   the concurrency tests under ThreadSanitizer (one OpenMP thread)
#   bare      a build without CUDA, oneDNN, hwloc, jemalloc, OpenMP and AVX, and one test of each part
#
# usage: tools/test.sh [--list] [CONFIGURATION ...]      build folders are in build-test/ (or TIDE_TEST_BUILD)
# --list only prints the configurations that would run. CC=clang builds with clang. The last line counts the
# test cases that ran: "N passed, N failed[, N skipped]". Exit status 0 only if nothing failed, 2 for a wrong
# command line.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/dev/packages.sh
build=${TIDE_TEST_BUILD:-$PWD/build-test}
logs=$build/logs # the list of all test logs, for test_count.py
started=$(date +%s)
# Run twice as many programs at once as there are processors, because many of them wait for threads most of
# their time: this saves a third of the suite's time.
at_once=$((2 * $(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)))
CMOCKA_MESSAGE_OUTPUT=TAP; export CMOCKA_MESSAGE_OUTPUT
# OpenMP threads that wait must sleep: if they spin, they take the processors from the other programs (a tenth
# to a fifth of the time).
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
wanted=$(printf '%s\n' $wanted | awk '!seen[$0]++' | tr '\n' ' ') # each once

fail_count() { # LABEL: count one failure for a configuration whose tests can't run
    echo "$1:1=$build/did-not-run" >>"$logs"
}

configure() { # LABEL OPTIONS...
    label=$1; shift
    say "$label: building"
    tide_build_folder "$build/$label" || return 1
    # Only --reconfigure knows options that are newer than the folder.
    if [ -f "$build/$label/build.ninja" ]; then verb="setup --reconfigure"; else verb=setup; fi
    # Without debug information builds are faster; the sanitizers' configurations add the line numbers for
    # reports. Test programs that compute little themselves are not optimised (tools/dev/check_builds.sh
    # compiles them as the rest), which saves half a minute of a processor's time in full and in sanitize.
    # shellcheck disable=SC2086 # words are meant to split
    $gently meson $verb "$build/$label" -Dwerror=true -Dtests=enabled -Dtests_optimization=0 -Ddebug=false "$@" >"$build/$label.log" 2>&1 || { tail -n 20 "$build/$label.log"; return 1; }
}

compile() { # LABEL [TARGET ...]: print ninja's output only if it fails
    label=$1; shift
    $gently ninja --quiet -C "$build/$label" "$@" >"$build/$label.log" 2>&1 || { tail -n 40 "$build/$label.log"; return 1; }
}

programs_of() { # LABEL PATTERN: ninja's targets for the matching tests: their programs and the modules that those load
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

# Keeps meson's order, which is by priority, because meson runs tests in the order in which it is given their
# names.
tests_named() { # LABEL PATTERN: the names of the tests that match
    meson test -C "$build/$1" --list --no-rebuild 2>/dev/null | sed 's/.* [-/] //; s/^tidepool://' | grep -E "$2" | awk '!seen[$0]++'
}

# test_count.py gets meson's exit status, too, so that a meson that died does not look like tests that passed.
# For the same reason the log of an earlier run is removed first. $under is a command prefix, such as taskset.
under=""
check() { # LABEL FOLDER PATTERN TIMEOUT-FACTOR
    label=$1 folder=$2
    log=$build/$folder/meson-logs/$label.json
    rm -f "$log"
    names=$(tests_named "$folder" "$3")
    if [ -z "$names" ]; then # without a name meson would run every test
        say "$label: no test is named like $3"
        fail_count "$label"
        return
    fi
    say "$label: $(echo "$names" | wc -l) test programs"
    # shellcheck disable=SC2086 # words are meant to split
    $under meson test -C "$build/$folder" --no-rebuild -t "$4" --num-processes "$at_once" --logbase "$label" $names >"$build/$label.test.log" 2>&1
    echo "$label:$?=$log" >>"$logs"
}

# The tests that run under a sanitizer: those in C. Left out are tests of the program, which is tested as
# users build it, and pool_sites, which removes orderings on purpose and so has real races. tools/campaign.sh
# runs, under a sanitizer, the GPU's kernels on the CPU (their emulation checks shared memory and order in
# every configuration) and the long tests: the trainer's matrix, golden and frozen runs, gpt2, kernels at
# large sizes.
more_units='program_options|program_output|program_report'
units() { tests_named "$1" . | grep -vE '^(program_.*|bench_gpu_fake|pool_sites|kernels_(matmul_long|attention_long)|cuda_statuses|gpt2|kernel_counts|check_words|mutate|.*_?cuda_on_cpu|cuda_tile_on_cpu|cuda_matmul(_choice)?|cuda_device_kernels|trainer_matrix_[a-z0-9_]+|trainer_(golden|vocabulary|frozen|faults_qwen3|frozen_llama|fp16_llama|memory_llama|allocations_llama))$|^$' | tr '\n' '|' | sed 's/|$//'; }

# Tests that must give the same budgets and messages on a machine with one processor and kernels for SSE4.1,
# which need other workspaces. tools/dev/conditions.sh has more such machines.
narrow='^(gpt2_vocabulary|pool_(extremes|machine)|trainer(_allocations|_commands|_gpu|_memory)?|offload_memory|free_memory|cgroup|program_(input|files|report))$'
run_narrow() {
    under="taskset -c $(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" at_once=2
    TIDE_TEST_SMALL=1 ONEDNN_MAX_CPU_ISA=SSE41 check narrow full "$narrow" 6
}

# Without a GPU no kernel that nvcc compiles runs here, so nvcc need not optimise, which takes a seventh of
# the time. tools/dev/check_builds.sh compiles them as users do, and counts their instructions.
build_full() {
    if [ -e /dev/nvidia0 ]; then
        configure full -Dgpu_architectures=90 && compile full
        return
    fi
    quickly=
    ! nvcc=$(tide_nvcc) || ! "$nvcc" --help | grep -q -e --Ofast-compile || quickly=--Ofast-compile=max
    configure full -Dgpu_architectures=ptx90 || return
    NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS:-} $quickly" compile full
}

test_full() {
    run_narrow &
    one_processor=$!
    check full full . 3
    wait $one_processor
}

build_sanitize() {
    # Without jemalloc, which would replace the sanitizer's malloc. Of the kernels, which are compiled from one
    # source for each instruction set, with the widest vectors and without any; campaign.sh takes all.
    configure sanitize -Db_sanitize=address,undefined -Db_lundef=false -Djemalloc=disabled \
        -Doptimization=1 -Dc_args=-g1 -Dcpp_args=-g1 -Dcpu_variants=avx512 '-Dgpu_architectures=[]' &&
        compile sanitize $(programs_of sanitize "$(sanitized)")
}

sanitized() { echo "^($(units sanitize)|$more_units)\$"; }

test_sanitize() {
    LSAN_OPTIONS="suppressions=$PWD/tools/dev/lsan.supp print_suppressions=0" \
        ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
        check sanitize sanitize "$(sanitized)" 6
}

# tools/campaign.sh runs more tests under ThreadSanitizer, and longer. Here the kernels only compute, each on
# one thread, so they are compiled for one instruction set.
threaded='^(offload_[a-z]+|offload_cuda_host|cuda_device|cuda_clock|cuda_guest|comm_failure|comm_faults|comm_mesh|comm_socket|comm_start|comm_timeout|comm_traffic|comm_watch|free_memory|pool|pool_beside|pool_calls|pool_gradients|pool_lock|pool_random|pool_stall|pool_threads|trace|trainer_weights)$'
build_threads() {
    configure threads -Db_sanitize=thread -Db_lundef=false -Djemalloc=disabled -Doptimization=1 -Dc_args=-g1 -Dcpp_args=-g1 \
        '-Dcpu_variants=[]' '-Dgpu_architectures=[]' && compile threads $(programs_of threads "$threaded")
}

test_threads() {
    OMP_NUM_THREADS=1 TSAN_OPTIONS="suppressions=$PWD/tools/dev/tsan.supp history_size=4 halt_on_error=0 exitcode=66" \
        check threads threads "$threaded" 10
}

bare='^(kernels_pointwise|kernels_matmul|adam|hazard|offload_(host|null|memory)|layout|manager|pool(_states)?|data|program_(options|output|report|preset))$'
build_bare() {
    # -O2 for the kernels, too, which have a higher level by default.
    configure bare -Dc_args=-O2 '-Dcpu_variants=[]' -Dcuda=disabled -Donednn=disabled -Dhwloc=disabled \
        -Djemalloc=disabled -Dopenmp=disabled \
        && compile bare tools/tidepool $(programs_of bare "$bare")
}

test_bare() {
    check bare bare "$bare" 3
}

# Leaves the file CONFIGURATION.built or CONFIGURATION.failed.
build_each() { # CONFIGURATION...
    for configuration in "$@"; do
        if "build_$configuration"; then outcome=built; else outcome=failed; fi
        : >"$build/$configuration.$outcome"
    done
}

# Builds one configuration after the other while the tests of those before run: tests wait for threads and for
# the slowest of them, so a fifth of the processors' time is free. The builds must not delay them.
test_each() { # CONFIGURATION...
    for configuration in "$@"; do rm -f "$build/$configuration.built" "$build/$configuration.failed"; done
    (
        build_each "$1"
        shift
        gently="nice -n 19"
        build_each "$@"
    ) &
    builder=$!
    for configuration in "$@"; do
        until [ -e "$build/$configuration.built" ] || [ -e "$build/$configuration.failed" ] || ! kill -0 $builder 2>/dev/null; do
            sleep 0.2
        done
        if [ -e "$build/$configuration.built" ]; then "test_$configuration"; else fail_count "$configuration"; fi
    done
}

# shellcheck disable=SC2086 # words are meant to split
tide_packages_install $TIDE_BUILD_PACKAGES $TIDE_TEST_PACKAGES || exit 1
mkdir -p "$build"
: >"$logs"
gently=""
case " $wanted " in
*" full "*)
    tide_pypi_install "$build/pypi"         # for the test of kernel_counts.py
    tide_tokenize_install "$build/tokenize" # for that of tidepool-tokenize
    ;;
esac
# An interrupt from the terminal does not reach what runs in the background.
trap 'kill 0' INT
trap 'kill "${builder:-$$}"; exit 143' TERM HUP
test_each $wanted
say "done"
# shellcheck disable=SC2086 # words are meant to split
exec python3 tools/dev/test_count.py $(cat "$logs")
