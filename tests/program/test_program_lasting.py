#!/usr/bin/env python3
"""A run saves its training even if files can't be written, readers of its output leave, or signals come.

usage: test_program_lasting.py PROGRAM FILE_FAULTS      prints TAP
FILE_FAULTS is the library of preload/file_faults.c, which makes calls on files fail by rules.
"""
import errno
import fcntl
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from test_program import MADE, TIMEOUT_S, Bench, Run, die_with_parent, metrics_read, weights

ENDLESS = 1000000  # steps of a run that a test stops
LAST = 6           # steps of a run that ends by itself


class Lasting(Bench):
    def __init__(self, program, faults):
        super().__init__(program, False)
        self.faults = faults
        self.runs = 0

    def options(self, steps, *more):
        return ["--model", self.tiny, "--data", self.text, "--steps", steps, "--batch-tokens", 128, "--seq-len", 32, "--eval-every", 0,
                "--sample", 0, "--chunk-size", "256KiB", *more]

    def new(self, name):
        self.runs += 1
        return self.folder / f"{name}-{self.runs}"

    def start(self, *options, faults=None, stdout=subprocess.PIPE, limits=die_with_parent, **more):
        """Starts a run in the background; its output comes by pipes."""
        environment = dict(os.environ)
        if faults is not None:
            environment.update(LD_PRELOAD=self.faults, TIDE_FILE_FAULTS=str(faults))
        process = subprocess.Popen(self.command(*options), stdout=stdout, stderr=subprocess.PIPE, text=True, preexec_fn=limits,
                                   env=environment, **more)
        watchdog = threading.Timer(TIMEOUT_S, process.kill)  # kills a run that would wait for ever
        watchdog.daemon = True
        watchdog.start()
        return process


    def endless(self, *more, **given):
        """Starts a run that a test stops, waits for its second step, and returns its checkpoint folder and the run."""
        saved = self.new("saved")
        process = self.start(*self.options(ENDLESS, "--checkpoint", saved, *more), **given)
        until(process.stdout, "step 2/")
        return saved, process


def until(lines, mark):
    """Reads the lines up to the first one with `mark` (or to the end) and returns them."""
    said = []
    for line in lines:
        said.append(line)
        if mark in line:
            break
    return "".join(said)


def ended(process):
    """Waits for the end; returns exit status, the rest of the output, and the errors."""
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"killed after {TIMEOUT_S} s\n"
    return process.returncode, out, MADE.sub("", err)


def steps_in(folder):
    """Returns the sorted names in a checkpoint folder, hidden ones included, so that a test sees temporary
    files left behind."""
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def rules(bench, *lines):
    path = bench.new("rules")
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


# ---- readers that leave ----

def readers(bench):
    saved, metrics = bench.new("saved"), bench.new("metrics")
    process = bench.start(*bench.options(LAST, "--checkpoint", saved, "--metrics", metrics))
    first = process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    status = process.wait(TIMEOUT_S)
    bench.tap.ok(first != "" and status == 0 and steps_in(saved) == [f"step-{LAST}"] and len(metrics_read(metrics)) == LAST,
                 "a reader that leaves after a line: the run comes to its end, saves and exits 0", f"{status}\n{err}")
    lines = MADE.sub("", err).splitlines()
    bench.tap.ok(len(lines) == 1 and "standard output can't be written" in lines[0] and "goes on without it" in lines[0],
                 "and says once that output is lost", err)

    saved, process = bench.endless()
    process.stdout.close()
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    status = process.wait(TIMEOUT_S)
    bench.tap.ok(status == 0 and len(steps_in(saved)) == 1, "Ctrl-C that ends both readers, too: saved, status 0",
                 f"{status} {steps_in(saved)}")

    saved = bench.new("saved")
    reader, writer = os.pipe()
    process = bench.start(*bench.options(ENDLESS, "--checkpoint", saved, "--metrics", f"/dev/fd/{writer}"), pass_fds=[writer],
                          stdout=subprocess.DEVNULL)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    said = until(process.stderr, "metrics file")
    process.send_signal(signal.SIGTERM)
    status, _, err = ended(process)
    bench.tap.ok(status == 0 and len(steps_in(saved)) == 1 and "Broken pipe; the run goes on without it" in said and err == "",
                 "a reader of the metrics that leaves: one line, saved, status 0", f"{status}\n{said}{err}")


