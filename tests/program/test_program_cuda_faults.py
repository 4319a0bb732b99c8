#!/usr/bin/env python3
"""The program while CUDA fails: one call fails, or the GPU breaks for good, early or late; or the streams run
late.

usage: test_program_cuda_faults.py PROGRAM FOLDER          prints TAP
FOLDER holds the libtidepool_cuda.so of tests/gpu/fake; its fake_module.c describes the faults.

A run that meets a fault either trains to its end, with the bits of a run without faults, or ends with
status 1 and one line. In both cases it leaves no memory on the GPU and breaks no rule of CUDA's, and each
checkpoint that it wrote is whole: it has the bits of the run without faults, and training resumes from it
to the same end.

The test fails the first calls and every n-th of the others. TIDE_TEST_ALL makes it fail many more
(tools/campaign.sh).
"""
import json
import os
import re
import shutil
import sys
from pathlib import Path

from test_program import MIB, Bench, metrics_read, weights

STEPS = 2
# The model has seven chunks of 2 MiB, and either budget holds two or three of them. With updates on the host
# few chunks move, with updates on the device all do; the bits are the same. A run takes half a second of
# processor time, nearly all of it for the kernels of the layer; the many positions cost little.
MODEL = {"model_type": "gpt2", "n_layer": 1, "n_embd": 128, "n_head": 1, "n_positions": 4096, "vocab_size": 257,
         "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
WAYS = (("--device-memory", "10MiB", "--optimizer-placement", "device"),
        ("--device-memory", "8MiB", "--optimizer-placement", "host"))
ALL = "TIDE_TEST_ALL" in os.environ
# How many calls fail: the first ones, others of any function, calls of each function, and asynchronous
# commands; and the seeds. Every RESUME_EVERY-th run is resumed.
FIRST_CALLS, CALLS, OF_A_NAME, COMMANDS, SEEDS = 2, 2, 1, 3, 1
RESUME_EVERY = 7


class Place:
    """A checkpoint folder and the runs that write into it."""

    def __init__(self, bench, name):
        self.bench = bench
        self.folder = bench.folder / name
        self.metrics, self.count = bench.folder / f"{name}.jsonl", bench.folder / f"{name}.count"

    def train(self, way, *words, resume=False):
        os.environ["TIDE_FAKE_CUDA"] = " ".join((f"count={self.count}", *words))
        self.run = self.bench.run("--model", self.bench.folder / "model.json", "--data", self.bench.text, "--device", "cuda:0",
                                  "--steps", STEPS, "--seq-len", 8, "--batch-tokens", 8, "--sample", 0, "--eval-every", 0,
                                  "--chunk-size", "2MiB", "--threads", 1, "--checkpoint", self.folder, "--save-every", 1,
                                  "--keep", 0, "--metrics", self.metrics, *WAYS[way], *(["--resume"] if resume else []))
        return self.run

    def counts(self):
        return {name: int(value) for name, value in (line.split() for line in self.count.read_text().splitlines())}

    def steps(self):
        return {step: weights(self.folder, step) for step in range(1, STEPS + 1) if (self.folder / f"step-{step}").is_dir()}

    def ended_well(self):
        return self.run.status == 0 and self.run.err == ""

    def refused_in_one_line(self):
        """Whether the run ended with status 1 and one line with CUDA's own words."""
        return self.run.status == 1 and re.fullmatch(r"tidepool train: .*(cudaError|CUDA_ERROR|cuBLASLt).*\n", self.run.err)

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.metrics.unlink(missing_ok=True)
        self.count.unlink(missing_ok=True)


def spread(first, last, count):
    """Returns about `count` evenly spread numbers from first to last; with TIDE_TEST_ALL about a hundred."""
    return range(first, last + 1, max(1, (last - first + 1) // (100 if ALL else count)))


class Faults:
    """Runs with faults, and compares them with a run without."""

    def __init__(self, bench):
        self.bench, self.tap = bench, bench.tap
        self.cases = self.struck = 0
        self.counts = []
        for way, options in enumerate(WAYS):
            place = Place(bench, f"clean-{way}")
            place.train(way)
            lines = metrics_read(place.metrics) if place.ended_well() else []
            self.steps = self.steps if way else place.steps()
            self.counts.append(place.counts())
            self.tap.ok(place.ended_well() and len(self.steps) == STEPS and place.steps() == self.steps and
                        sum(line["h2d_bytes"] for line in lines) > 2 * MIB,
                        f"undisturbed, {' '.join(options)}: {self.counts[way]['calls']} calls, "
                        f"{self.counts[way]['commands']} commands, the same bits", place.run)

    def whole(self, place):
        """Whether every checkpoint in the folder has the bits of the run without faults."""
        found = place.steps()
        return all(found[step] == self.steps[step] for step in found)

    def goes_on(self, place, way):
        place.train(way, resume=True)
        return place.ended_well() and place.steps().get(STEPS) == self.steps[STEPS]

    def fault(self, name, *words, way=None):
        """Makes one run with the fault. Without `way` the runs take the ways of WAYS in turn."""
        self.cases += 1
        way = self.cases % len(WAYS) if way is None else way
        place = Place(self.bench, "disturbed")
        run = place.train(way, *words)
        well = place.ended_well() and len(place.steps()) == STEPS
        self.struck += not well
        good = (well or place.refused_in_one_line()) and self.whole(place)
        if good and not well and (ALL or self.struck % RESUME_EVERY == 0):
            good = self.goes_on(place, way)
        self.tap.ok(good, f"{name}: {'the same bits' if well else run.err.strip()[:150]}",
                    f"{' '.join(WAYS[way])}\n{run}" + (f"\nthen {place.run}" if place.run is not run else ""))
        place.remove()

    def call(self, number, name=None):
        self.fault(f"{name or 'call'} {number}", f"call={number}", *([f"name={name}"] if name else []))


def check_calls(faults):
    for number in range(1, FIRST_CALLS + 1):
        faults.call(number)
    for number in spread(FIRST_CALLS + 1, min(counts["calls"] for counts in faults.counts), CALLS):
        faults.call(number)


def check_names(faults):
    """Fails calls of each function, numbered from half of its count on: all runs begin with the same first
    calls, which open the device."""
    for name, count in faults.counts[0].items():
        if name.startswith("cu") and name != "cuMemUnmap":
            for number in spread((count + 1) // 2, count, OF_A_NAME):
                faults.call(number, name)


def check_unmaps(faults):
    """Fails calls of cuMemUnmap. Those of the schedule are the first half; there the failing call leaves the
    memory mapped ("refuse"), and the device must know that. The last call belongs to closing the device;
    it unmaps and then reports a failure (fake_cudart.h)."""
    count = faults.counts[0]["cuMemUnmap"]
    for number in spread(1, count // 2, 2 * OF_A_NAME):
        faults.fault(f"cuMemUnmap {number}", f"call={number}", "name=cuMemUnmap", "refuse", way=0)
    faults.fault(f"cuMemUnmap {count}", f"call={count}", "name=cuMemUnmap", way=0)


def check_commands(faults):
    for number in spread(1, min(counts["commands"] for counts in faults.counts), COMMANDS):
        faults.fault(f"command {number}", f"command={number}")


def check_delays(bench, faults):
    for seed in range(1, (50 if ALL else SEEDS) + 1):
        place = Place(bench, "late")
        run = place.train(seed % len(WAYS), f"delays={seed}")
        bench.tap.ok(place.ended_well() and place.steps() == faults.steps, f"delays {seed}: the same bits", run)
        place.remove()


def main():
    os.environ["TIDEPOOL_MODULES"] = str(Path(sys.argv[2]).resolve())
    bench = Bench(sys.argv[1], False)
    (bench.folder / "model.json").write_text(json.dumps(MODEL))
    try:
        faults = Faults(bench)
        check_calls(faults)
        check_names(faults)
        check_unmaps(faults)
        check_commands(faults)
        bench.tap.ok(faults.struck > faults.cases // 2, f"{faults.struck} of {faults.cases} faults ended their run")
        check_delays(bench, faults)
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main()
