#!/usr/bin/env python3
"""Compares our host Adam with PyTorch's fused CPU AdamW and DeepSpeed's CPU Adam, measured in turn on the
same cores.

usage: adam_peers.py --ours BENCH_ADAM --threads N [--params MI] [--rounds N] [--venv DIR]

If the Python that runs it lacks torch or deepspeed, the script makes a virtual environment in DIR
(build-peers/ of this checkout, which git ignores), installs both there from PyPI (some gigabytes: PyPI's
torch brings CUDA) and continues in it. DeepSpeed compiles its operator there on first use, which takes
some minutes. The project contains no code of either.

All three do the same work with N threads on the same number of parameters: from bf16 gradients to bf16
parameters, with a clip factor, fp32 master, momentum and variance, AdamW with decay. Ours is one pass
over 28 bytes a parameter. PyTorch and DeepSpeed need fp32 gradients, so they run the steps that their
users run:

    cast the gradient into the fp32 buffer; multiply it by the clip factor; the fused step; cast the master to bf16

For DeepSpeed this is the host's part of a ZeRO-Offload step. PyTorch's fused step can also apply the
factor itself (as its gradient scaler does); both ways are measured and the faster one counts. All tensors
are flat, so that none of the three pays for small ones, and PyTorch's allocator uses huge pages, as ours
does.

A round is a run of ours (bench_adam --ours-only), then some steps of each peer. A figure is the median
over the rounds of our parameters a second over the peer's in the same round. The script prints one JSON
object to standard output and everything else to standard error; exit status 1 if a peer can't be
measured.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

MI = 1 << 20
WANTED_RATIO = 1.3
STEPS_PER_ROUND = 3
CLIP_FACTOR = 0.5
HYPERPARAMETERS = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def enter_venv(folder):
    """Makes the virtual environment if it is missing, then runs this script again in it."""
    python = folder / "venv" / "bin" / "python"
    if Path(sys.prefix) == folder / "venv":
        sys.exit(f"adam_peers.py: {folder}/venv has no torch or deepspeed: remove it, so that it is made anew")
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder / "venv"], check=True, stdout=sys.stderr)
        pip = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run(pip + ["torch", "numpy", "ninja", "setuptools", "wheel", "py-cpuinfo"], check=True, stdout=sys.stderr)
        subprocess.run(pip + ["--no-build-isolation", "deepspeed"], check=True, stdout=sys.stderr,
                       env=os.environ | {"DS_BUILD_OPS": "0"})
        (folder / "complete").touch()
    os.execv(python, [str(python), *sys.argv])


def set_environment(folder, threads):
    """Call this before torch is loaded. Sets huge pages; idle threads that do not spin, because torch and
    DeepSpeed's operator may each load an OpenMP of their own and would disturb each other; and our folder
    as the place where the environment's ninja builds the operator.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(folder / "extensions"))
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


class State:
    """bf16 gradient and parameter, fp32 master with a gradient buffer, filled with the values of bench_adam."""

    def __init__(self, torch, params):
        count = torch.arange(params)
        values = 0.001 * (1 + count % 997) * (1 - 2 * (count % 2))
        self.gradient16 = values.to(torch.bfloat16)
        self.param16 = torch.zeros(params, dtype=torch.bfloat16)
        self.master = torch.nn.Parameter(values.float())
        self.master.grad = torch.zeros(params)


def multiplied_step(state, optimizer):
    """A step with the clip factor as a pass of its own over the fp32 gradient."""
    state.master.grad.copy_(state.gradient16)
    state.master.grad.mul_(CLIP_FACTOR)
    optimizer.step()
    state.param16.copy_(state.master.data)


def scaled_step(state, optimizer):
    """A step whose fused kernel applies the clip factor, for optimizers with a grad_scale."""
    state.master.grad.copy_(state.gradient16)
    optimizer.step()
    state.param16.copy_(state.master.data)


