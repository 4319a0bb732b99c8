#!/usr/bin/env python3
"""The demo's last lines: what was trained, within which budget, what moved, how long compute waited.

usage: demo_summary.py TRAIN.log METRICS.jsonl STEPS-ASKED-FOR

Exit status 1 if the demo did not show what it is there to show: all its steps, a device budget of at most a quarter of the model data,
device memory within it, and a validation loss well below (under 0.8 of) the text's unigram entropy; below it at all, in
a run that was asked for fewer steps.
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
    causes = {cause: sum(row[f"stall_{cause}_seconds"] for row in rows)
              for cause in ("link", "slot", "update", "norm", "map", "caller")}
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
