"""Interactive shells on a pseudo-terminal: the tests type into them and read what they complete."""
import os
import pty
import subprocess
import threading
import time
from pathlib import Path

from test_program import die_with_parent

TIMEOUT_S = 30


class Terminal:
    """A shell in which `tidepool` is a function that writes its arguments to `folder`/words, one per line."""

    def __init__(self, command, folder, setup):
        self.folder = Path(folder)
        self.said = b""
        self.master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "dumb", "PS1": "> ", "HOME": str(folder)}
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environment,
                                        start_new_session=True, preexec_fn=die_with_parent)
        os.close(slave)
        threading.Thread(target=self.listen, daemon=True).start()
        for line in ('tidepool() { printf "%s\\n" "$@" > words.new; mv words.new words; }', *setup, "echo > ready"):
            self.type(line + "\r")
        self.wait("ready")

    def listen(self):
        try:
            while chunk := os.read(self.master, 4096):
                self.said += chunk
        except OSError:
            pass

    def type(self, text):
        os.write(self.master, text.encode())

    def wait(self, name):
        """Waits until the file `name` is in the folder, removes it and returns its content; None after
        TIMEOUT_S."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (self.folder / name).exists():
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)
        text = (self.folder / name).read_text()
        (self.folder / name).unlink()
        return text

    def words(self, typed):
        """Types the text (with its tabs) and enter, and returns the arguments that the shell passed to
        `tidepool`."""
        self.type(typed + "\r")
        text = self.wait("words")
        return text.splitlines() if text is not None else [f"nothing, but: {self.said[-2000:]!r}"]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


class Bash(Terminal):
    def __init__(self, script, folder):
        super().__init__(["bash", "--norc", "--noprofile", "-i"], folder, [f"source {script}"])


# zsh's completion functions offer their matches by compadd. This compadd writes the matches to a file, except
# in calls with -O, -A or -D, by which zsh's own functions only fill arrays.
ZSH_SETUP = (
    "bindkey -e; LISTMAX=100000; autoload -Uz compinit; fpath=({folder} $fpath); compinit -u -D",
    "noted() {{ local -a hits; builtin compadd -A hits \"$@\"; print -rl -- $hits >> offered.new; builtin compadd \"$@\"; }}",
    "compadd() {{ if [[ ${{@[1,(i)(-|--)]}} == *-(O|A|D)\\ * ]]; then builtin compadd \"$@\"; else noted \"$@\"; fi; }}",
    "look() {{ : > offered.new; _main_complete; mv offered.new offered; }}; zle -C look list-choices look; bindkey '^T' look",
)


class Zsh(Terminal):
    def __init__(self, script, folder):
        setup = [line.format(folder=Path(script).parent) for line in ZSH_SETUP]
        super().__init__(["zsh", "-f", "-i"], folder, setup)

    def shows(self, text):
        """Whether the text is on the screen already or appears there within TIMEOUT_S."""
        deadline = time.monotonic() + TIMEOUT_S
        while text.encode() not in self.said and time.monotonic() < deadline:
            time.sleep(0.01)
        return text.encode() in self.said

    def offered(self, typed):
        """Returns the sorted completions that zsh lists after the typed text, without the "=" that may end an
        option."""
        self.type(typed + "\x14")
        text = self.wait("offered")
        self.type("\x15")
        if text is None:
            return [f"nothing, but: {self.said[-2000:]!r}"]
        return sorted({line.rstrip("=") for line in text.splitlines() if line})
