#!/usr/bin/env python3
"""`tidepool generate`: texts of every family's folder and of checkpoints, prompts, budgets, refusals.

usage: test_program_generate.py PROGRAM      prints TAP

tests/generate/test_generator.c compares tokens with full forward passes; this test compares runs of the
program with each other.
"""
import json
import os
import re
import subprocess
import sys

from test_program import Bench, Run, one_line
from test_program_weights import (CONTEXT, STILL, VOCABULARY, folder_write, gpt2_config, llama_config,
                                  tensors_of,
                                  train)

LONG = 1100  # a context of more than two passes of a prompt (512 tokens)


def generate(bench, *options):
    device = () if "--device" in options else ("--device", "host")
    return [bench.program, "generate", *device, *map(str, options)]


def prompt_write(path, tokens):
    path.write_text(" ".join(map(str, tokens)))
    return path


def tokens_of(run):
    return [int(line) for line in run.out.splitlines()]


def text(bench, *options):
    return tokens_of(Run(generate(bench, *options)))


def folders(bench):
    """Returns a folder of weights for each family."""
    configs = {"gpt2": gpt2_config(), "llama": llama_config("llama", max_position_embeddings=LONG),
               "mistral": llama_config("mistral", sliding_window=20),
               "qwen2": llama_config("qwen2", tie_word_embeddings=True), "qwen3": llama_config("qwen3")}
    return {name: folder_write(bench.folder / name, config, tensors_of(config, ["BF16"]))
            for name, config in configs.items()}


def texts(bench, name, folder):
    """A folder gives the same text under the least budget, and goes on where a longer prompt holds the text's
    beginning."""
    prompt = prompt_write(bench.folder / "prompt", range(1, 8))
    given = ["--model", folder, "--prompt-ids", prompt, "--chunk-size", "256KiB"]
    whole = Run(generate(bench, *given, "--tokens", 12, "--report"))
    tokens = tokens_of(whole)
    good = len(tokens) == 12 and all(0 <= token < VOCABULARY for token in tokens)
    told = re.search(r"^11 tokens more in ", whole.err, re.MULTILINE) and "\n    keys and values" in whole.err
    bench.tap.ok(whole.status == 0 and good and told, f"{name}: twelve tokens, and a report", whole)
    refusal = Run(generate(bench, *given, "--device-memory", 1))
    least = re.search(r"the least budget is (\d+) bytes", refusal.err)
    bench.tap.ok(refusal.status == 1 and least and refusal.out == "", f"{name}: a byte of memory is refused",
                 refusal)
    tight = Run(generate(bench, *given, "--tokens", 12, "--device-memory", least.group(1)))
    bench.tap.ok(tokens_of(tight) == tokens, f"{name}: the least budget for 256 tokens gives the same text",
                 tight)
    exact = text(bench, *given, "--dtype", "fp32", "--tokens", 12)
    longer = prompt_write(bench.folder / "longer", [*range(1, 8), *exact[:5]])
    rest = Run(generate(bench, "--model", folder, "--prompt-ids", longer, "--dtype", "fp32", "--tokens", 7))
    bench.tap.ok(tokens_of(rest) == exact[5:], f"{name}: a prompt with the text's beginning gives the rest",
                 rest)


def long_prompts(bench, made):
    """A prompt passes in pieces of 512 tokens, of which the last begins earlier."""
    long = [i * 7 % VOCABULARY for i in range(LONG - 2)]
    given = ["--model", made["llama"], "--dtype", "fp32", "--prompt-ids"]
    tokens = text(bench, *given, prompt_write(bench.folder / "long", long[:505]), "--tokens", 20)
    for count in (7, 8, 12):
        longer = prompt_write(bench.folder / "longer", [*long[:505], *tokens[:count]])
        run = Run(generate(bench, *given, longer, "--tokens", 20 - count))
        bench.tap.ok(tokens_of(run) == tokens[count:],
                     f"a prompt of {505 + count} tokens goes on as one of 505", run)
    run = Run(generate(bench, *given, prompt_write(bench.folder / "longest", long)))
    bench.tap.ok(run.status == 0 and len(tokens_of(run)) == 2, "the context's end ends a text", run)


def prompts(bench, made):
    given = ["--model", made["qwen2"], "--tokens", 6, "--prompt-ids"]
    told = text(bench, *given, prompt_write(bench.folder / "one", [5, 6, 7]))
    done = subprocess.run(generate(bench, *given, "-"), input=b"5 6\n7", check=False, capture_output=True)
    same = [int(word) for word in done.stdout.split()] == told
    bench.tap.ok(done.returncode == 0 and same and done.stderr == b"",
                 "a prompt from standard input", done)
    (bench.folder / "spread").write_text("\n\t 5\n\n6   7\n")
    run = Run(generate(bench, *given, bench.folder / "spread"))
    bench.tap.ok(tokens_of(run) == told, "white space of any kind", run)


def sampling(bench, made):
    prompt = prompt_write(bench.folder / "prompt", range(1, 8))
    given = ["--model", made["qwen3"], "--prompt-ids", prompt, "--tokens", 30, "--dtype", "fp32"]
    first, again, other = (text(bench, *given, "--temperature", 1.2, "--seed", seed) for seed in (5, 5, 6))
    bench.tap.ok(first == again and first != other, "a seed fixes the text",
                 (first, other))
    run = Run(generate(bench, *given, "--temperature", 1.2, "--top-k", 1))
    bench.tap.ok(tokens_of(run) == text(bench, *given), "the likeliest of one is the likeliest", run)