def torch_peers(torch, params):
    plain, scaled = State(torch, params), State(torch, params)
    plain_adam = torch.optim.AdamW([plain.master], fused=True, **HYPERPARAMETERS)
    scaled_adam = torch.optim.AdamW([scaled.master], fused=True, **HYPERPARAMETERS)
    scaled_adam.grad_scale = torch.tensor(1 / CLIP_FACTOR)
    scaled_adam.found_inf = torch.tensor(0.0)
    return [lambda: multiplied_step(plain, plain_adam), lambda: scaled_step(scaled, scaled_adam)]


def deepspeed_peers(torch, params):
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    state = State(torch, params)
    optimizer = DeepSpeedCPUAdam([state.master], adamw_mode=True, **HYPERPARAMETERS)
    return [lambda: multiplied_step(state, optimizer)]


def params_per_second(torch, step, params):
    """The median rate of some steps, after one that makes optimizer states, wakes threads and touches pages."""
    seconds = []
    with torch.no_grad():
        for _ in range(1 + STEPS_PER_ROUND):
            begin = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - begin)
    return params / statistics.median(seconds[1:])


def ours_per_second(arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    command = [arguments.ours, "--ours-only", *map(str, (arguments.params, STEPS_PER_ROUND, arguments.threads))]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


def measure(torch, arguments):
    """Our rates and the peer's in each round, by the peer's name."""
    params = arguments.params * MI
    peers = {"PyTorch": torch_peers(torch, params), "DeepSpeed": deepspeed_peers(torch, params)}
    found = {name: [] for name in peers}
    for _ in range(arguments.rounds):
        ours = ours_per_second(arguments)
        for name, ways in peers.items():
            found[name].append((ours, max(params_per_second(torch, step, params) for step in ways)))
    return found


def figure(name, version, rates, arguments):
    ours = statistics.median(rate for rate, _ in rates)
    theirs = statistics.median(rate for _, rate in rates)
    return {
        "name": f"against {name}", "value": float(f"{statistics.median(a / b for a, b in rates):.6g}"), "unit": "ratio",
        "at_least": WANTED_RATIO,
        "note": f"{arguments.threads} threads, {arguments.params} Mi parameters, bf16 to bf16 with clipping: ours {ours:.3g} "
                f"parameters/s, {name} {version} {theirs:.3g}; {arguments.rounds} rounds, ratios "
                f"{min(a / b for a, b in rates):.2f} to {max(a / b for a, b in rates):.2f}"}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True, metavar="BENCH_ADAM", help="the built tests/bench/bench_adam")
    parser.add_argument("--threads", required=True, type=int)
    parser.add_argument("--params", type=int, default=32, metavar="MI", help="in units of 2^20")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--venv", type=Path, metavar="DIR", default=Path(__file__).resolve().parents[2] / "build-peers")
    arguments = parser.parse_args()
    if min(arguments.threads, arguments.params, arguments.rounds) < 1:
        parser.error("--threads, --params and --rounds: 1 or more")
    arguments.ours, arguments.venv = os.path.abspath(arguments.ours), arguments.venv.resolve()
    return arguments


def main():
    arguments = parse()
    if find_spec("torch") is None or find_spec("deepspeed") is None:
        enter_venv(arguments.venv)
    set_environment(arguments.venv, arguments.threads)
    result = os.fdopen(os.dup(1), "w")
    # messages of the peers go to standard error, so that standard output holds only the object
    os.dup2(2, 1)
    import torch
    import deepspeed

    torch.set_num_threads(arguments.threads)
    found = measure(torch, arguments)
    versions = {"PyTorch": torch.__version__, "DeepSpeed": deepspeed.__version__}
    figures = [figure(name, versions[name], rates, arguments) for name, rates in found.items()]
    json.dump({"bench": "adam_peers", "figures": figures}, result, indent=1)
    print(file=result, flush=True)


if __name__ == "__main__":
    main()
