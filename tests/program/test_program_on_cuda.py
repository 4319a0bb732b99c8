#!/usr/bin/env python3
"""The program on the CUDA module: losses and norms near the host device's, texts as there, and on a GPU the
same bits whatever the budgets; test_trainer_matrix.c checks these on the fake. GPT-2 in bf16 and fp16, a Qwen3
in fp32.

usage: test_program_on_cuda.py PROGRAM FOLDER fake|gpu          prints TAP
FOLDER holds the libtidepool_cuda.so. fake: that of tests/gpu/fake, which prints each breach of CUDA's
rules to stderr; a run passes only without such a line. gpu: the module for real GPUs; all cases are
skipped where there is none.
"""
import json
import os
import re
import sys
from pathlib import Path

from test_program import MIB, TENSOR_FILES, Bench, Run, metrics_read

STEPS = 2
# The fake GPU is slow (measuring it takes half a minute), so the suite makes few checks on it, with half of the
# layers.
ALL = sys.argv[3:] == ["gpu"] or "TIDE_TEST_ALL" in os.environ
LAYERS = 4 if ALL else 2
# Of 4 layers: 24 MiB of model data in about 14 chunks of 2 MiB; the tight budget holds the region and a few
# chunks.
MODEL = {"model_type": "gpt2", "n_layer": LAYERS, "n_embd": 192, "n_head": 3, "n_positions": 32, "vocab_size": 257,
         "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
# All features of the Llama families: RMS norms, also of queries and keys, rotary positions, grouped-query
# attention, SwiGLU, an untied head.
QWEN3 = {"model_type": "qwen3", "num_hidden_layers": LAYERS, "hidden_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 80, "intermediate_size": 320, "max_position_embeddings": 32, "vocab_size": 257, "rms_norm_eps": 1e-6,
         "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
ROOM_BYTES = 4 * MIB
# The module's messages where there is no GPU; the test fails at any other message.
NO_GPU = re.compile("no NVIDIA driver|driver is too old|there is no cuda:0")

PINNED = re.compile(r"^pinned [0-9.]+ [KMG]iB of host memory in [0-9.]+ s with [0-9]+ threads? "
                    r"\(touched at [0-9.]+ \S+/s, registered at [0-9.]+ \S+/s(, waited [0-9.]+ s)?\)$", re.MULTILINE)


def train(bench, device, *options, steps=STEPS):
    os.environ["TIDE_FAKE_CUDA"] = f"count={bench.folder / 'count'}"  # only the fake counts calls
    return bench.run("--model", bench.folder / ("qwen3.json" if "fp32" in options else "gpt2.json"),
                     "--data", bench.text, "--device", device, "--steps", steps,
                     "--batch-tokens", 32, "--sample", 0, "--eval-every", 0, "--chunk-size", "2MiB", "--threads", 1, *options)


def tight(bench, *options):
    """Returns a budget slightly above the least one. The test takes that from a refusal, since CUDA's
    libraries decide how large the region is."""
    refusal = train(bench, "cuda:0", "--device-memory", "1MiB", *options)
    least = re.search(r"the least budget is (\d+) bytes", refusal.err)
    bench.tap.ok(least is not None, f"{' '.join(options)}: the least budget is named", refusal)
    return ("--device-memory", int(least.group(1)) + ROOM_BYTES if least else 20 * MIB)


class Outcome:
    """A run's losses and norms, its tensors' bytes, the bytes that it copied, and the fake's counts of its
    calls."""

    def __init__(self, bench, name, *options, device="cuda:0", steps=STEPS):
        folder, metrics, count = bench.folder / name, bench.folder / f"{name}.jsonl", bench.folder / "count"
        self.run = train(bench, device, "--checkpoint", folder, "--metrics", metrics, *options, steps=steps)
        self.good = self.run.status == 0 and self.run.err == ""
        lines = metrics_read(metrics) if self.good else []
        self.values = [(line["loss"], line["grad_norm"]) for line in lines]
        saved = folder / f"step-{steps}"
        self.tensors = [(saved / file).read_bytes() for file in TENSOR_FILES] if self.good else []
        self.moved = sum(line["h2d_bytes"] + line["d2h_bytes"] for line in lines)
        lines = count.read_text().splitlines() if count.exists() else []
        self.calls = {name: int(value) for name, value in map(str.split, lines)}
        count.unlink(missing_ok=True)

    def same_as(self, other):
        return self.good and other.good and self.values == other.values and self.tensors == other.tensors

    def near(self, other):
        return self.good and other.good and all(abs(a - b) <= 0.01 * abs(b) for ours, theirs in zip(self.values, other.values)
                                                for a, b in zip(ours, theirs))


def check_dtype(bench, dtype, budgets_too):
    # The default first scale would overflow.
    given = ("--dtype", dtype, *(("--loss-scale", "1024") if dtype == "fp16" else ()))
    host = Outcome(bench, f"{dtype}-host", *given, device="host")
    full = Outcome(bench, f"{dtype}-full", *given)
    bench.tap.ok(PINNED.search(full.run.out) and not PINNED.search(host.run.out),
                 f"{dtype}: what pinning took is told, of a GPU alone", full.run)
    bench.tap.ok(full.near(host), f"{dtype}: losses and norms are the host device's within a hundredth",
                 f"{full.values}\n{host.values}\n{full.run}")
    if budgets_too:
        little = Outcome(bench, f"{dtype}-tight", *given, *tight(bench, *given))
        bench.tap.ok(little.same_as(full) and little.moved > 2 * full.moved,
                     f"{dtype}: the same bits in little memory, where chunks move",
                     f"moved {full.moved} {little.moved}\n{little.run}")
    return full


def check_texts(bench):
    """A checkpoint's text is the host device's, and the same in little memory."""
    (bench.folder / "prompt").write_text("116 104 101 32 99")
    given = [bench.program, "generate", "--checkpoint", bench.folder / "fp32-full", "--prompt-ids",
             bench.folder / "prompt", "--tokens", 20, "--temperature", 1, "--chunk-size", "2MiB", "--threads",
             1]

    def text(*options):
        return Run([str(word) for word in (*given, *options)])

    host, full = text("--device", "host"), text("--device", "cuda:0")
    bench.tap.ok(full.status == 0 and full.err == "" and full.out == host.out and
                 full.out.count("\n") == 20, "a text is the host device's", full)
    refusal = text("--device", "cuda:0", "--device-memory", 1)
    least = re.search(r"the least budget is (\d+) bytes", refusal.err)
    little = text("--device", "cuda:0", "--device-memory", least.group(1) if least else 1)
    bench.tap.ok(little.status == 0 and little.err == "" and little.out == full.out,
                 "the same in little memory", little)


def check_variants(bench, full):
    budget = tight(bench)
    for name, options in (("updates-on-the-host", ("--optimizer-placement", "host")),
                          ("updates-on-the-device", (*budget, "--optimizer-placement", "device")),
                          ("without-prefetch", (*budget, "--prefetch", "off"))):
        outcome = Outcome(bench, name, *options)
        bench.tap.ok(outcome.same_as(full), f"the same bits: {name}", outcome.run)


def check_threads(bench):
    """`info` measures the host's Adam with the threads that training would use: the number asked for, or two
    fewer than the processors."""
    few = max(1, len(os.sched_getaffinity(0)) - 2)
    for given, right in ((("--threads", str(few + 1)), few + 1), ((), few)):
        run = Run([bench.program, "info", "--device", "cuda:0", "--json", *given])
        bench.tap.ok(run.status == 0 and json.loads(run.out)["rates"]["threads"] == right,
                     f"info measures the host's Adam with {'the threads asked for' if given else 'all processors but two'}", run)


def traced_options(bench):
    return "--trace", bench.folder / "trace.jsonl"


def check_log(bench, full):
    """TIDEPOOL_LOG=matmul prints one line for each shape of matmul. Without it the program prints no such
    line: Outcome.good demands an empty stderr. The run also writes a trace. Returns it."""
    os.environ["TIDEPOOL_LOG"] = "matmul,,nonsense"
    outcome = Outcome(bench, "logged", *traced_options(bench))
    del os.environ["TIDEPOOL_LOG"]
    first, *lines = outcome.run.err.splitlines() or [""]
    bench.tap.ok(first == "tidepool: TIDEPOOL_LOG knows no topic 'nonsense', but: matmul", "a topic that is none is told of",
                 outcome.run)
    shape = re.compile(r"tidepool: matmul: (\d+ x \d+ x \d+, bf16 to (?:bf16|fp32)(?:, [\w^ ]+)*): candidate (\d+) of (\d+): "
                       r"algorithm -?\d+, tile -?\d+(?: \d+x\d+)?, stages -?\d+, splits -?\d+, reduction \w+, "
                       r"waves \d+\.\d\d, workspace \d+")
    found = [shape.fullmatch(line) for line in lines]
    # A step has three matmuls (forward and two gradients) for each of the model's matrices.
    bench.tap.ok(outcome.run.status == 0 and all(found) and len(set(lines)) == len(lines) >= 15 and
                 all(1 <= int(line.group(2)) <= int(line.group(3)) <= 8 for line in found),
                 "each product's choice is logged in one line when it was asked for", outcome.run)
    weights = [line for line in found if line and ", bf16 to fp32, A^T, added to C" in line.group(1)]
    bench.tap.ok(len(weights) == 5, "a weight's gradient is logged as such", outcome.run)
    saved = bench.folder / "logged" / f"step-{STEPS}"
    bench.tap.ok(saved.is_dir() and [(saved / file).read_bytes() for file in TENSOR_FILES] == full.tensors,
                 "the same bits: logged and traced", outcome.run)
    return outcome


def check_events(bench, full, traced):
    """Counts the CUDA events of the last step with the fake: kernels of an op share an event, and with a trace
    each kernel has its own."""
    def of_a_step(outcome, *options):
        shorter = Outcome(bench, f"shorter-{len(options)}", *options, steps=STEPS - 1)
        return [shorter.good and outcome.calls.get(name, 0) - shorter.calls.get(name, 0)
                for name in ("cudaLaunchKernel", "cudaEventRecord")]

    kernels, events = of_a_step(full)
    traced_kernels, traced_events = of_a_step(traced, *traced_options(bench))
    bench.tap.ok(0 < 4 * events < kernels, "kernels of an op share an event",
                 f"{kernels} kernels, {events} events")
    bench.tap.ok(traced_kernels == kernels < 1.1 * traced_events,
                 "each kernel has an event where a trace wants its time",
                 f"{traced_kernels} kernels, {traced_events} events")


def no_gpu(program):
    """Returns the module's reason why there is no GPU, or "" if there is one. A refusal takes no time, `info`
    on a GPU a second."""
    run = Run([program, "info", "--device", "cuda:0"])
    if run.status == 0:
        return ""
    if NO_GPU.search(run.err):
        return run.err.strip().removeprefix("tidepool info: ")
    sys.exit(f"a GPU that can't be used: {run}")


def main():
    os.environ["TIDEPOOL_MODULES"] = str(Path(sys.argv[2]).resolve())
    why = no_gpu(sys.argv[1]) if sys.argv[3] == "gpu" else ""
    if why:
        print(f"1..0 # SKIP no GPU: {why}")
        return
    bench = Bench(sys.argv[1], False)
    (bench.folder / "gpt2.json").write_text(json.dumps(MODEL))
    (bench.folder / "qwen3.json").write_text(json.dumps(QWEN3))
    try:
        if ALL:
            check_threads(bench)
        full = check_dtype(bench, "bf16", ALL)
        if ALL:
            check_variants(bench, full)
        traced = check_log(bench, full)
        if sys.argv[3] == "fake":
            check_events(bench, full, traced)
        # The fp16 kernels have tests of their own.
        for dtype in ("fp16", "fp32") if ALL else ("fp32",):
            check_dtype(bench, dtype, ALL)
        check_texts(bench)
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main()
