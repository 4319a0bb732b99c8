#!/usr/bin/env python3
"""Measures `tidepool train` on a GPU, against the machine's limits and against PyTorch.

usage: train.py PROGRAM CASE [--seconds S] [--device cuda:0] [--host-memory SIZE] [--quick]

    resident   gpt2, gpt2-xl and Llama 3.2 1B, bf16, T = 1024, no recompute, everything on the device:
               tokens a second, and the step over its compute
    budget     gpt2-xl with a quarter, a half and all of its model data as device budget: the step over
               the longest of the run's own compute, its bytes at a plain copy's rate, and its Adam; and
               whether all budgets give losses and norms with the same bits
    streamed   Llama 3.1 8B, T = 4096, with a quarter of its model data as device budget and the rest in
               --host-memory: tokens a second, and the step over its compute. If `tidepool plan` says that
               the model does not fit, it gets fewer layers, and the figure's name says so.
    largest    the GPT of width 6144 with the most layers that fit the GPU and --host-memory according to
               `tidepool plan`: it must train; if it does not, one with three quarters of the layers is
               tried
    peers      PyTorch compiled (gpt2, resident); FSDP2 with CPU offload, and ours on the same model;
               larger models while there is time

streamed and largest also print the time from the last step to the program's end, in which host memory is
unpinned. They train on text: the sources and pages of this tree. A figure is the median of a run's steps
from the fourth to the last but one. The script prints one JSON object a line as soon as it is known:
{"name", "value", "unit"} and, for a figure with a bound, "bound" and "met". It begins no run that would
exceed --seconds (300). --quick uses small models and short sequences, on any device, and no PyTorch. Exit
status 0 if all runs succeeded in time and every bound is met, 1 if not, 77 if there is no PyTorch for the
peers.
"""
import argparse
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTLED_STEP = 4
SKIPPED = 77
ROOT = Path(__file__).resolve().parents[3]
PEER = Path(__file__).with_name("gpt2_torch.py")
TEXT_FOLDERS = ("chunk", "docs", "include", "kernels", "offload", "src", "tests", "tools")
TEXT_SUFFIXES = (".c", ".h", ".cu", ".md", ".py", ".sh")
TEXT_BYTES = 4 << 20
# The part of a GPU's memory that no budget gets: for the context, the libraries, the page tables of pinned
# host memory, and a reserve.
DEVICE_SPARE_BYTES = 2 << 30
# The machine for which `tidepool plan` plans. Only its memory matters, which is large enough for any budget
# here.
PLANNED_MACHINE = "h200"
LARGEST_LAYERS = range(40, 8, -2)

