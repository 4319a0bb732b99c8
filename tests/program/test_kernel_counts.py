#!/usr/bin/env python3
"""tools/dev/kernel_counts.py: how it counts and which counts it refuses.

usage: test_kernel_counts.py SCRIPT NVCC      prints TAP; NVCC is '' in a build without CUDA

A fake cuobjdump prints a fixed text, except in the last case, a kernel with a fault compiled by NVCC, which
is skipped where there is no real cuobjdump. tools/dev/check_builds.sh counts tidepool's kernels.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from test_program import Tap

SCRIPT, NVCC = sys.argv[1:]
TEXT = """
Resource usage:
 Common:
  GLOBAL:0
 Function _Z4loopI14tide_cuda_bf16Lb1EEvPf:
  REG:40 STACK:8 SHARED:1088 LOCAL:0 CONSTANT[0]:560 TEXTURE:0 SURFACE:0 SAMPLER:0
\t\tFunction : _Z4loopI14tide_cuda_bf16Lb1EEvPf
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                    /* 0x00000a00ff017b82 */
                                                                             /* 0x000fe20000000800 */
        /*0010*/              @!P0 BRA 0x40 ;                                /* 0x0000000000008947 */
        /*0020*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ; /* 0x0000000402047981 */
        /*0030*/                   STL.64 [R1], R4 ;                         /* 0x0000000401007387 */
        /*0040*/                   LDL R5, [R1] ;                            /* 0x0000000001057983 */
        /*0050*/             @!UP1 STG.E.U16 desc[UR4][R2.64+0x2], R5 ;      /* 0x0000000502007986 */
        /*0060*/                   STG.E desc[UR4][R2.64], R5 ;              /* 0x0000000502007986 */
        /*0070*/                   STG.E.128 desc[UR4][R2.64], R4 ;          /* 0x0000000402007986 */
        /*0080*/               @P1 BRA 0x20 ;                                /* 0xfffffffc00901947 */
        /*0090*/                   EXIT ;                                    /* 0x000000000000794d */
        /*00a0*/                   BRA 0x0 ;                                 /* 0xfffffffc00f07947 */
        /*00b0*/                   BRA 0xb0;                                 /* 0xfffffffc00fc7947 */
        /*00c0*/                   NOP;                                      /* 0x0000000000007918 */
