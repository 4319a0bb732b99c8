#!/usr/bin/env python3
"""Prints the demo's summary: size of the model data, device budget, bytes moved, stall, validation loss.

usage: demo_summary.py TRAIN.log METRICS.jsonl STEPS-ASKED-FOR

Exit status 0 if the demo shows that tidepool works: the run made all its steps; the device budget is at most
a quarter of the model data; device memory stayed within it; the validation loss is under 0.8 of the text's
unigram entropy (in a run of fewer steps than usual, below that entropy). Otherwise 1.
"""
import json
import re
import sys

MIB = 1 << 20
FULL_STEPS = 500


def number(log, pattern):
    found = re.findall(pattern, log)
    if not found:
        sys.exit(f"demo: the log has no {pattern!r}")
    return float(found[-1].replace(",", ""))


def main():
    log = open(sys.argv[1], encoding="utf-8", errors="replace").read()
    rows = [json.loads(line) for line in open(sys.argv[2], encoding="utf-8")]
    model = number(log, r"model data +([0-9,]+) B")
    budget = number(log, r"device budget +([0-9,]+) B")
    steps = int(sys.argv[3])
    loss = number(log, r"validation after step \d+: loss ([0-9.]+)")
    entropy = number(log, r"unigram entropy ([0-9.]+)")
    seconds = sum(row["step_seconds"] for row in rows)
    stall = sum(row["stall_seconds"] for row in rows)
    causes = {cause: sum(row.get(f"stall_{cause}_seconds", 0) for row in rows)
              for cause in ("link", "slot", "update", "norm", "map", "peer", "caller")}
    named = sorted((cause for cause in causes if causes[cause] >= 0.005 * seconds), key=causes.get, reverse=True)
    moved = sum(row["h2d_bytes"] + row["d2h_bytes"] for row in rows)
    peak = max(row["device_bytes_peak"] for row in rows)
    print()
    print(f"model data            {model / MIB:10.1f} MiB")
    print(f"device budget         {budget / MIB:10.1f} MiB   {budget / model:.2f} of the model data; peak {peak / MIB:.1f} MiB")
    print(f"moved                 {moved / MIB:10.1f} MiB   {moved / MIB / len(rows):.1f} MiB a step")
    print(f"stall share           {100 * stall / seconds:10.1f} %     of {seconds:.0f} s in {len(rows)} steps, "
          f"{sum(row['tokens'] for row in rows) / seconds:.0f} tokens/s")
    for cause in named:
        print(f"  {cause:<20}{100 * causes[cause] / seconds:10.1f} %")
    print(f"validation loss       {loss:10.3f} nats  the text's unigram entropy is {entropy:.3f}")
    good = (len(rows) == steps and 4 * budget <= model and peak <= budget and
            loss < (0.8 if steps >= FULL_STEPS else 1) * entropy)
    print("demo: " + ("done" if good else "FAILED: see the table"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
