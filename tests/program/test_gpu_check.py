#!/usr/bin/env python3
"""tools/gpu_check.sh without a GPU: the driver's tools and the programs are fakes that hang, fail or are slow
in some of the parts.

usage: test_gpu_check.py PROGRAM          prints TAP

However some parts behave, the report must state the result of every part within the time limit; and the
report must be readable at whatever instant the check is killed. In one run PROGRAM, the real tidepool,
replaces the fake and trains on the host device, so that the benchmarks' code is tested with real output.
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from test_program import Tap

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/dev/gpu"))
import gpu_check  # noqa: E402
import gpu_report  # noqa: E402
CHECK = ROOT / "tools/gpu_check.sh"
FILES_MAX, FILE_MAX_BYTES = 8, 16 << 20
PARTS = ("environment", "probe", "build", "test", "resident", "kernels", "budget", "streamed", "largest", "peers", "sanitize")
MINUTES = 10  # enough on the busiest machine for all parts, unless a part hangs
LIMIT_SECONDS = 3
AT_ONCE = 6
SLACK_SECONDS = 10  # how much later than the limit a run may end on a busy machine
KILLS = 10 if "TIDE_TEST_ALL" in os.environ else 3

# Each fake runs this first. FAKE names parts and what their fakes shall do, such as "test=hang kernels=fail".
BEHAVE = """#!/bin/sh
behave() {
    case " $FAKE " in
    *" $1=hang "*) echo '{"name": "seen before the cut", "value": 1, "unit": ""}'; sleep 60 & echo $! >>"$FAKE_FOLDER/asleep"; wait ;;
    *" $1=fail "*) echo "the $1 went wrong" >&2; exit 1 ;;
    *" $1=slow "*) sleep 0.3 ;;
    *" $1=flood "*) head -c 5000000 /dev/zero | tr '\\0' 'x' ;;
    esac
}
"""
FAKES = {
    "nvidia-smi": """behave environment
case "$*" in
"") [ "$FAKE" = driver=old ] && echo "| CUDA Version: 12.4 |" || echo "| CUDA Version: 13.0 |" ;;
*clocks_event*) [ "$FAKE" != driver=old ] && echo 0x0000000000000001 || exit 2 ;;
*clocks_throttle*) echo 0x0000000000000004 ;;
*=pcie.link.gen.current,power.draw*) echo >>"$FAKE_FOLDER/asked"
    [ "$FAKE" = link=busy -a "$(wc -l <"$FAKE_FOLDER/asked")" = 2 ] && echo "5, 300 W, 16, 1980 MHz" ||
        echo "1, [N/A], 16, 345 MHz" ;;
*temperature*) echo "NVIDIA Stand-in, 580.0, 9.0, 0000:01:00.0, 143771 MiB, 143000 MiB, 1980 MHz, 3201 MHz, 1980, 3201," \\
    "90 W, 700 W, 5, 16, Enabled, Disabled, 30" ;;
*) echo "NVIDIA Stand-in, 580.0, 9.0" ;;
esac""",
    "nvcc": """case "$*" in --version) echo "Cuda compilation tools, release 13.0"; exit 0 ;; esac
