#!/usr/bin/env python3
"""Runs of several processes (--ranks): the bits of one process, signals, refusals, deaths, logs, strangers.

usage: test_program_ranks.py PROGRAM [EARLY_END]      prints TAP; EARLY_END: preload/early_end.c

Signals arrive in the middle of a run: its output goes through a pipe of one page, which the test reads no
faster than it wants, so that the run can't get far ahead of the line that the test waits for.
"""

import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

from test_program import MACHINE, MADE, Bench, Run, die_with_parent, metrics_read, one_line, trajectory
from test_program_documents import conversations, shard
from test_program_safety import content_of
from test_program_weights import llama_config

MARK = "TIDE_TEST_RANKS=" + uuid.uuid4().hex  # in the environment of all processes that this test starts
GUARD_S = 60  # ends what hangs; nothing that is sound comes near to it
PAGE = 4096
STEPS = 150  # more than fit into a page of lines, from the first that a test waits for


# ---- runs ----


def tiny(bench, *more, model=None, data=None, steps=6):
    """Options of a run of 8 micro-batches."""
    steps = [] if "--epochs" in more else ["--steps", steps]
    groups = [] if "--sum-groups" in more else ["--sum-groups", 4]
    evaluations = [] if {"--eval-every", "--epochs"} & set(more) else ["--eval-every", 0]
    samples = [] if "--sample" in more else ["--sample", 0]
    return [
        "--model",
        model or bench.tiny,
        "--data",
        data or bench.text,
        "--seq-len",
        32,
        "--batch-tokens",
        256,
        "--micro-batch",
        1,
        "--chunk-size",
        "256KiB",
        "--threads",
        1,
        *steps,
        *groups,
        *evaluations,
        *samples,
        *more,
    ]


