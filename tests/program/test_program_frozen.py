#!/usr/bin/env python3
"""`tidepool train --freeze`: refusals, and the same or another set of frozen params after a resume.

usage: test_program_frozen.py PROGRAM      prints TAP
"""
import json
import re
import shutil
import sys

from test_program import MACHINE, Bench, one_line, trajectory, weights
from test_program_weights import file_read

STEPS = 4
LAST = ("--freeze", "w[tp]e.weight", "--freeze=h.0.*", "--freeze", "ln_f.*")
ENDS = ("--freeze", "w?e.weight")


def tiny(bench, *options):
    return ["--model", bench.tiny, "--data", bench.text, "--batch-tokens", 128, "--micro-batch", 1, "--steps", STEPS, "--eval-every", 0,
            "--sample", 0, "--chunk-size", "256KiB", "--checks", "on", *options]


def refusals(bench):
    folder, metrics = bench.folder / "refused", bench.folder / "kept"
    metrics.write_text("as it was\n")
    outputs = ["--checkpoint", folder, "--metrics", metrics]
    for name, part, options in (
            ("a pattern that matches nothing", r"freeze h\.2\.\*: no tensor of .* has such a name", ["--freeze", "h.2.*"]),
            ("everything frozen, by parts", "freeze: all 28 tensors are frozen", ["--freeze", "w*", "--freeze", "h.*", "--freeze", "ln_f.*"])):
        one_line(bench, name, 2, part, *tiny(bench, *options, *outputs))
        one_line(bench, name + ", predicted", 2, part, "--model", bench.tiny, "--device", "null", *MACHINE, *options)
    one_line(bench, "an empty pattern", 2, "--freeze .*must not be empty", *tiny(bench, "--freeze=", *outputs))
    bench.tap.ok(not folder.exists() and metrics.read_text() == "as it was\n", "what is refused leaves nothing and loses nothing")
    run = bench.run("--help")
    bench.tap.ok(re.search(r"--freeze GLOB\s.*\(repeatable\)", run.out, re.DOTALL), "--help tells of --freeze", run)


def resumed(bench, name, saved, options, said):
    """Resumes with other options, checks the lines about what changed, and returns the trajectory."""
    metrics = bench.folder / f"resumed-{name}"
    at = tiny(bench, *options, "--checkpoint", saved, "--resume", "--metrics", metrics)
    run = bench.run(*at)
    told = [line for line in run.out.splitlines() if line.startswith("changed since:")]
    bench.tap.ok(run.status == 0 and told == said, f"{name}: it says what changed, in a line", run)
    return trajectory(metrics) if run.status == 0 else {}


def half_run(bench, name, *options):
    """Trains a whole run and keeps its checkpoint of step 2. Returns that one's folder, and the whole run's
    trajectory and weights."""
    half, metrics = bench.folder / f"{name}-half", bench.folder / f"{name}-metrics"
    bench.run(*tiny(bench, *options, "--checkpoint", half, "--save-every", 2, "--keep", 0, "--metrics", metrics))
    files_of_whole = weights(half, STEPS)
    shutil.rmtree(half / f"step-{STEPS}")
    return half, trajectory(metrics), files_of_whole


def resumes(bench):
    half, whole, files_of_whole = half_run(bench, "ends", *ENDS)
    thaw, other = (shutil.copytree(half, bench.folder / name) for name in ("thaw", "other"))
    lines = resumed(bench, "the same set", half, [*ENDS, "--prefetch", "off"], [])
    bench.tap.ok(lines == {step: whole[step] for step in (3, 4)} and weights(half, STEPS) == files_of_whole,
                 "the same set: on to the same bits", lines)

    lines = resumed(bench, "none frozen any more", thaw, [],
                    ["changed since: frozen -> trained, with zero moments: 2 params (wte.weight, wpe.weight)"])
    bench.tap.ok(3 in lines and lines[3][0] == whole[3][0] and lines[3][1] > whole[3][1],
                 "none frozen any more: the same loss, the norm of more", lines)
    manifest = json.loads((thaw / "step-4" / "manifest.json").read_text())
    bench.tap.ok("frozen" not in manifest and len(file_read(thaw / "step-4" / "variance.safetensors")) == 28,
                 "none frozen any more: a checkpoint like any other", manifest)

    none, unfrozen, _ = half_run(bench, "none")
    lines = resumed(bench, "frozen from now on", none, LAST,
                    ["changed since: trained -> frozen, moments ignored: 16 params (wte.weight, wpe.weight, ...)"])
    bench.tap.ok(3 in lines and lines[3][0] == unfrozen[3][0] and lines[3][1] < unfrozen[3][1],
                 "frozen from now on: the same loss, the norm of less", lines)

    lines = resumed(bench, "another set", other, ["--freeze", "wpe.weight", "--freeze", "h.0.*", "--clip", 0.5],
                    ["changed since: clip 1 -> 0.5",
                     "changed since: frozen -> trained, with zero moments: 1 param (wte.weight); trained -> frozen, moments "
                     "ignored: 12 params (h.0.ln_1.weight, h.0.ln_1.bias, ...)"])
    bench.tap.ok(3 in lines and lines[3][0] == whole[3][0], "another set: the same loss", lines)


def trace(bench):
    path = bench.folder / "trace"
    run = bench.run(*tiny(bench, *LAST, "--trace", path))
    lines = map(json.loads, path.read_text().splitlines()) if run.status == 0 else []
    settings = {line["name"]: line["value"] for line in lines if line.get("table") == "setting"}
    bench.tap.ok("frozen: tensors named w[tp]e.weight h.0.* ln_f.*\n" in run.out and settings.get("freeze") == "w[tp]e.weight h.0.* ln_f.*",
                 "a run that trains the last block says what is frozen, and so does its trace", run)


def moved(bench):
    """With all but the last block frozen, only that block's gradients are copied from the device. Lower
    blocks' activations are never copied out, since backward does not need them."""
    metrics, width = bench.folder / "moved", 768
    run = bench.run("--model", "gpt2", "--device", "null", *MACHINE, "--steps", 3, "--chunk-size", "4MiB",
                    "--batch-tokens", 4096, "--device-memory", "300MiB", "--host-memory", "8GiB", "--freeze", "w*",
                    "--freeze", "ln_f.*", "--freeze", "h.[0-9].*", "--freeze", "h.10.*", "--metrics", metrics)
    step = json.loads(metrics.read_text().splitlines()[-1]) if run.status == 0 else {"d2h_bytes": 0}
    bench.tap.ok(step["d2h_bytes"] == 2 * (12 * width * width + 13 * width),
                 f"a step moves the trained block's gradients out, and nothing else: {step['d2h_bytes']} bytes", run)


def main(program):
    bench = Bench(program, False)
    try:
        refusals(bench)
        resumes(bench)
        trace(bench)
        moved(bench)
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main(sys.argv[1])
