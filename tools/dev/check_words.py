#!/usr/bin/env python3
"""Counts, for each folder, breaches of the house rules of CONTRIBUTING.md. No number may grow.

usage: check_words.py                      exit status 1 if a number is over its bound in check_words.txt
       check_words.py --write              writes the present numbers to check_words.txt
       check_words.py --list KIND [FOLDER] prints file, line and text of each breach

The folders are FOLDERS; those in src, tools and tests are counted one by one. KIND is one of

    comments  habits that make a comment in C or CUDA hard to read (HABITS)
    words     identifiers in C or CUDA with a word for which the field has another (WORDS); each counts once a
              file
    lines     lines of more than 110 characters in C, CUDA, Python and shell
    format    files in C or CUDA that clang-format 14 would change; not counted where that is not installed
"""
import argparse
import functools
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOUNDS = ROOT / "tools/dev/check_words.txt"
KINDS = ["comments", "words", "lines", "format"]
FOLDERS = ["base", "chunk", "examples", "include", "kernels", "offload", "src", "tests", "tools"]
CODE = (".c", ".h", ".cc", ".cu", ".cuh")
WIDTH = 110

# Patterns of bad habits in comments. A blank matches any white space, ^ the beginning of a comment.
IS = r"\b(?:[Ii]s|[Aa]re|was|were|be|been|being)(?: (?:not|also|then|only|never|now|once))?"
HABITS = [re.compile(habit.replace(" ", r"\s+")) for habit in (
    # "What is over leaves", "at the end of what is read": a comment should name the thing. Questions may
    # begin so.
    r"(?:^|[.:;,] |\()[Ww]hat (?![^.?!]*\?)",
    r"\b(?:of|to|for|with|by|from|in|at|on|than|as|is|are|was) what\b",
    # A pronoun whose noun is in another comment; a comment or sentence that is incomplete without the one
    # before.
    r"^(?:It|Its|They|Their|Them)\b",
    r"^(?:Likewise|As above|As before|The same|Same|And|But|So|Or|Nor|Also)\b",
    r"[.;:] (?:Likewise|So (?:is|are|do|does|has|have))\b",
    # "nobody need ask": a comment should say who does what.
    r"\b[Nn](?:obody|o one|one need)\b",
    # "is told of": a comment should say by whom.
    IS + r" (?:told|asked|said|owed|noted|let go)\b(?! (?:apart|by)\b)",
)]

# Words that identifiers should no longer have: a pattern for whole parts between underscores; the word to use
# instead; a pattern of the paths where the old word counts ("": all). A word with another, proper meaning
# counts only where it has the old one: "moment" is also Adam's, "checkpoint" a saved run, "target" the next
# token, "lane" a processor's. Some old words are too usual to be counted: "ends",
# "kept", "record", "product", "watch".
OLD_WORDS = (
    ("checkpoints?", "activation", r"^(chunk|include|kernels|offload|src/model|src/pool)/"),
    ("spills?", "promote", ""),
    ("moments?", "schedule step", "^chunk/"),
    ("fresh", "needs_zero", ""),
    ("spent(?!_ns)", "reclaimable", ""),
    ("story|stories", "scenario", ""),
    ("grounds?", "sealed context", ""),
    ("forecasts?", "performance model", ""),
    ("trials?", "microbenchmark", ""),
    ("platforms?", "machine profile", ""),
    ("journals?", "telemetry", ""),
    ("tide_records|pool_records", "counters", ""),
    ("meters?", "timer", ""),
    ("measuring", "dry run", ""),
    ("products", "matmuls", ""),
    ("soften", "online softmax", ""),
    ("twins?", "tied duplicate", ""),
    ("doors?", "interface", ""),
    ("rigs?", "fixture", ""),
    ("toys?", "fixture", ""),
    ("naive|plain", "reference", "^tests/"),
    ("sim|stand_ins?", "fake", ""),
    ("dues?|owes?|owed", "pending update", ""),
    ("noted", "dirty list", ""),
    ("watchers?", "subscribers", ""),
    ("leaving|going", "evicting", ""),
    ("shelf|shelves", "priority buckets", ""),
    ("standings?", "entry", ""),
    ("use_sets?", "bitset by next use", ""),
    ("tide_lane|cuda_lane", "host executor", "^(offload|src|tests(?!/gpu))/"),
    ("torn|heals?", "poisoned, recover", "^(chunk|src)/"),
    ("paces?", "slowdown factor", ""),
    ("tide_target|pool_target", "device factory", ""),
    ("tapes?", "op builder", ""),
    ("turned", "rotated", ""),
    ("origins?", "source model", ""),
    ("(?:copy|goes)_along", "sidecar files", ""),
    ("rooms?", "capacity, free space", ""),
)
PLACES = [(old, new, re.compile(where)) for old, new, where in OLD_WORDS]
SENTENCE = re.compile(r"[a-z0-9]+(_[a-z0-9]+){5,}")  # a test's name: a sentence, in which any word may stand

TOKEN = re.compile(r"""(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
                       |(?P<comment>/\*.*?\*/|//[^\n]*(?:\n[ \t]*//[^\n]*)*)
                       |(?P<name>[A-Za-z_]\w*)""", re.DOTALL | re.VERBOSE)
FRAME = re.compile(r"^[ \t]*/\*+|\*+/$|^[ \t]*(?:\*|//)", re.MULTILINE)


