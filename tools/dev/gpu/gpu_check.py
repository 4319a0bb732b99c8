#!/usr/bin/env python3
"""usage: tools/gpu_check.sh [--minutes N] [--limit PART=SECONDS ...] [--only PART ...] [--resume] [--out FOLDER] [--build FOLDER]
                          [--architecture N] [--quick]

Parts, in this order; the time that one leaves over goes to those behind it, and one that runs late is cut, not those:
  environment  what the machine is: GPU, clocks, power, memory, huge pages, cgroup; where nvcc, cuBLASLt and NCCL are; whether the
               driver is new enough for the toolkit: if not, what was built by nvcc is neither built nor run
  probe        what mappings, copies, launches and pinning take (tools/dev/gpu)
  build        the program, its module, the GPU's tests and bench_gpu, for this GPU's architecture alone, assertions on; then what
               each kernel consists of: spills, widths of stores and loads (tools/dev/kernel_counts.py), where the toolkit can tell
  test         suite `gpu`: the device, the program's bits, memcheck of the device; then each kernel, small ones first
  resident     gpt2, gpt2-xl and Llama 3.2 1B with everything on the device: tokens a second
  kernels      bench_gpu: copies, events, matmuls and every candidate for them, attention, what memory bounds
  budget       gpt2-xl on a quarter and a half of its model data: the step against that run's own limits, the same bits
  streamed     Llama 3.1 8B on a quarter of its model data: tokens a second
  largest      the largest GPT that fits, as `tidepool plan` says: it must train
  peers        PyTorch compiled, and FSDP2 with CPU offload, on the same GPU; figures that others published, beside ours
  sanitize     the small tests under compute-sanitizer: memcheck, then racecheck
  deps         only when named: where there is a network and apt, fetches Debian packages into .deps/, for a machine without

  --minutes N        for all of it (9): what is not done by then is not begun
  --limit PART=SECONDS ...   for these parts, instead of their share of what is left
  --only PART ...    these parts; results of the others stay, if they are of the same sources
  --resume           leave out what has passed with the same sources
  --out FOLDER       gpu_check.json, gpu_check.md and gpu_check.log, written anew after each step (build-gpu/report)
  --build FOLDER     where it is built (build-gpu)
  --architecture N   90 for compute capability 9.0; with it `--only build` needs no GPU
  --quick            tiny sizes, to see that everything runs

Exit status 0 if everything that ran was right, 1 if not, 2 for usage or where there is no GPU."""
import argparse
import hashlib
import json
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpu_parts
import gpu_report

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("base", "chunk", "include", "kernels", "offload", "src", "tests", "tools", "meson.build", "meson_options.txt")
SKIPPED = 77  # a test's exit status where it has nothing to run on
UNKILLABLE_SECONDS = 5
STEP_HEAD_BYTES, STEP_TAIL_BYTES, LOG_BYTES = 256 << 10, 64 << 10, 12 << 20
OUTPUT_BYTES = 4 << 20  # of a command, read for what it found


