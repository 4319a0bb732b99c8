#!/bin/sh
# For whoever has an NVIDIA GPU: builds tidepool for it, shows that it is right there, and measures it. Needs no network.
#
#   deps      (where there is a network and apt) fetch Debian packages into .deps/, for a GPU machine that has neither
#   probe     what the GPU's mappings, copies and launches take: .deps/gpu_probe/*.cu, where somebody put the probe
#   build     release and assertions on, for this GPU's architecture
#   test      all tests of suite `gpu`: each kernel against float64 and the CPU's, the device, the pool, the program's bits
#   sanitize  the small ones of them under compute-sanitizer: memcheck, then racecheck
#   bench     copies, mappings and launches (bench_gpu), training against limits and PyTorch (tests/bench/gpu/train.py)
#
# usage: tools/gpu_check.sh [--build FOLDER] [--out FOLDER] [--architecture N] [PART ...]
# Parts: probe build test sanitize bench (all, in this order), deps. It is built in --build (build-gpu); everything else goes to
# --out (report in there): a log a part, gpu_check.json with all results, gpu_check.md with a short table, which is also printed
# last. --architecture (90 for compute capability 9.0) stands for the GPU at hand: so `build` needs none. Exit status 0 if every
# part that ran was right or had nothing to run on, 1 if not, 2 for usage or without a GPU.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/packages.sh # for CXX, of CC's family; it installs nothing here
build=$PWD/build-gpu
out=""
deps=$PWD/.deps
packages="libhwloc-dev libhwloc15 libjansson-dev libjansson4 libjemalloc-dev libjemalloc2 libdnnl-dev libdnnl2 ocl-icd-libopencl1
libcmocka-dev libcmocka0 libudev1 libcap2 pkgconf pkgconf-bin libpkgconf3"
started=$(date +%s)

say() { echo "== $(($(date +%s) - started)) s: $*"; }

usage() {
    echo "tools/gpu_check.sh: $* (usage: tools/gpu_check.sh [--build FOLDER] [--out FOLDER] [--architecture N] [deps] [probe] [build] [test] [sanitize] [bench])" >&2
    exit 2
}

parts="" architecture=""
while [ $# -gt 0 ]; do
    case $1 in
    --architecture)
        echo "${2:-}" | grep -qx '[1-9][0-9]*' || usage "--architecture: '${2:-}' is not like 90"
        architecture=$2
        shift
        ;;
    --build | --out)
        [ -n "${2:-}" ] || usage "$1: which folder?"
        folder=$(realpath -m "$2")
        if [ "$1" = --out ]; then out=$folder; else build=$folder; fi
        shift
        ;;
    deps | probe | build | test | sanitize | bench) parts="$parts $1" ;;
    *) usage "no part $1" ;;
    esac
    shift
done
parts=${parts:-probe build test sanitize bench}
out=${out:-$build/report}
no_gpu=77 # a test's exit status where there is none

# Packages of Debian 12 as files: they need no installation, and their libraries run on any newer system.
part_deps() {
    mkdir -p "$deps/debs" || return 1
    # shellcheck disable=SC2086 # words are meant to split
    (cd "$deps/debs" && apt-get download $packages)
}

