"""Makes traces (docs/trace.md) by a small simulation, for tests of `tidepool trace`. The simulated run has
chunks of params that do not all fit into the device's slots, ops that use one chunk each, prefetch, a link in
each direction, and the optimizer on the host. The tables in docs/trace.md decide which members a line has, so
a line can't differ from the documented format.

    run = Run(chunks=4, device_slots=2, link=1000)     # settings
    run.steps(5)                                       # training steps
    run.write(path)

Times are whole nanoseconds of a virtual clock, on which work of the caller on the host takes no time.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from trace_schema import Schema

sys.path.append(str(Path(__file__).resolve().parents[1] / "program"))
from test_program import Tap  # noqa: E402

SCHEMA = Schema()


class Cases:
    """The cases of a subcommand of `tidepool trace`, each a method."""

    subcommand = None

    def __init__(self, program, folder):
        self.program, self.folder, self.tap = program, Path(folder), Tap()

    def command(self, *arguments, **more):
        return subprocess.run([self.program, "trace", self.subcommand, *map(str, arguments)], capture_output=True, text=True,
                              errors="replace", timeout=60, check=False, **more)

    @classmethod
    def run(cls, *cases):
        with tempfile.TemporaryDirectory(prefix=f"tidepool-{cls.subcommand}-") as folder:
            bench = cls(sys.argv[1], folder)
            for case in cases:
                case(bench)
        bench.tap.done()


def line_of(shape, values, ranks=1):
    """A line as a dict: `values` in the documented order."""
    kind = shape.split(" ", 1)
    if kind[0] in ("table", "event"):
        values = dict(values, **{kind[0]: kind[1]})
    members = [name for name, _ in SCHEMA.members(shape, ranks)]
    assert set(members) == set(values), (shape, set(members) ^ set(values))
    return {member: values[member] for member in members}


class Run:
    """The trace of one run. Settings:

    link, host_link, map_ns: ns for a copy in, a copy out, a map
    op_ns: ns of an op's kernels
    slow_op: {(step, op name): ns} of single ops; the step None stands for every step
    eviction_ns: ns until the slot of an evicted chunk is free
    first_step: number of the first step
    works: (name, ns) of the caller's work between steps
    activations: number of ACTIVATION chunks; each is written by one forward op and read by its backward op
    waits_inside: ops begin when they are requested and wait for their chunks inside their spans
    split_stalls: one stall per command that an op waits for, instead of one for all
    rank, ranks: of several ranks this one; ranks 0: as many as needed
    number: the run's, of several ranks
    slowest: (rank, seconds), the slowest rank of each step
    """

    def __init__(self, chunks=4, device_slots=2, host_slots=None, link=1000, host_link=None, op_ns=1500, update_ns=400,
                 slices=1, slow_op=None, settings=(), rank=0, bytes_of_chunk=4096, params_of_chunk=1, prefetch=True,
                 eviction_ns=0, map_ns=10, works=(("data", 100), ), activations=0, first_step=1, waits_inside=False,
                 split_stalls=False, ranks=0, slowest=(0, 1e-6), number=1):
        self.chunks, self.device_slots = chunks, device_slots
        self.host_slots = host_slots or 2 * chunks + (activations or slices)
        self.link, self.host_link, self.op_ns, self.update_ns = link, host_link or link, op_ns, update_ns
        self.slices, self.slow_op, self.rank, self.bytes_of_chunk = slices, slow_op or {}, rank, bytes_of_chunk
        self.params_of_chunk, self.prefetch, self.eviction_ns, self.map_ns = params_of_chunk, prefetch, eviction_ns, map_ns
        self.ranks = ranks or rank + 1
        self.slowest = slowest if self.ranks > 1 else ()
        self.number = {"run": number} if self.ranks > 1 else {}
        self.works, self.activations, self.split_stalls = works, activations, split_stalls
        self.settings = dict({"model": "fixture", "steps": "9", "trace": str(id(self))}, **dict(settings))
        self.lines, self.events = [], []
        self.now, self.step, self.passes, self.schedule_step, self.ids = 0, first_step - 1, first_step - 1, 0, 0
        self.first_step, self.waits_inside = first_step, waits_inside
        self.in_free = self.out_free = self.update_free = 0
        self.slot_of, self.used_at, self.there_at, self.updated_at = {}, {}, {}, {}
        self.dirty, self.on_host = set(), set(range(2 * chunks))
        self.content = dict.fromkeys(range(chunks), "params") | dict.fromkeys(range(chunks, 2 * chunks), "state")
        # (ns since when, slot, id of the command that freed it)
        self.free_slots = [(0, slot, None) for slot in range(device_slots)]
        self.sums = {}
        self.tables()

    def add(self, shape, **values):
        self.lines.append(line_of(shape, values, self.ranks))

    def event(self, name, **values):
        self.add("event " + name, **dict({"step": self.step, "pass": self.passes}, **values))

    # ---- tables ----

    def tables(self):
        self.add("trace", trace=3, tidepool="0.1.0", rank=self.rank, ranks=self.ranks, **self.number,
                 device="null", dtype="bf16", chunk_bytes=self.bytes_of_chunk,
                 device_slots=self.device_slots, host_slots=self.host_slots,
                 device_memory_bytes=self.device_slots * self.bytes_of_chunk + 1024,
                 host_memory_bytes=self.host_slots * self.bytes_of_chunk, region_bytes=1024, trace_steps=8)
        for name, value in self.settings.items():
            self.add("table setting", name=name, value=value)
        self.add("table machine", name="fixture", cores=2, memory_bytes=1 << 30, flops_per_second=1e12,
                 device_bytes_per_second=1e12, host_bytes_per_second=1e10, link_bytes_per_second=1e9,
                 map_ns=self.map_ns, unmap_ns=self.map_ns)
        each = self.params_of_chunk
        elements = self.bytes_of_chunk // 2 // each
        for i in range(self.chunks * each):
            self.add("table param", param=i, name="layer%d.p%d" % (i // each, i % each), elements=elements, frozen=False,
                     decays=True, planes=[128, 128, 128])
        for i in range(self.chunks):
            self.add("table chunk", chunk=i, space="param", index=i, bytes=self.bytes_of_chunk,
                     params=[[i * each + j, 0, elements] for j in range(each)], of=[])
        for i in range(self.chunks):
            self.add("table chunk", chunk=self.chunks + i, space="state", index=i, bytes=self.bytes_of_chunk, params=[], of=[i])
        for i in range(self.activations or self.slices):
            self.add("table chunk", chunk=2 * self.chunks + i, space="activation", index=i, bytes=self.bytes_of_chunk,
                     params=[], of=[])
        for i in range(2 * self.chunks):
            layer = i if i < self.chunks else 2 * self.chunks - 1 - i
            forward = i < self.chunks
            self.add("table op", op=i, name="layer%d %s" % (layer, "forward" if forward else "backward"),
                     **{"pass": "forward" if forward else "backward"}, slices=self.slices if self.slices > 1 else 0,
                     workspace_bytes=0, params=[[layer * each + j, 1 if forward else 3] for j in range(each)],
                     activations=[[self.activations_of(layer), 4 if forward else 1]]
                     if self.slices > 1 or self.activations else [])
        for i in range(self.activations or 1):
            self.add("table activation", activation=i, name="activations" + (" %d" % i if self.activations else ""),
                     parts=self.slices, part_bytes=self.bytes_of_chunk, offset_bytes=i * self.bytes_of_chunk)

    def activations_of(self, layer):
        return layer * self.activations // self.chunks

    def chunks_of(self, layer):
        return [layer] + [2 * self.chunks + self.activations_of(layer)] * (self.activations > 0)

    # ---- events ----

    def place(self, chunk, t_ns, device, slot, pinned=False, pending=False, name="chunk"):
        there = chunk in self.on_host
        self.event(name, t_ns=t_ns, chunk=chunk, device=device, device_slot=slot, host="there" if there else "none",
                   host_slot=chunk if there else None, pinned=pinned, content=self.content.get(chunk, "nothing"), pending=pending)

    def copy_sum(self, name, value):
        self.sums[name] = self.sums.get(name, 0) + value

    def evict(self, chunk, t_ns):
        slot = self.slot_of.pop(chunk)
        self.ids += 1
        begin = max(t_ns, self.used_at[chunk])
        end = begin + self.eviction_ns
        self.place(chunk, begin, "evicting", slot)
        if chunk in self.dirty:
            start = max(begin, self.out_free)
            self.out_free = end = start + self.host_link + self.eviction_ns
            self.event("copy", begin_ns=start, end_ns=end, id=self.ids, to="host", chunk=chunk, reason="promote",
                       bytes=self.bytes_of_chunk, device_slot=slot, host_slot=chunk)
            self.copy_sum("d2h_bytes", self.bytes_of_chunk)
            self.on_host.add(chunk)
        gone = end + self.map_ns
        self.event("map", begin_ns=end, end_ns=gone, id=self.ids, map="unmap", chunk=chunk, device_slot=slot)
        self.event("move", begin_ns=begin, end_ns=gone, id=self.ids, move="evict", chunk=chunk, reason="promote",
                   device_slot=slot, host_slot=chunk, copied=chunk in self.dirty, zeroed=False, in_place=False)
        self.copy_sum("evictions", 1)
        self.dirty.discard(chunk)
        self.place(chunk, gone, "none", None)
        self.free_slots.append((gone, slot, self.ids))

    def fetch(self, chunk, t_ns, reason, keep=()):
        """Begin a fetch. If no slot is free, first evict the least recently used chunk."""
        if not self.free_slots:
            victims = [other for other in self.slot_of if other not in keep]
            self.evict(min(victims, key=lambda other: self.used_at[other]), t_ns)
        self.free_slots.sort()
        free_ns, slot, freed_by = self.free_slots.pop(0)
        updated_ns, update = self.updated_at.get(chunk, (0, None))
        self.ids += 1
        begin = max(t_ns, free_ns, updated_ns)
        mapped, copied = begin + self.map_ns, chunk in self.on_host
        start = max(mapped, self.in_free)
        self.in_free = end = start + self.link
        self.slot_of[chunk], self.used_at[chunk] = slot, end
        self.there_at[chunk] = end, free_ns > t_ns, [(free_ns, "slot", freed_by), (updated_ns, "update", update),
                                                    (mapped, "map", self.ids), (end, "link", self.ids)]
        self.place(chunk, begin, "coming", slot)
        self.event("map", begin_ns=begin, end_ns=mapped, id=self.ids, map="map", chunk=chunk, device_slot=slot)
        self.event("move", begin_ns=t_ns, end_ns=start, id=self.ids, move="fetch", chunk=chunk, reason=reason,
                   device_slot=slot, host_slot=chunk if copied else None, copied=copied, zeroed=not copied, in_place=False)
        if copied:
            self.event("copy", begin_ns=start, end_ns=end, id=self.ids, to="device", chunk=chunk, reason=reason,
                       bytes=self.bytes_of_chunk, device_slot=slot, host_slot=chunk)
            self.copy_sum("h2d_bytes", self.bytes_of_chunk)
        else:
            self.event("zero", begin_ns=start, end_ns=end, id=self.ids, chunk=chunk)
        self.place(chunk, end, "there", slot)
        self.copy_sum("demand_fetches" if reason == "demand" else "prefetches", 1)

    def stall(self, asked, begin, by_slot, causes, **at):
        """Add the stalls of compute between `asked` and `begin`."""
        if not self.split_stalls:
            causes = [(begin, "slot" if by_slot else "link", causes[-1][2])]
        for end, cause, ended_by in causes:
            if end > asked:
                self.event("stall", begin_ns=asked, end_ns=end, cause=cause, ended_by=ended_by, predicted=self.step > 1, **at)
                self.copy_sum("stall_%s_ns" % cause, end - asked)
                asked = end

    def op(self, op, layer, after):
        """Run an op on the layer's chunks and meanwhile fetch those of the layer `after`."""
        self.schedule_step += 1
        asked, chunks, backward = self.now, self.chunks_of(layer), op >= self.chunks
        lacked = [chunk for chunk in chunks if chunk not in self.slot_of or self.there_at[chunk][0] > asked]
        for chunk in lacked:
            self.event("wait", t_ns=asked, op=op, slice=None, schedule_step=self.schedule_step, chunk=chunk, **{"for": "move"})
            if chunk not in self.slot_of:
                self.fetch(chunk, asked, "demand", keep=chunks)
        self.event("request", begin_ns=asked, end_ns=asked, op=op, slice=None, schedule_step=self.schedule_step, chunks=len(chunks),
                   lacked=len(lacked))
        last = max(chunks, key=lambda chunk: self.there_at[chunk][0])
        ready, by_slot, causes = self.there_at[last]
        begin = max(asked, ready)
        name = "layer%d %s" % (layer, "backward" if backward else "forward")
        if begin > asked:
            self.stall(asked, begin, by_slot, causes, op=op, slice=None, schedule_step=self.schedule_step, chunk=last)
        for chunk in chunks:
            self.place(chunk, begin, "there", self.slot_of[chunk], pinned=True)
        for chunk in self.chunks_of(after) if self.prefetch and after is not None else ():
            if chunk not in self.slot_of:
                self.fetch(chunk, begin, "prefetch", keep=chunks)
        busy = self.slow_op.get((self.step, name), self.slow_op.get((None, name), self.op_ns))
        if self.slices > 1:
            self.event("op", begin_ns=begin, end_ns=begin + 10, busy_ns=10, op=op, slice=None, schedule_step=self.schedule_step)
            begin += 10
            self.copy_sum("compute_ns", 10)
        for part in range(self.slices):
            self.schedule_step += self.slices > 1
            end = begin + busy // self.slices
            self.event("op", begin_ns=asked if self.waits_inside and not part else begin, end_ns=end, busy_ns=end - begin,
                       op=op, slice=part if self.slices > 1 else None, schedule_step=self.schedule_step)
            self.copy_sum("compute_ns", end - begin)
            begin = end
        self.now = begin
        for chunk in chunks:
            self.used_at[chunk] = begin
            # a backward op changes its params' chunk, a forward op its activations'
            if (chunk == layer) == backward:
                self.content[chunk] = "gradients" if backward else "activations"
                self.dirty.add(chunk)
            self.place(chunk, begin, "there", self.slot_of[chunk], pending=chunk == layer and backward)
        for param in range(layer * self.params_of_chunk, (layer + 1) * self.params_of_chunk) if backward else ():
            self.event("param", t_ns=begin, param=param, holds="gradient")

    def update(self, chunk):
        self.ids += 1
        begin = max(self.now, self.update_free)
        self.update_free = end = begin + self.update_ns
        self.event("update", begin_ns=begin, end_ns=end, id=self.ids, tier="host", chunk=chunk,
                   state_chunk=self.chunks + chunk, piece=0)
        self.copy_sum("update_ns", self.update_ns)
        self.content[chunk], self.updated_at[chunk] = "params", (end, self.ids)
        for param in range(chunk * self.params_of_chunk, (chunk + 1) * self.params_of_chunk):
            self.event("param", t_ns=end, param=param, holds="parameter")

    def pass_begin(self, training):
        self.passes += 1
        self.schedule_step = 0
        if training:
            self.step += 1
        self.sums = {}
        self.event("pass", t_ns=self.now, training=training, number=self.step if training else 0, clips=False)

    def snapshot(self):
        for chunk in range(2 * self.chunks + self.activations):
            self.place(chunk, self.now, "there" if chunk in self.slot_of else "none", self.slot_of.get(chunk), name="snapshot")

    def training_step(self):
        begin = self.now
        if self.step + 1 == self.first_step:
            self.snapshot()
        self.pass_begin(True)
        order = list(range(self.chunks)) + list(reversed(range(self.chunks)))
        for op, chunk in enumerate(order):
            self.op(op, chunk, order[op + 1] if op + 1 < len(order) else None)
        self.event("pass end", t_ns=self.now)
        for chunk in range(self.chunks):
            self.update(chunk)
        if self.step == self.first_step:
            self.event("plan", t_ns=self.now, training=True, planned_in=2, planned_out=2, least_in=1, least_out=1)
        for work, length in self.works:
            self.event("work", begin_ns=self.now, end_ns=self.now + length, work=work)
            self.now += length
        self.metrics(self.now - begin)

    def metrics(self, step_ns):
        stalls = {
            cause: self.sums.get("stall_%s_ns" % cause, 0) / 1e9
            for cause in ("link", "slot", "update", "norm", "map", "peer", "caller")
        }
        self.add("step", step=self.step, version=3, loss=2.5, grad_norm=1.0, lr=1e-3, loss_scale=1.0, tokens=64,
                 learned_tokens=64, step_seconds=step_ns / 1e9, tokens_per_second=64e9 / step_ns,
                 compute_seconds=self.sums.get("compute_ns", 0) / 1e9, stall_seconds=sum(stalls.values()),
                 predicted_step_seconds=None, predicted_stall_seconds=None, h2d_bytes=self.sums.get("h2d_bytes", 0),
                 d2h_bytes=self.sums.get("d2h_bytes", 0), collective_bytes=0, evictions=self.sums.get("evictions", 0),
                 demand_fetches=self.sums.get("demand_fetches", 0), prefetches=self.sums.get("prefetches", 0),
                 adam_host_seconds=self.sums.get("update_ns", 0) / 1e9, adam_device_seconds=0.0,
                 device_bytes_peak=self.device_slots * self.bytes_of_chunk,
                 host_bytes_peak=self.host_slots * self.bytes_of_chunk, skipped=0,
                 **{"stall_%s_seconds" % cause: seconds for cause, seconds in stalls.items()},
                 **dict(zip(("slowest_rank", "slowest_step_seconds"), self.slowest)))

    def steps(self, count):
        for _ in range(count):
            self.training_step()
        return self

    def text(self, end=True):
        lines = list(self.lines)
        if end:
            events = sum("event" in line for line in lines)
            lines.append(line_of("end", {"end": True, "events": events, "dropped": 0}))
        return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)

    def write(self, path, end=True):
        with open(path, "w", encoding="utf-8") as out:
            out.write(self.text(end))
        return path
