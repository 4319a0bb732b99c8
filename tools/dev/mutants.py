"""What tools/dev/mutate.py could change in C sources: an operator, a condition, a literal, a return value, a
statement left out; never in a macro (asserts stay), a constant expression or a static initializer.

Needs libclang for Python: Debian's python3-clang-14 or another.
"""
import json
import os
import re
import shlex
import sys
from bisect import bisect
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

# An operator, its replacement, and the form of the mutant with the operands @1 and @2. A form calls
# tide_mutant_is only where the replacement makes a difference, so that only tests to which it matters count
# as reaching the mutant. Forms in PURE evaluate the operands twice; PLAIN stands in for them if that would
# change anything.
PLAIN = b"(tide_mutant_is({K}) ? (@1 %s @2) : (@0))"
PURE = {b"<": (b"<=", b"((@0) || (@1 == @2 && tide_mutant_is({K})))"),
        b"<=": (b"<", b"((@0) && !(@1 == @2 && tide_mutant_is({K})))"),
        b">": (b">=", b"((@0) || (@1 == @2 && tide_mutant_is({K})))"),
        b">=": (b">", b"((@0) && !(@1 == @2 && tide_mutant_is({K})))")}
ONCE = {b"==": (b"!=", PLAIN % b"!="), b"!=": (b"==", PLAIN % b"=="),
        b"+": (b"-", PLAIN % b"-"), b"-": (b"+", PLAIN % b"+"),
        b"&&": (b"||", b"((@1) ? (@2) || tide_mutant_is({K}) : tide_mutant_is({K}) && (@2))"),
        b"||": (b"&&", b"((@1) ? !tide_mutant_is({K}) || (@2) : (@2) && !tide_mutant_is({K}))")}


def libclang():
    try:
        from clang import cindex
    except ImportError:  # Debian's package is for Debian's Python, but works in any
        sys.path.append("/usr/lib/python3/dist-packages")
        from clang import cindex
    return cindex