class Usage(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Usage(message)


# --- what a command printed ---

class Log:
    """All parts' output in one file: of each command the beginning, at once, and the end."""

    def __init__(self, path, keep):
        self.path = path
        self.file = open(path, "ab" if keep else "wb")
        self.left, self.tail, self.cut = 0, b"", 0

    def begin(self, title):
        self.left, self.tail, self.cut = STEP_HEAD_BYTES, b"", 0
        self.write_out(f"\n=== {title}\n".encode())

    def write_out(self, data):
        if self.file.tell() + len(data) <= LOG_BYTES:
            self.file.write(data)
            self.file.flush()

    def add(self, data):
        head, rest = data[:self.left], data[self.left:]
        self.left -= len(head)
        self.write_out(head)
        kept = self.tail + rest
        self.tail = kept[-STEP_TAIL_BYTES:]
        self.cut += len(kept) - len(self.tail)

    def end(self, told):
        if self.cut:
            self.write_out(f"\n... {self.cut} bytes left out ...\n".encode())
        self.write_out(self.tail + f"--- {told}\n".encode())


class Command:
    """A command with all that it starts, its output so far, and how it ended."""

    def __init__(self, arguments, environment, log):
        self.began, self.log = time.monotonic(), log
        self.out, self.err = bytearray(), bytearray()
        self.process = subprocess.Popen([str(word) for word in arguments], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def take(self, key):
        data = os.read(key.fd, 1 << 16)
        kept = self.out if key.data == "out" else self.err
        kept += data[:max(0, OUTPUT_BYTES - len(kept))]
        self.log.add(data)
        return data

    def wait(self, limit):
        """Its exit status; None if it was cut."""
        deadline = self.began + limit
        with selectors.DefaultSelector() as pipes:
            pipes.register(self.process.stdout, selectors.EVENT_READ, "out")
            pipes.register(self.process.stderr, selectors.EVENT_READ, "err")
            while pipes.get_map() and time.monotonic() < deadline:
                ready = pipes.select(timeout=max(0.0, min(0.5, deadline - time.monotonic())))
                for key, _ in ready:
                    if not self.take(key):
                        pipes.unregister(key.fileobj)
                if not ready and self.process.poll() is not None:
                    break  # it has ended, and what holds its pipes is none of ours
        try:
            return self.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    def kill(self):
        """It and all that it started; a process that waits inside a driver may outlive this, and is left to itself."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=UNKILLABLE_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()


# --- parts ---

class Part:
    """One part while it runs: its limit, its steps, and what it found. All of it is in `result`, a part of the report."""

    def __init__(self, check, name, limit):
        self.check, self.name = check, name
        self.options, self.environment = check.options, check.environment
        self.began = time.monotonic()
        self.deadline = self.began + limit
        self.output = ""  # of the last step, its stdout
        self.result = {"status": "running", "why": "", "seconds": 0.0, "limit_seconds": round(limit, 1), "steps": [], "figures": [],
                       "rows": []}

    def seconds_left(self):
        return self.deadline - time.monotonic()

    def step(self, name, arguments, limit=None, environment=None, fatal=True):
        """Run a command and keep what it found: of its output, each line that is a JSON object. True if it was right. Not
        `fatal`: what goes wrong in it, or that it is cut, does not fail the part."""
        left = min(self.seconds_left(), limit or float("inf"))
        if left <= 0:
            return self.note(name, "cut" if fatal else "skipped", "no time was left for it")
        self.check.log.begin(f"{self.name}: {name}: {shlex.join(str(word) for word in arguments)}")
        try:
            command = self.check.running = Command(arguments, {**self.environment, **(environment or {})}, self.check.log)
        except OSError as error:
            return self.note(name, "failed", f"{arguments[0]}: {error.strerror}")
        status = command.wait(left)
        command.kill()
        self.check.running = None
        self.output = command.out.decode(errors="replace")
        self.take(self.output)
        if status == 0 and re.search("^not ok", self.output, re.M):
            status = 1  # a TAP stream's own word
        told = {0: "passed", SKIPPED: "skipped", None: "cut"}.get(status, "failed")
        why = f"no end after {left:.0f} s" if status is None else "" if status == 0 else self.last_words(command, status)
        self.check.log.end(f"{told} {why}")
        return self.note(name, told if fatal or told == "passed" else "skipped", why, time.monotonic() - command.began)

    @staticmethod
    def last_words(command, status):
        """The line that says why, where there is one: the last, or the one that says SKIP."""
        err, out = ([line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
                    for said in (command.err, command.out))
        told = [line for line in err + out if "SKIP" in line] or err or out or ["(silent)"]
        ended = f"signal {-status}" if status < 0 else f"exit {status}"
        return f"{ended}: {told[-1][:300]}"

    def take(self, output):
        for line in output.splitlines():
            text = line.strip().rstrip(",")  # of a list, too, an object a line
            try:
                row = json.loads(text) if text.startswith("{") else None
            except ValueError:
                row = None  # it was cut there
            if isinstance(row, dict):
                self.found(row)

    def found(self, row):
        self.result["figures" if "value" in row and "name" in row else "rows"].append(row)

    def note(self, name, status, why="", seconds=0.0):
        self.result["steps"].append({"name": name, "status": status, "why": why, "seconds": round(seconds, 2)})
        self.check.write()
        return status == "passed"

    def end(self):
        """Failed if a step failed; else cut if one was; else passed if one was."""
        statuses = [step["status"] for step in self.result["steps"]]
        worst = next((status for status in ("failed", "cut", "passed") if status in statuses), "skipped")
        whose = [step for step in self.result["steps"] if step["status"] == worst and step["why"]]
        self.result["status"] = worst
        self.result["why"] = f"{whose[0]['name']}: {whose[0]['why']}" if whose and worst != "passed" else ""
        self.result["seconds"] = round(time.monotonic() - self.began, 1)


class Check:
    """The whole of it: options, where time is, and the report, which after each step is on the disk."""

    def __init__(self, options):
        self.options, self.began = options, time.monotonic()
        self.deadline = self.began + options.minutes * 60
        self.environment = dict(os.environ)
        self.running = None
        self.cuda, self.too_old = {}, ""  # versions of the driver and of the toolkit; why nothing built by the one runs on the other
        self.report = self.report_begin()
        self.log = Log(options.out / "gpu_check.log", bool(self.report["parts"]))

    def report_begin(self):
        """The one that is there, if it is of these sources and is to be gone on with; else an empty one."""
        fresh = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "commit": commit_of_tree(), "sources": digest_of_sources(),
                 "command": "tools/gpu_check.sh " + shlex.join(sys.argv[1:]), "parts": {}}
        if not (self.options.resume or self.options.only):
            return fresh
        try:
            old = json.loads((self.options.out / "gpu_check.json").read_text())
            same = old["sources"] == fresh["sources"] and isinstance(old["parts"], dict)
        except (OSError, ValueError, KeyError, TypeError):
            return fresh
        if not same:
            print("the report there is of other sources: begun anew", flush=True)
        return {**fresh, "parts": old["parts"]} if same else fresh

    def write(self):
        gpu_report.write(self.options.out, self.report)

    def say(self, text):
        print(f"== {time.monotonic() - self.began:.0f} s: {text}", flush=True)

    def begin(self, arguments):
        return Command(arguments, self.environment, self.log)

    def ask(self, arguments, seconds):
        """A command's exit status, None if it was cut, and all that it said."""
        command = self.begin(arguments)
        status = command.wait(seconds)
        command.kill()
        return status, (command.out + command.err).decode(errors="replace").strip()

    def wanted(self):
        """The parts to run, in their order."""
        names = [name for name in gpu_parts.PARTS if name != "deps" and not self.options.only or name in self.options.only]
        passed = [name for name in names if self.options.resume and self.report["parts"].get(name, {}).get("status") == "passed"]
        for name in passed:
            self.say(f"{name}: passed before")
        return [name for name in names if name not in passed]

    def run(self):
        names = self.wanted()
        for i, name in enumerate(names):
            weights = [gpu_parts.PARTS[other].weight for other in names[i:]]
            left = max(0.0, self.deadline - time.monotonic())
            self.run_part(Part(self, name, min(left, self.options.limit.get(name, left * weights[0] / sum(weights)))))
        return all(self.report["parts"][name]["status"] in ("passed", "skipped") for name in names)

    def run_part(self, part):
        self.say(f"{part.name} (at most {part.result['limit_seconds']:.0f} s)")
        self.report["parts"][part.name] = part.result
        self.write()
        spec = gpu_parts.PARTS[part.name]
        try:
            if spec.on_gpu and self.too_old:
                raise gpu_parts.Missing(self.too_old)
            spec.run(part)
        except gpu_parts.Missing as missing:
            part.note(part.name, "skipped", str(missing))
        except Exception as error:  # a part that is wrong must not take the others along
            part.note(part.name, "failed", f"{type(error).__name__}: {error}")
        part.end()
        self.write()
        why = part.result["why"]
        self.say(f"{part.name}: {part.result['status']} after {part.result['seconds']:.0f} s{': ' + why if why else ''}")

    def interrupt(self, number, _frame):
        """SIGINT, SIGTERM: end what runs, say so in the report."""
        if self.running is not None:
            self.running.kill()
        for result in self.report["parts"].values():
            if result["status"] == "running":
                result.update(status="cut", why=f"signal {number}")
        self.write()
        print(f"ended by signal {number}; what was found is in {self.options.out}", flush=True)
        os._exit(1)


# --- what was checked ---

def commit_of_tree():
    try:
        run = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        return run.stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def digest_of_sources():
    """Of everything that is built or run here: a tree may be a copy without a history, or changed since its commit."""
    digest = hashlib.sha256()
    for name in SOURCES:
        paths = [ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*"))
        for path in paths:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


# --- options ---

def positive(text):
    value = float(text)
    if not 0 < value <= 1e6:
        raise ValueError
    return value


def part_limit(text):
    part, _, seconds = text.partition("=")
    if part not in gpu_parts.PARTS:
        raise ValueError
    return part, positive(seconds)


def options_read(arguments):
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--minutes", type=positive, default=9.0)
    parser.add_argument("--limit", type=part_limit, nargs="+", default=[], metavar="PART=SECONDS")
    parser.add_argument("--only", nargs="+", default=[], choices=list(gpu_parts.PARTS), metavar="PART")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--build", type=Path, default=ROOT / "build-gpu")
    parser.add_argument("--architecture", type=int)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    if options.architecture is not None and not 50 <= options.architecture <= 999:
        raise Usage(f"--architecture {options.architecture}: it is like 90, for compute capability 9.0")
    options.limit = dict(options.limit)
    options.build = options.build.resolve()
    options.out = (options.out or options.build / "report").resolve()
    return options


def main():
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    try:
        options = options_read(sys.argv[1:])
        for folder in (options.build, options.out):
            folder.mkdir(parents=True, exist_ok=True)
    except (Usage, OSError) as error:
        print(f"tools/gpu_check.sh: {error} (--help tells more)", file=sys.stderr)
        return 2
    check = Check(options)
    gpu_parts.deps_use(check)
    try:
        gpu_parts.machine_read(check)
    except gpu_parts.Missing as missing:
        print(f"tools/gpu_check.sh: {missing}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, check.interrupt)
    good = check.run()
    check.write()
    print("\n" + gpu_report.table(check.report))
    return 0 if good and not gpu_report.missed(check.report) else 1


if __name__ == "__main__":
    sys.exit(main())
