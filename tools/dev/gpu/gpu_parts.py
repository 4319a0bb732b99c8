"""The parts of tools/gpu_check.sh, in the order in which they run. PARTS gives each a weight: a part may take
that share of the time that is left for it and the parts after it."""
import dataclasses
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DEPS = ROOT / ".deps"
DEPS_LIMIT_BYTES = 60 << 20  # most bytes of packages that can be copied to a machine together with the tree
DEBIAN_PACKAGES = """libhwloc-dev libhwloc15 libjansson-dev libjansson4 libjemalloc-dev libjemalloc2 libdnnl-dev libdnnl2
    ocl-icd-libopencl1 libcmocka-dev libcmocka0 libudev1 libcap2 pkgconf pkgconf-bin libpkgconf3""".split()
NVIDIA_SMI_SECONDS = 15
GPU_FIELDS = ["name", "driver_version", "compute_cap", "pci.bus_id", "memory.total", "memory.free", "clocks.sm", "clocks.mem",
              "clocks.max.sm", "clocks.max.mem", "power.draw", "power.limit", "pcie.link.gen.current", "pcie.link.width.current",
              "ecc.mode.current", "persistence_mode", "temperature.gpu"]
LOAD_FIELDS = ["pcie.link.gen.current", "power.draw", "pcie.link.width.current", "clocks.sm"]
THROTTLE_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # older drivers have only the second
HUGE_PAGES = {"enabled": "/sys/kernel/mm/transparent_hugepage/enabled", "nr_hugepages": "/proc/sys/vm/nr_hugepages",
              "shmem_enabled": "/sys/kernel/mm/transparent_hugepage/shmem_enabled"}
BENCH_SECTIONS = ("copies", "launches", "matmuls", "attention", "memory", "candidates")  # the most important first
MEMCHECK = "memcheck gpu_small_device"
FIRST_TESTS = ("gpu_device", "gpu_program", MEMCHECK, "gpu_tile")
# Not under racecheck: the first takes minutes, since it waits between its kernels, and the second runs
# cuBLASLt's, in some of which racecheck reports hazards.
RACECHECK_LEAVES_OUT = ("gpu_small_device", "gpu_small_kernels_matmul")
SANITIZE_SECONDS, MEMCHECK_SECONDS = 120, 60


class Missing(Exception):
    """A program or file that a part needs does not exist. The message is shown to the user."""


# --- the machine ---

def deps_use(check):
    """Adds to the environment the Debian 12 packages in .deps, if any, which run on newer systems, too, and
    the folder of this Python, whose environment may have meson and ninja. The packages are unpacked into the
    build folder, because .deps with unpacked packages would be too large to copy to another machine."""
    root = check.options.build / "deps-root"
    libraries = root / "usr/lib/x86_64-linux-gnu"
    check.environment["PATH"] = f"{check.environment.get('PATH', '')}:{Path(sys.executable).parent}"
    if not root.is_dir():
        for package in sorted((DEPS / "debs").glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    if not root.is_dir():
        return
    environment = check.environment

    def before(name, *folders):
        environment[name] = ":".join([*map(str, folders), *filter(None, [environment.get(name)])])

    environment["PATH"] += f":{root}/usr/bin"
    before("CPATH", root / "usr/include", root / "usr/include/x86_64-linux-gnu")
    before("LIBRARY_PATH", libraries)
    before("LD_LIBRARY_PATH", libraries, root / "lib/x86_64-linux-gnu")
    before("PKG_CONFIG_PATH", libraries / "pkgconfig", root / "usr/share/pkgconfig")
    environment["PKG_CONFIG_SYSROOT_DIR"] = str(root)


def nvidia_smi(fields):
    return ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]


