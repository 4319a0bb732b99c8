#!/usr/bin/env python3
"""Measures the program's speed on this machine: gpt2 (124M), bf16, 256 tokens a step, with everything
resident.

usage: bench.py PROGRAM [--model gpt2] [--steps 8] [--rounds 3] [--threads N] [--baseline TOKENS_PER_SECOND]

The figure of a run is the median of its steps from the third on (the first two record and settle); the
figure of all runs is the best run's. --baseline is the tokens a second of llm.c's CPU trainer, measured
on the same machine and cores on the same day; without it no ratio is printed. The ratio has a bound only
where the CPU has AMX; exit status 1 if it misses the bound.
"""
import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WANTED_RATIO = 15
SETTLED_STEP = 3


def tokens_per_second(arguments, folder):
    metrics = folder / "metrics"
    command = [arguments.program, "train", "--model", arguments.model, "--data", str(folder / "text"), "--steps",
               str(arguments.steps), "--seq-len", "256", "--batch-tokens", "256", "--eval-every", "0", "--sample", "0",
               "--metrics", str(metrics)]
    if arguments.threads:
        command += ["--threads", str(arguments.threads)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return 256 / statistics.median(row["step_seconds"] for row in rows if row["step"] >= SETTLED_STEP)


def has_amx(program):
    info = json.loads(subprocess.run([program, "info", "--json"], check=True, capture_output=True, text=True).stdout)
    return "amx" in info["kernels"]["matmul_isa"].lower(), info


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--baseline", type=float, metavar="TOKENS_PER_SECOND")
    arguments = parser.parse_args()
    if arguments.baseline is not None and arguments.baseline <= 0:
        parser.error("--baseline: must be above 0")
    amx, info = has_amx(arguments.program)
    with tempfile.TemporaryDirectory(prefix="tidepool-bench-") as name:
        folder = Path(name)
        generator = random.Random(1)
        (folder / "text").write_bytes(bytes(generator.randrange(32, 127) for _ in range(1 << 17)))
        figures = [tokens_per_second(arguments, folder) for _ in range(arguments.rounds)]
    ratio = max(figures) / arguments.baseline if arguments.baseline else None
    print(f"{arguments.model} on {info['machine']['processor']}, {info['machine']['processors']} processors, "
          f"products by {info['kernels']['matmul']} ({info['kernels']['matmul_isa']})\n")
    print(f"{max(figures):.1f} tokens/s, best of {', '.join(f'{figure:.1f}' for figure in figures)}")
    wanted = f"{WANTED_RATIO} times wanted" + ("" if amx else "; no AMX here: reported only")
    print(f"llm.c: {arguments.baseline:g} tokens/s; {ratio:.1f} times that ({wanted})" if ratio else
          f"llm.c: not measured ({wanted})")
    return 1 if amx and ratio is not None and ratio < WANTED_RATIO else 0


if __name__ == "__main__":
    sys.exit(main())
