"""Traces in format 2 (docs/trace.md) for tests of `tidepool trace`, made by a small simulation: chunks of params that do not
all fit the device's slots, ops that use one each, fetches ahead, a link each way, the optimizer on the host. Lines are put
together by the page's own tables, so that a trace which is not as the page says can't be made.

    run = Run(chunks=4, device_slots=2, link=1000)     # how it is set
    run.steps(5)                                       # training steps
    run.write(path)

Times are whole nanoseconds of a virtual clock: what happens on the host takes none.
"""
import json
import os
import re

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "trace.md")


def shapes():
    """{"event copy": [member, ...]} of the page's tables."""
    found, name = {}, None
    for line in open(PAGE, encoding="utf-8"):
        title = re.match(r"## (trace|step|end|(?:table|event) .*)$", line)
        if title:
            name = title.group(1).strip()
        elif line.startswith("## "):
            name = None
        member = re.match(r"\| (\w+) \| (count|real|text|bool|list|`)", line)
        if name and member:
            found.setdefault(name, []).append(member.group(1))
    return found


SHAPES = shapes()


def line_of(shape, values):
    """The line's object: `values` in the page's order."""
    kind = shape.split(" ", 1)
    if kind[0] in ("table", "event"):
        values = dict(values, **{kind[0]: kind[1]})
    members = SHAPES[shape]
    assert set(members) == set(values), (shape, set(members) ^ set(values))
    return {member: values[member] for member in members}


