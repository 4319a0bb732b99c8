#!/usr/bin/env python3
"""Figures of `tidepool train` on a GPU against what the same machine allows, and against PyTorch.

usage: train.py PROGRAM [--device cuda:0] [--quick] [--no-peers] [--out FILE] [CASE ...]

  resident   gpt2 and gpt2-xl, bf16, T = 1024, no recompute: tokens a second with the manager and with --manager off, model
             FLOP utilisation against --peak, and PyTorch compiled on the same GPU (gpt2)
  budget     gpt2-xl with a half and a quarter of its model data as device budget: the step against the longest of compute
             (of the resident run), link (bytes moved over what a plain copy carries) and Adam (its seconds)
  largest    GPTs that grow until one does not train any more, with all of the device and --host-memory
  offload    the largest GPT that PyTorch's FSDP2 with CPU offload trains here, by both

Runs in turn, ours and theirs; a figure is the median of a run's steps from the fourth on. --quick takes gpt2-nano, short
sequences and no peers: to see that all runs (any device). Prints a line a figure; one JSON object goes to --out. Exit status 1
if a run failed or a figure misses its bound.
"""
import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SETTLED_STEP = 4
GIB = 1 << 30
PEER = Path(__file__).with_name("gpt2_torch.py")

# name: layers, heads, width. Vocabulary 50257, 1024 positions, as the program's presets.
MODELS = {"gpt2": (12, 12, 768), "gpt2-xl": (48, 25, 1600), "gpt2-nano": (6, 4, 256)}


