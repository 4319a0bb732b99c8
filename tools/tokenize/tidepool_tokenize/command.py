"""main: the order in which a command goes, and how every end looks: a status and at most one line.

The packages are not imported before the environment is known to have them, so that --help, --setup and the
message about the missing environment come from any Python.
"""
import os
import signal
import sys

from . import environment
from .faults import Failure, reason
from .options import PROGRAM, parsed


class Stopped(BaseException):
    """A signal asks the program to end."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


def _stop(number, _frame):
    raise Stopped(number)


def main(arguments, launcher):
    """Returns the exit status. `launcher` is the file that was started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        _act(parsed(arguments), arguments, launcher)
        sys.stdout.flush()
        return 0
    except Failure as error:
        return _fail(error)
    except Stopped as stopped:
        return 128 + stopped.number
    except BrokenPipeError:
        # The reader of the output has left, such as `head`. Python would complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(reason(error))
    except MemoryError:
        return _fail("out of memory")


def _fail(text):
    try:
        print(f"{PROGRAM}: {text}", file=sys.stderr, flush=True)
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _act(options, arguments, launcher):
    if options.setup:
        environment.setup()
        return
    environment.enter(launcher, arguments)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    try:
        from . import chat, decode, run, tokenizer
    except ImportError as error:
        raise Failure(
            f"a Python package does not work: {reason(error)}: run tidepool-tokenize --setup") from error
    if options.decode is not None:
        decode.decode(options.decode, lambda: tokenizer.Tokenizer(options.tokenizer), options.documents)
        return
    if options.chat_with is not None:
        chat.chat(options, launcher, Stopped)
        return
    made = run.Run(options)
    run.print_summary(made.go())
    if made.warning():
        print(f"{PROGRAM}: warning: {made.warning()}", file=sys.stderr)