def slow_readers(bench):
    """The reader of a metrics pipe opens it late; the reader of standard output, a pipe whose writes fail
    with EAGAIN when it is full, is slow. No line may get lost."""
    saved, fifo = bench.new("saved"), bench.new("fifo")
    os.mkfifo(fifo)
    process = bench.start(*bench.options(LAST, "--checkpoint", saved, "--metrics", fifo), stdout=subprocess.DEVNULL)
    with open(fifo, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    status, _, err = ended(process)
    bench.tap.ok(status == 0 and [row["step"] for row in rows] == list(range(1, LAST + 1)) and err == "",
                 "a pipe of metrics: every line comes", f"{status} {rows}\n{err}")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    process = bench.start(*bench.options(1000, "--checkpoint", saved, "--resume"), stdout=writer)
    os.close(writer)
    select.select([reader], [], [])
    time.sleep(0.2)  # a run that does not wait for the pipe would lose lines in this time
    text = b""
    while not text.endswith(b"step-1000 (1.4 MiB)\n") and len(text) < 1 << 20:
        part = os.read(reader, 777)
        if not part:
            break
        text += part
    status, _, err = ended(process)
    os.close(reader)
    steps = re.findall(rb"^step (\d+)/", text, re.MULTILINE)
    bench.tap.ok(status == 0 and err == "" and [int(step) for step in steps] == list(range(LAST + 1, 1001)),
                 "standard output that is full for a while: every line comes", f"{status} {len(steps)}\n{err}")


def full_outputs(bench):
    saved, metrics = bench.new("saved"), bench.new("metrics")
    options = bench.options(LAST, "--checkpoint", saved, "--metrics", metrics)
    with open("/dev/full", "wb") as full:
        status, _, err = ended(bench.start(*options, stdout=full))
    bench.tap.ok(status == 1 and "No space left" in err and steps_in(saved) == [f"step-{LAST}"] and len(metrics_read(metrics)) == LAST and
                 len(err.splitlines()) == 2 and "goes on without it" in err and err.endswith("standard output could not be written whole\n"),
                 "standard output on a full disk: said, the run comes to its end and saves, status 1", f"{status}\n{err}")

    def closed():
        die_with_parent()
        os.close(1)
    saved, metrics = bench.new("saved"), bench.new("metrics")
    process = bench.start(*bench.options(LAST, "--checkpoint", saved, "--metrics", metrics), stdout=None, limits=closed)
    status, _, err = ended(process)
    bench.tap.ok(status == 1 and steps_in(saved) == [f"step-{LAST}"] and len(metrics_read(metrics)) == LAST and "standard output" in err,
                 "standard output that was closed: no other file is written in its place", f"{status}\n{err}")

    # The disk is full from the middle of line 3 on and has space again at line 6. Lines 3 to 5 are lost.
    saved, metrics = bench.new("saved"), bench.new("metrics")
    faults = rules(bench, f"half 1 3 3 {metrics.name}", f"write {errno.ENOSPC} 4 6 {metrics.name}")
    status, out, err = ended(bench.start(*bench.options(8, "--checkpoint", saved, "--metrics", metrics), faults=faults))
    lines = err.splitlines()
    bench.tap.ok(status == 1 and steps_in(saved) == ["step-8"] and len(lines) == 2 and "No space left" in lines[0] and
                 "goes on without it" in lines[0] and "3 lines could not be written" in lines[1],
                 "metrics on a full disk: said once and at the end, all saved, status 1", f"{status}\n{out}{err}")
    bench.tap.ok(metrics.read_text().endswith("}\n") and [row["step"] for row in metrics_read(metrics)] == [1, 2, 6, 7, 8],
                 "and the file holds whole lines", metrics.read_text())


def uncut_metrics(bench):
    """The disk is full when a resumed run wants to cut those lines from its metrics that its steps will write
    again. The run goes on and keeps the old lines."""
    saved, metrics = bench.new("saved"), bench.new("metrics")
    ended(bench.start(*bench.options(LAST, "--checkpoint", saved, "--metrics", metrics)))
    metrics.write_text(metrics.read_text() + f'{{"step": {LAST + 1}}}\n# a remark\n')
    faults = rules(bench, f"fsync {errno.ENOSPC} 1 1 {metrics.name}.tmp-")
    options = bench.options(LAST + 2, "--checkpoint", saved, "--metrics", metrics, "--resume")
    status, out, err = ended(bench.start(*options, faults=faults))
    rows = [json.loads(line)["step"] for line in metrics.read_text().splitlines() if line.startswith("{")]
    bench.tap.ok(status == 0 and len(err.splitlines()) == 1 and "can't be written" in err and "goes on" in err and
                 rows == [*range(1, LAST + 1), LAST + 1, LAST + 1, LAST + 2], "metrics that can't be cut keep no run from going on",
                 f"{status} {rows}\n{out}{err}")


# ---- signals ----

def relayed(bench):
    """timeout(1) sends its signal to the process and then to its group, so that the program gets it twice."""
    for _ in range(5):
        saved, process = bench.endless()
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        until(process.stdout, "stopped after step")  # now the run has seen the first signal and saves
        process.send_signal(signal.SIGTERM)
        status, out, err = ended(process)
        if time.monotonic() - begun < 1 or status == 0:
            bench.tap.ok(status == 0 and len(steps_in(saved)) == 1 and err == "", "a signal that comes twice at once is one", f"{status}\n{out[-2000:]}{err}")
            return
    bench.tap.skip("a signal that comes twice at once is one", "a run takes over a second to end here, so that it comes twice in truth")


def ends(bench):
    for number in (signal.SIGHUP, signal.SIGXCPU):
        saved, process = bench.endless()
        process.send_signal(number)
        process.send_signal(number)  # a terminal that closes sends SIGHUP twice
        status, out, err = ended(process)
        name = signal.Signals(number).name
        bench.tap.ok(status == 0 and f"{name}: stopped after step" in out and len(steps_in(saved)) == 1 and err == "",
                     f"{name} finishes the step, saves and exits 0", f"{status}\n{out[-2000:]}{err}")

    relayed(bench)

    def nohup():
        die_with_parent()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    saved = bench.new("saved")
    process = bench.start(*bench.options(50, "--checkpoint", saved), limits=nohup)
    until(process.stdout, "step 2/")
    process.send_signal(signal.SIGHUP)
    status, out, err = ended(process)
    bench.tap.ok(status == 0 and steps_in(saved) == ["step-50"], "under nohup SIGHUP stays ignored", f"{status}\n{out[-2000:]}{err}")

    saved, process = bench.endless()
    used = sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])) // os.sysconf("SC_CLK_TCK")
    resource.prlimit(process.pid, resource.RLIMIT_CPU, (used + 1, used + 60))
    status, out, err = ended(process)
    bench.tap.ok(status == 0 and "SIGXCPU: stopped" in out and len(steps_in(saved)) == 1,
                 "processor time that is used up (ulimit -t) ends it as well", f"{status}\n{out[-2000:]}{err}")


