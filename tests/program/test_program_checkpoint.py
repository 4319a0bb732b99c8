#!/usr/bin/env python3
"""`tidepool train --resume-from`, the disk space that checkpoints need, and `tidepool checkpoint`.

usage: test_program_checkpoint.py PROGRAM      prints TAP
"""
import json
import re
import shutil
import struct
import subprocess
import sys

from test_program import Bench, Run, metrics_read, one_line, trajectory, weights


def tiny(bench, *options):
    return ["--model", bench.tiny, "--data", bench.text, "--batch-tokens", 128, "--eval-every", 0, "--sample", 0, *options]


def damage(folder, name="momentum.safetensors"):
    """Flips a bit in the middle of the file and keeps the file's size."""
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def resumes_from(bench, whole):
    """The newest of three checkpoints is damaged: a single command resumes from the one before, and reaches
    the bits of a run that was never stopped."""
    saved, metrics = bench.folder / "saved", bench.folder / "whole-metrics"
    every = ("--save-every", 2, "--keep", 0)
    bench.run(*tiny(bench, "--steps", 8, "--checkpoint", whole, "--metrics", metrics, *every))
    bench.tap.ok(names(whole) == ["step-2", "step-4", "step-6", "step-8"], "a run saves every two steps", names(whole))
    shutil.copytree(whole, saved)
    shutil.rmtree(saved / "step-8")
    damage(saved / "step-6")
    run = one_line(bench, "a damaged newest checkpoint is refused, and the way on named", 1,
                   "momentum.safetensors: damaged.*--resume-from .*saved/step-4 ", *tiny(bench, "--steps", 8, "--checkpoint",
                                                                                        saved, "--resume", *every))
    again = bench.folder / "again-metrics"
    run = bench.run(*tiny(bench, "--steps", 8, "--checkpoint", saved, "--resume-from", saved / "step-4", "--metrics", again, *every))
    bench.tap.ok(run.status == 0 and "step-6 is damaged: set aside as" in run.out and
                 re.search(r"resumed from .*saved/step-4\n", run.out), "one command goes on from the one before", run)
    bench.tap.ok(names(saved) == ["step-2", "step-4", "step-6", "step-6.damaged", "step-8"], "nothing is lost", names(saved))
    bench.tap.ok(weights(saved, 8) == weights(whole, 8), "it ends with the bits of a run that was never stopped")
    bench.tap.ok(trajectory(again) == {step: line for step, line in trajectory(metrics).items() if step > 4},
                 "and every step on the way is the same", again.read_text())
    damage(saved / "step-8")
    damage(saved / "step-6", "manifest.json")
    run = bench.run(*tiny(bench, "--steps", 6, "--checkpoint", saved, "--resume-from", str(saved / "step-4") + "/", *every))
    bench.tap.ok(run.status == 0 and names(saved) == ["step-2", "step-4", "step-6", "step-6.damaged", "step-6.damaged-2",
                                                      "step-8.damaged"], "what was set aside before stays", (run, names(saved)))


def refusals(bench, whole):
    saved, other = bench.folder / "refused", bench.folder / "other"
    shutil.copytree(whole, saved)
    before = names(saved)
    run = tiny(bench, "--steps", 8)
    one_line(bench, "a later checkpoint that is sound", 1, "step-8 is later and not damaged; move it away, or",
             *run, "--checkpoint", saved, "--resume-from", saved / "step-4")
    damage(saved / "step-8")
    one_line(bench, "a sound one behind a damaged one", 1, "step-6 is later and not damaged",
             *run, "--checkpoint", saved, "--resume-from", saved / "step-4")
    damage(saved / "step-6")
    damage(saved / "step-4")
    one_line(bench, "one that is damaged itself", 1, "step-4/momentum.safetensors: damaged",
             *run, "--checkpoint", saved, "--resume-from", saved / "step-4")
    bench.tap.ok(names(saved) == before, "what is refused leaves the folder as it was", names(saved))
    one_line(bench, "a folder with another run's checkpoints", 1, "already holds .*step-8",
             *run, "--checkpoint", saved, "--resume-from", whole / "step-4")
    one_line(bench, "none there", 1, "step-5/manifest.json: the file is missing", *run, "--resume-from", whole / "step-5")
    one_line(bench, "beside --resume", 2, "give one of them", *run, "--checkpoint", saved, "--resume", "--resume-from",
             whole / "step-4")
    done = bench.run(*tiny(bench, "--steps", 8), "--checkpoint", other, "--resume-from", whole / "step-4")
    bench.tap.ok(done.status == 0 and names(other) == ["step-8"], "another folder takes what is saved", done)
    done = bench.run(*tiny(bench, "--steps", 8), "--resume-from", whole / "step-4")
    bench.tap.ok(done.status == 0 and "resumed from" in done.out, "without --checkpoint nothing is saved", done)


