#!/usr/bin/env python3
"""tools/dev/compare_programs.py: a program is equal to itself, and the tool finds and names each difference
that a fake program makes.

usage: test_program_compare.py PROGRAM      prints TAP
"""
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from test_program import Bench, Tap

TOOL = Path(__file__).resolve().parents[2] / "tools/dev/compare_programs.py"
# A program that runs the real one and then changes its output or files as FAULT says. `after(option)` returns
# an option's value.
FAKE = '''#!/usr/bin/env python3
import pathlib, subprocess, sys
def after(option):
    return pathlib.Path(sys.argv[sys.argv.index(option) + 1])
def change(path, old, new):
    text = path.read_text()
    assert old in text, (old, text)
    path.write_text(text.replace(old, new))
run = subprocess.run([{program!r}, *sys.argv[1:]], capture_output=True, text=True)
out, trains = run.stdout, "--checkpoint" in sys.argv and run.returncode == 0
{fault}
print(out, end="")
print(run.stderr, end="", file=sys.stderr)
sys.exit(run.returncode)
'''
RESULTS = '''
if trains:
    last = after("--checkpoint") / "step-6"
    before, line, end = after("--metrics").read_text().rpartition('{"step":6,')
    for field in "loss", "step_seconds":
        end = end.replace(f'"{field}":', f'"{field}":1')
    after("--metrics").write_text(before + line + end)
    change(last / "manifest.json", '"clip": 1.0', '"clip": 1.5')
    tensors = bytearray((last / "momentum.safetensors").read_bytes())
    tensors[-1] ^= 1
    (last / "momentum.safetensors").write_bytes(tensors)
    (last / "variance.safetensors").unlink()
    out = out.replace("sample of 12 tokens:", "sample of 12 tokens: well,")
'''
RESUMED = '''
if trains and "--resume" in sys.argv:
    run.returncode, run.stderr = 3, "it fell over\\n"
if "null" in sys.argv and "--metrics" in sys.argv:
    change(after("--metrics"), '"h2d_bytes":', '"h2d_bytes":1')
'''
LATER = '''
if trains:
    for manifest in after("--checkpoint").glob("step-*/manifest.json"):
        change(manifest, '"version": ', '"version": 1')
'''


class Case:
    def __init__(self, program, folder):
        self.program, self.folder, self.tap = program, folder, Tap()
        self.model = folder / "tiny.json"
        self.model.write_text(json.dumps(Bench.tiny_config()))

    def fake(self, fault):
        path = self.folder / "fake"
        path.write_text(FAKE.format(program=self.program, fault=fault))
        path.chmod(0o755)
        return path

    def compare(self, new, *options):
        # With this seed the setting that runs writes few checkpoints.
        given = "--model", self.model, "--seed", 16
        return subprocess.run([sys.executable, TOOL, self.program, *map(str, (new, *given, *options))], capture_output=True,
                              text=True, check=False)

    def expect(self, name, run, status, verdicts, *parts):
        """Checks the exit status, the verdict of each comparison, and patterns in the report."""
        found = [line.startswith("ok") for line in run.stdout.splitlines() if re.match("(not )?ok ", line)]
        missing = [part for part in parts if not re.search(part, run.stdout, re.MULTILINE)]
        self.tap.ok(run.returncode == status and found == verdicts and not missing, name,
                    f"status {run.returncode}, verdicts {found}, missing {missing}\n{run.stdout}{run.stderr}")


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="tidepool-compare-") as name:
        case = Case(sys.argv[1], Path(name))
        case.expect("every kind of result that differs is named, and a time is not",
                    case.compare(case.fake(RESULTS), "--first", 1), 1, [False] * 3,
                    r"^#   metrics: step 6: loss (\d\.\d+) / 1\1$",
                    r"^#   step-6/manifest\.json: byte \d+: 0x30 / 0x35 \(clip 1\.0 / 1\.5\)$",
                    r"^#   step-6/momentum\.safetensors: byte \d+: 0x\w\w / 0x\w\w \(\S+, element \d+\)$",
                    r"^#   step-6/variance\.safetensors: only the first has it$",
                    r"^#   output: 'sample .* / 'sample of 12 tokens: well,")
        case.expect("a resume that fails is a difference; moves that differ are told and cost nothing",
                    case.compare(case.fake(RESUMED), "--first", 1), 1, [True, False, True],
                    "^not ok 2 - .*goes on with OLD's$", "^#   the second failed: exit status 3: it fell over$",
                    r"^# moves: budget .*: step 1: h2d_bytes (\d+) / 1\1$", "^# moves: equal in 0 of 1 settings")
        case.expect("a manifest of a later version is no difference, and OLD does not resume from it",
                    case.compare(case.fake(LATER), "--first", 1), 0, [True] * 3,
                    "^ok 3 .*NEW's # SKIP .*version 14$", "^# moves: equal in 1 of 1 settings")
        for wrong in (["--first", "0"], ["--seed", "-1"], ["--fast"]):
            case.expect(" ".join(wrong) + " is refused", case.compare(case.program, *wrong), 2, [])
        case.expect("a file that is no program is refused", case.compare(TOOL.with_name("README.md")), 2, [])
    case.tap.done()
    return 0


if __name__ == "__main__":
    sys.exit(main())
