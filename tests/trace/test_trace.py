#!/usr/bin/env python3
"""Checks the traces that `tidepool train --trace` writes: every line has the form in docs/trace.md, the
events add up to the metrics, and the events of chunks and slots agree.

usage: test_trace.py PROGRAM      prints TAP
"""
import json
import os
import re
import signal
import subprocess
import sys
import time

import trace_schema

from pathlib import Path
sys.path.append(str(Path(__file__).resolve().parents[1] / "program"))
from test_program import MACHINE, MACHINES, MIB, Bench, die_with_parent, least_named  # noqa: E402


SCHEMA = trace_schema.Schema()
GPT2_7B = {"model_type": "gpt2", "n_layer": 32, "n_embd": 4096, "n_head": 32, "n_positions": 1024, "vocab_size": 50257}
BIG_MACHINE = ("--machine", MACHINES / "large.json")
# For a kind of move, with a copy or without: the possible states of its chunk in (device, host) while the
# move is open.
ON_THE_WAY = {("fetch", True): [("coming", "there"), ("stale", "there")], ("fetch", False): [("coming", "none")],
              ("evict", True): [("evicting", "coming")], ("evict", False): [("evicting", "there"), ("evicting", "none")],
              ("write back", True): [("evicting", "coming"), ("there", "coming")]}
HAS_SLOT = ("coming", "there", "evicting", "stale")


def nano(bench, *options):
    return ["--model", "gpt2-nano", "--data", bench.text, "--vocab-size", 257, "--seq-len", 64, "--batch-tokens", 256,
            "--micro-batch", 2, "--chunk-size", "1MiB", "--eval-every", 0, "--sample", 0, "--checks", "on", *options]


def record(bench, name, *options):
    """Run the program. Returns its trace and metrics; None if it wrote none."""
    trace, metrics = bench.folder / f"{name}.trace", bench.folder / f"{name}.metrics"
    run = bench.run(*options, "--trace", trace, "--metrics", metrics)
    if not bench.tap.ok(run.status == 0 and not list(bench.folder.glob(f"{trace.name}.*")), f"{name}: a run with a trace", run):
        return None
    try:
        lines, kinds = trace_schema.read(trace, SCHEMA)
        bench.tap.ok(True, f"{name}: {len(lines)} lines are as the page says")
    except trace_schema.Damaged as wrong:
        bench.tap.ok(False, f"{name}: lines are as the page says", wrong)
        return None
    return lines, kinds, metrics.read_text().splitlines(), trace.read_text().splitlines()


def sums_check(bench, name, recorded, steps):
    """The events of each complete step must add up to its metrics line, of which the trace has a copy."""
    lines, _, metrics, texts = recorded
    rows = {json.loads(text)["step"]: text for text in metrics}
    found = trace_schema.sums(lines)
    wrong = [f"step {step}: {text}" for step, (sums, line) in found.items()
             for text in trace_schema.differences(sums, line, exactly=lines[0]["device"] == "null")]
    bench.tap.ok(set(found) == set(steps) and not wrong, f"{name}: what happened adds up to the metrics of {len(found)} steps",
                 wrong or sorted(found))
    told = [text for text in texts if text.startswith('{"step"')]
    bench.tap.ok(all(rows[json.loads(text)["step"]] == text for text in told), f"{name}: the metrics' lines, to the letter")


def at_once(held, event, tier, faults):
    """Update `held`, which maps a tier's slots to chunks. A slot may hold one chunk; a chunk without a
    slot must be absent."""
    slot, chunk = event[f"{tier}_slot"], event["chunk"]
    for other in [number for number, owner in held.items() if owner == chunk]:
        del held[other]
    if (slot is None) != (event[tier] not in HAS_SLOT):
        faults.append(event)
    if slot is None:
        return
    if slot in held:
        faults.append(event)
    held[slot] = chunk


