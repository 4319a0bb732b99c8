#!/bin/sh
# Measures tidepool against limits that it measures in the same run: installs the packages that it needs,
# builds a release in build-bench/ (or TIDE_BENCH_BUILD), runs the benchmarks of tests/bench one after the
# other, writes one JSON file and prints a table of all figures.
#
# usage: tools/bench.sh [--peers] [--quick] [--out FILE] [NAME ...]
#   NAME     adam, copy, manager, policy, ranks, step, trace, weights; without a name all of them
#   --peers  compare Adam also with DeepSpeed's and PyTorch's (tests/bench/adam_peers.py; needs PyPI)
#   --quick  fewer rounds and rows, to see that everything runs; two minutes on two cores, after the build
#   --out    the JSON file (build-bench/bench.json); `tests/bench/assemble.py --markdown FILE` makes a table
#            of it
#
# Exit status: 0 if every requirement is met, 1 if one is missed or a benchmark did not finish, 2 for a wrong
# command line. With --quick no figure is judged: 0 if every benchmark finished and its output is well-formed.
# The machine should run nothing else; the JSON file records the load average before the run.
set -u
here=$PWD
cd "$(dirname "$0")/.." || exit 1
. tools/dev/packages.sh
build=${TIDE_BENCH_BUILD:-$PWD/build-bench}
known="adam copy manager policy ranks step trace weights"
started=$(date +%s)

say() { echo "== $(($(date +%s) - started)) s: $*" >&2; }

usage() { # WHAT IS WRONG
    echo "tools/bench.sh: $* (usage: tools/bench.sh [--peers] [--quick] [--out FILE] [NAME ...])" >&2
    exit 2
}

is_benchmark() { # NAME
    case " $known " in *" $1 "*) [ -f "tests/bench/bench_$1.c" ] ;; *) false ;; esac
}

peers="" quick="" out="" names=""
while [ $# -gt 0 ]; do
    case $1 in
    --peers) peers=yes ;;
    --quick) quick=--quick ;;
    --out)
        [ -n "${2:-}" ] || usage "--out: which file?"
        out=$2
        shift
        ;;
    -*) usage "no option $1" ;;
    *)
        is_benchmark "$1" || usage "no benchmark $1 (there are: $known)"
        names="$names $1"
        ;;
    esac
    shift
done
case $out in
"") out=$build/bench.json ;;
/*) ;;
*) out=$here/$out ;;
esac
[ -d "$(dirname "$out")" ] || [ "$out" = "$build/bench.json" ] || usage "--out $out: its folder does not exist"
[ -z "$peers" ] || [ -f tests/bench/adam_peers.py ] || usage "--peers: tests/bench/adam_peers.py is not there"
if [ -z "$names" ]; then
    for name in $known; do
        if is_benchmark "$name"; then names="$names $name"; fi
    done
fi

wants_adam=""
case " $names " in *" adam "*) wants_adam=yes ;; esac
targets=""
for name in $names; do targets="$targets tests/bench/bench_$name"; done
[ -z "$peers" ] || [ -n "$wants_adam" ] || targets="$targets tests/bench/bench_adam"

# Builds without assertions, as users do.
build_all() {
    tide_build_folder "$build" || return 1
    if [ -f "$build/build.ninja" ]; then
        meson configure "$build" --buildtype=release -Db_ndebug=true -Dtests=enabled
    else
        meson setup "$build" --buildtype=release -Db_ndebug=true -Dtests=enabled
    fi && ninja -C "$build" "$@"
}

load=$(cut -d ' ' -f 1 /proc/loadavg 2>/dev/null || echo unknown)
# shellcheck disable=SC2086 # words are meant to split
tide_packages_install $TIDE_BUILD_PACKAGES libcmocka-dev >&2 || exit 1
mkdir -p "$build" || exit 1
say "building"
# shellcheck disable=SC2086 # words are meant to split
build_all $targets >"$build/bench.log" 2>&1 || {
    tail -n 20 "$build/bench.log" >&2
    echo "tools/bench.sh: the build failed: $build/bench.log" >&2
    exit 1
}

results=""
measure() { # NAME COMMAND...: run a benchmark; keep its JSON object and its errors in files
    name=$1
    shift
    say "$name"
    "$@" >"$build/bench-$name.json" 2>"$build/bench-$name.err"
    results="$results $name:$?=$build/bench-$name.json"
}

for name in $names; do
    # shellcheck disable=SC2086 # --quick or nothing
    measure "$name" "$build/tests/bench/bench_$name" $quick
done
if [ -n "$peers" ]; then
    measure adam_peers python3 tests/bench/adam_peers.py --ours "$build/tests/bench/bench_adam" --threads "$(nproc)"
fi
say "done"
# shellcheck disable=SC2086 # words are meant to split
exec python3 tests/bench/assemble.py --load "$load" $quick --out "$out" $results
