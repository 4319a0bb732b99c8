#!/usr/bin/env python3
"""Ranks on two hosts, which are network namespaces of this machine, joined by a pair of veth. Each host has
processes, names and /dev/shm of its own, so ranks on both have equal process numbers. torchrun's variables
start the ranks, two a host.

usage: test_program_two_hosts.py PROGRAM      prints TAP
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from test_program import Bench, Run, die_with_parent, metrics_read

RANKS, PER_HOST = 4, 2
TAG = uuid.uuid4().hex[:6]
HOSTS = [f"tide-{TAG}-a", f"tide-{TAG}-b"]
ADDRESSES = ["10.213.77.1", "10.213.77.2"]
APART = "unshare --uts --pid --mount --fork --kill-child --mount-proc".split()
GUARD_S = 120


def options_of(bench, *more, model=None):
    sizes = ["--seq-len", 32, "--batch-tokens", 256, "--micro-batch", 1, "--chunk-size", "256KiB"]
    model = model or bench.tiny
    return ["--model", model, "--data", bench.text, *sizes, "--threads", 1, "--sum-groups", RANKS,
            "--eval-every", 0, "--sample", 0, *more]


def system(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True)


class Hosts:
    """Two namespaces and the line between them."""

    def __init__(self):
        self.why = self.make()

    def make(self):
        """Returns why it can't be done; "" if it is done."""
        for host in HOSTS:
            done = system("ip", "netns", "add", host)
            if done.returncode != 0:
                return "network namespaces are not allowed: " + done.stderr.strip()
        commands = [f"ip link add v{TAG}a netns {HOSTS[0]} type veth peer name v{TAG}b netns {HOSTS[1]}"]
        for host, address, end in zip(HOSTS, ADDRESSES, "ab"):
            commands += [f"ip -n {host} addr add {address}/24 dev v{TAG}{end}",
                         f"ip -n {host} link set v{TAG}{end} up", f"ip -n {host} link set lo up"]
        for command in commands:
            done = system(*command.split())
            if done.returncode != 0:
                return command + ": " + done.stderr.strip()
        done = system("ip", "netns", "exec", HOSTS[0], *APART, "true")
        return "" if done.returncode == 0 else "namespaces are not allowed: " + done.stderr.strip()

    def line(self, state):
        system("ip", "-n", HOSTS[1], "link", "set", f"v{TAG}b", state)

    def slow(self, rate):
        """Limits the line's rate in both directions. Returns why it can't be done."""
        for host, end in zip(HOSTS, "ab"):
            words = f"tc qdisc add dev v{TAG}{end} root tbf rate {rate} burst 16kb latency 100ms"
            done = system("ip", "netns", "exec", host, *words.split())
            if done.returncode != 0:
                return (done.stderr or done.stdout).strip().replace("\n", " ")
        return ""

    def fast(self):
        for host, end in zip(HOSTS, "ab"):
            system("ip", "netns", "exec", host, "tc", "qdisc", "del", "dev", f"v{TAG}{end}", "root")

    def remove(self):
        for host in HOSTS:
            system("ip", "netns", "del", host)


