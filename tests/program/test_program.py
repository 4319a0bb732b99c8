#!/usr/bin/env python3
"""Runs the program as a user does: bad input, signals, crashes, and files.

usage: test_program.py PROGRAM SECTION [--full]       prints TAP
SECTION: preset, input, signals, crashes, files
--full: the campaign's sizes (50 kills)

Runs that compute use --checks on (hazard checker, guards) unless the test measures their memory or time.
"""
import argparse
import ctypes
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

METRICS_FIELDS = ("step version loss grad_norm lr loss_scale tokens learned_tokens step_seconds "
                  "tokens_per_second compute_seconds stall_seconds stall_link_seconds stall_slot_seconds stall_update_seconds stall_norm_seconds stall_map_seconds "
                  "stall_peer_seconds stall_caller_seconds predicted_step_seconds predicted_stall_seconds h2d_bytes d2h_bytes collective_bytes evictions "
                  "demand_fetches prefetches adam_host_seconds adam_device_seconds device_bytes_peak host_bytes_peak "
                  "skipped").split()
STALL_CAUSES = "link slot update norm map peer caller".split()
TENSOR_FILES = ("model.safetensors", "momentum.safetensors", "variance.safetensors")
MIB = 1 << 20
# Memory that a process needs above its budgets: code and libraries, thread stacks, oneDNN's code and scratch.
# It does not depend on the model: 15 to 17 MiB measured with gpt2-nano, 19 to 21 MiB with gpt2.
OVERHEAD_BYTES = 64 * MIB
# Descriptions of machines for the null device.
MACHINES = Path(__file__).parent / "machines"
MACHINE = ("--machine", MACHINES / "small.json")
# Kills a run that hangs. The slowest sound run saves 120 times, which takes minutes on a slow disk.
TIMEOUT_S = 240


