#!/usr/bin/env python3
"""Tests how runs of several ranks fail, and what they leave, with a launcher that ends nobody.

usage: rank_faults.py PROGRAM FILE_FAULTS [COUNT] [--seed N] [--only NUMBER]      prints TAP

COUNT: how many cases, 200 by default. A case starts the ranks of a run one by one, as torchrun does, and
then harms one of them, at random (KINDS): a kill, a stop (for good, or beyond the timeout, or a short one),
a crash, a rank that is not started or has other options, a full disk, a closed connection, lack of memory
or of descriptors, strangers at the ports. The moment is random, too: while the ranks start and join, in a
step, while rank 0 saves, at the end. Then

  - every other rank ends by itself, with status 1, far within BOUND_S; each that has begun to train says so
    in one line, which names the harmed rank and, at a timeout, the collective and that rank's last words.
    Before that rank 0 speaks for those that it knows;
  - a harm that a run survives (a short stop, a stranger, one save without space) changes no bit of it;
  - the newest checkpoint is whole; in many cases a run goes on from it, with the bits of an undisturbed run;
  - no process of the run is left, no socket of it listens or is connected, TMPDIR is empty, and /dev/shm has
    no new file of tidepool.

FILE_FAULTS is the library of tests/program/preload/file_faults.c. --only runs the case of this number alone.
Exit status 0: all cases passed, 1: some failed.
"""
import argparse
import ctypes
import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compare_programs import file_differs
from rank_group import Group, process_file, sockets_now

from test_program import TENSOR_FILES, Bench, Run, die_with_parent, trajectory

AT_ONCE, IDLE_AT_ONCE = 3, 10  # cases; of those that mostly wait, more
TIMEOUT_S = 3  # of collectives
JOIN_S = 60  # how long ranks wait for each other at the start
BOUND_S = 60  # from the fault to the end of all, beside JOIN_S; no sound run comes near to it
SAVE_EVERY, REFERENCE_STEPS, REFERENCE_EVERY, ENDLESS, SHORT = 5, 400, 20, 1000000, 40
SUM_GROUPS = {2: 4, 3: 6, 4: 8}  # by ranks

# For each kind: how many of the 200 cases, and the moments at which it happens.
KINDS = {
    "kill": (56, ("start", "start", "join", "step", "step", "save", "end")),
    "stop": (26, ("join", "step", "step", "save")),
    "stop and go on too late": (18, ("step", "step", "save")),
    "short stop": (5, ("step", "save")),
    "crash": (12, ("step", "save", "end")),
    "absent": (6, ("never",)),
    "other options": (26, ("start",)),
    "other token": (3, ("never",)),
    "twice": (4, ("start",)),
    "no space": (12, ("save",)),
    "no space once": (4, ("save",)),
    "no space for its trace": (5, ("end",)),
    "closed connection": (11, ("step", "step", "save")),
    "no memory": (5, ("start",)),
    "no descriptors": (3, ("start",)),
    "strangers": (4, ("join",)),
}
IDLE = {"absent", "other token"}
OTHER_OPTIONS = (("--seed", 9), ("--lr", 0.5), ("--model", "llama-nano"), ("--data", "other"),
                 ("--data", "/nowhere"), ("--dtype", "fp32"), ("--steps", 99), ("--batch-tokens", 2304),
                 ("--sum-groups", 24), ("--reduce", "bf16"), ("--clip", 0), ("--micro-batch", 2),
                 ("--freeze", "h.0.*"), ("--seq-len", 16), ("--device-memory", 1), ("--save-every", 6),
                 ("--eval-every", 3), ("--beta1", 0.8), ("--weight-decay", 0.5))
LIBC = ctypes.CDLL(None, use_errno=True)
PIDFD_OPEN, PIDFD_GETFD = 434, 438


def cases(count, seed):
    """(number, kind, moment, ranks, victim) of each case; any first ones of them are mixed."""
    generator = random.Random(seed)
    made = [(kind, moments[i % len(moments)])
            for kind, (number, moments) in KINDS.items() for i in range(number)]
    generator.shuffle(made)
    for number in range(count):
        kind, moment = made[number % len(made)]
        ranks = generator.choice((3, 4) if kind == "twice" else (2, 3, 4))
        victim = 0 if kind.startswith("no space") and "trace" not in kind else generator.randrange(ranks)
        yield number + 1, kind, moment, ranks, victim