class Start:
    """All ranks of a run, under way."""

    def __init__(self, bench, name, *options):
        self.mark = f"TIDE_TEST_HOSTS={TAG}-{name}"
        self.folder = bench.folder / name
        self.folder.mkdir()
        words = " ".join(f"'{word}'" for word in bench.command(*options))
        self.hosts = []
        for number, host in enumerate(HOSTS):
            first = number * PER_HOST
            ranks = "".join(self.start_of(rank, words) for rank in range(first, first + PER_HOST))
            script = f"hostname host-{'ab'[number]} && mount -t tmpfs none /dev/shm && {{ {ranks} wait; }}"
            variables = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(PER_HOST),
                         "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29500", **dict([self.mark.split("=")])}
            self.hosts.append(subprocess.Popen(["ip", "netns", "exec", host, *APART, "sh", "-c", script],
                                               env={**os.environ, **variables}, stdin=subprocess.DEVNULL,
                                               preexec_fn=die_with_parent))

    def start_of(self, rank, words):
        """Starts a rank, in shell."""
        files = {name: f"{self.folder}/{name}{rank}" for name in ("out", "err", "status")}
        return (f"(RANK={rank} LOCAL_RANK={rank % PER_HOST} {words} >{files['out']} 2>{files['err']}; "
                f"echo $? >{files['status']}) & ")

    def pid(self, rank):
        """The number, on this machine, of the program that runs as a rank."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                variables = (path / "environ").read_bytes().split(b"\0")
                name = (path / "comm").read_text().strip()
            except OSError:
                continue
            if name == "tidepool" and {self.mark.encode(), f"RANK={rank}".encode()} <= set(variables):
                return int(path.name)
        return 0

    def own_number(self, rank):
        """The number that the process has on its host."""
        status = Path(f"/proc/{self.pid(rank)}/status").read_text()
        return re.search(r"^NSpid:.*\s(\d+)$", status, re.M).group(1)

    def wait_for(self, mark):
        """Until rank 0 has printed it; False if the run has ended before."""
        deadline = time.monotonic() + GUARD_S
        while time.monotonic() < deadline:
            path = self.folder / "out0"
            if path.exists() and mark in path.read_text(errors="replace"):
                return True
            if self.hosts[0].poll() is not None:
                return False
            time.sleep(0.01)
        return False

    def end(self):
        """Returns (status, stdout, stderr) of each rank."""
        for host in self.hosts:
            try:
                host.wait(GUARD_S)
            except subprocess.TimeoutExpired:
                host.kill()
        found = []
        for rank in range(RANKS):
            status = self.folder / f"status{rank}"
            files = [self.folder / f"{stream}{rank}" for stream in ("out", "err")]
            texts = [path.read_text(errors="replace") for path in files]
            found.append((status.read_text().strip() if status.exists() else "none", *texts))
        return found


def ends_well(bench):
    """Two hosts, started by variables alone, give one process's losses and checkpoint."""
    folders = [bench.folder / "alone", bench.folder / "hosts"]
    metrics = [bench.folder / "alone.jsonl", bench.folder / "hosts.jsonl"]
    options = [options_of(bench, "--steps", 6, "--metrics", file, "--checkpoint", folder)
               for file, folder in zip(metrics, folders)]
    Run(bench.command(*options[0]))
    told = Start(bench, "well", *options[1]).end()
    statuses = [status for status, _, _ in told]
    bench.tap.ok(statuses == ["0"] * RANKS, "four ranks on two hosts end with status 0", str(told))
    both = [[(line["loss"], line["grad_norm"]) for line in metrics_read(path)] for path in metrics]
    same = both[0] == both[1] and len(both[0]) == 6
    bench.tap.ok(same, "losses and norms are those of one process", str(both))
    saved = [{path.name: path.read_bytes() for path in (folder / "step-6").iterdir()} for folder in folders]
    same = saved[0] == saved[1] and len(saved[0]) >= 2
    bench.tap.ok(same, "and so is every byte of the checkpoint", str(saved[0].keys()))
    quiet = not any(out for _, out, _ in told[1:]) and not any(error for _, _, error in told)
    bench.tap.ok("4 ranks" in told[0][1] and quiet, "rank 0 alone prints", str(told))


def dies(bench):
    """A rank that dies ends those on the other host, which name it and its host."""
    folder = bench.folder / "dies-run"
    saves = ["--checkpoint", folder, "--save-every", 5]
    start = Start(bench, "dies", *options_of(bench, "--steps", 100000, *saves))
    begun = start.wait_for("step 6/")
    numbers = [{start.own_number(rank) for rank in ranks} if begun else set() for ranks in ((0, 1), (2, 3))]
    bench.tap.ok(numbers[0] & numbers[1], "processes on both hosts have equal numbers", str(numbers))
    if begun:
        os.kill(start.pid(3), signal.SIGKILL)
    told = start.end()
    statuses = [status for status, _, _ in told]
    bench.tap.ok(statuses == ["1", "1", "1", "137"], "a killed rank ends all with status 1", str(told))
    errors = [error for _, _, error in told[:3]]
    named = all(error.count("\n") == 1 and f"rank 3 ({ADDRESSES[1]})" in error for error in errors)
    bench.tap.ok(named, "each line names the rank and its host", str(told))
    own = errors[1].startswith("rank 1 (host host-a): ") and errors[2].startswith("rank 2 (host host-b): ")
    bench.tap.ok(own, "and the one that prints it", str(told))
    saved = sorted(path.name for path in folder.glob("step-*"))
    bench.tap.ok(saved, "checkpoints stand", saved)


