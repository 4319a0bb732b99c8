#!/bin/sh
# What is too long for every change: the whole product of settings for bit-identity (bf16 and fp32), 50 kills,
# long fuzzing, adversarial delays, faults of CUDA, the random tests of manager and pool at length, and all cases of
# what tools/test.sh thins under sanitizers. Writes a dated result into docs/measurements/.
#
# usage: tools/campaign.sh [ROUNDS-OF-FUZZING]      default 1000000
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/packages.sh
build=${TIDE_TEST_BUILD:-$PWD/build-test}/campaign
fuzz_rounds=${1:-1000000}
program=$build/tools/tidepool
result=docs/measurements/campaign-$(date -u +%Y-%m-%d).md
# shellcheck disable=SC2086 # words are meant to split
tide_packages_install $TIDE_BUILD_PACKAGES g++ libcmocka-dev || exit 1
mkdir -p "$build" docs/measurements
meson setup "$build" -Dtests=enabled >"$build.log" 2>&1 || meson configure "$build" >"$build.log" 2>&1
ninja -C "$build" >"$build.log" 2>&1 || { tail -n 40 "$build.log"; exit 1; }

run() { # NAME COMMAND...: TAP into a log, counted
    name=$1; shift
    echo "== $name"
    began=$(date +%s)
    "$@" >"$build/$name.tap" 2>"$build/$name.err"
    status=$?
    # cmocka says "not ok" of a case that it skips.
    skipped=$(grep -cE '^(not )?ok .*# SKIP' "$build/$name.tap")
    passed=$(grep '^ok ' "$build/$name.tap" | grep -cv '# SKIP'); failed=$(grep '^not ok ' "$build/$name.tap" | grep -cv '# SKIP')
    [ $status -eq 0 ] || failed=$((failed + 1))
    grep '^not ok' "$build/$name.tap" | grep -v '# SKIP'
    echo "| $name | $passed | $failed | $skipped | $(($(date +%s) - began)) |" >>"$build/rows"
    total_failed=$((total_failed + failed))
}

: >"$build/rows"
total_failed=0
run identity tests/test_program.py "$program" identity --full
run crashes tests/test_program.py "$program" crashes --full
run files tests/test_program.py "$program" files --full
run delays tests/test_program.py "$program" delays --full
run manager_random env CMOCKA_MESSAGE_OUTPUT=TAP "$build/tests/test_manager_random" 200000 1000000
# The build above has compiled the GPU's kernels for every architecture, where there is a toolkit: without a warning, as warnings
# are errors. The module loads without a driver.
[ ! -e "$build/kernels/cuda/libtidepool_cuda.so" ] ||
    run architectures sh -c "TIDEPOOL_MODULES=$build/kernels/cuda $program info --device host >/dev/null && echo ok 1 - every architecture"
# Where the build could make the module of the tests: it needs the CUDA toolkit's headers.
[ ! -e "$build/tests/cuda/fake/libtidepool_cuda.so" ] ||
    run cuda_faults env TIDE_TEST_ALL=1 tests/test_program_cuda_faults.py "$program" "$build/tests/cuda/fake"
run pool_mixed env CMOCKA_MESSAGE_OUTPUT=TAP "$build/tests/test_pool_mixed" 150 1000
# A fuzzer is deterministic: longer means more rounds, under ASan and UBSan. It prints TAP.
meson setup "$build-sanitize" -Dtests=enabled -Db_sanitize=address,undefined -Db_lundef=false -Djemalloc=disabled \
    -Doptimization=1 '-Dgpu_architectures=[]' >"$build.log" 2>&1
thinned="kernels_matmul pool_faults trainer_bits trainer_faults"
# The GPU's kernels on the CPU, which tools/test.sh does not compile with a sanitizer.
on_cpu=$([ -e "$build/tests/cuda/test_adam_cuda_on_cpu" ] && printf '%s ' kernels_pointwise kernels_norms kernels_loss kernels_attention kernels_large adam)
# shellcheck disable=SC2046 # words are meant to split
ninja -C "$build-sanitize" tests/fuzz_files $(printf 'tests/test_%s ' $thinned) \
    $([ -z "$on_cpu" ] || printf 'tests/cuda/test_%s_cuda_on_cpu ' $on_cpu) >"$build.log" 2>&1 || {
    tail -n 40 "$build.log"
    exit 1
}
ASAN_OPTIONS=detect_leaks=1:abort_on_error=0; UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
TSAN_OPTIONS="suppressions=$PWD/tools/tsan.supp history_size=4 halt_on_error=0 exitcode=66"
export ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
for name in $thinned; do
    run "sanitized_$name" env TIDE_TEST_ALL=1 CMOCKA_MESSAGE_OUTPUT=TAP "$build-sanitize/tests/test_$name"
done
for name in $on_cpu; do
    run "sanitized_${name}_on_cpu" env CMOCKA_MESSAGE_OUTPUT=TAP "$build-sanitize/tests/cuda/test_${name}_cuda_on_cpu"
done
meson setup "$build-threads" -Dtests=enabled -Db_sanitize=thread -Db_lundef=false -Djemalloc=disabled -Doptimization=1 \
    '-Dgpu_architectures=[]' >"$build.log" 2>&1
ninja -C "$build-threads" tests/test_pool_faults >"$build.log" 2>&1 || { tail -n 40 "$build.log"; exit 1; }
run threads_pool_faults env TIDE_TEST_ALL=1 OMP_NUM_THREADS=1 CMOCKA_MESSAGE_OUTPUT=TAP "$build-threads/tests/test_pool_faults"
run fuzz_files env FUZZ_ROUNDS="$fuzz_rounds" CMOCKA_MESSAGE_OUTPUT=TAP "$build-sanitize/tests/fuzz_files"

{
    echo "# Campaign of $(date -u +%Y-%m-%d)"
    echo
    echo "Commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown). $(nproc) cores: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)."
    echo
    echo "| part | passed | failed | skipped | seconds |"
    echo "|---|---:|---:|---:|---:|"
    cat "$build/rows"
    echo
    "$program" info | sed 's/^/    /'
} >"$result"
echo "written to $result"
[ "$total_failed" -eq 0 ]
