#!/bin/sh
# Runs the tests that take too long for every change: the same bits in all settings (trainer_matrix), 50
# kills, 200 runs of several ranks against one process (ranks), 200 faults of ranks (rank_faults),
# predictions against real steps and memory, long fuzzing, adversarial delays, faults of CUDA, long random
# tests of manager, ranks and pool, the GPU's kernels compiled for every architecture, the tests that
# tools/test.sh leaves out or shortens under sanitizers, and the suite under each condition of
# tools/dev/conditions.sh.
# Writes a dated result into docs/measurements/.
#
# usage: tools/campaign.sh [--quick] [--only PART,...] [ROUNDS-OF-FUZZING]      default 1000000
# TIDE_OLD_PROGRAM=FILE: an older build of the program; its results are compared with this one's
# (compare_programs.py).
# --quick runs a small part of each test, in minutes, to see that the campaign works; its result stays in the
# build folder.
# --only runs only these parts. Their names are those in the result's table.
# Build folders are build-test/campaign* (or in TIDE_TEST_BUILD). Exit status 1 if anything failed, 2 for a
# wrong command line.
# shellcheck disable=SC2086 # words are meant to split
set -u
old_program=${TIDE_OLD_PROGRAM:+$(realpath "$TIDE_OLD_PROGRAM")}
cd "$(dirname "$0")/.." || exit 1
. tools/dev/packages.sh
build=${TIDE_TEST_BUILD:-$PWD/build-test}/campaign
program=$build/tools/tidepool