def new_data(bench):
    """--new-data keeps params, moments and step number, and reads other data from its first batch on.
    Expected values: in fp32 an exported folder holds exactly the checkpoint's params, so a run that starts
    from that folder on the new data must compute the same losses."""
    old, new, folder, other = (bench.folder / f"new-data-{name}" for name in ("old", "new", "folder", "text"))
    other.write_bytes(bench.text.read_bytes()[::-1])
    fp32, every = ("--dtype", "fp32"), ("--save-every", 2, "--keep", 0, "--dtype", "fp32")
    on_other = [other if option == bench.text else option for option in tiny(bench)]
    first = bench.run(*tiny(bench, "--steps", 4, "--checkpoint", old, "--export", folder, *every))
    bench.tap.ok(first.status == 0 and names(old) == ["step-2", "step-4"], "a run on one text", first)
    goes_on = [*on_other, "--steps", 8, "--resume-from", old / "step-4"]
    one_line(bench, "another text is refused, and the option that takes it named", 1,
             "data_fingerprint 0x.*must be equal; .*give --resume-from and the checkpoint with --new-data", *goes_on, *fp32)
    one_line(bench, "with --resume too", 1, "data_fingerprint 0x.*--new-data", *on_other, "--steps", 8, "--checkpoint", old, "--resume",
             *every)
    one_line(bench, "--new-data without --resume-from", 2, "--new-data needs --resume-from", *tiny(bench, "--steps", 8, "--new-data"))

    truth, looked, whole, again = (bench.folder / f"new-data-{name}.jsonl" for name in ("truth", "looked", "whole", "again"))
    at_rest = ("--lr", 0, *fp32)
    bench.run(*[folder if option == bench.tiny else option for option in on_other], "--steps", 4, "--metrics", truth, *at_rest)
    run = bench.run(*goes_on, *at_rest, "--new-data", "--metrics", looked)
    expected = [(line["loss"], line["grad_norm"]) for line in metrics_read(truth)]
    found = [(line["loss"], line["grad_norm"]) for line in metrics_read(looked)]
    bench.tap.ok(run.status == 0 and len(found) == 4 and found == expected, "its batches are the first ones of the other text",
                 (expected, found))
    run = bench.run(*goes_on, "--new-data", "--checkpoint", new, "--metrics", whole, *every)
    bench.tap.ok(run.status == 0 and f"new data: the order of {other} begins with step 5\n" in run.out and
                 "resumed from" in run.out and names(new) == ["step-6", "step-8"], "and the run's head says so", run)
    bits = weights(new, 8)
    shutil.rmtree(new / "step-8")
    run = bench.run(*on_other, "--steps", 8, "--checkpoint", new, "--resume", "--metrics", again, *every)
    bench.tap.ok(run.status == 0 and weights(new, 8) == bits and
                 trajectory(again) == {step: line for step, line in trajectory(whole).items() if step > 6},
                 "a later --resume of it goes on to the last bit", run)
    look = Run([bench.program, "checkpoint", str(new)])
    said = json.loads(Run([bench.program, "checkpoint", str(new), "--json"]).out)
    bench.tap.ok("taken new after step 4" in look.out and said["looked_at"]["data_first_step"] == 4,
                 "tidepool checkpoint tells since when", look)
    one_line(bench, "the text before is another one now", 1, "data_fingerprint", *tiny(bench, "--steps", 8, "--resume-from", new / "step-6",
                                                                                      *fp32))
    run = bench.run(*tiny(bench, "--steps", 9, "--resume-from", new / "step-6", "--new-data", "--checkpoint", bench.folder / "third", *every))
    manifest = json.loads((bench.folder / "third" / "step-9" / "manifest.json").read_text())
    bench.tap.ok(run.status == 0 and manifest["state"]["data_first_step"] == 6, "which may be taken anew in its turn", run)


