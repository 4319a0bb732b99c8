#!/usr/bin/env python3
"""Tests that two builds of the program compute the same results, and that each can resume from the other's
checkpoints.

usage: compare_programs.py OLD NEW [--full] [--first N] [--seed N] [--model NAME|FILE]      prints TAP

OLD and NEW train a small model (gpt2-nano; --model names another one with a context of at least 64 tokens)
with the same settings. These must be equal to the last bit:
  - every field of the metrics' lines except those that TIMES and MOVES name,
  - every file of every checkpoint (none contains a time), except a manifest's version and checksum,
  - the printed validation losses, and the sample at the end.
The second half of a run must also be equal if the other program trained the first half: OLD resumes from
NEW's checkpoint (unless OLD refuses the manifest of a later version), and NEW from OLD's. Each difference
is printed with its setting, its file, and the first field or the first byte and its tensor.

A setting is a cell of the product of SETTINGS, dtype and clipping. By default a few cells are tested that
include every pair of values (minutes); with --full all cells (hours); with --first the first N of them.
Further options (REST) are assigned to the cells at random by --seed; all their combinations are used before
one is used again. The programs train with that seed, too.

The bytes that move, and when, may differ. They are compared on the null device, where they depend on the
manager alone; a difference is printed but does not change the exit status. If the least budgets of the
programs differ, both run with the larger one.

Needs about 2 GiB in TMPDIR. Exit status 0: no difference, 1: some, 2: wrong command line.
"""
import argparse
import itertools
import json
import os
import random
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/program"))
import test_program as campaign  # noqa: E402

STEPS = 6
HALF = 3
SETTINGS = {
    "budget": ("unlimited", "least", "half", "quarter"),
    "chunk": ("1MiB", "4MiB", "16MiB", "64MiB"),
    "prefetch": ("on", "off"),
    "recompute": ("none", "all"),
    "placement": ("auto", "host", "device"),
}
DTYPES = ("bf16", "fp16", "fp32")
CELLS = {**SETTINGS, "dtype": DTYPES, "clip": (1, 0)}
REST = {"micro-batch": (2, 1, 4), "threads": (1, 2), "save-every": (HALF, 1), "host": ("default", "least"),
        "checks": ("on", "off")}
# Fields of the metrics that may differ.
TIMES = re.compile(r"_seconds$|^tokens_per_second$|^version$")
MOVES = {"h2d_bytes", "d2h_bytes", "collective_bytes", "evictions", "demand_fetches", "prefetches", "device_bytes_peak",
         "host_bytes_peak"}
VERSION = re.compile(rb'(?<="version": )\d+|(?<="crc32c":")\w+')  # a manifest's, and the checksum of its text
TOLD = 12  # most differences of one comparison that are printed


def can_fit(choice):
    """Whether a budget of half or a quarter of this small model's data can hold the slots of such large
    chunks."""
    fitting = {"half": ("1MiB", "4MiB"), "quarter": ("1MiB",)}
    return choice["chunk"] in fitting.get(choice["budget"], SETTINGS["chunk"])


def pairwise(settings):
    """Chooses few combinations that cover every pair of values: greedily, the one that covers most of the
    remaining pairs."""
    product = [dict(zip(settings, values)) for values in itertools.product(*settings.values())]
    product = [choice for choice in product if can_fit(choice)]
    rest = {pair for choice in product for pair in itertools.combinations(choice.items(), 2)}
    while rest:
        best = max(product, key=lambda one: len(rest & set(itertools.combinations(one.items(), 2))))
        rest -= set(itertools.combinations(best.items(), 2))
        yield best


def setting_options(bench, choice, dtype, steps):
    return campaign.nano(bench, "--steps", steps, "--dtype", dtype, "--chunk-size", choice["chunk"],
                         "--prefetch", choice["prefetch"], "--recompute", choice["recompute"],
                         "--optimizer-placement", choice["placement"], "--checks", "on")


