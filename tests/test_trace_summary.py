#!/usr/bin/env python3
"""tidepool trace summary: what is on its screen, of traces made up and of traces recorded; what it says of other files.

usage: test_trace_summary.py PROGRAM      prints TAP
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from test_program import MACHINES, Tap
from trace_fixture import Trace

LINES_MOST, COLUMNS_MOST = 45, 100
UNITS = {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class Bench:
    def __init__(self, program, folder):
        self.program, self.folder, self.tap = program, Path(folder), Tap()

    def summary(self, *arguments):
        return subprocess.run([self.program, "trace", "summary", *map(str, arguments)], capture_output=True, timeout=60)

    def of(self, text):
        path = self.folder / "run.trace"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return self.summary(path)

    def screen(self, trace, ends=True):
        """The text of a trace that is sound."""
        run = self.of(trace if isinstance(trace, str) else trace.run(ends).text())
        assert run.returncode == 0 and not run.stderr, run
        return run.stdout.decode()

    def ok(self, good, name, detail=""):
        self.tap.ok(good, name, str(detail))


def fits(text):
    """On a screen: what was too long for it is marked, and nothing ends with blanks."""
    lines = text.splitlines()
    return len(lines) <= LINES_MOST and all(
        len(line) < COLUMNS_MOST or len(line) == COLUMNS_MOST and re.search(r"(\w\.\.\.|until \w+ of \d+, \w+)$", line) for line in lines
    ) and not re.search(" $", text, re.M)


def seconds(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


def part(text, name):
    """Seconds and percent of a line of the split."""
    found = re.search(rf"^  {name} +([\d.]+ [mun]?s) +([\d.]+)%", text, re.M)
    return (seconds(found[1]), float(found[2])) if found else (0, 0)


def time_is_split(bench):
    trace = Trace(layers=8, slots=5, steps=6)
    text = bench.screen(trace)
    bench.ok(fits(text), "a summary fits a screen", text)
    names = ["compute", *(f"stall: {cause}" for cause in ("link", "room", "update", "norm", "map", "caller")), "neither"]
    shares = [part(text, name)[1] for name in names]
    bench.ok(abs(sum(shares) - 100) < 0.5, "the parts of a step add up to it", text)
    bench.ok(abs(part(text, "compute")[0] - 16 * 2e-3) < 1e-4, "compute is what kernels took", text)
    bench.ok("steps 3 to 5, of 6 whole ones" in text, "warm-up and the run's last step are left out", text)
    bench.ok("warning" not in text, "sums that agree are not told", text)


def moves_are_told(bench):
    text = bench.screen(Trace(layers=8, slots=5, steps=6))
    bench.ok(re.search(r"to the device +22 MiB +22 MiB +12 MiB +0 B +demand 22 MiB", text), "bytes against planned and least",
             text)
    bench.ok("of 16 chunks asked for a step, 31.2% were there" in text, "the hit rate is what requests lacked", text)
    bench.ok(re.search(r"^ +0 +3\.0x +6 MiB h\.0\.w0 \+1 ", text, re.M),
             "chunks that moved most, with their params", text)
    bench.ok(re.search(r"room +step 3, 1 of 3, block 2 backward: chunk 2 \(h\.2\.w0 \+1\); until evict of 7 \(demand\)",
                       text),
             "a stall has its op, chunk, cause and what ended it", text)


def unusual_things_are_told(bench):
    slow = bench.screen(Trace(layers=4, slots=5, steps=6, slow={(4, 2): 3}, works=(("data", 1000), ("save", 2_000_000))))
    bench.ok("median: 1\n" in slow and re.search(r"6\.00 ms, not 2\.00 ms, step 4, block 2 forward", slow),
             "a slow kernel is told, and no other", slow)
    bench.ok("between steps: data 6 x 1.00 us, save 6 x 2.00 ms" in slow, "work between steps is told", slow)
    killed = bench.screen(Trace(steps=4), ends=False)
    bench.ok("the run was killed" in killed, "a run that was killed is told", killed)
    text = Trace(steps=4).run().text().replace('"busy_ns":2000000', '"busy_ns":1000000')
    wrong = bench.screen(text)
    bench.ok("warning: 4 of 4 steps" in wrong and "compute_seconds" in wrong and fits(wrong),
             "sums that don't agree are told", wrong)
    dropped = Trace(steps=4).run().text().replace('"dropped":0}', '"dropped":12345}')
    bench.ok("12,345 dropped" in bench.screen(dropped), "dropped events are told", dropped[-200:])


def rows_are_cut_between_words(bench):
    text = Trace(layers=8, slots=5, steps=6).run().text()
    text = re.sub(r'"name":"(h\.\d|block \d)', r'"name":"a_very_long_name_of_a_module_inside_another_\1', text)
    text = text.replace('"predicted":true', '"predicted":false')
    stalls = re.findall(r"^ +[\d.]+ [mun]?s (?:room|update) .*", bench.screen(text), re.M)
    end = r", (\S.*): chunk \d( \(.*\))?, not predicted; until evict of \d \(demand\)$"
    ended = [re.search(end, row) for row in stalls]
    bench.ok(len(stalls) == 5 and all(ended) and all(len(row) <= COLUMNS_MOST for row in stalls),
             "names become shorter so that a row has what ended the stall", "\n".join(stalls))
    bench.ok(all(row[1].endswith(("...", "between ops")) for row in ended if row), "and are marked where they do",
             "\n".join(stalls))
    works = tuple((f"{letter * 30} some work", 1000) for letter in "abcdef")
    row = re.search("^between steps: .*", bench.screen(Trace(steps=4, works=works)), re.M)[0]
    bench.ok(len(row) <= COLUMNS_MOST and row.endswith("...") and "a" * 21 + "... 4 x 1.00 us, " in row,
             "a row that is too long ends with a mark", row)


def partly_full_chunks_count_whole(bench):
    text = Trace(layers=8, slots=5, steps=6).run().text().replace('"bytes":2097152', '"bytes":1048576')
    bench.ok(re.search(r"to the device +22 MiB +22 MiB +12 MiB +0 B +demand 11 MiB", bench.screen(text)),
             "what moved is compared with plans in whole chunks, as these count", bench.screen(text))


def terminals_are_spared(bench):
    text = bench.screen(Trace(model="\x1b[2J\x07" + "é" * 200))
    bench.ok("\x1b" not in text and "\x07" not in text and fits(text),
             "control characters of names do not reach the terminal", text)


def empty_traces(bench):
    text = bench.screen(Trace(steps=0))
    bench.ok("\nno whole step in the trace; " in text and fits(text), "a trace without a step has a summary", text)
    first = Trace(steps=0).run().text().splitlines()[0] + "\n"
    bench.ok("no whole step" in bench.screen(first), "a trace of one line has a summary")


def refused(bench, name, run, status, part_of_line):
    lines = run.stderr.decode(errors="replace").splitlines()
    good = run.returncode == status and len(lines) == 1 and part_of_line in lines[0] and not run.stdout
    bench.ok(good, name, run)


def what_is_no_trace(bench):
    text = Trace().run().text()
    lines = text.splitlines()
    refused(bench, "format 1", bench.of('{"format":1, "tidepool":"0.1.0"}\n'), 1,
            "run.trace:1: a trace of format 1, which an older")
    refused(bench, "another JSON", bench.of('{"a":1}\n'), 1, "run.trace:1: not a trace")
    refused(bench, "bytes", bench.of(bytes(range(256)) * 99), 1, "run.trace:1: not a trace")
    refused(bench, "an empty file", bench.of(""), 1, "the file is empty")
    refused(bench, "a damaged line", bench.of(text.replace('"chunk":3,', '"chunk":333,', 1)), 1, "run.trace:")
    lines[200] = lines[200][:-5]
    refused(bench, "a line that breaks off in the middle", bench.of("\n".join(lines)), 1, "run.trace:201: ")
    refused(bench, "no such file", bench.summary(bench.folder / "none"), 1, "none: can't be opened: No such file")
    refused(bench, "no file named", bench.summary(), 2, "FILE is required")
    refused(bench, "two files", bench.summary("a", "b"), 2, "'b' is one too many")
    refused(bench, "an unknown option", bench.summary("--metric", "b"), 2, "unknown option --metric")
    text = bench.summary("--help").stdout.decode()
    bench.ok("usage: tidepool trace summary FILE" in text and "FILE" in text.split("\n\n")[-1],
             "help names the operand", text)


def other_subcommands(bench):
    def trace(*arguments):
        return subprocess.run([bench.program, "trace", *arguments], capture_output=True, timeout=60)
    refused(bench, "no subcommand", trace(), 2, "a subcommand is missing")
    refused(bench, "a mistyped subcommand", trace("sumary", "x"), 2, "did you mean summary?")
    bench.ok(b"summary" in trace("--help").stdout, "help lists the subcommands")


def recorded_traces_add_up(bench):
    """gpt2-large on the null device: with too little memory, and with its updates on the host."""
    for name, options in (("tight", ("--device-memory", "2GiB", "--recompute", "none")),
                          ("updates on the host", ("--device-memory", "6GiB", "--recompute", "all", "--clip", "0",
                                                   "--optimizer-placement", "host"))):
        trace = bench.folder / "recorded.trace"
        subprocess.run([bench.program, "train", "--model", "gpt2-large", "--device", "null", "--steps", "8", "--eval-every", "0",
                        "--sample", "0", "--link-bandwidth", "6GB/s", "--machine", MACHINES / "large.json", *options,
                        "--trace", trace], check=True, capture_output=True, timeout=120)
        text = bench.summary(trace).stdout.decode()
        bench.ok(fits(text) and "a step took" in text and "warning" not in text,
                 f"{name}: a recorded trace adds up and fits", text)


def main():
    with tempfile.TemporaryDirectory(prefix="tidepool-summary-") as folder:
        bench = Bench(sys.argv[1], folder)
        for part_of_test in (time_is_split, moves_are_told, unusual_things_are_told, rows_are_cut_between_words,
                             partly_full_chunks_count_whole, terminals_are_spared, empty_traces,
                             what_is_no_trace, other_subcommands, recorded_traces_add_up):
            part_of_test(bench)
        return bench.tap.done()


if __name__ == "__main__":
    sys.exit(main())
