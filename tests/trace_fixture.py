"""Traces of a run that never was, for tests of `tidepool trace`: format 2 (docs/trace.md) to the letter, every sum as its
metrics line says. A model of `layers` ops forward and as many backward, each with one param chunk, whose state stays on the
host; the oldest chunk on the device gives way to the next. One link each way, one host thread of updates, one of compute.
"""
import json

CAUSES = ("link", "room", "update", "norm", "map", "caller")


class Trace:
    def __init__(self, layers=6, slots=4, steps=3, chunk_mib=2, link=1e9, op_ns=2_000_000, map_ns=10_000,
                 update_ns=1_000_000, slow=None, works=(), params_per_chunk=2,
                 model="toy"):
        self.lines, self.now, self.layers, self.slots, self.link, self.model = [], 0, layers, slots, link, model
        self.bytes, self.op_ns, self.map_ns, self.update_ns = chunk_mib << 20, op_ns, map_ns, update_ns
        self.elements, self.steps = self.bytes // 2, steps
        self.slow, self.works, self.params_per_chunk = slow or {}, works, params_per_chunk
        self.device, self.use, self.content = {}, {}, ["params"] * layers
        self.ready, self.updated = [0] * layers, [0] * layers
        self.free = {"in": 0, "out": 0, "host": 0}
        self.id = self.events = self.step = self.passes = 0
        self.tables()

    def put(self, **members):
        self.lines.append(json.dumps(members, separators=(",", ":")).replace('"for_"', '"for"'))

    def event(self, kind, span=None, step=None, **members):
        at = {"t_ns": self.now} if span is None else {"begin_ns": span[0], "end_ns": span[1]}
        self.put(event=kind, step=self.step if step is None else step, **{"pass": self.passes}, **at, **members)
        self.events += 1

    def tables(self):
        layers, each = self.layers, self.elements // self.params_per_chunk
        state = 6 * layers  # AdamW's three planes of fp32 beside bf16
        self.put(trace=2, tidepool="0.2.0", rank=0, ranks=1, device="null", dtype="bf16", chunk_bytes=self.bytes,
                 device_slots=self.slots, host_slots=layers + state + 1,
                 device_memory_bytes=self.slots * self.bytes + (1 << 20),
                 host_memory_bytes=(layers + state + 1) * self.bytes, region_bytes=1 << 20, trace_steps=8)
        for name, value in (("model", self.model), ("prefetch", "on"), ("optimizer", "host")):
            self.put(table="setting", name=name, value=value)
        self.put(table="machine", name="a machine", cores=2, memory_bytes=1 << 34, flops_per_second=1e12,
                 device_bytes_per_second=1e12, host_bytes_per_second=1e10, link_bytes_per_second=self.link,
                 map_ns=self.map_ns, unmap_ns=0)
        count = layers * self.params_per_chunk
        for param in range(count):
            chunk, place = divmod(param, self.params_per_chunk)
            self.put(table="param", param=param, name=f"h.{chunk}.w{place}", elements=each,
                     frozen=False, decays=True, planes=[128, 128, 128])
        for chunk in range(layers):
            held = range(chunk * self.params_per_chunk, (chunk + 1) * self.params_per_chunk)
            self.put(table="chunk", chunk=chunk, space="param", index=chunk, bytes=self.bytes,
                     params=[[param, 0, each] for param in held], of=[])
        for chunk in range(state):
            self.put(table="chunk", chunk=layers + chunk, space="state", index=chunk, bytes=self.bytes, params=[],
                     of=[chunk // 6])
        self.put(table="chunk", chunk=layers + state, space="checkpoint", index=0, bytes=4096, params=[], of=[])
        for op in range(2 * layers):
            layer = op if op < layers else 2 * layers - 1 - op
            self.put(table="op", op=op, name=f"block {layer} {'forward' if op < layers else 'backward'}",
                     **{"pass": "forward" if op < layers else "backward"}, slices=1, workspace_bytes=4096,
                     params=[[layer * self.params_per_chunk + i, 1 if op < layers else 3]
                             for i in range(self.params_per_chunk)],
                     checkpoints=[[0, 5 if op < layers else 1]])
        self.put(table="checkpoint", checkpoint=0, name="residual", parts=1, part_bytes=4096, offset_bytes=0)

    def copy_ns(self):
        return int(self.bytes / self.link * 1e9)

    def place(self, chunk, device, slot, host="there", pinned=False, owes=False):
        self.event("chunk", chunk=chunk, device=device, device_slot=slot, host=host,
                   host_slot=None if host == "none" else chunk, pinned=pinned, content=self.content[chunk], owes=owes)

    def snapshot(self):
        for chunk in range(7 * self.layers):
            self.event("snapshot", chunk=chunk, device="none", device_slot=None, host="there", host_slot=chunk,
                       pinned=False, content="params" if chunk < self.layers else "state", owes=False)

    def stall(self, until, cause, op, chunk, ended_by, predicted=True):
        if until <= self.now:
            return
        self.event("stall", (self.now, until), cause=cause, op=op, slice=None, moment=self.moment, chunk=chunk,
                   ended_by=ended_by, predicted=predicted)
        self.sums[cause] += (until - self.now) * 1e-9
        self.now = until

    def evict(self, chunk):
        """When the slot is free."""
        self.id += 1
        slot, begin = self.device.pop(chunk), self.now
        dirty = self.content[chunk] == "gradients"
        self.place(chunk, "leaving", slot, "coming" if dirty else "there")
        end = begin
        if dirty:
            start = max(begin, self.free["out"])
            end = self.free["out"] = start + self.copy_ns()
            self.event("copy", (start, end), id=self.id, to="host", chunk=chunk, reason="demand", bytes=self.bytes,
                       device_slot=slot, host_slot=chunk)
            self.sums["d2h_bytes"] += self.bytes
        self.event("map", (end, end + self.map_ns), id=self.id, map="unmap", chunk=chunk, device_slot=slot)
        end += self.map_ns
        self.event("move", (begin, end), id=self.id, move="evict", chunk=chunk, reason="demand", device_slot=slot,
                   host_slot=chunk, copied=dirty, zeroed=False, in_place=False)
        self.sums["evictions"] += 1
        self.place(chunk, "none", None, owes=dirty)
        evicted = self.id
        if dirty:
            self.update(chunk, end)
        return end, slot, evicted

    def update(self, chunk, begin):
        for piece in range(6):
            self.id += 1
            start = max(begin, self.free["host"])
            self.free["host"] = start + self.update_ns // 6
            self.event("update", (start, self.free["host"]), id=self.id, tier="host", chunk=chunk,
                       state_chunk=self.layers + 6 * chunk + piece, piece=piece)
            self.sums["adam_host_seconds"] += (self.update_ns // 6) * 1e-9
        self.content[chunk], self.updated[chunk] = "params", self.free["host"]
        self.place(chunk, "none", None)

    def fetch(self, chunk, op):
        self.event("wait", op=op, slice=None, moment=self.moment, chunk=chunk, for_="move")
        self.stall(self.updated[chunk], "update", op, chunk, self.id)
        slot = next((s for s in range(self.slots) if s not in self.device.values()), None)
        if slot is None:
            end, slot, evicted = self.evict(min(self.device, key=lambda held: self.use[held]))
            self.stall(end, "room", op, chunk, evicted)
            self.stall(self.updated[chunk], "update", op, chunk, self.id)
        self.id += 1
        begin = self.now
        self.place(chunk, "coming", slot)
        self.event("map", (begin, begin + self.map_ns), id=self.id, map="map", chunk=chunk, device_slot=slot)
        self.stall(begin + self.map_ns, "map", op, chunk, self.id)
        end = self.now + self.copy_ns()
        self.event("copy", (self.now, end), id=self.id, to="device", chunk=chunk, reason="demand", bytes=self.bytes,
                   device_slot=slot, host_slot=chunk)
        self.event("move", (begin, end), id=self.id, move="fetch", chunk=chunk, reason="demand", device_slot=slot,
                   host_slot=chunk, copied=True, zeroed=False, in_place=False)
        self.sums["h2d_bytes"] += self.bytes
        self.sums["demand_fetches"] += 1
        self.stall(end, "link", op, chunk, self.id)
        self.device[chunk] = slot
        self.place(chunk, "there", slot, pinned=True)

    def op(self, op):
        layer = op if op < self.layers else 2 * self.layers - 1 - op
        self.moment += 1
        begin, lacked = self.now, layer not in self.device
        if lacked:
            self.fetch(layer, op)
        self.event("request", (begin, self.now), op=op, slice=None, moment=self.moment, chunks=1, lacked=int(lacked))
        busy = int(self.op_ns * self.slow.get((self.step, op), 1))
        self.event("op", (self.now, self.now + busy), busy_ns=busy, op=op, slice=None, moment=self.moment)
        self.sums["compute_seconds"] += busy * 1e-9
        self.now += busy
        self.use[layer] = self.now
        if op >= self.layers:
            self.content[layer] = "gradients"
            for i in range(self.params_per_chunk):
                self.event("param", param=layer * self.params_per_chunk + i, holds="gradient")
        self.place(layer, "there", self.device[layer])

    def run_step(self):
        self.step += 1
        self.passes += 1
        self.moment, begin = 0, self.now
        self.sums = dict.fromkeys(CAUSES + ("h2d_bytes", "d2h_bytes", "evictions", "demand_fetches", "compute_seconds",
                                            "adam_host_seconds"), 0)
        self.event("pass", training=True, number=self.step, clips=False)
        if self.step == 1:
            self.snapshot()
        for op in range(2 * self.layers):
            self.op(op)
        for layer in list(self.device):
            if self.content[layer] == "gradients":
                end, _, evicted = self.evict(layer)
                self.stall(end, "update", None, layer, evicted)
        self.event("pass end")
        self.metrics(begin)
        self.event("plan", training=True, planned_in=max(0, 2 * self.layers - self.slots), planned_out=self.layers,
                   least_in=max(0, 2 * (self.layers - self.slots)), least_out=self.layers)
        for work, length in self.works:
            self.event("work", (self.now, self.now + length), work=work)
            self.now += length

    def metrics(self, begin):
        sums, seconds = self.sums, (self.now - begin) * 1e-9
        stalls = {f"stall_{cause}_seconds": sums[cause] for cause in CAUSES}
        self.put(step=self.step, loss=None, grad_norm=None, lr=1e-3, loss_scale=1, tokens=1024, step_seconds=seconds,
                 tokens_per_second=1024 / seconds, compute_seconds=sums["compute_seconds"],
                 stall_seconds=sum(stalls.values()), **stalls, predicted_step_seconds=seconds,
                 predicted_stall_seconds=None, h2d_bytes=sums["h2d_bytes"],
                 d2h_bytes=sums["d2h_bytes"], collective_bytes=0, evictions=sums["evictions"],
                 demand_fetches=sums["demand_fetches"], prefetches=0, adam_host_seconds=sums["adam_host_seconds"],
                 adam_device_seconds=0, device_bytes_peak=self.slots * self.bytes,
                 host_bytes_peak=self.layers * 7 * self.bytes, skipped=0)

    def run(self, ends=True):
        for _ in range(self.steps):
            self.run_step()
        if ends:
            self.put(end=True, events=self.events, dropped=0)
        return self

    def text(self):
        return "\n".join(self.lines) + "\n"


if __name__ == "__main__":
    import sys
    words = (word.split("=") for word in sys.argv[2:])
    numbers = {name: float(value) if "." in value else int(value) for name, value in words}
    with open(sys.argv[1], "w") as file:
        file.write(Trace(**numbers).run().text())
