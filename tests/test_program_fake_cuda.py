#!/usr/bin/env python3
"""The program on the real CUDA module, whose CUDA is a fake: the same bits whatever the budgets, and nearly the host's.

usage: test_program_fake_cuda.py PROGRAM FOLDER          prints TAP
FOLDER holds the libtidepool_cuda.so of tests/cuda/fake, which tells on stderr what breaks CUDA's rules: a run is right only
if it says nothing there.
"""
import json
import os
import sys
from pathlib import Path

from test_program import TENSOR_FILES, Bench, metrics_read

STEPS = 2
# 45 MiB of model data in chunks of 2 MiB: some 24 of them, of which 20 MiB of device memory hold a few.
MODEL = {"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 32, "vocab_size": 256,
         "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
TIGHT = ("--device-memory", "20MiB")


class Outcome:
    """Losses and norms, every tensor's bytes, and what moved."""

    def __init__(self, bench, name, *options, device="cuda:0"):
        folder, metrics = bench.folder / name, bench.folder / f"{name}.jsonl"
        self.run = bench.run("--model", bench.folder / "model.json", "--data", bench.text, "--device", device, "--steps", STEPS,
                             "--batch-tokens", 64, "--sample", 0, "--eval-every", 0, "--chunk-size", "2MiB", "--threads", 1,
                             "--checkpoint", folder, "--metrics", metrics, *options)
        self.good = self.run.status == 0 and self.run.err == ""
        lines = metrics_read(metrics) if self.good else []
        self.values = [(line["loss"], line["grad_norm"]) for line in lines]
        self.tensors = [(folder / f"step-{STEPS}" / file).read_bytes() for file in TENSOR_FILES] if self.good else []
        self.moved = sum(line["h2d_bytes"] + line["d2h_bytes"] for line in lines)

    def same_as(self, other):
        return self.good and other.good and self.values == other.values and self.tensors == other.tensors

    def near(self, other):
        return self.good and other.good and all(abs(a - b) <= 0.01 * abs(b) for ours, theirs in zip(self.values, other.values)
                                                for a, b in zip(ours, theirs))


def check_dtype(bench, dtype):
    given = ("--dtype", dtype)
    host = Outcome(bench, f"{dtype}-host", *given, device="host")
    full = Outcome(bench, f"{dtype}-full", *given)
    tight = Outcome(bench, f"{dtype}-tight", *given, *TIGHT)
    bench.tap.ok(full.near(host), f"{dtype}: losses and norms are the host device's within a hundredth",
                 f"{full.values}\n{host.values}\n{full.run}")
    bench.tap.ok(tight.same_as(full) and tight.moved > 2 * full.moved,
                 f"{dtype}: the same bits in 20 MiB, where chunks move", f"moved {full.moved} {tight.moved}\n{tight.run}")
    return full


def check_variants(bench, full):
    for name, options in (("updates-on-the-device", (*TIGHT, "--optimizer-placement", "device")),
                          ("updates-on-the-host", ("--optimizer-placement", "host")),
                          ("without-prefetch", (*TIGHT, "--prefetch", "off")),
                          ("manager-off", ("--manager", "off"))):
        outcome = Outcome(bench, name, *options)
        bench.tap.ok(outcome.same_as(full), f"the same bits: {name}", outcome.run)


def main():
    os.environ["TIDEPOOL_MODULES"] = str(Path(sys.argv[2]).resolve())
    bench = Bench(sys.argv[1], False)
    (bench.folder / "model.json").write_text(json.dumps(MODEL))
    try:
        full = check_dtype(bench, "bf16")
        check_variants(bench, full)
        for dtype in ("fp16", "fp32"):
            check_dtype(bench, dtype)
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main()
