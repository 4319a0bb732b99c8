"""tidepool trace perfetto writes Chrome's JSON trace events, which ui.perfetto.dev opens. A reader takes the events one
by one, as Perfetto's importer does, and must find each span, instant, counter and arrow of the trace: spans nest on every
track, and arrows lead from copies to the ops that needed them.

usage: test_trace_perfetto.py PROGRAM      prints TAP
"""
import json
import os
import resource
import signal
import stat
from collections import Counter, defaultdict
from pathlib import Path

from trace_runs import Cases, Run

# The members of an event by its phase. "args" of spans may be absent.
MEMBERS = {"M": "ph pid name args", "B": "ph pid tid ts name", "E": "ph pid tid ts", "i": "ph s pid tid ts name",
           "C": "ph pid tid ts name args", "s": "ph pid tid ts cat name id", "f": "ph bp pid tid ts cat name id"}

# ---- reading ----


class Span:

    def __init__(self, name, begin, track, args, depth):
        self.name, self.begin, self.track, self.args, self.depth, self.end = name, begin, track, args, depth, None

    def __repr__(self):
        return f"{self.track}/{self.name} [{self.begin}, {self.end}]"


class Timeline:
    """A file as the viewer reads it: spans by track, arrows, counters. `faults` lists violations of the format."""

    def __init__(self, text):
        self.faults, self.tracks, self.sort, self.counters, self.spans, self.instants = [], {}, {}, defaultdict(list), [], []
        self.arrows, self.process, self.flow_ids = [], None, set()
        self.open, self.flows = defaultdict(list), {}
        last = 0
        for event in json.loads(text)["traceEvents"]:
            phase = event["ph"]
            self.check(set(event) - {"args", "tid"} == set(MEMBERS[phase].split()) - {"args", "tid"}, f"members of {event}")
            if phase == "M":
                self.name(event)
                continue
            # as Perfetto does: in floating point, then cut off
            time = int(event["ts"] * 1000)
            self.check(time >= last, "events stand in order of time")
            last = time
            self.check(event["pid"] == self.process["pid"] and (phase == "C" or event["tid"] in self.tracks),
                       f"the thread of {event} has a name")
            self.event(time, phase, event)
        for tid, spans in self.open.items():
            self.check(not spans, f"{self.tracks[tid]}: {spans} never ends")
        self.check(not self.flows, f"arrows lead nowhere: {self.flows}")
        self.check(list(self.tracks) == sorted(self.tracks), "tracks are numbered from top to bottom")

    def check(self, holds, what):
        if not holds:
            self.faults.append(what)

    def name(self, event):
        if event["name"] == "process_name":
            self.process = {"pid": event["pid"], "name": event["args"]["name"]}
        elif event["name"] == "thread_name":
            self.check(event["tid"] not in self.tracks, f"track {event} is new")
            self.tracks[event["tid"]] = event["args"]["name"]
        else:
            self.check(event["name"] == "thread_sort_index", f"{event} is a name")
            self.sort[event["tid"]] = event["args"]["sort_index"]

    def event(self, time, phase, event):
        if phase == "C":
            (series, value), = event["args"].items()
            self.counters[event["name"] + "/" + series].append((time, value))
            return
        tid, open_spans = event["tid"], self.open[event["tid"]]
        if phase in "sf":
            self.arrow(phase, event["id"], open_spans)
        elif phase == "E":
            span = open_spans.pop()
            span.end = time
            self.spans.append(span)
        else:
            span = Span(event["name"], time, self.tracks[tid], event.get("args", {}), len(open_spans))
            if phase == "B":
                open_spans.append(span)
            else:
                span.end = time
                self.instants.append(span)

    def arrow(self, phase, number, open_spans):
        """An arrow's end belongs to the innermost span that is open."""
        self.check(open_spans, f"the end of arrow {number} is within a span")
        if phase == "s":
            self.check(number not in self.flow_ids, f"arrow {number} is new")
            self.flow_ids.add(number)
            self.flows[number] = open_spans[-1]
        elif number in self.flows:
            self.arrows.append((self.flows.pop(number), open_spans[-1]))
        else:
            self.check(False, f"arrow {number} came from somewhere")

    def on(self, track):
        return sorted((span for span in self.spans if span.track == track), key=lambda span: (span.begin, span.depth))

    def arrows_between(self, one, other):
        return [(a, b) for a, b in self.arrows if a.track == one and b.track == other]