def params_of(layers, width, vocabulary=50257, positions=1024):
    return layers * (12 * width * width + 13 * width) + (vocabulary + positions + 2) * width


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.figures, self.failed = [], False
        generator = random.Random(1)
        self.text = folder / "text"
        self.text.write_bytes(bytes(generator.randrange(32, 127) for _ in range(1 << 22)))
        self.runs = 0

    def figure(self, name, value, unit, bound=None, least=True, **more):
        """`bound`: what the figure must reach (least) or must not pass."""
        met = None if bound is None or value is None else (value >= bound if least else value <= bound)
        self.failed |= met is False or (value is None and bound is not None)
        self.figures.append({"name": name, "value": value, "unit": unit, "bound": bound, "met": met, **more})
        told = "not measured" if value is None else f"{value:.4g} {unit}"
        wanted = "" if bound is None else f"  ({'at least' if least else 'at most'} {bound:g}: {'met' if met else 'MISSED'})"
        print(f"{name:58} {told}{wanted}", flush=True)

    def config(self, layers, heads, width):
        path = self.folder / f"gpt2-{layers}-{width}.json"
        path.write_text(json.dumps({
            "model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_ctx": 1024, "n_embd": width, "n_layer": layers,
            "n_head": heads, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0,
            "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True}))
        return str(path)

    def ours(self, model, sequences, micro_batch, *more, steps=12, seq_len=1024):
        """One run: medians of its settled steps' metrics, or None with the program's line if it failed."""
        self.runs += 1
        metrics = self.folder / f"metrics-{self.runs}"
        command = [self.options.program, "train", "--model", model, "--data", str(self.text), "--device", self.options.device,
                   "--seq-len", str(seq_len), "--batch-tokens", str(sequences * seq_len), "--micro-batch", str(micro_batch),
                   "--steps", str(steps), "--eval-every", "0", "--sample", "0", "--metrics", str(metrics), *map(str, more)]
        run = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if run.returncode != 0:
            print(f"  {' '.join(command[1:])}: exit {run.returncode}: {run.stderr.strip()[-500:]}", flush=True)
            return None
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        rows = [row for row in rows if row["step"] >= SETTLED_STEP]
        return {key: statistics.median(row[key] for row in rows) for key in rows[0] if isinstance(rows[0][key], (int, float))}

    def theirs(self, layers, heads, width, batch, micro_batch, *more):
        command = [sys.executable, str(PEER), "--layers", str(layers), "--heads", str(heads), "--width", str(width), "--batch",
                   str(batch), "--micro-batch", str(micro_batch), *more]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            print(f"  {' '.join(command[1:])}: exit {run.returncode}: {run.stderr.strip()[-300:]}", flush=True)
            return None
        return json.loads(run.stdout.splitlines()[-1])

    def link_rate(self):
        """What plain pinned copies carry each way, from `tidepool info`."""
        command = [self.options.program, "info", "--json", "--device", self.options.device]
        rates = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["rates"]
        return rates["h2d_bytes_per_second"], rates["d2h_bytes_per_second"]


def resident(bench):
    cases = [("gpt2-nano", 4, 4)] if bench.options.quick else [("gpt2", 64, 64), ("gpt2-xl", 16, 16)]
    for model, sequences, micro_batch in cases:
        layers, heads, width = MODELS[model]
        found = {}
        for manager in ("on", "off"):
            run = bench.ours(model, sequences, micro_batch, "--recompute", "none", "--manager", manager,
                             seq_len=128 if bench.options.quick else 1024)
            found[manager] = run
        if None in found.values():
            bench.figure(f"{model}, resident: manager on / off, step", None, "x", 1.01, least=False)
            continue
        on, off = found["on"], found["off"]
        bench.figure(f"{model}, resident: manager on / off, step", on["step_seconds"] / off["step_seconds"], "x",
                     None if bench.options.quick else 1.01, least=False)
        rate = on["tokens_per_second"]
        bench.figure(f"{model}, resident: tokens a second", rate, "tokens/s")
        if bench.options.peak:
            flops = 6 * params_of(layers, width) + 6 * layers * width * 1024  # causal: half of 12 L w T
            bench.figure(f"{model}, resident: model FLOP utilisation", rate * flops / bench.options.peak, "",
                         0.45 if model == "gpt2-xl" else None)
        if bench.options.peers and model == "gpt2":
            peer = bench.theirs(layers, heads, width, sequences, micro_batch)
            bench.figure(f"{model}, resident: tokens a second against PyTorch",
                         peer and rate / peer["tokens_per_second"], "x", 1.0, peer=peer)


def budget(bench):
    model, sequences, micro_batch = ("gpt2-nano", 4, 2) if bench.options.quick else ("gpt2-xl", 128, 16)
    seq_len = 128 if bench.options.quick else 1024
    layers, _, width = MODELS[model]
    whole = bench.ours(model, sequences, micro_batch, seq_len=seq_len, steps=8)
    inwards, outwards = bench.link_rate()
    model_bytes = 14 * params_of(layers, width)
    chunk = ("--chunk-size", "2MiB") if bench.options.quick else ()
    for share in (2, 4):
        run = whole and bench.ours(model, sequences, micro_batch, "--device-memory", model_bytes // share, *chunk,
                                   seq_len=seq_len, steps=8)
        if not run:
            bench.figure(f"{model}, model data {share} x device budget: step / limit", None, "x", 1.15, least=False)
            continue
        limits = {"compute": whole["compute_seconds"], "link in": run["h2d_bytes"] / inwards,
                  "link out": run["d2h_bytes"] / outwards,
                  "adam": max(run["adam_host_seconds"], run["adam_device_seconds"])}
        name = max(limits, key=limits.get)
        bench.figure(f"{model}, model data {share} x device budget: step / limit", run["step_seconds"] / limits[name], "x",
                     None if bench.options.quick else 1.15, least=False, limit=name, limits=limits,
                     stall_seconds=run["stall_seconds"])


def largest(bench):
    if bench.options.quick:
        return
    best = None
    for layers in (20, 28, 34, 36, 38):
        run = bench.ours(bench.config(layers, 48, 6144), 16, 4, "--host-memory", bench.options.host_memory, steps=5)
        if run is None:
            break
        best = params_of(layers, 6144)
        bench.figure(f"GPT of {best / 1e9:.1f} billion: tokens a second", run["tokens_per_second"], "tokens/s",
                     stall_seconds=run["stall_seconds"], step_seconds=run["step_seconds"])
    bench.figure("largest GPT that trained", best and best / 1e9, "billion params", 15)


def offload(bench):
    if bench.options.quick or not bench.options.peers:
        return
    for layers in (40, 32, 24, 16):  # width 4096: 8.3 to 3.4 billion
        peer = bench.theirs(layers, 32, 4096, 16, 8, "--way", "fsdp", "--recompute", "--steps", "6")
        if peer:
            break
    else:
        bench.figure("against FSDP2 with CPU offload: tokens a second", None, "x", 2)
        return
    run = bench.ours(bench.config(layers, 32, 4096), 16, 8, "--host-memory", bench.options.host_memory, steps=6)
    bench.figure(f"against FSDP2 with CPU offload, {peer['params'] / 1e9:.1f} billion: tokens a second",
                 run and run["tokens_per_second"] / peer["tokens_per_second"], "x", 2, peer=peer)


CASES = {"resident": resident, "budget": budget, "largest": largest, "offload": offload}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--peak", type=float, default=0, metavar="FLOPS", help="measured bf16 rate of the GPU")
    parser.add_argument("--host-memory", default="100GiB")
    parser.add_argument("--out")
    parser.add_argument("cases", nargs="*", metavar="CASE", default=[])
    options = parser.parse_args()
    unknown = [case for case in options.cases if case not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]}; there are {', '.join(CASES)}")
    options.peers &= not options.quick
    with tempfile.TemporaryDirectory(prefix="tidepool-gpu-") as name:
        bench = Bench(options, Path(name))
        for case in options.cases or CASES:
            CASES[case](bench)
    if options.out:
        Path(options.out).write_text(json.dumps({"figures": bench.figures}, indent=1) + "\n")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