class Source:
    """The possible mutants of one source file. Each has `new`, the text that takes the place of the bytes
    from `start` to `end`, with {K} where the mutant's number comes."""

    def __init__(self, tree, path, folder, arguments):
        self.cindex = libclang()
        self.kinds, self.types = self.cindex.CursorKind, self.cindex.TypeKind
        self.path, self.text, self.found, self.result = path, (tree / path).read_bytes(), [], None
        os.chdir(folder)  # the arguments have paths from there
        name = str(tree / path)
        unit = self.cindex.Index.create().parse(name, args=arguments, options=1)  # 1: with macros
        self.faults = [str(told) for told in unit.diagnostics if told.severity >= 3]
        self.macros, functions = [], []
        for node in unit.cursor.get_children():
            macro = node.kind == self.kinds.MACRO_INSTANTIATION
            if (macro or node.kind == self.kinds.FUNCTION_DECL) and node.location.file.name == name:
                if macro:
                    self.macros.append((node.extent.start.offset, node.extent.end.offset))
                elif node.is_definition():
                    functions.append(node)
        self.macros.sort()
        for function in functions:
            self.result = function.result_type
            for child in function.get_children():
                if child.kind == self.kinds.COMPOUND_STMT:
                    self.walk(child, function)

    def bytes_of(self, node):
        return self.text[node.extent.start.offset:node.extent.end.offset]

    def can_change(self, start, end):
        """Whether the text is no macro's nor a part of one, and may stand twice, once on one line."""
        text = self.text[start:end]
        if not text or b"//" in text or re.search(rb"\n\s*#", text):
            return False
        for left, right in self.macros[max(bisect(self.macros, (start, 0)) - 1, 0):]:
            if left >= end:
                break
            inside = start <= left and right <= end and (start, end) != (left, right)
            if right > start and not inside:
                return False
        return True

    def add(self, what, node, new, *parts, more=0):
        """Adds a mutant of the node's text and `more` bytes behind it. In `new`, @0 is that text, and @1 and
        @2 are `parts`."""
        start, end = node.extent.start.offset, node.extent.end.offset
        if not self.can_change(start, end):
            return
        end += more
        texts = [self.text[start:end], *(re.sub(rb"\s+", b" ", part) for part in parts)]
        new = re.sub(rb"@(\d)", lambda found: texts[int(found.group(1))], new)
        new += b"\n" * (texts[0].count(b"\n") - new.count(b"\n"))  # the lines behind it keep their numbers
        line = self.text.count(b"\n", 0, start) + 1
        self.found.append({"file": self.path, "line": line, "last": line + texts[0].count(b"\n"),
                           "start": start, "end": end, "what": what, "new": new.decode(),
                           "text": re.sub(r"\s+", " ", texts[0].decode())})

    def statement(self, node):
        """A call, or an assignment, whose value nobody uses can be left out."""
        kinds, text = self.kinds, self.bytes_of(node)
        calls = [child for child in node.get_children() if child.kind == kinds.CALL_EXPR]
        right = (node.kind in (kinds.CALL_EXPR, kinds.COMPOUND_ASSIGNMENT_OPERATOR) or
                 (node.kind == kinds.CSTYLE_CAST_EXPR and calls) or
                 (node.kind == kinds.BINARY_OPERATOR and re.search(rb"[^=!<>]=[^=]", text)) or
                 (node.kind == kinds.UNARY_OPERATOR and re.search(rb"\+\+|--", text)))
        after = re.match(rb"\s*;", self.text[node.extent.end.offset:][:40])
        if not right or not after or node.spelling == "free":  # only a search for leaks notices that
            return
        form, parts = b"{ if (!tide_mutant_is({K})) { @0 } }", []
        if node.kind == kinds.BINARY_OPERATOR and self.is_pure(node):
            parts = [self.bytes_of(child) for child in node.get_children()]
            kind = node.type.get_canonical().kind
            if b"->" in parts[0] and kind not in (self.types.RECORD, self.types.VECTOR):
                form = b"{ if (@1 == (@2) || !tide_mutant_is({K})) { @0 } }"
        self.add("left out", node, form, *parts, more=after.end())

    def is_pure(self, node):
        """Whether the operands of a node may be evaluated twice."""
        kinds = self.kinds
        inner = [one for child in node.get_children() for one in child.walk_preorder()]
        return not any(one.kind in (kinds.CALL_EXPR, kinds.COMPOUND_ASSIGNMENT_OPERATOR, kinds.StmtExpr) or
                       (one.kind in (kinds.UNARY_OPERATOR, kinds.BINARY_OPERATOR) and
                        re.search(rb"\+\+|--|[^=!<>]=[^=]", self.bytes_of(one))) for one in inner)

    def condition(self, node, loop):
        self.add("made false", node, b"((@0) && !tide_mutant_is({K}))")
        if not loop:
            self.add("negated", node, b"(!(@0) == tide_mutant_is({K}))")

    def returned(self, node):
        kind, text = self.result.get_canonical().kind, self.bytes_of(node)
        what = new = None
        if self.result.spelling == "tide_status" and text != b"TIDE_OK":
            what, new = "returns TIDE_OK", b"made_ != TIDE_OK && tide_mutant_is({K}) ? TIDE_OK : made_"
        elif kind == self.types.BOOL:
            what, new = "returns the opposite", b"tide_mutant_is({K}) ? !made_ : made_"
        elif kind == self.types.POINTER and text != b"NULL":
            what, new = "returns NULL", b"made_ && tide_mutant_is({K}) ? (void *)0 : made_"
        elif self.types.CHAR_U.value <= kind.value <= self.types.LONGDOUBLE.value:
            what, new = "returns one more", b"tide_mutant_is({K}) ? made_ + 1 : made_"
        if new:
            self.add(what, node, b"({ __auto_type made_ = (@0); " + new + b"; })")

    def binary(self, node, left, right):
        operator = self.text[left.extent.end.offset:right.extent.start.offset].strip()
        other, form = PURE.get(operator) or ONCE.get(operator) or (b"", b"")
        if operator in PURE and not self.is_pure(node):
            form = PLAIN % other
        if form:
            self.add(f"{operator.decode()} becomes {other.decode()}", node, form, self.bytes_of(left),
                     self.bytes_of(right))

    def literal(self, node):
        text = re.fullmatch(rb"(0x[0-9a-fA-F]+|0|[1-9]\d*)([uUlL]*)", self.bytes_of(node))
        value = int(text.group(1), 0) if text else 0
        for other in (value + 1, value - 1):
            if text and other >= 0:
                self.add(f"{value} becomes {other}", node,
                         b"(tide_mutant_is({K}) ? %d%s : @0)" % (other, text.group(2)))

    def walk(self, node, parent):
        kinds, kind, children = self.kinds, node.kind, list(node.get_children())
        if kind == kinds.CXX_UNARY_EXPR:  # sizeof
            return
        if kind == kinds.VAR_DECL:
            if node.storage_class == self.cindex.StorageClass.STATIC:
                return
            if node.type.get_canonical().kind in (self.types.CONSTANTARRAY, self.types.VARIABLEARRAY):
                children = [child for child in children if child.kind == kinds.INIT_LIST_EXPR]
        elif kind == kinds.CASE_STMT:
            children = children[1:]
        if kind in (kinds.COMPOUND_STMT, kinds.CASE_STMT, kinds.DEFAULT_STMT, kinds.IF_STMT,
                    kinds.WHILE_STMT):
            for child in children:
                self.statement(child)
        elif kind == kinds.FOR_STMT:
            self.statement(children[-1])
        if kind in (kinds.IF_STMT, kinds.WHILE_STMT):
            self.condition(children[0], kind == kinds.WHILE_STMT)
        elif kind == kinds.RETURN_STMT and children:
            self.returned(children[0])
        elif kind == kinds.BINARY_OPERATOR and len(children) == 2:
            self.binary(node, *children)
        elif kind == kinds.INTEGER_LITERAL and parent.spelling != "calloc":
            self.literal(node)
        for child in children:
            self.walk(child, node)


def source_read(job):
    source = Source(*job)
    return source.path, source.found, source.text.count(b"\n"), source.faults


def candidates(tree, build, paths, jobs):
    """The possible mutants of each folder and its number of lines, by the build's compile commands. Of a
    kernel's commands the last counts, which has the widest instruction set."""
    work = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), tree)
        if path.endswith(".c") and any(f"{path}/".startswith(one.rstrip("/") + "/") for one in paths):
            words = [word for word in shlex.split(entry["command"]) if not word.endswith("ccache")]
            words = [word for word in words[1:words.index("-o")] if word not in ("-MD", "-MQ", "-MF") and
                     not word.endswith((".d", ".o"))]
            work[path] = (tree, path, entry["directory"], words)
    found, lines = defaultdict(list), Counter()
    with ProcessPoolExecutor(jobs) as pool:
        sources = [work[path] for path in sorted(work)]
        for path, some, length, faults in pool.map(source_read, sources, chunksize=4):
            if faults:
                print(f"{path}: libclang: {faults[0]}", file=sys.stderr)
            found[str(Path(path).parent)] += some
            lines[str(Path(path).parent)] += length
    return found, lines
