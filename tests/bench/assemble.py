#!/usr/bin/env python3
"""Collects the benchmarks' outputs in one file, and makes tables of it.

usage: assemble.py --out FILE [--load LOAD] [--quick] NAME:STATUS=OBJECT.json ...
       assemble.py --markdown FILE

tools/bench.sh uses the first form, with each benchmark's exit status and the file of its JSON object
(bench.h describes it; OBJECT.err beside it has the last error messages). It prints a table; exit status 1
if a figure misses its bound or a benchmark did not finish, 2 for usage. With --quick it checks no bounds,
since the figures come from too few rounds. The second form prints a finished file as Markdown, for
docs/measurements.
"""
import argparse
import datetime
import json
import math
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

RESULT = re.compile(r"(\w+):(\d+)=(.+)")


# --- the machine ---

def first_match(path, pattern):
    try:
        found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1) if found else None


def output_of(*command):
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def machine(load):
    memory_kib = first_match("/proc/meminfo", r"^MemTotal:\s+(\d+) kB")
    return {"processor": first_match("/proc/cpuinfo", r"^model name\s*:\s*(.*)$") or platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": int(memory_kib) * 1024 if memory_kib else None,
            "kernel": platform.release(),
            "c_library": " ".join(platform.libc_ver()).strip(),
            "compiler": (output_of("cc", "--version") or "unknown").splitlines()[0],
            "load_before": load}


def commit():
    name = output_of("git", "rev-parse", "--short", "HEAD")
    if name is None:
        return "unknown"
    return name + ("-dirty" if output_of("git", "status", "--porcelain", "--untracked-files=no") else "")


# --- one benchmark's object ---

def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def figure_fault(figure):
    if not isinstance(figure, dict) or not isinstance(figure.get("name"), str):
        return "a figure without a name"
    if not is_number(figure.get("value")):
        return f"{figure['name']}: no value"
    bounds = [figure[key] for key in ("at_least", "at_most") if key in figure]
    if len(bounds) > 1 or not all(is_number(bound) for bound in bounds):
        return f"{figure['name']}: its bound is not one number"
    return None


def load_object(name, status, path):
    """The benchmark's object; with a member `failed` if the benchmark did not finish."""
    last_words = Path(path).with_suffix(".err")
    try:
        found = json.loads(Path(path).read_text())
        figures = found["figures"]
        fault = next(filter(None, map(figure_fault, figures)), None) if figures else "no figures"
    except (OSError, ValueError, KeyError, TypeError):
        found, fault = None, "no object that can be read"
    if status == 0 and fault is None:
        return found
    words = last_words.read_text().strip().splitlines() if last_words.exists() else []
    reason = fault if status == 0 else f"exit status {status}"
    whole = found if found is not None and fault is None else {"bench": name, "figures": []}
    return whole | {"failed": ": ".join([reason] + words[-1:])}


# --- tables ---

def short(value):
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.4g}"


def required(figure):
    for key, sign in (("at_least", ">="), ("at_most", "<=")):
        if key in figure:
            return f"{sign} {short(figure[key])}"
    return ""


def verdict(figure, quick):
    if quick:
        return ""
    if "at_least" in figure:
        return "ok" if figure["value"] >= figure["at_least"] else "MISSED"
    if "at_most" in figure:
        return "ok" if figure["value"] <= figure["at_most"] else "MISSED"
    return ""


def rows(assembled):
    for found in assembled["benchmarks"]:
        if "failed" in found:
            yield found["bench"], "did not finish", "", "", "FAILED", found["failed"]
        for figure in found["figures"]:
            value = f"{short(figure['value'])} {figure.get('unit', '')}".replace(" ratio", "")
            yield found["bench"], figure["name"], value, required(figure), verdict(figure, assembled["quick"]), figure.get("note", "")


def print_table(assembled):
    table = [row[:5] for row in rows(assembled)]
    widths = [max(len(row[i]) for row in table) for i in range(5)]
    for row in table:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
    for name, _, _, _, outcome, note in rows(assembled):
        if outcome == "FAILED":
            print(f"{name} failed: {note}")


def print_markdown(assembled):
    host = assembled["machine"]
    memory = f"{host['memory_bytes'] / 2**30:.0f} GiB" if host["memory_bytes"] else "unknown memory"
    print(f"{host['processor']}, {host['cores']} cores, {memory}, Linux {host['kernel']}, {host['c_library']}, "
          f"{host['compiler']}; commit {assembled['commit']}, {assembled['date']}"
          f"{', quick' if assembled['quick'] else ''}; load before the run {host['load_before']}.\n")
    print("| benchmark | figure | value | required | | note |\n|---|---|---:|---:|---|---|")
    for row in rows(assembled):
        print("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |")


# --- main ---

def assemble(parser, arguments):
    benchmarks = []
    for result in arguments.results:
        parts = RESULT.fullmatch(result)
        if not parts:
            parser.error(f"{result}: NAME:STATUS=FILE expected")
        benchmarks.append(load_object(parts[1], int(parts[2]), parts[3]))
    assembled = {"machine": machine(arguments.load), "commit": commit(),
                 "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
                 "quick": arguments.quick, "benchmarks": benchmarks}
    try:
        Path(arguments.out).write_text(json.dumps(assembled, indent=1) + "\n")
    except OSError as error:
        sys.exit(f"assemble.py: {arguments.out}: {error.strerror}")
    print_table(assembled)
    outcomes = [row[4] for row in rows(assembled)]
    missed, failed = outcomes.count("MISSED"), outcomes.count("FAILED")
    judged = "quick: none is judged" if arguments.quick else f"{outcomes.count('ok')} requirements met, {missed} missed"
    print(f"{len(outcomes) - failed} figures, {judged}"
          f"{f', {failed} benchmarks failed' if failed else ''}; {arguments.out}")
    return 1 if missed or failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--load", default="unknown")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--markdown", metavar="FILE")
    parser.add_argument("results", nargs="*", metavar="NAME:STATUS=FILE")
    arguments = parser.parse_args()
    if (arguments.markdown is None) == (arguments.out is None) or bool(arguments.out) != bool(arguments.results):
        parser.error("either --out FILE with results, or --markdown FILE")
    if arguments.out:
        return assemble(parser, arguments)
    try:
        assembled = json.loads(Path(arguments.markdown).read_text())
        assembled["machine"], assembled["benchmarks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"assemble.py: {arguments.markdown}: not an assembled file: {error}")
    print_markdown(assembled)
    return 0


if __name__ == "__main__":
    sys.exit(main())
