#!/usr/bin/env python3
"""Measures the tests: changes the product's C code in many places, one at a time, and counts the changes that
the tests notice. Lists also the tests and cases that no such change (mutant) needs.

usage: mutate.py --work FOLDER [OPTION ...]   runs all stages, or goes on where an earlier run ended
       mutate.py --work FOLDER --report       prints the report of the results so far
       mutate.py --work FOLDER --lost-since OLD
                                              prints the mutants that were killed in the work folder OLD and
                                              not in this one; exit status 1 if there are any

    --after OLD          only asks whether the mutants that were killed in the work folder OLD still are: each
                         meets the tests that killed it there first, and one of them is enough. For the same
                         product with other tests

    --count N            mutants (300)
    --seed N             of the draw (1); for the same product the same seed draws the same mutants
    --paths PATH ...     folders or files of the product (base chunk offload src kernels/cpu tools)
    --tree FOLDER        the project (the one that holds this script)
    --jobs N             tests at once (the processors)
    --budget S           seconds of tests for one mutant (60) in the first round
    --grace S            a test hangs if it takes this much more than five times its recorded seconds (10)
    --minutes M          begins no test after M minutes of the last stage (90)
    --all-killers        runs all tests that reach a mutant, not only until two have noticed it
    --skip PATTERN       leaves out these tests, too (SKIPPED)
    --setup=OPTION       an option of meson setup, as often as needed (SETUP)
    --threshold PERCENT  exit status 1 if the score is less

One build holds all mutants, and the environment chooses one (mutant.h). The stages:

  copy, draw   FOLDER/tree gets the project's files and a build folder. libclang lists the possible mutants
               (mutants.py). Each folder gets mutants in proportion to its lines, at most one a line
  build        a mutant that does not compile gives way to another one of its folder
  record       every test runs once, without a mutant, to note its time and the mutants that it reaches (for
               many mutants: where they make a difference). Tests that fail or skip themselves are left out
  run          each mutant meets the tests that reach it, the fastest first, until two have failed. A test
               fails by exit status, by a failed case or by hanging; if only one fails, it must do so again.
               A mutant whose tests exceed the budget is "undecided"; the next round has four times the budget

A test that met no mutant, or few, is not shown to be needless: two faster ones were enough each time. The
report can't judge tests of CUDA kernels (*_cuda_on_cpu) at all, since it is C that has the mutants.

FOLDER/state.json keeps the results. Needs meson, ninja and libclang for Python (Debian: python3-clang-14).
"""
import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutants import candidates
from test_count import cases as tap_cases

SCRIPT = Path(__file__).resolve()
HEADER = SCRIPT.parent / "mutant.h"
PATHS = ["base", "chunk", "offload", "src", "kernels/cpu", "tools"]
# Tests of other things than the product's C code, and those that build it again.
SKIPPED = r"check_words|kernel_counts|mutate|gpu_check|bench_.*|program_consumer|program_trace_page"
SETUP = ["-Ddebug=false", "-Dtests=enabled", "-Dgpu_architectures=[]"]


def run(command, folder=None, **more):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False, **more)


def in_parallel(jobs, job, items):
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for future in [pool.submit(job, item) for item in items]:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class Draw:
    """Draws mutants folder by folder. `taken` are the drawn ones, by number."""

    def __init__(self, found, lines, count, seed):
        self.left, self.taken, self.number = {}, {}, 0
        for folder in sorted(found):
            # A line is drawn before one of its mutants, so that long expressions do not get more than others.
            by_line, chance = defaultdict(list), random.Random(f"{seed} {folder}")
            for one in found[folder]:
                by_line[one["file"], one["line"]].append(one)
            places = sorted(by_line)
            chance.shuffle(places)
            self.left[folder] = [chance.choice(by_line[place]) for place in reversed(places)]
        total, shares = sum(lines[folder] for folder in found), {}
        for folder in found:
            shares[folder] = count * lines[folder] / total
        quota = {folder: int(share) for folder, share in shares.items()}
        for folder in sorted(shares, key=lambda one: quota[one] - shares[one])[:count - sum(quota.values())]:
            quota[folder] += 1
        for folder, number in quota.items():
            for _ in range(number):
                self.next(folder)

    def next(self, folder):
        while self.left[folder]:
            one = self.left[folder].pop()
            if not any(one["file"] == other["file"] and one["start"] < other["end"] and
                       other["start"] < one["end"] for other in self.taken.values()):
                self.number += 1
                self.taken[self.number] = one
                return