def places_check(bench, name, lines):
    """Replay the places of chunks: never more than there are slots, each chunk in its own slot, with a
    possible content."""
    head = lines[0]
    chunks = [line for line in lines if line.get("table") == "chunk"]
    slots = {tier: head[f"{tier}_slots"] for tier in ("device", "host")}
    held, faults, most = {"device": {}, "host": {}}, [], {"device": 0, "host": 0}
    for event in lines:
        if event.get("event") not in ("chunk", "snapshot"):
            continue
        for tier in held:
            at_once(held[tier], event, tier, faults)
            most[tier] = max(most[tier], len(held[tier]))
        contents = {"param": ("nothing", "params", "gradients", "both"), "state": ("nothing", "state"),
                    "activation": ("nothing", "activations")}[chunks[event["chunk"]]["space"]]
        if event["content"] not in contents or event["pinned"] and (event["device"], event["host"]) == ("none", "none"):
            faults.append(event)
    bench.tap.ok(not faults and all(0 < most[tier] <= slots[tier] for tier in most),
                 f"{name}: {most} chunks at once in {slots} slots", faults[:3])


def ways_check(bench, name, lines):
    """A trace must begin with the places of all chunks. A move's event comes at its end; until then the
    chunk must be on its way."""
    stands, pinned, pending, ever_pending, begun, faults, moves = {}, set(), set(), set(), None, [], 0
    for event in (line for line in lines if "event" in line):
        if event["event"] == "pass" and begun is None:
            begun = set(stands)
        elif event["event"] == "chunk":
            stands[event["chunk"]] = (event["device"], event["host"])
            (pinned.add if event["pinned"] else pinned.discard)(event["chunk"])
            (pending.add if event["pending"] else pending.discard)(event["chunk"])
            ever_pending |= pending
        elif event["event"] == "request" and event["chunks"] > len(pinned):
            faults.append((len(pinned), event))
        elif event["event"] == "move":
            moves += 1
            if stands.get(event["chunk"]) not in ON_THE_WAY.get((event["move"], event["copied"]), []):
                faults.append((stands.get(event["chunk"]), event))
    bench.tap.ok(moves and not faults, f"{name}: chunks of {moves} moves are on their way", faults[:3])
    updated = {line["chunk"] for line in lines if line.get("event") == "update"}
    bench.tap.ok(not pinned and not pending and ever_pending == updated, f"{name}: {len(ever_pending)} chunks have a pending update and get it",
                 (pinned, pending, ever_pending ^ updated))
    valued = {line["chunk"] for line in lines if line.get("table") == "chunk" and line["space"] != "activation"}
    bench.tap.ok(begun == (set() if lines[0]["device"] == "null" else valued), f"{name}: it begins with where chunks are", begun)


def joins_check(bench, name, lines):
    """Ids: each copy, zeroing and mapping must belong to one move that names it; the trace must have the
    command that ended a stall."""
    moves, tasks, faults = {}, set(), []
    events = [line for line in lines if "event" in line]
    for event in events:
        if event["event"] == "move":
            if event["id"] in moves:
                faults.append(event)
            moves[event["id"]] = event
        elif event["event"] in ("update", "restore", "access"):
            tasks.add(event["id"])
    copied = {event["id"] for event in events if event["event"] == "copy"}
    for event in events:
        kind = event["event"]
        if kind == "copy" and (event["id"] not in moves or any(
                event[name] != moves[event["id"]][name] for name in ("chunk", "reason", "device_slot", "host_slot"))):
            faults.append(event)
        elif kind == "move" and event["copied"] != (event["id"] in copied):
            faults.append(event)
        elif kind == "stall" and event["ended_by"] is not None and event["ended_by"] not in moves and event["ended_by"] not in tasks:
            faults.append(event)
        elif kind == "stall" and event["cause"] in ("norm", "peer", "caller") and (event["chunk"], event["ended_by"]) != (None, None):
            faults.append(event)
    bench.tap.ok(moves and not faults, f"{name}: {len(moves)} moves, and what belongs to them", faults[:3])


def where(event):
    return event["pass"], event["op"], event["slice"], event["schedule_step"]