def unknown_state(bench, whole):
    """A checkpoint of a later tidepool: the message names the members that this version does not know, and
    does not call it damaged."""
    saved = bench.folder / "unknown"
    shutil.copytree(whole, saved)
    manifest = saved / "step-8" / "manifest.json"
    head, text = manifest.read_text()[:21], manifest.read_text()[21:]
    text = text.replace('"state": {', '"state": {\n  "moe_balance": 0.5,')
    manifest.write_text(head[:11] + f"{crc32c(text.encode()):08x}" + head[19:] + text)
    one_line(bench, "a field of the state that is not known", 1, 'step-8(/manifest.json)?: this tidepool does not know training state '
             'field "moe_balance"', *tiny(bench, "--steps", 9, "--checkpoint", saved, "--resume"))
    one_line(bench, "and it is not set aside as damaged", 1, "step-8 is later and not damaged", *tiny(
        bench, "--steps", 9, "--checkpoint", saved, "--resume-from", saved / "step-6"))
    bench.tap.ok(names(saved) == names(whole), "the folder is as it was", names(saved))


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def room(bench):
    folder = bench.folder / "room"
    one_line(bench, "more checkpoints than any disk holds", 1,
             r"--checkpoint .*room: 1000000000000 saves of .*B with --keep 0 need .*B of space there, .*B is free; take "
             "--keep 1, which needs .*B, or another folder", *tiny(bench, "--steps", 10**12, "--save-every", 1, "--keep", 0,
                                                                    "--checkpoint", folder))
    bench.tap.ok(not folder.exists(), "it leaves no folder behind")


def small_disk(bench):
    """A disk of 3 MiB (where mounting is allowed) has space for two checkpoints of 1.4 MiB."""
    disk = bench.folder / "disk"
    disk.mkdir()
    probe = subprocess.run(["unshare", "-rm", "true"], stderr=subprocess.DEVNULL, check=False) if shutil.which("unshare") else None
    if probe is None or probe.returncode != 0:
        bench.tap.skip("a small disk", "mounting is not allowed here")
        return

    def train(*options):
        run = bench.command(*tiny(bench, "--steps", 4, "--save-every", 1, "--checkpoint", disk / "saved", *options))
        return ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=3m tmpfs "{disk}" && "$@"', "sh", *run]
    one_line(bench, "three do not fit on a disk for two", 1, "4 saves of 1.4 MiB with --keep 2 need 4.2 MiB of space there, "
             "3 MiB is free; take --keep 1, which needs 2.8 MiB, or --save weights, which needs 1.4 MiB, or another folder", command=train())
    run = Run(train("--keep", 1))
    bench.tap.ok(run.status == 0, "and --keep 1, which the refusal names, does", run)
    one_line(bench, "an export takes its part of the same disk", 1, "need 2.8 MiB of space there, 2.* MiB is free beside what --export needs; "
             "take --save weights", command=train("--keep", 1, "--export", disk / "out"))


