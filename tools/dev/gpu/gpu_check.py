#!/usr/bin/env python3
"""usage: tools/gpu_check.sh [--minutes N] [--limit PART=SECONDS ...] [--only PART ...] [--resume]
                          [--out FOLDER] [--build FOLDER] [--architecture N] [--quick]

Builds tidepool for this machine's GPU, tests it and measures it. The parts run in this order. A part that
runs longer than its limit is ended; time that a part does not use goes to the later parts:
  environment  describes the machine: GPU, clocks, power, memory, huge pages, cgroup, the places of nvcc,
               cuBLASLt and NCCL. If the driver is too old for the toolkit, the parts that need nvcc's code
               are skipped
  probe        times mappings, copies, launches and pinning (tools/dev/gpu)
  build        builds the program, its module, the GPU's tests and bench_gpu, for this GPU's architecture,
               with assertions; then counts each kernel's spills and widths of stores and loads
               (tools/dev/kernel_counts.py), if the toolkit has the programs for that
  test         runs suite `gpu`: the device, the program's bits, memcheck of the device; then each kernel,
               small tests first
  resident     trains gpt2, gpt2-xl and Llama 3.2 1B with everything on the device: tokens a second
  kernels      runs bench_gpu: copies, events, matmuls and every algorithm for them, attention, memory-bound
               kernels
  budget       trains gpt2-xl with a quarter and a half of its model data on the device: step time against
               limits measured in the same run, and the same bits
  streamed     trains Llama 3.1 8B with a quarter of its model data on the device: tokens a second
  largest      trains the largest GPT that fits according to `tidepool plan`
  peers        measures PyTorch, compiled, and FSDP2 with CPU offload on the same GPU; lists figures that
               others published
  sanitize     runs the small tests under compute-sanitizer: memcheck, then racecheck, without those of
               the device and of matmuls
  deps         only if named: downloads Debian packages into .deps/, for a machine without network; needs a
               network and apt

  --minutes N        time for all parts (9); no part begins later
  --limit PART=SECONDS ...   limits for these parts, instead of their share of the time that is left
  --only PART ...    run these parts; results of the others are kept if the sources are the same
  --resume           skip the parts that have passed with the same sources
  --out FOLDER       folder of gpu_check.json, gpu_check.md and gpu_check.log, replaced after each step
                     (build-gpu/report)
  --build FOLDER     build folder (build-gpu)
  --architecture N   90 for compute capability 9.0; with it `--only build` needs no GPU
  --quick            tiny sizes, to see that everything runs

Exit status: 0 if everything that ran was right, 1 if not, 2 for a wrong command line or without a GPU."""
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
SKIPPED = 77  # exit status of a test that skips itself
UNKILLABLE_SECONDS = 5
STEP_HEAD_BYTES, STEP_TAIL_BYTES, LOG_BYTES = 256 << 10, 64 << 10, 12 << 20
OUTPUT_BYTES = 4 << 20  # most of a command's output that is searched for JSON results