def at_once(bench, made):
    """Tokens arrive while others are still to come."""
    prompt = prompt_write(bench.folder / "prompt", range(1, 8))
    command = generate(bench, "--model", made["llama"], "--prompt-ids", prompt, "--tokens", LONG - 7)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        first = os.read(process.stdout.fileno(), 65536)
        running = process.poll() is None
    bench.tap.ok(running and 0 < first.count(b"\n") < LONG - 7, "tokens are written as they are made",
                 first[:80])


def ends(bench):
    """End tokens of generation_config.json and config.json; a checkpoint has those of its run's folder."""
    folder, saved, out = bench.folder / "ends", bench.folder / "saved", bench.folder / "exported"
    config = llama_config("llama")
    folder_write(folder, config, tensors_of(config, ["BF16"]))
    given = ["--prompt-ids", prompt_write(bench.folder / "prompt", range(1, 8)), "--tokens", 12]
    tokens = text(bench, "--model", folder, *given)
    upto = tokens[:tokens.index(tokens[4]) + 1]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [VOCABULARY - 1, tokens[4]]}))
    run = Run(generate(bench, "--model", folder, *given))
    bench.tap.ok(tokens_of(run) == upto, "an end token is the last", run)
    trained = bench.run(*train(bench, folder, *STILL, "--checkpoint", saved, "--export", out))
    for name, at in (("a folder of checkpoints", saved), ("a checkpoint", saved / "step-2"),
                     ("a checkpoint with a slash", f"{saved}/step-2/")):
        run = Run(generate(bench, "--checkpoint", at, *given))
        bench.tap.ok(trained.status == 0 and tokens_of(run) == upto,
                     f"{name}: the text of the run's folder", run)
    run = Run(generate(bench, "--model", out, *given))
    bench.tap.ok(tokens_of(run) == upto, "an export: the same text", run)
    (folder / "generation_config.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": tokens[4]}))
    run = Run(generate(bench, "--model", folder, *given))
    bench.tap.ok(tokens_of(run) == upto, "an end token of config.json", run)
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": "</s>"}))
    one_line(bench, "an end token that is none", 1, 'config.json: field "eos_token_id" must be',
             command=generate(bench, "--model", folder, *given))


def bad_prompts(bench, made):
    given = ["--model", made["gpt2"], "--prompt-ids"]
    for name, content, status, part in (
            ("an empty prompt", " \n", 2, "the prompt is empty"),
            ("a token outside the vocabulary", f"1 {VOCABULARY}", 2,
             f"token 2 of the prompt is {VOCABULARY}: the vocabulary has tokens 0 to {VOCABULARY - 1}"),
            ("a prompt as long as the context", "3 " * CONTEXT, 2,
             f"the prompt has {CONTEXT} tokens: the model's context of {CONTEXT} leaves no place"),
            ("a word in the prompt", "1 2\n3 four", 1, 'line 2: "four" is no token id'),
            ("a number below 0", "1 -2", 1, 'line 1: "-2" is no token id'),
            ("a fraction", "1.5", 1, '"1.5" is no token id'),
            ("a large number", "1\n\n2147483648", 1, 'line 3: "2147483648" is no token id'),
            ("a huge number", "9" * 50, 1, "is no token id"),
            ("bytes that are no text", "1 \x01\x02", 1, "is no token id")):
        (bench.folder / "bad").write_text(content)
        one_line(bench, name, status, part, command=generate(bench, *given, bench.folder / "bad"))
    for name, part, path in (("no such file", "nothing: can't be opened: No such", bench.folder / "nothing"),
                             ("a folder as prompt", "can't be read: Is a directory", bench.folder)):
        one_line(bench, name, 1, part, command=generate(bench, *given, path))


def refused(bench, made):
    folder = made["gpt2"]
    rest = ["--prompt-ids", prompt_write(bench.folder / "prompt", range(1, 8))]
    wide = prompt_write(bench.folder / "wide", range(20))
    for name, status, part, options in (
            ("no prompt", 2, "--prompt-ids", ["--model", folder]),
            ("no model", 2, "--model DIR or --checkpoint DIR is required", rest),
            ("two models", 2, "--model or --checkpoint, not both",
             ["--model", folder, *rest, "--checkpoint", folder]),
            ("a preset", 2, "gpt2-nano is a preset and has no weights", ["--model", "gpt2-nano", *rest]),
            ("a config.json", 2, "is no folder and has no weights",
             ["--model", folder / "config.json", *rest]),
            ("no checkpoint", 1, "holds no checkpoint", ["--checkpoint", bench.folder / "none", *rest]),
            ("no tokens", 2, "--tokens 0", ["--model", folder, *rest, "--tokens", 0]),
            ("the null device", 2, "null device computes nothing",
             ["--model", folder, *rest, "--device", "null"]),
            ("an unknown device", 2, "tpu", ["--model", folder, *rest, "--device", "tpu"]),
            ("no power of two", 2, "chunk", ["--model", folder, *rest, "--chunk-size", "3MiB"]),
            ("more than the window", 2, "sliding window of 20 positions, .*; 13 new tokens would do",
             ["--model", made["mistral"], *rest]),
            ("a prompt beyond the window", 2, "sliding window of 20 positions",
             ["--model", made["mistral"], "--prompt-ids", wide])):
        one_line(bench, name, status, part, command=generate(bench, *options))
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = generate(bench, "--model", folder, *rest)
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    bench.tap.ok(done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"No space left" in done.stderr,
                 "output that can't be written: status 1, one line", done)


def main(program):
    bench = Bench(program, False)
    try:
        made = folders(bench)
        for name, folder in made.items():
            if name != "mistral":
                texts(bench, name, folder)
        prompts(bench, made)
        long_prompts(bench, made)
        sampling(bench, made)
        at_once(bench, made)
        ends(bench)
        bad_prompts(bench, made)
        refused(bench, made)
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main(sys.argv[1])
