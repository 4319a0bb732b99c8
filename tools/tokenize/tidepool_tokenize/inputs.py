"""Input files: lines of JSONL, and parts of plain text, in constant memory.

A part of plain text ends where the last line of about a MiB begins that does not begin with white space: so
that no tokenizer joins what the parts divide. A line that is much longer is cut at a
space, or anywhere if it has none. A byte order mark at the begin of a file is dropped.
"""
import codecs
import os
import stat
import sys
from dataclasses import dataclass

from .faults import BadLine, Failure, reason

PART_BYTES = 1 << 20
LONGEST_LINE = 4 * PART_BYTES  # letters of plain text without a line end
MARK = b"\xef\xbb\xbf"


@dataclass
class Input:
    """A file of the command line; `kind` is the option that named it: text, jsonl or chat."""
    kind: str
    path: str

    def name(self):
        return "stdin" if self.path == "-" else self.path

    def check(self):
        """Finds a file that can't be read before any work is done. Does not open it: it may be a pipe."""
        if self.path == "-":
            return
        if stat.S_ISDIR(os.stat(self.path).st_mode):
            raise Failure(f"{self.path}: it is a folder")
        if not os.access(self.path, os.R_OK):
            raise Failure(f"{self.path}: Permission denied")

    def size(self):
        """Returns the bytes of a regular file, None of anything else."""
        if self.path == "-":
            return None
        status = os.stat(self.path)
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def open(self):
        return sys.stdin.buffer if self.path == "-" else open(self.path, "rb")


def total_size(inputs):
    sizes = [one.size() for one in inputs]
    return None if None in sizes else sum(sizes)


def lines(one):
    """Yields the number and the bytes of each line, empty ones too."""
    try:
        with one.open() as file:
            for number, line in enumerate(file, 1):
                yield number, line.removeprefix(MARK) if number == 1 else line
    except OSError as error:
        raise Failure(f"{one.name()}: {error.strerror or reason(error)}") from error


def decoded(line):
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine(f"byte {error.start + 1} is not UTF-8") from error


def parts(one):
    """Yields the text of a file in parts, each with the bytes read so far."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    held, bytes_read = "", 0
    try:
        with one.open() as file:
            while block := file.read(PART_BYTES):
                held += decoder.decode(block.removeprefix(MARK) if bytes_read == 0 else block)
                bytes_read += len(block)
                cut = _cut(held)
                if cut:
                    yield held[:cut], bytes_read
                    held = held[cut:]
            held += decoder.decode(b"", True)
    except UnicodeDecodeError as error:
        raise Failure(
            f"{one.name()}: it is not UTF-8: {error.reason} before byte {bytes_read + PART_BYTES}") from error
    except OSError as error:
        raise Failure(f"{one.name()}: {error.strerror or reason(error)}") from error
    if held:
        yield held, bytes_read


def _cut(text):
    end = text.rfind("\n")
    while end >= 0 and not text[end + 1:end + 2].strip():
        end = text.rfind("\n", 0, end)
    if end >= 0 or len(text) < LONGEST_LINE:
        return end + 1
    return text.rfind(" ") or len(text) if " " in text[1:] else len(text)
