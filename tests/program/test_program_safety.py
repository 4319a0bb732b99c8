#!/usr/bin/env python3
"""Mistakes and failing disks must cost no user's files: outputs that are inputs, file look-ups that fail,
checkpoint folders given as outputs. And hostile content of files does no harm.

usage: test_program_safety.py PROGRAM FAILING_LOOK      prints TAP
FAILING_LOOK is the library of preload/failing_look.c.
"""
import errno
import json
import os
import re
import struct
import subprocess
import sys

from test_program import MACHINE, Bench, Run, one_line
from test_program_data import shard
from test_program_weights import folder_write, llama_config, tensors_of

# Errors of a look-up that do not say whether the file exists.
FAILURES = (errno.EIO, errno.ESTALE, errno.EACCES)


def tiny(bench, *options, model=None, data=None):
    return ["--model", model or bench.tiny, "--data", data or bench.text, "--batch-tokens", 128, "--eval-every", 0, "--sample", 0,
            "--steps", 4, "--chunk-size", "1MiB", *options]


def model_make(folder):
    """Makes a Hugging Face folder: a model of two blocks, and a tokenizer's files."""
    config = llama_config("llama")
    folder_write(folder, config, tensors_of(config, ["F32"]))


def content_of(folder):
    """Maps the path of every file below the folder to its bytes, and of every link to its target."""
    return {str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
            for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file()}


# ---- outputs ----

def refused(bench, name, parts, *options):
    """The program refuses with status 2 and changes nothing in the scratch folder."""
    before = content_of(bench.folder)
    run = one_line(bench, name, 2, ".*".join(map(re.escape, map(str, parts))), *options)
    bench.tap.ok(content_of(bench.folder) == before, name + ": nothing is made or changed", run)


def outputs_are_no_inputs(bench, model, saved):
    shards, linked, hard, beside = (bench.folder / name for name in ("shards", "linked", "hard", "own.trace.step-3"))
    shards.mkdir()
    for name in ("a.bin", "b.bin"):
        shard(shards / name, 78)
    linked.symlink_to(bench.text)
    os.link(bench.text, hard)
    beside.write_bytes(bench.text.read_bytes())
    for option in ("--metrics", "--trace", "--checkpoint", "--export"):
        refused(bench, f"{option} on the data", (option, bench.text, "--data"), *tiny(bench, option, bench.text))
    refused(bench, "--metrics on a link to the data", ("--metrics", linked, "--data", bench.text), *tiny(bench, "--metrics", linked))
    refused(bench, "--trace on another name of the data", ("--trace", hard, "--data"), *tiny(bench, "--trace", hard))
    refused(bench, "data by a link", ("--metrics", "--data", linked), *tiny(bench, "--metrics", bench.text, data=linked))
    refused(bench, "a shard", ("--metrics", "--data", "b.bin"), *tiny(bench, "--metrics", shards / "b.bin", data=shards))
    refused(bench, "a name that would be a shard", ("--metrics", "c.bin", "--data"),
            *tiny(bench, "--metrics", shards / "c.bin", data=shards))
    refused(bench, "a config.json", ("--metrics", "--model", bench.tiny), *tiny(bench, "--metrics", bench.tiny))
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        refused(bench, f"a model's {name}", ("--metrics", "--model", name), *tiny(bench, "--metrics", model / name, model=model))
    for name in ("model.safetensors", "manifest.json"):
        path = saved / "step-4" / name
        refused(bench, f"a checkpoint's {name}", ("--trace", "--checkpoint", name),
                *tiny(bench, "--trace", path, "--checkpoint", saved, "--resume"))
        refused(bench, f"{name} of --resume-from", ("--metrics", "--resume-from", name),
                *tiny(bench, "--metrics", path, "--resume-from", saved / "step-4"))
    refused(bench, "a new file in a checkpoint", ("--metrics", "--checkpoint"),
            *tiny(bench, "--metrics", saved / "step-4" / "new", "--checkpoint", saved, "--resume"))
    refused(bench, "data that --trace would remove", ("--data", beside, "--trace"),
            *tiny(bench, "--trace", bench.folder / "own.trace", data=beside))
    refused(bench, "a machine's file", ("--trace", "--machine"), "--model", bench.tiny, "--device", "null", "--machine", linked,
            "--trace", bench.text)
    run = bench.run(*tiny(bench, "--metrics", model / "metrics.jsonl", model=model))
    again = bench.run(*tiny(bench, "--metrics", model / "metrics.jsonl", model=model))
    bench.tap.ok(run.status == again.status == 0, "a model's folder may hold metrics, again and again", again)
    before = bench.text.read_bytes()
    run = Run([bench.program, "tune", "--model", str(bench.tiny), "--data", str(bench.text), "--plot", str(linked)])
    bench.tap.ok(run.status == 2 and "--plot" in run.err and "--data" in run.err and bench.text.read_bytes() == before,
                 "tune --plot on the data is refused", run)