def requests_check(bench, name, lines):
    """A request must lack as many chunks as it has wait events. Spans of ops must not overlap, and must
    come in order of requests."""
    faults, waits, end_ns, asked, run = [], 0, 0, [], []
    for event in (line for line in lines if "event" in line):
        if event["event"] == "wait":
            waits += 1
        elif event["event"] == "request":
            if event["lacked"] != waits or event["lacked"] > event["chunks"]:
                faults.append(event)
            waits = 0
            asked += [where(event)] if event["slice"] is not None else []
        elif event["event"] == "op":
            run += [where(event)] if event["slice"] is not None and where(event) not in run[-1:] else []
            if event["begin_ns"] < end_ns or event["busy_ns"] > event["end_ns"] - event["begin_ns"] or event["busy_ns"] == 0:
                faults.append(event)
            end_ns = event["end_ns"]
    bench.tap.ok(not faults, f"{name}: requests and ops are whole", faults[:3])
    bench.tap.ok(run and run == asked, f"{name}: {len(run)} slices run as they were asked for",
                 [pair for pair in zip(asked, run) if pair[0] != pair[1]][:3] or (len(asked), len(run)))


def gradients_check(bench, name, lines, steps):
    """In each step every trained param's place must get its gradient once, and then its values again."""
    params = [line for line in lines if line.get("table") == "param"]
    told = {number: [] for number in range(len(params))}
    for event in lines:
        if event.get("event") == "param":
            told[event["param"]].append(event["holds"])
    expected = ["gradient", "parameter"] * steps
    wrong = [(params[number]["name"], holds) for number, holds in told.items()
             if holds != ([] if params[number]["frozen"] else expected)]
    bench.tap.ok(not wrong, f"{name}: {len(params)} params have a gradient in turn", wrong[:2])


def contents_check(bench, name, lines):
    """Whenever an op's request is ready, the content in the chunks' events must agree with the events of
    their params."""
    params = {line["chunk"]: {param for param, _, _ in line["params"]} for line in lines
              if line.get("table") == "chunk" and line["space"] == "param"}
    contents, gradients, faults = {}, set(), []
    for event in (line for line in lines if "event" in line):
        if event["event"] == "param":
            (gradients.add if event["holds"] == "gradient" else gradients.discard)(event["param"])
        elif event["event"] == "chunk" and event["chunk"] in params:
            contents[event["chunk"]] = event["content"]
        elif event["event"] in ("request", "pass end"):
            for chunk, content in contents.items():
                held = params[chunk] & gradients
                if content not in ("nothing", "params" if not held else "gradients" if held == params[chunk] else "both"):
                    faults.append((chunk, content, event))
    bench.tap.ok(contents and not faults, f"{name}: chunks hold what their params do", faults[:3])


def tables_check(bench, name, lines):
    """Every element of a param must be in one chunk, and its state in one. A chunk may not have both
    frozen and trained params."""
    params = [line for line in lines if line.get("table") == "param"]
    chunks = [line for line in lines if line.get("table") == "chunk"]
    elements = [0] * len(params)
    mixed = [chunk for chunk in chunks if len({params[param]["frozen"] for param, _, _ in chunk["params"]}) > 1]
    for chunk in chunks:
        for param, first, count in chunk["params"]:
            if first != elements[param]:
                mixed.append(chunk)
            elements[param] += count
    owners = {owner for chunk in chunks for owner in chunk["of"]}
    trained = {chunk["chunk"] for chunk in chunks for param, _, _ in chunk["params"] if not params[param]["frozen"]}
    bench.tap.ok(elements == [param["elements"] for param in params] and not mixed and owners == trained,
                 f"{name}: every element of {len(params)} params is in one chunk, and its state in another", mixed[:2])


