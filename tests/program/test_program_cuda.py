#!/usr/bin/env python3
"""The program on a GPU's device: what it accepts, prints and refuses.

usage: test_program_cuda.py PROGRAM FOLDER LIBDIR BINDIR      prints TAP
FOLDER holds a fake libtidepool_cuda.so; fake_gpu/fake_gpu_module.c lists what TIDE_FAKE_GPU can tell it to
do. LIBDIR and BINDIR are the installation's, relative to its prefix.
"""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from test_program import MIB, Bench, Run

GIB = 1 << 30


def fake_gpu(words):
    """Sets how the fake module behaves in the runs that follow. "strict" makes a run fail that uses a kernel
    of the CPU's."""
    os.environ["TIDE_FAKE_GPU"] = "strict " + words


def train(bench, *options, steps=1):
    return bench.run("--data", bench.text, "--sample", 0, "--eval-every", 0, "--steps", steps, "--batch-tokens", 512,
                     "--threads", 1, *options)


def check_info(bench):
    fake_gpu("memory=%d" % GIB)
    run = Run([bench.program, "info", "--json", "--threads", "1"])
    info = json.loads(run.out) if run.status == 0 else {"cuda": {"gpus": [{}]}, "rates": {}, "devices": []}
    gpu = info["cuda"]["gpus"][0]
    bench.tap.ok(info["devices"] == ["host", "null", "cuda:0", "cuda:1"] and gpu.get("name") == "Stand-in" and
                 gpu.get("granularity_bytes") == 2 * MIB and info["cuda"]["why_not"] == "",
                 "info lists the GPUs", run)
    rates = info["rates"]
    bench.tap.ok(rates.get("device") == "cuda:0" and rates["threads"] == 1 and
                 all(rates[name] > 0 for name in ("bf16_flops_per_second", "fp16_flops_per_second", "fp32_flops_per_second",
                                                  "device_bytes_per_second", "adam_bytes_per_second", "h2d_bytes_per_second",
                                                  "d2h_bytes_per_second", "host_adam_bytes_per_second", "map_ns", "unmap_ns")),
                 "info measures the GPU that auto takes", run)
    fake_gpu("no-driver")
    run = Run([bench.program, "info", "--threads", "1"])
    bench.tap.ok(run.status == 0 and "no GPU      no driver on purpose" in run.out and "on the host device" in run.out,
                 "info says why there is no GPU and measures the host", run)


