"""The ranks of a run, each started by the caller as a process of its own, as torchrun does: nobody ends the
others when one ends. For ranks_check.py and rank_faults.py.
"""
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/program"))
from test_program import MADE, die_with_parent  # noqa: E402

FIRST_PORT, LAST_PORT = 10000, 19999  # of rank 0: below those that systems choose for connections
LOCK = threading.Lock()
next_port = random.randint(FIRST_PORT, LAST_PORT)


def free_port():
    """A port of 127.0.0.1 that no socket uses, and that no other run of this script gets."""
    global next_port
    while True:
        with LOCK:
            port, next_port = next_port, next_port + 1 if next_port < LAST_PORT else FIRST_PORT
        with socket.socket() as place:
            try:
                place.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def process_file(pid, name):
    """The content of a file in /proc; nothing if the process is gone or not this user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


class Group:
    """Options by rank are in `options`; `more` are variables of the environment by rank. A rank for which
    `options` has None is not started."""

    def __init__(self, program, folder, options, more=None, ranks=0):
        self.program, self.folder, self.ranks = program, Path(folder), ranks or len(options)
        self.folder.mkdir(parents=True)
        self.scratch = self.folder / "tmp"
        self.scratch.mkdir()
        self.port, self.token = free_port(), uuid.uuid4().hex
        self.mark = "TIDE_TEST_GROUP=" + uuid.uuid4().hex
        self.started = {}
        for rank, own in enumerate(options):
            if own is not None:
                self.start(rank, own, **(more or {}).get(rank, {}))

    def start(self, rank, options, name=None, limits=die_with_parent, **variables):
        """Starts a rank, whose output goes to the files out-NAME and err-NAME; its rank is NAME."""
        name = rank if name is None else name
        variables = {"RANK": str(rank), "WORLD_SIZE": str(self.ranks), "LOCAL_RANK": str(rank),
                     "LOCAL_WORLD_SIZE": str(self.ranks), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(self.port - 1), "TIDEPOOL_TOKEN": self.token,
                     "TMPDIR": str(self.scratch), **dict([self.mark.split("=")]), **variables}
        with open(self.folder / f"out-{name}", "wb") as out, open(self.folder / f"err-{name}", "wb") as err:
            process = subprocess.Popen([self.program, "train", "--device", "host", *map(str, options)],
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       preexec_fn=limits, env={**os.environ, **variables})
        self.started[name] = process
        return process

    def out(self, name=0):
        return (self.folder / f"out-{name}").read_text(errors="replace")

    def err(self, name):
        return MADE.sub("", (self.folder / f"err-{name}").read_text(errors="replace"))

    def wait(self, seconds, without=()):
        """Waits for the ends of all but the ranks in `without`; returns the names of those that run on."""
        deadline = time.monotonic() + seconds
        rest = [name for name in self.started if name not in without]
        while rest and time.monotonic() < deadline:
            rest = [name for name in rest if self.started[name].poll() is None]
            time.sleep(0.01)
        return rest

    def status(self, name):
        return self.started[name].poll()

    def left(self):
        """The processes of this run that are there, other than those that it has not waited for."""
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [pid for pid in pids if self.mark.encode() in process_file(pid, "environ").split(b"\0")]

    def sockets(self):
        """The addresses at which sockets of this run's processes are."""
        own = {process.pid for process in self.started.values()}
        return {address for address, pids in sockets_now() if pids & own}

    def kill(self):
        for process in self.started.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()

    def __str__(self):
        lines = []
        for name, process in sorted(self.started.items(), key=str):
            lines.append(f"rank {name}: status {process.poll()}; " + "".join(self.out(name)[-300:]))
            lines += ["    " + line[:400] for line in self.err(name).splitlines()[:6]]
        return "\n".join(lines)


def sockets_now():
    """For each TCP socket that listens or is connected: (local address, numbers of its processes)."""
    told = subprocess.run(["ss", "-xtanpH"], capture_output=True, text=True, check=False).stdout
    # kind, state, two queues, own address, peer's, processes
    rows = [line.split() for line in told.splitlines()]
    return [(row[4], set(map(int, re.findall(r"pid=(\d+)", " ".join(row[6:]))))) for row in rows
            if row[0] == "tcp" and row[1] in ("LISTEN", "ESTAB")]