def all_checks(bench, name, recorded, steps):
    if recorded is None:
        return set()
    lines, kinds, *_ = recorded
    sums_check(bench, name, recorded, range(1, steps + 1))
    tables_check(bench, name, lines)
    places_check(bench, name, lines)
    ways_check(bench, name, lines)
    joins_check(bench, name, lines)
    requests_check(bench, name, lines)
    gradients_check(bench, name, lines, steps)
    contents_check(bench, name, lines)
    return kinds


def runs(bench):
    """Runs that together write every kind of line except those of failures, which test_trace.c and
    test_pool_trace.c test."""
    steps = 4  # two to warm up and two more
    least = least_named(bench.run(*nano(bench, "--steps", 1, "--device-memory", "1MiB")).err)
    config = bench.folder / "7b.json"
    config.write_text(json.dumps(GPT2_7B))
    kinds = set()
    for name, options in (
            ("tight", nano(bench, "--device-memory", least, "--steps", steps)),
            ("ample", nano(bench, "--steps", steps)),
            ("throttled", nano(bench, "--device-memory", least + 4 * MIB, "--link-bandwidth", "400MB/s", "--steps", steps)),
            ("without clipping", nano(bench, "--device-memory", least + 2 * MIB, "--clip", 0, "--delays", 7, "--steps", steps)),
            ("ample without clipping", nano(bench, "--clip", 0, "--steps", steps)),
            ("frozen params", nano(bench, "--device-memory", "14MiB", "--freeze", "wte.*", "--freeze", "h.[0-2].*", "--steps",
                                   steps)),
            ("7B on the null device", ["--model", config, "--device", "null", *BIG_MACHINE, "--batch-tokens", 8192,
                                       "--device-memory", "16GiB", "--host-memory", "120GiB", "--steps", steps])):
        recorded = record(bench, name, *options, "--trace-steps", "all")
        kinds |= all_checks(bench, name, recorded, steps)
        if name == "frozen params" and recorded is not None:
            frozen(bench, recorded[0])
    # bf16 needs less memory than this where the processor has its own matmul for it
    half = ["--dtype", "fp16", "--loss-scale", 16777216]
    half_least = least_named(bench.run(*nano(bench, *half, "--steps", 1, "--device-memory", "1MiB")).err)
    skips = record(bench, "fp16", *nano(bench, *half, "--device-memory", half_least, "--steps", 4, "--trace-steps", "all"))
    if skips is not None:
        kinds |= skips[1]
        sums_check(bench, "fp16 whose steps are skipped", skips, range(1, 5))
    often = [{"--eval-every": 2, "--sample": 3}.get(before, option) for before, option in
             zip([None, *nano(bench)], nano(bench))]
    work = record(bench, "work", *often, "--steps", 5, "--checkpoint", bench.folder / "saved", "--save-every", 2,
                  "--device-memory", least, "--trace-steps", 2)
    if work is not None:
        kinds |= work[1]
        sums_check(bench, "work", work, [1, 2, 4, 5])
    resumed = record(bench, "resumed", *nano(bench, "--steps", 7, "--checkpoint", bench.folder / "saved", "--resume",
                                             "--device-memory", least, "--trace-steps", "all"))
    if resumed is not None:
        sums_check(bench, "resumed", resumed, [6, 7])
        begun = [line["number"] for line in resumed[0] if line.get("event") == "pass" and line["training"]]
        bench.tap.ok(begun == [6, 7], "a resumed run's steps are numbered on", begun)
        done = {line["work"] for line in work[0] if line.get("event") == "work"}
        bench.tap.ok(done == {"data", "evaluate", "save", "sample"}, "what was done between steps is told", done)
    missing = set(SCHEMA.kinds) - kinds
    bench.tap.ok(missing == {"event dropped", "event given up"}, "the runs have every kind of line", missing)