def outputs_are_apart(bench):
    one, lost, other = (bench.folder / name for name in ("one", "lost", "other"))
    one.symlink_to("nowhere")
    lost.symlink_to("./nowhere")
    new = bench.folder / "new"
    refused(bench, "one new file twice", ("--trace", "--metrics", new), *tiny(bench, "--metrics", new, "--trace", new))
    refused(bench, "by another path", ("--trace", "--metrics"),
            *tiny(bench, "--metrics", new, "--trace", bench.folder / ".." / bench.folder.name / "new"))
    refused(bench, "by two links that lead nowhere", ("--trace", lost, "--metrics", one), *tiny(bench, "--metrics", one, "--trace", lost))
    refused(bench, "two folders", ("--export", "--checkpoint"), *tiny(bench, "--checkpoint", new, "--export", f"{new}/"))
    refused(bench, "metrics that --trace would remove", ("--metrics", "--trace"),
            *tiny(bench, "--trace", other, "--metrics", f"{other}.step-2"))
    run = bench.run(*tiny(bench, "--metrics", "/dev/null", "--trace", "/dev/null"))
    bench.tap.ok(run.status == 0, "/dev/null takes both", run)


# ---- looks that fail ----

def failing(library, path, call, at, error, log=None):
    """Returns the `env` command that makes look-up number `at` (or with 0 all) of the path fail."""
    more = {"LD_PRELOAD": str(library), "FAIL_PATH": str(path), "FAIL_CALL": call, "FAIL_AT": str(at),
            "ASAN_OPTIONS": "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")}
    more.update({"FAIL_ERRNO": str(error)} if error else {})
    more.update({"FAIL_LOG": str(log)} if log else {})
    return ["env", *(f"{name}={value}" for name, value in more.items())]


def looks_fail(bench, library, path, call, command, sign=None, errors=FAILURES[:1]):
    """Makes each look-up of the path by that call fail in turn. The command must either end with status 1 and
    one line, or end well and print `sign` as without the fault."""
    log, what = bench.folder / "looks", f"{command[1]}: {call} of {path.relative_to(bench.folder)}"
    log.unlink(missing_ok=True)
    subprocess.run([*failing(library, path, call, 0, None, log), *map(str, command)], capture_output=True, check=False)
    looks = log.stat().st_size if log.exists() else 0
    bench.tap.ok(looks >= 1, f"{what}: it is looked at", looks)
    for at in range(looks, 0, -1):
        for error in errors:
            run = Run([*failing(library, path, call, at, error), *map(str, command)])
            told = run.status == 1 and len(run.err.splitlines()) == 1 and os.strerror(error) in run.err
            bench.tap.ok(told or (sign is not None and run.status == 0 and re.search(sign, run.out)),
                         f"{what}: look {at} of {looks} fails with {errno.errorcode[error]}", run)


