#!/usr/bin/env python3
"""Tests that runs of several ranks have the bits of one process, in random settings.

usage: ranks_check.py PROGRAM [COUNT] [--seed N] [--only NUMBER]      prints TAP; COUNT is 200 by default

A case trains a small model in one process with --sum-groups V, and again by N ranks, which differ in chunk
size, budgets, placement, prefetch and delays. These must be equal: loss, norm and loss scale of each step in
the metrics, the bytes of all checkpoints, and the printed validation losses and sample. In some cases
the ranks change in the middle: 4, then 2, 1 and 8 ranks go on with each other's checkpoints.

The settings are random, by --seed; each is the one of many candidates that has the most pairs of
values that no case before it had. --only runs the case of this number alone. Two cases run at a time.
Exit status 0: no difference, 1: some.
"""
import argparse
import itertools
import json
import random
import re
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compare_programs import folders_differ, lines_differ, lines_read, words_differ
from rank_group import Group

from test_program import Bench, least_named
from test_program_documents import conversations, shard
from test_program_weights import llama_config

AT_ONCE, CANDIDATES, GUARD_S, VOCABULARY = 2, 60, 240, 257
RELAY, RELAY_STEPS = (4, 2, 1, 8), 2
MODELS = ("gpt2-nano", "llama-nano", "gpt2", "llama", "llama-tied", "qwen3")
FACTORS = {
    # sum groups, ranks: V=8 on 2, 4, 8; V=12 on 3, 6; V=24 on 3, 6; each against one rank
    "ranks": ((8, 2), (8, 4), (8, 8), (12, 3), (12, 6), (24, 3), (24, 6), (8, RELAY)),
    "model": MODELS,
    "dtype": ("fp32", "bf16", "fp16"),
    "reduce": ("fp32", "bf16"),
    "clip": (1, 0, 0.05),
    "recompute": ("auto", "none", "all"),
    "freeze": ("nothing", "embedding", "block"),
    "data": ("text", "packed"),
    "micro-batch": (1, 2),
    "micro-batches": (1, 2),  # of a sum group
    "between": ("nothing", "evaluations and saves"),
    "chunk": ("small", "large", "mixed"),
    "budget": ("none", "least", "mixed"),
    "placement": ("auto", "host", "device", "mixed"),
    "prefetch": ("on", "off", "mixed"),
    "checks": ("off", "on", "delays"),
}
EQUAL = {"step", "loss", "grad_norm", "lr", "loss_scale", "tokens", "learned_tokens", "skipped"}
FROZEN = {"embedding": {"gpt2": "wte*", "llama": "*embed_tokens*"},
          "block": {"gpt2": "h.0.*", "llama": "*layers.0.*"}}


def pairs(setting):
    return set(itertools.combinations(setting.items(), 2))


def settings(count, seed):
    generator, had = random.Random(seed), set()
    for _ in range(count):
        candidates = [{name: generator.choice(values) for name, values in FACTORS.items()}
                      for _ in range(CANDIDATES)]
        setting = max(candidates, key=lambda one: len(pairs(one) - had))
        had |= pairs(setting)
        yield setting
    every = sum(len(one) * len(two) for one, two in itertools.combinations(FACTORS.values(), 2))
    print(f"# {len(had)} of {every} pairs of values")


class Files:
    """Models and data, by their names in FACTORS."""

    def __init__(self, bench):
        self.bench = bench
        packed, val = bench.folder / "packed.bin", bench.folder / "val.bin"
        shard(packed, conversations(200, 17))
        shard(val, conversations(30, 17, seed=4))
        self.data = {"text": ["--data", bench.text], "packed": ["--data", packed, "--eval-data", val]}
        self.models = {"gpt2": bench.tiny}
        made = (("llama", "llama", False), ("llama-tied", "llama", True), ("qwen3", "qwen3", True))
        for name, family, tied in made:
            config = {**llama_config(family, tie_word_embeddings=tied), "vocab_size": VOCABULARY}
            self.models[name] = bench.folder / f"{name}.json"
            self.models[name].write_text(json.dumps(config))

    def model(self, name):
        if name in self.models:
            return ["--model", self.models[name]]
        return ["--model", name, "--vocab-size", VOCABULARY]


def options_of(files, setting, steps):
    """The options that change a result."""
    groups = setting["ranks"][0]
    sequences = groups * setting["micro-batch"] * setting["micro-batches"]
    family = "gpt2" if setting["model"].startswith("gpt2") else "llama"
    given = {"--steps": steps, "--dtype": setting["dtype"], "--reduce": setting["reduce"],
             "--sum-groups": groups, "--clip": setting["clip"], "--recompute": setting["recompute"],
             "--seq-len": 16, "--batch-tokens": 16 * sequences, "--micro-batch": setting["micro-batch"],
             "--threads": 1, "--keep": 0, "--schedule": "constant", "--warmup": 2}
    if setting["freeze"] != "nothing":
        given["--freeze"] = FROZEN[setting["freeze"]][family]
    given.update({"--eval-every": 2, "--save-every": 2, "--sample": 5} if setting["between"] != "nothing" else
                 {"--eval-every": 0, "--sample": 0})
    return [*files.model(setting["model"]), *files.data[setting["data"]],
            *(word for pair in given.items() for word in pair)]