class Failed(Exception):
    pass


def expect(good, message):
    if not good:
        raise Failed(message)


class World:
    """All that the cases share: data, and an undisturbed run for each number of sum groups."""

    def __init__(self, bench, file_faults):
        self.bench, self.file_faults = bench, file_faults
        self.other = bench.folder / "other"
        self.other.write_text("tides and " * 10000)
        for groups in SUM_GROUPS.values():
            folder, metrics = self.reference(groups)
            run = bench.run(*self.options(groups), "--steps", REFERENCE_STEPS, "--keep", 0,
                            "--save-every", REFERENCE_EVERY, "--checkpoint", folder, "--metrics", metrics)
            if run.status != 0:
                raise SystemExit(f"rank_faults.py: the undisturbed run: {run}")

    def reference(self, groups):
        return self.bench.folder / f"undisturbed-{groups}", self.bench.folder / f"undisturbed-{groups}.jsonl"

    def options(self, groups):
        return ["--model", self.bench.tiny, "--data", self.bench.text, "--seq-len", 32, "--micro-batch", 1,
                "--batch-tokens", 32 * groups, "--sum-groups", groups, "--chunk-size", "256KiB",
                "--threads", 1, "--eval-every", 0, "--sample", 0, "--schedule", "constant", "--warmup", 2]


