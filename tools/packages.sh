# Sourced by demo.sh and test.sh: install what a build needs, on Debian and its relatives.
#
#   tide_packages_install PACKAGE...    does nothing when all are there; says what it installs; as root or through sudo

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

TIDE_BUILD_PACKAGES="gcc libc6-dev make meson ninja-build pkg-config python3 libhwloc-dev libjansson-dev libjemalloc-dev libdnnl-dev"