def own_options(setting, rank, generator):
    """The options in which ranks may differ."""
    small, large = ("1MiB", "4MiB") if "nano" in setting["model"] else ("256KiB", "1MiB")
    mixed = {"chunk": (small, large), "placement": ("auto", "host", "device"), "prefetch": ("on", "off")}
    chosen = {name: generator.choice(values) if setting[name] == "mixed" else setting[name]
              for name, values in mixed.items()}
    own = ["--chunk-size", {"small": small, "large": large}.get(chosen["chunk"], chosen["chunk"]),
           "--optimizer-placement", chosen["placement"], "--prefetch", chosen["prefetch"]]
    if setting["checks"] != "off":
        own += ["--checks", "on"]
    return own + (["--delays", rank + 1] if setting["checks"] == "delays" else [])


class Failed(Exception):
    pass


class Case:
    def __init__(self, files, number, setting, seed):
        self.files, self.bench, self.setting = files, files.bench, setting
        self.generator = random.Random(f"{seed} {number}")
        self.folder = self.bench.folder / f"case-{number}"
        self.folder.mkdir()
        self.name = f"{number}: " + ", ".join(f"{name} {value}" for name, value in setting.items())
        self.least = {}  # by options

    def result(self, name):
        """The options by which a run writes into files of this name."""
        return ["--metrics", self.folder / f"{name}.jsonl", "--checkpoint", self.folder / name]

    def budget(self, options, own, ranks):
        """The least budgets of one of so many ranks with these options."""
        told = tuple(map(str, own))
        if (told, ranks) not in self.least:
            found = []
            for option, least_s in (("--device-memory", 1), ("--host-memory", "64KiB")):
                run = self.bench.run(*options, *own, *found, "--ranks", ranks, option, least_s)
                least = least_named(run.err)
                if run.status == 0 or (least is None and option == "--device-memory"):
                    raise Failed(f"no least budget is named with {' '.join(told)}: {run}")
                found += [option, least] if least is not None else []
            self.least[told, ranks] = found
        return self.least[told, ranks]

    def ranks_options(self, options, ranks):
        every = []
        for rank in range(ranks):
            own = own_options(self.setting, rank, self.generator)
            if self.setting["budget"] == "least" or (self.setting["budget"] == "mixed" and rank % 2 == 1):
                own = own + self.budget(options, own, ranks)
            every.append([*options, *own])
        return every

    def train(self, name, ranks, steps):
        """Trains until `steps` are done; returns all that rank 0 prints."""
        options = [*options_of(self.files, self.setting, steps), *self.result(name), "--resume"]
        if ranks == 1:
            run = self.bench.run(*self.ranks_options(options, 1)[0])
            if run.status != 0:
                raise Failed(f"one rank: {run}")
            return run.out
        folder = self.folder / f"{name}-{ranks}-{steps}"
        group = Group(self.bench.program, folder, self.ranks_options(options, ranks))
        late = group.wait(GUARD_S)
        group.kill()
        if late or any(group.status(rank) != 0 or group.err(rank) for rank in range(ranks)):
            raise Failed(f"{ranks} ranks, those still there: {late}\n{group}")
        return group.out()

    def reference(self, steps):
        options = [*options_of(self.files, self.setting, steps), *self.result("one")]
        run = self.bench.run(*options, "--chunk-size", "1MiB")
        if run.status != 0 or run.err:
            raise Failed(f"one process: {run}")
        return run.out

    def differences(self):
        ranks = self.setting["ranks"][1]
        stages = ranks if ranks == RELAY else (ranks,)
        steps = RELAY_STEPS * len(stages) if ranks == RELAY else 4
        one = self.reference(steps)
        for number, count in enumerate(stages):
            other = self.train("ranks", count, steps - RELAY_STEPS * (len(stages) - 1 - number))
        first, second = ([line_of(line) for line in lines_read(self.folder / f"{name}.jsonl")]
                         for name in ("one", "ranks"))
        if len(first) != steps or (len({line["loss"] for line in first}) != steps):
            yield f"one process has {len(first)} steps, of losses {[line['loss'] for line in first]}"
        yield from lines_differ(first, second, lambda name: False)
        if ranks != RELAY:
            yield from words_differ(words(one), words(other))
        yield from folders_differ(*(self.last_files(name, steps) for name in ("one", "ranks")), 0)

    def last_files(self, name, steps):
        """The folder of checkpoints, of which all are compared, or after a relay the last alone."""
        folder = self.folder / name
        if self.setting["ranks"][1] == RELAY:
            for path in folder.glob("step-*"):
                if path.name != f"step-{steps}":
                    shutil.rmtree(path)
        if not list(folder.glob(f"step-{steps}/*.safetensors")):
            raise Failed(f"{name} has no checkpoint of step {steps}: {sorted(folder.rglob('*'))}")
        return folder

    def run(self):
        try:
            lines = list(self.differences())
        except Failed as failure:
            lines = [str(failure)]
        if not lines:
            shutil.rmtree(self.folder)
        return lines


def line_of(line):
    return {name: value for name, value in line.items() if name in EQUAL}


def words(out):
    return re.findall(r"^validation .*|^sample of (?s:.*)", out, re.MULTILINE)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("count", nargs="?", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    bench, lock, failed = Bench(given.program, full=False), threading.Lock(), []
    files = Files(bench)
    cases = [Case(files, number, setting, given.seed)
             for number, setting in enumerate(settings(given.count, given.seed), 1)
             if given.only in (None, number)]

    def check(case):
        lines = case.run()
        with lock:
            if not bench.tap.ok(not lines, case.name, "\n".join(lines[:20])):
                failed.append(case)

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(check, cases))
        bench.tap.done()
    finally:
        bench.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
