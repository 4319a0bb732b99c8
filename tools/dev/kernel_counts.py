#!/usr/bin/env python3
"""Counts instructions, registers, spills, shared memory and accesses to global memory by width in the machine
code of the CUDA kernels. Needs no GPU, but cuobjdump and nvdisasm (from the toolkit, or PyPI's in TIDE_PYPI)
and c++filt.

usage: kernel_counts.py [--architecture N] [--only WORD] [--json | --check BOUNDS | --write BOUNDS] FILE ...

FILE is the module (libtidepool_cuda.so) or one of its objects (kernels/cuda/NOUN.cu.o) with machine code for
compute capability N (90). Prints a line for each kernel that has WORD in its name:

    all, loop    all instructions; instructions of the main loop, which is the longest range that a backward
                 branch spans
    regs         registers of a thread
    spill        bytes that the instructions move to and from local memory: spilled registers, arrays outside
                 registers
    shared       static shared memory of a block in bytes, from 90 on including 1 KiB that the system reserves
    stores, loads    accesses to global memory, as WIDTH-IN-BYTES:INSTRUCTIONS. Kernels with `false` in their
                     name copy element by element, since they take rows at any address: their accesses are
                     narrow by intention

--json prints a JSON object for each kernel instead, with the sums of accesses narrower than 16 bytes.

--write writes the counts to BOUNDS, a text file with a line for each kernel. --check compares with that file
and prints a line for each fault: a kernel with over a tenth more instructions than its bound, more spilled
bytes, or more stores or loads narrower than 16 bytes; a kernel without bounds; bounds without a kernel.
BOUNDS hold for one version of nvcc, which they name. When nvcc or the kernels change, write them anew:

    ninja -C BUILD && tools/dev/kernel_counts.py --write tools/dev/kernel_counts.txt BUILD/kernels/cuda/*.cu.o

Exit status: 1 if --check found a fault, 2 for a wrong command line or if a needed program is missing.
"""
import argparse
import bisect
import collections
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys

PLACES = [os.path.join(os.environ.get("TIDE_PYPI", ""), "nvidia/cu13/bin"), "/usr/local/cuda/bin"]
MORE_INSTRUCTIONS = 1.1
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}  # bytes by suffix; without a suffix 4
RESOURCES = re.compile(r" Function (\S+):\s+REG:(\d+) STACK:\d+ SHARED:(\d+)")
FUNCTION = re.compile(r"^\s+Function : (\S+)", re.MULTILINE)
INSTRUCTION = re.compile(r"^ +/\*([0-9a-f]{4,})\*/ +(@!?U?P\w+ +)?([A-Z][\w.]*) *([^;\n]*);", re.MULTILINE)


class Unusable(Exception):
    """The counts can't be made. The message is shown to the user."""


class Kernel:
    def __init__(self, name, registers=0, shared=0):
        self.name, self.registers, self.shared = name, registers, shared
        self.instructions = self.loop = self.spill = 0
        self.stores, self.loads = collections.Counter(), collections.Counter()
        # Addresses of the instructions since the last EXIT. A branch back beyond them does not count as a loop:
        # the blocks behind an EXIT return into the middle of loops before it.
        self.places = []

    def add(self, place, conditional, operation, operands):
        word, *suffixes = operation.split(".")
        width = next((WIDTHS[suffix] for suffix in suffixes if suffix in WIDTHS), 4)
        target = re.search(r"0x([0-9a-f]+) *$", operands) if word == "BRA" else None
        target = int(target.group(1), 16) if target else None
        if word == "NOP" or target == place:  # padding after the kernel's end
            return
        self.instructions += 1
        self.places.append(place)
        self.spill += width * (word in ("STL", "LDL"))
        self.stores[width] += word == "STG"
        self.loads[width] += word == "LDG"
        if target is not None and self.places[0] <= target < place:
            self.loop = max(self.loop, len(self.places) - bisect.bisect_left(self.places, target))
        if word == "EXIT" and not conditional:
            self.places = []

    @property
    def bounds(self):
        return [self.instructions, self.spill, narrow(self.stores), narrow(self.loads)]


def narrow(accesses):
    return sum(count for width, count in accesses.items() if width < 16)


def program_find(name):
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *PLACES]))
    if found is None:
        raise Unusable(f"no {name} here")
    return found


def ask(*command, said=None):
    environment = dict(os.environ, PATH=os.pathsep.join([os.path.dirname(command[0]), os.environ.get("PATH", "")]))
    run = subprocess.run(command, input=said, capture_output=True, text=True, env=environment, check=False)
    if run.returncode != 0:
        raise Unusable(f"{os.path.basename(command[0])}: {(run.stderr or run.stdout).strip() or f'status {run.returncode}'}")
    return run.stdout