def segments(bench):
    """With --trace-steps 3 the first two and the last three of eight steps are complete. Each begins with
    the places of all chunks."""
    recorded = record(bench, "last steps", *nano(bench, "--device-memory", "12MiB", "--steps", 8, "--trace-steps", 3))
    if recorded is None:
        return
    lines = recorded[0]
    sums_check(bench, "last steps", recorded, [1, 6, 7, 8])
    begun = [line["number"] for line in lines if line.get("event") == "pass"]
    bench.tap.ok(begun == [1, 2, 6, 7, 8], "the warm-up and the last three steps are kept", begun)
    places, wrong = {}, 0
    for line in lines:
        if line.get("event") not in ("chunk", "snapshot"):
            continue
        place = {key: value for key, value in line.items() if key not in ("event", "step", "pass", "t_ns")}
        if line["event"] == "snapshot" and line["chunk"] in places and begun[-1] == line["pass"]:
            wrong += places[line["chunk"]] != place
        places[line["chunk"]] = place
    bench.tap.ok(wrong == 0, "a snapshot says where the events before it have left each chunk", wrong)


def killed(bench):
    """Of a killed run every line is complete, except perhaps the last of each file."""
    trace = bench.folder / "killed"
    command = [bench.program, "train", *map(str, nano(bench, "--device-memory", "12MiB", "--steps", 100000, "--trace", trace,
                                                      "--trace-steps", 2))]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
    until = time.time() + 60
    while not (bench.folder / "killed.step-5").exists() and time.time() < until:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    left = sorted(bench.folder.glob("killed.step-*"), key=lambda path: int(path.name.rsplit("-", 1)[1]))
    wrong = []
    for path in [trace, *left]:
        whole = path.read_text().rsplit("\n", 1)[0]
        wrong += [text for text in whole.splitlines() if SCHEMA.check(json.loads(text))]
    bench.tap.ok(1 <= len(left) <= 3 and not wrong, f"a killed run leaves {len(left)} segments that can be read", wrong[:2])
    summary = subprocess.run([bench.program, "trace", "summary", trace], capture_output=True, text=True, check=False)
    bench.tap.ok(summary.returncode == 0 and "a step took" in summary.stdout and "was killed" in summary.stdout,
                 "what it tells is summed up", summary.stdout + summary.stderr)
    again = bench.run(*nano(bench, "--device-memory", "12MiB", "--steps", 1, "--trace", trace))
    bench.tap.ok(again.status == 0 and not list(bench.folder.glob("killed.step-*")), "the next run with that file removes them",
                 again)


def ranks(bench):
    """Each rank writes a trace. All name the same rank as the slowest of a step; the metrics are rank 0's."""
    trace, metrics = bench.folder / "ranks.trace", bench.folder / "ranks.metrics"
    options = nano(bench, "--ranks", 2, "--steps", 6, "--trace", trace, "--metrics", metrics)
    options[options.index("--checks") + 1] = "off"
    run = bench.run(*options)
    files = [Path(f"{trace}.rank-{rank}") for rank in range(2)]
    if not bench.tap.ok(run.status == 0 and all(map(Path.exists, files)), "ranks: each writes a trace", run):
        return
    all_lines, slowest = [trace_schema.read(path, SCHEMA)[0] for path in files], []
    for rank, lines in enumerate(all_lines):
        found = trace_schema.sums(lines)
        wrong = [f"step {step}: {text}" for step, (sums, line) in found.items()
                 for text in trace_schema.differences(sums, line)]
        told = (lines[0]["rank"], lines[0]["ranks"], lines[0]["run"], sorted(found))
        bench.tap.ok(told == (rank, 2, all_lines[0][0]["run"], list(range(1, 7))) and not wrong,
                     f"ranks: what happened on rank {rank} adds up", wrong or sorted(found))
        slowest.append([(line["slowest_rank"], line["slowest_step_seconds"])
                        for line in lines if next(iter(line)) == "step"])
    bench.tap.ok(slowest[0] == slowest[1] and all(rank < 2 and seconds > 0 for rank, seconds in slowest[0]),
                 "ranks: they agree on the slowest", slowest)
    waited = [line for line in all_lines[0] if line.get("cause") == "peer"]
    bench.tap.ok(waited and all((line["chunk"], line["ended_by"]) == (None, None) for line in waited),
                 "ranks: some stalls are for peers", waited[:3])
    told = [text for text in files[0].read_text().splitlines() if text.startswith('{"step"')]
    bench.tap.ok(told == metrics.read_text().splitlines(), "ranks: rank 0 writes the metrics", told[:1])
    before = files[1].rename(bench.folder / "before.rank-1")
    run = bench.run(*options)
    summary = subprocess.run([bench.program, "trace", "summary", files[0], before], capture_output=True,
                             text=True, check=False)
    bench.tap.ok(run.status == 0 and summary.returncode == 2 and "is of another run" in summary.stderr,
                 "ranks: a trace of a run before, with the same options, is refused", f"{run}\n{summary}")