def check_places(bench):
    """Where the program looks for its module when TIDEPOOL_MODULES is not set. The fake's "no-driver" message
    shows that it found it."""
    module, (libdir, bindir) = Path(os.environ["TIDEPOOL_MODULES"]) / "libtidepool_cuda.so", sys.argv[3:5]
    environment = {name: value for name, value in os.environ.items() if name not in ("TIDEPOOL_MODULES", "LD_LIBRARY_PATH")}
    environment["TIDE_FAKE_GPU"] = "no-driver"

    def laid_out(name, program_folder, module_folder):
        for folder in (program_folder, module_folder):
            (bench.folder / name / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy2(bench.program, bench.folder / name / program_folder / "tidepool")
        shutil.copy2(module, bench.folder / name / module_folder)
        return bench.folder / name / program_folder / "tidepool"

    def said(program, folder):
        return subprocess.run([program, "train", "--device", "cuda:0", "--model", bench.tiny, "--data", bench.text], cwd=folder,
                              env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stderr

    built = laid_out("build", "tools", "kernels/cuda")
    installed = laid_out("installed", bindir, libdir)
    moved = Path(shutil.copytree(bench.folder / "installed", bench.folder / "moved")) / bindir / "tidepool"
    link = bench.folder / "link"
    link.symlink_to(installed)
    alone = laid_out("alone", "bin", "elsewhere")
    for name, program, folder in (("in a build folder", built, built.parent), ("from another folder", built, "/"),
                                  ("installed", installed, "/"), ("installed and moved", moved, "/"),
                                  ("through a symbolic link", link, "/"), ("by a relative name", f"./{link.name}", link.parent)):
        err = said(program, folder)
        bench.tap.ok("no driver on purpose" in err, f"the program finds its module: {name}")
        if "no driver on purpose" not in err:
            print("# " + err.strip())
    err = said(alone, "/")
    bench.tap.ok(f"no CUDA module: libtidepool_cuda.so is not in {alone.parent}, " in err and err.count("\n") == 1,
                 "without a module one line says where it looked")


def check_choice(bench):
    fake_gpu("")
    run = train(bench, "--model", bench.tiny)
    bench.tap.ok(run.status == 0 and "\ndevice cuda:0, " in run.out and "cuda:0 is Stand-in" in run.out,
                 "auto takes the GPU", run)
    cases = [("", ("--chunk-size", "1MiB"), "chunks of 1048576 bytes: a GPU takes 2097152 or more"),
             ("", ("--checks", "on"), "a GPU can't do --checks on"),
             ("", ("--link-bandwidth", "1GB/s"), "a GPU can't do --link-bandwidth"),
             ("no-gpu", (), "the driver sees no GPU")]
    for words, options, reason in cases:
        fake_gpu(words)
        run = train(bench, "--model", bench.tiny, *options)
        bench.tap.ok(run.status == 0 and f"auto takes the host: {reason}\n" in run.out and "\ndevice host, " in run.out,
                     f"auto takes the host and says why: {reason}", run)


def check_refusals(bench):
    cases = [("", ("--checks", "on"), 2, "--checks on needs --device host"),
             ("", ("--delays", "1"), 2, "--delays needs --device host"),
             ("", ("--link-bandwidth", "1GB/s"), 2, "--link-bandwidth needs --device host"),
             ("", ("--chunk-size", "1MiB"), 2, "chunk size 1048576 is too small"),
             ("no-driver", (), 1, "no driver on purpose"),
             ("no-vmm", (), 1, "has no virtual memory management"),
             ("memory=%d" % MIB, (), 1, "bytes is too small: op "),
             ("memory=%d" % (8 * MIB), ("--device-memory", "1GiB"), 1, "is too large: cuda:0 has 8388608 bytes free")]
    for words, options, status, message in cases:
        fake_gpu(words)
        options = options if "--chunk-size" in options else (*options, "--chunk-size", "2MiB")
        run = train(bench, "--model", "gpt2-nano", "--device", "cuda:0", *options)
        bench.tap.ok(run.status == status and message in run.err and run.err.count("\n") == 1,
                     f"refused in one line: {message}", run)


def check_budget(bench):
    fake_gpu("memory=%d" % (32 * MIB))
    run = train(bench, "--model", "gpt2-nano", "--device", "cuda:0", "--chunk-size", "2MiB")
    budget = re.search(r"device budget +([\d,]+) B", run.out)
    free = re.search(r"free on the GPU +([\d,]+) B .* less 512", run.out)
    default = int(budget.group(1).replace(",", "")) if budget else 0
    bench.tap.ok(run.status == 0 and free and free.group(1) == f"{32 * MIB:,}" and 31 * MIB < default < 32 * MIB,
                 "the default budget is what the GPU has free, less the page tables of the host's, and the table says so", run)
    fake_gpu("slow")
    run = train(bench, "--model", bench.tiny, "--device", "cuda:0")
    bench.tap.ok(run.status == 0 and run.err == "" and sum("of pinned host slots in 1." in line for line in run.made) == 1,
                 "pinning that takes more than a second is told in one line", run)


def check_threads(bench):
    fake_gpu("unasked")
    for given, words in ((), ""), (("--threads", 2), "nobody asked for 2 threads"):
        run = bench.run("--data", bench.text, "--model", bench.tiny, "--device", "cuda:0", "--sample", 0, "--eval-every", 0,
                        "--steps", 1, "--batch-tokens", 512, *given)
        bench.tap.ok((run.status == 0) != bool(words) and words in run.err,
                     f"how many threads the device takes is {'as the user says' if given else 'its own choice'}", run)


def main():
    os.environ["TIDEPOOL_MODULES"] = str(Path(sys.argv[2]).resolve())
    bench = Bench(sys.argv[1], False, device="")
    try:
        for check in (check_info, check_places, check_choice, check_refusals, check_budget, check_threads):
            check(bench)
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main()