quick=""
[ "${1:-}" != --quick ] || { quick=yes; shift; }
only=""
[ "${1:-}" != --only ] || { only=,${2:-}, ; shift $(($# > 1 ? 2 : 1)); }
known="matrix matrix_product crashes files ranks rank_faults programs plan_check program_plan performance_model manager_random manager_ranks architectures gpu_check on_cuda
    cuda_faults pool_random pool_mixed pool_sites fuzz_files fuzz_traces conditions"
for part in $(echo "$only" | tr , ' '); do
    echo "$part" | grep -qxE "$(echo $known | tr ' ' '|')|sanitized_[a-z0-9_]+|threads_[a-z0-9_]+" ||
        { echo "tools/campaign.sh: no part $part ($(echo $known), sanitized_TEST, threads_TEST)" >&2; exit 2; }
done
if [ "$only" = ,, ] || [ $# -gt 1 ] || ! echo "${1:-1}" | grep -qx '[1-9][0-9]*'; then
    echo "tools/campaign.sh: what is '$*'? (usage: tools/campaign.sh [--quick] [--only PART,...] [ROUNDS-OF-FUZZING])" >&2
    exit 2
fi
if [ -z "$quick" ]; then
    whole=--full compared=--full rank_cases=200 sequences="1000000 1000000" rank_sequences="1000000 10000" mixtures="150 1000" scenarios="20000 1000000" fuzz_rounds=${1:-1000000} architectures=80,86,89,90,100,ptx100
    sanitized="kernels_matmul kernels_matmul_long kernels_attention_long kernels_norms kernels_loss
        pool pool_faults pool_fp16 pool_predict pool_random pool_states hazard
        trainer_matrix trainer_faults trainer_frozen trainer_golden trainer_vocabulary trainer_weights gpt2 family_golden"
    on_cpu="kernels_pointwise kernels_norms kernels_rms_norm kernels_rope kernels_loss kernels_attention kernels_attention_groups
        kernels_attention_documents adam"
    conditions="" conditions_build=$build-conditions conditions_targets=all
    result=docs/measurements/campaign$([ -z "$only" ] || echo -parts)-$(date -u +%Y-%m-%d).md
    TIDE_TEST_ALL=1; export TIDE_TEST_ALL
else
    whole="" compared="--first 2" rank_cases=6 sequences="500 1000" rank_sequences="500 10000" mixtures="1 1000" scenarios="100 1000000" fuzz_rounds=${1:-1000} architectures=ptx90
    sanitized=trainer_faults on_cpu=adam result=$build/campaign.md
    conditions="--only isa_SSE41,slow_disk --tests ^(trainer|checkpoint)$" conditions_build=$build
    conditions_targets="tests/test_trainer tests/test_checkpoint"
fi

wants() { # PATTERN: whether a part whose name matches is to run
    [ -z "$only" ] || echo "$only" | grep -qE ",($1),"
}

build_in() { # FOLDER OPTION... -- TARGET...
    folder=$1; shift
    options=""
    while [ "$1" != -- ]; do options="$options $1"; shift; done
    shift
    tide_build_folder "$folder" || exit 1
    if [ -f "$folder/build.ninja" ]; then verb=configure; else verb=setup; fi
    meson $verb "$folder" -Dwerror=true -Dtests=enabled $options >"$build.log" 2>&1 && ninja -C "$folder" "$@" >"$build.log" 2>&1 ||
        { tail -n 40 "$build.log"; exit 1; }
}

has_target() { ninja -C "$1" -t targets all | grep -q "^$2:"; }

tide_packages_install $TIDE_BUILD_PACKAGES $TIDE_TEST_PACKAGES || exit 1
mkdir -p "$build" docs/measurements
build_in "$build" -Dgpu_architectures="$architectures" -- tools/tidepool tests/test_manager_random tests/test_manager_ranks tests/test_pool_mixed tests/test_performance_model \
    tests/test_pool_random tests/test_pool_sites tests/program/preload/libfile_faults.so \
    tests/test_trainer_matrix tests/support/fake_gpu/libtidepool_cuda.so
# If there is a CUDA toolkit: the CUDA module, and the tests' module, which emulates a GPU.
module="" fake=""
if wants "architectures|gpu_check" && has_target "$build" kernels/cuda/libtidepool_cuda.so; then module=kernels/cuda/libtidepool_cuda.so; fi
if wants ".*cuda.*|.*_on_cpu" && has_target "$build" tests/gpu/fake/libtidepool_cuda.so; then fake=tests/gpu/fake/libtidepool_cuda.so; fi
[ -z "$module$fake" ] || ninja -C "$build" $module $fake >"$build.log" 2>&1 || { tail -n 40 "$build.log"; exit 1; }

run() { # NAME COMMAND...: run a part, write its TAP output into a log and count its cases
    name=$1; shift
    wants "$name" || return 0
    echo "== $name"
    began=$(date +%s)
    "$@" >"$build/$name.tap" 2>"$build/$name.err"
    status=$?
    # cmocka prints "not ok" for a case that it skips.
    skipped=$(grep -cE '^(not )?ok .*# SKIP' "$build/$name.tap")
    passed=$(grep '^ok ' "$build/$name.tap" | grep -cv '# SKIP'); failed=$(grep '^not ok ' "$build/$name.tap" | grep -cv '# SKIP')
    [ $status -eq 0 ] && [ $((passed + failed + skipped)) -gt 0 ] || failed=$((failed + 1)) # a part without cases fails
    grep '^not ok' "$build/$name.tap" | grep -v '# SKIP'
    echo "| $name | $passed | $failed | $skipped | $(($(date +%s) - began)) |" >>"$build/rows"
    total_failed=$((total_failed + failed))
}

: >"$build/rows"
total_failed=0
run matrix env CMOCKA_MESSAGE_OUTPUT=TAP "$build/tests/test_trainer_matrix"
[ -n "$quick" ] || run matrix_product env CMOCKA_MESSAGE_OUTPUT=TAP "$build/tests/test_trainer_matrix" product
for section in crashes files; do
    run $section tests/program/test_program.py "$program" $section $whole
done
run ranks tools/dev/ranks_check.py "$program" $rank_cases
run rank_faults tools/dev/rank_faults.py "$program" "$build/tests/program/preload/libfile_faults.so" \
    $rank_cases
if [ -n "$old_program" ]; then
    run programs tools/dev/compare_programs.py "$old_program" "$program" $compared
    grep '^# moves: equal' "$build/programs.tap"
elif wants programs; then
    echo "| programs (TIDE_OLD_PROGRAM names no other build) | 0 | 0 | 1 | 0 |" >>"$build/rows"
fi
if [ -z "$quick" ]; then judged="$(dirname "$result")/plan-$(date -u +%Y-%m-%d).md"; else judged="$build/plan.md --quick"; fi
run plan_check tools/dev/plan_check.py "$program" $judged
[ -n "$quick" ] || run program_plan tests/program/test_program_plan.py "$program" 500
[ -n "$quick" ] || run performance_model env CMOCKA_MESSAGE_OUTPUT=TAP "$build/tests/test_performance_model" 500
run manager_random env CMOCKA_MESSAGE_OUTPUT=TAP "$build/tests/test_manager_random" $sequences
run manager_ranks env CMOCKA_MESSAGE_OUTPUT=TAP "$build/tests/test_manager_ranks" $rank_sequences
# The module was compiled above, with warnings as errors. Here it must load on a machine without a driver.
[ -z "$module" ] || run architectures sh -c "text=\$($program info --device host) && ! echo \"\$text\" | grep -E 'no CUDA module|belongs to|loaded' && echo ok 1 - $architectures"
[ -n "$quick" ] || run gpu_check tests/program/test_gpu_check.py "$program"
[ -z "$fake" ] || run on_cuda tests/program/test_program_on_cuda.py "$program" "$build/tests/gpu/fake" fake
[ -z "$fake" ] || run cuda_faults tests/program/test_program_cuda_faults.py "$program" "$build/tests/gpu/fake"
run pool_random env CMOCKA_MESSAGE_OUTPUT=TAP "$build/tests/test_pool_random" $scenarios
run pool_mixed env CMOCKA_MESSAGE_OUTPUT=TAP "$build/tests/test_pool_mixed" $mixtures
[ -n "$quick" ] || run pool_sites env CMOCKA_MESSAGE_OUTPUT=TAP "$build/tests/test_pool_sites"
# The fuzzers are deterministic and print TAP; they run under ASan and UBSan, and more rounds test more
# inputs. The GPU's kernels on the CPU run here under a sanitizer because tools/test.sh leaves them out.
[ -n "$fake" ] || on_cpu=""
! wants '(sanitized|fuzz)_[a-z0-9_]+' || build_in "$build-sanitize" -Db_sanitize=address,undefined -Db_lundef=false \
    -Djemalloc=disabled -Doptimization=1 '-Dgpu_architectures=[]' -- tests/fuzz_files tests/fuzz_traces \
    tests/support/fake_gpu/libtidepool_cuda.so $(printf 'tests/test_%s ' $sanitized) \
    $([ -z "$on_cpu" ] || printf 'tests/gpu/test_%s_cuda_on_cpu ' $on_cpu)
LSAN_OPTIONS="suppressions=$PWD/tools/dev/lsan.supp print_suppressions=0"
ASAN_OPTIONS=detect_leaks=1:abort_on_error=0; UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
TSAN_OPTIONS="suppressions=$PWD/tools/dev/tsan.supp history_size=4 halt_on_error=0 exitcode=66"
export LSAN_OPTIONS ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
for name in $sanitized; do
    run "sanitized_$name" env CMOCKA_MESSAGE_OUTPUT=TAP "$build-sanitize/tests/test_$name"
done
# Families for which tools/test.sh does not run these tests under a sanitizer.
[ -n "$quick" ] || for family in llama qwen3; do
    for name in trainer_faults trainer_frozen; do
        run "sanitized_${name}_$family" env TIDEPOOL_TEST_FAMILY=$family CMOCKA_MESSAGE_OUTPUT=TAP \
            "$build-sanitize/tests/test_$name"
    done
done
for name in $on_cpu; do
    run "sanitized_${name}_on_cpu" env CMOCKA_MESSAGE_OUTPUT=TAP "$build-sanitize/tests/gpu/test_${name}_cuda_on_cpu"
done
run fuzz_files env FUZZ_ROUNDS="$fuzz_rounds" CMOCKA_MESSAGE_OUTPUT=TAP "$build-sanitize/tests/fuzz_files"
run fuzz_traces env FUZZ_ROUNDS="$fuzz_rounds" CMOCKA_MESSAGE_OUTPUT=TAP "$build-sanitize/tests/fuzz_traces"
if [ -z "$quick" ] && wants 'threads_[a-z_]+'; then # tools/test.sh runs only some of these under ThreadSanitizer
    build_in "$build-threads" -Db_sanitize=thread -Db_lundef=false -Djemalloc=disabled -Doptimization=1 \
        '-Dgpu_architectures=[]' -- tests/test_pool tests/test_pool_faults tests/test_pool_misuse tests/test_pool_mixed tests/test_pool_random \
        tests/test_trainer_weights
    for name in pool pool_faults pool_misuse pool_mixed pool_random trainer_weights; do
        run "threads_$name" env OMP_NUM_THREADS=1 CMOCKA_MESSAGE_OUTPUT=TAP "$build-threads/tests/test_$name"
    done
fi
if wants conditions; then
    build_in "$conditions_build" -Dgpu_architectures=ptx90 -- $conditions_targets
    run conditions env -u TIDE_TEST_ALL tools/dev/conditions.sh $conditions "$conditions_build"
fi
for name in $(echo "$only" | tr , ' '); do
    grep -q "^| $name[ (]" "$build/rows" || { echo "tools/campaign.sh: $name does not run here, or not so" >&2; total_failed=$((total_failed + 1)); }
done
{
    echo "# Campaign of $(date -u +%Y-%m-%d)$([ -z "$only" ] || echo ", some parts")"
    echo
    echo "Commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown). $(nproc) cores: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)."
    echo
    echo "| part | passed | failed | skipped | seconds |"
    echo "|---|---:|---:|---:|---:|"
    cat "$build/rows"
    echo
    ! wants conditions || { grep '^|' "$build/conditions.tap"; echo; }
    "$program" info | sed "s|$PWD/||g; s/^/    /"
} >"$result"
echo "written to $result"
[ "$total_failed" -eq 0 ]