behave probe
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\necho "{\\\\"what\\\\": \\\\"map\\\\", \\\\"us_p50\\\\": 12.5}"\\n' >"$2"; chmod +x "$2" """,
    "meson": """case "$1" in --version) echo 1.0; exit 0 ;; esac
shift; [ "$1" = --reconfigure ] && shift
mkdir -p "$1/meson-info"; touch "$1/build.ninja"
sed "s|@|$1|g" "$FAKE_FOLDER/intro-targets.json" >"$1/meson-info/intro-targets.json"
sed "s|@|$1|g" "$FAKE_FOLDER/intro-tests.json" >"$1/meson-info/intro-tests.json" """,
    "cuobjdump": """[ "$FAKE" = counts=fail ] && { echo "no nvdisasm" >&2; exit 1; }
for kernel in wide narrow; do
    printf '\\t\\tFunction : %s\\n        /*0000*/  STG.E.128 [R2.64], R4 ;\\n' $kernel
    [ $kernel = wide ] || printf '        /*0010*/  STG.E [R2.64], R4 ;\\n        /*0020*/  STL [R1], R4 ;\\n'
done""",
    "dpkg-deb": """[ -d "$3" ] && exit
mkdir -p "$3/usr/bin"; printf '#!/bin/sh\\necho compiler of a package\\n' >"$3/usr/bin/packed-cc"; chmod +x "$3/usr/bin/packed-cc" """,
    "ninja": """behave build
cd "$2"; shift 4
for file in "$@"; do mkdir -p "$(dirname "$file")"; cp "$FAKE_FOLDER/built/$(basename "$file")" "$file"; done
case $FAKE in counts=*) touch kernels/cuda/noun.cu.o ;; esac""",
}
# Part sanitize sets TIDE_TEST_SMALL. Without it the sanitizer runs, and the tests run, for part test.
SANITIZER = '[ "$TIDE_TEST_SMALL" ] && behave sanitize || behave memcheck\nshift 4\n"$@"'
TRAIN = """case "$*" in
"train --model "*.json*) behave train ;;
esac
case "$*" in
*recompute*) behave resident ;; *llama*) behave streamed ;; *nano*) behave budget ;; *.json*) behave largest ;; esac
exec python3 -IS "$FAKE_FOLDER/train.py" "$@" """
TRAIN_PY = """import json, os, sys
if sys.argv[1] == "info":
    print(json.dumps({"rates": {"h2d_bytes_per_second": 5e10, "d2h_bytes_per_second": 5e10},
                      "cuda": {"gpus": [{"device": "cuda:0", "memory_bytes": 80 << 30}]}}))
    sys.exit(0)
if sys.argv[1] == "plan":
    with open(sys.argv[sys.argv.index("--model") + 1]) as file:
        config = json.load(file)
    layers = config.get("n_layer") or config["num_hidden_layers"]
    fits = layers <= 26 and layers != 3 and os.environ["FAKE"] != "plan=refuse"
    print(json.dumps({"fits": fits, "refusal": "host budget is too small"}))
    sys.exit(0 if fits else 1)
given = dict(zip(sys.argv[2::2], sys.argv[3::2]))
keys = "step_seconds tokens_per_second compute_seconds stall_seconds h2d_bytes d2h_bytes adam_host_seconds adam_device_seconds".split()
with open(given["--metrics"], "w") as file:
    for step in range(1, int(given["--steps"]) + 1):
        file.write(json.dumps({"step": step, "loss": 1 / step, "grad_norm": 2.0, **dict.fromkeys(keys, 0.5)}) + "\\n")
"""
# A fake module torch: as soon as gpt2_torch.py imports it, it prints a result and exits, with status 1 for 16
# layers.
TORCH_PY = """import json, sys
layers = int(sys.argv[sys.argv.index("--layers") + 1])
print(json.dumps({"params": layers * 201e6 + 0.21e9, "tokens_per_second": 0.1}))
sys.exit(layers == 16)
"""
GPU_TEST = '[ "$TIDE_TEST_SMALL" ] || behave test\nbehave "${0##*/}"\necho fine'
BENCH = """behave kernels
case "$*" in
*matmuls*) echo '{"bench": "gpu", "section": "matmuls", "name": "limit: product", "value": 700, "unit": "TFLOP/s", "note": ""}' ;;
*copies*) echo '{"bench": "gpu", "section": "copies", "name": "chunks in", "value": 0.97, "unit": "x", "at_least": 0.95, "note": ""}'
    if [ "$FAKE" = link=busy ]; then # the second time until nvidia-smi has been asked twice
        [ -e "$FAKE_FOLDER/copied" ] || : >"$FAKE_FOLDER/asked"
        [ ! -e "$FAKE_FOLDER/copied" ] || until [ "$(wc -l <"$FAKE_FOLDER/asked")" -ge 2 ]; do sleep 0.05; done
        : >"$FAKE_FOLDER/copied"
    fi ;;
*attention*) behave attention ;;
*candidates*) echo '{"name": "one of many", "value": null, "unit": "us", "candidate": 3, "note": ""}' ;;
esac"""
# Name and program of each GPU test, in the order that gpu_check.sh runs them; describe_build lists them in
# the reverse order.
TESTS = {"gpu_device": "gpu_small_device", "gpu_program": "gpu_program", "gpu_tile": "gpu_small_tile",
         "gpu_norms": "gpu_small_norms", "gpu_bits": "gpu_large_bits"}
MEMCHECK = "memcheck gpu_small_device"  # its place in the order is behind gpu_program


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(BEHAVE + text + "\n")
    path.chmod(0o755)