# ---- a trace's own lines ----


def of_kind(run, kind):
    return [line for line in run.lines if line.get("event") == kind]


def chunk_name(run, chunk):
    table = next(line for line in run.lines if line.get("table") == "chunk" and line["chunk"] == chunk)
    first = f"layer{table['index']}.p0" if table["params"] else ""
    more = f" +{len(table['params']) - 1}" if len(table["params"]) > 1 else ""
    return f"{table['space']} {table['index']}" + (f": {first}{more}" if first else "")


def spans_of(run, kind, **members):
    return sorted((line["begin_ns"], line["end_ns"]) for line in of_kind(run, kind)
                  if all(line[name] == value for name, value in members.items()))


def run_times(run):
    times = [line[name] for line in run.lines for name in ("begin_ns", "end_ns", "t_ns") if name in line]
    return min(times), max(times)


def state_of(line, tier):
    if tier == "host":
        return line["host"]
    return (f"{line['device']}: {line['content']}" + ", pinned" * line["pinned"] + ", update to come" * line["pending"])


def slot_spans(run, tier):
    """{track: [(begin, end, name)]}: for each slot of the tier the chunks that were in it, and their states."""
    spans, held = defaultdict(list), {}  # held: chunk -> [slot, since, state, state since]

    def leave(chunk, time):
        slot, since, state, state_since = held.pop(chunk)
        spans[f"{tier} slot {slot}"] += [(since, time, chunk_name(run, chunk)), (state_since, time, state)]

    places = [line for line in run.lines if line.get("event") in ("chunk", "snapshot")]
    for line in sorted(places, key=lambda line: line["t_ns"]):
        chunk, time, state = line["chunk"], line["t_ns"], state_of(line, tier)
        slot = None if line[tier] == "none" else line[tier + "_slot"]
        if chunk in held and held[chunk][0] == slot:
            if held[chunk][2] != state:
                spans[f"{tier} slot {slot}"].append((held[chunk][3], time, held[chunk][2]))
                held[chunk][2:] = [state, time]
            continue
        for other in [other for other in held if other == chunk or held[other][0] == slot]:
            leave(other, time)
        if slot is not None:
            held[chunk] = [slot, time, state, time]
    for chunk in list(held):
        leave(chunk, run_times(run)[1])
    return spans


def arguments(run, line):
    """The arguments that the viewer shows of an event."""
    kind = line["event"]
    names = {"op": "busy_ns schedule_step", "request": "chunks lacked schedule_step", "wait": "for", "work": "",
             "copy": "reason bytes device_slot host_slot", "move": "reason device_slot host_slot", "map": "",
             "update": "piece", "plan": "planned_in planned_out least_in least_out", "stall": "predicted schedule_step"}
    shown = {name: line[name] for name in ["step"] + names[kind].split() if line[name] is not None}
    if kind == "update":
        shown["state"] = chunk_name(run, line["state_chunk"])
    if kind == "stall":
        op = next(row["name"] for row in run.lines if row.get("table") == "op" and row["op"] == line["op"])
        shown.update(op=op, chunk=chunk_name(run, line["chunk"]))
    return sorted(shown.items())