def tree_copy(source, tree, build, setup):
    """Copies the project's files and makes a build folder. Returns the commit, with a + if files differ."""
    shutil.rmtree(tree, ignore_errors=True)
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], source).stdout
    for path in filter(None, listed.split("\0")):
        if (source / path).is_file():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, tree / path)
    made = run(["meson", "setup", str(build), *setup], tree)
    if made.returncode:
        sys.exit(f"mutate.py: meson setup fails:\n{made.stdout[-2000:]}")
    head = run(["git", "rev-parse", "--short=12", "HEAD"], source)
    differs = run(["git", "status", "--porcelain"], source).stdout
    return (head.stdout.strip() if head.returncode == 0 else "none") + ("+" if differs else "")


def write(tree, original, mutants):
    """Writes the mutated sources; a file whose text stays the same keeps its time."""
    by_file = defaultdict(list)
    for number, one in mutants.items():
        by_file[one["file"]].append((one["start"], one["end"], one["new"].replace("{K}", str(number))))
    for path in sorted(set(by_file) | set(original)):
        text = original.setdefault(path, (tree / path).read_bytes())
        for start, end, new in sorted(by_file[path], reverse=True):
            text = text[:start] + new.encode() + text[end:]
        if by_file[path]:
            text = b'#include "%s"\n#line 1\n' % str(HEADER).encode() + text
        if (tree / path).read_bytes() != text:
            (tree / path).write_bytes(text)


def build_all(tree, build, draw):
    """Builds, and replaces mutants that do not compile. Returns those."""
    dropped, original = [], {}
    while True:
        write(tree, original, draw.taken)
        made = run(["ninja", "-k", "0", "-C", str(build)], env=dict(os.environ, CCACHE_BASEDIR=str(tree)))
        if made.returncode == 0:
            return dropped
        bad, told = set(), re.sub(r"\x1b\[[0-9;]*[mK]", "", made.stdout)  # without colours
        for path, line in re.findall(r"^(\S+?):(\d+):\d+: error: ", told, re.MULTILINE):
            path = os.path.relpath(os.path.normpath(build / path), tree)
            in_file = {number: one for number, one in draw.taken.items() if one["file"] == path}
            bad |= {number for number, one in in_file.items() if one["line"] <= int(line) <= one["last"]}
        if not bad:
            sys.exit(f"mutate.py: the build fails:\n{made.stdout[-3000:]}")
        for number in sorted(bad):
            dropped.append(draw.taken.pop(number))
            draw.next(str(Path(dropped[-1]["file"]).parent))