class Scene:
    """A folder of fakes that make gpu_check.sh believe that it is on a machine with a GPU."""

    def __init__(self, program):
        self.folder = Path(tempfile.mkdtemp(prefix="tidepool-gpu-check-"))
        for name, text in FAKES.items():
            script(self.folder / "bin" / name, text)
        # `python3` of PATH may be a slow wrapper.
        script(self.folder / "bin/python3", f'exec {sys.executable} "$@"')
        script(self.folder / "sanitizer/compute-sanitizer", SANITIZER)
        for name in TESTS.values():
            script(self.folder / "built" / name, GPU_TEST)
        script(self.folder / "built/bench_gpu", BENCH)
        script(self.folder / "built/tidepool", TRAIN)
        script(self.folder / "built/libtidepool_cuda.so", "")
        script(self.folder / "real/tidepool", f"""for word; do shift; [ "$word" = cuda:0 ] && word=host; set -- "$@" "$word"; done
exec {program} "$@" """)
        (self.folder / "train.py").write_text(TRAIN_PY)
        self.describe_build()
        self.runs = 0

    def describe_build(self):
        programs = {"tidepool": "tools/tidepool", "bench_gpu": "tests/bench/bench_gpu",
                    **{name: f"tests/gpu/{name}" for name in TESTS.values()}}
        targets = [{"name": name, "type": "executable", "filename": [f"@/{file}"]} for name, file in programs.items()]
        targets += [{"name": "tidepool_cuda", "type": "shared module", "filename": ["@/kernels/cuda/libtidepool_cuda.so"]},
                    {"name": "tidepool_cuda", "type": "shared module", "filename": ["@/tests/gpu/fake/libtidepool_cuda.so"]},
                    {"name": "test_not_wanted", "type": "executable", "filename": ["@/tests/test_not_wanted"]}]
        tests = [{"name": name, "cmd": [f"@/tests/gpu/{program}"], "env": {}, "timeout": 30, "suite": ["tidepool:gpu"]}
                 for name, program in reversed(TESTS.items())]
        (self.folder / "intro-targets.json").write_text(json.dumps(targets))
        (self.folder / "intro-tests.json").write_text(json.dumps([*tests, {"name": "other", "cmd": ["false"], "env": {}, "timeout": 1,
                                                                            "suite": ["tidepool"]}]))

    def new(self):
        self.runs += 1
        return self.folder / f"run-{self.runs}"

    @staticmethod
    def command(run, *options, minutes=MINUTES):
        return [str(CHECK), "--quick", "--minutes", str(minutes), "--build", str(run), "--out", str(run / "out"), *options]

    def environment(self, behaviour):
        folders = [self.folder / "bin", self.folder / "sanitizer", *map(Path, os.environ["PATH"].split(":"))]
        if behaviour == "sanitize=missing":
            folders = [folder for folder in folders if not (folder / "compute-sanitizer").exists()]
        given = {"PATH": ":".join(map(str, folders)), "FAKE": behaviour, "FAKE_FOLDER": str(self.folder),
                 "CUDA_HOME": str(self.folder)}
        return {**os.environ, **given}

    def start(self, run, *options, behaviour="", minutes=MINUTES):
        return subprocess.Popen(self.command(run, *options, minutes=minutes), env=self.environment(behaviour), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, start_new_session=True)

    def check(self, run, *options, behaviour="", minutes=MINUTES):
        began = time.monotonic()
        process = self.start(run, *options, behaviour=behaviour, minutes=minutes)
        out, err = process.communicate(timeout=minutes * 60 + 60)
        return Outcome(run / "out", process.returncode, out, err, time.monotonic() - began)

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class Outcome:
    def __init__(self, folder, status, out, err, seconds):
        self.folder, self.status, self.out, self.err, self.seconds = folder, status, out, err, seconds
        report = folder / "gpu_check.json"
        self.report = json.loads(report.read_text()) if report.exists() else {"parts": {}}
        self.parts = self.report["parts"]

    def status_of(self, part):
        return self.parts.get(part, {}).get("status")

    def row(self, what):
        return next((row for result in self.parts.values() for row in result["rows"] if row.get("what") == what), {})

    def figures(self):
        return {row["name"]: row for result in self.parts.values() for row in result["figures"]}

    def fits(self):
        """Whether the output folder holds at most FILES_MAX files, each below FILE_MAX_BYTES."""
        files = list(self.folder.iterdir()) if self.folder.exists() else []
        return len(files) <= FILES_MAX and all(path.stat().st_size < FILE_MAX_BYTES for path in files)

    def __str__(self):
        return f"exit {self.status} after {self.seconds:.1f} s\n{self.out}\n{self.err}"