def machine_read(check):
    """Finds the GPU's name and architecture. If nvidia-smi hangs, the report says so and the check goes on.
    """
    options, gpu = check.options, ["no GPU", "", ""]
    check.report["gpu"] = ", ".join(filter(None, gpu))
    needs_none = options.only == ["deps"] or (options.only == ["build"] and options.architecture is not None)
    try:
        status, said = check.ask(nvidia_smi(GPU_FIELDS[:3]), NVIDIA_SMI_SECONDS)
        gpu = [word.strip() for word in said.splitlines()[0].split(",")] if status == 0 and said else [said]
        if status is None:
            gpu = [f"nvidia-smi did not answer in {NVIDIA_SMI_SECONDS} s", "unknown", "9.0"]
    except OSError as error:
        gpu = [f"nvidia-smi: {error.strerror}"]
    if len(gpu) == 3 and re.fullmatch(r"\d+\.\d", gpu[2]):
        options.architecture = options.architecture or int(gpu[2].replace(".", ""))
        check.report["gpu"] = f"{gpu[0]}, driver {gpu[1]}, built for {options.architecture}"
    elif not needs_none:
        raise Missing(f"no NVIDIA GPU: nvidia-smi says '{' '.join(gpu)}'")
    if not needs_none and status == 0:
        driver_read(check)


def driver_read(check):
    """Finds the CUDA versions of the driver and of the toolkit. Code that a toolkit compiles needs a driver
    with at least the same major version; with an older driver the parts that run such code are skipped."""
    told = {"driver": check.ask(["nvidia-smi"], NVIDIA_SMI_SECONDS)[1], "toolkit": ""}
    try:
        told["toolkit"] = check.ask([nvcc_find(check), "--version"], NVIDIA_SMI_SECONDS)[1]
    except Missing:
        pass  # the parts that need nvcc report that it is missing
    found = {name: re.search(r"(?:CUDA (?:UMD )?Version *:|release) *(\d+)\.(\d+)", said) for name, said in told.items()}
    check.cuda = {name: f"{version[1]}.{version[2]}" if version else "unknown" for name, version in found.items()}
    if all(found.values()) and int(found["driver"][1]) < int(found["toolkit"][1]):
        check.too_old = f"the driver runs CUDA {check.cuda['driver']}, which is too old for the toolkit's {check.cuda['toolkit']}"


def throttle_reasons(check):
    answers = (check.ask(nvidia_smi([field]), NVIDIA_SMI_SECONDS) for field in THROTTLE_FIELDS)
    return next((said for status, said in answers if status == 0), "unknown")


def program_find(part, name, *elsewhere):
    found = shutil.which(name, path=part.environment.get("PATH")) or next((p for p in elsewhere if os.access(p, os.X_OK)), None)
    if found is None:
        raise Missing(f"no {name} on this machine")
    return Path(found)


def cuda_home(part):
    return Path(part.environment.get("CUDA_HOME", "/usr/local/cuda"))


def nvcc_find(part):
    return program_find(part, "nvcc", cuda_home(part) / "bin/nvcc", *(str(nvcc) for site in map(Path, filter(None, sys.path))
                                                            for nvcc in site.glob("nvidia/*/bin/nvcc")))


@dataclasses.dataclass
class Library:
    """A library of NVIDIA's that not every toolkit contains: its file and the folder of its header."""
    file: Path
    include: Path
    where: str

    @property
    def can_be_linked(self):
        """Whether the build finds the library: it must be in the toolkit, under a name without a version."""
        return self.where == "toolkit" and self.file.suffix == ".so"


def library_places(part):
    """Pairs of a folder of libraries and the folder of their headers: those of the toolkit, of the system and
    of Python's wheels."""
    try:
        toolkit = nvcc_find(part).resolve().parent.parent
        for folder in (toolkit, toolkit / "targets/x86_64-linux"):
            yield from ((folder / lib, folder / "include", "toolkit") for lib in ("lib64", "lib"))
    except Missing:
        pass
    yield Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/include"), "system"
    for site in map(Path, filter(None, sys.path)):
        yield from ((lib, lib.parent / "include", "Python wheel") for lib in sorted(site.glob("nvidia/*/lib")))


