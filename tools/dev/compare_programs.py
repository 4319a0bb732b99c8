#!/usr/bin/env python3
"""Two builds of the program, one result: equal metrics, checkpoints and last words, and each goes on where the other stopped.

usage: compare_programs.py OLD NEW [--full] [--first N] [--seed N] [--model NAME|FILE]      prints TAP

OLD and NEW train a small model (gpt2-nano; --model: one of a context of at least 64 tokens) under the same settings. To the last
bit equal must be
  - every field of the metrics' lines, but those that TIMES and MOVES name,
  - every file of every checkpoint (none of them holds a time),
  - what is said of validation losses, and the sample at the end;
and so must be the second half of a run whose first half the other program trained: OLD resumes from NEW's checkpoint, NEW
from OLD's. A difference is a line with its setting, its file and the first field, or the first byte and its tensor.

A setting is a cell of the campaign's product (tests/program/test_program.py) times dtype and clipping: by default a few that hold every
pair of values (minutes), the whole product with --full (hours), of either the first N with --first. What else a run is told
(REST) is dealt out to the cells by --seed, every combination once before one comes again; the programs train with that seed.

How much is moved, and when, is no result: it is compared on the null device, where it depends on the manager alone, and told.
The exit status does not count it, nor a least budget that is another: the larger of the two is used.

Scratch folders are in TMPDIR, some 2 GiB. Exit status 0: no difference, 1: some, 2: usage.
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
CELLS = {**campaign.SETTINGS, "dtype": campaign.DTYPES, "clip": (1, 0)}
REST = {"micro-batch": (2, 1, 4), "threads": (1, 2), "save-every": (HALF, 1), "host": ("default", "least"),
        "checks": ("on", "off")}
# Fields of the metrics that are no results.
TIMES = re.compile(r"_seconds$|^tokens_per_second$|^version$")
MOVES = {"h2d_bytes", "d2h_bytes", "collective_bytes", "evictions", "demand_fetches", "prefetches", "device_bytes_peak",
         "host_bytes_peak"}
TOLD = 12  # differences of one comparison


def settings(full, first, seed):
    """Each a dict; the order of the cells is the product's, what is dealt to them is random."""
    product = (dict(zip(CELLS, values)) for values in itertools.product(*CELLS.values()))
    cells = filter(campaign.can_fit, product) if full else campaign.pairwise(CELLS)
    rest = [dict(zip(REST, values)) for values in itertools.product(*REST.values())]
    generator = random.Random(seed)
    for number, cell in enumerate(itertools.islice(cells, first)):
        if number % len(rest) == 0:
            generator.shuffle(rest)
        yield {**cell, **rest[number % len(rest)]}


# The machine of tests/program/machines/small.json, as programs before --machine were told of it.
RATES = ("--machine-flops", "1e12", "--machine-device-rate", "50GB/s", "--machine-host-rate", "20GB/s", "--machine-map-us", "100",
         "--link-bandwidth", "10GB/s")


# ---- a run ----

def told(bench, setting, seed):
    """The options, but for budgets and files. The campaign asks for budgets with what stands before --checks."""
    options = campaign.identity_options(bench, setting, setting["dtype"], STEPS)
    given = {**dict(zip(options[::2], options[1::2])), "--vocab-size": 257, "--eval-every": HALF, "--sample": 12,
             "--seed": seed, "--clip": setting["clip"], "--micro-batch": setting["micro-batch"],
             "--threads": setting["threads"]}
    given.pop("--checks", None)
    return [word for pair in (*given.items(), ("--checks", setting["checks"])) for word in pair]


def larger(found):
    return max(found, key=lambda options: int(options[-1]))


def budgets(sides, setting, options, remarks):
    """The budgets as options, the larger where the programs need more or less; None where the setting's is below the least."""
    found = [campaign.budget_options(side, setting, options, campaign.nano_model_bytes(side, setting["dtype"]))
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
    """What a run left: lines of metrics, checkpoints, last words. `source`: a result from whose middle it goes on."""

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
        self.words = re.findall(r"^validation .*|^sample of (?s:.*)", self.run.out, re.MULTILINE)


def lines_read(path):
    """Numbers stay as they are written: no bit is lost, and none forgiven."""
    if not path.exists():
        return []
    return [json.loads(line, parse_float=str, parse_int=str) for line in path.read_text().splitlines()]


# ---- what differs ----

def fields_differ(old, new, left_out):
    """(field, old value, new value) of every field that counts."""
    for name in dict.fromkeys([*old, *new]):
        if not left_out(name) and old.get(name, "missing") != new.get(name, "missing"):
            yield name, old.get(name, "missing"), new.get(name, "missing")


def lines_differ(old, new, left_out):
    """The first field of each line of metrics."""
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
    """Where in a tensor file a byte is, in words."""
    length = int.from_bytes(content[:8], "little")
    if offset < 8 + length:
        return "its header"
    header = json.loads(content[8:8 + length])
    for name, tensor in header.items():
        if name != "__metadata__" and tensor["data_offsets"][0] <= offset - 8 - length < tensor["data_offsets"][1]:
            return f"{name}, element {(offset - 8 - length - tensor['data_offsets'][0]) // 4}"
    return "no tensor"


def manifest_at(old, new):
    """The first field of the training state that differs, in words. The other fields follow from the other files."""
    before, after = (json.loads(content, parse_float=str, parse_int=str)["state"] for content in (old, new))
    found = next(fields_differ(before, after, lambda name: False), None)
    return "{} {} / {}".format(*found) if found else "its state is equal"


def file_differs(name, old, new):
    """A line, or None. Pieces, so that a long file that differs late takes no time."""
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
    """Checkpoints of steps from `from_step` on: names, then bytes. Whatever else lies there counts, too."""
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
    """Lines; `new` may be a run that began after `from_step` - 1."""
    for name, result in (("the first", old), ("the second", new)):
        if not result.good:
            last = (result.run.err.splitlines() or result.run.out.splitlines() or [""])[-1]
            yield f"{name} failed: exit status {result.run.status}: {last}"
    if old.good and new.good:
        yield from lines_differ(old.lines[from_step - 1:], new.lines, lambda name: TIMES.search(name) or name in MOVES)
        yield from words_differ(old.words[-len(new.words):], new.words)
        yield from folders_differ(old.saved, new.saved, from_step)


def moves_differ(old, new):
    """At most one line: the first step that moves something else, or the first of which only times differ."""
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
    """The two programs (`sides`, OLD first), TAP, and sums of what they move."""

    def __init__(self, old, new, seed, model):
        self.sides = [campaign.Bench(program, full=False) for program in (old, new)]
        for side in self.sides:
            side.model = model
            if "--machine-flops" in side.run("--help").out:
                side.machine = RATES
        self.sides[1].text = self.sides[0].text  # a resumed run wants its data
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
                other = Result(self.sides[at], given, folder / f"resumed-{at}", first)
                self.check(f"{name}: {word}", results_differ(first, other, HALF + 1))
        self.moves(name, options[:options.index("--checks")] + found, folder, remarks)
        shutil.rmtree(folder)

    def moves(self, name, options, folder, remarks):
        """On the null device, whose clock is virtual: every field of every line."""
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
