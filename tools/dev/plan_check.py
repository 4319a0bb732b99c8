#!/usr/bin/env python3
"""Tests the predictions of `tidepool plan` against real steps on the emulated device, on this machine.

usage: plan_check.py PROGRAM RESULT.md [--quick] [--seed N]

Measures this machine once, with all model shapes that the tests need, into a file in a folder of its own
(XDG_CACHE_HOME). Then it tests:

    time     predicts and then runs 24 random settings of budget, chunk size, link, clipping and batch, for
             gpt2 and llama-nano. A prediction is right within 10% plus twice the spread of the real steps.
             Goal: 22 of 24 are right, and none is off by more than 25%
    chunks   compares, for two runs, the order of chunk sizes by real and by predicted step time, over the
             pairs that differ by more than the noise. Goal: a rank correlation of 0.9
    speed    times a prediction of llama-3.1-8b and of llama-3.1-70b. Goals: 0.2 s and 2 s

Writes a table and prints TAP, with a case for each goal. No other program should run meanwhile. --quick takes
3 settings and one run of 3 chunk sizes, to see that this script works, and judges no times.
"""
import argparse
import datetime
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RIGHT_PART, FAR_PART, RIGHT_OF, ORDER_LEAST = 0.10, 0.25, 22 / 24, 0.9
UNCOUNTED = 2
MIB = 1 << 20


class Check:
    def __init__(self, program, folder, quick):
        self.program, self.folder, self.quick = str(Path(program).resolve()), Path(folder), quick
        self.machine = self.folder / "machine.json"
        self.text = self.folder / "text"
        self.text.write_bytes(bytes(random.Random(3).choices(range(32, 127), k=2_000_000)))
        self.environment = dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache"))
        self.checks = []

    def call(self, *arguments):
        return subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, env=self.environment, check=False)

    def ok(self, right, what):
        self.checks.append(right)
        print(f"{'' if right else 'not '}ok {len(self.checks)} - {what}", flush=True)

    def learn(self, shapes):
        """Measures this machine and the kernels of each (model, sequence length, batch) into the file."""
        for model, seq, batch in sorted(shapes):
            run = self.call("plan", "--model", model, "--device", "host", "--seq-len", seq, "--batch-tokens", batch,
                            "--compare", "16GiB")
            if run.returncode != 0:
                raise SystemExit(f"plan_check.py: {model}: {run.stderr}")
        next((self.folder / "cache/tidepool").glob("machine-host-*.json")).rename(self.machine)

    def predict(self, setting):
        run = self.call("plan", "--machine", self.machine, "--compare", setting["--device-memory"], "--json",
                        *(word for name, value in setting.items() if name != "--device-memory" for word in (name, value)))
        if run.returncode not in (0, 1) or not run.stdout:
            raise SystemExit(f"plan_check.py: plan of {setting}: {run.stderr}")
        return json.loads(run.stdout)

    def train(self, setting, steps):
        """Returns the seconds of each real step; None if the program refuses the budget."""
        metrics = self.folder / "metrics"
        run = self.call("train", "--device", "host", "--data", self.text, "--steps", steps + UNCOUNTED, "--eval-every", 0, "--sample", 0,
                        "--metrics", metrics, *itertools.chain.from_iterable(setting.items()))
        if run.returncode != 0 and "budget of" not in run.stderr:
            raise SystemExit(f"plan_check.py: train of {setting}: {run.stderr}")
        if run.returncode != 0:
            return None
        return [json.loads(line)["step_seconds"] for line in metrics.read_text().splitlines()][UNCOUNTED:]


def draw(rng, models):
    model = rng.choice(models)
    device = rng.choice([400, 600, 900, 1300, 2000, 2600] if model == "gpt2" else [30, 45, 60, 90, 140])
    chunk = rng.choice([1, 2, 4, 8, 16, 32] if model == "gpt2" else [0.25, 0.5, 1, 2, 4])
    setting = {"--model": model, "--seq-len": rng.choice([128, 256]), "--batch-tokens": rng.choice([256, 512, 1024]),
               "--device-memory": f"{device}MiB", "--chunk-size": int(chunk * MIB), "--clip": rng.choice([0, 1])}
    link = rng.choice([0, 0, 500, 1000, 2000, 4000])
    if link:
        setting["--link-bandwidth"] = f"{link}MB"
    return setting


def told(setting):
    chunk = setting["--chunk-size"] / MIB
    return (f"{setting['--model']} | {setting['--seq-len']} | {setting['--batch-tokens']} | {setting['--device-memory']} | {chunk:g} MiB | "
            f"{setting['--clip']} | {setting.get('--link-bandwidth', 'none')}")


def steps_of(setting):
    return 8 if setting["--model"] == "gpt2" else 40


