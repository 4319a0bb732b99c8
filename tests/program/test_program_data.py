#!/usr/bin/env python3
"""The data that a run trains and validates on: files that change during the run, folders with files named
val, --eval-data, token files without a header, and more shards than the usual limit of open files.

usage: test_program_data.py PROGRAM      prints TAP
"""
import fcntl
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import threading

from test_program import MACHINE, MADE, TIMEOUT_S, Bench, Run, die_with_parent, one_line, trajectory

SEQUENCE = 64


def tiny(bench, data, *options, steps=4):
    return ["--model", bench.tiny, "--data", data, "--seq-len", SEQUENCE, "--batch-tokens", 2 * SEQUENCE, "--steps", steps, "--sample",
            0, "--chunk-size", "256KiB", *options]


def tokens(sequences, first=0):
    """Returns the tokens (below 257) of so many sequences and one more token; a token depends on its position
    in the data."""
    return [(first + 7 * i + i // SEQUENCE) % 257 for i in range(sequences * SEQUENCE + 1)]


def shard(path, sequences, first=0):
    content = tokens(sequences, first)
    path.write_bytes(struct.pack("<256i", 20240520, 1, len(content), *[0] * 253) + struct.pack(f"<{len(content)}H", *content))


# ---- files that change ----

class Watched:
    """A run in the background whose output lines the test reads one by one."""

    def __init__(self, bench, *options):
        self.errors = tempfile.TemporaryFile("w+")
        reader, writer = os.pipe()
        # A full pipe stops the run about 40 steps ahead of the reader.
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        self.process = subprocess.Popen(bench.command(*options), stdout=writer, stderr=self.errors, text=True,
                                        preexec_fn=die_with_parent)
        os.close(writer)
        self.lines = os.fdopen(reader)
        # Kills a run that does not notice the change and would train for ever.
        self.alarm = threading.Timer(TIMEOUT_S, self.process.kill)
        self.alarm.start()
        self.said = []

    def wait_for(self, start, count=1):
        """Reads until `count` more lines that begin with `start` have come; False if the run ends before."""
        for line in self.lines:
            self.said.append(line)
            count -= line.startswith(start)
            if count == 0:
                return True
        return False

    def end(self):
        """Waits for the end; returns exit status, lines on stderr, and both with the last output as a check's
        details."""
        self.said += self.lines.readlines()
        status = self.process.wait()
        self.alarm.cancel()
        self.errors.seek(0)
        error = MADE.sub("", self.errors.read())
        return status, error.splitlines(), "".join(self.said[-10:]) + error + f"exit status {status}"


def flip(path):
    """Changes every byte of the file in place and keeps its size."""
    content = path.read_bytes()
    with open(path, "r+b") as file:
        file.write(bytes(byte ^ 1 for byte in content))


def changed_files(bench):
    """A data file changes while a training step or an evaluation reads it: the run ends with status 1 and one
    line that names the file and its fault, and no signal kills it (such as SIGBUS of a mapping)."""
    text = bench.text.read_bytes()
    size, endless = len(text), 10 ** 9
    for name, every, act, said in (
            ("truncated to nothing", 0, lambda path: os.truncate(path, 0), f"it had {size} bytes when it was opened and has 0 now"),
            ("appended to", 1, lambda path: path.open("ab").write(b"more"), f"it had {size} bytes when it was opened and has {size + 4} now"),
            ("written over", 0, flip, f"its {size} bytes are not the content that it had when it was opened")):
        path = bench.folder / "changing"
        path.write_bytes(text)
        run = Watched(bench, *tiny(bench, path, "--eval-every", every, steps=endless))
        run.wait_for("step 3/")
        act(path)
        status, errors, shown = run.end()
        bench.tap.ok(status == 1 and len(errors) == 1 and re.search(f"data {path}: {said}", errors[0]),
                     f"{name} while a step {'or evaluation ' if every else ''}reads it: status 1, one line with file and sizes", shown)


def unchanged_content(bench):
    """The file is written anew with the same bytes, or replaced by a rename: steps and evaluations go on, with the
    losses of a run whose file is left alone."""
    text = bench.text.read_bytes()
    told = []

    def again(path):
        with open(path, "r+b") as file:
            file.write(text)

    def replace(path):
        (bench.folder / "new").write_bytes(b"another text")
        (bench.folder / "new").rename(path)

    for name, act in (("left alone", lambda path: None), ("written again as it was", again),
                      ("replaced by another", replace)):
        path = bench.folder / "going"
        path.write_bytes(text)
        # The run must not end before the file changes.
        run = Watched(bench, *tiny(bench, path, "--eval-every", 50, steps=10 ** 9))
        on = run.wait_for("step 3/")
        act(path)
        # The pipe and the reader held fewer such lines at the change, so the last of these is newer.
        on = on and run.wait_for("validation after step", 4)
        told.append(re.findall(r"^(?:validation after.*|step \S+  loss \S+)", "".join(run.said), re.MULTILINE))
        run.process.send_signal(signal.SIGTERM)
        status, errors, shown = run.end()
        bench.tap.ok(on and status == 0 and not errors and told[-1] == told[0], f"a file that is {name} is read on, to the same losses",
                     shown)


# ---- which data is for validation ----

def head(run):
    """Returns the line in which the run names its validation data, or ""."""
    return (re.findall(r"^(?:held out for )?validation: .*$", run.out, re.MULTILINE) or [""])[0]


def losses(run):
    return re.findall(r"^validation after step \d+: loss ([\d.]+)", run.out, re.MULTILINE)


def named_files(bench):
    """A folder with llm.c's file names: files named val validate, all files named train train. A run with the
    same files given by --data and --eval-data computes the same."""
    both, apart = bench.folder / "both", bench.folder / "apart"
    both.mkdir()
    apart.mkdir()
    for folder in (both, apart):
        shard(folder / "web_train_000001.bin", 20)
        shard(folder / "web_train_000002.bin", 10, 5)
    shard(both / "web_val_000000.bin", 6, 11)
    shard(bench.folder / "val.bin", 6, 11)
    runs, metrics = [], [bench.folder / f"named-{i}" for i in range(2)]
    runs.append(bench.run(*tiny(bench, both, "--eval-every", 2, "--metrics", metrics[0])))
    bench.tap.ok(runs[0].status == 0 and head(runs[0]) == "validation: 6 sequences in 1 file named val; training: 30 sequences in 2 "
                 "files named train", "files named val are the validation data, and the run's head says so", runs[0])
    runs.append(bench.run(*tiny(bench, apart, "--eval-data", bench.folder / "val.bin", "--eval-every", 2, "--metrics", metrics[1])))
    bench.tap.ok(runs[1].status == 0 and head(runs[1]) == f"validation: 6 sequences in {bench.folder / 'val.bin'}; training: 30 "
                 f"sequences in {apart}, none held out", "--eval-data: its head says so", runs[1])
    bench.tap.ok(trajectory(metrics[0]) == trajectory(metrics[1]) and losses(runs[0]) == losses(runs[1]) and len(losses(runs[0])) == 2,
                 "both train and validate to the same bits", (losses(runs[0]), losses(runs[1])))
    run = bench.run(*tiny(bench, bench.text, "--eval-every", 0))
    sequences = (bench.text.stat().st_size - 1) // SEQUENCE
    bench.tap.ok(head(run) == f"held out for validation: {sequences * 5 // 100} of {sequences} sequences, the last 5%",
                 "without either the head says what is held out", run)
    run = bench.run("--device", "null", *MACHINE, *tiny(bench, both, steps=2))
    bench.tap.ok(run.status == 0 and head(run) == head(runs[0]), "on the null device, too", run)
    shard(both / "web_test.bin", 6)
    one_line(bench, "a third name beside train and val", 1, "web_test.bin: other files of the folder are called train or val, and this "
             "name says neither", *tiny(bench, both))
    one_line(bench, "--eval-data that is not there", 1, "data /nowhere/val.bin: can't be found", *tiny(bench, bench.text, "--eval-data",
                                                                                                    "/nowhere/val.bin"))
    one_line(bench, "--eval-data without data", 2, "--eval-data needs --data", "--model", bench.tiny, "--device", "null", *MACHINE,
             "--eval-data", bench.text)


def resumes(bench):
    """A resumed run may take other validation data. It may not split the same data in another way, which
    would change the order of training."""
    folder, saved = bench.folder / "resumed", bench.folder / "resumed-saved"
    folder.mkdir()
    shard(folder / "x_train_1.bin", 20)
    shard(folder / "x_vam_1.bin", 10, 5)
    half = tiny(bench, folder, "--eval-every", 0, "--checkpoint", saved)
    run = bench.run(*half)
    bench.tap.ok(run.status == 0 and head(run).startswith("held out"), "a run that holds 5% out is saved", run)
    (folder / "x_vam_1.bin").rename(folder / "x_val_1.bin")
    whole = tiny(bench, folder, "--eval-every", 0, "--checkpoint", saved, "--resume", steps=6)
    one_line(bench, "it was trained on what is called val now", 1, r"data_fingerprint .*\(it is the same data: this run takes the files "
             r"called val for validation and trains on those called train alone, that one held out the last 5% of it\)", *whole)
    (folder / "x_val_1.bin").rename(folder / "x_vam_1.bin")
    one_line(bench, "--eval-data behind a run that held 5% out", 1, r"it is the same data: this run has validation data of its own and "
             r"trains on all of it, that one held out", *whole, "--eval-data", bench.text.parent / "val.bin")
    run = bench.run(*whole)
    bench.tap.ok(run.status == 0 and "step 6/6" in run.out, "the same split goes on", run)
    own = bench.folder / "own-saved"
    half = tiny(bench, folder, "--eval-every", 0, "--checkpoint", own)
    bench.run(*half, "--eval-data", folder / "x_train_1.bin")
    whole = tiny(bench, folder, "--eval-every", 0, "--checkpoint", own, "--resume", steps=6)
    one_line(bench, "no --eval-data behind a run with it", 1, "it is the same data: this run holds out its last 5% for validation, that "
             "one had validation data of its own", *whole)
    run = bench.run(*whole, "--eval-data", folder / "x_vam_1.bin")
    bench.tap.ok(run.status == 0 and "step 6/6" in run.out, "other validation data goes on", run)


# ---- tokens without a header ----

def headerless(bench):
    """nanoGPT's folders of token files without a header train to the same losses as shards with the same
    tokens."""
    shards, metrics = bench.folder / "shards", [bench.folder / f"headerless-{i}" for i in range(2)]
    shards.mkdir()
    for name, count, first in (("train.bin", 30, 0), ("val.bin", 6, 9)):
        shard(shards / name, count, first)
    first = bench.run(*tiny(bench, shards, "--eval-every", 2, "--metrics", metrics[0]))
    folder = bench.folder / "nano-u16"
    folder.mkdir()
    for name, count, first_token in (("train.bin", 30, 0), ("val.bin", 6, 9)):
        content = tokens(count, first_token)
        (folder / name).write_bytes(struct.pack(f"<{len(content)}H", *content))
    run = bench.run(*tiny(bench, folder, "--data-format", "u16", "--eval-every", 2, "--metrics", metrics[1]))
    bench.tap.ok(run.status == 0 and head(run) == "validation: 6 sequences in 1 file named val; training: 30 sequences in 1 file named train" and
                 trajectory(metrics[1]) == trajectory(metrics[0]) and losses(run) == losses(first), "train.bin and val.bin without a header", run)
    one_line(bench, "without --data-format", 1, r"train.bin: a \*.bin file must be a token shard with magic .* say --data-format u16 \(or "
             r"u32\)", *tiny(bench, folder))
    one_line(bench, "a shard is none", 1, "train.bin: it is a token shard with a header", *tiny(bench, shards, "--data-format", "u16"))
    with (folder / "val.bin").open("ab") as file:
        file.write(b"x")
    one_line(bench, "half a token", 1, "val.bin: its [0-9]+ bytes are no whole number of uint16 tokens", *tiny(bench, folder, "--data-format",
                                                                                                          "u16"))
    one_line(bench, "--data-format without data", 2, "--data-format needs --data", "--model", bench.tiny, "--device", "null", *MACHINE,
             "--data-format", "u16")


# ---- many shards ----

def open_files(soft, hard):
    def limits():
        die_with_parent()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return limits


def many_shards(bench):
    folder = bench.folder / "many"
    folder.mkdir()
    for i in range(100):
        shard(folder / f"{i:03}.bin", 1, i)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    run = Run(bench.command(*tiny(bench, folder, "--eval-every", 0)), limits=open_files(64, hard))
    bench.tap.ok(run.status == 0 and run.err == "", "100 shards with a soft limit of 64 open files", run)
    one_line(bench, "100 shards with a hard limit of 64", 1, r"data .*/many/0\d\d.bin: can't be opened: every shard stays open, and this "
             r"process may open 64 files: raise that limit \(ulimit -n\), or join shards", *tiny(bench, folder), limits=open_files(64, 64))


def main(program):
    bench = Bench(program, False)
    try:
        changed_files(bench)
        unchanged_content(bench)
        named_files(bench)
        resumes(bench)
        headerless(bench)
        many_shards(bench)
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main(sys.argv[1])