class Case:
    def __init__(self, world, seed, number, kind, moment, ranks, victim):
        self.world, self.bench, self.number, self.kind, self.moment = world, world.bench, number, kind, moment
        self.ranks, self.victim = ranks, victim
        self.generator = random.Random(f"{seed} {number}")
        self.name = f"{number}: {ranks} ranks, rank {victim}: {kind}"
        self.name += "" if moment == "never" else f", {moment}"
        self.folder = self.bench.folder / f"case-{number}"
        self.folder.mkdir()
        self.saved, self.metrics = self.folder / "saved", self.folder / "metrics"
        self.groups = SUM_GROUPS[ranks]
        self.steps = ENDLESS if moment in ("step", "save", "never") else SHORT
        self.steps = {"short stop": SHORT, "no space": SHORT, "no space once": SHORT, "no memory": SHORT,
                      "other options": ENDLESS}.get(kind, self.steps)
        self.own = {}  # options of single ranks
        self.variables = {}  # of single ranks
        self.absent, self.guilty = set(), {victim}
        self.refused = {1}  # statuses of the victim, where that is to end by itself
        self.addresses, self.group = set(), None
        self.begun = self.had_beats = False  # at the fault: has rank 0 told of a step, and each sent beats?
        self.limits = {}

    # ---- options and start ----

    def options(self, rank):
        given = {"--steps": self.steps, "--save-every": SAVE_EVERY, "--collective-timeout": TIMEOUT_S,
                 "--checkpoint": self.saved, "--metrics": self.metrics, "--save-patience": 1,
                 "--network-bandwidth": self.bandwidth}
        words = [*self.world.options(self.groups), *(word for pair in given.items() for word in pair)]
        for name, value in self.own.get(rank, ()):
            if name in words:
                words[words.index(name) + 1] = value
            else:
                words += [name, value]
        return words

    def start(self):
        self.bandwidth = self.generator.choice(("8MB/s", "20MB/s"))
        self.group = Group(self.bench.program, self.folder / "run", [None] * self.ranks)
        order = [rank for rank in range(self.ranks) if rank not in self.absent]
        self.generator.shuffle(order)
        self.started_at = time.monotonic()
        late = self.victim if self.moment == "join" and self.kind != "strangers" else None
        for rank in order:
            if rank != late:
                self.start_rank(rank)
        if late is not None:
            time.sleep(self.generator.uniform(0, 0.2))
            self.start_rank(late)

    def start_rank(self, rank, name=None, **variables):
        self.group.start(rank, self.options(rank), name, self.limits.get(rank, die_with_parent),
                         **{**self.variables.get(rank, {}), **variables})

    # ---- moments ----

    def await_moment(self):
        """Waits for the moment of the fault; a run that ends before has failed."""
        if self.moment in ("start", "join"):
            time.sleep(self.generator.uniform(0, 0.08))
        elif self.moment == "step":
            self.await_output(f"step {self.generator.randint(1, 30)}/")
            time.sleep(self.generator.uniform(0, 0.05))
        elif self.moment == "save":
            self.await_output(f"saved {self.saved}/step-{SAVE_EVERY * self.generator.randint(1, 3)} ")
            self.await_that(lambda: any("tmp" in path.name for path in self.saved.iterdir()))
            time.sleep(self.generator.choice((0, 0.001, 0.004)))
        elif self.moment == "end":
            self.await_output(f"step {SHORT}/")
            time.sleep(self.generator.choice((0, 0.001, 0.005, 0.01)))
        self.begun = self.is_begun()
        self.had_beats = time.monotonic() - self.started_at > TIMEOUT_S / 2  # ten in a timeout
        self.addresses |= self.group.sockets()

    def is_begun(self):
        return 0 not in self.absent and "\nstep " in self.group.out()

    def await_output(self, mark):
        self.await_that(lambda: mark in self.group.out())

    def await_that(self, is_so):
        deadline = time.monotonic() + BOUND_S
        while not is_so():
            ended = any(process.poll() is not None for process in self.group.started.values())
            expect(not ended or self.moment == "end", f"the run ended before the fault:\n{self.group}")
            expect(time.monotonic() < deadline, f"the run does not come to the fault:\n{self.group}")
            time.sleep(0.001)

    # ---- faults ----

    def send(self, number):
        process = self.group.started[self.victim]
        if process.poll() is None:
            process.send_signal(number)

    def kill(self):
        self.start()
        self.await_moment()
        self.send(signal.SIGKILL)
        self.survivors_end()

    def crash(self):
        self.start()
        self.await_moment()
        self.send(self.generator.choice((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)))
        self.survivors_end()

    def stop(self, goes_on=False):
        self.start()
        self.await_moment()
        self.send(signal.SIGSTOP)
        self.survivors_end(is_timeout=self.begun)
        if goes_on:
            self.send(signal.SIGCONT)
            expect(not self.group.wait(BOUND_S), f"the rank that went on does not end:\n{self.group}")
            line = self.group.err(self.victim).splitlines()
            good = self.group.status(self.victim) == 1 and len(line) == 1
            expect(good and re.search(r"\brank \d", reason(line[0])), f"the rank that went on:\n{self.group}")

    def stop_and_go_on_too_late(self):
        self.stop(goes_on=True)

    def short_stop(self):
        self.start()
        self.await_moment()
        self.send(signal.SIGSTOP)
        time.sleep(self.generator.uniform(0.1, TIMEOUT_S / 3))
        self.send(signal.SIGCONT)
        self.ends_well()

    def absent_rank(self):
        self.absent = {self.victim}
        self.start()
        self.await_moment()
        self.survivors_end()

    def other_token(self):
        self.variables[self.victim] = {"TIDEPOOL_TOKEN": "wrong"}
        self.start()
        self.await_moment()
        self.survivors_end()
        self.is_refused(self.victim)

    def is_refused(self, name):
        """A process with another token ends, and says why."""
        expect(not self.group.wait(BOUND_S + JOIN_S), f"{name} runs on:\n{self.group}")
        line = self.group.err(name).splitlines()
        good = self.group.status(name) == 1 and len(line) == 1
        # rank 0 itself only knows that nobody came; others may have found no rank 0 at all
        expect(good and (name == 0 or re.search("do their tokens differ|can't connect to rank 0", line[0])),
               f"{name}, with another token:\n{self.group}")

    def other_options(self):
        name, value = OTHER_OPTIONS[self.number % len(OTHER_OPTIONS)]
        self.name += f", {name} {value}"
        self.own[self.victim] = [(name, self.world.other if value == "other" else value)]
        self.start()
        self.await_moment()
        self.begun = False  # they may find out before the first step or later
        self.refused = {1, 2}
        self.survivors_end(also=self.victim)

    def twice(self):
        """A second process of the same rank, while another rank is not there yet."""
        rest = [rank for rank in range(1, self.ranks) if rank != self.victim]
        self.absent = {self.generator.choice(rest)}
        self.start()
        self.begun = False
        time.sleep(self.generator.uniform(0, 0.1))
        self.start_rank(self.victim, "second")
        time.sleep(0.5)
        missing = self.absent.pop()
        self.start_rank(missing)
        self.addresses |= self.group.sockets()
        if self.victim == 0:  # whose port is taken: one of the two is refused
            expect(not self.group.wait(BOUND_S + JOIN_S), f"ranks run on:\n{self.group}")
            own = {self.group.status(0), self.group.status("second")}
            others = {self.group.status(rank) for rank in range(1, self.ranks)}
            line = [line for name in (0, "second") for line in self.group.err(name).splitlines()]
            expect(own == {0, 1} and others == {0} and len(line) == 1 and "can't listen" in line[0],
                   f"two processes have rank 0:\n{self.group}")
        else:
            self.survivors_end(also=self.victim)

    def no_space(self):
        """The disk of rank 0 is full from some call on, until the run has ended: that refuses the start, or
        the last save fails."""
        call = self.generator.choice(("write", "open", "mkdir", "fsync", "rename"))
        first = self.generator.randint(1, SHORT // SAVE_EVERY)
        self.name += f", {call} {first}"
        self.faulty_files(f"{call} {errno.ENOSPC} {first} 1000000 {self.saved}/")
        self.start()
        self.begun = True
        expect(not self.group.wait(BOUND_S), f"ranks run on:\n{self.group}")
        said = self.group.err(0).splitlines()
        others = [line for rank in range(1, self.ranks) for line in self.group.err(rank).splitlines()]
        good = all(self.group.status(rank) == 1 for rank in range(self.ranks))
        if self.is_begun():
            good = good and len(others) <= self.ranks - 1 and said and "is not saved" in said[-1]
        else:
            good = good and len(said) == 1 and not others
        expect(good and all(re.search("can't be|No space", line) for line in said + others),
               f"a full disk:\n{self.group}")

    def no_space_once(self):
        call = self.generator.choice(("write", "open", "mkdir", "fsync", "rename"))
        first = self.generator.randint(1, 12)
        self.name += f", {call} {first}"
        self.faulty_files(f"{call} {errno.ENOSPC} {first} {first} {self.saved}/")
        self.start()
        expect(not self.group.wait(BOUND_S), f"ranks run on:\n{self.group}")
        if self.is_begun():
            self.ends_well(warnings=1)
        else:
            self.begun = False
            self.survivors_end(also=0)

    def faulty_files(self, rule):
        rules = self.folder / "rules"
        rules.write_text(rule + "\n")
        self.variables[0] = {"LD_PRELOAD": self.world.file_faults, "TIDE_FILE_FAULTS": str(rules)}

    def no_space_for_its_trace(self):
        """A run goes on without a trace; the rank that could not write it says so at the end."""
        trace = self.folder / "trace"
        Path(f"{trace}.rank-{self.victim}").symlink_to("/dev/full")
        self.own = {rank: [("--trace", trace)] for rank in range(self.ranks)}
        self.start()
        expect(not self.group.wait(BOUND_S), f"ranks run on:\n{self.group}")
        line = self.group.err(self.victim).splitlines()
        good = all(self.group.status(rank) == int(rank == self.victim) for rank in range(self.ranks))
        expect(good and len(line) == 1 and "No space" in line[0], f"a trace on a full disk:\n{self.group}")
        self.same_bits(SHORT)

    def connections(self):
        """The victim's connections to other ranks, as sockets of this process, by rank."""
        process, found = self.group.started[self.victim], {}
        peers = {other.pid: rank for rank, other in self.group.started.items()}
        addresses = [(address, peers[pid]) for address, pids in sockets_now() for pid in pids if pid in peers]
        pidfd = LIBC.syscall(PIDFD_OPEN, process.pid, 0)
        for path in Path(f"/proc/{process.pid}/fd").iterdir():
            if not os.path.realpath(path).rpartition("/")[2].startswith("socket:"):
                continue
            connection = socket.socket(fileno=LIBC.syscall(PIDFD_GETFD, pidfd, int(path.name), 0))
            try:
                far = "%s:%d" % connection.getpeername()
                found.setdefault(dict(addresses)[far], []).append(connection)
            except (OSError, KeyError):  # it listens, or is closed
                connection.close()
        os.close(pidfd)
        return found

    def closed_connection(self):
        """Shuts a connection between two ranks down, or all of them, as a network may do."""
        self.start()
        self.await_moment()
        found = self.connections()
        expect(found, f"no connection was found:\n{self.group}")
        peer = self.generator.choice(sorted(found))
        self.guilty.add(peer)
        pair = self.generator.sample(found[peer], len(found[peer]))
        first = self.generator.choice((1, len(pair)))
        shut_down(pair[:first])
        # without the one of heartbeats a run goes on
        if first < len(pair) and len(self.group.wait(2 * TIMEOUT_S)) == self.ranks:
            self.name += " (heartbeats, then all)"
            first = 0
            shut_down(pair)
        for connection in (one for all_of in found.values() for one in all_of):
            connection.close()
        self.name += " (one)" if first == 1 else " (all)" if first else ""
        self.survivors_end(also=self.victim)

    def no_memory(self):
        most = self.generator.choice((40, 60, 100, 140, 200)) << 20
        self.name += f", {most >> 20} MiB"
        self.limit(resource.RLIMIT_AS, most)
        self.start()
        self.refused_or_whole()

    def no_descriptors(self):
        most = self.generator.randint(4, 14)
        self.name += f", {most}"
        self.limit(resource.RLIMIT_NOFILE, most)
        self.start()
        self.refused_or_whole()

    def limit(self, of, most):
        def begin():
            die_with_parent()
            resource.setrlimit(of, (most, most))
        self.limits[self.victim] = begin

    def refused_or_whole(self):
        self.await_moment()
        self.begun = False
        expect(not self.group.wait(BOUND_S + JOIN_S), f"ranks run on:\n{self.group}")
        if self.group.status(self.victim) == 0:
            self.name += " (enough)"
            self.ends_well()
        else:
            self.survivors_end()

    def strangers(self):
        """Garbage, silence and wrong tokens at all ports where ranks listen; one rank comes late."""
        late = self.generator.randrange(1, self.ranks)
        self.steps, self.absent = SHORT, {late}
        self.start()
        deadline, guests = time.monotonic() + BOUND_S, []
        while not any(address.endswith(f":{self.group.port}") for address in self.group.sockets()):
            expect(time.monotonic() < deadline, "rank 0 does not listen")
        time.sleep(0.1)
        ports = {int(address.rpartition(":")[2]) for address in self.group.sockets()}
        for port in ports:
            for content in (b"", b"\0" * 3, b"GET / HTTP/1.1\r\n\r\n", b"tidecomm" + bytes(120),
                            self.generator.randbytes(50000)):
                try:
                    guests.append(socket.create_connection(("127.0.0.1", port), timeout=1))
                    guests[-1].setblocking(False)
                    guests[-1].send(content)
                except OSError:  # no listener, or a faster rank
                    pass
        self.start_rank(late, "stranger", TIDEPOOL_TOKEN="wrong")
        time.sleep(0.2)
        self.absent = set()
        self.start_rank(late)
        self.addresses |= self.group.sockets()
        try:
            self.ends_well(without=("stranger",))
        finally:
            for guest in guests:
                guest.close()
        self.is_refused("stranger")

    # ---- judgement ----

    def survivors_end(self, also=None, is_timeout=False):
        """All ranks but the victim end as they should; the victim too if it is `also`."""
        rest = [name for name in self.group.started if name != self.victim or name == also]
        bound = BOUND_S + (0 if self.begun else JOIN_S)
        late = self.group.wait(bound, without={*self.group.started} - {*rest})
        expect(not late, f"ranks {late} run on:\n{self.group}")
        said = {name: self.group.err(name).splitlines() for name in rest}
        if self.moment == "end" and self.late_enough(rest, said):
            return
        good = all(self.group.status(name) in (self.refused if name == self.victim else {1}) for name in rest)
        expect(good, f"a status is not 1:\n{self.group}")
        expect(all(len(lines) == 1 if self.begun else len(lines) <= 1 for lines in said.values()),
               f"not one line each:\n{self.group}")
        # a rank 0 that fails by itself speaks for all at the start
        told = any(said.values()) or (self.victim == 0 and self.group.err(0))
        expect(told, f"no rank says why:\n{self.group}")
        named = [self.names(line) for lines in said.values() for line in lines]
        expect("given up" not in str(said), f"the line ends with another failure:\n{self.group}")
        expect(any(named) or not any(said.values()), f"no line names rank {self.guilty}:\n{self.group}")
        for name, lines in said.items():
            for line in lines:
                expect(self.names(line) or self.came_late(line),
                       f"the line of rank {name} does not name rank {self.guilty}:\n{self.group}")
                words = "; it (last said|says): " if self.had_beats else ""
                expect(not is_timeout or re.search(r"(in|come to) [a-z]+ \d+.*" + words, line),
                       f"the line of rank {name} does not name collective and words:\n{self.group}")

    def late_enough(self, rest, said):
        """A rank that dies behind the last exchange harms nobody: the others have the whole result, each by
        itself."""
        for name in rest:
            expect((self.group.status(name), len(said[name])) in ((0, 0), (1, 1)), f"an end:\n{self.group}")
        return any(self.group.status(name) == 0 for name in rest) and \
            all(self.names(line) for lines in said.values() for line in lines)

    def names(self, line):
        """Does the line name the guilty rank? After the begin, as the first rank in its reason."""
        ranks = [int(rank) for rank in re.findall(r"\branks? (\d+)", reason(line))]
        if self.begun:
            return bool(ranks) and ranks[0] in self.guilty
        return bool(set(ranks) & self.guilty) or self.is_own(line)

    def came_late(self, line):
        """A rank that comes to the start when rank 0 has ended finds nobody."""
        return not self.begun and "can't connect to rank 0" in line

    def is_own(self, line):
        """At the start rank 0 speaks of its own faults, and others of theirs, without a number."""
        owner = re.match(r"tidepool train: rank (\d+) \([^)]*\): (?!.*\brank \d)", line)
        said_by = int(owner.group(1)) if owner else 0 if line.startswith("tidepool train: ") else None
        return not self.begun and said_by in self.guilty and not re.search(r"\branks? \d", reason(line))

    def ends_well(self, warnings=0, without=()):
        late = self.group.wait(BOUND_S + JOIN_S, without)
        expect(not late, f"ranks {late} run on:\n{self.group}")
        said = [line for rank in range(self.ranks) for line in self.group.err(rank).splitlines()]
        expect(all(self.group.status(rank) == 0 for rank in range(self.ranks)) and len(said) <= warnings,
               f"a run that should end well:\n{self.group}")
        self.same_bits(SHORT)

    def same_bits(self, step):
        """The metrics until the step and its checkpoint are those of the undisturbed run."""
        folder, metrics = self.world.reference(self.groups)
        reference, own = trajectory(metrics), trajectory(self.metrics)
        for at in range(1, step + 1):
            expect(own.get(at) == reference[at], f"step {at}: {own.get(at)} / {reference[at]}")
        for name in TENSOR_FILES:
            paths = [place / f"step-{step}" / name for place in (folder, self.saved)]
            expect(paths[1].exists(), f"{paths[1]} is not there")
            line = file_differs(name, *(path.read_bytes() for path in paths))
            expect(line is None, line)

    def checkpoint_stands(self):
        """The newest checkpoint is whole and no older than the last that rank 0 has told of. Returns its
        step; 0: there is none."""
        out = self.group.out() if 0 in self.group.started else ""
        told = max(map(int, re.findall(rf"^saved {self.saved}/step-(\d+)", out, re.MULTILINE)), default=0)
        if told == 0 and not list(self.saved.glob("step-*[0-9]")):
            return 0
        run = Run([self.bench.program, "checkpoint", str(self.saved), "--json"])
        about = json.loads(run.out)["looked_at"] if run.status == 0 else {}
        expect(about.get("state") == "complete" and about.get("step") >= told, f"saved: {told}; {run}")
        return about["step"]

    def goes_on(self, step):
        """A new run, in one process or several, ends with the bits of an undisturbed one."""
        until = (step // REFERENCE_EVERY + 1) * REFERENCE_EVERY
        if until > REFERENCE_STEPS:
            return False
        ranks = self.generator.choice((1, self.ranks))
        run = self.bench.run(*self.world.options(self.groups), "--steps", until, "--checkpoint", self.saved,
                             "--metrics", self.metrics, "--resume", "--ranks", ranks)
        found = re.search(r"^resumed from .*/step-(\d+)", run.out, re.MULTILINE)
        resumed = int(found.group(1)) if found else 0
        expect(run.status == 0 and resumed == step, f"from step {step}: {run}")
        self.same_bits(until)
        return True

    def nothing_is_left(self):
        self.addresses.add(f"127.0.0.1:{self.group.port}")
        left = self.group.left()
        expect(not left, f"processes {[process_file(pid, 'cmdline') for pid in left]} are left")
        sockets = [row for row in sockets_now() if row[0] in self.addresses and not row[1]]
        expect(not sockets, f"sockets are left: {sockets}")
        files = list(self.group.scratch.iterdir())
        expect(not files, f"files are left: {files}")

    def run(self):
        """Returns why the case failed; "": it did not."""
        try:
            fault = "absent_rank" if self.kind == "absent" else self.kind.replace(" ", "_")
            getattr(self, fault)()
            self.group.kill()
            self.nothing_is_left()
            step = self.checkpoint_stands()
            goes_on = self.number % 2 == 0 or self.moment == "save"
            if goes_on and self.kind not in ("other options", "twice"):
                self.name += f"; goes on from step {step}" if self.goes_on(step) else f"; is at step {step}"
        except (Failed, OSError, LookupError, ValueError) as failure:
            return str(failure) if isinstance(failure, Failed) else traceback.format_exc()
        finally:
            if self.group is not None:
                self.group.kill()
        shutil.rmtree(self.folder)
        return ""


def reason(line):
    """A line without the prefixes that say who passes it on, and in which kernel it was found."""
    line = re.sub(r"^(?:tidepool train|rank \d+ \(host [^)]*\)): ", "", line)
    line = re.sub(r"^kernel .*? failed: ", "", line)
    # but "rank 1 (HOST): exchange 5 of 24 bytes, where rank 0 has ..." is a reason
    while re.match(r"rank \d+ \([^)]*\): (?!(?:exchange|gather|reduce) \d)", line):
        line = re.sub(r"^rank \d+ \([^)]*\): ", "", line, count=1)
    return line


def shut_down(connections):
    for connection in connections:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is shut down already
            pass


def shared_names():
    return {path.name for path in Path("/dev/shm").glob("*tide*")}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("file_faults", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("count", nargs="?", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    bench, lock, failed, shared = Bench(given.program, full=False), threading.Lock(), [], shared_names()

    def check(case):
        why = case.run()
        with lock:
            if not bench.tap.ok(not why, case.name, why):
                failed.append(case)

    try:
        world = World(bench, given.file_faults)
        made = [Case(world, given.seed, *about) for about in cases(given.count, given.seed)
                if given.only in (None, about[0])]
        with ThreadPoolExecutor(AT_ONCE) as busy, ThreadPoolExecutor(IDLE_AT_ONCE) as idle:
            futures = [(idle if case.kind in IDLE else busy).submit(check, case) for case in made]
        for future in futures:
            future.result()  # raises what the check has raised
        if not bench.tap.ok(shared_names() <= shared, "/dev/shm is as before", shared_names() - shared):
            failed.append(None)
        bench.tap.done()
    finally:
        bench.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