class Usage(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Usage(message)


# --- commands and their output ---

class Log:
    """A file with the output of all parts: the beginning of each command's output, written at once, and its
    end."""

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
    """A running command with its child processes, and its output so far."""

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
        """Returns the command's exit status; None if it did not end within `limit` seconds."""
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
                    break  # the command has ended; another process holds its pipes open
        try:
            return self.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    def kill(self):
        """Kills the command and its child processes. A process that waits inside a driver can't be killed: it
        is left behind."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=UNKILLABLE_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()


# --- parts ---

class Part:
    """A running part: its limit, its steps and its findings. `result` is its entry in the report."""

    def __init__(self, check, name, limit):
        self.check, self.name = check, name
        self.options, self.environment = check.options, check.environment
        self.began = time.monotonic()
        self.deadline = self.began + limit
        self.output = ""  # stdout of the last step
        self.result = {"status": "running", "why": "", "seconds": 0.0, "limit_seconds": round(limit, 1), "steps": [], "figures": [],
                       "rows": []}

    def seconds_left(self):
        return self.deadline - time.monotonic()

    def step(self, name, arguments, limit=None, environment=None, fatal=True):
        """Runs a command and adds each line of its output that is a JSON object to the findings. Returns
        whether the command succeeded. If not `fatal`, a failure or a timeout counts as skipped and does not
        fail the part."""
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
            status = 1  # the TAP output names a failed case
        told = {0: "passed", SKIPPED: "skipped", None: "cut"}.get(status, "failed")
        why = f"no end after {left:.0f} s" if status is None else "" if status == 0 else self.last_words(command, status)
        self.check.log.end(f"{told} {why}")
        return self.note(name, told if fatal or told == "passed" else "skipped", why, time.monotonic() - command.began)

    @staticmethod
    def last_words(command, status):
        """The line of the output that explains the status: the last one, or the one that says SKIP."""
        err, out = ([line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
                    for said in (command.err, command.out))
        told = [line for line in err + out if "SKIP" in line] or err or out or ["(silent)"]
        ended = f"signal {-status}" if status < 0 else f"exit {status}"
        return f"{ended}: {told[-1][:300]}"

    def take(self, output):
        for line in output.splitlines():
            text = line.strip().rstrip(",")  # an object may be a line of a JSON list
            try:
                row = json.loads(text) if text.startswith("{") else None
            except ValueError:
                row = None  # the command was killed within this line
            if isinstance(row, dict):
                self.found(row)

    def found(self, row):
        self.result["figures" if "value" in row and "name" in row else "rows"].append(row)

    def note(self, name, status, why="", seconds=0.0):
        self.result["steps"].append({"name": name, "status": status, "why": why, "seconds": round(seconds, 2)})
        self.check.write()
        return status == "passed"

    def end(self):
        """Sets the part's status: "failed" if a step failed, else "cut" if one timed out, else "passed" if
        one passed, else "skipped"."""
        statuses = [step["status"] for step in self.result["steps"]]
        worst = next((status for status in ("failed", "cut", "passed") if status in statuses), "skipped")
        whose = [step for step in self.result["steps"] if step["status"] == worst and step["why"]]
        self.result["status"] = worst
        self.result["why"] = f"{whose[0]['name']}: {whose[0]['why']}" if whose and worst != "passed" else ""
        self.result["seconds"] = round(time.monotonic() - self.began, 1)


class Check:
    """The whole check: its options, its deadline, and its report, which is written to the disk after each
    step."""

    def __init__(self, options):
        self.options, self.began = options, time.monotonic()
        self.deadline = self.began + options.minutes * 60
        self.environment = dict(os.environ)
        self.running = None
        self.cuda, self.too_old = {}, ""  # versions of driver and toolkit; the reason, if the driver is too old
        self.report = self.report_begin()
        self.log = Log(options.out / "gpu_check.log", bool(self.report["parts"]))

    def report_begin(self):
        """Returns the earlier report if --resume or --only continues it and the sources are the same; else an
        empty report."""
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
        """Runs a command. Returns its exit status (None: it did not end in time) and its output."""
        command = self.begin(arguments)
        status = command.wait(seconds)
        command.kill()
        return status, (command.out + command.err).decode(errors="replace").strip()

    def wanted(self):
        """The names of the parts to run, in order."""
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
        except Exception as error:  # a fault in one part must not end the others
            part.note(part.name, "failed", f"{type(error).__name__}: {error}")
        part.end()
        self.write()
        why = part.result["why"]
        self.say(f"{part.name}: {part.result['status']} after {part.result['seconds']:.0f} s{': ' + why if why else ''}")

    def interrupt(self, number, _frame):
        """Handles SIGINT and SIGTERM: kills the running command and marks its part in the report."""
        if self.running is not None:
            self.running.kill()
        for result in self.report["parts"].values():
            if result["status"] == "running":
                result.update(status="cut", why=f"signal {number}")
        self.write()
        print(f"ended by signal {number}; what was found is in {self.options.out}", flush=True)
        os._exit(1)


# --- the sources that are checked ---

def commit_of_tree():
    try:
        run = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        return run.stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def digest_of_sources():
    """A digest of all files that the check builds or runs. The commit does not suffice: the tree may be a
    copy without git's history, or changed since the commit."""
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