def short_names(mangled):
    """Shortens "void swiglu_kernel<tide_cuda_bf16, true>(tide_cuda_bf16::stored const*, ...)" to
    "swiglu_kernel<bf16, true>"."""
    full = ask(program_find("c++filt"), said="\n".join(mangled)).splitlines()
    return [re.sub(r"\btide_(?:cuda_)?|\(anonymous namespace\)::", "", re.sub(r"^void ", "", re.sub(r"\((?!anon).*", "", name)))
            for name in full]


def kernels_of(text):
    """The kernels in the output of cuobjdump -sass -res-usage."""
    resources = {name: (int(registers), int(shared)) for name, registers, shared in RESOURCES.findall(text)}
    _, *words = FUNCTION.split(text)
    kernels = []
    for name, code in zip(words[::2], words[1::2]):
        kernels.append(Kernel(name, *resources.get(name, ())))
        for place, *instruction in INSTRUCTION.findall(code):
            kernels[-1].add(int(place, 16), *instruction)
    return kernels


def kernels_read(files, architecture):
    cuobjdump = program_find("cuobjdump")

    def file_read(file):
        if not os.path.isfile(file):
            raise Unusable(f"{file}: no such file")
        found = kernels_of(ask(cuobjdump, "-sass", "-res-usage", "-arch", f"sm_{architecture}", file))
        if not found:
            raise Unusable(f"{file}: no machine code for sm_{architecture} in it")
        return found

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        kernels = [kernel for found in pool.map(file_read, files) for kernel in found]
    for kernel, name in zip(kernels, short_names([kernel.name for kernel in kernels])):
        kernel.name = name
    return sorted(kernels, key=lambda kernel: kernel.name)


def by_width(accesses):
    return " ".join(f"{width}:{count}" for width, count in sorted(accesses.items()) if count)


def rows_print(kernels):
    for kernel in kernels:
        print(json.dumps({"kernel": kernel.name, **dict(zip(BOUNDS, kernel.bounds)), "loop": kernel.loop, "registers": kernel.registers,
                          "shared": kernel.shared, "stores": by_width(kernel.stores), "loads": by_width(kernel.loads)}))


def table_print(kernels):
    form = "{:56} {:>6} {:>6} {:>5} {:>6} {:>7}  {:26} {}"
    print(form.format("kernel", "all", "loop", "regs", "spill", "shared", "stores", "loads"))
    for kernel in kernels:
        print(form.format(kernel.name, kernel.instructions, kernel.loop, kernel.registers, kernel.spill, kernel.shared,
                          by_width(kernel.stores), by_width(kernel.loads)).rstrip())


# ---- bounds ----

BOUNDS = ["instructions", "spill", "narrow_stores", "narrow_loads"]


def bounds_write(path, kernels, architecture):
    release = re.search(r"release ([\d.]+)", ask(program_find("nvcc"), "--version"))
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"# nvcc {release.group(1)}, sm_{architecture}, by tools/dev/kernel_counts.py --write: {' '.join(BOUNDS)} kernel\n")
        for kernel in kernels:
            file.write("{:5} {:5} {:4} {:4}  {}\n".format(*kernel.bounds, kernel.name))


def bounds_read(path):
    bounds = {}
    with open(path, encoding="utf-8") as file:
        lines = file.readlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("#") or not line.strip():
            continue
        found = re.fullmatch(r"\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+(.+?)\s*", line)
        if not found:
            raise Unusable(f"{path}:{number}: not '{' '.join(BOUNDS)} kernel'")
        bounds[found.group(5)] = [int(word) for word in found.groups()[:4]]
    return bounds


def faults(kernels, bounds):
    for kernel in kernels:
        if kernel.name not in bounds:
            yield f"{kernel.name}: has no bounds"
            continue
        for what, count, bound in zip(BOUNDS, kernel.bounds, bounds[kernel.name]):
            if count > bound * (MORE_INSTRUCTIONS if what == "instructions" else 1):
                yield f"{kernel.name}: {what} {count}, bound {bound}"
    for name in sorted(bounds.keys() - {kernel.name for kernel in kernels}):
        yield f"{name}: has bounds, and is not there"


def main():
    class Parser(argparse.ArgumentParser):
        def error(self, message):
            self.exit(2, f"kernel_counts.py: {message}\n")

    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--architecture", type=int, default=90, metavar="N")
    parser.add_argument("--only", default="", metavar="WORD")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--json", action="store_true")
    instead.add_argument("--check", metavar="BOUNDS")
    instead.add_argument("--write", metavar="BOUNDS")
    options = parser.parse_args()
    try:
        bounds = bounds_read(options.check) if options.check else {}
        kernels = kernels_read(options.files, options.architecture)
        if options.write:
            bounds_write(options.write, kernels, options.architecture)
    except (Unusable, OSError) as error:
        parser.error(str(error))
    if options.check:
        found = list(faults(kernels, bounds))
        print("\n".join(found + [f"{len(kernels)} kernels, {len(found)} faults"]))
        return 1 if found else 0
    if not options.write:
        (rows_print if options.json else table_print)([kernel for kernel in kernels if options.only in kernel.name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