def left_alone(bench):
    """If the trace goes to a pipe whose reader ends, training goes on, and its end reports that the trace
    is not complete."""
    pipe, metrics = bench.folder / "pipe", bench.folder / "left alone.metrics"
    os.mkfifo(pipe)
    with subprocess.Popen(["head", "-c", "1000", pipe], stdout=subprocess.DEVNULL, preexec_fn=die_with_parent) as reader:
        run = bench.run(*nano(bench, "--steps", 3, "--trace", pipe, "--trace-steps", "all", "--metrics", metrics))
        reader.kill()
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    bench.tap.ok(run.status == 1 and f"trace file {pipe}" in run.err and "Broken pipe" in run.err and len(lines) == 3,
                 "a trace's pipe whose reader leaves is a failure after the last step", run)


def border(bench):
    """Automatic placement keeps the state of as many params on the device as fit. If the host has a few spare
    slots, only the STATE chunk that device params share with host params moves back and forth."""
    options = ["--model", "gpt2-nano", "--device", "null", *MACHINE, "--steps", 6, "--recompute", "all", "--chunk-size", "1MiB",
               "--device-memory", 32 * MIB + MIB // 2]
    host_bytes = (least_named(bench.run(*options, "--host-memory", "1MiB").err) or 0) + 4 * MIB
    recorded = record(bench, "border", *options, "--host-memory", host_bytes)
    if recorded is None:
        return
    chunks = [line for line in recorded[0] if line.get("table") == "chunk"]
    moved = [line for line in recorded[0] if line.get("event") == "copy" and line["step"] == 5]
    state = [line["to"] for line in moved if chunks[line["chunk"]]["space"] == "state"]
    bench.tap.ok(len(moved) > 10 and 1 <= len(state) <= 2 and len(set(state)) == len(state),
                 f"of all state {len(state)} chunks move in a step: one each way is on the border", state)


def frozen(bench, lines):
    """Frozen params have their own chunks, which are fetched, but never updated and never copied out,
    since they stay clean."""
    names = [line["name"] for line in lines if line.get("table") == "param" and line["frozen"]]
    bench.tap.ok(names and all(re.match(r"wte|h\.[0-2]\.", name) for name in names), "the trace says which are frozen", names)
    chunks = [line for line in lines if line.get("table") == "chunk"]
    params = [line for line in lines if line.get("table") == "param"]
    clean = {chunk["chunk"] for chunk in chunks if chunk["params"] and params[chunk["params"][0][0]]["frozen"]}
    state_bytes = sum(chunk["bytes"] for chunk in chunks if chunk["space"] == "state")
    bench.tap.ok(state_bytes == 12 * sum(param["elements"] for param in params if not param["frozen"]),
                 "state is only of what is trained", state_bytes)
    events = [line for line in lines if line.get("chunk") in clean and "event" in line]
    bad = [event for event in events if event["event"] in ("update", "restore") or event.get("to") == "host"]
    fetched = {event["chunk"] for event in events if event["event"] == "copy"}
    bench.tap.ok(not bad and fetched == clean, "frozen chunks are fetched, not updated nor copied out", bad[:3])


def main(program):
    bench = Bench(program, False)
    try:
        runs(bench)
        segments(bench)
        killed(bench)
        left_alone(bench)
        ranks(bench)
        border(bench)
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main(sys.argv[1])