# --- a machine where all is well ---

def check_all_is_well(scene, tap):
    run = scene.check(scene.new())
    passed = {part: run.status_of(part) for part in PARTS}
    tap.ok(run.status == 0 and list(run.parts) == list(PARTS), "all parts run, in their order", run)
    tap.ok(passed == {**dict.fromkeys(PARTS, "passed"), "peers": "skipped"}, "all parts pass, but for the one without PyTorch", passed)
    tap.ok(run.fits(), "few files are left, none large", list(run.folder.iterdir()))
    tap.ok(not (run.folder.parent / "tests/gpu/fake").exists() and (run.folder.parent / "kernels/cuda").exists(),
           "what no GPU needs is not built", list(run.folder.parent.rglob("*.so")))
    figures = run.figures()
    tap.ok("limit: product" in figures and figures["gpt2-nano, all budgets: losses and norms have the same bits"]["met"],
           "figures of the kernels and of the budgets are in the report", figures)
    table = (run.folder / "gpu_check.md").read_text()
    words = [word in table for word in ("LLMQ", "share of the measured product's rate", "NVIDIA Stand-in")]
    tap.ok(table in run.out and "one of many" not in table and all(words),
           "the table holds the GPU, what was derived, and what others published", table)
    steps = [step["name"] for step in run.parts["test"]["steps"]]
    tap.ok(steps == ["tidepool info", *(list(TESTS)[:2]), MEMCHECK, *(list(TESTS)[2:])],
           "device and program are tested first, then small tests, and only those of the suite", steps)
    scene.calm = run


def check_real_program(scene, tap):
    shutil.copy(scene.folder / "real/tidepool", scene.folder / "built/tidepool")
    run = scene.check(scene.new(), "--only", "build", "resident", "budget", "streamed", "largest")
    script(scene.folder / "built/tidepool", TRAIN)
    figures = run.figures()
    same = [row["value"] for name, row in figures.items() if "same bits" in name]
    tap.ok(run.status == 0 and same == [1], "the real program: the same bits under every budget", run)
    ratio = figures.get("gpt2-nano, model data 4 x device budget: step / limit", {})
    tap.ok(0.5 < (ratio.get("value") or 0) < 50 and set(ratio.get("limits", {})) == {"compute", "link in", "link out", "adam"},
           "the real program: a budget's step over that run's own limits", ratio)


# --- parts misbehave ---

# Two of these parts never follow each other, so that a sound part follows each that misbehaves. Most others
# need part build.
GROUPS = (("environment", "test", "kernels", "streamed", "sanitize"), ("probe", "resident", "budget", "largest"),
          ("build",))
NEED_BUILD = ("test", "resident", "kernels", "budget", "streamed", "largest", "sanitize")


def check_misbehaviour(scene, tap):
    """All cases run at the same time, since they sleep for most of it."""
    cases = [(behaviour, [part for part in parts if (part, behaviour) != ("environment", "fail")])
             for behaviour in ("hang", "fail") for parts in GROUPS]  # without an environment no part runs
    folders = [scene.new() for _ in cases]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = list(pool.map(lambda case, folder: scene.check(
            folder, *(["--limit", *(f"{part}={LIMIT_SECONDS}" for part in case[1])] if case[0] == "hang" else []),
            behaviour=" ".join(f"{part}={case[0]}" for part in case[1])), cases, folders))
    for (behaviour, parts), run in zip(cases, runs):
        told = f"{ {name: (result['status'], result['why']) for name, result in run.parts.items()} }\n{run}"
        for part in parts:
            wrong = run.parts.get(part, {})
            late = behaviour == "hang" and wrong["seconds"] > LIMIT_SECONDS + SLACK_SECONDS
            right = wrong.get("status") == "failed" or behaviour == "hang" and wrong.get("status") == "cut"
            tap.ok(run.status == 1 and right and wrong["why"] and not late, f"{part}: {behaviour}: it is told", told)
        skipped = ("peers", *(NEED_BUILD if "build" in parts else ()))
        stand = [run.status_of(other) == ("skipped" if other in skipped else "passed") for other in PARTS
                 if other not in parts]
        tap.ok(all(stand) and run.fits(), f"{', '.join(parts)}: {behaviour}: the others stand", told)
    slept = read(scene.folder / "asleep").split()
    asleep = [pid for pid in slept if " (sleep) S " in read(Path("/proc") / pid / "stat")]
    tap.ok(not asleep and len(slept) >= len(PARTS) - 1, "what a command that was cut had started is ended", asleep)
    tap.ok("seen before the cut" in runs[0].figures(), "what a part told before it was cut is in the report",
           runs[0])
    run = scene.check(scene.new(), "--only", "build", "test", behaviour="test=slow")
    tap.ok(run.status == 0, "a slow part is waited for as long as it has", run)


