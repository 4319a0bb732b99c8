# Functions and variables for the scripts that build, which source this file. It installs packages on Debian
# and similar systems.
#
#   tide_packages_install PACKAGE...    installs the packages that are missing, as root or through sudo, and
#                                       prints their names
#   tide_tokenize_install FOLDER        where PyPI can be reached, makes an environment for tidepool-tokenize
#                                       in FOLDER; sets TIDE_TOKENIZE_PYTHON to its Python
#   tide_build_folder FOLDER            removes the build folder if it was made for another compiler than CC
#                                       names; creates it
#   tide_nvcc                           prints the path of nvcc, or nothing, with status 1
#   tide_pypi_install FOLDER            where the CUDA toolkit lacks them, downloads the programs that
#                                       tools/dev/kernel_counts.py needs into FOLDER; sets TIDE_PYPI to it
#   TIDE_BUILD_PACKAGES                 packages to build the product, with gcc or with the clang that CC
#                                       names
#   TIDE_TEST_PACKAGES                  further packages to build and run the tests

tide_packages_missing() {
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || echo "$package"
    done
}

tide_packages_install() {
    if ! command -v dpkg-query >/dev/null 2>&1; then
        echo "no dpkg here: install these yourself if the build misses them: $*"
        return 0
    fi
    missing=$(tide_packages_missing "$@" | tr '\n' ' ')
    if [ -z "$missing" ]; then
        echo "packages: all there"
        return 0
    fi
    if [ "$(id -u)" -eq 0 ]; then
        as_root=env
    elif command -v sudo >/dev/null 2>&1; then
        as_root="sudo env"
    else
        echo "packages: missing $missing; install them as root, or install sudo" >&2
        return 1
    fi
    echo "packages: installing $missing"
    # shellcheck disable=SC2086 # words are meant to split
    $as_root DEBIAN_FRONTEND=noninteractive apt-get update -qq &&
        $as_root DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

tide_nvcc() { command -v nvcc || command -v /usr/local/cuda/bin/nvcc; }

tide_pypi_install() {
    TIDE_PYPI=$1
    export TIDE_PYPI
    tide_nvcc >/dev/null || return 0 # they have nothing to read
    places=$PATH:/usr/local/cuda/bin # where kernel_counts.py looks
    ! PATH=$places sh -c 'command -v cuobjdump && command -v nvdisasm' >/dev/null || return 0
    [ ! -e "$1/nvidia/cu13/bin/nvdisasm" ] || return 0
    echo "PyPI: cuobjdump and nvdisasm, into $1"
    mkdir -p "$1"
    timeout 120 python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --target "$1" nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37 >"$1/log" 2>&1 ||
        echo "PyPI: not to be had: $(tail -n 1 "$1/log")"
}

tide_tokenize_install() {
    TIDE_TOKENIZE_PYTHON=$1/bin/python
    export TIDE_TOKENIZE_PYTHON
    TIDEPOOL_VENV=$1 timeout 300 tools/tokenize/tidepool-tokenize --setup && return
    TIDE_TOKENIZE_PYTHON=python3
}

tide_build_folder() {
    [ "$(cat "$1/.compiler" 2>/dev/null)" = "${CC:-}" ] || rm -rf "$1"
    mkdir -p "$1" && echo "${CC:-}" >"$1/.compiler"
}

# clang's OpenMP and sanitizers are separate packages. CXX must be the C++ compiler of CC's family, so that
# their objects link together.
case $(basename "${CC:-gcc}") in
clang*)
    version=$(basename "$CC" | sed 's/^clang//')
    CXX=${CXX:-$(dirname "$CC" | sed 's|^\.$||; s|.$|&/|')clang++$version}
    export CC CXX
    tide_compiler="clang$version libomp$version-dev"
    tide_compiler_tests="libclang-rt$version-dev"
    ;;
*)
    tide_compiler=gcc
    tide_compiler_tests=g++
    ;;
esac
TIDE_BUILD_PACKAGES="$tide_compiler libc6-dev make meson ninja-build pkg-config python3 libhwloc-dev libjansson-dev libjemalloc-dev libdnnl-dev"
TIDE_BUILD_PACKAGES="$TIDE_BUILD_PACKAGES node-d3-scale node-d3-axis node-d3-shape node-d3-selection" # the page of tidepool trace html
TIDE_TEST_PACKAGES="$tide_compiler_tests libcmocka-dev man-db groff-base zsh python3-pip chromium clang-format-14 python3-clang-14"
TIDE_TEST_PACKAGES="$TIDE_TEST_PACKAGES python3-venv" # tidepool-tokenize
TIDE_TEST_PACKAGES="$TIDE_TEST_PACKAGES iproute2"     # two hosts in network namespaces
