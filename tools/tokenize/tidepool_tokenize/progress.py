"""Lines on stderr: a progress line that overwrites itself on a terminal, bad lines, and warnings.

Every other line first clears the progress line, so that both stay readable.
"""
import sys
import time

from .faults import Failure, printable

NAMED_BAD_LINES = 10
SECONDS_BETWEEN = 0.25


class Progress:

    def __init__(self, wanted, total_bytes):
        """`total_bytes` is None if the size of an input is unknown."""
        self.shown = wanted and sys.stderr.isatty()
        self.total_bytes = total_bytes
        self.began = time.monotonic()
        self.next = self.began
        self.lines = self.bad = 0

    def show(self, bytes_read, tokens):
        now = time.monotonic()
        if not self.shown or now < self.next:
            return
        self.next = now + SECONDS_BETWEEN
        share = f"{100 * bytes_read // self.total_bytes}%  " if self.total_bytes else ""
        rate = tokens / max(now - self.began, 1e-9)
        sys.stderr.write(f"\r\x1b[K{share}{self.lines:,} lines  {tokens:,} tokens  {rate:,.0f} tokens/s")
        sys.stderr.flush()

    def clear(self):
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def say(self, text):
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def bad_line(self, place, why, strict):
        """Counts a bad line and names it if it is among the first; with `strict` it ends the run."""
        line = f"{place}: {printable(why)}"
        if strict:
            raise Failure(line)
        self.bad += 1
        if self.bad <= NAMED_BAD_LINES:
            self.say(line)

    def end(self):
        self.clear()
        if self.bad:
            self.say(f"{self.bad} of {self.lines} lines were bad")
