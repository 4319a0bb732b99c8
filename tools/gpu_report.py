#!/usr/bin/env python3
"""Makes one JSON file and one short table of what tools/gpu_check.sh left in its folder.

usage: gpu_report.py --gpu TEXT --folder FOLDER PART:STATUS ...

Reads probe.log (JSON lines), test's counts from meson's log, sanitize.log, bench_gpu.json and train.json where they are.
Writes gpu_check.json and gpu_check.md and prints the table. Exit status 1 if a part failed or a figure
misses its bound.
"""
import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path


def json_lines(path):
    if not path.exists():
        return []
    found = []
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                pass
    return found


def meson_counts(path):
    text = path.read_text(errors="replace") if path.exists() else ""
    return {key.lower(): int(count) for key, count in re.findall(r"^(Ok|Fail|Skipped|Timeout|Expected Fail):\s+(\d+)", text, re.M)}


def bounded(row):
    """A benchmark's figure (tests/bench/bench.h) in the words of tests/bench/gpu/train.py."""
    for key, right in (("at_least", lambda value, bound: value >= bound), ("at_most", lambda value, bound: value <= bound)):
        if key in row:
            return row | {"bound": row[key], "met": right(row["value"], row[key])}
    return row


def figures_of(folder):
    for name in ("bench_gpu.json", "train.json"):
        try:
            yield from map(bounded, json.loads((folder / name).read_text())["figures"])
        except (FileNotFoundError, ValueError):
            continue


def sanitized_told(lines):
    """How many runs were right, how many had no GPU; each that failed by name."""
    failed = [line for line in lines if line.startswith("not ok")]
    skipped = sum("# SKIP" in line for line in lines)
    right = len(lines) - len(failed) - skipped
    return ", ".join([f"{right} ok", f"{skipped} skipped"] * bool(lines) + failed) or "nothing ran"


def table(report):
    lines = [f"# GPU check, {report['date']}", "", f"{report['gpu']}; commit {report['commit']}; `{report['command']}`", "",
             "| part | result |", "|---|---|"]
    for part, status in report["parts"].items():
        told = "right" if status == 0 else f"FAILED ({status})"
        if part == "test" and report["tests"]:
            told += ": " + ", ".join(f"{count} {key}" for key, count in report["tests"].items())
        if part == "sanitize":
            told += ": " + sanitized_told(report["sanitized"])
        if part == "bench" and not report["figures"]:
            told += ": nothing measured"
        lines.append(f"| {part} | {told} |")
    if report["probe"]:
        lines += ["", "| probe | |", "|---|---|"]
        lines += [f"| {row.get('what')} {row.get('load', '')} | "
                  + ", ".join(f"{key} {value}" for key, value in row.items() if key not in ("what", "load")) + " |"
                  for row in report["probe"]]
    if report["figures"]:
        lines += ["", "| figure | value | bound | met |", "|---|---:|---:|---|"]
        for row in report["figures"]:
            value = "not measured" if row["value"] is None else f"{row['value']:.4g} {row['unit']}"
            met = {True: "yes", False: "**no**", None: ""}[row.get("met")]
            lines.append(f"| {row['name']} | {value} | {'' if row.get('bound') is None else row['bound']} | {met} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("parts", nargs="+", metavar="PART:STATUS")
    options = parser.parse_args()
    parts = {part: int(status) for part, status in (text.split(":") for text in options.parts)}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    sanitize = options.folder / "sanitize.log"
    report = {
        "date": time.strftime("%Y-%m-%d"), "gpu": options.gpu, "commit": commit or "unknown",
        "command": "tools/gpu_check.sh " + " ".join(parts), "parts": parts, "tests": meson_counts(options.folder / "test.log"),
        "sanitized": re.findall(r"^(?:not )?ok .*", sanitize.read_text(errors="replace"), re.M) if sanitize.exists() else [],
        "probe": json_lines(options.folder / "probe.log"), "figures": list(figures_of(options.folder)),
    }
    (options.folder / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.folder / "gpu_check.md").write_text(table(report))
    print(table(report))
    missed = [row["name"] for row in report["figures"] if row.get("met") is False]
    return 1 if missed or any(parts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
