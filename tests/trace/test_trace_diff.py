#!/usr/bin/env python3
"""Tests `tidepool trace diff`: it reports the differences between two runs, with figures, and only those. Its
exit status says whether the second run is slower by more than the tolerance.

usage: test_trace_diff.py PROGRAM      prints TAP
"""
import copy
import json
import re
from collections import Counter
from statistics import median

from trace_runs import Cases, Run


SLOWER, STEADY = 3, 3  # exit status of a slower run; the first step after warm-up


def is_steady(run, line):
    return STEADY <= line["step"] < run.step  # not the run's last step, which prefetches for no next step


def step_lines(run):
    return [line for line in run.lines if "loss" in line and is_steady(run, line)]


def seconds(run):
    return median(line["step_seconds"] for line in step_lines(run))


def copies(run, **members):
    return [
        line for line in run.lines
        if line.get("event") == "copy" and is_steady(run, line) and all(line[name] == value
                                                                          for name, value in members.items())
    ]


class Case(Cases):

    subcommand = "diff"

    def diff(self, first, second, *options):
        paths = [run.write(self.folder / name) for run, name in ((first, "a.trace"), (second, "b.trace"))]
        return self.command(*paths, *options)

    def expect(self, name, result, status, *patterns, absent=()):
        """Check the exit status, that each pattern matches in the output, and that none of `absent` does."""
        missing = [pattern for pattern in patterns if not re.search(pattern, result.stdout, re.MULTILINE)]
        present = [pattern for pattern in absent if re.search(pattern, result.stdout, re.MULTILINE)]
        self.tap.ok(
            result.returncode == status and not missing and not present and not result.stderr, name,
            f"status {result.returncode}, missing {missing}, not wanted {present}\n{result.stdout}{result.stderr}")

    # ---- cases ----

    def equal_runs(self):
        run = Run(chunks=6, device_slots=3).steps(9)
        self.expect("a run is as fast as itself, and nothing differs", self.diff(run, run), 0, "^settings: the same$",
                    "^compared: 6 steps, 3 to 8, by their numbers$", "^stalls: the same$",
                    "^every chunk is copied as often in both$", "^step by step: 0 slower, 0 faster, 6 as fast$",
                    "^B's median step is as fast as A's$", absent=[r" [+-]\d", "ops whose"])

    def slower_and_faster(self):
        first, second = Run(chunks=6, device_slots=3).steps(9), Run(chunks=6, device_slots=3, link=2500).steps(9)
        percent = 100 * (seconds(second) / seconds(first) - 1)
        self.expect("a run with a slower link is slower, and by how much", self.diff(first, second), SLOWER,
                    f"^  step .* \\+{percent:.1f}%$", r"^  stall: slot .* \+\d+\.\d%$",
                    "^  compute +18.0 us +18.0 us +=$", "^stalls: 0 appeared, 0 gone, 6 longer, 0 shorter",
                    r"^  longer +slot +520 ns +3.52 us +\+3.00 us +layer3 forward: chunk 3 \(layer3.p0\)$",
                    "^step by step: 6 slower, 0 faster, 0 as fast$",
                    f"^B's median step is {percent:.1f}% slower than A's: more than")
        self.expect("the other way round it is faster", self.diff(second, first), 0,
                    "^stalls: 0 appeared, 0 gone, 0 longer, 6 shorter", "^B's median step is .*% faster than A's$")
        self.expect("a tolerance just above what it is slower allows it",
                    self.diff(first, second, "--tolerance", f"{percent + 0.01:f}"), 0,
                    "slower than A's, which --tolerance allows$")
        self.expect("one just below does not", self.diff(first, second, f"--tolerance={percent - 0.01:f}"), SLOWER)

    def five_percent_are_the_default(self):
        first = Run(chunks=2, device_slots=2, op_ns=10000).steps(9)
        for op_ns, status in ((10480, 0), (10520, SLOWER)):
            second = Run(chunks=2, device_slots=2, op_ns=op_ns).steps(9)
            self.expect(f"{op_ns / 100 - 100:.1f}% slower kernels: status {status}", self.diff(first, second), status)

    def one_noisy_step(self):
        first = Run(chunks=6, device_slots=3).steps(9)
        noisy = Run(chunks=6, device_slots=3, slow_op={(7, "layer2 forward"): 90000}).steps(9)
        self.expect("one noisy step does not decide, but is told", self.diff(first, noisy), 0,
                    "^step by step: 1 slower, 0 faster, 5 as fast$", r"^  7 .*\+414\.\d% +compute \+88\.5 us$",
                    "^B's median step is as fast as A's$", absent=["ops whose"])

    def slow_kernels(self):
        first = Run(chunks=6, device_slots=3, slices=3).steps(6)
        slow = Run(chunks=6, device_slots=3, slices=3, slow_op={(None, "layer2 forward"): 6000}).steps(6)
        self.expect(
            "an op whose kernels are slower in every step is named, with its slices", self.diff(first, slow), SLOWER,
            r"^ops whose kernels differ most\n  layer2 forward +1.51 us +6.01 us +\+4.50 us +\+298\.0%\nstep by step")

    def bytes_and_chunks(self):
        first, second = Run(chunks=6, device_slots=3).steps(9), Run(chunks=6, device_slots=4).steps(9)
        apart = (len(copies(second, to="device")) - len(copies(first, to="device"))) * 4 // 6
        assert apart == -8, apart
        self.expect("bytes are told each way, by space and reason, and chunks by number", self.diff(first, second), 0,
                    r"^  to the device +24 KiB +16 KiB +-8 KiB +-33.3%\n    params -8 KiB; prefetch -8 KiB$",
                    r"^  to the host +24 KiB +16 KiB +-8 KiB +-33.3%\n    params -8 KiB; promote -8 KiB$",
                    r"^settings A \| B: device memory 13 KiB \| 17 KiB; device slots 3 \| 4$")
        shown = re.findall(r"^ +(\d+) +([\d.]+)x +([\d.]+)x +\d+ \w+ +\d+ \w+ +[+-]",
                           self.diff(first, second).stdout, re.MULTILINE)
        counts = [Counter(line["chunk"] for line in copies(run)) for run in (first, second)]
        expected = [(str(chunk), f"{counts[0][chunk] / 6:.1f}", f"{counts[1][chunk] / 6:.1f}")
                    for chunk in sorted(counts[0] | counts[1]) if counts[0][chunk] != counts[1][chunk]]
        self.tap.ok(
            sorted(shown) == expected and len(expected) > 1,
            "chunks whose copies differ are all those that do, with their counts", f"{shown}\n{expected}")

        fewer = Run(chunks=6, device_slots=3).steps(9)
        for chunk in range(6):  # in step 3 + i only chunks below i are copied
            fewer.lines = [
                line for line in fewer.lines
                if line.get("event") != "copy" or line["chunk"] != chunk or not STEADY <= line["step"] < STEADY + chunk
            ]
        found = re.findall(r"^ +(\d+) +[\d.]+x +[\d.]+x ", self.diff(first, fewer).stdout, re.MULTILINE)
        self.tap.ok(found == ["5", "4", "3", "2", "1"], "those that differ most come first", str(found))

    def stalls_come_and_go(self):
        ample, tight = Run(chunks=4, device_slots=4).steps(6), Run(chunks=4, device_slots=2, prefetch=False).steps(6)
        stalls = Counter((line["op"], line["cause"]) for line in tight.lines
                         if line.get("event") == "stall" and line["step"] >= STEADY)
        self.expect("stalls that appeared are told with op, cause and chunk", self.diff(ample, tight), SLOWER,
                    f"^stalls: {len(stalls)} appeared, 0 gone, 0 longer, 0 shorter",
                    r"^  appeared +slot +- +\d.* +layer1 backward: chunk 1 \(layer1.p0\)$")
        self.expect("and those that are gone", self.diff(tight, ample), 0, f"^stalls: 0 appeared, {len(stalls)} gone",
                    r"^  gone +slot +\d.* - +-\d.* layer1 backward: chunk 1")
        seldom = Run(chunks=4, device_slots=4).steps(9)
        template = next(line for line in tight.lines if line.get("event") == "stall")
        at = next(line for line in seldom.lines if line.get("event") == "op" and line["step"] == 5)
        stall = dict(template, step=5, begin_ns=at["begin_ns"] - 900, end_ns=at["begin_ns"], **{"pass": 5}, ended_by=None)
        seldom.lines.append(stall)
        self.expect("a stall of one step of six is none that appeared",
                    self.diff(Run(chunks=4, device_slots=4).steps(9), seldom), 0, "^stalls: the same$")

    def runs_of_other_lengths(self):
        run, longer = [Run(chunks=6, device_slots=3).steps(count) for count in (4, 5)]
        last = Run(chunks=6, device_slots=3, slow_op={(5, "layer2 forward"): 90000}).steps(5)
        for name, first, second in (("is as fast", run, longer), ("is as fast, the other way round", longer, run),
                                    ("has its last step in no pair", longer, last)):
            self.expect(f"a run of one step more {name}", self.diff(first, second), 0,
                        "^compared: (1 step, 3 to 3|2 steps, 3 to 4), by their numbers$",
                        "^B's median step is as fast as A's$")
        self.expect("where there is no other step the last one is compared", self.diff(*[Run().steps(3)] * 2), 0,
                    "^compared: 1 step, 3 to 3, by their numbers$")

    def no_tolerance(self):
        first, second = [Run(chunks=2, device_slots=2, op_ns=op_ns).steps(9) for op_ns in (1000000, 1000100)]
        self.expect("what is hardly slower is slower if no tolerance is given",
                    self.diff(first, second, "--tolerance", 0), SLOWER,
                    "^B's median step is less than 0.1% slower than A's: more than --tolerance allows$")
        self.expect("what is hardly faster is as fast", self.diff(second, first, "--tolerance", 0), 0, "is as fast as A's$")
        none = self.timeless(first)
        self.expect("any time is more than none", self.diff(none, first, "--tolerance", 1000), SLOWER,
                    "^B's median step is slower than A's: more than --tolerance allows$")
        self.expect("none is as fast as none", self.diff(none, none, "--tolerance", 0), 0, "is as fast as A's$")

    @staticmethod
    def timeless(run):
        none = copy.copy(run)
        none.lines = [dict(line, step_seconds=0) if "loss" in line else line for line in run.lines]
        return none

    def no_ratio_to_nothing(self):
        run = Run(chunks=6, device_slots=3).steps(9)
        nearly = copy.copy(run)
        nearly.lines = [dict(line, stall_slot_seconds=1e-22, adam_host_seconds=1e-22) if "loss" in line else line
                        for line in run.lines]
        self.expect("nothing is a multiple of hardly anything", self.diff(nearly, run), 0, "^  stall: slot +- +[0-9]",
                    absent=[r" x \d", r"\+\d{5}"])

    def other_steps(self):
        first, later = Run(chunks=4, device_slots=2).steps(8), Run(chunks=4, device_slots=2, first_step=100).steps(8)
        self.expect("steps without common numbers are compared by their order, which is said", self.diff(first, later), 0,
                    "^compared: 5 steps, 3 to 7 of A with 100 to 104 of B, by their order", "^B's median step is as fast")
        overlapping = Run(chunks=4, device_slots=2, first_step=5).steps(6)
        self.expect("steps with common numbers by those", self.diff(first, overlapping), 0,
                    "^compared: 3 steps, 5 to 7, by their numbers$")

    def other_models(self):
        first = Run(chunks=4, device_slots=2, settings={"model": "small", "clip": "1.0"}).steps(5)
        second = Run(chunks=6, device_slots=3, settings={"model": "large", "bf16": "on"}, params_of_chunk=2).steps(5)
        self.expect("of other models what can be compared is", self.diff(first, second), SLOWER,
                    r"^settings A \| B: model small \| large; clip 1\.0 \| -; bf16 - \| on; device",
                    "^ops differ: 0 are only in A, 4 only in B$",
                    "^chunks are not the same in both: not compared one by one$", absent=["trace \\d"])
        for name, other in (("params lie otherwise", Run(chunks=4, device_slots=2,
                                                         params_of_chunk=2)), ("there are more chunks",
                                                                               Run(chunks=4, device_slots=2, slices=2))):
            self.expect(f"chunks are not compared where {name}", self.diff(first, other.steps(5)), 0,
                        "^chunks are not the same in both")
        throttled = Run(chunks=4, device_slots=2).steps(5)
        throttled.lines = [
            dict(line, link_bytes_per_second=0) if line.get("table") == "machine" else line for line in throttled.lines
        ]
        self.expect("a throttle is told, though it is no option's value",
                    self.diff(throttled,
                              Run(chunks=4, device_slots=2).steps(5)), 0, r"^settings A \| B: link - \| 1 GB/s$")
        many = Run(chunks=4, device_slots=2, settings={f"option_{i}": "a" * 38 for i in range(12)}).steps(5)
        self.expect("of many settings those that fit are told, and how many more there are", self.diff(first, many), 0,
                    r"^  and \d+ more$")

    def what_is_many_times_as_long(self):
        first, second = [Run(chunks=2, device_slots=2, op_ns=op_ns).steps(5) for op_ns in (100, 100000)]
        self.expect("a factor is told where percents would not be read", self.diff(first, second), SLOWER,
                    r"^  compute +400 ns +400 us +\+400 us  x 1000$")

    def ops_of_one_name(self):
        first, second = Run(chunks=4, device_slots=2).steps(5), Run(chunks=6, device_slots=3,
                                                                    slow_op={(None, "layer3 forward"): 3000}).steps(5)
        for run in (first, second):
            for line in run.lines:
                if line.get("table") == "op":
                    line["name"] = "block"
        self.expect("ops of one name are matched in their order", self.diff(first, second), SLOWER,
                    "^ops differ: 0 are only in A, 4 only in B$",
                    r"^ops whose kernels differ most\n  block +1.50 us +3.00 us +\+1.50 us +\+100.0%\nstep by step")

    def one_screen(self):
        first = Run(chunks=30, device_slots=20, params_of_chunk=3).steps(30)
        second = Run(chunks=30, device_slots=4, link=5000, host_link=7000, prefetch=False, eviction_ns=300, params_of_chunk=3,
                     op_ns=1700, settings={f"option_{i}": "b" * 30 for i in range(9)}).steps(30)
        for run in (first, second):
            for line in run.lines:
                if "name" in line:
                    line["name"] = line["name"] + "\x1b[31m" + "x" * 200
        folder = self.folder / ("f" * 60)
        folder.mkdir()
        lines = self.command(first.write(folder / "a.trace"), second.write(folder / "b.trace")).stdout.splitlines()
        self.tap.ok(re.fullmatch(r"A: \.\.\.f{49}/a\.trace", lines[0]) is not None, "of a long path the end is told", lines[0])
        stalls = [line for line in lines if re.match("  (appeared|gone|longer|shorter) ", line)]
        self.tap.ok(
            len(stalls) == 8 and all(re.search(r"\w\.\.\.: chunk \d+( \(\S.*\))?$", line) for line in stalls),
            "long names become shorter, and have a mark", "\n".join(stalls))
        self.tap.ok(not any(line.endswith(" ") for line in lines), "no line ends with blanks", str(lines))
        self.tap.ok(
            len(lines) <= 60 and max(map(len, lines)) <= 100 and not any("\x1b" in line for line in lines),
            "long names and many differences stay on one screen",
            f"{len(lines)} lines, {max(map(len, lines))} columns\n" + "\n".join(lines))

    def refusals(self):
        run, other = Run(chunks=2, device_slots=2).steps(4), Run(chunks=2, device_slots=2)
        path, empty = run.write(self.folder / "run.trace"), other.write(self.folder / "empty.trace")
        broken = self.folder / "broken.trace"
        broken.write_text(json.dumps(run.lines[0]) + "\n{}\n")
        for name, status, arguments, words in (("one trace alone is usage", 2, (path, ), "B is required"),
                                               ("three are too", 2, (path, path, path),
                                                "one too many"), ("a tolerance that is no number is too", 2,
                                                                  (path, path, "--tolerance", "some"), "not a number"),
                                               ("a tolerance below none is too", 2, (path, path, "--tolerance", "-1"),
                                                "must be"), ("a trace that is not there is a failure", 1,
                                                             (path, self.folder / "none"), "none: "),
                                               ("so is one that is damaged", 1, (broken, path),
                                                "broken.trace:2"), ("so is one without a whole step", 1, (path, empty),
                                                                    "empty.trace: no whole step")):
            result = self.command(*arguments)
            self.tap.ok(
                result.returncode == status and words in result.stderr and result.stderr.count("\n") == 1
                and not result.stdout, name, f"{result.returncode} {result.stderr}{result.stdout}")
        result = self.command("--help")
        self.tap.ok(
            result.returncode == 0 and "--tolerance PERCENT" in result.stdout and "3 if B is slower" in result.stdout,
            "--help", result.stdout)


if __name__ == "__main__":
    Case.run(Case.equal_runs, Case.slower_and_faster, Case.five_percent_are_the_default, Case.one_noisy_step,
             Case.slow_kernels, Case.bytes_and_chunks, Case.stalls_come_and_go, Case.runs_of_other_lengths,
             Case.no_tolerance, Case.no_ratio_to_nothing, Case.other_steps, Case.other_models,
             Case.what_is_many_times_as_long, Case.ops_of_one_name, Case.one_screen, Case.refusals)