def asks(bench):
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        name = signal.Signals(number).name
        saved, process = bench.endless()
        process.send_signal(number)
        said = until(process.stdout, "saved ")
        more = until(process.stdout, "step ")  # the run goes on after the save
        process.send_signal(signal.SIGTERM)
        status, out, err = ended(process)
        bench.tap.ok(status == 0 and "saved " in said and "step " in more and "SIGTERM: stopped" in out and len(steps_in(saved)) == 2,
                     f"{name} saves, and the run goes on", f"{status}\n{said[-1000:]}{more}{out[-1000:]}{err}")
    process = bench.start(*bench.options(ENDLESS))
    until(process.stdout, "step 2/")
    process.send_signal(signal.SIGUSR1)
    said = until(process.stdout, "SIGUSR1")
    more = until(process.stdout, "step ")
    process.send_signal(signal.SIGTERM)
    status, out, err = ended(process)
    bench.tap.ok(status == 0 and "SIGUSR1: nothing was saved: there is no --checkpoint" in said and "step " in more and err == "",
                 "without --checkpoint SIGUSR1 makes one line", f"{status}\n{said[-1000:]}{out[-1000:]}{err}")


# ---- saves that fail ----

REFUSALS = (("no room", f"write {errno.ENOSPC}", "No space left"), ("a disk that fails to sync", f"fsync {errno.EIO}", "Input/output"),
            ("a disk that was made read-only", f"mkdir {errno.EROFS}", "Read-only"), ("a rename that fails", f"rename {errno.EIO}", "Input/output"))