def process_file(pid, name):
    """The content of a file in /proc; nothing if the process is gone or not this user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def environment(pid):
    return dict(entry.split(b"=", 1) for entry in process_file(pid, "environ").split(b"\0") if b"=" in entry)


def processes():
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def left_over():
    """The processes that runs of this test have left."""
    return [
        pid for pid in processes() if pid != os.getpid() and MARK.encode() in process_file(pid, "environ")
    ]


def await_end():
    """Waits until no process of a run is there; returns those that stay in spite of that."""
    deadline = time.monotonic() + GUARD_S
    while left_over() and time.monotonic() < deadline:
        time.sleep(0.01)
    return left_over()


class Live:
    """A run that goes on beside the test."""

    def __init__(self, bench, *options):
        self.err_file = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            bench.command(*options),
            stdout=subprocess.PIPE,
            stderr=self.err_file,
            text=True,
            preexec_fn=die_with_parent,
        )
        fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, PAGE)
        self.out, self.status, self.guard = "", None, threading.Timer(GUARD_S, self.give_up)
        self.guard.start()

    def give_up(self):
        for pid in [*left_over(), self.process.pid]:
            os.kill(pid, signal.SIGKILL)
        self.out += f"killed after {GUARD_S} s\n"

    def await_line(self, mark):
        """Reads on to a line that begins so; false if the output ends before."""
        for line in self.process.stdout:
            self.out += line
            if line.startswith(mark):
                return True
        return False

    def await_error(self, part):
        """Waits for words on standard error; false if the run ends before. Its output has space meanwhile."""
        fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)
        while self.process.poll() is None:
            if part.encode() in os.pread(self.err_file.fileno(), 1 << 20, 0):
                return True
            time.sleep(0.01)
        return False

    def children(self):
        parent = b"%d" % self.process.pid
        stats = {pid: process_file(pid, "stat").rpartition(b")")[2].split() for pid in processes()}
        return [pid for pid, stat in stats.items() if stat[1:2] == [parent]]

    def pid_of(self, rank):
        """The process of a rank, "launcher" for the one that started it."""
        if rank == "launcher":
            return self.process.pid
        for pid in self.children():
            if environment(pid).get(b"TIDEPOOL_RANK") == b"%d" % rank:
                return pid
        raise LookupError(f"rank {rank} does not run")

    def send(self, rank, number):
        os.kill(self.pid_of(rank), number)

    def end(self):
        self.out += self.process.stdout.read()
        self.status = self.process.wait()
        self.left = await_end()
        self.guard.cancel()
        self.err_file.seek(0)
        self.err = MADE.sub("", self.err_file.read().decode(errors="replace"))
        self.err_file.close()
        return self

    def __str__(self):
        return f"exit status {self.status}\n{self.out[-1500:]}\n{self.err}\nleft: {self.left}"


def saved_step(bench, folder):
    """The step of the newest checkpoint, which must be whole; 0: there is none that is."""
    run = Run([bench.program, "checkpoint", folder, "--json"])
    about = json.loads(run.out)["looked_at"] if run.status == 0 else {"state": ""}
    return about["step"] if about["state"] == "complete" else 0


# ---- the bits of one process ----


class Result:
    """What a run leaves: its losses and norms, checkpoints, model, validation losses and sample."""

    def __init__(self, bench, name, ranks, *options):
        metrics, self.saved, out = (
            bench.folder / f"{name}-{what}-{ranks}" for what in ("metrics", "saved", "out")
        )
        self.run = bench.run(
            *options, "--ranks", ranks, "--metrics", metrics, "--checkpoint", self.saved, "--export", out
        )
        good = self.run.status == 0 and self.run.err == "" and not left_over()
        self.lines = trajectory(metrics) if good else {}
        self.files = {**content_of(self.saved), **content_of(out)} if good else {}
        told = self.run.out.partition("\nsample of ")
        self.said = (re.findall(r"^validation after .*", self.run.out, re.MULTILINE), told[2])


def same_as_one(bench, name, *options, ranks=(2, 4)):
    one = Result(bench, name, 1, *options)
    bench.tap.ok(
        one.lines and one.files and bool(one.said[1]) == (options[options.index("--sample") + 1] > 0),
        f"{name}: one process trains",
        one.run,
    )
    for count in ranks:
        other = Result(bench, name, count, *options)
        differ = sorted(
            path for path in {*one.files, *other.files} if one.files.get(path) != other.files.get(path)
        )
        bench.tap.ok(
            other.lines == one.lines and not differ and other.said == one.said,
            f"{name}: {count} ranks leave the same losses, norms, files and text",
            f"differ: {differ}\n{other.run}",
        )
    return one


def bits(bench):
    untied, train, val = bench.folder / "untied.json", bench.folder / "train.bin", bench.folder / "val.bin"
    untied.write_text(json.dumps({**llama_config("llama"), "vocab_size": 257}))
    shard(train, conversations(60, 33))
    shard(val, conversations(12, 33, seed=4))
    result = same_as_one(bench, "bf16", *tiny(bench, "--eval-every", 3, "--sample", 12, "--save-every", 2))
    bench.tap.ok(
        len(result.lines) == 6 and len({loss for loss, *_ in result.lines.values()}) == 6,
        "every step is another",
        result.lines,
    )
    same_as_one(
        bench, "fp32, not clipped", *tiny(bench, "--dtype", "fp32", "--clip", 0, "--recompute", "all")
    )
    same_as_one(
        bench, "fp16, frozen", *tiny(bench, "--dtype", "fp16", "--freeze", "wte*", "--freeze", "h.0.*")
    )
    same_as_one(
        bench,
        "untied, bf16 sums",
        *tiny(bench, "--reduce", "bf16", "--clip", 0, "--checks", "on", model=untied),
    )
    same_as_one(bench, "packed", *tiny(bench, "--epochs", 2, "--eval-data", val, "--keep-best", data=train))
    same_as_one(bench, "delays", *tiny(bench, "--sum-groups", 2, "--delays", 5, steps=3), ranks=(2,))


def resume(bench):
    """One run by 4, then 2 ranks, then one process."""
    straight = Result(bench, "straight", 1, *tiny(bench, steps=STEPS))
    metrics, saved, out = (bench.folder / f"relay-{what}" for what in ("metrics", "saved", "out"))
    options = tiny(
        bench, "--metrics", metrics, "--checkpoint", saved, "--export", out, "--resume", steps=STEPS
    )
    steps = [0]
    for ranks, mark in ((4, "step 5/"), (2, "step 60/"), (1, "no such line")):
        live = Live(bench, *options, "--ranks", ranks)
        if live.await_line(mark):
            live.send("launcher", signal.SIGINT)
        steps.append(saved_step(bench, saved) if live.end().status == 0 else 0)
    bench.tap.ok(
        0 < steps[1] < steps[2] < steps[3] == STEPS,
        "4 ranks, then 2, then one process go on with each other's work",
        f"{steps}\n{live}",
    )
    now = {**content_of(saved), **content_of(out)}
    name = f"step-{STEPS}/"
    bench.tap.ok(
        trajectory(metrics) == straight.lines
        and [now.get(path) for path in straight.files] == list(straight.files.values())
        and any(path.startswith(name) for path in now),
        "they leave the files of a straight run",
        sorted(path for path in straight.files if straight.files[path] != now.get(path)),
    )


def resume_elsewhere(bench):
    """The best loss of another folder does not count in a new one, where the first is the best."""
    first, second = bench.folder / "best-first", bench.folder / "best-second"
    best = ["--keep-best", "--eval-every", 2, "--ranks", 2, "--sum-groups", 2]
    run = bench.run(*tiny(bench, *best, "--checkpoint", first, steps=4))
    bench.tap.ok(run.status == 0 and saved_step(bench, first) == 4, "2 ranks keep the best checkpoint", run)
    still = ["--lr", 0, "--resume-from", first / "step-4", "--checkpoint", second]
    run = bench.run(*tiny(bench, *best, *still, steps=8))
    told = Run([bench.program, "checkpoint", second, "--json"])
    bench.tap.ok(
        run.status == 0 and '"best_step":6,' in told.out,
        "ranks that resume from another folder have no best loss yet",
        f"{run}\n{told}",
    )


# ---- signals ----


def logs(folder):
    return {path.name: path.read_text() for path in sorted(folder.glob("*"))}


def stops(bench):
    """A signal to any of the processes stops all ranks after one step, and the run can go on."""
    for number, to, ranks in (
        (signal.SIGINT, "launcher", 4),
        (signal.SIGTERM, 1, 2),
        (signal.SIGINT, 0, 2),
        (signal.SIGHUP, 3, 4),
    ):
        name = signal.Signals(number).name
        what = f"{name} to " + (to if to == "launcher" else f"rank {to}")
        saved, log = bench.folder / f"stopped-{name}-{to}", bench.folder / f"log-{name}-{to}"
        log.mkdir()
        options = tiny(
            bench,
            "--checkpoint",
            saved,
            "--ranks",
            ranks,
            "--log-dir",
            log,
            "--save-patience",
            0,
            steps=STEPS,
        )
        live = Live(bench, *options)
        if live.await_line("step 5/"):
            live.send(to, number)
        live.end()
        told = re.findall(rf"^{name}: stopped after step (\d+)$", live.out, re.MULTILINE)
        others = [
            re.findall(rf"^{name}: stopped after step (\d+)$", text, re.MULTILINE)
            for text in logs(log).values()
        ]
        step = int(told[0]) if told else 0
        bench.tap.ok(
            live.status == 0
            and live.err == ""
            and not live.left
            and 5 <= step < STEPS
            and others == [told] * (ranks - 1),
            f"{what}: all ranks stop after one step, status 0",
            f"{told} {others}\n{live}",
        )
        bench.tap.ok(saved_step(bench, saved) == step, f"{what}: that step is saved", live)
        options[options.index("--steps") + 1] = step + 2
        run = bench.run(*options, "--resume")
        bench.tap.ok(
            run.status == 0
            and f"resumed from {saved}/step-{step}" in run.out
            and saved_step(bench, saved) == step + 2,
            f"{what}: the run goes on",
            run,
        )


def saves(bench):
    """SIGUSR1 to a rank that writes nothing itself."""
    saved = bench.folder / "asked"
    live = Live(bench, *tiny(bench, "--checkpoint", saved, "--ranks", 4, steps=1000000))
    if live.await_line("step 5/"):
        live.send(3, signal.SIGUSR1)
    found = live.await_line(f"saved {saved}/step-")
    goes_on = live.await_line("step ")
    live.send("launcher", signal.SIGTERM)
    live.end()
    steps = [int(step) for step in re.findall(rf"^saved {saved}/step-(\d+)", live.out, re.MULTILINE)] or [0]
    bench.tap.ok(
        found
        and goes_on
        and live.status == 0
        and live.err == ""
        and not live.left
        and len(steps) == 2
        and 5 <= steps[0] < steps[1],
        "SIGUSR1 to rank 3 saves, and the run goes on",
        live,
    )
    bench.tap.ok(
        {path.name for path in saved.glob("step-*")} == {f"step-{step}" for step in steps}
        and saved_step(bench, saved) == steps[-1],
        "both checkpoints are there",
        content_of(saved).keys(),
    )


def catches(pid, number):
    """Has the process a handler of the signal?"""
    caught = re.search(rb"^SigCgt:\s*([0-9a-f]+)$", process_file(pid, "status"), re.MULTILINE)
    return caught is not None and int(caught.group(1), 16) >> (number - 1) & 1 == 1


def saves_at_first(bench):
    """SIGUSR1 before the first step, while rank 0 waits for a reader of its metrics."""
    for ranks in (1, 2):
        saved, fifo = bench.folder / f"first-{ranks}", bench.folder / f"fifo-{ranks}"
        os.mkfifo(fifo)
        live = Live(bench, *tiny(bench, "--checkpoint", saved, "--metrics", fifo, "--ranks", ranks, steps=3))
        deadline = time.monotonic() + GUARD_S
        rank = 0 if ranks > 1 else "launcher"
        while time.monotonic() < deadline:
            try:
                if catches(live.pid_of(rank), signal.SIGUSR1):
                    break
            except LookupError:
                pass
            time.sleep(0.01)
        live.send(rank, signal.SIGUSR1)
        reader = subprocess.Popen(["cat", fifo], stdout=subprocess.DEVNULL)
        live.end()
        reader.wait()
        steps = [int(step) for step in re.findall(rf"^saved {saved}/step-(\d+)", live.out, re.MULTILINE)]
        name = f"SIGUSR1 before the first step of {ranks} rank{'s' if ranks > 1 else ''} saves behind it"
        bench.tap.ok(live.status == 0 and steps == [1, 3], name, live)


def starting(bench):
    """A signal that comes as soon as the ranks are there stops them as a later one does. A parent may ignore
    the ends of its children."""
    good = []
    for _ in range(4):
        live = Live(bench, *tiny(bench, "--ranks", 4, steps=1000000))
        while len(live.children()) < 4 and live.process.poll() is None:
            pass
        live.send("launcher", signal.SIGTERM)
        live.end()
        good.append(
            live.status == 0 and live.err == "" and not live.left and "SIGTERM: stopped after" in live.out
        )
        if not good[-1]:
            break
    bench.tap.ok(all(good), "SIGTERM while the ranks start", live)

    ignores = (
        "import os, signal as s, sys; s.signal(s.SIGCHLD, s.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    deaf = ["timeout", "-s", "KILL", str(GUARD_S), sys.executable, "-c", ignores]
    run = Run([*deaf, *bench.command(*tiny(bench, "--ranks", 2))])
    bench.tap.ok(run.status == 0 and "step 6/6" in run.out, "a parent that ignores the ends of children", run)


def saves_late(bench):
    """A file where the checkpoint folder should be, for a while: the last save fails and is tried again."""
    saved, away, log = bench.folder / "late", bench.folder / "away", bench.folder / "late-log"
    log.mkdir()
    for comes_back, patience in ((True, GUARD_S), (False, 1)):
        options = tiny(bench, "--checkpoint", saved, "--resume", "--save-patience", patience, steps=1000000)
        live = Live(bench, *options, "--ranks", 2, "--log-dir", log)
        live.await_line("step ")
        saved.rename(away)
        saved.write_text("in the way")
        live.send("launcher", signal.SIGTERM)
        told = comes_back and live.await_error("tried again for")
        if comes_back:
            saved.unlink()
            away.rename(saved)
        live.end()
        if comes_back:
            good = told and live.status == 0 and live.out.splitlines()[-1].startswith(f"saved {saved}/step-")
            bench.tap.ok(good and saved_step(bench, saved) > 0, "a save that fails is tried again", live)
        else:
            lines = live.err.splitlines()
            bench.tap.ok(
                live.status == 1
                and not live.left
                and [line.partition(":")[0].partition(" (")[0] for line in lines].count("rank 1") <= 1
                and all("can't be" in line or "is not saved" in line for line in lines),
                "without success all ranks give up, status 1",
                live,
            )


# ---- refusals ----


def refused(bench, name, status, part, *options, changes=()):
    """One line, and nothing is left but the paths in `changes`."""
    before = content_of(bench.folder)
    run = one_line(bench, name, status, part, *options)
    after = content_of(bench.folder)
    bench.tap.ok(
        {path for path in {*before, *after} if before.get(path) != after.get(path)} == set(changes)
        and not await_end(),
        f"{name}: nothing is left or changed",
        run,
    )


def refusals(bench):
    saved, missing = bench.folder / "foreign", bench.folder / "nowhere" / "folder"
    run = bench.run(*tiny(bench, "--seed", 8, "--checkpoint", saved, steps=2))
    bench.tap.ok(run.status == 0, "another run is there", run)
    two = [*tiny(bench, "--sum-groups", 2), "--ranks", 2]
    three = tiny(bench, "--sum-groups", 3)
    refused(bench, "3 ranks, 8 micro-batches", 2, r"\b3 ranks: .* 288 tokens would$", *three, "--ranks", 3)
    bench.tap.ok(
        bench.run(*("288" if option == 256 else option for option in three), "--ranks", 3).status == 0,
        "the batch that it names does",
    )
    refused(
        bench,
        "16 ranks, 8 micro-batches",
        2,
        r"\b16 ranks: .* 512 tokens would$",
        *tiny(bench, "--sum-groups", 16),
        "--ranks",
        16,
    )
    refused(bench, "3 sum groups of 2 ranks", 2, "3 sum groups", *three, "--ranks", 2)
    for count in (0, 1025, -1, "x"):
        refused(bench, f"{count} ranks", 2, f"--ranks {count}", *tiny(bench), "--ranks", count)
    refused(bench, "a stage that is not built", 2, "--zero-stage 2 is not built", *two, "--zero-stage", 2)
    refused(bench, "ranks that predict", 2, "--ranks needs --device host", *two, "--device", "null", *MACHINE)
    refused(bench, "ranks on a GPU", 2, "--ranks needs --device host", *two, "--device", "cuda:0")
    refused(bench, "ranks and --auto", 2, "--auto .* without --ranks", *two, "--auto")
    refused(
        bench,
        "a log folder without ranks",
        2,
        "--log-dir is for several ranks",
        *tiny(bench),
        "--log-dir",
        bench.folder,
    )
    for option, value in (("--master", "10.9.9.9"), ("--port", 77)):
        refused(bench, f"{option} for ranks of our own", 2, f"{option} is for ranks", *two, option, value)
    refused(bench, "missing data", 1, "nowhere", *tiny(bench, data=missing), "--ranks", 4)
    refused(
        bench,
        "a checkpoint folder that can't be made",
        1,
        re.escape(f"--checkpoint {missing}"),
        *two,
        "--checkpoint",
        missing,
    )
    refused(bench, "a folder in use", 1, "already holds .*step-2; add --resume", *two, "--checkpoint", saved)
    refused(bench, "a foreign run", 1, "seed", *two, "--checkpoint", saved, "--resume")
    refused(bench, "a small device budget", 1, "device budget .* least", *two, "--device-memory", "1MiB")
    refused(bench, "a small host budget", 1, "host budget .* least", *two, "--host-memory", "64KiB")


def refused_logs(bench):
    """Logs and traces of the ranks are outputs as others are: they may not be an input or another output."""
    folder, missing, trace = bench.folder / "own", bench.folder / "missing", bench.folder / "own" / "trace"
    folder.mkdir()
    two = tiny(bench, "--sum-groups", 2, "--ranks", 2)
    deep = missing / "logs"
    refused(bench, "a deep log folder", 1, f"--log-dir {deep}: can't be created", *two, "--log-dir", deep)
    for name in ("rank-1.log", "trace.rank-0", "trace.rank-1", "trace.rank-1.step-2"):
        data = folder / name
        data.write_bytes(bench.text.read_bytes())
        option = ("--log-dir", folder) if "log" in name else ("--trace", trace)
        given = tiny(bench, "--sum-groups", 2, "--ranks", 2, *option, data=data)
        refused(bench, f"data called {name}", 2, f"--data {data}.*{option[0]}", *given)
        refused(
            bench,
            f"metrics called {name}",
            2,
            f"--metrics {data}.*{option[0]}",
            *two,
            *option,
            "--metrics",
            data,
        )
        data.unlink()
        refused(
            bench,
            f"new metrics called {name}",
            2,
            f"--metrics {data}.*{option[0]}",
            *two,
            *option,
            "--metrics",
            data,
        )
    run = bench.run(*two, "--log-dir", folder, "--checkpoint", folder, "--trace", folder / "other")
    bench.tap.ok(
        run.status == 0 and saved_step(bench, folder) == 6, "one folder for logs and checkpoints", run
    )


# ---- deaths ----


def shared_names():
    return {path.name for path in Path("/dev/shm").glob("*tide*")}


def listens(port):
    """Whether a socket listens at this port of 127.0.0.1."""
    place = f"0100007F:{port:04X}"
    return any(
        line.split()[1] == place and line.split()[3] == "0A"
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
    )


def deaths(bench):
    for victim in (0, 1, "launcher"):
        what = "the launcher" if victim == "launcher" else f"rank {victim}"
        saved, scratch, shared = (
            bench.folder / f"killed-{victim}",
            bench.folder / f"scratch-{victim}",
            shared_names(),
        )
        scratch.mkdir()
        os.environ["TMPDIR"] = str(scratch)
        options = tiny(
            bench, "--checkpoint", saved, "--save-every", 4, "--ranks", 3, "--sum-groups", 3, steps=1000000
        )
        options[options.index("--batch-tokens") + 1] = 192
        live = Live(bench, *options)
        there = live.await_line("step 10/")
        port = int(environment(live.pid_of(0)).get(b"TIDEPOOL_PORT", b"0")) if there else 0
        live.send(victim, signal.SIGKILL)
        live.end()
        del os.environ["TMPDIR"]
        lines = live.err.splitlines()
        if victim == "launcher":
            bench.tap.ok(
                there
                and live.status == -signal.SIGKILL
                and "SIGTERM: stopped after step" in live.out
                and lines == [],
                "the launcher is killed: the ranks stop and save",
                live,
            )
        else:
            survivors = [rank for rank in range(3) if rank != victim]
            told = [line for line in lines if re.search(rf"\brank {victim} \(\S+\)", line)]
            starts = sorted(
                re.match(r"tidepool train|rank \d", line)[0].replace("tidepool train", "rank 0")
                for line in told
                if re.match("tidepool train: |rank [0-9] ", line)
            )
            bench.tap.ok(
                there
                and live.status == 1
                and starts == [f"rank {rank}" for rank in survivors]
                and len(lines) == 3
                and sum(f"rank {victim} was ended by signal 9" in line for line in lines) == 1
                and "given up" not in live.err,
                f"{what} is killed: status 1, a line of each other rank names it",
                live,
            )
        step = saved_step(bench, saved)
        bench.tap.ok(
            not live.left
            and not listens(port)
            and port > 0
            and shared_names() == shared
            and not list(scratch.iterdir()),
            f"{what} is killed: no process, socket or file is left",
            f"{live}\n{shared_names()} {list(scratch.iterdir())}",
        )
        bench.tap.ok(
            step >= 8 and not list(saved.glob("*.tmp*")),
            f"{what} is killed: the checkpoints stand",
            f"{step}\n{live}",
        )
        options[options.index("--steps") + 1] = step + 2
        run = bench.run(*options, "--resume")
        bench.tap.ok(
            run.status == 0 and f"resumed from {saved}/step-{step}" in run.out,
            f"{what} is killed: a new run goes on",
            run,
        )


def early_deaths(bench):
    """A rank that ends before it has met the others costs them no time."""
    if len(sys.argv) < 3:
        print("# early deaths: the sanitizer has its own preloaded library")
        return
    for victim in range(3):
        os.environ.update({"LD_PRELOAD": sys.argv[2], "TIDE_EARLY_END": str(victim)})
        begun = time.monotonic()
        run = bench.run(*tiny(bench, "--sum-groups", 8, "--ranks", 4))
        seconds = time.monotonic() - begun
        del os.environ["LD_PRELOAD"], os.environ["TIDE_EARLY_END"]
        bench.tap.ok(
            run.status == 1
            and run.out == ""
            and run.err == f"tidepool train: rank {victim} was ended by signal 9 (Killed)\n"
            and seconds < 20
            and not await_end(),
            f"rank {victim} is killed at once: all end, one line names it",
            f"{seconds} s\n{run}",
        )


def death_at_first(bench):
    """Rank 0, which speaks for all before the first step, is killed while it waits for a reader of its
    metrics."""
    fifo = bench.folder / "unread"
    os.mkfifo(fifo)
    live = Live(bench, *tiny(bench, "--metrics", fifo, "--ranks", 4))
    deadline, joined = time.monotonic() + GUARD_S, 0
    while joined < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
        # ranks other than 0 print nothing once all have met
        joined = sum(os.path.realpath(f"/proc/{pid}/fd/1") == "/dev/null" for pid in live.children())
    live.send(0, signal.SIGKILL)
    live.end()
    told = [line for line in live.err.splitlines() if re.search(r"\brank 0 \(\S+\)", line)]
    bench.tap.ok(
        live.status == 1
        and sorted(re.match(r"rank \d", line)[0] for line in told) == ["rank 1", "rank 2", "rank 3"]
        and len(live.err.splitlines()) == 4
        and not live.left,
        "rank 0 is killed before the first step: a line of each other rank names it",
        live,
    )


def pause(bench):
    """A rank that stands still for a while, as on a machine that swaps."""
    straight = Result(bench, "unpaused", 1, *tiny(bench, steps=STEPS))
    metrics, saved, out = (bench.folder / f"paused-{what}" for what in ("metrics", "saved", "out"))
    live = Live(
        bench,
        *tiny(bench, "--metrics", metrics, "--checkpoint", saved, "--export", out, "--ranks", 2, steps=STEPS),
    )
    if live.await_line("step 5/"):
        pid = live.pid_of(1)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2)  # the pause
        os.kill(pid, signal.SIGCONT)
    live.end()
    bench.tap.ok(
        live.status == 0
        and live.err == ""
        and trajectory(metrics) == straight.lines
        and {**content_of(saved), **content_of(out)} == straight.files,
        "a rank that pauses changes no bit",
        live,
    )


def stopped(bench):
    """A rank that is stopped for good: the others end, and SIGTERM ends it, too."""
    live = Live(bench, *tiny(bench, "--ranks", 2, "--collective-timeout", 1, steps=1000000))
    if live.await_line("step 5/"):
        live.send(1, signal.SIGSTOP)
    told = live.await_error("rank 1 (")
    live.send("launcher", signal.SIGTERM)
    live.end()
    bench.tap.ok(told and live.status == 1 and not live.left, "SIGTERM ends a rank that is stopped", live)


# ---- outputs ----


def outputs(bench):
    folder, trace, metrics = bench.folder / "logs", bench.folder / "trace", bench.folder / "once.jsonl"
    run = bench.run(
        *tiny(
            bench,
            "--eval-every",
            3,
            "--export",
            bench.folder / "exported",
            "--sample",
            4,
            "--trace",
            trace,
            "--log-dir",
            folder,
            "--ranks",
            4,
            "--metrics",
            metrics,
        )
    )
    heads = re.findall(
        r"^(device host|where every byte goes|step \d/|validation after step \d|sample of 4)",
        run.out,
        re.MULTILINE,
    )
    bench.tap.ok(
        run.status == 0
        and run.err == ""
        and heads
        == [
            "device host",
            "where every byte goes",
            "step 1/",
            "step 2/",
            "step 3/",
            "validation after step 3",
            "step 4/",
            "step 5/",
            "step 6/",
            "validation after step 6",
            "sample of 4",
        ],
        "rank 0 prints each line once",
        run,
    )
    bench.tap.ok(
        [line["step"] for line in metrics_read(metrics)] == list(range(1, 7)),
        "a step has one line in the metrics",
    )
    told = logs(folder)
    bench.tap.ok(
        list(told) == ["rank-1.log", "rank-2.log", "rank-3.log"]
        and all(
            "where every byte goes" in text
            and re.search(r"^validation after step 3: loss [\d.]+, perplexity [\d.]+$", text, re.MULTILINE)
            and "sample of 4" in text
            and "export" not in text
            for text in told.values()
        ),
        "the lines of the other ranks are in files",
        told,
    )
    traces = sorted(path.name for path in bench.folder.glob("trace*"))
    bench.tap.ok(traces == [f"trace.rank-{rank}" for rank in range(4)], "each rank has a trace", traces)
    for name in traces:
        summary = Run([bench.program, "trace", "summary", str(bench.folder / name)])
        bench.tap.ok(summary.status == 0 and summary.err == "", f"{name} can be read", summary)
    run = bench.run(*tiny(bench, "--ranks", 2, "--log-dir", folder, "--checks", "on", steps=1))
    bench.tap.ok(
        run.status == 0 and "step 1/1" not in run.err and "6 steps" not in logs(folder)["rank-1.log"],
        "a new run replaces them",
        run,
    )
    bench.tap.ok(
        run.out.count("a use after eviction does not fault") == 1, "its head says which check it lacks", run
    )
    (bench.folder / "full.rank-1").symlink_to("/dev/full")
    run = one_line(
        bench,
        "a trace that rank 1 can't write",
        1,
        "full.rank-1: can't be written: No space",
        *tiny(bench, "--ranks", 2, "--trace", bench.folder / "full"),
    )
    bench.tap.ok(
        "step 6/6" in run.out and (bench.folder / "full.rank-0").is_file(), "rank 0 has its own", run
    )


# ---- other launchers ----


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def neighbours():
    """A socket that listens, to keep its port as torchrun's agent does, and the port; the next is free."""
    while True:
        agent, next_one = socket.socket(), socket.socket()
        agent.bind(("127.0.0.1", 0))
        port = agent.getsockname()[1]
        try:
            next_one.bind(("127.0.0.1", port + 1))
        except (OSError, OverflowError):
            agent.close()
            continue
        finally:
            next_one.close()
        agent.listen()
        return agent, port