def check_machine(scene, tap):
    run = scene.check(scene.new(), behaviour="driver=old")
    line = "the driver runs CUDA 12.4, which is too old for the toolkit's 13.0"
    tap.ok(run.status == 1 and run.parts["environment"]["why"] == f"driver: {line}" and
           all(run.status_of(part) == "skipped" and run.parts[part]["steps"][0]["why"] == line for part in PARTS[1:]),
           "a driver that is too old for the toolkit: it is told, and nothing is built", run.parts)
    tap.ok(run.row("gpu")["throttle reasons"] == "0x0000000000000004", "throttle reasons of an older driver", run.row("gpu"))
    run = scene.check(scene.new(), "--only", "build", "--architecture", "90", behaviour="driver=old")
    tap.ok(run.status == 0 and run.status_of("build") == "passed", "to build for a named architecture needs no driver", run)
    run = scene.check(scene.new(), "--only", "environment", "build", "kernels", behaviour="link=busy")
    link = run.row("link under load")
    tap.ok(run.status == 0 and link["pcie.link.gen.current"] == "5" and link["throttle reasons"] == "0x0000000000000001",
           "the link's generation is that of the busiest instant", link)
    tap.ok(run.row("CUDA") == {"what": "CUDA", "driver": "13.0", "toolkit": "13.0"} and
           {"enabled", "shmem_enabled", "nr_hugepages"} < set(run.row("huge pages")),
           "versions of CUDA and huge pages are in the report", run.parts["environment"])


def check_counts(scene, tap):
    run = scene.check(scene.new(), "--only", "build", behaviour="counts=fine")
    spills = {row["kernel"]: row["spill"] for row in run.parts["build"]["rows"]}
    tap.ok(run.status == 0 and spills == {"wide": 0, "narrow": 4} and "2, 1 of them spill, 1 stores narrower than 16 bytes" in run.out,
           "spills and narrow stores of each kernel are in the report, their sums in the table", run)
    run = scene.check(scene.new(), "--only", "build", behaviour="counts=fail")
    steps = {step["name"]: step for step in run.parts["build"]["steps"]}
    tap.ok(run.status == 0 and steps["kernel_counts"]["status"] == "skipped" and "no nvdisasm" in steps["kernel_counts"]["why"],
           "where the toolkit can't read kernels the build passes, and why is told", run)


def check_not_fatal(scene, tap):
    check = SimpleNamespace(options=None, environment=os.environ, write=lambda: None, log=gpu_check.Log(scene.folder / "log", False))
    part = gpu_check.Part(check, "some", 600)
    part.step("right", ["true"])
    part.step("late", ["sleep", "60"], limit=0.1, fatal=False)
    part.step("too late", ["true"], limit=-1, fatal=False)
    part.end()
    statuses = [step["status"] for step in part.result["steps"]]
    tap.ok(statuses == ["passed", "skipped", "skipped"] and part.result["status"] == "passed",
           "a step that is not fatal may be cut, and does not fail its part", part.result)