"""
PLANTED = """
__global__ void wide(float4 *to, const float4 *from) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void narrow(float *to, const int *from) {
    float local[32];
    for (int i = 0; i < 32; i++) local[i] = from[i];
#pragma unroll 1
    for (int i = 0; i < 999; i++) local[from[i]] += 1.0f;
    to[threadIdx.x] = local[from[0]];
}
"""
folder = tempfile.TemporaryDirectory()
HERE = Path(folder.name)
PLACES = dict(os.environ, PATH=os.pathsep.join([os.environ.get("PATH", ""), str(Path(NVCC).parent)]))
REAL = {name: shutil.which(name, path=os.pathsep.join([PLACES["PATH"], os.environ.get("TIDE_PYPI", "") + "/nvidia/cu13/bin"]))
        for name in ("cuobjdump", "nvdisasm")}
tap = Tap()
ok, skip = tap.ok, tap.skip


def counts(*arguments, path=PLACES["PATH"]):
    run = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True,
                         env=dict(PLACES, PATH=path), check=False)
    return run.returncode, run.stdout, run.stderr


def fake(name, says):
    program = HERE / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    program.chmod(0o755)


def row(text, kernel):
    """Returns a kernel's columns of the script's table: all, loop, regs, spill, shared and so on."""
    return next((line[len(kernel):].split() for line in text.splitlines() if line.startswith(kernel + " ")), None)


def text_cases():
    fake("cuobjdump", TEXT)
    fake("nvcc", "Cuda compilation tools, release 13.0, V13.0.88")
    faked = f"{HERE}/bin:{PLACES['PATH']}"
    file, bounds = HERE / "object.o", HERE / "bounds"
    file.write_text("")
    status, said, _ = counts(file, path=faked)
    ok(status == 0 and row(said, "loop<bf16, true>") == "11 7 40 12 1088 2:1 4:1 16:1 16:1".split(),
       "instructions, loop, registers, spill, shared memory and widths are read", said)
    status, said, _ = counts("--json", file, path=faked)
    ok(status == 0 and [json.loads(line) for line in said.splitlines()] ==
       [{"kernel": "loop<bf16, true>", "instructions": 11, "spill": 12, "narrow_stores": 2, "narrow_loads": 0, "loop": 7, "registers": 40,
         "shared": 1088, "stores": "2:1 4:1 16:1", "loads": "16:1"}], "--json prints them as an object a line", said)
    status, said, _ = counts("--only", "swiglu", file, path=faked)
    ok(status == 0 and len(said.splitlines()) == 1, "--only leaves other kernels out", said)

    status, said, _ = counts("--write", bounds, file, path=faked)
    head, line = bounds.read_text().splitlines()
    ok(status == 0 and not said and head.startswith("# nvcc 13.0, sm_90") and line.split(None, 4) == ["11", "12", "2", "0", "loop<bf16, true>"],
       "--write makes a file of a line a kernel that names the compiler", bounds.read_text())
    status, said, _ = counts("--check", bounds, file, path=faked)
    ok(status == 0 and said == "1 kernels, 0 faults\n", "what was just written is kept", said)
    for numbers, faults in [("10 12 2 0", []), ("9 12 2 0", ["instructions 11, bound 9"]), ("11 8 2 0", ["spill 12, bound 8"]),
                            ("11 12 1 0", ["narrow_stores 2, bound 1"]), ("5 0 2 0", ["instructions 11, bound 5", "spill 12, bound 0"])]:
        bounds.write_text(f"{numbers} loop<bf16, true>\n")
        status, said, _ = counts("--check", bounds, file, path=faked)
        wanted = [f"loop<bf16, true>: {fault}" for fault in faults] + [f"1 kernels, {len(faults)} faults"]
        ok(status == bool(faults) and said.splitlines() == wanted, f"against bounds of {numbers}: {', '.join(faults) or 'kept'}", said)
    bounds.write_text("# other\n\n9 9 9 9 other<bf16>\n")
    status, said, _ = counts("--check", bounds, file, path=faked)
    ok(status == 1 and said.splitlines()[:2] == ["loop<bf16, true>: has no bounds", "other<bf16>: has bounds, and is not there"],
       "a new kernel and one that is gone are faults", said)

    bounds.write_text("9 9 9 other\n")
    for arguments, told in [([], "FILE"), (["--check", bounds, "--write", bounds, file], "not allowed"), ([HERE / "none"], "no such file"),
                            (["--check", bounds, file], "bounds:1: not"), (["--check", HERE / "none", file], "No such file"),
                            (["--write", HERE / "none/bounds", file], "No such file"), (["--architecture", "x", file], "'x'")]:
        status, said, error = counts(*arguments, path=faked)
        ok(status == 2 and not said and told in error and error.count("\n") == 1, f"refused in a line: {told}", error)
    fake("cuobjdump", "")
    status, said, error = counts("--architecture", 80, file, path=faked)
    ok(status == 2 and "no machine code for sm_80" in error, "an object without code for the architecture is refused", error)


def planted_case(what):
    (HERE / "planted.cu").write_text(PLANTED)
    subprocess.run([NVCC, "-arch=sm_90", "-c", "-o", HERE / "planted.o", HERE / "planted.cu"], check=True)
    status, said, error = counts(HERE / "planted.o")
    wide, narrow = row(said, "wide"), row(said, "narrow")
    ok(status == 0 and wide and narrow and wide[1] == wide[3] == "0" and wide[-2:] == ["16:1", "16:1"] and int(narrow[1]) > 3 and
       int(narrow[3]) > 0 and narrow[5] == "4:1" and int(narrow[2]) > 0, what, said + error)


text_cases()
missing = next((name for name, place in REAL.items() if place is None), None)
what = "a narrow store and a local array of a real kernel are seen"
if not NVCC:
    skip(what, "this build has no CUDA module")
elif missing:
    skip(what, f"no {missing}: it is in CUDA's toolkit and on PyPI")
else:
    planted_case(what)
tap.done()