def cut_off(bench, hosts):
    """A line that goes dead ends the ranks on both sides, which hear nothing of each other."""
    options = options_of(bench, "--steps", 100000, "--collective-timeout", 3)
    start = Start(bench, "cut", *options)
    begun = start.wait_for("step 6/")
    hosts.line("down")
    told = start.end()
    hosts.line("up")
    statuses = [status for status, _, _ in told]
    ended = begun and statuses == ["1"] * RANKS
    bench.tap.ok(ended, "a line that goes dead ends all ranks with status 1", str(told))
    errors = [error for _, _, error in told]
    heard = [re.search(rf"nothing has been heard of rank \d \({re.escape(address)}\) for 3 s", error)
             for address, half in zip(reversed(ADDRESSES), (errors[:2], errors[2:])) for error in half]
    named = all(heard) and all(error.count("\n") == 1 for error in errors)
    bench.tap.ok(named, "each says that nothing is heard of a rank on the other host, and where", str(errors))


def stopped(bench):
    """A rank that is stopped and goes on in time does no harm; one that is stopped for good ends all."""
    options = options_of(bench, "--steps", 40, "--collective-timeout", 60)
    start = Start(bench, "paused", *options)
    begun = start.wait_for("step 6/")
    pid = start.pid(3)
    if pid:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
    told = start.end()
    statuses = [status for status, _, _ in told]
    bench.tap.ok(begun and statuses == ["0"] * RANKS, "a pause does no harm", str(told))
    start = Start(bench, "stopped", *options_of(bench, "--steps", 100000, "--collective-timeout", 3))
    begun = start.wait_for("step 6/")
    pid = start.pid(3)
    if pid:
        os.kill(pid, signal.SIGSTOP)
        start.hosts[0].wait(GUARD_S)
        os.kill(pid, signal.SIGCONT)
    told = start.end()
    statuses = [status for status, _, _ in told]
    bench.tap.ok(begun and statuses == ["1"] * RANKS, "a rank that is stopped for good ends all", str(told))
    named = all(f"rank 3 ({ADDRESSES[1]})" in error for _, _, error in told[:2])
    bench.tap.ok(named, "and those on the other host name it", str(told))


def slow_line(bench, hosts):
    """A collective that all ranks are in may take longer than the timeout. The params are one matrix, more or
    less, whose gradients are added in one call and sent back in another."""
    wide = bench.folder / "wide.json"
    sizes = {"n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 16384}
    wide.write_text(json.dumps({**bench.tiny_config(), **sizes}))
    why = "the program tc of iproute2 is missing" if shutil.which("tc") is None else hosts.slow("5mbit")
    if why:
        print("# a slow line is not tried: " + why)
        hosts.fast()
        return
    files = [bench.folder / "wide-alone.jsonl", bench.folder / "wide-hosts.jsonl"]
    options = [options_of(bench, "--steps", 1, "--metrics", file, model=wide) for file in files]
    Run(bench.command(*options[0]))
    told = Start(bench, "slow", *options[1], "--collective-timeout", 1).end()
    hosts.fast()
    both = [metrics_read(file) if file.exists() else [] for file in files]
    results = [[(line["loss"], line["grad_norm"]) for line in lines] for lines in both]
    statuses = [status for status, _, _ in told]
    same = statuses == ["0"] * RANKS and results[0] == results[1] and len(results[0]) == 1
    bench.tap.ok(same, "a slow line changes no bit", str(told) + str(results))
    seconds = sum(line["stall_peer_seconds"] for line in both[1])
    bench.tap.ok(seconds > 2, "although a collective takes longer than the timeout", str(seconds))


def main(program):
    if os.geteuid() != 0 or shutil.which("ip") is None:
        print("1..0 # SKIP network namespaces need root, and the program ip of iproute2")
        return
    bench = Bench(program, False)
    hosts = Hosts()
    try:
        if hosts.why:
            print("1..0 # SKIP " + hosts.why)
            return
        for case in (ends_well, dies, stopped):
            case(bench)
        slow_line(bench, hosts)
        cut_off(bench, hosts)
    finally:
        hosts.remove()
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main(sys.argv[1])
