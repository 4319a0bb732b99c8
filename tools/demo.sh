#!/bin/sh
# A demo of ten minutes: on a fresh Debian 12 machine it installs the packages for a build, builds, and trains
# gpt2-nano on the machine's own C headers with a device budget of at most a quarter of the model data.
#
# usage: tools/demo.sh      writes everything into .demo/ (or TIDE_DEMO_FOLDER)
# TIDE_DEMO_STEPS=40 makes the demo short; CC=clang builds with clang.
set -eu
[ $# -eq 0 ] || { echo "tools/demo.sh: takes no arguments (given: $*)" >&2; exit 2; }
cd "$(dirname "$0")/.."
. tools/dev/packages.sh
folder=${TIDE_DEMO_FOLDER:-$PWD/.demo}
steps=${TIDE_DEMO_STEPS:-500}
device_memory=16MiB # a quarter of gpt2-nano's 65 MiB of model data

# shellcheck disable=SC2086 # words are meant to split
tide_packages_install $TIDE_BUILD_PACKAGES
mkdir -p "$folder"
tide_build_folder "$folder/build"

echo "building in $folder/build"
[ -f "$folder/build/build.ninja" ] ||
    meson setup "$folder/build" --buildtype=release -Dtests=disabled -Dcuda=disabled >"$folder/build.log" 2>&1 ||
    { tail -n 20 "$folder/build.log"; exit 1; }
ninja -C "$folder/build" >"$folder/build.log" 2>&1 || { tail -n 40 "$folder/build.log"; exit 1; }

# All headers in the C locale's order, up to the first whole file beyond 4 MiB: the same machine gives the
# same text.
find /usr/include -type f -name '*.h' -print0 | LC_ALL=C sort -z | python3 -c '
import sys
text = bytearray()
for name in sys.stdin.buffer.read().split(b"\0")[:-1]:
    if len(text) >= 4 << 20:
        break
    with open(name, "rb") as header:
        text += header.read()
sys.stdout.buffer.write(text)' >"$folder/headers.txt"
echo "text: $(wc -c <"$folder/headers.txt") bytes of C headers"

rm -f "$folder/metrics.jsonl"
{ "$folder/build/tools/tidepool" train --model gpt2-nano --data "$folder/headers.txt" --steps "$steps" \
    --chunk-size 1MiB --device-memory $device_memory --micro-batch 2 --lr 1e-3 --eval-every 100 --sample 300 \
    --metrics "$folder/metrics.jsonl" || echo "training ended with status $?"; } | tee "$folder/train.log"
if grep -q '^training ended with status' "$folder/train.log"; then
    echo "demo: FAILED: see above" >&2
    exit 1
fi
exec python3 tools/dev/demo_summary.py "$folder/train.log" "$folder/metrics.jsonl" "$steps"