def saves_weights(bench, whole):
    """--save weights writes a third of the bytes, with the same params. A run that resumes from it starts
    with zero moments."""
    light, on = bench.folder / "light", bench.folder / "on"
    run = bench.run(*tiny(bench, "--steps", 8, "--checkpoint", light, "--save", "weights"))
    bench.tap.ok(run.status == 0 and names(light / "step-8") == ["manifest.json", "model.safetensors"] and
                 (light / "step-8" / "model.safetensors").read_bytes() == (whole / "step-8" / "model.safetensors").read_bytes(),
                 "--save weights saves the params alone, the same", run)
    one_line(bench, "--resume from it", 1, "holds weights alone.*--resume-from .*light/step-8 begins",
             *tiny(bench, "--steps", 9, "--checkpoint", light, "--resume"))
    run = bench.run(*tiny(bench, "--steps", 9, "--checkpoint", on, "--resume-from", light / "step-8"))
    bench.tap.ok(run.status == 0 and "changed since: weights alone were saved: the optimizer begins anew" in run.out and
                 names(on) == ["step-9"] and len(names(on / "step-9")) == 4, "--resume-from begins with zero moments, and says so", run)
    look = Run([bench.program, "checkpoint", str(light)])
    bench.tap.ok(look.status == 0 and "fp32 params alone" in look.out and len(re.findall("right checksum", look.out)) == 2,
                 "tidepool checkpoint tells what it holds", look)
    one_line(bench, "--save without a folder", 2, "--save needs --checkpoint", *tiny(bench, "--steps", 1, "--save", "weights"))


def looks(bench, whole):
    """`tidepool checkpoint` on sound checkpoints, and with each file damaged in turn."""
    def look(*options):
        return Run([bench.program, "checkpoint", *map(str, options)])
    run = look(whole)
    bench.tap.ok(run.status == 0 and run.err == "" and len(re.findall(r"^  step-\d+ .* complete$", run.out, re.MULTILINE)) == 4 and
                 len(re.findall("right checksum", run.out)) == 4 and
                 f"\n\n{whole}/step-8: complete" in run.out,
                 "a whole folder", run)
    said = json.loads(look(whole, "--json", "--step", 6).out)
    tensors = (whole / "step-6" / "model.safetensors").read_bytes()
    params = (len(tensors) - 8 - struct.unpack("<Q", tensors[:8])[0]) // 4
    at = said["looked_at"]
    bench.tap.ok([entry["step"] for entry in said["checkpoints"]] == [2, 4, 6, 8] and at["params"] == params and at["step"] == 6 and
                 at["layers"] == 2 and at["state"] == "complete" and at["batch_tokens"] == 128, "the same as JSON", said)
    bench.tap.ok({entry["name"]: entry["bytes"] for entry in at["files"]} ==
                 {path.name: path.stat().st_size for path in (whole / "step-6").iterdir()}, "with each file's size", said)
    for name in ("manifest.json", "momentum.safetensors"):
        saved = bench.folder / ("looked-" + name)
        shutil.copytree(whole, saved)
        damage(saved / "step-8", name)
        damage(saved / "step-6", name)
        run = look(saved)
        bench.tap.ok(run.status == 1 and len(run.err.splitlines()) == 1 and name in run.err and
                     run.out.endswith(f"    tidepool train ... --resume-from {saved}/step-4\n") and
                     len(re.findall("right checksum", run.out)) == (0 if name == "manifest.json" else 3),
                     f"a flipped bit in {name} is found, and the newest whole one named", run)
        quick = look(saved, "--quick")
        bench.tap.ok(quick.status == (name == "manifest.json"), "which --quick does not see but in the manifest", quick)
    bench.tap.ok(look(saved / "step-4").status == 0, "a whole one by its path", run)
    (saved / "step-8" / "manifest.json").unlink()
    run = look(saved)
    bench.tap.ok(run.status == 1 and "step-8" in run.out and "remains, without a manifest" in run.out, "remains are told of", run)
    for name, status, part, options in (("no folder", 1, "there is no such folder", [bench.folder / "none"]),
                                        ("an empty one", 1, "holds no checkpoint", [bench.folder / "disk"]),
                                        ("no such step", 1, "holds no step-5", [whole, "--step", 5]),
                                        ("no operand", 2, "DIR is required", [])):
        one_line(bench, name, status, part, command=[bench.program, "checkpoint", *map(str, options)])


def main(program):
    bench = Bench(program, False)
    whole = bench.folder / "whole"
    try:
        resumes_from(bench, whole)
        refusals(bench, whole)
        new_data(bench)
        unknown_state(bench, whole)
        room(bench)
        small_disk(bench)
        looks(bench, whole)
        saves_weights(bench, whole)
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main(sys.argv[1])
