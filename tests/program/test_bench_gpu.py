#!/usr/bin/env python3
"""Runs the GPU's benchmark on the fake CUDA: it must run to its end, and its output must be readable whenever
it is stopped. Time on a real GPU is too short to find such faults there. The test does not judge the
measured values.

usage: test_bench_gpu.py BENCH          prints TAP
BENCH is bench_gpu, linked with the fake CUDA of tests/gpu/fake, which prints each breach of CUDA's rules
to stderr.
"""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from test_program import Run, Tap, die_with_parent

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/dev/gpu"))
from gpu_parts import BENCH_SECTIONS  # noqa: E402

SECTIONS = ["copies", "launches", "matmuls", "candidates", "attention", "memory"]
LINEARS = ("qkv", "projection", "up", "down")
LLAMA_LINEARS = ("qkv", "projection", "gate and up", "down")


def lines_of(text):
    """Parses the benchmark's JSON lines; None if a line is not JSON or lacks a field."""
    try:
        rows = [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return None
    whole = all(row["bench"] == "gpu" and row["name"] and row["unit"] and "value" in row and "note" in row for row in rows)
    return rows if whole else None


def check_whole(tap, bench):
    run = Run([bench, "--quick"])
    rows = lines_of(run.out) or []
    tap.ok(run.status == 0 and run.err == "" and rows, "it runs to its end and breaks no rule", run)
    sections = list(dict.fromkeys(row["section"] for row in rows))
    keys = [(row["section"], row["name"]) for row in rows]
    tap.ok(sections == SECTIONS and len(set(keys)) == len(keys), "each section comes in its turn, each figure once", keys)
    by_section = {section: [row for row in rows if row["section"] == section] for section in SECTIONS}
    matmuls = [row["name"].rsplit(",", 1)[0] for row in by_section["matmuls"]]
    wanted = [f"gpt2-xl {name} {kind} gradient" for name in (*LINEARS, "head") for kind in ("weight", "input")]
    wanted += [f"gpt2 {name} weight gradient" for name in LINEARS]
    wanted += ["limit: product", "gpt2-xl head logits"]
    wanted += [f"gpt2-xl {name}" for name in ("qkv", "projection", "up with GELU", "down")]
    wanted[wanted.index("gpt2-xl down input gradient")] += " with GELU"
    kinds = ("", " weight gradient", " input gradient")
    wanted += 2 * [f"llama-3.1-8b {name}{kind}" for name in LLAMA_LINEARS for kind in kinds]
    wanted += ["llama-3.1-8b head " + name for name in ("logits", "weight gradient", "input gradient")]
    tap.ok(sorted(matmuls) == sorted(wanted), "every product of a step is measured", matmuls)
    few = [row["name"] for row in by_section["matmuls"][1:-3 * len(LLAMA_LINEARS)]]
    check_candidates(tap, few, by_section["candidates"])
    tap.ok(len(by_section["attention"]) == 20 and all(row["value"] > 0 for row in by_section["attention"]) and
           sum("2/1 heads" in row["name"] for row in by_section["attention"]) == 12,
           "attention is measured both ways, at both lengths and widths, with few key heads too, and one sequence alone", by_section["attention"])
    check_kernels(tap, [row["name"] for row in by_section["memory"]])
    events = [row["name"] for row in by_section["launches"]]
    tap.ok(len(events) == 5 and events[0] == "a small kernel", "small kernels are measured with events and without", events)


def check_kernels(tap, names):
    """Every kernel of kernels/kernels.h is measured, except the ones that other sections measure and
    loss_sum, whose time is negligible."""
    text = (ROOT / "kernels/kernels.h").read_text()
    kernels = set(re.findall(r"^    tide_kernel (\w+);", text, re.MULTILINE))
    kernels -= {"matmul", "attention", "attention_backward", "loss_sum"}
    told = {"cast": "gradient rounding", "cross_entropy": "cross entropy with gradient"}
    wanted = {told.get(kernel, kernel.replace("_", " ")) for kernel in kernels}
    tap.ok(kernels and wanted <= set(names), "every kernel that memory bounds is measured", sorted(wanted - set(names)))


def check_candidates(tap, matmuls, rows):
    good = bool(matmuls)
    for product in matmuls:
        tried = [row for row in rows if row["name"].startswith(product + ", candidate ")]
        good &= [row["candidate"] for row in tried] == list(range(1, len(tried) + 1))
        good &= sum(row["taken"] for row in tried) == 1 and any(row["value"] for row in tried if row["taken"])
        good &= all(row["of"] == len(tried) for row in tried)
        sums = [row for row in rows if row["name"] == product + ": taken / best"]
        good &= len(sums) == 1 and sums[0]["value"] >= 1 and tried[sums[0]["taken"] - 1]["taken"]
    tap.ok(good, "each product is tried with every candidate, and one of them is taken", rows)
    tap.ok(all({"algorithm", "tile", "tile_name", "stages", "splits", "reduction", "waves", "workspace_bytes"} <= row.keys()
               for row in rows if "candidate" in row), "a candidate is told with all that the library says of it", rows)
    tap.ok(any(row["value"] is None for row in rows), "one that the library declines is told, too", rows)


def check_parts(tap, bench):
    tap.ok(sorted(BENCH_SECTIONS) == sorted(SECTIONS), "tools/gpu_check.sh asks for every section", BENCH_SECTIONS)
    run = Run([bench, "--quick", "--only", "attention", "copies"])
    rows = lines_of(run.out) or []
    tap.ok(run.status == 0 and {row["section"] for row in rows} == {"copies", "attention"}, "a section can be had alone", run)
    for options in (["--only", "nonsense"], ["attention"], ["--quack"]):
        run = Run([bench, *options])
        tap.ok(run.status == 2 and run.out == "" and run.err.count("\n") == 1 and options[-1] in run.err,
               f"refused in one line: {' '.join(options)}", run)


def check_ends(tap, bench):
    os.environ["TIDE_FAKE_CUDA"] = "call=1 name=cudaGetDeviceCount error=100 refuse"
    run = Run([bench])
    tap.ok(run.status == 77 and run.out == "" and run.err.startswith("no GPU: "), "without a GPU it says so", run)
    os.environ["TIDE_FAKE_CUDA"] = "command=300"
    run = Run([bench, "--quick"])
    tap.ok(run.status == 1 and lines_of(run.out), "a kernel that fails leaves what was measured before", run)
    del os.environ["TIDE_FAKE_CUDA"]
    with subprocess.Popen([bench, "--quick"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          preexec_fn=die_with_parent) as process:
        first = [process.stdout.readline() for _ in range(10)]
        process.kill()
        text = "".join(first) + process.stdout.read()
    tap.ok(lines_of(text), "killed, it leaves whole lines", text)


def main():
    tap, bench = Tap(), sys.argv[1]
    for check in (check_whole, check_parts, check_ends):
        check(tap, bench)
    tap.done()


if __name__ == "__main__":
    main()