class Tap:
    """Counts checks and prints them as TAP: one line for each check, and a failed check's details as #
    lines."""

    def __init__(self):
        self.count = 0

    def ok(self, good, name, detail=""):
        self.count += 1
        print(f"{'ok' if good else 'not ok'} {self.count} - {name}")
        if not good and detail:
            for line in str(detail).splitlines()[-20:]:
                print("#   " + line)
        sys.stdout.flush()
        return good

    def skip(self, name, reason):
        self.count += 1
        print(f"ok {self.count} - {name} # SKIP {reason}")

    def done(self):
        print(f"1..{self.count}")


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def die_with_parent():
    """Runs in the child before exec: the kernel kills the child when the test dies, so that no hanging
    program outlives it."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# Lines that a run prints to stderr while it starts slowly, on a busy machine: no errors.
MADE = re.compile(r"^made [0-9.]+ \S+ of [a-z ]+ in [0-9.]+ s\n", re.MULTILINE)


class Run:
    """Runs a command to its end: exit status, output, errors without the lines of MADE (`made`), and the peak
    of its resident memory."""

    def __init__(self, command, limits=die_with_parent):
        # The output goes to files, not pipes: Popen.communicate would wait for the child itself, and only
        # wait4 gives its rusage.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, preexec_fn=limits)
            deadline = time.monotonic() + TIMEOUT_S
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid != 0:
                    break
                if time.monotonic() > deadline:
                    process.kill()
                time.sleep(0.005)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            self.out = out.read().decode(errors="replace")
            self.err = err.read().decode(errors="replace")
        self.made = MADE.findall(self.err)
        self.err = MADE.sub("", self.err)
        if time.monotonic() > deadline:
            self.err += f"killed after {TIMEOUT_S} s\n"
        self.status = process.returncode
        self.peak_bytes = usage.ru_maxrss * 1024

    def __str__(self):
        return f"exit status {self.status}\n{self.out}\n{self.err}"


class Bench:
    """The program, a scratch folder, and small data and models. Runs without --device get `device`; with ""
    the program chooses one."""

    def __init__(self, program, full, device="host"):
        self.program = program
        self.device = device
        self.model = "gpt2-nano"  # the model in nano()'s options
        self.machine = MACHINE  # the options of runs on the null device
        self.full = full
        self.folder = Path(tempfile.mkdtemp(prefix="tidepool-test-"))
        self.tap = Tap()
        self.text = self.folder / "text"
        self.text.write_bytes(self.make_text())
        self.tiny = self.folder / "tiny.json"
        self.tiny.write_text(json.dumps(self.tiny_config()))

    @staticmethod
    def make_text():
        generator = random.Random(1)
        words = ["the", "chunk", "moves", "from", "host", "to", "device", "and", "back", "before", "its", "op", "asks"]
        return " ".join(generator.choice(words) for _ in range(20000)).encode()

    @staticmethod
    def tiny_config():
        return {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 64, "vocab_size": 257,
                "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}

    def command(self, *options):
        device = ("--device", self.device) if self.device and "--device" not in options else ()
        return [self.program, "train", *device, *map(str, options)]

    def run(self, *options):
        return Run(self.command(*options))

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def metrics_read(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def trajectory(path):
    """Returns the numbers of each step that two runs with equal bits must share."""
    return {line["step"]: (line["loss"], line["grad_norm"], line["lr"], line["skipped"]) for line in metrics_read(path)}


def weights(checkpoint_folder, step):
    return [(Path(checkpoint_folder) / f"step-{step}" / name).read_bytes() for name in TENSOR_FILES]


# ---- bad input ----

def one_line(bench, name, status, part, *options, command=None, limits=die_with_parent):
    """Checks that the command exits with this status and one line on stderr that contains `part`."""
    run = Run(command or bench.command(*options), limits=limits)
    lines = run.err.splitlines()
    good = run.status == status and len(lines) == 1 and re.search(part, lines[0]) is not None
    bench.tap.ok(good, f"{name}: status {status}, one line", run)
    return run


def usage_errors(bench):
    tiny = ["--model", bench.tiny, "--data", bench.text, "--steps", 1]
    one_line(bench, "no command", 2, "command is missing", command=[bench.program])
    one_line(bench, "unknown command", 2, "did you mean train", command=[bench.program, "trian"])
    one_line(bench, "a slip in --version", 2, "did you mean --version", command=[bench.program, "--verson"])
    one_line(bench, "too many threads", 2, "--threads 30000: out of range", *tiny, "--threads", 30000)
    one_line(bench, "unknown flag", 2, "did you mean --steps", *tiny, "--step", 3)
    one_line(bench, "value out of range", 2, "--keep -1: not a whole number", *tiny, "--keep", -1)
    one_line(bench, "chunk size no power of two", 2, "no power of two", *tiny, "--chunk-size", "3MiB")
    one_line(bench, "unknown choice", 2, "must be one of bf16|fp16|fp32", *tiny, "--dtype", "fp8")
    one_line(bench, "loss scale of another dtype", 2, "--loss-scale needs --dtype fp16", *tiny, "--loss-scale", 1024)
    one_line(bench, "loss scale no power of two", 2, "power of two from 1 to 16777216", *tiny, "--dtype", "fp16",
             "--loss-scale", 1000)
    one_line(bench, "unknown device", 2, "--device gpu", *tiny, "--device", "gpu")
    one_line(bench, "missing model", 2, "--model .* required", "--data", bench.text)
    one_line(bench, "missing data", 2, "--data .* required", "--model", bench.tiny)
    one_line(bench, "save without a folder", 2, "--save-every needs --checkpoint", *tiny, "--save-every", 1)
    one_line(bench, "resume without a folder", 2, "--resume needs --checkpoint", *tiny, "--resume")
    one_line(bench, "a machine for a real device", 2, "--machine needs --device null", *tiny, *MACHINE)
    one_line(bench, "batch that does not divide", 2, "batch", *tiny, "--batch-tokens", 100)
    one_line(bench, "micro-batch that does not divide", 2, "micro", *tiny, "--batch-tokens", 256, "--micro-batch", 3)
    one_line(bench, "sequence longer than the context", 2, "65", *tiny, "--seq-len", 65)
    for options in (["--help"], ["train", "--help"], ["info", "--help"], ["--version"]):
        run = Run([bench.program, *options])
        bench.tap.ok(run.status == 0 and run.out and not run.err, " ".join(options) + " answers on stdout", run)
    if "ONEDNN_MAX_CPU_ISA" not in os.environ:
        instructions_held(bench)


def instructions_held(bench):
    """`info --json` prints JSON. ONEDNN_MAX_CPU_ISA limits tidepool's own kernels as it limits oneDNN."""
    for most, kernels in (("SSE41", {"portable"}), ("AVX2", {"avx2", "portable"})):
        run = Run(["env", f"ONEDNN_MAX_CPU_ISA={most}", bench.program, "info", "--json", "--device", "host"])
        told = json.loads(run.out)
        bench.tap.ok(run.status == 0 and told["machine"]["processors"] > 0 and "dormant_bytes" in told["machine"], "info --json is JSON", run)
        if not told["built_with"]["onednn"]:
            bench.tap.skip("instructions that are held", "no oneDNN in this build")
            return
        bench.tap.ok(told["kernels"]["instructions"] in kernels and told["kernels"]["matmul_isa"] in kernels, f"kernels held to {most}", run)