class Case(Cases):

    subcommand = "perfetto"

    def convert(self, path, out="out.json", **more):
        return self.command(path, "-o", self.folder / out, **more)

    def timeline(self, run, **more):
        run.write(self.folder / "run.trace", **more)
        result = self.convert(self.folder / "run.trace")
        assert result.returncode == 0, result.stderr
        return Timeline((self.folder / "out.json").read_text())

    def drawn(self, steps, **settings):
        run = Run(**settings).steps(steps)
        return run, self.timeline(run)

    def equal(self, name, found, expected):
        self.tap.ok(found == expected, name, f"found    {str(found)[:1500]}\nexpected {str(expected)[:1500]}")

    # ---- cases ----

    def spans_are_those_of_the_trace(self):
        run, timeline = self.drawn(3, chunks=5, device_slots=3, params_of_chunk=2)
        self.equal("nothing that the UI would stumble over", timeline.faults, [])
        self.equal("the process is the rank", timeline.process, {"pid": 1, "name": "tidepool rank 0"})
        for track, expected in [("compute", spans_of(run, "op")), ("copies in", spans_of(run, "copy", to="device")),
                                ("copies out", spans_of(run, "copy", to="host")), ("stalls", spans_of(run, "stall")),
                                ("updates on the host", spans_of(run, "update")), ("moves", spans_of(run, "move")),
                                ("mapping", spans_of(run, "map")),
                                ("host", sorted(spans_of(run, "request") + spans_of(run, "work")))]:
            self.equal(f"{track}: every span of the trace, and no other", [(s.begin, s.end) for s in timeline.on(track)],
                       expected)
        self.equal("passes are named by their steps", [s.name for s in timeline.on("passes")], ["step 1", "step 2", "step 3"])
        self.equal("copies are named by their chunks", Counter(s.name for s in timeline.on("copies in")),
                   Counter(chunk_name(run, line["chunk"]) for line in of_kind(run, "copy") if line["to"] == "device"))
        self.equal("stalls are named by their causes", sorted(s.name for s in timeline.on("stalls")),
                   sorted(line["cause"] for line in of_kind(run, "stall")))
        self.equal("instants are the waits and the plan",
                   sorted((s.begin, s.track, s.name.split()[0]) for s in timeline.instants),
                   sorted([(line["t_ns"], "host", "wait") for line in of_kind(run, "wait")] +
                          [(line["t_ns"], "passes", "plan") for line in of_kind(run, "plan")]))
        kinds = ("op", "request", "wait", "work", "copy", "move", "map", "update", "plan", "stall")
        shown = [(s.begin, sorted(s.args.items())) for s in timeline.spans + timeline.instants
                 if s.args and s.track != "passes" or s.name == "plan"]
        self.equal("arguments are those of the trace", sorted(shown),
                   sorted((line.get("begin_ns", line.get("t_ns")), arguments(run, line))
                          for kind in kinds for line in of_kind(run, kind)))

    def slices_lie_in_their_op(self):
        run = Run(chunks=3, device_slots=2, slices=3).steps(2)
        spans = self.timeline(run).on("compute")
        names = Counter((s.depth, s.name) for s in spans)
        self.equal("every op of every step has a span", sum(names[key] for key in names if key[0] == 0), 2 * 2 * 3)
        self.equal("its slices lie in it", [(s.name, s.depth) for s in spans[:5]], [("layer0 forward", 0),
                                                                                    ("before slices", 1), ("slice 0", 1),
                                                                                    ("slice 1", 1), ("slice 2", 1)])

    def overlapping_moves_have_lanes(self):
        run, timeline = self.drawn(2, chunks=6, device_slots=3, eviction_ns=700)
        lanes = [tid for tid, name in timeline.tracks.items() if name == "moves"]
        self.tap.ok(
            len(lanes) > 1 and not timeline.faults, "moves that overlap stand on lanes of one name",
            f"{len(lanes)} lanes, {timeline.faults}")
        self.equal("none lies in another", {s.depth for s in timeline.on("moves")}, {0})

    def slots_show_who_is_there(self):
        run = Run(chunks=5, device_slots=3).steps(2)
        for line in of_kind(run, "chunk")[::7]:
            line["host"] = "coming"
            line["host_slot"] = line["chunk"]
        timeline = self.timeline(run)
        for tier in ("device", "host"):
            expected = slot_spans(run, tier)
            found = {s.track for s in timeline.spans if s.track.startswith(tier + " slot")}
            self.equal(f"{tier}: a track for each slot that is used", found, set(expected))
            for track in sorted(expected):
                self.equal(f"{track}: the chunks that were there, and their states",
                           sorted((s.begin, s.end, s.name) for s in timeline.on(track)), sorted(expected[track]))
        states = {name for spans in slot_spans(run, "device").values() for _, _, name in spans}
        self.tap.ok({"coming: params", "there: params", "there: params, pinned", "there: gradients, update to come"}
                    <= states, "chunks were in many states", str(states))
        used = timeline.counters["device memory/slots in use"]
        self.equal("the counter of slots ends at none and never exceeds them", (max(n for _, n in used), used[-1][1]), (3, 0))
        self.equal("bytes in slots are those of the chunks in them", timeline.counters["device memory/bytes in slots"],
                   [(time, 4096 * slots) for time, slots in used])
        begin, end = run_times(run)
        self.equal("the budget is drawn beside them", timeline.counters["device memory/budget"],
                   [(begin, 3 * 4096 + 1024), (end, 3 * 4096 + 1024)])

    def counters_show_the_link(self):
        run, timeline = self.drawn(2, chunks=5, device_slots=3)
        for to, way in (("device", "in"), ("host", "out")):
            changes = defaultdict(int)
            for begin, end in spans_of(run, "copy", to=to):
                changes[begin] += 4096
                changes[end] -= 4096
            expected, bytes_now = [], 0
            for time in sorted(changes):
                bytes_now += changes[time]
                expected.append((time, bytes_now))
            self.equal(f"bytes under way {way}", timeline.counters[f"link/bytes on their way {way}"], expected)

    def arrows_lead_from_copies_to_ops(self):
        run, timeline = self.drawn(3, chunks=5, device_slots=3)
        reached = {id(b) for a, b in timeline.arrows if b.track == "compute"}
        stalls = [line for line in of_kind(run, "stall")]
        self.equal("every stall has an arrow from the copy that ended it",
                   len(timeline.arrows_between("copies in", "stalls")), len(stalls))
        self.tap.ok(all(a.end == b.end for a, b in timeline.arrows_between("copies in", "stalls")),
                    "which ends when the stall does")
        self.equal("every stall leads to its op",
                   sorted((a.end, b.name) for a, b in timeline.arrows_between("stalls", "compute")),
                   sorted((line["end_ns"], run.lines[self.op_line(run, line["op"])]["name"]) for line in stalls))
        self.equal("every chunk that was fetched leads to the op that used it", len(reached), self.first_uses(run))
        wrong = [
            (a, b) for a, b in timeline.arrows
            if b.track == "compute" and a.track == "copies in" and a.name.split(".")[0].split()[-1] != b.name.split()[0]
        ]
        self.equal("and to no other", wrong, [])
        demands = [line for line in of_kind(run, "move") if line["move"] == "fetch" and line["reason"] == "demand"]
        self.equal("a request leads to the fetch that it made necessary", len(timeline.arrows_between("host", "moves")),
                   len(demands))

    @staticmethod
    def op_line(run, op):
        return next(i for i, line in enumerate(run.lines) if line.get("table") == "op" and line["op"] == op)

    @staticmethod
    def first_uses(run):
        """Count the ops that were the first to use some chunk after it had been copied in."""
        count, fresh = 0, set()
        points = [(line["begin_ns"], 0, line["chunk"]) for line in of_kind(run, "copy") if line["to"] == "device"]
        layers = {line["op"]: line["params"][0][0] for line in run.lines if line.get("table") == "op"}
        points += [(line["end_ns"], 1, layers[line["op"]]) for line in of_kind(run, "op")]
        for _, is_op, chunk in sorted(points):
            if not is_op:
                fresh.add(chunk)
            elif chunk in fresh:
                fresh.remove(chunk)
                count += 1
        return count

    def an_op_that_waits_within_is_reached_at_its_end(self):
        run, timeline = self.drawn(2, chunks=5, device_slots=3, waits_inside=True)
        late = [(a, b) for a, b in timeline.arrows_between("stalls", "compute") if b.begin < a.end]
        self.equal("an op that began before its copy is reached from it all the same", (len(late), timeline.faults),
                   (len(of_kind(run, "stall")), []))

    def nothing_else_has_arrows(self):
        run = Run(chunks=4, device_slots=4).steps(2)
        expected = len(self.timeline(run).arrows)
        last = max((line for line in of_kind(run, "op")), key=lambda line: line["begin_ns"])
        stall = dict(event="stall", step=2, **{"pass":
                                               2}, begin_ns=last["begin_ns"] - 1, end_ns=last["begin_ns"], cause="caller",
                     op=last["op"], slice=None, schedule_step=last["schedule_step"], chunk=None, ended_by=None, predicted=True)
        update = of_kind(run, "update")[-1]
        piece = dict(update, piece=1, begin_ns=update["end_ns"], end_ns=update["end_ns"] + 5)
        run.lines += [stall, piece]
        timeline = self.timeline(run)
        self.equal("compute that waits for its caller has no arrow, nor have pieces of one update",
                   (len(timeline.arrows), timeline.faults), (expected, []))
        self.tap.ok([s.name for s in timeline.on("stalls")][-1] == "caller"
                    and timeline.on("updates on the host")[-1].args["piece"] == 1, "though they are there")

    def activations_lead_to_their_slice(self):
        run = Run(chunks=3, device_slots=3, slices=3).steps(1)
        first, used = [next(line for line in of_kind(run, "op") if line["op"] == 4 and line["slice"] == part)
                       for part in (0, 2)]
        run.lines.append(
            dict(event="copy", step=1, **{"pass":
                                          1}, begin_ns=first["begin_ns"] - 2, end_ns=first["begin_ns"] - 1, id=999,
                 to="device", chunk=2 * run.chunks + 2, reason="prefetch", bytes=4096, device_slot=0, host_slot=6))
        arrows = [b for a, b in self.timeline(run).arrows if a.name == "activation 2"]
        self.equal("an activation's copy leads to the slice that reads it", [(b.name, b.begin) for b in arrows],
                   [("slice 2", used["begin_ns"])])

    def a_slot_can_be_taken_over(self):
        run = Run(chunks=5, device_slots=3).steps(2)
        expected, swapped = self.timeline(run).on("device slot 0"), 0
        for i, line in enumerate(run.lines):  # the next chunk is told to come before the last is told to be gone
            if line.get("event") == "chunk" and line["device"] == "coming" and run.lines[i - 1].get("device") == "none" \
                    and run.lines[i - 1]["t_ns"] == line["t_ns"]:
                run.lines[i - 1:i + 1] = line, run.lines[i - 1]
                swapped += 1
        timeline = self.timeline(run)
        self.equal("who comes into a slot ends who was there", [repr(s) for s in timeline.on("device slot 0")],
                   list(map(repr, expected)))
        self.tap.ok(swapped > 3 and not timeline.faults, "and nothing is wrong with it", f"{swapped} {timeline.faults}")

    def a_gap_ends_what_was_known(self):
        run = Run(chunks=4, device_slots=2).steps(2)
        told, seen = max(line.get("end_ns", 0) for line in run.lines), len(run.lines)
        run.steps(3)
        del run.lines[seen:]  # as if steps 3 to 5 had not been kept
        run.snapshot()
        run.steps(1)
        timeline = self.timeline(run)
        crossing = [s for s in timeline.spans if s.track.startswith("device slot") and s.begin < told and s.end > told]
        self.equal("nobody is anywhere while nothing is known", (crossing, timeline.faults), ([], []))

    def a_killed_run_can_be_seen(self):
        run = Run(chunks=4, device_slots=2).steps(2)
        del run.lines[-7:]
        timeline = self.timeline(run, end=False)
        self.equal("a trace without an end has all its spans", (timeline.faults, len(timeline.on("compute"))),
                   ([], len(of_kind(run, "op"))))

    def ranks_can_be_put_together(self):
        first = self.timeline(Run().steps(1))
        second = self.timeline(Run(rank=1).steps(1))
        self.equal("tracks, processes and arrows of ranks are different ones",
                   (set(first.tracks) & set(second.tracks), first.process["pid"] == second.process["pid"],
                    first.flow_ids & second.flow_ids), (set(), False, set()))

    def several_ranks_stand_in_one_file(self):
        out, paths, alone = self.folder / "ranks.json", [], []
        for rank in range(3):
            paths.append(self.folder / f"run.trace.rank-{rank}")
            Run(rank=rank, ranks=3, op_ns=1500 + 100 * rank).steps(2).write(paths[rank])
            self.command(paths[rank], "-o", out)
            alone.append(json.loads(out.read_text())["traceEvents"])
        result = self.command(paths[2], paths[0], paths[1], "-o", out)
        together = json.loads(out.read_text())["traceEvents"]
        self.equal("each rank has the events of its own picture", together, sum(alone, []))
        self.equal("nothing is said", (result.returncode, result.stderr), (0, ""))
        Run(rank=0, ranks=2).steps(2).write(self.folder / "other.trace")
        Run().steps(2).write(self.folder / "alone.trace")
        for name, files, reason in (
                ("one rank twice", [paths[1], paths[0], paths[1]], "are both of rank 1"),
                ("ranks of other runs", [paths[1], self.folder / "other.trace"], "is of another run"),
                ("runs of one rank", [self.folder / "alone.trace"] * 2, "are no ranks of one run"),
                ("a rank's trace as output", [paths[0], out], "name another")):
            before = out.read_bytes()
            result = self.command(*files, "-o", out)
            self.equal(f"{name}: refused in a line", (result.returncode, reason in result.stderr,
                                                       result.stderr.count("\n"), out.read_bytes() == before),
                       (2, True, 1, True))

    def files_are_whole_or_as_before(self):
        path, out = Run(chunks=8, device_slots=3).steps(30).write(self.folder / "run.trace"), self.folder / "kept.json"
        out.write_text("before")
        full = self.convert(path, "kept.json", preexec_fn=small_files)
        self.equal("a file that can't be written whole is as before",
                   (full.returncode, out.read_text(), self.leftovers("kept"), full.stderr.count("File too large")),
                   (1, "before", [], 1))
        result = self.convert(self.folder / "none.trace", "kept.json")
        self.equal("no trace, no file", (result.returncode, out.read_text(), result.stderr.count("\n")), (1, "before", 1))
        result = self.convert(path, "no/such/folder")
        self.equal("a place that is not there is one line", (result.returncode, result.stderr.count("\n")), (1, 1))
        result = self.convert(path, "/dev/null")
        self.equal("a device is written at once",
                   (result.returncode, result.stderr, stat.S_ISCHR(os.stat("/dev/null").st_mode)), (0, "", True))
        result = self.command(path)
        self.equal("without -o it says so", (result.returncode, result.stderr.count("-o")), (2, 1))

    def the_trace_itself_is_kept(self):
        path = Run(chunks=4, device_slots=2).steps(5).write(self.folder / "own.trace")
        segment, other = self.folder / "own.trace.step-9", self.folder / "own.trace.step-x"
        before = Path(path).read_bytes()
        segment.write_bytes(before)
        os.symlink(path, self.folder / "own.link")
        os.link(segment, self.folder / "own.hard")
        for name in ("own.trace", "own.trace.step-9", "own.link", "own.hard", "./own.trace"):
            result = self.convert(path, name)
            self.equal(f"-o {name} is refused", (result.returncode, result.stderr.count("that is the trace itself")), (2, 1))
        self.equal("and the trace is as before", (Path(path).read_bytes(), segment.read_bytes()), (before, before))
        self.equal("what is no segment may be written", self.convert(path, other.name).returncode, 0)

    def slots_that_nobody_uses_cost_nothing(self):
        run = Run(chunks=2, device_slots=2).steps(3)
        run.lines[0].update(device_slots=60_000_000, host_slots=60_000_000)
        self.timeline(run)
        self.equal("a trace that claims millions of slots is drawn in little memory",
                   resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1 << 20, True)

    def leftovers(self, name):
        return [path.name for path in self.folder.iterdir() if path.name.startswith(name) and "tmp" in path.name]

    def names_are_json(self):
        run = Run(chunks=2, device_slots=2, works=(('say "\\<é>"', 100), ))
        run.lines[:] = [dict(line, name="layer0 \u00e9\"\\") if line.get("table") == "op" and line["op"] == 0 else line
                        for line in run.lines]
        timeline = self.timeline(run.steps(1))
        self.equal("quotes, backslashes and letters beyond ASCII are as in the trace",
                   ([s.name for s in timeline.on("host") if s.name.startswith("say")], timeline.on("compute")[0].name),
                   (['say "\\<é>"'], 'layer0 é"\\'))


def small_files():
    """Run in a child process: writing more than 4096 bytes to a file fails there, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


if __name__ == "__main__":
    Case.run(Case.spans_are_those_of_the_trace, Case.slices_lie_in_their_op, Case.overlapping_moves_have_lanes,
             Case.slots_show_who_is_there, Case.counters_show_the_link, Case.arrows_lead_from_copies_to_ops,
             Case.an_op_that_waits_within_is_reached_at_its_end, Case.nothing_else_has_arrows,
             Case.activations_lead_to_their_slice, Case.a_slot_can_be_taken_over, Case.a_gap_ends_what_was_known,
             Case.a_killed_run_can_be_seen, Case.ranks_can_be_put_together,
             Case.several_ranks_stand_in_one_file, Case.files_are_whole_or_as_before,
             Case.the_trace_itself_is_kept, Case.slots_that_nobody_uses_cost_nothing, Case.names_are_json)
