"""Checks a trace's lines against the tables in docs/trace.md, and adds its events up.

    Schema().check(line, ranks)      the first error in a line of one of so many ranks; None: there is none
    read(path, schema)        the lines of a trace, each checked
    sums(trace)               for each complete step the sums of its events, under the names of the metrics
"""
import json
import math
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trace.md"
NS = 1e-9


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


TYPES = {
    "count": is_count,
    "count or null": lambda value: value is None or is_count(value),
    "real": lambda value: value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)),
    "text": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "list": lambda value: isinstance(value, list),
}


def type_of(cell):
    """The function that tests a value for the type in a table cell; `a` \\| `b` lists possible texts."""
    if cell.startswith("`"):
        values = re.findall(r"`([^`]+)`", cell)
        return lambda value: value in values
    return TYPES[cell]


SEVERAL = ", of several ranks"


class Schema:
    """The tables of docs/trace.md: for each kind of line its members, in order, with their types."""

    def __init__(self, page=PAGE):
        self.kinds = {}
        for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]:
            title, body = section.split("\n", 1)
            if "| member |" not in body:
                continue
            rows = body[body.index("| member |"):].split("\n\n")[0].splitlines()[2:]
            cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
            self.kinds[title.strip()] = [(member, type_of(kind.removesuffix(SEVERAL)), kind.endswith(SEVERAL))
                                         for member, kind, _, _ in cells]

    @staticmethod
    def kind_of(line):
        first = next(iter(line), None)
        return f"{first} {line[first]}" if first in ("table", "event") else first

    def members(self, kind, ranks):
        """Names and tests of the members of a kind of lines, in order."""
        return [(name, is_right) for name, is_right, of_several in self.kinds[kind]
                if ranks > 1 or not of_several]

    def check(self, line, ranks=1):
        kind = self.kind_of(line)
        if kind not in self.kinds:
            return f"no such line: {kind}"
        members = self.members(kind, ranks)
        if list(line) != [name for name, _ in members]:
            return f"{kind}: has {list(line)}, should have {[name for name, _ in members]}"
        for name, is_right in members:
            if not is_right(line[name]):
                return f"{kind}: {name} is {line[name]!r}"
        if "begin_ns" in line and line["begin_ns"] > line["end_ns"]:
            return f"{kind}: ends before it begins"
        return None


class Damaged(Exception):
    """The trace differs from the documented format."""


def read(path, schema):
    lines = []
    kinds = set()
    ranks = 1
    for number, text in enumerate(Path(path).read_text().splitlines(), 1):
        line = json.loads(text)
        ranks = line.get("ranks", ranks)
        wrong = schema.check(line, ranks)
        if wrong:
            raise Damaged(f"{path}:{number}: {wrong}")
        lines.append(line)
        kinds.add(schema.kind_of(line))
    if not lines or schema.kind_of(lines[0]) != "trace" or "end" not in lines[-1]:
        raise Damaged(f"{path}: does not begin with its first line, or not end with its last")
    return lines, kinds


def length(event):
    return (event["end_ns"] - event["begin_ns"]) * NS


def add_event(of, event):
    kind = event["event"]
    if kind == "copy":
        of["h2d_bytes" if event["to"] == "device" else "d2h_bytes"] += event["bytes"]
    elif kind == "move" and event["move"] == "evict":
        of["evictions"] += 1
    elif kind == "move" and event["move"] == "fetch" and event["reason"] in ("demand", "prefetch"):
        of["demand_fetches" if event["reason"] == "demand" else "prefetches"] += 1
    elif kind == "op":
        of["compute_seconds"] += event["busy_ns"] * NS
    elif kind == "stall":
        of[f"stall_{event['cause']}_seconds"] += length(event)
    elif kind == "update":
        of[f"adam_{event['tier']}_seconds"] += length(event)


COUNTS = "h2d_bytes d2h_bytes evictions demand_fetches prefetches".split()
SECONDS = ["compute_seconds", "adam_host_seconds", "adam_device_seconds"] + [
    f"stall_{cause}_seconds" for cause in "link slot update norm map peer caller".split()]


def sums(lines):
    """{step: (sums of its events, its metrics line)} of all complete steps."""
    steps, begun, whole, broken = {}, set(), {}, False
    for line in lines:
        if "step" in line and next(iter(line)) == "step":
            if line["step"] in begun:
                whole[line["step"]] = line
            continue
        if "event" not in line:
            continue
        if line["event"] == "dropped":
            broken = True
        if line["event"] == "pass" and line["training"]:
            begun.add(line["number"])
        if line["event"] == "given up":
            steps.pop(line["step"], None)
        elif line["step"]:
            of = steps.setdefault(line["step"], dict.fromkeys(COUNTS, 0) | dict.fromkeys(SECONDS, 0.0))
            add_event(of, line)
    return {} if broken else {step: (steps.get(step, dict.fromkeys(COUNTS + SECONDS, 0)), line) for step, line in whole.items()}


def differences(found, line, exactly=False):
    """The names whose sums differ from the metrics line. Bytes and counts must be equal, and so must seconds
    if `exactly`; otherwise seconds may differ by 1%, or by a thousandth of the step where that is more."""
    wrong = [f"{name}: {found[name]} of {line[name]}" for name in COUNTS if found[name] != line[name]]
    for name in SECONDS:
        allowed = 1e-9 if exactly else max(0.01 * line[name], 0.001 * line["step_seconds"]) + 1e-6
        if not math.isclose(found[name], line[name], abs_tol=allowed):
            wrong.append(f"{name}: {found[name]} of {line[name]}")
    return wrong