def data_errors(bench):
    empty, shard, bad = bench.folder / "empty", bench.folder / "shard.bin", bench.folder / "bad.json"
    empty.write_bytes(b"")
    tokens = [5] * 5000 + [60000] + [5] * 5000
    shard.write_bytes(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}H", *tokens))
    one_line(bench, "missing data file", 1, "nowhere", "--model", bench.tiny, "--data", "/nowhere/text")
    one_line(bench, "empty data", 1, "empty", "--model", bench.tiny, "--data", empty)
    one_line(bench, "token outside the vocabulary", 1, "60000", "--model", bench.tiny, "--data", shard)
    one_line(bench, "no such model", 1, "gpt2-nano", "--model", "gpt5", "--data", bench.text)
    one_line(bench, "vocabulary below a byte's", 2, "vocab", "--model", bench.tiny, "--data", bench.text,
             "--vocab-size", 100)
    for name, content in (("not JSON", "{"), ("a field is missing", '{"model_type":"gpt2"}')):
        bad.write_text(content)
        one_line(bench, "config.json: " + name, 1, "bad.json", "--model", bad, "--data", bench.text)


def budget_errors(bench):
    nano = ["--model", "gpt2-nano", "--data", bench.text, "--steps", 1, "--seq-len", 64, "--batch-tokens", 256,
            "--eval-every", 0, "--sample", 0]
    run = one_line(bench, "device budget below the working set", 1, "op .*least", *nano, "--chunk-size", "1MiB",
                   "--device-memory", "2MiB")
    least = least_named(run.err)
    bench.tap.ok(least is not None, "the refusal names the least device budget", run.err)
    run = bench.run(*nano, "--chunk-size", "1MiB", "--device-memory", least or 0)
    bench.tap.ok(run.status == 0, "the least device budget works", run)
    one_line(bench, "one byte less is refused", 1, str(least), *nano, "--chunk-size", "1MiB", "--device-memory",
             (least or 2) - 1)
    run = one_line(bench, "a budget too small for large chunks", 1, r"with chunks of \d+ bytes", *nano, "--chunk-size",
                   "64MiB", "--device-memory", least or 0)
    found = re.search(r"with chunks of (\d+) bytes", run.err)
    run = bench.run(*nano, "--chunk-size", found.group(1) if found else 0, "--device-memory", least or 0)
    bench.tap.ok(run.status == 0, "the chunk size that the refusal names would do, and does", run)
    run = one_line(bench, "host budget too small", 1, "host", *nano, "--chunk-size", "1MiB", "--device-memory",
                   least or 0, "--host-memory", "1MiB")
    host = least_named(run.err)
    run = bench.run(*nano, "--chunk-size", "1MiB", "--device-memory", least or 0, "--host-memory", host or 0)
    bench.tap.ok(run.status == 0, "the least host budget that the refusal names works", run)
    one_line(bench, "a CUDA device that this build lacks", 1, "cuda", *nano, "--device", "cuda:0")


def least_named(message):
    """Returns the number of bytes behind the word "least", or None."""
    found = re.search(r"least[^0-9]*([0-9]+)", message)
    return int(found.group(1)) if found else None


def checkpoint_errors(bench):
    folder = bench.folder / "saved"
    tiny = ["--data", bench.text, "--steps", 2, "--batch-tokens", 128, "--eval-every", 0, "--sample", 0]
    model = ["--model", bench.tiny, *tiny]
    run = bench.run(*model, "--checkpoint", folder)
    bench.tap.ok(run.status == 0 and (folder / "step-2").is_dir(), "a run with --checkpoint saves at its end", run)
    one_line(bench, "a folder in use, without --resume", 1, "--resume", *model, "--checkpoint", folder)
    one_line(bench, "a checkpoint of another model", 1, "layers|width|model", "--model", "gpt2-nano", *tiny,
             "--seq-len", 64, "--checkpoint", folder, "--resume")
    one_line(bench, "a checkpoint of another seed", 1, "seed", *model, "--seed", 7, "--checkpoint", folder, "--resume")
    model[model.index("--steps") + 1] = 3
    run = bench.run(*model, "--lr", "1e-4", "--checkpoint", folder, "--resume")
    bench.tap.ok(run.status == 0 and re.search(r"changed since: .*lr", run.out) and (folder / "step-3").is_dir(),
                 "a run that resumes names what changed", run)


def output_errors(bench):
    tiny = ["--model", bench.tiny, "--data", bench.text, "--steps", 2, "--batch-tokens", 128, "--eval-every", 0,
            "--sample", 0]
    one_line(bench, "metrics that can't be written", 1, "/nowhere/m", *tiny, "--metrics", "/nowhere/m")
    one_line(bench, "a trace that can't be written", 1, "/nowhere/t", *tiny, "--trace", "/nowhere/t")
    one_line(bench, "a checkpoint folder that can't be made", 1, "--checkpoint", *tiny, "--checkpoint",
             bench.text / "folder")
    if Path("/dev/full").exists():
        one_line(bench, "a trace on a full disk", 1, "trace file /dev/full: .*No space", *tiny, "--trace", "/dev/full")
        lost_output(bench)
    else:
        bench.tap.skip("outputs on a full disk", "this system has no /dev/full")
    refused_outputs(bench, tiny)