# What the system lacks comes from .deps, if it is there.
deps_use() {
    root=$deps/root
    if [ ! -d "$root" ] && ls "$deps"/debs/*.deb >/dev/null 2>&1; then
        for package in "$deps"/debs/*.deb; do dpkg-deb -x "$package" "$root" || return 1; done
    fi
    [ -d "$root" ] || return 0
    libraries=$root/usr/lib/x86_64-linux-gnu
    PATH=$PATH:$root/usr/bin
    CPATH=$root/usr/include${CPATH:+:$CPATH}
    LIBRARY_PATH=$libraries${LIBRARY_PATH:+:$LIBRARY_PATH}
    LD_LIBRARY_PATH=$libraries:$root/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    PKG_CONFIG_PATH=$libraries/pkgconfig:$root/usr/share/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    PKG_CONFIG_SYSROOT_DIR=$root
    export PATH CPATH LIBRARY_PATH LD_LIBRARY_PATH PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
}

nvcc_find() { command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null; }

part_probe() {
    nvcc=$(nvcc_find) || { echo "no nvcc"; return 1; }
    ls "$deps"/gpu_probe/*.cu >/dev/null 2>&1 || { echo "nothing to do: no probe in .deps/gpu_probe"; return 0; }
    status=0
    for source in "$deps"/gpu_probe/vmm*.cu; do
        "$nvcc" -O2 -arch="sm_$architecture" -o "$build/probe" "$source" -lpthread && "$build/probe" || status=1
    done
    return $status
}

part_build() {
    if [ -f "$build/build.ninja" ]; then verb="configure"; else verb="setup"; fi
    meson $verb "$build" --buildtype=release -Dtests=enabled -Dcuda=enabled -Dgpu_architectures="$architecture" \
        ${TOOLKIT:+-Dtoolkit_path="$TOOLKIT"} && ninja -C "$build"
}

part_test() {
    # One at a time: they share a GPU, and some measure.
    meson test -C "$build" --no-rebuild --suite gpu --num-processes 1 --timeout-multiplier 4 --print-errorlogs
}

part_sanitize() {
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) ||
        { echo "nothing to do: no compute-sanitizer"; return 0; }
    status=1 # until one ran
    for test in "$build"/tests/cuda/gpu_small_*; do
        [ -x "$test" ] && [ -f "$test" ] && status=0
    done
    for tool in memcheck racecheck; do
        for test in "$build"/tests/cuda/gpu_small_*; do
            [ -x "$test" ] && [ -f "$test" ] && { sanitize_one "$tool" "$test" || status=1; }
        done
    done
    return $status
}

# The program's own exit status comes through, but for errors that the sanitizer found (9).
sanitize_one() {
    timeout 240 "$sanitizer" --tool "$1" --error-exitcode 9 "$2" >"$out/sanitize.one" 2>&1
    ended=$?
    case $ended in
    0) echo "ok $1 $(basename "$2")" ;;
    "$no_gpu") echo "ok $1 $(basename "$2") # $(grep SKIP "$out/sanitize.one")" ;;
    *)
        echo "not ok $1 $(basename "$2"): exit $ended"
        tail -n 30 "$out/sanitize.one"
        return 1
        ;;
    esac
}

part_bench() {
    "$build/tests/bench/bench_gpu" >"$out/bench_gpu.json"
    status=$?
    [ $status -ne $no_gpu ] || return 0 # it has said why
    python3 tests/bench/gpu/train.py "$build/tools/tidepool" --peak "${TIDE_GPU_PEAK:-790e12}" --out "$out/train.json" \
        ${TIDE_GPU_CASES:-} || status=1
    return $status
}

for part in $parts; do
    case $part in deps) part_deps || exit 1 ;; esac
done
parts=$(echo " $parts " | sed 's/ deps / /')
[ -n "$(echo "$parts" | tr -d ' ')" ] || exit 0

if ! gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader 2>&1 | head -n 1); then
    gpu=""
fi
case "$gpu" in
*,*,*,*) architecture=${architecture:-$(echo "$gpu" | sed 's/.*, *//' | tr -d '.')} ;;
*)
    if [ "$(echo "$parts" | tr -d ' ')" != build ] || [ -z "$architecture" ]; then
        echo "tools/gpu_check.sh: no NVIDIA GPU: nvidia-smi says '$gpu'" >&2
        exit 2
    fi
    gpu="no GPU, built for $architecture"
    ;;
esac
mkdir -p "$build" "$out" || exit 1
deps_use || exit 1
echo "$gpu, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
results=""
for part in $parts; do
    say "$part"
    "part_$part" >"$out/$part.log" 2>&1
    status=$?
    results="$results $part:$status"
    [ $status -eq 0 ] || tail -n 25 "$out/$part.log"
    [ "$part $status" = "build $status" ] && [ $status -ne 0 ] && break
done
say "done"
# shellcheck disable=SC2086 # words are meant to split
exec python3 tools/gpu_report.py --gpu "$gpu" --folder "$out" $results
