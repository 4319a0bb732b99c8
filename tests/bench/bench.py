#!/usr/bin/env python3
"""Speed of the program on this machine: gpt2 (124M), bf16, 256 tokens a step, with everything resident.

usage: bench.py PROGRAM [--model gpt2] [--steps 8] [--rounds 3] [--threads N] [--baseline TOKENS_PER_SECOND]

Measures with the manager and without (--manager off), in turn, so that a machine that slows down slows both; the figure
of a run is the median of its steps from the third on (the first two record and settle). --baseline is the tokens a second
of llm.c's CPU trainer, measured on the same machine and cores on the same day; without it no ratio is told. The ratio is
required only where the CPU has AMX. Prints a table in Markdown; exit status 1 if a requirement is missed.
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
WANTED_COST = 0.02
SETTLED_STEP = 3


def tokens_per_second(arguments, folder, manager):
    metrics = folder / "metrics"
    command = [arguments.program, "train", "--model", arguments.model, "--data", str(folder / "text"), "--steps",
               str(arguments.steps), "--seq-len", "256", "--batch-tokens", "256", "--eval-every", "0", "--sample", "0",
               "--manager", manager, "--metrics", str(metrics)]
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
    figures = {"on": [], "off": []}
    with tempfile.TemporaryDirectory(prefix="tidepool-bench-") as name:
        folder = Path(name)
        generator = random.Random(1)
        (folder / "text").write_bytes(bytes(generator.randrange(32, 127) for _ in range(1 << 17)))
        for _ in range(arguments.rounds):
            for manager, found in figures.items():
                found.append(tokens_per_second(arguments, folder, manager))
    on, off = max(figures["on"]), max(figures["off"])
    cost = 1 - on / off
    ratio = on / arguments.baseline if arguments.baseline else None
    print(f"{arguments.model} on {info['machine']['processor']}, {info['machine']['processors']} processors, "
          f"products by {info['kernels']['matmul']} ({info['kernels']['matmul_isa']})\n")
    print("| | tokens/s, best of runs | all runs |\n|---|---:|---|")
    for manager, label in (("on", "with the manager"), ("off", "--manager off")):
        print(f"| {label} | {max(figures[manager]):.1f} | {', '.join(f'{figure:.1f}' for figure in figures[manager])} |")
    print(f"\nthe manager costs {100 * cost:.1f}% (at most {100 * WANTED_COST:.0f}% wanted)")
    wanted = f"{WANTED_RATIO} times wanted" + ("" if amx else "; no AMX here: reported only")
    print(f"llm.c: {arguments.baseline:g} tokens/s; {ratio:.1f} times that ({wanted})" if ratio else
          f"llm.c: not measured ({wanted})")
    return 1 if amx and (cost > WANTED_COST or (ratio is not None and ratio < WANTED_RATIO)) else 0


if __name__ == "__main__":
    sys.exit(main())
