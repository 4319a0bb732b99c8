#!/usr/bin/env python3
"""tools/dev/check_words.py: which faults it finds and which text it accepts; and this tree keeps the bounds
of tools/dev/check_words.txt.

usage: test_check_words.py SCRIPT      prints TAP

In all cases but the last the script checks a small tree that the test makes. The cases about format need
clang-format 14.
"""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from test_program import Tap

SCRIPT = Path(sys.argv[1]).resolve()
TREE = SCRIPT.parents[2]
folder = tempfile.TemporaryDirectory()
ROOT = Path(folder.name)
TREE_FILES = {
    "chunk/good.c": """/* What does it say? Two names that can't be told apart. */
#include <stdio.h>

int fine(int checkpointed, int afresh);
const char *const words = "/* What is in a string */ fresh";
""",
    "src/pool/good.h": "#define TIDE_POOL_GOOD_H\n",
    "kernels/lane.cu": "int tide_lane(int gather, int moment);\n",
    "tests/test_good.c": "void a_fresh_twin_is_torn_and_healed(void);\n",
    "tools/good.py": f"# {'-' * 108}\n",
    "build/chunk/copy.c": "int fresh ;\n",
}
COMMENTS = [
    "What is over leaves.", "The list of what is left.", "It is what it was.",
    "Chunks stay (what is here goes).", "It ends.", "Likewise.", "And the next.", "A chunk. So is a slot.",
    "Nobody need ask.", "That no one reads.", "The device is told of it.", "The host is not asked.",
]
WORDS = ["fresh", "tide_use_set_clear", "TIDE_POOL_TARGET_H", "tide_lane", "ROOM"]
tap = Tap()
ok, skip = tap.ok, tap.skip


def check(*arguments, script=ROOT / "tools/dev/check_words.py", path=None):
    environment = dict(os.environ, PATH=path or os.environ["PATH"])
    command = [sys.executable, script, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return run.returncode, run.stdout, run.stderr


def bounds_write(numbers=""):
    (ROOT / "tools/dev/check_words.txt").write_text(f"# folder, comments, words, lines, format\n{numbers}")


def planted(kind, path, text, line, what):
    """Writes a file with one fault of the kind: the script refuses it, lists its place, and accepts it with a
    bound of one."""
    (ROOT / path).write_text(text)
    where = "src/pool" if path.startswith("src") else path.split("/")[0]
    bounds_write()
    refused = check()
    listed = check("--list", kind, where)
    bounds_write(f"{where} 1 1 1 1\n")
    passed = check()
    ok(refused[:2] == (1, f"{where}: more than its bound: {kind} 1, bound 0\n") and passed[0] == 0 and
       listed[1].startswith(f"{path}:{line}: ") and listed[1].count("\n") == 1,
       what, (refused, listed, passed))
    (ROOT / path).unlink()


def listed_all(kind, lines, what):
    (ROOT / "src/pool/bad.h").write_text("\n".join(lines) + "\n")
    said = check("--list", kind, "src/pool")[1]
    found = {line.split(": ")[0] for line in said.splitlines()}
    wanted = {f"src/pool/bad.h:{number}" for number, _ in enumerate(lines, 1)}
    ok(found == wanted and not check("--list", kind, "src")[1],
       what, said)
    (ROOT / "src/pool/bad.h").unlink()


def tree_make():
    for path, text in TREE_FILES.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)
    (ROOT / "tools/dev").mkdir()
    shutil.copy(SCRIPT, ROOT / "tools/dev")
    shutil.copy(TREE / ".clang-format", ROOT)


def tree_cases(has_format):
    bounds_write()
    status, said, error = check()
    ok(status == 0 and (not said or not has_format), "a tree without a fault has none", said + error)
    planted("comments", "src/pool/bad.h", "/* Chunks\n * are\n * told. */\n", 3, "a habit in a comment")
    planted("words", "src/pool/bad.h", "#define fresh fresh\n", 1, "an old word in an identifier")
    planted("lines", "tests/bad.sh", f"\n# {'-' * 109}\n", 2, "a line of 111 characters")
    listed_all("comments", [f"int x; // {comment}" for comment in COMMENTS], "every habit")
    listed_all("words", [f"int {word};" for word in WORDS], "old words of every form")
    bounds_write("chunk 0 2 0 0\ngone 1 0 0 0\n")
    status, said, error = check()
    ok(status == 0 and said.endswith("chunk: its bound can be lowered: words 0, bound 2\n"
                                     "gone: its bound can be lowered: comments 0, bound 1\n"),
       "a bound that can be lowered is named, and is no fault", said + error)
    for arguments, told in [(["chunk"], "FOLDER"), (["--list", "other"], "other")]:
        status, said, error = check(*arguments)
        ok(status == 2 and not said and told in error, f"refused: {' '.join(arguments)}", said + error)
    status, said, error = check(path=str(ROOT))
    refused = check("--write", path=str(ROOT))
    ok(status == 0 and said.startswith("format: not counted, there is no clang-format 14") and
       refused[0] == 1 and "no clang-format 14" in refused[2],
       "without clang-format it counts the rest alone", said + error + refused[2])


def format_cases(has_format):
    if not has_format:
        skip("a file that clang-format changes, and bounds just written", "no clang-format 14 here")
    else:
        planted("format", "src/pool/bad.h", "int x;\nint  y;\n", 2, "a file that clang-format changes")
        (ROOT / "src/pool/bad.h").write_text("/* What is bad. */\nint fresh ;\n")
        written, checked = check("--write"), check()
        row = (ROOT / "tools/dev/check_words.txt").read_text().splitlines()[-1].split()
        ok(written[:2] == checked[:2] == (0, "") and row == ["src/pool", "1", "1", "0", "1"],
           "the tree is within bounds just written", (written, checked, row))


tree_make()
formats = "there is no clang-format 14" not in check("--list", "format")[2]
tree_cases(formats)
format_cases(formats)
state, output, errors = check(script=SCRIPT)
ok(state == 0, "this tree is within its bounds" + ("" if formats else ", clang-format aside: it is not here"),
   output + errors)
tap.done()