def times(check, settings, out):
    right = far = made = 0
    out.append("| model | sequence | batch | device | chunk | clip | link | real step | spread | predicted | off |")
    out.append("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for setting in settings:
        plan, real = check.predict(setting), check.train(setting, steps_of(setting))
        if real is None or not plan["fits"]:
            check.ok(real is None and not plan["fits"], f"refused by both: {told(setting)}")
            continue
        median = statistics.median(real)
        spread = statistics.pstdev(real) / median
        off = plan["step"]["seconds"] / median - 1
        made += 1
        right += abs(off) <= RIGHT_PART + 2 * spread
        far += abs(off) > FAR_PART
        out.append(f"| {told(setting)} | {median:.4f} s | {100 * spread:.0f}% | {plan['step']['seconds']:.4f} s | {100 * off:+.0f}% |")
        print("#", out[-1], flush=True)
    out.append(f"\nWithin 10% and twice the spread: {right} of {made}; off by more than 25%: {far}.\n")
    check.ok(made > len(settings) / 2 and (check.quick or (right >= RIGHT_OF * made and far == 0)), f"steps are predicted: {right} of {made} right, {far} far off")


def chunk_order(check, setting, sizes, out):
    rows = []
    for size in sizes:
        one = dict(setting, **{"--chunk-size": size})
        plan, real = check.predict(one), check.train(one, steps_of(one))
        if plan["fits"] and real is not None:
            rows.append((size, statistics.median(real), statistics.pstdev(real), plan["step"]["seconds"]))
    alike = unlike = 0
    for a, b in itertools.combinations(rows, 2):
        if abs(a[1] - b[1]) > a[2] + b[2]:
            alike += (a[1] - b[1]) * (a[3] - b[3]) > 0
            unlike += (a[1] - b[1]) * (a[3] - b[3]) <= 0
    correlation = (alike - unlike) / (alike + unlike) if alike + unlike else -1
    out.append(f"{told(setting)}: " + ", ".join(f"{size / MIB:g} MiB {real:.3f} s ({100 * spread / real:.0f}%) for {predicted:.3f}"
                                               for size, real, spread, predicted in rows))
    out.append(f"\nPairs apart by more than noise: {alike} in the same order, {unlike} not: rank correlation {correlation:.2f}.\n")
    print("#", out[-2], out[-1].strip(), flush=True)
    check.ok(check.quick or correlation >= ORDER_LEAST, f"chunk sizes of {setting['--model']} are in order: {correlation:.2f}")


def speeds(check, out):
    for model, machine, memory, most in (("llama-3.1-8b", "rtx4090", "23GiB", 0.2), ("llama-3.1-70b", "h200", "138GiB", 2)):
        took = []
        for _ in range(3):
            begin = time.monotonic()
            run = check.call("plan", "--model", model, "--machine", machine, "--seq-len", 4096, "--compare", memory)
            if run.returncode != 0 or "bound by" not in run.stdout:
                raise SystemExit(f"plan_check.py: {model}: {run.stdout}{run.stderr}")
            took.append(time.monotonic() - begin)
        out.append(f"{model}, chunks of 64 MiB: predicted in {min(took):.2f} s, the program's start included (goal {most}).\n")
        check.ok(check.quick or min(took) <= most, f"a prediction of {model} takes {min(took):.2f} s")


def main():
    parser = argparse.ArgumentParser(add_help=True)
    parser.add_argument("program")
    parser.add_argument("result")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    settings = [draw(rng, ["llama-nano"] if given.quick else ["gpt2", "llama-nano"]) for _ in range(3 if given.quick else 24)]
    orders = [({"--model": "llama-nano", "--seq-len": 128, "--batch-tokens": 256, "--device-memory": "45MiB", "--chunk-size": MIB, "--clip": 1,
                "--link-bandwidth": "200MB"}, [MIB // 4, MIB, 4 * MIB] if given.quick else [MIB // 4 << i for i in range(6)])]
    if not given.quick:
        orders.append(({"--model": "gpt2", "--seq-len": 128, "--batch-tokens": 256, "--device-memory": "400MiB", "--chunk-size": MIB, "--clip": 1,
                        "--link-bandwidth": "200MB"}, [MIB << i for i in range(6)]))
    out = [f"# Predicted and real steps, {datetime.date.today()}\n", f"`tools/dev/plan_check.py`, seed {given.seed}.\n"]
    with tempfile.TemporaryDirectory() as folder:
        check = Check(given.program, folder, given.quick)
        check.learn({(s["--model"], s["--seq-len"], s["--batch-tokens"]) for s in settings + [order[0] for order in orders]})
        machine = json.loads(check.machine.read_text())
        out.append(f"{machine['name']}, {machine['threads']} threads, the emulated device; a machine file made once.\n\n## Steps\n")
        times(check, settings, out)
        out.append("## Chunk sizes\n")
        for setting, sizes in orders:
            chunk_order(check, setting, sizes, out)
        out.append("## Speed\n")
        speeds(check, out)
    Path(given.result).write_text("\n".join(out), encoding="utf-8")
    print(f"1..{len(check.checks)}")
    return 0 if all(check.checks) else 1


if __name__ == "__main__":
    sys.exit(main())