def budget_options(bench, choice, options, model_bytes):
    """Returns the options for the choice's budget; None if that budget is below the least one."""
    if choice["budget"] == "unlimited":
        return ["--device-memory", campaign.full_bytes(bench, options[:options.index("--checks")])]
    refusal = bench.run(*options, "--device-memory", 1)
    least = campaign.least_named(refusal.err)
    if least is None:
        return ["--device-memory", "1"]  # this run fails, and its message says why
    wanted = {"least": least, "half": model_bytes // 2, "quarter": model_bytes // 4}[choice["budget"]]
    return None if wanted < least else ["--device-memory", wanted]


def nano_model_bytes(bench, dtype):
    run = bench.run("--model", bench.model, "--device", "null", "--steps", 1, "--dtype", dtype,
                    *bench.machine)
    found = re.search(r"model data +([0-9,]+) B", run.out)
    return int(found.group(1).replace(",", "")) if found else 0


def settings(full, first, seed):
    """Yields each setting as a dict. The cells come in the product's order; the other options are random."""
    product = (dict(zip(CELLS, values)) for values in itertools.product(*CELLS.values()))
    cells = filter(can_fit, product) if full else pairwise(CELLS)
    rest = [dict(zip(REST, values)) for values in itertools.product(*REST.values())]
    generator = random.Random(seed)
    for number, cell in enumerate(itertools.islice(cells, first)):
        if number % len(rest) == 0:
            generator.shuffle(rest)
        yield {**cell, **rest[number % len(rest)]}


# The machine of tests/program/machines/small.json, as options for old programs that have no --machine.
RATES = ("--machine-flops", "1e12", "--machine-device-rate", "50GB/s", "--machine-host-rate", "20GB/s", "--machine-map-us", "100",
         "--link-bandwidth", "10GB/s")


# ---- a run ----

def told(bench, setting, seed):
    """A setting's options, without budgets and files. --checks comes last: the options before it suffice to
    find the budgets."""
    options = setting_options(bench, setting, setting["dtype"], STEPS)
    given = {**dict(zip(options[::2], options[1::2])), "--vocab-size": 257, "--eval-every": HALF, "--sample": 12,
             "--seed": seed, "--clip": setting["clip"], "--micro-batch": setting["micro-batch"],
             "--threads": setting["threads"]}
    given.pop("--checks", None)
    return [word for pair in (*given.items(), ("--checks", setting["checks"])) for word in pair]


def larger(found):
    return max(found, key=lambda options: int(options[-1]))


def budgets(sides, setting, options, remarks):
    """The budgets as options: the larger ones, if the two programs need different ones. None if the setting's
    budget is below the least that works."""
    found = [budget_options(side, setting, options, nano_model_bytes(side, setting["dtype"]))
             for side in sides]
    if None in found:
        return None
    device = larger(found)
    if setting["host"] == "least":
        refusals = [side.run(*options, *device, "--host-memory", "1MiB") for side in sides]
        found.extend(["--host-memory", campaign.least_named(refusal.err) or 1] for refusal in refusals)
        device = device + larger(found[2:])
    for old, new in zip(found[::2], found[1::2]):
        if old != new:
            remarks.append(f"least {old[0]}: {old[1]} / {new[1]}")
    return device


class Result:
    """The results of a run: lines of metrics, checkpoints, printed losses and sample. `source`: the result
    whose checkpoint in the middle the run resumes from; None: it begins anew."""

    def __init__(self, bench, options, folder, source=None):
        self.saved, metrics = folder / "saved", folder / "metrics"
        folder.mkdir(parents=True)
        resume = []
        if source is not None:
            shutil.copytree(source.saved / f"step-{HALF}", self.saved / f"step-{HALF}")
            resume = ["--resume"]
        self.run = bench.run(*options, "--metrics", metrics, "--checkpoint", self.saved, "--keep", 0, *resume)
        self.good = self.run.status == 0 and (source is None or f"/step-{HALF}" in self.run.out)
        self.lines = lines_read(metrics)
        manifest = self.saved / f"step-{HALF}" / "manifest.json"
        self.version = json.loads(manifest.read_text())["version"] if self.good else 0
        self.words = re.findall(r"^validation .*|^sample of (?s:.*)", self.run.out, re.MULTILINE)


def lines_read(path):
    """Reads lines of JSON. Numbers stay text, so that the comparison sees every digit."""
    if not path.exists():
        return []
    return [json.loads(line, parse_float=str, parse_int=str) for line in path.read_text().splitlines()]


# ---- differences ----

def fields_differ(old, new, left_out):
    """Yields (field, old value, new value) for each field that differs, except those that `left_out` accepts.
    """
    for name in dict.fromkeys([*old, *new]):
        if not left_out(name) and old.get(name, "missing") != new.get(name, "missing"):
            yield name, old.get(name, "missing"), new.get(name, "missing")


def lines_differ(old, new, left_out):
    """Yields, for each line of metrics that differs, the first field that does."""
    if len(old) != len(new):
        yield f"metrics: {len(old)} lines / {len(new)}"
    for one, two in zip(old, new):
        found = list(fields_differ(one, two, left_out))
        if found:
            name, before, after = found[0]
            yield f"metrics: step {one['step']}: {name} {before} / {after}" + \
                  (f" (and {len(found) - 1} fields more)" if found[1:] else "")


def words_differ(old, new):
    for one, two in itertools.zip_longest(old, new, fillvalue=""):
        if one != two:
            yield f"output: {one!r} / {two!r}"


def tensor_at(content, offset):
    """Describes the position of a byte in a tensor file: its tensor and element."""
    length = int.from_bytes(content[:8], "little")
    if offset < 8 + length:
        return "its header"
    header = json.loads(content[8:8 + length])
    for name, tensor in header.items():
        if name != "__metadata__" and tensor["data_offsets"][0] <= offset - 8 - length < tensor["data_offsets"][1]:
            return f"{name}, element {(offset - 8 - length - tensor['data_offsets'][0]) // 4}"
    return "no tensor"


def manifest_at(old, new):
    """Describes the first field of the training state that differs. The other fields of a manifest follow
    from the other files."""
    before, after = (json.loads(content, parse_float=str, parse_int=str)["state"] for content in (old, new))
    found = next(fields_differ(before, after, lambda name: False), None)
    return "{} {} / {}".format(*found) if found else "its state is equal"


def file_differs(name, old, new):
    """Describes the first byte that differs; None if the files are equal. Compares pieces, which is fast even
    if a long file differs only near its end."""
    if name.endswith("manifest.json"):
        old, new = VERSION.sub(b"0", old), VERSION.sub(b"0", new)
    if old == new:
        return None
    least = min(len(old), len(new))
    piece = next((at for at in range(0, least, 4096) if old[at:at + 4096] != new[at:at + 4096]), least)
    offset = next((at for at in range(piece, min(piece + 4096, least)) if old[at] != new[at]), least)
    if offset == least:
        return f"{name}: {len(old)} bytes / {len(new)}"
    try:
        where = manifest_at(old, new) if name.endswith("manifest.json") else tensor_at(old, offset)
    except (ValueError, KeyError):
        where = "damaged"
    return f"{name}: byte {offset}: 0x{old[offset]:02x} / 0x{new[offset]:02x} ({where})"


def folders_differ(old, new, from_step):
    """Compares the files of checkpoints from `from_step` on, and all other files in the folders: names, then
    bytes."""
    def files(folder):
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
                      and not any(path.is_relative_to(folder / f"step-{step}") for step in range(from_step)))
    names = files(old), files(new)
    for name in sorted(set(names[0]) ^ set(names[1])):
        yield f"{name}: only {'the first' if name in names[0] else 'the second'} has it"
    for name in sorted(set(names[0]) & set(names[1])):
        line = file_differs(name, (old / name).read_bytes(), (new / name).read_bytes())
        if line:
            yield line