def variables_of(launcher, rank, port, job):
    """What a launcher sets for one of two processes on this host, as its documentation or source says."""
    return {
        "torchrun": {
            "RANK": rank,
            "WORLD_SIZE": 2,
            "LOCAL_RANK": rank,
            "LOCAL_WORLD_SIZE": 2,
            "GROUP_RANK": 0,
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": 2,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": job,
            "OMP_NUM_THREADS": 1,
        },
        "Open MPI": {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": 2,
            "OMPI_COMM_WORLD_LOCAL_RANK": rank,
            "OMPI_COMM_WORLD_LOCAL_SIZE": 2,
            "OMPI_COMM_WORLD_NODE_RANK": rank,
            "PMIX_NAMESPACE": f"prterun-{job}@1",
            "PMIX_RANK": rank,
        },
        "MPICH": {
            "PMI_RANK": rank,
            "PMI_SIZE": 2,
            "PMI_FD": 9,
            "MPI_LOCALRANKID": rank,
            "MPI_LOCALNRANKS": 2,
            "PMI_JOBID": job,
        },
        "Slurm": {
            "SLURM_JOB_ID": int(job, 16) % 100000,
            "SLURM_STEP_ID": 0,
            "SLURM_PROCID": rank,
            "SLURM_NTASKS": 2,
            "SLURM_STEP_NUM_TASKS": 2,
            "SLURM_LOCALID": rank,
            "SLURM_NODEID": 0,
            "SLURM_STEP_NODELIST": "127.0.0.1",
            "SLURM_LAUNCH_NODE_IPADDR": "192.0.2.1",
            "PMI_RANK": rank,  # with --mpi=pmi2
            "PMI_SIZE": 2,
        },
    }[launcher]