def failing_saves(bench):
    whole = bench.new("saved")
    status, out, err = ended(bench.start(*bench.options(LAST, "--checkpoint", whole)))
    bench.tap.ok(status == 0, "the undisturbed run", f"{status}\n{out}{err}")
    for name, rule, told in REFUSALS:
        saved = bench.new("saved")
        faults = rules(bench, f"{rule} 1 1000000 {saved.name}/.tmp-4-")
        options = bench.options(LAST, "--checkpoint", saved, "--save-every", 2, "--keep", 0)
        status, out, err = ended(bench.start(*options, faults=faults))
        lines = err.splitlines()
        bench.tap.ok(status == 0 and steps_in(saved) == ["step-2", "step-6"] and len(lines) == 1 and told in lines[0] and
                     f"{saved}/step-2 is kept, and the run goes on" in lines[0] and weights(saved, LAST) == weights(whole, LAST),
                     f"{name} at a save in the middle: said, the run goes on, status 0", f"{status} {steps_in(saved)}\n{out}{err}")


def last_saves(bench):
    saved = bench.new("saved")
    faults = rules(bench, f"write {errno.ENOSPC} 1 1000000 {saved.name}/.tmp-{LAST}-")
    process = bench.start(*bench.options(LAST, "--checkpoint", saved, "--save-every", 2), faults=faults)
    said = until(process.stderr, "tried again")
    faults.unlink()
    status, out, err = ended(process)
    bench.tap.ok(status == 0 and f"step-{LAST}" in steps_in(saved) and "step-4 is kept; tried again for 600 s (--save-patience)" in said,
                 "a last save without room waits until there is some, status 0", f"{status} {steps_in(saved)}\n{out}{said}{err}")
    for kept in (True, False):
        saved = bench.new("saved")
        faults = rules(bench, f"write {errno.ENOSPC} 1 1000000 {saved.name}/.tmp-{LAST}-")
        every = ("--save-every", 4) if kept else ()
        status, out, err = ended(bench.start(*bench.options(LAST, "--checkpoint", saved, *every, "--save-patience", 1), faults=faults))
        lines = err.splitlines()
        words = f"step {LAST} is not saved, " + (f"{saved}/step-4 is kept" if kept else "no checkpoint was made before")
        bench.tap.ok(status == 1 and steps_in(saved) == (["step-4"] if kept else []) and len(lines) == 2 and words in lines[1],
                     f"patience that ends: status 1, {'what is kept' if kept else 'that nothing is kept'}", f"{status} {steps_in(saved)}\n{out}{err}")
    saved, exported = bench.new("saved"), bench.new("exported")
    faults = rules(bench, f"write {errno.ENOSPC} 1 1000000 {saved.name}/.tmp-{LAST}-")
    process = bench.start(*bench.options(LAST, "--checkpoint", saved, "--export", exported), faults=faults)
    said = until(process.stderr, "tried again")
    process.send_signal(signal.SIGHUP)
    status, out, err = ended(process)
    bench.tap.ok(status == 1 and f"step {LAST} is not saved" in err and (exported / "config.json").exists() and "exported" in out,
                 "a signal ends the patience, and the model of the run is exported all the same", f"{status}\n{out}{said}{err}")