def check_deps(scene, tap):
    """A copy of tools/ with a folder of packages beside it; the fake unpacks a compiler from the package."""
    tree, build = scene.folder / "carried", scene.new()
    for name in ("gpu_check.sh", "dev/packages.sh", "dev/gpu/gpu_check.py", "dev/gpu/gpu_parts.py", "dev/gpu/gpu_report.py"):
        (tree / "tools" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tools" / name, tree / "tools" / name)
    script(tree / ".deps/debs/some.deb", "")
    for what in ("unpacked in the build folder, and used", "used again"):
        subprocess.run([tree / "tools/gpu_check.sh", "--only", "environment", "--build", build], check=False, capture_output=True,
                       env={**scene.environment(""), "CC": "packed-cc"})
        run = Outcome(build / "report", 0, "", "", 0)
        tap.ok(run.row("compiler").get("version") == "compiler of a package" and (build / "deps-root/usr/bin/packed-cc").exists() and
               list((tree / ".deps").iterdir()) == [tree / ".deps/debs"],
               f"packages that were carried are {what}", run.parts)


def check_full_sizes(scene, tap):
    """Without --quick: the benchmarks take their full sizes, on the fake program and the fake PyTorch."""
    (scene.folder / "torch").mkdir()
    (scene.folder / "torch/torch.py").write_text(TORCH_PY)
    for case, wanted in (("resident", "llama-3.2-1b, resident: tokens a second"), ("largest", "GPT of 12.1 billion: tokens a second"),
                         ("budget", "gpt2-xl, model data 4 x device budget: step / limit"),
                         ("streamed", "llama-3.1-8b of 26 layers, streamed: exit time"),
                         ("peers", "1.82 billion: tokens a second over FSDP2's with CPU offload")):
        run = subprocess.run([sys.executable, ROOT / "tests/bench/gpu/train.py", scene.folder / "built/tidepool", case],
                             env={**scene.environment(""), "PYTHONPATH": str(scene.folder / "torch")}, capture_output=True, text=True, check=False)
        tap.ok(run.returncode == 0 and f'"{wanted}"' in run.stdout, f"{case}: in full", f"{run.stdout}\n{run.stderr}")
        if case == "resident":
            tap.ok(all(f'"{name}"' in run.stdout for name in gpu_report.EXPECTED), "figures that are expected are measured", run.stdout)


def check_largest(scene, tap):
    """The fake program's plan refuses 3 layers and all counts above 26."""
    def run_with(behaviour):
        run = scene.check(scene.new(), "--only", "build", "largest", behaviour=behaviour)
        return run, run.figures().get("largest GPT that trained", {}), run.parts["largest"]["why"]

    run, figure, _ = run_with("")
    tap.ok(run.status == 0 and figure["value"] == figure["bound"] > 0 and
           "GPT of 0.0147 billion: tokens a second" in run.figures(), "the largest model is the largest that plan says fits", run)
    run, figure, why = run_with("plan=refuse")
    tap.ok(run.status == 1 and figure["value"] == 0 and "no model fits: host budget" in why, "no model fits: it is told", run)
    run, figure, why = run_with("train=fail")
    tap.ok(run.status == 1 and figure["value"] == 0 < figure["bound"] and "gpt2-1-256" in why,
           "the largest fails to train: it is told, and a smaller one is tried", run)


def check_first_tests(scene, tap):
    cases = (("gpu_program=hang memcheck=hang", ("gpu_program", MEMCHECK), "cut"), ("memcheck=fail", (MEMCHECK,), "failed"),
             ("sanitize=missing", (MEMCHECK,), "skipped"))
    folders = [scene.new() for _ in cases]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = list(pool.map(lambda case, folder: scene.check(folder, "--only", "build", "test", "--limit", "test=10", behaviour=case[0]),
                             cases, folders))
    for (behaviour, wrong, told), run in zip(cases, runs):
        statuses = {step["name"]: step["status"] for step in run.parts["test"]["steps"]}
        tap.ok({statuses.pop(name) for name in wrong} == {told} and set(statuses.values()) == {"passed"} and
               run.status == (told != "skipped"), f"{behaviour}: {' and '.join(wrong)}: {told}, and the tests behind run", run)


def check_flood(scene, tap):
    run = scene.check(scene.new(), "--only", "build", "test", behaviour="test=flood")
    log = (run.folder / "gpu_check.log").read_bytes()
    tap.ok(run.fits() and b"bytes left out" in log and b"fine" in log, "of much output the log keeps the beginning and the end", len(log))


# --- going on ---

def check_resume(scene, tap):
    """Goes on where the run of check_all_is_well ended."""
    folder, before = scene.calm.folder.parent, scene.calm.parts["kernels"]
    run = scene.check(folder, "--only", "test", "sanitize", behaviour="test=fail")
    tap.ok(run.status == 1 and [name for name in PARTS if f"{name} (at most" in run.out] == ["test", "sanitize"] and
           run.parts["kernels"] == before and run.status_of("test") == "failed", "--only: these parts again, the others' results stay", run)
    run = scene.check(folder, "--resume")
    again = [name for name in PARTS if f"{name} (at most" in run.out]
    tap.ok(run.status == 0 and again == ["test", "peers"], "--resume: what has passed is left out", run)
    tap.ok(all(run.status_of(part) == "passed" for part in PARTS if part != "peers") and run.parts["kernels"] == before,
           "--resume: its results are kept", run.parts)
    report = folder / "out/gpu_check.json"
    report.write_text(json.dumps({**run.report, "sources": "others"}))
    run = scene.check(folder, "--resume", "--only", "environment")
    tap.ok(list(run.parts) == ["environment"] and "of other sources" in run.out, "results of other sources are dropped, saying so", run)
    report.write_text('{"parts": ')
    run = scene.check(folder, "--resume", "--only", "environment")
    tap.ok(run.status == 0 and run.status_of("environment") == "passed", "a report that can't be read is begun anew", run)


# --- killed ---

def check_kills(scene, tap):
    generator = random.Random(5)
    calm = scene.calm.seconds
    for kill in range(KILLS):
        folder, instant = scene.new(), generator.uniform(0.05, 1.0) * calm
        process = scene.start(folder)
        time.sleep(instant)
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        ended = {line.split()[3].rstrip(":"): line.split()[4] for line in out.splitlines() if " s: " in line and " after " in line}
        try:
            run = Outcome(folder / "out", process.returncode, out, "", instant)
            whole = all(run.status_of(part) == status for part, status in ended.items()) and run.fits()
        except ValueError as error:
            run, whole = error, False
        tap.ok(whole, f"killed after {instant:.2f} s of {calm:.2f}, {len(ended)} parts having ended: the report tells of those", run)
    folder = scene.new()
    process = scene.start(folder, "--only", "build", "kernels", behaviour="attention=hang")
    wait_for(folder, "kernels: attention")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    run = Outcome(folder / "out", process.returncode, "", "", 0)
    tap.ok("limit: product" in run.figures() and run.status_of("kernels") == "running",
           "killed within a part: what its steps had found is in the report", run.parts.get("kernels"))
    folder = scene.new()
    process = scene.start(folder, "--only", "build", "test", behaviour="test=hang")
    wait_for(folder, "test: gpu_device")
    process.terminate()
    out, err = process.communicate(timeout=30)
    run = Outcome(folder / "out", process.returncode, out, err, 0)
    tap.ok(run.status == 1 and run.status_of("test") == "cut" and run.status_of("build") == "passed" and "signal 15" in out,
           "SIGTERM: the part that ran is told as cut", run)


def wait_for(folder, step):
    deadline = time.monotonic() + 60
    while f"=== {step}" not in read(folder / "out/gpu_check.log") and time.monotonic() < deadline:
        time.sleep(0.05)


def read(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# --- usage ---

def check_usage(scene, tap):
    for options, words in ((["--only", "tset"], "tset"), (["--minutes", "0"], "--minutes"), (["--limit", "tset=3"], "tset=3"),
                           (["--architecture", "9"], "--architecture 9"), (["--al"], "--al"), (["build"], "build")):
        try:
            said = f"taken as {gpu_check.options_read(options)}"
        except gpu_check.Usage as usage:
            said = str(usage)
        tap.ok(words in said and not said.startswith("taken") and "\n" not in said, f"{' '.join(options)}: refused in one line", said)
    run = scene.check(scene.new(), "--only", "tset")
    tap.ok(run.status == 2 and "tset" in run.err and len(run.err.splitlines()) == 1,
           "a wrong command line: one line, exit status 2", run)
    run = scene.check(scene.new(), behaviour="environment=fail")
    tap.ok(run.status == 2 and "no NVIDIA GPU" in run.err and "went wrong" in run.err,
           "without a GPU: what nvidia-smi says, exit status 2", run)
    run = scene.check(scene.new(), "--architecture", "80", "--only", "build", behaviour="environment=fail")
    tap.ok(run.status == 0, "to build for a named architecture needs none", run)


def main():
    scene, tap = Scene(Path(sys.argv[1]).resolve()), Tap()
    try:
        for check in [value for name, value in globals().items() if name.startswith("check_")]:
            check(scene, tap)
    finally:
        scene.close()
    tap.done()


if __name__ == "__main__":
    main()