def results_differ(old, new, from_step):
    """Yields a line for each difference. `new` may be a run that resumed after step `from_step` - 1."""
    for name, result in (("the first", old), ("the second", new)):
        if not result.good:
            last = (result.run.err.splitlines() or result.run.out.splitlines() or [""])[-1]
            yield f"{name} failed: exit status {result.run.status}: {last}"
    if old.good and new.good:
        yield from lines_differ(old.lines[from_step - 1:], new.lines, lambda name: TIMES.search(name) or name in MOVES)
        yield from words_differ(old.words[-len(new.words):], new.words)
        yield from folders_differ(old.saved, new.saved, from_step)


def moves_differ(old, new):
    """Yields at most one line, for the first step whose moves differ or, if none do, the first whose times
    do."""
    if not old or len(old) != len(new):
        yield f"on the null device {len(old)} steps / {len(new)}"
        return
    found = [(one["step"], list(fields_differ(one, two, lambda name: False))) for one, two in zip(old, new)]
    moved = [(step, [each for each in fields if each[0] in MOVES]) for step, fields in found]
    step, fields = next((each for each in moved + found if each[1]), (0, []))
    if fields:
        yield f"step {step}: " + ", ".join("{} {} / {}".format(*each) for each in fields[:TOLD])


# ---- comparisons ----

