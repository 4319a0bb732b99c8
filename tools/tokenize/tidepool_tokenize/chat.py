"""--chat-with: a conversation with a model, text for text.

For each question the whole conversation goes through the chat template and the tokenizer to
`tidepool generate`, which prints the ids of the answer one a line as it makes them. The answer is shown as it
comes; letters of several tokens are shown once their last token is there. Ctrl-C ends an answer, of which the
conversation keeps what was shown, and at the prompt a line; the end of the input ends the conversation.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from .decode import SHOWN
from .faults import BadLine, Failure, printable
from .inputs import decoded
from .template import messages_for, no_template, template_of
from .tokenizer import Tokenizer

PROMPT = "> "
HALF = "\ufffd"  # what the tokenizer decodes to where bytes of a letter are missing


def program(launcher):
    """Returns the path of tidepool: the one that TIDEPOOL names, or beside the launcher, or in PATH."""
    named = os.environ.get("TIDEPOOL")
    if named:
        if not os.access(named, os.X_OK) or os.path.isdir(named):
            raise Failure(f"TIDEPOOL names {named}, which is no program")
        return named
    beside = Path(launcher).parent / "tidepool"
    found = str(beside) if os.access(beside, os.X_OK) and beside.is_file() else shutil.which("tidepool")
    if found is None:
        raise Failure("there is no tidepool beside it or in PATH: name the program in TIDEPOOL")
    return found


class Text:
    """Decodes ids one by one. From `shown` on stand ids of which no text has been returned; those from
    `begin` to there are decoded again with them, because a token's text can depend on the one before."""

    def __init__(self, decode):
        self.decode = decode
        self.ids = []
        self.begin = self.shown = 0

    def add(self, token):
        """Returns the text that is complete with this token and has not been returned yet."""
        self.ids.append(token)
        return self._rest(lambda text: not text.endswith(HALF))

    def end(self):
        return self._rest(lambda text: True)

    def _rest(self, is_complete):
        before, text = self.decode(self.ids[self.begin:self.shown]), self.decode(self.ids[self.begin:])
        if len(text) <= len(before) or not is_complete(text):
            return ""
        self.begin, self.shown = self.shown, len(self.ids)
        return text[len(before):]


class Generator:
    """Runs `tidepool generate`, once for each answer."""

    def __init__(self, launcher, options):
        self.command = [program(launcher), "generate", "--model", options.chat_with, "--prompt-ids", "-",
                        "--tokens", str(options.tokens), "--temperature", f"{options.temperature:g}",
                        "--seed", str(options.seed), *options.generate_options]

    def ids(self, prompt):
        """Yields the ids that continue the prompt. A generator that is closed early ends the program."""
        with tempfile.TemporaryFile() as errors:
            # In a session of its own, so that a terminal's Ctrl-C reaches this program alone.
            process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=errors, start_new_session=True)
            try:
                with suppress(BrokenPipeError):  # a program that fails early says why
                    process.stdin.write(b"".join(b"%d\n" % token for token in prompt))
                    process.stdin.close()
                for line in process.stdout:
                    if not line.strip().isdigit():
                        shown = printable(line.decode("utf-8", "replace"))
                        raise Failure(f"{self.command[0]} generate printed no id: {shown}")
                    yield int(line)
                self._check(process.wait(), errors)
            finally:
                with suppress(BrokenPipeError):
                    process.stdin.close()
                process.stdout.close()
                process.terminate()
                process.wait()

    def _check(self, status, errors):
        """Passes on what the program wrote to stderr: with a failure its last line, which says why."""
        errors.seek(0)
        text = errors.read().decode("utf-8", "replace")
        if status == 0:
            sys.stderr.write(text)
            return
        lines = [line for line in text.splitlines() if line.strip()]
        why = lines[-1] if lines else f"{self.command[0]} generate ended with status {status}"
        raise Failure(printable(why))


class Chat:

    def __init__(self, tokenizer, template, generator):
        self.tokenizer, self.template, self.generator = tokenizer, template, generator
        self.messages = []

    def ask(self, question, stopped):
        """Prints the answer; returns whether it came to its end. `stopped` is the exception of a signal."""
        self.messages.append({"role": "user", "content": question})
        try:
            text = self.template.render(messages_for(self.messages), None, True)
        except BadLine as error:
            raise Failure(str(error)) from error
        made, parts, is_whole = Text(self.tokenizer.spoken), [], True
        answer = self.generator.ids(self.tokenizer.ids(text))
        try:
            for token in answer:
                self._show(made.add(token), parts)
        except stopped as stop:
            if stop.number != signal.SIGINT:
                raise
            is_whole = False
        finally:
            answer.close()
        self._show(made.end(), parts)
        print(flush=True)
        self.messages.append({"role": "assistant", "content": "".join(parts)})
        return is_whole

    @staticmethod
    def _show(text, parts):
        parts.append(text)
        print(text.translate(SHOWN), end="", flush=True)


def lines(is_terminal, stopped):
    """Yields the user's lines that are not empty."""
    if is_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 (input edits lines with it)
    number = 0
    while True:
        number += 1
        try:
            if is_terminal:
                line = input(PROMPT)
            else:
                read = sys.stdin.buffer.readline()
                if not read:
                    return
                line = decoded(read)
        except EOFError:
            print()
            return
        except (BadLine, UnicodeDecodeError) as error:
            raise Failure(f"stdin:{number}: {error}") from error
        except stopped as stop:
            if not is_terminal or stop.number != signal.SIGINT:
                raise
            print()
            continue
        if line.strip():
            yield line.strip("\r\n")


def chat(options, launcher, stopped):
    """`stopped` is the exception that a signal raises."""
    generator = Generator(launcher, options)
    tokenizer = Tokenizer(options.chat_with, "--chat-with")
    template = template_of(tokenizer, options.template)
    if template is None:
        raise Failure(no_template(options.chat_with))
    made = Chat(tokenizer, template, generator)
    if options.ask is not None:
        if not made.ask(options.ask, stopped):
            raise stopped(signal.SIGINT)
        return
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    for line in lines(is_terminal, stopped):
        if not made.ask(line, stopped) and not is_terminal:
            raise stopped(signal.SIGINT)