def failures_are_told(bench, library, model, saved):
    out, manifest, machine = bench.folder / "looked", saved / "step-4" / "manifest.json", bench.folder / "machine"
    look = lambda *asked, **more: looks_fail(bench, library, *asked, **more)
    look(model, "stat", bench.command(*tiny(bench, model=model)), sign="begins with the weights in", errors=FAILURES)
    more = bench.command(*tiny(bench, "--metrics", out, model=model))
    look(model, "opendir", more)
    look(out, "stat", more)
    resume = bench.command(*tiny(bench, "--checkpoint", saved, "--resume"))
    look(manifest, "open", resume, sign="resumed from .*step-4")
    look(saved, "opendir", resume)
    look(saved / "manifest.json", "open", resume)
    look(saved / "tidepool-origin" / "config.json", "open", resume)
    look(manifest, "open", [bench.program, "checkpoint", saved / "step-4"], sign="step-4: complete")
    look(manifest, "open", bench.command(*tiny(bench, "--export", saved / "step-4" / "out")))
    machine.write_bytes(MACHINE[1].read_bytes())
    look(machine, "access", [bench.program, "plan", "--model", bench.tiny, "--machine", machine], sign="a step takes")
    trace, page = bench.folder / "looked.trace", bench.folder / "looked.json"
    bench.run(*tiny(bench, "--trace", trace))
    perfetto = [bench.program, "trace", "perfetto", trace, "-o", page]
    look(page, "stat", perfetto)
    look(bench.folder, "opendir", perfetto)


# ---- checkpoints as folders ----

def checkpoints_are_no_folders(bench, saved):
    step = saved / "step-4"
    for name, path in (("a checkpoint", step), ("with a slash", f"{step}/")):
        for resume in ((), ("--resume",)):
            refused(bench, f"--checkpoint on {name} {' '.join(resume)}",
                    (f"--checkpoint {saved} --resume", f"--resume-from {path} --checkpoint {saved}"),
                    *tiny(bench, "--checkpoint", path, *resume))
    refused(bench, "a place of one that is not there", ("step-9", f"--checkpoint {saved} --resume"),
            *tiny(bench, "--checkpoint", saved / "step-9"))
    best = bench.folder / "best"
    best.mkdir()
    for name in ("manifest.json", "model.safetensors", "momentum.safetensors", "variance.safetensors"):
        os.link(step / name, best / name)
    refused(bench, "a checkpoint by another name", (f"--resume-from {best}",), *tiny(bench, "--checkpoint", best, "--resume"))
    run = Run(["sh", "-c", f'cd "{step}" && exec "$0" "$@"', *bench.command(*tiny(bench, "--checkpoint", "."))])
    bench.tap.ok(run.status == 2 and f"--checkpoint {saved} --resume" in run.err, "the folder one is in", run)
    ours = bench.folder / "step-7"
    run = bench.run(*tiny(bench, "--checkpoint", ours))
    bench.tap.ok(run.status == 0 and (ours / "step-4").is_dir(), "such a name where no run is, is a folder's", run)


def plain_file_in_the_way(bench):
    run_folder = bench.folder / "way"
    run_folder.mkdir()
    (run_folder / "step-2").write_text("mine")
    one_line(bench, "a plain file called step-2", 1, "way/step-2: .*move it away", *tiny(bench, "--checkpoint", run_folder))
    bench.tap.ok(content_of(run_folder) == {"step-2": b"mine"}, "it stays, and nothing is beside it", content_of(run_folder))
    (run_folder / "step-2").rename(run_folder / "step-9")
    run = bench.run(*tiny(bench, "--checkpoint", run_folder))
    bench.tap.ok(run.status == 0 and (run_folder / "step-9").read_text() == "mine", "one that is in no way is left alone", run)


# ---- what files say ----