def stragglers_kill(token):
    """Ends the processes that a test left behind."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and token in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            pass


class Tests:
    """The tests of a build folder, each run in a folder of its own."""
    count, lock = 0, threading.Lock()

    def __init__(self, build, scratch, skip):
        listed = run(["meson", "introspect", "--tests", str(build)]).stdout
        self.all = {test["name"]: test for test in json.loads(listed)
                    if not re.fullmatch(f"{SKIPPED}|{skip}", test["name"]) and "gpu" not in test["suite"]}
        self.scratch = scratch

    def run(self, name, limit, **setting):
        """Returns the way in which the test failed ("" if it passed), its seconds, the names of its cases and
        of the failed ones."""
        with self.lock:
            Tests.count += 1
            token = f"{os.getpid()}.{Tests.count}"
        test, folder = self.all[name], self.scratch / token
        folder.mkdir(parents=True)
        setting.update(test["env"], TMPDIR=str(folder), TIDE_MUTANT_RUN=token, CMOCKA_MESSAGE_OUTPUT="TAP",
                       OMP_WAIT_POLICY="passive", MALLOC_PERTURB_="85")
        began, how = time.monotonic(), ""
        with open(folder / "output", "wb") as out:
            child = subprocess.Popen(test["cmd"], cwd=folder, env={**os.environ, **setting}, stdout=out,
                                     stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                     start_new_session=True)
            try:
                status = child.wait(limit)
            except subprocess.TimeoutExpired:
                how, status = "hung", -1
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        seconds = time.monotonic() - began
        text = (folder / "output").read_text(errors="replace")
        if how or status:
            stragglers_kill(f"TIDE_MUTANT_RUN={token}".encode())
        shutil.rmtree(folder, ignore_errors=True)
        found = [(verdict, case.split(" # ")[0]) for verdict, case in tap_cases(text)]
        failed = [case for verdict, case in found if verdict == "failed"]
        plan = re.search(r"^1\.\.(\d+)", text, re.MULTILINE)
        if not how and status == 77 and not failed:
            how = "skipped"
        elif not how and status:
            how = "failed" if failed else f"ended with status {status}"
        elif not how and test["protocol"] == "tap" and not (plan and int(plan.group(1)) <= len(found)):
            how = "ended early"
        elif not how and failed:
            how = "failed"
        return how, seconds, [case for _, case in found], failed


def limits_set():
    """Lets the system end a mutant that takes all memory, and lets none write for ever. A limit for memory
    would also limit threads, of which one test starts thousands."""
    Path("/proc/self/oom_score_adj").write_text("700")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 30, 4 << 30))


def record(tests, scratch, size, jobs):
    known, left_out = {}, {}

    def one(name):
        path = scratch / f"reached-{name}"
        path.write_bytes(bytes(size))
        limit = 3 * tests.all[name]["timeout"]
        how, seconds, cases, failed = tests.run(name, limit, TIDE_MUTANT_REACHED=str(path))
        reached = [number for number, byte in enumerate(path.read_bytes()) if byte]
        path.unlink()
        if how:
            left_out[name] = " ".join([how, *failed[:3]])
        else:
            known[name] = {"seconds": round(seconds, 2), "cases": cases, "reached": reached}

    in_parallel(jobs, one, sorted(tests.all, key=lambda name: -tests.all[name]["timeout"]))
    return known, left_out


def mutant_run(tests, known, number, before, first, budget, end, options):
    """Runs the tests that reach a mutant, those in `first` first, then the fastest first, except those that
    an earlier round tried. Returns its verdict and killers. `budget` is in recorded seconds, as the machine's
    load changes others."""
    reach = [(about["seconds"], name) for name, about in known.items() if number in about["reached"]]
    reach.sort(key=lambda one: (one[1] not in first, one))
    killers, tried, flaky, complete = {}, list(before.get("tried", [])), list(before.get("flaky", [])), True
    spent, began = sum(known[name]["seconds"] for name in tried), time.monotonic()

    def once(seconds, name):
        how, _, cases, failed = tests.run(name, 5 * seconds + options.grace, TIDE_MUTANT=str(number))
        if how and not failed:  # the case that ran when the program ended
            failed = [case for case in known[name]["cases"] if case not in cases][:1] or ["the program"]
        return how and {"how": how, "cases": failed}

    for seconds, name in reach:
        if name in tried:
            continue
        if (tried and spent + seconds > budget) or time.monotonic() > end:
            complete = False
            break
        killed = once(seconds, name)
        tried.append(name)
        spent += seconds
        if killed:
            killers[name] = killed
        if len(killers) == (1 if first else 2) and not options.all_killers:
            break
    if len(killers) == 1:
        only = next(iter(killers))
        if not once(known[only]["seconds"], only):
            flaky.append(only)
            killers = {}
            complete = complete and all(name in tried for _, name in reach)
    verdict = "killed" if killers else "undecided" if not complete else "survived" if reach else "unreached"
    return {"verdict": verdict, "killers": killers, "tried": tried, "flaky": flaky,
            "seconds": round(before.get("seconds", 0) + time.monotonic() - began, 1)}


def place_of(one):
    text = one["text"] if len(one["text"]) <= 80 else one["text"][:77] + "..."
    return f"{one['file']}:{one['line']}: {one['what']}: {text}"


def cover(kills, cost):
    """Cases that together kill all, chosen by mutants killed for their time."""
    left, chosen = set().union(*kills.values()) if kills else set(), []
    while left:
        best = max(sorted(kills), key=lambda case: len(kills[case] & left) / cost[case])
        chosen.append(best)
        left -= kills[best]
    return chosen


def report(state):
    mutants, results, tests = state["mutants"], state["results"], state["tests"]
    table, alone, met, kills, cost = defaultdict(Counter), Counter(), Counter(), defaultdict(set), {}
    for number, result in results.items():
        met.update(result["tried"])
        folder = str(Path(mutants[number]["file"]).parent)
        table[folder][result["verdict"]] += 1
        table["all"][result["verdict"]] += 1
        named = [(name, case) for name, killer in result["killers"].items() for case in killer["cases"]]
        if len(named) == 1:
            alone[named[0]] += 1
        for one in named:
            kills[one].add(number)
            cost[one] = (tests[one[0]]["seconds"] + 0.05) / max(len(tests[one[0]]["cases"]), 1)
    print(f"commit {state['commit']}, seed {state['seed']}: {len(mutants)} mutants, {len(results)} tried")
    print(f"stages, in seconds: {', '.join(f'{name} {took:.0f}' for name, took in state['seconds'].items())}")
    heads = ("mutants", "reached", "killed", "survived", "undecided")
    print(" ".join([f"{'folder':24}", *(f"{head:>9}" for head in heads), " score"]))
    for folder in sorted(table, key=lambda name: (name == "all", name)):
        row = table[folder]
        total, decided = sum(row.values()), row["killed"] + row["survived"] + row["unreached"]
        score = f"{100 * row['killed'] / decided:5.1f}%" if decided else "    -"
        print(f"{folder:24} {total:9} {total - row['unreached']:9} {row['killed']:9} {row['survived']:9}"
              f" {row['undecided']:9} {score}")
    for verdict in ("survived", "unreached", "undecided"):
        print(f"\n{verdict}:")
        for number in sorted(results, key=int):
            if results[number]["verdict"] == verdict:
                print(f"  {number}: {place_of(mutants[number])}")
    chosen = set(cover(kills, cost))
    print("\ntests, the slowest first, and mutants; a case alone is the only known killer of a mutant:")
    for name in sorted(tests, key=lambda one: -tests[one]["seconds"]):
        own = [one for one in kills if one[0] == name]
        killed = set().union(*(kills[one] for one in own)) if own else set()
        print(f"  {name:38} {tests[name]['seconds']:6.1f} s, met {met[name]}, killed {len(killed)}, alone"
              f" {sum(alone[one] for one in own)}; cases {len(tests[name]['cases'])}, killing {len(own)},"
              f" needed {len(chosen & set(own))}")
        for one in own:
            if alone[one]:
                print(f"      alone {alone[one]}: {one[1]}")
    free = [name for name in tests if not any(one[0] == name for one in chosen)]
    print(f"\n{len(chosen)} cases kill all killed mutants. None needs {len(free)} of {len(tests)} tests, "
          f"{sum(tests[name]['seconds'] for name in free):.0f} of "
          f"{sum(about['seconds'] for about in tests.values()):.0f} s:\n  " + " ".join(sorted(free)))
    flaky = sorted({name for result in results.values() for name in result.get("flaky", [])})
    for name, why in sorted(state["left_out"].items()):
        print(f"left out: {name}: {why}")
    print("failed once and not again: " + (" ".join(flaky) or "none"))
    all_of = table["all"]
    return 100 * all_of["killed"] / max(sum(all_of.values()) - all_of["undecided"], 1)


def lost(old, new):
    """Prints the mutants that the old tests killed and the new ones do not. Returns their number."""
    def verdicts(state):
        return {place_of(mutant) + f" ({mutant['start']})": state["results"][number]["verdict"]
                for number, mutant in state["mutants"].items() if number in state["results"]}

    before, now = verdicts(old), verdicts(new)
    both = sorted(before.keys() & now.keys())
    found = [place for place in both if before[place] == "killed" and now[place] != "killed"]
    for place in found:
        print(f"{now[place]}: {place}")
    print(f"{len(both)} mutants tried in both, {len(found)} of them killed before and not now")
    return len(found) if both else 1


def main():
    parser = argparse.ArgumentParser()
    parser.format_help = lambda: __doc__
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tree", type=Path, default=SCRIPT.parents[2])
    parser.add_argument("--paths", nargs="+", default=PATHS)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--budget", type=float, default=60)
    parser.add_argument("--grace", type=float, default=10)
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--threshold", type=float, default=0)
    parser.add_argument("--skip", default="")
    parser.add_argument("--setup", action="append", default=[])
    parser.add_argument("--all-killers", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--lost-since", type=Path)
    parser.add_argument("--after", type=Path)
    options = parser.parse_args()
    work, tree = options.work.resolve(), options.work.resolve() / "tree"
    build, kept = tree / "build", work / "state.json"
    state = json.loads(kept.read_text()) if kept.exists() else {}
    old = json.loads((options.after / "state.json").read_text()) if options.after else None

    def save(stage, began, **parts):
        state.update(parts)
        seconds = state.setdefault("seconds", {})
        seconds[stage] = seconds.get(stage, 0) + time.monotonic() - began
        kept.with_suffix(".new").write_text(json.dumps(state))
        os.replace(kept.with_suffix(".new"), kept)

    if options.lost_since:
        return lost(json.loads((options.lost_since / "state.json").read_text()), state) > 0
    if options.report:
        return report(state) < options.threshold
    chosen = {"seed": options.seed, "count": options.count, "paths": options.paths}
    if any(state[name] != value for name, value in chosen.items() if state):
        sys.exit(f"mutate.py: {kept} is of a run with other options; remove it to begin again")
    if not state:
        began = time.monotonic()
        commit = tree_copy(options.tree, tree, build, options.setup or SETUP)
        try:
            found, lines = candidates(tree, build, options.paths, options.jobs)
        except ImportError:
            sys.exit("mutate.py: there is no libclang for Python (Debian: python3-clang-14)")
        draw = Draw(found, lines, options.count, options.seed)
        print(f"{sum(map(len, found.values()))} possible mutants, {len(draw.taken)} drawn", flush=True)
        drawn = time.monotonic()
        dropped = build_all(tree, build, draw)
        print(f"built; {len(dropped)} mutants that do not compile gave way to others", flush=True)
        state["seconds"] = {"draw": drawn - began}
        save("build", drawn, mutants={str(number): one for number, one in draw.taken.items()}, commit=commit,
             dropped=dropped, results={}, **chosen)
    limits_set()
    shutil.rmtree(work / "runs", ignore_errors=True)
    tests = Tests(build, work / "runs", options.skip)
    if "tests" not in state:
        began = time.monotonic()
        if old and old["mutants"] != state["mutants"]:
            sys.exit(f"mutate.py: {options.after} has other mutants: of another product, or another draw")
        known, left_out = record(tests, work, max(map(int, state["mutants"])) + 1, options.jobs)
        save("record", began, tests=known, left_out=left_out)
        print(f"recorded {len(known)} tests, left out {left_out}", flush=True)
    began, end = time.monotonic(), time.monotonic() + 60 * options.minutes
    known = {name: dict(about, reached=set(about["reached"])) for name, about in state["tests"].items()}

    def one(number):
        if time.monotonic() < end:
            before = state["results"].get(number, {})
            first = old["results"][number]["killers"] if old else ()
            result = mutant_run(tests, known, int(number), before, first, budget, end, options)
            with tests.lock:
                nonlocal began
                state["results"][number] = result
                save("run", began)
                began = time.monotonic()
            print(f"{number}: {result['verdict']} {result['seconds']} s", list(result["killers"]), flush=True)

    budget, order = options.budget, list(state["mutants"])
    if old:
        order = [number for number in order if old["results"].get(number, {}).get("killers")]
    random.Random(options.seed).shuffle(order)  # the mutants tried so far are a fair sample at any time
    while time.monotonic() < end:
        left = [number for number in order
                if state["results"].get(number, {"verdict": "undecided"})["verdict"] == "undecided"]
        if not left:
            break
        in_parallel(options.jobs, one, left)
        budget *= 4
    return report(state) < options.threshold


if __name__ == "__main__":
    sys.exit(main())