def start_with(variables, command, stderr, prepare):
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        preexec_fn=prepare,
        env={**os.environ, **{name: str(value) for name, value in variables.items()}},
    )


def start_by(bench, launcher, rank, port, job, *options, processors=None):
    def prepare():
        die_with_parent()
        os.sched_setaffinity(0, processors or os.sched_getaffinity(0))

    return start_with(
        variables_of(launcher, rank, port, job), bench.command(*options), subprocess.PIPE, prepare
    )


def launchers(bench):
    """Two processes that have nothing but a launcher's variables find each other and train one model."""
    straight = Result(bench, "unlaunched", 1, *tiny(bench))
    for launcher in ("torchrun", "Open MPI", "MPICH", "Slurm"):
        agent, port = neighbours()
        job = uuid.uuid4().hex[:12]  # whose hash is the port of all but torchrun
        name = launcher.replace(" ", "-")
        metrics, saved, out = (bench.folder / f"{name}-{what}" for what in ("metrics", "saved", "out"))
        options = tiny(bench, "--metrics", metrics, "--checkpoint", saved, "--export", out)
        ranks = [start_by(bench, launcher, rank, port, job, *options) for rank in range(2)]
        told = [rank.communicate(timeout=GUARD_S) for rank in ranks]
        agent.close()
        bench.tap.ok(
            [rank.returncode for rank in ranks] == [0, 0]
            and trajectory(metrics) == straight.lines
            and {**content_of(saved), **content_of(out)} == straight.files,
            f"{launcher}'s variables: two processes train as one",
            told,
        )
        bench.tap.ok(
            "2 ranks" in told[0][0] and told[1][0] == "" and [err for _, err in told] == ["", ""],
            f"{launcher}'s variables: rank 0 alone prints",
            told,
        )