def lost_output(bench):
    """A command whose standard output can't be written fails."""
    for command in (bench.command("--help"), [bench.program, "--help"], [bench.program, "info", "--json"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
        name = " ".join(command[1:3])
        error = MADE.sub("", done.stderr)
        bench.tap.ok(done.returncode == 1 and len(error.splitlines()) == 1 and "standard output" in error,
                     f"{name} > /dev/full: status 1, one line", done)


def refused_outputs(bench, options):
    """A run that is refused leaves existing output files unchanged and makes no new ones."""
    metrics, trace, saved = bench.folder / "old-metrics", bench.folder / "old-trace", bench.folder / "new-folder"
    metrics.write_text("old metrics\n")
    trace.write_text("old trace\n")
    refusal = [*options, "--device-memory", 1, "--checkpoint", saved]
    one_line(bench, "a refusal beside old outputs", 1, "device budget", *refusal, "--metrics", metrics, "--trace", trace)
    bench.tap.ok((metrics.read_text(), trace.read_text()) == ("old metrics\n", "old trace\n"),
                 "the old metrics and trace are untouched")
    new = bench.folder / "new-metrics", bench.folder / "new-trace"
    one_line(bench, "a refusal beside new outputs", 1, "device budget", *refusal, "--metrics", new[0], "--trace", new[1])
    bench.tap.ok(not any(path.exists() for path in (*new, saved)), "no new file and no new folder is left")
    run = bench.run(*options, "--metrics", metrics, "--trace", trace)
    bench.tap.ok(run.status == 0 and len(metrics_read(metrics)) == 2 and "old trace" not in trace.read_text(),
                 "a run that begins replaces them", run)


def section_input(bench):
    usage_errors(bench)
    data_errors(bench)
    wide_shard(bench)
    budget_errors(bench)
    checkpoint_errors(bench)
    output_errors(bench)


# ---- signals and crashes ----

def long_run(bench, name, steps):
    """Returns metrics path, checkpoint folder and options for a run of the tiny model."""
    metrics, saved = bench.folder / f"{name}.jsonl", bench.folder / name
    options = ["--model", bench.tiny, "--data", bench.text, "--steps", steps, "--batch-tokens", 256, "--micro-batch", 2,
               "--eval-every", 0, "--sample", 0, "--chunk-size", "256KiB", "--metrics", metrics, "--checkpoint", saved,
               "--checks", "on"]
    return metrics, saved, options


def stop_at(bench, options, mark, number):
    """Starts a run, sends the signal at the first line with `mark`, and returns exit status and output."""
    process = subprocess.Popen(bench.command(*options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               preexec_fn=die_with_parent)
    said = []
    for line in process.stdout:
        said.append(line)
        if mark is not None and mark in line:
            mark = None
            process.send_signal(number)
    return process.wait(), "".join(said)


def section_signals(bench):
    steps = 60
    metrics, saved, options = long_run(bench, "undisturbed", steps)
    run = bench.run(*options)
    bench.tap.ok(run.status == 0, "the undisturbed run", run)
    expected = trajectory(metrics)
    for number in (signal.SIGTERM, signal.SIGINT):
        name = signal.Signals(number).name
        metrics2, saved2, options = long_run(bench, name, steps)
        status, said = stop_at(bench, options, "step 5/", number)
        found = re.search(rf"{name}: stopped after step (\d+)", said)
        step = int(found.group(1)) if found else 0
        bench.tap.ok(status == 0 and 5 <= step < steps, f"{name} finishes the step and exits 0", said)
        bench.tap.ok((saved2 / f"step-{step}").is_dir() and f"saved {saved2}/step-{step}" in said, f"{name} saves", said)
        run = bench.run(*options, "--resume", "--prefetch", "off")
        bench.tap.ok(run.status == 0 and f"resumed from {saved2}/step-{step}" in run.out, f"after {name} it resumes", run)
        bench.tap.ok(trajectory(metrics2) == expected and len(metrics_read(metrics2)) == steps,
                     f"after {name} every loss and norm is the undisturbed run's", run)
        bench.tap.ok(weights(saved2, steps) == weights(saved, steps), f"after {name} the weights are too")
    _, _, options = long_run(bench, "unsaved", steps)
    at = options.index("--checkpoint")
    del options[at:at + 2]
    status, said = stop_at(bench, options, "step 5/", signal.SIGTERM)
    bench.tap.ok(status == 0 and "nothing was saved" in said, "without --checkpoint it says that nothing was saved", said)
    second_signal(bench)


def proc(process, file, pattern):
    """Returns a field of /proc/PID/file by a pattern; "" once the process is gone."""
    try:
        found = re.search(pattern, Path(f"/proc/{process.pid}/{file}").read_text())
    except OSError:
        return ""
    return found.group(1) if found else ""


def second_signal(bench):
    """Sends SIGINT during a step of many seconds and SIGTERM before that step ends: the second signal kills the
    run."""
    process = subprocess.Popen(bench.command("--model", "gpt2-nano", "--data", bench.text, "--steps", 2, "--batch-tokens", 131072, "--threads", 1,
                                             "--recompute", "all",
                                             "--eval-every", 0, "--sample", 0, "--chunk-size", "1MiB"),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent)

    def seconds():
        return int(proc(process, "stat", r"\) (?:\S+ ){11}(\d+)") or 1 << 60) / os.sysconf("SC_CLK_TCK")

    process.stdout.readline()
    begun = seconds()  # processor time when the trainer is set up and begins to compute
    while seconds() < begun + 0.3:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    time.sleep(1.5)  # a second signal that comes sooner counts as a repetition of the first one
    process.send_signal(signal.SIGTERM)
    said, error = process.stdout.read(), MADE.sub("", process.stderr.read())
    bench.tap.ok(process.wait() == -signal.SIGTERM and "step 1/" not in said and error == "", "SIGTERM after SIGINT ends it at once", said + error)


def section_crashes(bench):
    kills, steps = (50, 400) if bench.full else (10, 120)
    generator = random.Random(os.environ.get("TIDE_TEST_SEED", "1"))
    metrics, saved, options = long_run(bench, "undisturbed", steps)
    run = bench.run(*options)
    bench.tap.ok(run.status == 0, "the undisturbed run", run)
    metrics2, saved2, options = long_run(bench, "killed", steps)
    options += ["--save-every", 1, "--resume"]
    killed, finished, newest = 0, False, 0
    while killed < kills and not finished:
        process = subprocess.Popen(bench.command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=die_with_parent)
        os.set_blocking(process.stdout.fileno(), True)
        first = b""
        while b"where every byte goes" not in first and process.poll() is None:
            first += os.read(process.stdout.fileno(), 65536)
        time.sleep(generator.uniform(0.0, 0.25))
        finished = process.poll() is not None
        process.kill()
        out, err = process.communicate()
        error = MADE.sub("", err.decode())
        if finished:
            bench.tap.ok(process.returncode == 0, "a run that outran its kill", error + out.decode())
            break
        killed += 1
        complete = [int(path.name[5:]) for path in saved2.glob("step-*") if (path / "manifest.json").exists()]
        resumed = re.search(rb"resumed from .*/step-(\d+)", first)
        from_step = int(resumed.group(1)) if resumed else 0
        bench.tap.ok(from_step >= newest and not error, f"kill {killed}: it had resumed from the newest checkpoint, "
                     f"step {from_step}", f"newest was {newest}\n" + error + first.decode())
        newest = max(complete, default=0)
    bench.tap.ok(killed == kills or finished, f"killed {killed} times")
    run = bench.run(*options)
    bench.tap.ok(run.status == 0, "the killed run goes on to its end", run)
    bench.tap.ok(steps in trajectory(metrics2) and trajectory(metrics2).items() <= trajectory(metrics).items(),
                 "every loss and norm written is the undisturbed run's", run)
    bench.tap.ok([line["step"] for line in metrics_read(metrics2)] == list(range(1, steps + 1)), "each step has one line in the metrics", run)
    bench.tap.ok(weights(saved2, steps) == weights(saved, steps), "the final weights and optimizer state are too")
    bench.tap.ok(not list(saved2.glob(".tmp-*")), "no half-written checkpoint is left", list(saved2.iterdir()))


# ---- files, memory, prediction ----

def nano(bench, *options):
    return ["--model", bench.model, "--data", bench.text, "--seq-len", 64, "--batch-tokens", 256, "--micro-batch", 2,
            "--eval-every", 0, "--sample", 0, *options]


def metrics_check(bench, path, steps):
    lines = [json.loads(line, object_pairs_hook=list) for line in Path(path).read_text().splitlines()]
    bench.tap.ok([[name for name, _ in line] for line in lines] == [METRICS_FIELDS] * steps,
                 "metrics: a line a step, exactly the fields, in their order", lines[:1])
    rows = [dict(line) for line in lines]
    bench.tap.ok([row["step"] for row in rows] == list(range(1, steps + 1)), "metrics: steps in order")
    counts = [name for name in METRICS_FIELDS if name.endswith(("bytes", "peak")) or
              name in ("evictions", "demand_fetches", "prefetches", "tokens", "skipped")]
    bench.tap.ok(all(isinstance(row[name], int) and row[name] >= 0 for row in rows for name in counts),
                 "metrics: counts are whole numbers")
    bench.tap.ok(all(0 < row["loss"] < 20 and row["grad_norm"] > 0 and row["step_seconds"] > 0 for row in rows),
                 "metrics: losses, norms and seconds are sound", rows[:1])
    predicted = [row["predicted_step_seconds"] for row in rows]
    bench.tap.ok(predicted[0] is None and all(seconds > 0 for seconds in predicted[2:]) and
                 all(row["predicted_stall_seconds"] < row["predicted_step_seconds"] for row in rows[2:]),
                 "metrics: from the third step on each is predicted", predicted)
    # If the trainer begins a step late, its params have been prefetched already, and these bytes count for the
    # step before. So only the sums of the bytes that come in are compared.
    moved = [(row["h2d_bytes"], row["d2h_bytes"]) for row in rows]
    bench.tap.ok(all(leaving > 0 for _, leaving in moved) and sum(coming for coming, _ in moved) >= sum(leaving for _, leaving in moved),
                 "metrics: every step's gradients leave, and params come for each", moved)
    return rows


def memory_check(bench, name, device_bytes, *options):
    """Measures the run's memory from outside, under the least host budget: an unused part of a larger budget
    would hide an excess."""
    refusal = bench.run(*options, "--device-memory", device_bytes, "--host-memory", "1MiB")
    host_bytes = least_named(refusal.err) or 0
    run = bench.run(*options, "--device-memory", device_bytes, "--host-memory", host_bytes)
    budget_bytes = device_bytes + host_bytes
    beside = (run.peak_bytes - budget_bytes) / MIB
    bench.tap.ok(run.status == 0 and host_bytes > 0 and beside <= OVERHEAD_BYTES / MIB,
                 f"{name}: VmHWM is {beside:.1f} MiB above device + host budget, at most {OVERHEAD_BYTES // MIB}",
                 f"budgets {budget_bytes / MIB:.1f} MiB\n{run}")


def wide_shard(bench):
    """A data file of tokens above 65535: a run trains on it, states its unigram entropy, and samples from
    it."""
    shard, pick = bench.folder / "wide.bin", random.Random(1)
    tokens = [66000 + pick.randrange(4000) for _ in range(5000)]
    shard.write_bytes(struct.pack("<256i", 20240801, 7, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}I", *tokens))
    run = bench.run("--model", bench.tiny, "--vocab-size", 70000, "--data", shard, "--steps", 2, "--batch-tokens", 128, "--sample",
                    4)
    bench.tap.ok(run.status == 0 and re.search(r"unigram entropy 5\.", run.out) and
                 re.search(r"sample of 4 tokens:\n(<\d+>){4}\n", run.out), "a shard of uint32 tokens trains", run)


def section_files(bench):
    steps = 5
    metrics = bench.folder / "metrics"
    budgets = (16 * MIB, 80 * MIB)
    run = bench.run(*nano(bench, "--vocab-size", 257, "--steps", steps, "--chunk-size", "1MiB", "--device-memory", budgets[0],
                          "--host-memory", budgets[1], "--metrics", metrics, "--checks", "on"))
    if not bench.tap.ok(run.status == 0, "a run at a quarter of the model data, with metrics", run):
        return
    bench.tap.ok("where every byte goes" in run.out, "it says where every byte goes", run)
    rows = metrics_check(bench, metrics, steps)
    bench.tap.ok(rows[-1]["device_bytes_peak"] <= budgets[0] and rows[-1]["host_bytes_peak"] <= budgets[1],
                 "the peaks are within the budgets", rows[-1])

    memory_check(bench, "gpt2-nano", budgets[0], *nano(bench, "--steps", 3, "--chunk-size", "1MiB"))
    if "TIDE_TEST_SMALL" not in os.environ:
        memory_check(bench, "gpt2", 512 * MIB, "--model", "gpt2", "--data", bench.text, "--seq-len", 64,
                     "--batch-tokens", 128, "--steps", 2 if bench.full else 1, "--eval-every", 0, "--sample", 0,
                     "--chunk-size", "16MiB")
    prefetch_check(bench)
    prediction_check(bench)
    accounting_check(bench)
    evaluation_check(bench)


def settled_bytes(bench, options, prefetch):
    """Returns bytes moved and prefetches of the fifth of six predicted steps. The first step records the
    order of uses, the next ones settle, and the sixth prefetches for a seventh step that never comes."""
    metrics = bench.folder / f"moved-{prefetch}"
    run = bench.run(*options, "--device", "null", *MACHINE, "--steps", 6, "--prefetch", prefetch, "--metrics", metrics)
    rows = metrics_read(metrics) if run.status == 0 else []
    return (rows[4]["h2d_bytes"] + rows[4]["d2h_bytes"], rows[4]["prefetches"]) if len(rows) == 6 else (0, 0)


def prefetch_check(bench):
    """Prefetching must not add copies: with it a step may move at most `most` times the bytes that it moves
    without. The excess comes from slots that prefetching occupies, and from chunks at a step's ends that
    count to its neighbour."""
    small = ["--model", "gpt2-nano", "--chunk-size", "1MiB"]
    large = ["--model", "gpt2-xl", "--batch-tokens", 4096, "--host-memory", "64GiB"]
    free = [*large, "--clip", 0]
    # With clipping, the updates run at the begin of the next step, each right before the op that waits for
    # it. So few of the 47 chunks of params can be prefetched, and each slot that they take from a chunk
    # needed sooner costs a copy. Without clipping, nearly all updates end within their own step. 4 GiB hold
    # all 47 chunks, 2 GiB some of them.
    for options, budget, some, most in ((small, "16MiB", 1, 1.15), (large, "3584MiB", 1, 1.01), (free, "2GiB", 12, 1.15),
                                        (free, "4GiB", 36, 1.15)):
        options = [*options, "--device-memory", budget]
        (early, prefetches), (late, none) = (settled_bytes(bench, options, prefetch) for prefetch in ("on", "off"))
        name = f"{options[1]}{' without clipping' if '--clip' in options else ''}"
        bench.tap.ok(late > 0 and prefetches >= some and none == 0 and early <= most * late,
                     f"{name} at {budget}: with prefetch a step moves {early / max(late, 1):.2f} times what it does without, "
                     f"at most {most}", f"{early} bytes and {late}, {prefetches} prefetches and {none}")


def prediction_check(bench):
    metrics, saved = bench.folder / "predicted", bench.folder / "never"
    options = ["--model", "gpt2", "--device", "null", "--steps", 3, "--device-memory", "1GiB", *MACHINE]
    run = bench.run(*options, "--metrics", metrics, "--checkpoint", saved)
    rows = metrics_read(metrics) if metrics.exists() else []
    bench.tap.ok(run.status == 0 and "predicted: 3 steps" in run.out and "loss" not in run.out.split("where")[-1].split(
        "losses")[-1], "--device null predicts and prints no loss", run)
    bench.tap.ok(len(rows) == 3 and all(row["loss"] is None and row["grad_norm"] is None and row["step_seconds"] > 0
                                        for row in rows), "predicted metrics have times and no loss", rows)
    bench.tap.ok(not saved.exists() and "nothing is resumed from or saved" in run.out, "and saves nothing", run)
    again = bench.run(*options, "--metrics", bench.folder / "predicted2")
    bench.tap.ok(again.status == 0 and metrics_read(bench.folder / "predicted2") == rows,
                 "the same machine gives the same prediction", again)
    run = bench.run("--model", "gpt2-nano", "--device", "null", "--machine", "h100", "--steps", 2)
    bench.tap.ok(run.status == 0 and re.search("^predicting for H100 SXM, .*; published figures, not measured$", run.out, re.MULTILINE),
                 "on a machine by published figures, too", run)
    for name, status, part, given in (("an unknown machine", 2, "machine h999: neither a file nor a preset", ("--machine", "h999")),
                                      ("a machine file that is not there", 2, "nowhere.json", ("--machine", "nowhere.json")),
                                      ("a damaged machine file", 1, "text", ("--machine", bench.text)),
                                      ("a GPU's link held back", 2, "--link-bandwidth needs the emulated device",
                                       ("--machine", "h100", "--link-bandwidth", "1GB/s"))):
        one_line(bench, name, status, part, "--model", "gpt2-nano", "--device", "null", "--steps", 1, *given)


def accounting_check(bench):
    """The step lines, the summary and the metrics all show the same numbers for each step; evaluations and
    saves are not in them."""
    metrics, text = bench.folder / "accounted", bench.folder / "few-words"
    text.write_bytes(bench.text.read_bytes()[:12000])  # of which a tenth is evaluated
    options = nano(bench, "--chunk-size", "1MiB", "--device-memory", "16MiB", "--steps", 6, "--save-every", 2,
                   "--checkpoint", bench.folder / "accounts", "--metrics", metrics)
    options[options.index("--eval-every") + 1] = 2
    options[options.index("--data") + 1] = text
    run = bench.run(*options)
    rows = metrics_read(metrics) if metrics.exists() else []
    order = re.findall(r"^(step|validation after step|saved)\b.*?(\d+)(?:/6|:| \()", run.out, re.MULTILINE)
    bench.tap.ok(order == [(kind, str(step)) for step in range(1, 7) for kind in
                           (["step"] + ([] if step % 2 else ["validation after step", "saved"]))][:-2] +
                 [("saved", "6"), ("validation after step", "6")], "a step's line stands before what follows the step", order)
    summary = re.search(r"^6 steps in ([0-9.]+) s, (\d+) tokens/s, stall ([0-9.]+)%", run.out, re.MULTILINE)
    seconds, stall = sum(row["step_seconds"] for row in rows), sum(row["stall_seconds"] for row in rows)
    bench.tap.ok(summary is not None and summary.groups() == (f"{seconds:.2f}", f"{6 * 256 / seconds:.0f}",
                                                              f"{100 * stall / seconds:.1f}"),
                 "the summary is the sum of the metrics", f"{seconds} s, {stall} s stalled\n{run}")
    causes = [sum(row[f"stall_{cause}_seconds"] for row in rows) for cause in STALL_CAUSES]
    bench.tap.ok(all(sum(row[f"stall_{cause}_seconds"] for cause in STALL_CAUSES) == row["stall_seconds"] for row in rows),
                 "a step's stall is the sum of its causes, exactly", rows)
    named = re.search(r"^6 steps in .* stall [0-9.]+%(?: \(([^)]*)\))?; to the device", run.out, re.MULTILINE)
    expected = [f"{cause} {100 * part / seconds:.1f}" for part, cause in
                sorted(zip(causes, STALL_CAUSES), reverse=True) if 100 * part / seconds >= 0.5]
    bench.tap.ok(named is not None and (named.group(1) or "") == ", ".join(expected),
                 "the summary names the causes, the largest first", f"{expected}\n{run}")
    lines = re.findall(r"^step .*  (\d+) tokens/s", run.out, re.MULTILINE)
    bench.tap.ok(len(lines) == 6 and lines == [f"{row['tokens_per_second']:.0f}" for row in rows], "so is every step's line", run)


def evaluation_check(bench):
    run = bench.run("--model", bench.tiny, "--data", bench.text, "--steps", 4, "--batch-tokens", 128, "--eval-every", 2,
                    "--sample", 12, "--checks", "on")
    bench.tap.ok(run.status == 0 and len(re.findall(r"validation after step [24]: loss \d", run.out)) == 2 and
                 "sample of 12 tokens:" in run.out, "evaluation lines and a sample at the end", run)


def section_preset(bench):
    """Trains presets, for builds with any set of optional libraries, even without oneDNN."""
    metrics = bench.folder / "metrics"
    run = bench.run(*nano(bench, "--steps", 2, "--chunk-size", "1MiB", "--device-memory", "16MiB", "--checks", "on",
                          "--metrics", metrics))
    bench.tap.ok(run.status == 0 and len(metrics_read(metrics)) == 2, "a preset trains at a quarter of its model data", run)
    run = bench.run(*nano(bench, "--steps", 2, "--chunk-size", "1MiB", "--device-memory", "64MiB", "--dtype", "fp16",
                          "--metrics", metrics))
    scales = [row["loss_scale"] for row in metrics_read(metrics)] if run.status == 0 else []
    bench.tap.ok(scales == [65536, 65536] and "loss scale 65536 (dynamic)" in run.out, "so it does in fp16", run)
    run = bench.run("--model", "gpt2", "--device", "null", "--steps", 1, "--machine", "h100")
    bench.tap.ok(" 124,439,808 params x 14 bytes" in run.out, "gpt2 has the params that it is known for", run)
    run = Run([bench.program, "info", "--json"])
    info = json.loads(run.out) if run.status == 0 else {"rates": {}}
    rates = [value for name, value in info["rates"].items() if name.endswith("per_second")]
    bench.tap.ok(len(rates) == 8 and min(rates) > 0, "info measures every rate", run)


# ---- for tools/dev/compare_programs.py ----

def full_bytes(bench, options):
    """Returns a device budget that holds everything: the plan's number and a tenth more, since the plan
    rounds what it prints."""
    run = bench.run(*options, "--device", "null", *bench.machine)
    found = re.search(r"everything resident with ([0-9.]+ \w+)", run.out)
    return int(1.1 * size_bytes(found.group(1))) if found else 1


def size_bytes(text):
    number, unit = text.split()
    return float(number) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]


def main():
    sections = {"input": section_input, "signals": section_signals, "crashes": section_crashes, "files": section_files,
                "preset": section_preset}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("section", choices=sections)
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    bench = Bench(arguments.program, arguments.full)
    try:
        sections[arguments.section](bench)
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main()