def nothing_steers_the_terminal(bench):
    trace, damaged = bench.folder / "whole.trace", bench.folder / "damaged.trace"
    bench.run(*tiny(bench, "--trace", trace))
    lines = trace.read_bytes().splitlines(keepends=True)
    evil = b"\x1b]0;mine\x07\x1b[2J\xc2\x9b31m"
    escaped = b"\\u001b[2J\\u009b31m"
    event = next(number for number, line in enumerate(lines) if line.startswith(b'{"event":'))
    row = next(number for number, line in enumerate(lines) if line.startswith(b'{"table":"param"'))
    kind = re.sub(rb'^{"event":"[^"]*', lambda _: b'{"event":"' + escaped, lines[event])
    named = re.sub(rb'"name":"', lambda _: b'"name":"' + escaped, lines[row])
    head = re.sub(rb'"machine":({"name":)?"', lambda found: found[0] + escaped, lines[0])
    faults = {"a line": (event, evil + b"\n"), "a line's first name": (event, b'{"' + evil + b'":1}\n'),
              "an event's name": (event, b'{"event":"' + evil + b'","t":1}\n'), "an escaped one": (event, kind),
              "a param's name": (row, named), "the head": (0, head)}
    for what, (number, line) in faults.items():
        damaged.write_bytes(b"".join([*lines[:number], line, *lines[number + 1:]]))
        for command in (["summary", damaged], ["perfetto", damaged, "-o", bench.folder / "p"], ["html", damaged, "-o", bench.folder / "h"],
                        ["diff", damaged, trace]):
            found = subprocess.run([bench.program, "trace", *map(str, command)], capture_output=True, check=False)
            said = (found.stdout + found.stderr).decode(errors="surrogateescape")
            bad = [letter for letter in said if (letter < " " and letter != "\n") or "\x7f" <= letter <= "\x9f"]
            bench.tap.ok(not bad and found.stderr.count(b"\n") <= 1, f"trace {command[0]} of {what}: printable", repr(said[-400:]))


def headers_are_bounded(bench, model):
    """A file claims a header of 96 MB: the program refuses its length without reading it, so the memory stays
    that of a sound run."""
    large = bench.folder / "large"
    model_make(large)
    path, bytes_of_header = large / "model.safetensors", 96_000_000
    data = path.read_bytes()[8 + struct.unpack("<Q", path.read_bytes()[:8])[0]:]
    usual = bench.run(*tiny(bench, model=model)).peak_bytes
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", bytes_of_header) + b"{" + b'"a":[],' * 10)
        file.truncate(8 + bytes_of_header + len(data))
    run = one_line(bench, "a header of 96 MB", 1, "model.safetensors: its header would have 96000000 bytes", *tiny(bench, model=large))
    bench.tap.ok(run.peak_bytes < usual + (8 << 20), "it takes no memory", (run.peak_bytes, usual))
    header = json.loads((model / "model.safetensors").read_bytes()[8:].split(b"}}")[0] + b"}}")
    header["__metadata__"] = {"format": "pt", "notes": "n" * (3 << 20)}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    run = bench.run(*tiny(bench, model=large))
    bench.tap.ok(run.status == 0, "3 MiB of metadata are taken", run)


def main():
    bench = Bench(os.path.abspath(sys.argv[1]), False)
    library = sys.argv[2]
    model, saved = bench.folder / "model", bench.folder / "saved"
    model_make(model)
    first = bench.run(*tiny(bench, "--checkpoint", saved, "--save-every", 2, "--export", bench.folder / "exported"))
    bench.tap.ok(first.status == 0, "a run with all outputs", first)
    outputs_are_no_inputs(bench, model, saved)
    outputs_are_apart(bench)
    failures_are_told(bench, library, model, saved)
    checkpoints_are_no_folders(bench, saved)
    plain_file_in_the_way(bench)
    nothing_steers_the_terminal(bench)
    headers_are_bounded(bench, model)
    bench.tap.done()
    bench.close()


if __name__ == "__main__":
    main()