def bindings(bench):
    """mpirun binds a rank to one processor, unless it is told otherwise."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) == 1:
        print("# bindings: there is one processor")
        return
    warning = "warning: rank 1 has 2 threads, but may use 1 processor only"
    narrow = {1: {min(allowed)}}
    for threads, bound, count in (("2", narrow, 1), ("2", {}, 0), (None, narrow, 0)):
        options = tiny(bench, steps=1)
        at = options.index("--threads")
        options[at : at + 2] = ["--threads", threads] if threads else []
        job = uuid.uuid4().hex[:12]
        ranks = [
            start_by(bench, "Open MPI", rank, 0, job, *options, processors=bound.get(rank))
            for rank in range(2)
        ]
        told = [rank.communicate(timeout=GUARD_S) for rank in ranks]
        bench.tap.ok(
            [rank.returncode for rank in ranks] == [0, 0]
            and told[0][0].count(warning) == count
            and told[0][0].count("warning: ") == count
            and "differ" not in told[0][0],
            f"bound to {bound or 'nothing'}, {threads or 'default'} threads: {count} warning",
            told,
        )


# ---- strangers ----


def by_hand(bench, rank, port, *options):
    """Starts one of two ranks, as the launcher does."""
    variables = {
        "TIDEPOOL_RANK": rank,
        "TIDEPOOL_RANKS": 2,
        "TIDEPOOL_PORT": port,
        "TIDEPOOL_TOKEN": "a secret",
    }
    return start_with(variables, bench.command(*options, "--ranks", 2), subprocess.STDOUT, die_with_parent)


def strangers(bench):
    """Others connect to the port, and send garbage or nothing, while rank 0 waits for rank 1."""
    straight = Result(bench, "alone", 1, *tiny(bench))
    metrics, saved, out = (bench.folder / f"visited-{what}" for what in ("metrics", "saved", "out"))
    options = tiny(bench, "--metrics", metrics, "--checkpoint", saved, "--export", out)
    port = free_port()
    ranks = [by_hand(bench, 0, port, *options)]
    deadline = time.monotonic() + GUARD_S
    while not listens(port) and time.monotonic() < deadline:
        time.sleep(0.01)
    guests = []
    for content in (
        b"",
        b"\0" * 3,
        b"GET / HTTP/1.1\r\n\r\n",
        random.Random(2).randbytes(100000),
        b"\xff" * 64,
    ):
        guests.append(socket.create_connection(("127.0.0.1", port), timeout=GUARD_S))
        guests[-1].setblocking(False)
        try:
            guests[-1].send(content)
        except OSError:  # rank 0 was faster
            pass
    guests.pop().close()
    ranks.append(by_hand(bench, 1, port, *options))
    said = [rank.communicate(timeout=GUARD_S)[0] for rank in ranks]
    for guest in guests:
        guest.close()
    bench.tap.ok(
        [rank.returncode for rank in ranks] == [0, 0]
        and trajectory(metrics) == straight.lines
        and {**content_of(saved), **content_of(out)} == straight.files,
        "strangers at the port do no harm",
        "\n".join(said),
    )
    bench.tap.ok(
        "warning" not in said[0] and not listens(port), "nobody listens at the port in the end", said[0]
    )


def two_by_hand(bench, of_0, of_1):
    port = free_port()
    ranks = [by_hand(bench, 0, port, *of_0), by_hand(bench, 1, port, *of_1)]
    said = [rank.communicate(timeout=GUARD_S)[0] for rank in ranks]
    return [rank.returncode for rank in ranks], said


def differ(bench):
    """Ranks that would compute different things end before the first step; the message says in what."""
    models = [bench.folder / f"differ-{name}" for name in ("a", "b", "c")]
    config, saved = bench.folder / "differ.json", [bench.folder / f"differ-saved-{seed}" for seed in (0, 1)]
    config.write_text(json.dumps({**llama_config("llama"), "vocab_size": 257}))
    for seed in (0, 1):
        bench.run(*tiny(bench, "--seed", seed, "--export", models[seed], model=config, steps=1))
        bench.run(*tiny(bench, "--lr", 0.001 * (seed + 1), "--checkpoint", saved[seed], steps=1))
    shutil.copytree(models[0], models[2])
    changed = json.loads((models[2] / "config.json").read_text())
    (models[2] / "config.json").write_text(json.dumps({**changed, "rope_theta": 50.0}))
    two = tiny(bench)
    loading = [tiny(bench, model=model) for model in models]
    resuming = [[*two, "--resume-from", at / "step-1"] for at in saved]
    for name, part, of_0, of_1 in (
        ("seeds", "rank 1 has seed 0x0*2, rank 0 has 0x0*1", [*two, "--seed", 1], [*two, "--seed", 2]),
        ("rates", "rank 1 has lr 0.002, rank 0 has 0.001", [*two, "--lr", 0.001], [*two, "--lr", 0.002]),
        ("steps", "rank 1 has steps 4, rank 0 has 6", two, tiny(bench, steps=4)),
        ("samples", "another --sample than", two, tiny(bench, "--sample", 3)),
        ("saves", "another --checkpoint than", [*two, "--checkpoint", saved[0]], two),
        ("weights", "rank 1 has loaded params with hash", *loading[:2]),
        ("thetas", "rank 1 has model.rope_theta 50, rank 0 has 10000", *loading[::2]),
        ("checkpoints", "rank 1 has loaded params with hash", *resuming),
    ):
        status, said = two_by_hand(bench, of_0, of_1)
        bench.tap.ok(
            status == [1, 1] and re.search(part, said[0]) and "step 1/" not in said[0] and said[1] == "",
            f"ranks with different {name}",
            f"{status}\n{said}",
        )


def unread(bench):
    """A reader of the lines that stands still, as a stopped terminal, is no failure."""
    live = Live(bench, *tiny(bench, "--ranks", 2, "--collective-timeout", 1, steps=STEPS))
    live.await_line("step 5/")
    time.sleep(3)
    live.end()
    bench.tap.ok(live.status == 0 and live.err == "", "lines that nobody reads for a while", live)


def main():
    name, value = MARK.split("=")
    os.environ[name] = value
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the suite may run under nohup, which ignores it
    bench = Bench(sys.argv[1], full=False)
    try:
        for section in (
            bits,
            resume,
            resume_elsewhere,
            stops,
            saves,
            saves_at_first,
            saves_late,
            starting,
            refusals,
            refused_logs,
            deaths,
            early_deaths,
            death_at_first,
            pause,
            stopped,
            outputs,
            launchers,
            bindings,
            strangers,
            differ,
            unread,
        ):
            begun = time.monotonic()
            section(bench)
            print(f"# {section.__name__}: {time.monotonic() - begun:.1f} s")
        bench.tap.ok(not await_end(), "no process is left", left_over())
        bench.tap.done()
    finally:
        bench.close()


if __name__ == "__main__":
    main()