def library_find(part, stem, header):
    for lib, include, where in library_places(part):
        files = sorted(lib.glob(f"lib{stem}.so*"))
        if files and (include / header).is_file():
            return Library(files[0], include, where)
    return None


# --- environment ---

def first_line(path):
    try:
        return Path(path).read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return "unknown"


def memory_row():
    meminfo = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M))
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    cpu = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    return {"what": "machine", "kernel": os.uname().release, "processors": len(os.sched_getaffinity(0)),
            "cpu": cpu[1] if cpu else "unknown",
            **{f"{name}_GiB": round(int(meminfo[name]) / 2**20, 1) for name in ("MemTotal", "MemAvailable")},
            **{f"cgroup_memory_{name}": first_line(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current")},
            "locked_memory_limit": "unlimited" if locked == resource.RLIM_INFINITY else locked}


def environment(part):
    part.found(memory_row())
    part.found({"what": "huge pages", **{name: first_line(path) for name, path in HUGE_PAGES.items()}})
    if part.step("nvidia-smi", nvidia_smi(GPU_FIELDS), limit=NVIDIA_SMI_SECONDS):
        part.found({"what": "gpu", **dict(zip(GPU_FIELDS, (word.strip() for word in part.output.split(",")))),
                    "throttle reasons": throttle_reasons(part.check)})
    if part.check.cuda:
        part.found({"what": "CUDA", **part.check.cuda})
        unknown = "unknown" in part.check.cuda.values()
        part.note("driver", "failed" if part.check.too_old else "skipped" if unknown else "passed",
                  "its version or the toolkit's is not known" if unknown else part.check.too_old)
    for name, header in (("cublasLt", "cublasLt.h"), ("nccl", "nccl.h")):
        library = library_find(part, name, header)
        where, file = (library.where, str(library.file)) if library else ("nowhere", "")
        part.found({"what": f"library {name}", "where": where, "file": file})
    for name, program in (("nvcc", [nvcc_find(part)]), ("compiler", shlex.split(part.environment.get("CC", "cc"))),
                          ("meson", ["meson"])):
        if part.step(name, [*program, "--version"], limit=10, fatal=False):
            version = [line for line in part.output.splitlines() if "release" in line] or part.output.splitlines()
            part.found({"what": name, "version": version[0]})
    if part.step("PyTorch", [sys.executable, "-c", "import torch; print(torch.__version__)"], limit=30, fatal=False):
        part.found({"what": "PyTorch", "version": part.output.strip()})


# --- probe ---

def probe_run(part, name, *runs, flags=()):
    program = part.options.build / name
    if part.step(f"build {name}", [nvcc_find(part), "-O2", f"-arch=sm_{part.options.architecture}", "-o", program,
                                   ROOT / f"tools/dev/gpu/{name}.cu", *flags]):
        for arguments in runs:
            part.step(" ".join((name, *arguments)), [program, *arguments])


def probe(part):
    probe_run(part, "vmm_probe", (), flags=("-lpthread",))
    nccl = library_find(part, "nccl", "nccl.h")
    if nccl is None:
        part.note("nccl_probe", "skipped", "no NCCL, in the toolkit or as a Python wheel")
        return
    folder = nccl.file.parent
    probe_run(part, "nccl_probe", ("2",), ("3",), flags=(f"-I{nccl.include}", nccl.file, "-Xlinker", f"-rpath={folder}"))


# --- build ---

def cublas_options(part):
    """meson's option for a cuBLASLt that the build does not find. A Python wheel has only versioned file
    names, so this makes a folder of links with the names that the linker needs."""
    library = library_find(part, "cublasLt", "cublasLt.h")
    if library is None or library.can_be_linked:
        return []
    folder = part.options.build / "cublas"
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    links = {folder / "include": library.include, **{folder / "lib" / name: library.file
                                                     for name in ("libcublasLt.so", library.file.name)}}
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return [f"-Dcublas_path={folder}"]


def introspected(part, what):
    try:
        return json.loads((part.options.build / f"meson-info/intro-{what}.json").read_text())
    except (OSError, ValueError) as error:
        raise Missing(f"nothing was built in {part.options.build}") from error


def is_needed(file):
    """Whether the check needs this target: the program, the CUDA module (not that of tests/gpu/fake), the
    GPU's tests and its benchmark."""
    return str(file) in ("tools/tidepool", "kernels/cuda/libtidepool_cuda.so", "tests/bench/bench_gpu") or (
        str(file.parent) == "tests/gpu" and file.name.startswith("gpu_") and not file.suffix)


def build(part):
    folder = part.options.build
    toolkit = f"-Dtoolkit_path={nvcc_find(part).parent.parent}"
    again = ["--reconfigure"] if (folder / "build.ninja").is_file() else []
    options = ["--buildtype=release", "-Dwerror=false", "-Dtests=enabled", "-Dcuda=enabled",
               f"-Dgpu_architectures={part.options.architecture}", toolkit, *cublas_options(part)]
    if not part.step("meson setup", ["meson", "setup", *again, folder, *options]):
        return
    files = [Path(os.path.relpath(file, folder)) for target in introspected(part, "targets") for file in target["filename"]]
    part.step("ninja", ["ninja", "-C", folder, "-k", "0", *filter(is_needed, files)])
    kernels_count(part)


def kernels_count(part):
    """Counts the instructions and spills of the kernels. Skipped if the toolkit lacks the programs for that.
    """
    objects = sorted(part.options.build.glob("kernels/cuda/*.cu.o"))
    if objects:
        path = f"{part.environment['PATH']}:{cuda_home(part)}/bin"
        part.step("kernel_counts", [sys.executable, ROOT / "tools/dev/kernel_counts.py", "--json", "--architecture",
                                    part.options.architecture, *objects], environment={"PATH": path}, fatal=False)
    else:
        part.note("kernel_counts", "skipped", "no kernels are built")


def built(part, name):
    path = part.options.build / name
    if not os.access(path, os.X_OK):
        raise Missing(f"{name} is not built in {part.options.build}")
    return path


# --- tests ---

def step_built(part, name, command, **more):
    """Runs a program of the build, or skips it if it does not exist: some targets may have failed to build.
    """
    if os.access(command[0], os.X_OK):
        part.step(name, command, **more)
    else:
        part.note(name, "skipped", "it is not built")


def test_rank(entry):
    """Sorts the tests: first those of the device and the whole program, each of which may take half of the
    time that is left; then the small tests; then the large ones."""
    name = entry["name"]
    return FIRST_TESTS.index(name) if name in FIRST_TESTS else len(FIRST_TESTS) + ("small" not in " ".join(entry["cmd"]))


def test(part):
    tests = [entry for entry in introspected(part, "tests") if any(suite.split(":")[-1] == "gpu" for suite in entry["suite"])]
    if not tests:
        raise Missing(f"no tests of suite gpu in {part.options.build}")
    step_built(part, "tidepool info", [part.options.build / "tools/tidepool", "info", "--json", "--device", "cuda:0"], limit=60)
    for entry in sorted([*tests, *memcheck_entry(part)], key=test_rank):
        most = 4 * entry["timeout"]
        step_built(part, entry["name"], entry["cmd"], environment=entry["env"],
                   limit=min(most, part.seconds_left() / 2) if entry["name"] in FIRST_TESTS else most)


def sanitized(part, tool, path):
    sanitizer = program_find(part, "compute-sanitizer", cuda_home(part) / "bin/compute-sanitizer")
    return [sanitizer, "--tool", tool, "--error-exitcode", "9", path]


def memcheck_entry(part):
    """The device's test under compute-sanitizer, or none if either does not exist."""
    try:
        return [{"name": MEMCHECK, "cmd": sanitized(part, "memcheck", built(part, "tests/gpu/gpu_small_device")), "env": {},
                 "timeout": MEMCHECK_SECONDS / 4}]
    except Missing as missing:
        part.note(MEMCHECK, "skipped", str(missing))
        return []


def small_tests(part):
    found = sorted(path for path in part.options.build.glob("tests/gpu/gpu_small_*") if path.is_file() and os.access(path, os.X_OK))
    if not found:
        raise Missing(f"no small tests are built in {part.options.build}")
    return found


def sanitize(part):
    for tool in ("memcheck", "racecheck"):
        for path in small_tests(part):
            if tool == "racecheck" and path.name in RACECHECK_LEAVES_OUT:
                continue
            command = ["env", "TIDE_TEST_SMALL=1", *sanitized(part, tool, path)]
            part.step(f"{tool} {path.name}", command, limit=SANITIZE_SECONDS)


# --- benchmarks ---

def kernels(part):
    """Runs bench_gpu section by section. Each section may take half of the time that is left, so that one
    that hangs leaves time to the later ones."""
    for i, section in enumerate(BENCH_SECTIONS):
        last = i + 1 == len(BENCH_SECTIONS)
        command = [built(part, "tests/bench/bench_gpu"), *(["--quick"] if part.options.quick else []), "--only", section]
        if part.step(section, command, limit=part.seconds_left() / (1 if last else 2)) and section == "copies" and part.check.cuda:
            link_under_load(part, command)


def number(text):
    return float(re.sub(r"[^\d.]", "", text) or 0)


def link_under_load(part, command):
    """Repeats the copies, unmeasured, to ask nvidia-smi for the link's speed under load, because an idle link
    falls back to PCIe generation 1. Keeps the answer with the fastest link and the highest power."""
    answers, end = [], time.monotonic() + min(10, part.seconds_left() / 2)
    load = part.check.running = part.check.begin(command)
    while not answers or load.process.poll() is None and time.monotonic() < end:
        status, said = part.check.ask(nvidia_smi(LOAD_FIELDS), NVIDIA_SMI_SECONDS)
        if status != 0 or not said:
            break
        answers.append([word.strip() for word in said.splitlines()[0].split(",")] + [throttle_reasons(part.check)])
        time.sleep(0.1)
    load.kill()
    part.check.running = None
    if answers:
        busiest = max(answers, key=lambda answer: (number(answer[0]), number(answer[1])))
        part.found({"what": "link under load", **dict(zip([*LOAD_FIELDS, "throttle reasons"], busiest))})
    part.note("link under load", "passed" if answers else "skipped", "" if answers else "nvidia-smi does not answer")


def trained(case):
    def run(part):
        arguments = [sys.executable, ROOT / "tests/bench/gpu/train.py", built(part, "tools/tidepool"), case, "--seconds",
                     f"{max(1.0, part.seconds_left() - 2):.0f}", *(["--quick"] if part.options.quick else [])]
        part.step(case, arguments)
    return run


# --- deps ---

def deps(part):
    folder = DEPS / "debs"
    folder.mkdir(parents=True, exist_ok=True)
    apt = program_find(part, "apt-get")
    if part.step("apt-get download", ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", folder, apt, "download", *DEBIAN_PACKAGES]):
        total = sum(path.stat().st_size for path in folder.glob("*.deb"))
        part.note("size", "passed" if total <= DEPS_LIMIT_BYTES else "failed", f"{total / 2**20:.1f} MiB in {folder}")


@dataclasses.dataclass
class Spec:
    weight: int
    run: object
    on_gpu: bool = True  # the part runs code on the GPU that the toolkit compiled


PARTS = {"deps": Spec(120, deps, False), "environment": Spec(25, environment, False), "probe": Spec(45, probe), "build": Spec(130, build),
         "test": Spec(120, test), "resident": Spec(90, trained("resident")), "kernels": Spec(60, kernels),
         "budget": Spec(80, trained("budget")), "streamed": Spec(100, trained("streamed")), "largest": Spec(150, trained("largest")), "peers": Spec(110, trained("peers")),
         "sanitize": Spec(60, sanitize)}