class Run:
    """One run's trace. `link`, `host_link`: ns for a copy in, out; `op_ns`: of an op's kernels; `slow_op`: {(step, op
    name): ns}, of every step where the step is None; `room_ns`: for a slot to be emptied; `first_step`: its number;
    `waits_inside`: ops begin when they are asked for, and wait for their chunks within."""

    def __init__(self, chunks=4, device_slots=2, host_slots=None, link=1000, host_link=None, op_ns=1500, update_ns=400,
                 slices=1, slow_op=None, settings=(), rank=0, bytes_of_chunk=4096, params_of_chunk=1, prefetch=True,
                 room_ns=0, first_step=1, waits_inside=False):
        self.chunks, self.device_slots = chunks, device_slots
        self.host_slots = host_slots or 2 * chunks + 1
        self.link, self.host_link, self.op_ns, self.update_ns = link, host_link or link, op_ns, update_ns
        self.slices, self.slow_op, self.rank, self.bytes_of_chunk = slices, slow_op or {}, rank, bytes_of_chunk
        self.params_of_chunk, self.prefetch, self.room_ns = params_of_chunk, prefetch, room_ns
        self.settings = dict({"model": "fixture", "steps": "9", "trace": str(id(self))}, **dict(settings))
        self.lines, self.events = [], []
        self.now, self.step, self.passes, self.moment, self.ids = 0, first_step - 1, first_step - 1, 0, 0
        self.first_step, self.waits_inside = first_step, waits_inside
        self.in_free = self.out_free = self.update_free = 0
        self.slot_of, self.used_at, self.there_at, self.dirty = {}, {}, {}, set()
        self.free_slots = [(0, slot) for slot in range(device_slots)]
        self.sums = {}
        self.tables()

    def add(self, shape, **values):
        self.lines.append(line_of(shape, values))

    def event(self, name, **values):
        self.add("event " + name, **dict({"step": self.step, "pass": self.passes}, **values))

    # ---- tables ----

    def tables(self):
        self.add("trace", trace=2, tidepool="0.1.0", rank=self.rank, ranks=self.rank + 1, device="null", dtype="bf16",
                 chunk_bytes=self.bytes_of_chunk, device_slots=self.device_slots, host_slots=self.host_slots,
                 device_memory_bytes=self.device_slots * self.bytes_of_chunk + 1024,
                 host_memory_bytes=self.host_slots * self.bytes_of_chunk, region_bytes=1024, trace_steps=8)
        for name, value in self.settings.items():
            self.add("table setting", name=name, value=value)
        self.add("table machine", name="fixture", cores=2, memory_bytes=1 << 30, flops_per_second=1e12,
                 device_bytes_per_second=1e12, host_bytes_per_second=1e10, link_bytes_per_second=1e9, map_ns=10,
                 unmap_ns=10)
        each = self.params_of_chunk
        elements = self.bytes_of_chunk // 2 // each
        for i in range(self.chunks * each):
            self.add("table param", param=i, name="layer%d.p%d" % (i // each, i % each), elements=elements, frozen=False,
                     decays=True, planes=[128, 128, 128])
        for i in range(self.chunks):
            self.add("table chunk", chunk=i, space="param", index=i, bytes=self.bytes_of_chunk,
                     params=[[i * each + j, 0, elements] for j in range(each)], of=[])
        for i in range(self.chunks):
            self.add("table chunk", chunk=self.chunks + i, space="state", index=i, bytes=self.bytes_of_chunk, params=[],
                     of=[i])
        for i in range(self.slices):
            self.add("table chunk", chunk=2 * self.chunks + i, space="checkpoint", index=i, bytes=self.bytes_of_chunk,
                     params=[], of=[])
        for i in range(2 * self.chunks):
            layer = i if i < self.chunks else 2 * self.chunks - 1 - i
            forward = i < self.chunks
            self.add("table op", op=i, name="layer%d %s" % (layer, "forward" if forward else "backward"),
                     **{"pass": "forward" if forward else "backward"}, slices=self.slices if self.slices > 1 else 0,
                     workspace_bytes=0, params=[[layer * each + j, 1 if forward else 3] for j in range(each)],
                     checkpoints=[[0, 4 if forward else 1]] if self.slices > 1 else [])
        self.add("table checkpoint", checkpoint=0, name="activations", parts=self.slices, part_bytes=self.bytes_of_chunk,
                 offset_bytes=0)

    # ---- events ----

    def place(self, chunk, t_ns, device, slot, content="params", pinned=False, owes=False, name="chunk"):
        self.event(name, t_ns=t_ns, chunk=chunk, device=device, device_slot=slot, host="there", host_slot=chunk,
                   pinned=pinned, content=content, owes=owes)

    def copy_sum(self, name, value):
        self.sums[name] = self.sums.get(name, 0) + value

    def evict(self, chunk, t_ns):
        """The time at which its slot is free."""
        slot = self.slot_of.pop(chunk)
        self.ids += 1
        begin = max(t_ns, self.used_at[chunk])
        end = begin + self.room_ns
        self.place(chunk, begin, "leaving", slot)
        if chunk in self.dirty:
            start = max(begin, self.out_free)
            self.out_free = end = start + self.host_link + self.room_ns
            self.event("copy", begin_ns=start, end_ns=end, id=self.ids, to="host", chunk=chunk, reason="spill",
                       bytes=self.bytes_of_chunk, device_slot=slot, host_slot=chunk)
            self.copy_sum("d2h_bytes", self.bytes_of_chunk)
        self.event("map", begin_ns=end, end_ns=end + 10, id=self.ids, map="unmap", chunk=chunk, device_slot=slot)
        self.event("move", begin_ns=begin, end_ns=end + 10, id=self.ids, move="evict", chunk=chunk, reason="spill",
                   device_slot=slot, host_slot=chunk, copied=chunk in self.dirty, zeroed=False, in_place=False)
        self.copy_sum("evictions", 1)
        self.dirty.discard(chunk)
        self.place(chunk, end + 10, "none", None)
        self.free_slots.append((end + 10, slot))
        return end + 10

    def fetch(self, chunk, t_ns, reason, keep=()):
        """Begins a fetch, evicting for it what was used the longest ago."""
        if not self.free_slots:
            victims = [other for other in self.slot_of if other not in keep]
            self.evict(min(victims, key=lambda other: self.used_at[other]), t_ns)
        self.free_slots.sort()
        free_ns, slot = self.free_slots.pop(0)
        self.ids += 1
        begin = max(t_ns, free_ns)
        start = max(begin + 10, self.in_free)
        self.in_free = end = start + self.link
        self.slot_of[chunk], self.there_at[chunk], self.used_at[chunk] = slot, (end, self.ids, free_ns > t_ns), end
        self.place(chunk, begin, "coming", slot)
        self.event("map", begin_ns=begin, end_ns=begin + 10, id=self.ids, map="map", chunk=chunk, device_slot=slot)
        self.event("move", begin_ns=t_ns, end_ns=start, id=self.ids, move="fetch", chunk=chunk, reason=reason,
                   device_slot=slot, host_slot=chunk, copied=True, zeroed=False, in_place=False)
        self.event("copy", begin_ns=start, end_ns=end, id=self.ids, to="device", chunk=chunk, reason=reason,
                   bytes=self.bytes_of_chunk, device_slot=slot, host_slot=chunk)
        self.place(chunk, end, "there", slot)
        self.copy_sum("h2d_bytes", self.bytes_of_chunk)
        self.copy_sum("demand_fetches" if reason == "demand" else "prefetches", 1)

    def op(self, op, chunk, after):
        """Runs op on the chunk; `after` is the next op's chunk, fetched meanwhile."""
        self.moment += 1
        asked = self.now
        lacked = chunk not in self.slot_of or self.there_at[chunk][0] > asked
        if lacked:
            self.event("wait", t_ns=asked, op=op, slice=None, moment=self.moment, chunk=chunk, **{"for": "move"})
        if chunk not in self.slot_of:
            self.fetch(chunk, asked, "demand")
        self.event("request", begin_ns=asked, end_ns=asked, op=op, slice=None, moment=self.moment, chunks=1,
                   lacked=int(lacked))
        ready, command, by_room = self.there_at[chunk]
        begin = max(asked, ready)
        name = "layer%d %s" % (chunk, "forward" if op < self.chunks else "backward")
        if begin > asked:
            cause = "room" if by_room else "link"
            self.event("stall", begin_ns=asked, end_ns=begin, cause=cause, op=op, slice=None, moment=self.moment,
                       chunk=chunk, ended_by=command, predicted=self.step > 1)
            self.copy_sum("stall_%s_ns" % cause, begin - asked)
        slot = self.slot_of[chunk]
        self.place(chunk, begin, "there", slot, pinned=True)
        if self.prefetch and after is not None and after not in self.slot_of:
            self.fetch(after, begin, "prefetch", keep=(chunk, ))
        busy = self.slow_op.get((self.step, name), self.slow_op.get((None, name), self.op_ns))
        if self.slices > 1:
            self.event("op", begin_ns=begin, end_ns=begin + 10, busy_ns=10, op=op, slice=None, moment=self.moment)
            begin += 10
            self.copy_sum("compute_ns", 10)
        for part in range(self.slices):
            self.moment += self.slices > 1
            end = begin + busy // self.slices
            self.event("op", begin_ns=asked if self.waits_inside and not part else begin, end_ns=end, busy_ns=end - begin,
                       op=op, slice=part if self.slices > 1 else None, moment=self.moment)
            self.copy_sum("compute_ns", end - begin)
            begin = end
        self.now = self.used_at[chunk] = begin
        backward = op >= self.chunks
        self.place(chunk, begin, "there", slot, content="gradients" if backward else "params", owes=backward)
        if backward:
            self.dirty.add(chunk)
            for param in range(chunk * self.params_of_chunk, (chunk + 1) * self.params_of_chunk):
                self.event("param", t_ns=begin, param=param, holds="gradient")

    def update(self, chunk):
        self.ids += 1
        begin = max(self.now, self.update_free)
        self.update_free = end = begin + self.update_ns
        self.event("update", begin_ns=begin, end_ns=end, id=self.ids, tier="host", chunk=chunk,
                   state_chunk=self.chunks + chunk, piece=0)
        self.copy_sum("update_ns", self.update_ns)
        for param in range(chunk * self.params_of_chunk, (chunk + 1) * self.params_of_chunk):
            self.event("param", t_ns=end, param=param, holds="parameter")

    def pass_begin(self, training):
        self.passes += 1
        self.moment = 0
        if training:
            self.step += 1
        self.sums = {}
        self.event("pass", t_ns=self.now, training=training, number=self.step if training else 0, clips=False)

    def snapshot(self):
        for chunk in range(self.chunks):
            self.place(chunk, self.now, "there" if chunk in self.slot_of else "none", self.slot_of.get(chunk),
                       name="snapshot")

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
        self.event("work", begin_ns=self.now, end_ns=self.now + 100, work="data")
        self.now += 100
        self.metrics(self.now - begin)

    def metrics(self, step_ns):
        stalls = {
            cause: self.sums.get("stall_%s_ns" % cause, 0) / 1e9
            for cause in ("link", "room", "update", "norm", "map", "caller")
        }
        self.add("step", step=self.step, loss=2.5, grad_norm=1.0, lr=1e-3, loss_scale=1.0, tokens=64,
                 step_seconds=step_ns / 1e9, tokens_per_second=64e9 / step_ns,
                 compute_seconds=self.sums.get("compute_ns", 0) / 1e9, stall_seconds=sum(stalls.values()),
                 predicted_step_seconds=None, predicted_stall_seconds=None, h2d_bytes=self.sums.get("h2d_bytes", 0),
                 d2h_bytes=self.sums.get("d2h_bytes", 0), collective_bytes=0, evictions=self.sums.get("evictions", 0),
                 demand_fetches=self.sums.get("demand_fetches", 0), prefetches=self.sums.get("prefetches", 0),
                 adam_host_seconds=self.sums.get("update_ns", 0) / 1e9, adam_device_seconds=0.0,
                 device_bytes_peak=self.device_slots * self.bytes_of_chunk,
                 host_bytes_peak=self.host_slots * self.bytes_of_chunk, skipped=0,
                 **{"stall_%s_seconds" % cause: seconds for cause, seconds in stalls.items()})

    def steps(self, count):
        for _ in range(count):
            self.training_step()
        return self

    def write(self, path, end=True):
        lines = list(self.lines)
        if end:
            events = sum("event" in line for line in lines)
            lines.append(line_of("end", {"end": True, "events": events, "dropped": 0}))
        with open(path, "w", encoding="utf-8") as out:
            for line in lines:
                out.write(json.dumps(line, separators=(",", ":")) + "\n")
        return path