# name: layers, heads, width. Vocabulary and positions are 50257 and 1024, as in the program's presets.
MODELS = {"gpt2": (12, 12, 768), "gpt2-xl": (48, 25, 1600), "gpt2-nano": (6, 4, 256)}
# name: the shape of one of Meta's Llama 3 models as in config.json; the last is for --quick.
LLAMAS = {"llama-3.2-1b": {"num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
                           "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True},
          "llama-3.1-8b": {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
                           "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False},
          "llama-quick": {"num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
                          "intermediate_size": 512, "vocab_size": 2048, "tie_word_embeddings": False}}


def params_of(layers, width, vocabulary=50257, positions=1024):
    return layers * (12 * width * width + 13 * width) + (vocabulary + positions + 2) * width


def flops_of_token(layers, width, seq_len):
    """Operations of a token: 6 N for the matmuls and, causal, 6 L w T for attention. Recompute does not
    count.
    """
    return 6 * params_of(layers, width) + 6 * layers * width * seq_len


def llama_sizes(shape, seq_len):
    """Params, and operations of a token: 6 N for the matmuls (without the embedding's lookup) and, causal, 6
    L w T for attention.
    """
    layers, width = shape["num_hidden_layers"], shape["hidden_size"]
    keys = width * shape["num_key_value_heads"] // shape["num_attention_heads"]
    body = layers * (2 * width * (width + keys) + 3 * width * shape["intermediate_size"] + 2 * width) + width
    table = shape["vocab_size"] * width
    params = body + (1 if shape["tie_word_embeddings"] else 2) * table
    return {"params": params, "flops_a_token": 6 * (body + table) + 6 * layers * width * seq_len}


def gpt2_sizes(layers, width, seq_len):
    return {"params": params_of(layers, width), "flops_a_token": flops_of_token(layers, width, seq_len)}


def text_of_tree():
    """The text to train on: the tree's sources and pages, repeated to TEXT_BYTES. The same tree gives the
    same text.
    """
    paths = [path for name in TEXT_FOLDERS for path in sorted((ROOT / name).rglob("*")) if path.suffix in TEXT_SUFFIXES]
    text = b"".join(path.read_bytes() for path in paths)
    return (text * (TEXT_BYTES // len(text) + 1))[:TEXT_BYTES]


class Run:
    """A run of the program that succeeded: its metrics by step, and the time from its last step to its end."""

    def __init__(self, rows, exit_seconds):
        self.rows, self.exit_seconds = rows, exit_seconds
        # The last step does not count: it waits for its own updates, since no next forward hides them.
        settled = rows[SETTLED_STEP - 1:-1] or rows
        self.median = {key: statistics.median(row[key] for row in settled) for key, value in settled[0].items()
                       if isinstance(value, (int, float))}

    def __getitem__(self, key):
        return self.median[key]

    def bits(self):
        return [(row["loss"], row["grad_norm"]) for row in self.rows]


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.deadline = time.monotonic() + options.seconds
        self.failed, self.runs, self.longest, self.skipped = False, 0, 0.0, ""
        self.text = folder / "text"
        self.text.write_bytes(text_of_tree())

    def figure(self, name, value, unit, bound=None, least=True, **more):
        """`bound`: the least value allowed (least) or the most."""
        row = {"name": name, "value": value, "unit": unit, **more}
        if bound is not None:
            row["bound"] = bound
            row["met"] = value is not None and (value >= bound if least else value <= bound)
            self.failed |= not row["met"]
        print(json.dumps(row), flush=True)

    def has_time(self):
        """Whether there is time for another run as long as the longest so far."""
        return time.monotonic() + self.longest < self.deadline

    def run(self, command, may_fail=False, right=(0,)):
        """Runs the command and returns the finished process. If its exit status is not in `right` or no time
        was left, prints why, counts a failure unless may_fail, and returns None.
        """
        told, why = " ".join(map(str, command[1:])), "no time was left for it"
        if self.has_time():
            began = time.monotonic()
            self.runs += 1
            try:
                run = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                                     timeout=max(1.0, self.deadline - began))
                self.longest, run.ended = max(self.longest, time.monotonic() - began), time.time()
                if run.returncode in right:
                    return run
                why = f"exit {run.returncode}: {run.stderr.strip()[-500:]}"
            except subprocess.TimeoutExpired:
                why = f"no end after {time.monotonic() - began:.0f} s"
        self.failed |= not may_fail
        print(f"{told}: {why}", file=sys.stderr, flush=True)
        return None

    def config(self, layers, heads, width):
        path = self.folder / f"gpt2-{layers}-{width}.json"
        path.write_text(json.dumps({
            "model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_ctx": 1024, "n_embd": width, "n_layer": layers,
            "n_head": heads, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0,
            "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True}))
        return str(path)

    def llama(self, name, layers=None):
        path = self.folder / f"{name}.json"
        shape = {**LLAMAS[name], "num_hidden_layers": layers or LLAMAS[name]["num_hidden_layers"]}
        path.write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
                                    "rope_theta": 500000.0, "hidden_act": "silu", **shape}))
        return str(path), shape

    @staticmethod
    def shape(model, sequences, micro_batch, seq_len):
        return ["--model", model, "--seq-len", seq_len, "--batch-tokens", sequences * seq_len, "--micro-batch", micro_batch]

    def ours(self, model, sequences, micro_batch, *more, steps=12, seq_len=1024, may_fail=False):
        metrics = self.folder / f"metrics-{self.runs}"
        run = self.run([self.options.program, "train", *self.shape(model, sequences, micro_batch, seq_len), "--data", self.text,
                        "--device", self.options.device, "--steps", steps, "--eval-every", 0, "--sample", 0, "--metrics", metrics,
                        *more], may_fail)
        for line in re.findall("^pinned .*$", run.stdout, re.MULTILINE) if run else ():
            print(json.dumps({"what": "host memory", "model": Path(model).stem, "told": line}), flush=True)
        if run is None:
            return None
        # The program wrote the last step's line when that step ended.
        return Run([json.loads(line) for line in metrics.read_text().splitlines()], run.ended - metrics.stat().st_mtime)

    def theirs(self, layers, heads, width, batch, micro_batch, *more):
        run = self.run([sys.executable, PEER, "--layers", layers, "--heads", heads, "--width", width, "--batch", batch,
                        "--micro-batch", micro_batch, *more], may_fail=True)
        return run and json.loads(run.stdout.splitlines()[-1])

    def fitting(self, counts, config_of, sequences, micro_batch, *budgets, seq_len):
        """The first of these numbers of layers with which the model fits according to `tidepool plan`. None,
        with a message, if there is none.
        """
        for layers in counts:
            run = self.run([self.options.program, "plan", "--machine", PLANNED_MACHINE, "--json",
                            *self.shape(config_of(layers), sequences, micro_batch, seq_len), *budgets], right=(0, 1))
            # status 1 with output is a plan's answer too: it does not fit
            if run is None or not run.stdout:
                self.failed = True
                print(f"plan of {layers} layers: {run.stderr.strip() if run else 'not made'}", file=sys.stderr, flush=True)
                return None
            if json.loads(run.stdout)["fits"]:
                return layers
        self.failed = True
        print(f"no model fits: {json.loads(run.stdout)['refusal']}", file=sys.stderr, flush=True)
        return None

    def host_memory(self):
        return () if self.options.quick else ("--host-memory", self.options.host_memory)

    def info(self):
        command = [self.options.program, "info", "--json", "--device", self.options.device]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)

    def all_memory(self):
        """Arguments for both budgets: all memory; with --quick little memory and small chunks."""
        if self.options.quick:
            return "--device-memory", 160 << 20, "--host-memory", "256MiB", "--chunk-size", "2MiB"
        gpu = next(gpu for gpu in self.info()["cuda"]["gpus"] if gpu["device"] == self.options.device)
        return "--device-memory", gpu["memory_bytes"] - DEVICE_SPARE_BYTES, *self.host_memory()

    def link_rate(self):
        """Bytes a second of plain pinned copies, in and out."""
        rates = self.info()["rates"]
        return rates["h2d_bytes_per_second"], rates["d2h_bytes_per_second"]


def same_bits(bench, name, runs):
    """Prints whether the runs' losses and norms have the same bits, which budgets must not change."""
    runs = [run for run in runs if run]
    if len(runs) > 1:
        same = all(run.bits() == runs[0].bits() for run in runs[1:])
        bench.figure(f"{name}: losses and norms have the same bits", int(same), "", 1, runs=len(runs))


def report(bench, name, run, sizes):
    """Prints tokens a second, and the step over its compute."""
    parts = {key: run[key] for key in ("step_seconds", "compute_seconds", "stall_seconds", "h2d_bytes", "d2h_bytes",
                                       "adam_host_seconds")}
    bench.figure(f"{name}: tokens a second", run["tokens_per_second"], "tokens/s", **parts, **sizes)
    bench.figure(f"{name}: step / compute", run["step_seconds"] / run["compute_seconds"], "x")


def report_exit(bench, name, run):
    bench.figure(f"{name}: exit time", run.exit_seconds, "s")


def resident(bench):
    quick = bench.options.quick
    seq_len = 32 if quick else 1024
    models = [(name, name, gpt2_sizes(MODELS[name][0], MODELS[name][2], seq_len)) for name in
              (["gpt2-nano"] if quick else ["gpt2", "gpt2-xl"])]
    for name in ["llama-quick"] if quick else ["llama-3.2-1b"]:
        path, shape = bench.llama(name)
        models.append((name, path, llama_sizes(shape, seq_len)))
    for name, model, sizes in models:
        run = bench.ours(model, *((4, 4) if quick else (16, 16)), "--recompute", "none", seq_len=seq_len, steps=6 if quick else 12)
        if run:
            report(bench, f"{name}, resident", run, sizes)


def limits_of(run, link):
    """The lower bounds of this run's step: its compute (with recompute), its bytes over the link, its
    updates.
    """
    return {"compute": run["compute_seconds"], "link in": run["h2d_bytes"] / link[0], "link out": run["d2h_bytes"] / link[1],
            "adam": max(run["adam_host_seconds"], run["adam_device_seconds"])}


def budget(bench):
    quick = bench.options.quick
    model, sequences, micro_batch, seq_len = ("gpt2-nano", 4, 2, 32) if quick else ("gpt2-xl", 32, 16, 1024)
    layers, _, width = MODELS[model]
    model_bytes = 14 * params_of(layers, width)
    link, runs = bench.link_rate(), []
    # The tight budgets run first, since they are the ones with bounds.
    for share in (4, 2, 1):
        given = [] if share == 1 else ["--device-memory", model_bytes // share]
        if quick:
            given += ["--chunk-size", "2MiB"]
        run = bench.ours(model, sequences, micro_batch, *given, seq_len=seq_len, steps=6)
        runs.append(run)
        name = f"{model}, {'resident' if share == 1 else f'model data {share} x device budget'}: step / limit"
        if run is None:
            bench.figure(name, None, "x", None if quick or share == 1 else 1.15, least=False)
            continue
        limits = limits_of(run, link)
        longest = max(limits, key=limits.get)
        bench.figure(name, run["step_seconds"] / limits[longest], "x", None if quick or share == 1 else 1.15, least=False, limit=longest,
                     limits=limits, step_seconds=run["step_seconds"], stall_seconds=run["stall_seconds"],
                     tokens_per_second=run["tokens_per_second"])
    same_bits(bench, f"{model}, all budgets", runs)


def streamed(bench):
    quick = bench.options.quick
    name, sequences, micro_batch, seq_len = ("llama-quick", 4, 2, 32) if quick else ("llama-3.1-8b", 4, 2, 4096)
    whole = LLAMAS[name]["num_hidden_layers"]
    device_bytes = 48 << 20 if quick else 14 * llama_sizes(LLAMAS[name], seq_len)["params"] // 4
    budgets = ["--device-memory", device_bytes, *bench.host_memory(), *(["--chunk-size", "2MiB"] if quick else [])]
    layers = bench.fitting(range(whole, 0, -2), lambda layers: bench.llama(name, layers)[0], sequences, micro_batch, *budgets,
                           seq_len=seq_len)
    if layers is None:
        return
    path, shape = bench.llama(name, layers)
    run = bench.ours(path, sequences, micro_batch, *budgets, steps=5, seq_len=seq_len)
    if run:
        title = f"{name}{'' if layers == whole else f' of {layers} layers'}, streamed"
        report(bench, title, run, llama_sizes(shape, seq_len))
        report_exit(bench, title, run)


def largest(bench):
    heads, width, sequences, micro_batch, seq_len = (4, 256, 4, 2, 32) if bench.options.quick else (48, 6144, 16, 4, 1024)
    budgets, trained = bench.all_memory(), 0
    most = bench.fitting((3, 2) if bench.options.quick else LARGEST_LAYERS, lambda layers: bench.config(layers, heads, width),
                         sequences, micro_batch, *budgets, seq_len=seq_len)
    for layers in (most, most * 3 // 4) if most else ():
        run = bench.ours(bench.config(layers, heads, width), sequences, micro_batch, *budgets, steps=5, seq_len=seq_len)
        if run:
            trained = params_of(layers, width)
            title = f"GPT of {trained / 1e9:.3g} billion"
            report(bench, title, run, gpt2_sizes(layers, width, seq_len))
            report_exit(bench, title, run)
            break
    bench.figure("largest GPT that trained", trained / 1e9, "billion params", params_of(most, width) / 1e9 if most else None)


def peers(bench):
    if bench.options.quick or importlib.util.find_spec("torch") is None:
        bench.skipped = "no PyTorch for --quick" if bench.options.quick else "no PyTorch here"
        return
    peer = bench.theirs(*MODELS["gpt2"], 16, 16)
    if peer:
        bench.figure("gpt2, resident: tokens a second of PyTorch, compiled", peer["tokens_per_second"], "tokens/s", peer=peer)
    # Width 4096: 1.8 to 6.7 billion params. Ours runs first, since FSDP2 takes a minute and more to begin
    # with 16 layers.
    for layers in (8, 16, 24, 32):
        if layers > 8 and not bench.has_time():
            break
        run = bench.ours(bench.config(layers, 32, 4096), 16, 8, *bench.host_memory(), steps=6)
        peer = run and bench.theirs(layers, 32, 4096, 16, 8, "--way", "fsdp", "--recompute", "--steps", 6)
        if not peer:
            break
        bench.figure(f"{peer['params'] / 1e9:.3g} billion: tokens a second over FSDP2's with CPU offload",
                     run["tokens_per_second"] / peer["tokens_per_second"], "x", 2, peer=peer,
                     tokens_per_second=run["tokens_per_second"])


CASES = {"resident": resident, "budget": budget, "streamed": streamed, "largest": largest, "peers": peers}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("case", choices=list(CASES), metavar="CASE")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--host-memory", default="100GiB")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidepool-gpu-") as name:
        bench = Bench(options, Path(name))
        CASES[options.case](bench)
    if bench.skipped:
        print(f"SKIP: {bench.skipped}", file=sys.stderr)
        return SKIPPED
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