def comment_hits(text):
    """Yields (place in the text, words) for each bad habit in the comments of a C or CUDA file."""
    for token in TOKEN.finditer(text):
        if token["comment"]:
            words = FRAME.sub(lambda frame: " " * len(frame[0]), token["comment"])
            skip = len(words) - len(words.lstrip())
            for habit in HABITS:
                for hit in habit.finditer(words.lstrip()):
                    yield token.start() + skip + hit.end(), " ".join(words[skip + hit.start():][:70].split())


@functools.lru_cache(maxsize=None)
def name_finder(words):
    """Returns a function that tells the new word for the first of these old words (pairs of old and new) in a
    name, or None. Most names have none; one pattern with all old words finds that out."""
    def pattern(old):
        return re.compile(rf"(?:^|_)(?:{old})(?:_|$)", re.IGNORECASE)

    patterns = [(pattern(old), new) for old, new in words]
    any_of_them = pattern("|".join(old for old, _ in words))

    @functools.lru_cache(maxsize=None)
    def find(name):
        return next(new for old, new in patterns if old.search(name)) if any_of_them.search(name) else None
    return find


def word_hits(path, text):
    """Yields (place in the text, name and new word) for each identifier with an old word, where it is used
    first."""
    names, find = {}, name_finder(tuple((old, new) for old, new, where in PLACES if where.search(path)))
    for token in TOKEN.finditer(text):
        if token["name"] and not (path.startswith("tests/") and SENTENCE.fullmatch(token["name"])):
            names.setdefault(token["name"], token.start())
    for name, at in names.items():
        new = find(name)
        if new:
            yield at, f"{name}: {new}"


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)


def formatter():
    """The name of clang-format 14, which formats the tree (other versions differ); None: it is not installed.
    """
    for name in ("clang-format-14", "clang-format"):
        if shutil.which(name) and "version 14." in run(name, "--version").stdout:
            return name
    return None


def tree_hits(kinds):
    """Yields (kind, path, line, text) for each breach."""
    code = []
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.*"))]
    for file in (file for file in files if file.suffix in (*CODE, ".py", ".sh")):
        path, text = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > WIDTH and "lines" in kinds:
                yield "lines", path, number, f"{len(line)} characters"
        if file.suffix in CODE:
            code.append(path)
            for kind, found in [("comments", comment_hits(text)), ("words", word_hits(path, text))]:
                if kind in kinds:
                    yield from ((kind, path, text.count("\n", 0, at) + 1, what) for at, what in found)
    if "format" in kinds and code:
        told = run(formatter(), "--dry-run", *code).stderr
        first = {}
        for found in re.finditer(r"^([^\s:]+):(\d+):\d+: warning", told, re.MULTILINE):
            first.setdefault(found[1], int(found[2]))
        yield from (("format", path, line, "clang-format changes this") for path, line in first.items())


def folder_of(path):
    parts = path.split("/")
    return "/".join(parts[:2] if parts[0] in ("src", "tools", "tests") and len(parts) > 2 else parts[:1])


def bounds_read():
    lines = BOUNDS.read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if line and line[0] != "#"]
    return {folder: dict(zip(KINDS, map(int, numbers))) for folder, *numbers in rows}


def main():
    parser = argparse.ArgumentParser(description="counts per folder how far the code is from the house rules")
    parser.add_argument("--write", action="store_true", help="write the bounds")
    parser.add_argument("--list", choices=KINDS, metavar="KIND", help="print hits: " + ", ".join(KINDS))
    parser.add_argument("folder", nargs="?", help="with --list: of this folder alone")
    options = parser.parse_args()
    if options.folder and not options.list:
        parser.error("FOLDER is for --list")
    kinds = [options.list] if options.list else KINDS
    if "format" in kinds and not formatter():
        if options.write or options.list:
            sys.exit("check_words.py: there is no clang-format 14 here")
        print("format: not counted, there is no clang-format 14 here")
        kinds = KINDS[:-1]
    hits = list(tree_hits(kinds))
    if options.list:
        for _, path, line, what in hits:
            if options.folder in (None, folder_of(path)):
                print(f"{path}:{line}: {what}")
        return 0
    counts = Counter((folder_of(path), kind) for kind, path, _, _ in hits)
    folders = sorted({folder for folder, _ in counts})
    if options.write:
        rows = [["# most hits", *KINDS]]
        rows += [[folder, *(counts[folder, kind] for kind in KINDS)] for folder in folders]
        lines = [f"{folder:20}" + "".join(f"{cell:>9}" for cell in cells) + "\n" for folder, *cells in rows]
        BOUNDS.write_text("".join(lines), encoding="utf-8")
        return 0
    bounds, status = bounds_read(), 0
    for folder in sorted({*folders, *bounds}):
        changed = [(kind, counts[folder, kind], bounds.get(folder, {}).get(kind, 0)) for kind in kinds]
        for fault, said in [(True, "more than its bound"), (False, "its bound can be lowered")]:
            told = [f"{kind} {count}, bound {bound}" for kind, count, bound in changed
                    if (count > bound if fault else count < bound)]
            if told:
                print(f"{folder}: {said}: {'; '.join(told)}")
                status |= fault
    return status


if __name__ == "__main__":
    sys.exit(main())