def plain_file(bench):
    """While the run is stopped, somebody puts a plain file where one of its next two checkpoints would go."""
    saved, metrics = bench.new("saved"), bench.new("metrics")
    process = bench.start(*bench.options(ENDLESS, "--checkpoint", saved, "--save-every", 40, "--keep", 0, "--metrics", metrics))
    until(process.stdout, "step 2/")
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    taken = (metrics.read_text().count("\n") // 40 + 2) * 40
    (saved / f"step-{taken}").write_text("somebody's")
    process.send_signal(signal.SIGCONT)
    said = until(process.stderr, "goes on to its next save")
    until(process.stdout, f"saved {saved}/step-{taken + 40}")
    process.send_signal(signal.SIGTERM)
    status, out, err = ended(process)
    bench.tap.ok(status == 0 and f"step-{taken}" in said and (saved / f"step-{taken + 40}").is_dir() and
                 (saved / f"step-{taken}").read_text() == "somebody's",
                 "a plain file in a checkpoint's place costs that save alone", f"{status} {steps_in(saved)}\n{out[-1000:]}{said}{err}")


# ---- other disasters ----

def deleted_folder(bench):
    saved, process = bench.endless()
    shutil.rmtree(saved)
    process.send_signal(signal.SIGTERM)
    status, out, err = ended(process)
    bench.tap.ok(status == 0 and len(steps_in(saved)) == 1, "a checkpoint folder that was deleted is made again",
                 f"{status} {steps_in(saved)}\n{out[-1000:]}{err}")


def overwrite(path, content):
    """Writes over the file in place; its size never shrinks."""
    with open(path, "r+b") as file:
        file.write(content)


def changed_data(bench):
    """While a run reads the data file, somebody truncates it or writes another text over it."""
    size = bench.text.stat().st_size
    for name, change, told in (("truncated", lambda path: os.truncate(path, size // 2), f"{size} bytes .* {size // 2} now"),
                               ("overwritten", lambda path: overwrite(path, b"x" * size), "content")):
        saved, data = bench.new("saved"), bench.new("data")
        shutil.copy(bench.text, data)
        options = bench.options(ENDLESS, "--checkpoint", saved)
        options[options.index("--data") + 1] = data
        process = bench.start(*options)
        until(process.stdout, "step 2/")
        change(data)
        status, out, err = ended(process)
        lines = err.splitlines()
        bench.tap.ok(status == 1 and len(lines) == 1 and data.name in lines[0] and re.search(told, lines[0]) and len(steps_in(saved)) == 1 and
                     f"saved {saved}/{steps_in(saved)[0]}" in out, f"data that is {name}: status 1, one line, saved", f"{status}\n{out[-1000:]}{err}")
        shutil.copy(bench.text, data)
        step = int(steps_in(saved)[0].removeprefix("step-")) if steps_in(saved) else 0
        options[options.index("--steps") + 1] = step + 1
        again = Run(bench.command(*options, "--resume"))
        bench.tap.ok(step > 1 and again.status == 0 and f"step-{step + 1}" in steps_in(saved), "and goes on when the data is as it was", again)


def second_run(bench):
    saved, process = bench.endless()
    second = Run(bench.command(*bench.options(LAST, "--checkpoint", saved, "--resume")))
    process.send_signal(signal.SIGTERM)
    status, out, err = ended(process)
    bench.tap.ok(second.status == 1 and len(second.err.splitlines()) == 1 and "another run saves to it now" in second.err,
                 "a second run on the folder is refused", second)
    bench.tap.ok(status == 0 and len(steps_in(saved)) == 1, "and the first is undisturbed", f"{status}\n{out[-1000:]}{err}")


def clock_back(bench):
    whole, saved = bench.new("saved"), bench.new("saved")
    metrics = bench.new("metrics"), bench.new("metrics")
    ended(bench.start(*bench.options(LAST, "--checkpoint", whole, "--metrics", metrics[0])))
    os.environ["TIDE_CLOCK_BACK"] = "1"
    trace = bench.new("trace")
    status, out, err = ended(bench.start(*bench.options(LAST, "--checkpoint", saved, "--metrics", metrics[1], "--trace", trace),
                                         faults=bench.folder / "no-rules"))
    del os.environ["TIDE_CLOCK_BACK"]
    rows = metrics_read(metrics[1])
    bench.tap.ok(status == 0 and err == "" and weights(saved, LAST) == weights(whole, LAST) and all(row["step_seconds"] > 0 for row in rows),
                 "a clock that is set back at every look changes nothing", f"{status}\n{out}{err}")


def main():
    # The suite may run under nohup, which ignores SIGHUP, and the runs would inherit that.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    bench = Lasting(*sys.argv[1:])
    try:
        for part in (readers, slow_readers, full_outputs, uncut_metrics, ends, asks, failing_saves, last_saves, plain_file, deleted_folder,
                     changed_data, second_run, clock_back):
            part(bench)
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main()