class Comparison:
    """The two programs (`sides`, OLD first), the TAP output, and the sums of the bytes that each moves."""

    def __init__(self, old, new, seed, model):
        self.sides = [campaign.Bench(program, full=False) for program in (old, new)]
        for side in self.sides:
            side.model = model
            if "--machine-flops" in side.run("--help").out:
                side.machine = RATES
        self.sides[1].text = self.sides[0].text  # a run resumes only with the data that it began with
        self.seed, self.tap, self.failed = seed, campaign.Tap(), False
        self.moved, self.settings, self.moves_equal = [0, 0], 0, 0

    def check(self, name, differences):
        lines = list(differences)
        more = [f"and {len(lines) - TOLD} more"] if len(lines) > TOLD else []
        self.failed |= not self.tap.ok(not lines, name, "\n".join(lines[:TOLD] + more))

    def compare(self, setting):
        name, remarks = ", ".join(f"{key} {value}" for key, value in setting.items()), []
        options = told(self.sides[0], setting, self.seed)
        found = budgets(self.sides, setting, options, remarks)
        if found is None:
            self.tap.skip(name, "the budget is below the least that works")
            return
        folder = self.sides[0].folder / "setting"
        given = [*options, *found, "--save-every", setting["save-every"]]
        old, new = (Result(side, given, folder / f"{at}") for at, side in enumerate(self.sides))
        self.check(f"{name}: OLD / NEW", results_differ(old, new, 1))
        if old.good and new.good:
            for at, first, word in ((1, old, "OLD / NEW goes on with OLD's"), (0, new, "NEW / OLD goes on with NEW's")):
                if at == 0 and old.version < new.version:
                    self.tap.skip(f"{name}: {word}", f"OLD refuses a manifest of version {new.version}")
                    continue
                other = Result(self.sides[at], given, folder / f"resumed-{at}", first)
                self.check(f"{name}: {word}", results_differ(first, other, HALF + 1))
        self.moves(name, options[:options.index("--checks")] + found, folder, remarks)
        shutil.rmtree(folder)

    def moves(self, name, options, folder, remarks):
        """Compares the moves on the null device, whose clock is simulated: every field of every line must be
        equal."""
        rows = []
        for at, side in enumerate(self.sides):
            run = side.run(*options, "--device", "null", *side.machine, "--metrics", folder / f"moves-{at}")
            rows.append(lines_read(folder / f"moves-{at}") if run.status == 0 else [])
            self.moved[at] += sum(int(row["h2d_bytes"]) + int(row["d2h_bytes"]) for row in rows[at])
        remarks.extend(moves_differ(*rows))
        self.settings += 1
        self.moves_equal += not remarks
        for remark in remarks:
            print(f"# moves: {name}: {remark}", flush=True)

    def close(self):
        for side in self.sides:
            side.close()
        print(f"# moves: equal in {self.moves_equal} of {self.settings} settings; "
              f"bytes {self.moved[0]} / {self.moved[1]}")
        self.tap.done()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--first", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--model", default="gpt2-nano", metavar="NAME|FILE")
    arguments = parser.parse_args()
    for program in (arguments.old, arguments.new):
        if not (os.path.isfile(program) and os.access(program, os.X_OK)):
            parser.error(f"{program}: no program")
    if arguments.seed < 0 or (arguments.first is not None and arguments.first < 1):
        parser.error("--first is at least 1, --seed at least 0")
    comparison = Comparison(os.path.abspath(arguments.old), os.path.abspath(arguments.new), arguments.seed, arguments.model)
    try:
        for setting in settings(arguments.full, arguments.first, arguments.seed):
            comparison.compare(setting)
    finally:
        comparison.close()
    return 1 if comparison.failed else 0


if __name__ == "__main__":
    sys.exit(main())
