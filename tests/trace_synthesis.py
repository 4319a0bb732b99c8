#!/usr/bin/env python3
"""Writes a trace of format 2 (docs/trace.md) of a run that never was: for pages and readers that want big ones, or known ones.

usage: trace_synthesis.py FILE [--param-chunks N] [--layers N] [--steps N] [--slots N] [--seed N]

One op a layer each way on PARAM chunks of its own, a checkpoint chunk for every few layers, STATE chunks that stay in host
memory, where all updates run. One in stream, one out stream, one thread that maps, one that updates: each a serial queue. What
is fetched ahead and what is evicted is plain (a window of ops; whatever is used last), so that stalls of kinds link, room and
update come by themselves; the times of a stall's command, of its copy and of the op behind it fit each other.
"""
import argparse
import bisect
import json
import random

MS = 1_000_000
CHUNK = 64 << 20


class Run:
    def __init__(self, args):
        self.args, self.random = args, random.Random(args.seed)
        self.lines = []
        self.ids = 0
        self.step = self.passed = 0
        self.params = args.param_chunks
        self.states = 2 * self.params
        self.checkpoints = max(2, args.layers // 4)
        self.chunks = self.params + self.states + self.checkpoints
        self.slots = args.slots or max(4, self.params * 4 // 10)
        self.free = list(range(self.slots))
        self.freed_at = [0] * self.slots
        self.freed_by = [0] * self.slots
        self.compute = self.incoming = self.outgoing = self.mapper = self.updater = 0
        self.where = {chunk: None for chunk in range(self.chunks)}  # device slot
        self.resident = {}  # ordered, unlike a set
        self.ready = {}  # when its copy in has ended, the command's id, and what that waited for
        self.used_until = {}
        self.updated_at, self.updated_by = {}, {}
        self.content = {}
        self.host = {}
        self.sums = {}

    def put(self, at, line):
        self.lines.append((at, len(self.lines), line))

    def event(self, at, kind, **members):
        self.put(at, {"event": kind, "step": self.step, "pass": self.passed, **members})

    def span(self, kind, begin, end, **members):
        self.event(end, kind, begin_ns=begin, end_ns=end, **members)

    def id(self):
        self.ids += 1
        return self.ids

    def bytes_of(self, chunk):
        return CHUNK if chunk < self.params + self.states else CHUNK // 2

    def count(self, name, amount):
        self.sums[name] = self.sums.get(name, 0) + amount

    def place(self, at, chunk, device, kind="chunk", pinned=False, host=None):
        slot = self.where[chunk] if device != "none" else None
        content = self.content.get(chunk, "nothing")
        host = host or ("there" if chunk in self.host else "none")
        self.event(at, kind, t_ns=at, chunk=chunk, device=device, device_slot=slot, host=host,
                   host_slot=chunk if host != "none" else None, pinned=pinned, content=content,
                   owes=chunk in self.updated_at and self.updated_at[chunk] > at)

    # ---- moves ----

    def fetch(self, now, chunk, reason, order):
        if self.where[chunk] is not None:
            return
        slot, free_at, by = self.slot_take(now, order)
        if slot is None:
            return
        move, waited = self.id(), "room" if free_at > now else None
        begin = max(now, free_at)
        if self.updated_at.get(chunk, 0) > begin:
            begin, waited, by = self.updated_at[chunk], "update", self.updated_by[chunk]
        self.where[chunk] = slot
        self.resident[chunk] = True
        self.place(now, chunk, "coming")
        mapped = max(begin, self.mapper) + 40_000
        self.span("map", mapped - 40_000, mapped, id=move, map="map", chunk=chunk, device_slot=slot)
        self.mapper = mapped
        fresh = chunk not in self.host
        if fresh:
            end = mapped + 100_000
            self.span("zero", mapped, end, id=move, chunk=chunk)
        else:
            copy = max(mapped, self.incoming)
            end = copy + int(self.bytes_of(chunk) / self.args.link)
            self.incoming = end
            self.span("copy", copy, end, id=move, to="device", chunk=chunk, reason=reason, bytes=self.bytes_of(chunk),
                      device_slot=slot, host_slot=chunk)
            self.count("h2d_bytes", self.bytes_of(chunk))
        self.span("move", now, mapped, id=move, move="fetch", chunk=chunk, reason=reason, device_slot=slot,
                  host_slot=None if fresh else chunk, copied=not fresh, zeroed=fresh, in_place=False)
        self.count("demand_fetches" if reason == "demand" else "prefetches", 1)
        self.place(mapped, chunk, "there")
        self.ready[chunk] = (end, move, waited if waited and end - begin < begin - now + 1 else "link", by)

    def slot_take(self, now, order):
        if not self.free:
            self.evict(now, order)
        if not self.free:
            return None, 0, 0
        slot = min(self.free, key=lambda one: self.freed_at[one])
        self.free.remove(slot)
        return slot, self.freed_at[slot], self.freed_by[slot]

    def evict(self, now, order):
        victims = [chunk for chunk in self.resident if chunk not in order.soon]
        if not victims:
            return
        chunk = max(victims, key=order.next_use)
        slot, move, begin = self.where[chunk], self.id(), max(now, self.used_until.get(chunk, 0), self.ready[chunk][0])
        grads = self.content.get(chunk) == "gradients"
        dirty = grads or chunk not in self.host
        self.place(now, chunk, "leaving", host="coming" if dirty else None)
        end = begin
        if dirty:
            copy = max(begin, self.outgoing)
            end = copy + int(self.bytes_of(chunk) / self.args.link)
            self.outgoing = end
            self.span("copy", copy, end, id=move, to="host", chunk=chunk, reason="prefetch", bytes=self.bytes_of(chunk),
                      device_slot=slot, host_slot=chunk)
            self.count("d2h_bytes", self.bytes_of(chunk))
            self.host[chunk] = True
        gone = max(end, self.mapper if end == begin else 0) + 30_000
        self.span("map", gone - 30_000, gone, id=move, map="unmap", chunk=chunk, device_slot=slot)
        self.span("move", now, gone, id=move, move="evict", chunk=chunk, reason="prefetch", device_slot=slot,
                  host_slot=chunk, copied=dirty, zeroed=False, in_place=False)
        self.count("evictions", 1)
        self.where[chunk] = None
        del self.resident[chunk]
        if grads:
            self.update(gone, chunk)
        self.place(gone, chunk, "none")
        self.free.append(slot)
        self.freed_at[slot], self.freed_by[slot] = gone, move

    def update(self, now, chunk):
        task, begin = self.id(), max(now, self.updater)
        for piece in range(2):
            end = begin + int(self.args.update_ms * MS * self.random.uniform(0.4, 0.6))
            self.span("update", begin, end, id=task, tier="host", chunk=chunk,
                state_chunk=self.params + 2 * chunk + piece, piece=piece)
            self.count("adam_host_seconds", (end - begin) / 1e9)
            begin = end
        self.updater = end
        self.updated_at[chunk], self.updated_by[chunk] = end, task
        self.content[chunk] = "params"

    # ---- ops ----

    def op(self, number, forward, order, moment):
        now = self.compute
        chunks = order.at(moment)
        lacked = [chunk for chunk in chunks if self.where[chunk] is None]
        for chunk in lacked:
            self.event(now, "wait", t_ns=now, op=number, slice=None, moment=moment, chunk=chunk,
                       **{"for": "update" if self.updated_at.get(chunk, 0) > now else "slot"})
            self.fetch(now, chunk, "demand", order)
        begin, last = now, None
        for chunk in chunks:
            if self.ready[chunk][0] > begin:
                begin, last = self.ready[chunk][0], chunk
        if begin > now:
            end, move, cause, by = self.ready[last]
            self.span("stall", now, begin, cause=cause, op=number, slice=None, moment=moment, chunk=last,
                      ended_by=move if cause == "link" or not by else by, predicted=self.step > 1)
            self.count(f"stall_{cause}_seconds", (begin - now) / 1e9)
        length = int(self.args.op_ms * MS * (1 if forward else 2) * self.random.uniform(0.8, 1.25))
        if self.random.random() < 0.01:
            length *= 3
        end = begin + length
        self.span("request", now, now + 5000, op=number, slice=None, moment=moment, chunks=len(chunks),
            lacked=len(lacked))
        self.span("op", begin, end, busy_ns=length - length // 50, op=number, slice=None, moment=moment)
        self.count("compute_seconds", (length - length // 50) / 1e9)
        for chunk in chunks:
            self.place(max(now, self.ready[chunk][0]), chunk, "there", pinned=True)
            if not forward and chunk < self.params:
                self.content[chunk] = "gradients"
            if chunk >= self.params + self.states:
                self.content[chunk] = "activations"
                if forward:
                    self.host.pop(chunk, None)
            self.place(end, chunk, "there")
            self.used_until[chunk] = end
        for ahead in range(moment + 1, min(moment + 1 + self.args.window, order.moments)):
            for chunk in order.at(ahead):
                self.fetch(begin, chunk, "prefetch", order)
        self.compute = end

    def train(self):
        self.step += 1
        self.passed += 1
        self.sums = {}
        order, began = Order(self), self.compute
        self.event(began, "pass", t_ns=began, training=True, number=self.step, clips=False)
        layers = self.args.layers
        for moment in range(2 * layers):
            order.look(moment)
            self.op(moment, moment < layers, order, moment)
        self.event(self.compute, "pass end", t_ns=self.compute)
        if self.step == 2:
            self.event(self.compute, "plan", t_ns=self.compute, training=True, planned_in=self.params,
                planned_out=self.params,
                       least_in=self.params // 2, least_out=self.params // 2)
        if self.step % 3 == 0:
            self.span("work", self.compute, self.compute + 3 * MS, work="data")
            self.compute += 3 * MS
        self.put(self.compute, self.metrics((self.compute - began) / 1e9))

    def metrics(self, seconds):
        got = self.sums.get
        causes = {f"stall_{cause}_seconds": got(f"stall_{cause}_seconds",
            0) for cause in "link room update norm map caller".split()}
        return {"step": self.step, "loss": 4.0 / self.step, "grad_norm": 1.0, "lr": 1e-3, "loss_scale": 1, "tokens": 2048,
                "step_seconds": seconds, "tokens_per_second": 2048 / seconds, "compute_seconds": got("compute_seconds",
                    0),
                "stall_seconds": sum(causes.values()), **causes, "predicted_step_seconds": seconds * 0.97,
                "predicted_stall_seconds": sum(causes.values()), "h2d_bytes": got("h2d_bytes",
                    0), "d2h_bytes": got("d2h_bytes", 0),
                "collective_bytes": 0, "evictions": got("evictions", 0), "demand_fetches": got("demand_fetches", 0),
                "prefetches": got("prefetches", 0), "adam_host_seconds": got("adam_host_seconds",
                    0), "adam_device_seconds": 0,
                "device_bytes_peak": self.slots * CHUNK, "host_bytes_peak": self.chunks * CHUNK, "skipped": 0}


class Order:
    """What the pass uses, moment by moment, and again in the next."""

    def __init__(self, run):
        self.run, layers = run, run.args.layers
        self.moments = 2 * layers
        per = run.params / layers
        self.uses = []
        for moment in range(self.moments):
            layer = moment if moment < layers else 2 * layers - 1 - moment
            chunks = list(range(int(layer * per), max(int(layer * per) + 1, int((layer + 1) * per))))
            self.uses.append(chunks + [run.params + run.states + layer * run.checkpoints // layers])
        self.used_at = {}
        for moment, chunks in enumerate(self.uses):
            for chunk in chunks:
                self.used_at.setdefault(chunk, []).append(moment)
        self.now, self.soon = 0, set()

    def at(self, moment):
        return self.uses[moment]

    def look(self, moment):
        self.now = moment
        self.soon = {chunk for ahead in range(moment, min(moment + 1 + self.run.args.window,
            self.moments)) for chunk in self.uses[ahead]}

    def next_use(self, chunk):
        uses = self.used_at.get(chunk, [])
        found = bisect.bisect_left(uses, self.now)
        return uses[found] if found < len(uses) else self.moments + uses[0]


def tables(run):
    args, layers = run.args, run.args.layers
    yield {"trace": 2, "tidepool": "0.1.0", "rank": 0, "ranks": 1, "device": "null", "dtype": "bf16",
        "chunk_bytes": CHUNK,
           "device_slots": run.slots, "host_slots": run.chunks, "device_memory_bytes": run.slots * CHUNK + (1 << 28),
           "host_memory_bytes": run.chunks * CHUNK + (1 << 28), "region_bytes": 1 << 28, "trace_steps": 0}
    for name, value in (("--model", "synthetic"), ("--steps", str(args.steps)), ("--chunk-size", "64MiB")):
        yield {"table": "setting", "name": name, "value": value}
    yield {"table": "machine", "name": "none", "cores": 2, "memory_bytes": 1 << 34, "flops_per_second": 1e14,
           "device_bytes_per_second": 1e12, "host_bytes_per_second": 1e11, "link_bytes_per_second": args.link * 1e9,
           "map_ns": 40000, "unmap_ns": 30000}
    names = ["ln_1.weight", "attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"]
    for chunk in range(run.params):
        for part in range(2):
            number = 2 * chunk + part
            yield {"table": "param", "param": number,
                "name": f"h.{chunk * layers // run.params}.{names[number % 5]}.{number}",
                   "elements": CHUNK // 4, "frozen": False, "decays": True, "planes": [128, 128, 128]}
    for chunk in range(run.params):
        yield {"table": "chunk", "chunk": chunk, "space": "param", "index": chunk, "bytes": CHUNK,
               "params": [[2 * chunk, 0, CHUNK // 4], [2 * chunk + 1, 0, CHUNK // 4]], "of": []}
    for index in range(run.states):
        yield {"table": "chunk", "chunk": run.params + index, "space": "state", "index": index, "bytes": CHUNK,
            "params": [],
               "of": [index // 2]}
    for index in range(run.checkpoints):
        yield {"table": "chunk", "chunk": run.params + run.states + index, "space": "checkpoint", "index": index,
            "bytes": CHUNK // 2,
               "params": [], "of": []}
    order = Order(run)
    for moment in range(2 * layers):
        forward = moment < layers
        layer = moment if forward else 2 * layers - 1 - moment
        yield {"table": "op", "op": moment, "name": f"block {layer}" + ("" if forward else " backward"),
               "pass": "forward" if forward else "backward", "slices": 1, "workspace_bytes": 1 << 20,
               "params": [[2 * chunk, 1 if forward else 3] for chunk in order.at(moment) if chunk < run.params],
               "checkpoints": [[order.at(moment)[-1] - run.params - run.states, 4 if forward else 1]]}
    for index in range(run.checkpoints):
        yield {"table": "checkpoint", "checkpoint": index, "name": f"residual {index}", "parts": 1,
            "part_bytes": CHUNK // 2,
               "offset_bytes": index * CHUNK}


def write(path, args):
    run = Run(args)
    for chunk in range(run.params + run.states):
        run.host[chunk] = True
        run.content[chunk] = "params" if chunk < run.params else "state"
        run.place(0, chunk, "none", kind="snapshot")
    for _ in range(args.steps):
        run.train()
    run.lines.sort(key=lambda entry: entry[:2])
    with open(path, "w", encoding="utf-8") as out:
        for line in tables(run):
            out.write(json.dumps(line, separators=(",", ":")) + "\n")
        for _, _, line in run.lines:
            out.write(json.dumps(line, separators=(",", ":")) + "\n")
        events = sum("event" in line for _, _, line in run.lines)
        out.write(json.dumps({"end": True, "events": events, "dropped": 0}, separators=(",", ":")) + "\n")
    return events


def options(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--param-chunks", type=int, default=40)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--slots", type=int, default=0, help="0: for 40%% of the params")
    parser.add_argument("--window", type=int, default=3, help="ops to fetch ahead")
    parser.add_argument("--op-ms", type=float, default=8)
    parser.add_argument("--update-ms", type=float, default=9)
    parser.add_argument("--link", type=float, default=12.0, help="GB/s each way")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(words)


if __name__ == "__main__":
    chosen = options()
    print(write(chosen.file, chosen), "events")
