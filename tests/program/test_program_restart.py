#!/usr/bin/env python3
"""A run is killed and started again: leftovers of its export, work that was done already, its metrics; and
file-size limits of the shell.

usage: test_program_restart.py PROGRAM      prints TAP
"""
import json
import re
import resource
import shutil
import subprocess
import sys

from test_program import MIB, Bench, Run, die_with_parent, metrics_read, one_line


def tiny(bench, *options):
    return ["--model", bench.tiny, "--data", bench.text, "--batch-tokens", 128, "--eval-every", 0, "--sample", 0,
            "--chunk-size", "256KiB", *options]


def but(options, **changes):
    """Returns the options with these values changed."""
    options = list(options)
    for name, value in changes.items():
        options[options.index(f"--{name}") + 1] = value
    return options


def contents(folder):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()}


def started(bench, mark, *options):
    """Starts a run and returns it as soon as it has printed `mark`; the run goes on."""
    process = subprocess.Popen(bench.command(*options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=die_with_parent)
    said = ""
    for line in process.stdout:
        said += line
        if mark in line:
            return process
    bench.tap.ok(False, f"a run that says {mark}", said)
    return process


def killed(process):
    process.kill()
    process.communicate()


def temporary(bench, out):
    return sorted(path.name for path in bench.folder.glob(out.name + ".tmp-*"))


def names_of(out, *processes):
    return sorted(name for process in processes for name in (f"{out.name}.tmp-{process.pid}", f"{out.name}.tmp-{process.pid}.lock"))


def kills(bench):
    """Killed runs leave the temporary folders of their exports; later runs remove them, and leave those of
    living runs."""
    out = bench.folder / "killed"
    endless = tiny(bench, "--steps", 1000000, "--export", out)
    left = []
    for _ in range(3):
        process = started(bench, "step 1/", *endless)
        left.append(temporary(bench, out) == names_of(out, process))
        killed(process)
        left.append(temporary(bench, out) == names_of(out, process))
    bench.tap.ok(all(left), "of 3 runs that are killed the last one's folder alone is left", left)
    living, dead = started(bench, "step 1/", *endless), started(bench, "step 1/", *endless)
    bench.tap.ok(temporary(bench, out) == names_of(out, living, dead), "two living runs have a folder each", temporary(bench, out))
    killed(dead)
    third = started(bench, "step 1/", *endless)
    bench.tap.ok(temporary(bench, out) == names_of(out, living, third), "what the killed one left goes, the living one's stays",
                 temporary(bench, out))
    killed(living)
    killed(third)
    run = bench.run(*tiny(bench, "--steps", 1, "--export", out))
    bench.tap.ok(run.status == 0 and out.is_dir() and not temporary(bench, out), "a run that ends leaves its model, and nothing else", run)


def done_already(bench):
    """The command of a finished run is given once more: with its own export in place, and with another model
    there."""
    out, saved = bench.folder / "done", bench.folder / "done-saved"
    options = tiny(bench, "--steps", 3, "--checkpoint", saved, "--resume", "--export", out)
    killed(started(bench, "exported ", *but(options, sample=20000)))
    was = contents(out)
    run = bench.run(*options)
    bench.tap.ok(run.status == 0 and run.err == "" and contents(out) == was and
                 len(re.findall(rf"^{out} is there already, and is this run's model: nothing to export$", run.out, re.MULTILINE)) == 1,
                 "killed after its export: the same command takes that as done, says so, and ends with 0", run)
    light = but([*options, "--save", "weights"], checkpoint=bench.folder / "light-saved", export=bench.folder / "light")
    runs = [bench.run(*light) for _ in range(2)]
    bench.tap.ok([run.status for run in runs] == [0, 0] and "light is there already, and is this run's model" in runs[1].out,
                 "so does a run that saves weights alone, which nothing is left to go on from", runs[1])
    without = [option for option in options if option != "--resume"]
    one_line(bench, "without --resume", 1, "already holds .*step-3; add --resume", *without)
    mine, other = out.rename(bench.folder / "mine"), bench.folder / "other"
    run = bench.run(*tiny(bench, "--seed", 7, "--steps", 3, "--export", other))
    other.rename(out)
    was = contents(out)
    run = one_line(bench, "another seed's model in its place", 2, "it is there already, and this run would not write .*/model.safetensors so",
                   *options)
    bench.tap.ok(contents(out) == was, "another seed's model stays", run)
    shutil.rmtree(out)
    mine.rename(out)
    run = one_line(bench, "more steps", 2, "it is there already; name a folder", *but(options, steps=4))
    bench.tap.ok("step 4/" not in run.out and not (saved / "step-4").exists(), "are not taken", run)
    config = out / "config.json"
    config.write_text(config.read_text().replace('"n_head": 4', '"n_head": 2'))
    run = one_line(bench, "another config.json", 2, "would not write .*/config.json so", *options)
    bench.tap.ok("resumed from" not in run.out, "is met before anything is loaded", run)
    (bench.folder / "empty").mkdir()
    one_line(bench, "an empty folder", 2, "would not write .*/empty/config.json so", *but(options, export=bench.folder / "empty"))
    bench.tap.ok(not list((bench.folder / "empty").iterdir()) and not list(bench.folder.glob("*.tmp-*")), "and nothing is left")


def metrics_go_on(bench):
    """test_program.py's crashes check the lines of runs that go on, test_program_output.c lines that others have written."""
    metrics, saved = bench.folder / "metrics.jsonl", bench.folder / "metrics-saved"
    options = tiny(bench, "--metrics", metrics)
    bench.run(*options, "--checkpoint", saved, "--steps", 4)
    was = metrics.read_text()
    run = bench.run(*options, "--checkpoint", saved, "--resume", "--steps", 4)
    bench.tap.ok(run.status == 0 and len(was.splitlines()) == 4 and metrics.read_text() == was, "a run that is done changes no line", run)
    run = bench.run(*options, "--steps", 2, "--resume", "--checkpoint", bench.folder / "metrics-none")
    bench.tap.ok(run.status == 0 and [line["step"] for line in metrics_read(metrics)] == [1, 2],
                 "one with --resume that finds no checkpoint has lines of its own alone", run)


def limited(size):
    """Returns a function for the child process that sets a file-size limit, as ulimit -f does."""
    def limit():
        die_with_parent()
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return limit


def file_size_limit(bench):
    """Where a file-size limit stops a file from growing, the message names the limit. It holds for device
    slots too: they are a memory file."""
    named, page = r"file-size limit \(ulimit -f\)", limited(4096)
    nano = ["--model", "gpt2-nano", "--batch-tokens", 64, "--seq-len", 64, "--eval-every", 0, "--sample", 0]
    real = [*nano, "--data", bench.text, "--steps", 1, "--chunk-size", "256KiB", "--device-memory", "9MiB"]
    for what, option, limit, options in (
            ("a trace", "--trace", page, [*nano, "--device", "null", *bench.machine, "--steps", 3]),
            ("device slots", "--metrics", page, real),
            ("a checkpoint", "--checkpoint", limited(9 * MIB), [*real, "--save-patience", 0]), ("an export", "--export", limited(9 * MIB), real)):
        path = bench.folder / f"limited{option}-{what[:3]}"
        run = Run(bench.command(*options, option, path), limits=limit)
        bench.tap.ok(run.status == 1 and re.search(named, run.err) is not None and not path.is_dir() and not temporary(bench, path),
                     f"{what}: status 1, the limit is named, no part is left", run)
    shutil.copy(bench.text, bench.folder / "limited-out")
    with open(bench.folder / "limited-out", "ab") as out:
        done = subprocess.run([bench.program, "plan", "--help"], stdout=out, stderr=subprocess.PIPE, text=True, preexec_fn=page, check=False)
    bench.tap.ok(done.returncode == 1 and re.search(f"standard output could not be written: .*{named}", done.stderr) is not None,
                 "standard output, of any command: the same", done)


def little_memory(bench):
    def limit():
        die_with_parent()
        resource.setrlimit(resource.RLIMIT_AS, (300 * MIB, 300 * MIB))
    if Run([bench.program, "--version"], limits=limit).status != 0:
        bench.tap.skip("info on little memory", "this build needs more to start")
        return
    command = [bench.program, "info", "--device", "host"]
    run = Run(command, limits=limit)
    bench.tap.ok(run.status == 0 and run.err == "" and re.search("^not measured: products, memory, link; .", run.out, re.MULTILINE) is not None and
                 "processor " in run.out and "built with" in run.out, "info on little memory tells what it could not measure, and the rest", run)
    run = Run([*command, "--json"], limits=limit)
    told = json.loads(run.out) if run.status == 0 else {}
    bench.tap.ok(told.get("rates", "") is None and told["rates_why_not"] != "" and told["machine"]["processors"] > 0, "so does --json", run)


def main(program):
    bench = Bench(program, False)
    try:
        kills(bench)
        done_already(bench)
        metrics_go_on(bench)
        file_size_limit(bench)
        little_memory(bench)
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main(sys.argv[1])
