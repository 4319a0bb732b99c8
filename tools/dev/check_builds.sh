#!/bin/sh
# Compiles the product as users may, with warnings as errors: with gcc and clang, as debugoptimized and
# release, with and without assertions; the release builds include all tests and benchmarks. Each program then
# trains two steps. If there is nvcc, the CUDA module is compiled, too, for one GPU architecture, without
# assertions (tools/test.sh compiles it with them, unoptimised); the counts of its kernels must be within
# tools/dev/kernel_counts.txt. Last, a tree with one deliberate warning is compiled: a build as in CI must
# refuse it, a user's release build must accept it.
#
# usage: tools/dev/check_builds.sh      build folders are in build-builds/ (or TIDE_BUILDS_FOLDER)
# Prints TAP; the last line counts: "N passed, N failed". Exit status 0 only if nothing failed.
set -u
[ $# -eq 0 ] || { echo "tools/dev/check_builds.sh: takes no arguments (given: $*)" >&2; exit 2; }
cd "$(dirname "$0")/../.." || exit 1
source=$PWD
folder=${TIDE_BUILDS_FOLDER:-$PWD/build-builds}
passed=0 failed=0

ok() { # STATUS DESCRIPTION [LOG]
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok $((passed + failed)) - $2"
    else
        failed=$((failed + 1))
        echo "not ok $((passed + failed)) - $2"
        [ -z "${3:-}" ] || tail -n 30 "$3" | sed 's/^/# /'
    fi
}

in_ci() { # FOLDER SOURCE OPTION...: configure a build as CI does
    build=$1 from=$2
    shift 2
    rm -rf "$build"
    meson setup "$build" "$from" -Dwerror=true '-Dgpu_architectures=[]' "$@"
}

compile() { # COMPILER TYPE NDEBUG TESTS
    export CC="$1" CXX
    case $1 in clang) CXX=clang++ ;; *) CXX=g++ ;; esac
    name=$1-$2-ndebug-$3
    words="$1, $2, $([ "$3" = true ] && echo without || echo with) assertions$([ "$4" = disabled ] || echo ", tests and benchmarks too")"
    log=$folder/$name.log
    began=$(date +%s)
    in_ci "$folder/$name" "$source" --buildtype="$2" -Db_ndebug="$3" -Dtests="$4" >"$log" 2>&1 &&
        ninja --quiet -C "$folder/$name" >>"$log" 2>&1
    ok $? "compiled: $words ($(($(date +%s) - began)) s)" "$log"
    timeout 300 "$folder/$name/tools/tidepool" train --model gpt2-nano --data "$source/README.md" --steps 2 --chunk-size 1MiB --device host \
        --device-memory 16MiB --sample 0 --eval-every 0 >"$log" 2>&1
    ok $? "trains: $words" "$log"
}

cuda_module() {
    export CC=gcc CXX=g++
    nvcc=$(tide_nvcc) || { echo "# no nvcc: the CUDA module is not compiled"; return; }
    log=$folder/cuda.log
    began=$(date +%s)
    in_ci "$folder/cuda" "$source" -Dcuda=enabled -Dgpu_architectures=90 -Db_ndebug=true -Dtests=disabled >"$log" 2>&1 &&
        ninja --quiet -C "$folder/cuda" kernels/cuda/libtidepool_cuda.so >>"$log" 2>&1
    compiled=$?
    ok $compiled "compiled: the CUDA module, without assertions ($(($(date +%s) - began)) s)" "$log"
    [ $compiled -eq 0 ] || return
    bounds=tools/dev/kernel_counts.txt
    if ! "$nvcc" --version | grep -q "release $(sed -n '1s/# nvcc \([0-9.]*\),.*/\1/p' $bounds),"; then
        echo "# $bounds is another nvcc's: the kernels are not counted"
        return
    fi
    tide_pypi_install "$folder/pypi" >"$log" 2>&1
    tools/dev/kernel_counts.py --check $bounds "$folder"/cuda/kernels/cuda/*.cu.o >>"$log" 2>&1
    counted=$?
    if [ $counted -eq 2 ]; then
        echo "# the kernels are not counted: $(tail -n 1 "$log")"
    else
        ok $counted "the kernels are within $bounds" "$log"
    fi
}

deliberate_warning() {
    export CC=gcc CXX=g++
    warned=$folder/warned
    mkdir -p "$warned"
    git ls-files -z | tar --null -T - -c | tar -x --no-same-owner -C "$warned" || { ok 1 "the tree is copied"; return; }
    echo 'int tide_deliberate(int unused) { return 0; }' >>"$warned/chunk/layout.c"
    in_ci "$folder/warned-ci" "$warned" -Dtests=disabled >"$folder/warned.log" 2>&1 &&
        ninja -C "$folder/warned-ci" chunk/libtide_chunk.a >"$folder/warned.log" 2>&1
    [ $? -ne 0 ] && grep -q 'error:.*tide_deliberate' "$folder/warned.log"
    ok $? "a deliberate warning is refused here" "$folder/warned.log"
    rm -rf "$folder/warned-hand"
    meson setup "$folder/warned-hand" "$warned" --buildtype=release -Dtests=disabled >"$folder/warned.log" 2>&1 &&
        ninja -C "$folder/warned-hand" chunk/libtide_chunk.a >"$folder/warned.log" 2>&1 &&
        grep -q 'warning:.*tide_deliberate' "$folder/warned.log"
    ok $? "a release build by hand takes it, and warns" "$folder/warned.log"
}

# Install the packages that each compiler needs.
for CC in gcc clang; do
    . tools/dev/packages.sh
    # shellcheck disable=SC2086 # words are meant to split
    tide_packages_install $TIDE_BUILD_PACKAGES $TIDE_TEST_PACKAGES || exit 1
    unset CXX
done
mkdir -p "$folder"
for compiler in gcc clang; do
    compile $compiler debugoptimized false disabled
    compile $compiler debugoptimized true disabled
    compile $compiler release false enabled
    compile $compiler release true disabled
done
cuda_module
deliberate_warning
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
