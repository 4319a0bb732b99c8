#!/usr/bin/env python3
"""Tests the output of `tidepool trace summary` for simulated and recorded traces, and for other files.

usage: test_trace_summary.py PROGRAM      prints TAP
"""
import json
import re
import subprocess

from trace_runs import Cases, Run
from test_program import MACHINES


LINES_MOST, COLUMNS_MOST = 45, 100
MS = 1_000_000
UNITS = {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class Bench(Cases):

    subcommand = "summary"

    def of(self, text):
        path = self.folder / "run.trace"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return self.command(path)

    def screen(self, trace):
        """The summary of a correct trace."""
        run = self.of(trace if isinstance(trace, str) else trace.text())
        assert run.returncode == 0 and not run.stderr, run
        return run.stdout

    def ok(self, good, name, detail=""):
        self.tap.ok(good, name, str(detail))


def waiting(layers=8, slots=5, **more):
    """A run whose ops wait for maps, the link, slots and updates, all of which take milliseconds."""
    settings = dict(chunks=layers, device_slots=slots, params_of_chunk=2, bytes_of_chunk=2 << 20, link=2 * MS, op_ns=2 * MS,
                    map_ns=MS // 10, update_ns=4 * MS, prefetch=False, split_stalls=True)
    return Run(**settings | more)


def fits(text):
    """Does the text fit on a screen? A line that was cut must be marked, and no line may end with blanks."""
    lines = text.splitlines()
    return len(lines) <= LINES_MOST and all(
        len(line) < COLUMNS_MOST or len(line) == COLUMNS_MOST and re.search(r"(\w\.\.\.|until \w+ of \d+(, \w+| \(\w+\)))$", line) for line in lines
    ) and not re.search(" $", text, re.M)


def seconds(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


def part(text, name):
    """Seconds and percent in the line `name` of the table that splits the time."""
    found = re.search(rf"^  {name} +([\d.]+ [mun]?s) +([\d.]+)%", text, re.M)
    return (seconds(found[1]), float(found[2])) if found else (0, 0)


def picture(run, first, last):
    """The picture of the slots from step `first` to `last` whose rows show slots at equal distances."""
    events = [line for line in run.lines if "event" in line]
    begin = next(line["t_ns"] for line in events if line["event"] == "pass" and line["number"] == first)
    end = next(line["t_ns"] for line in events if line["event"] == "pass end" and line["step"] == last)
    rows = []
    for tier, slots, count in (("device", run.device_slots, 5), ("host", run.host_slots, 3)):
        columns = []
        for column in range(80):
            until = begin + (end - begin) * (column + 0.5) / 80
            held = {line["chunk"]: letter(line[tier], line["content"]) for line in events
                    if line["event"] in ("chunk", "snapshot") and line["t_ns"] <= until}
            columns.append("".join(sorted(held.values(), key="pgsa~- ".index)).ljust(slots))
        for row in range(count)[::-1]:
            label = f"{tier:>7} {slots:6}" if row == count - 1 else f"{0 if row == 0 else '':>14}"
            at = int((row + 0.5) / count * slots)
            rows.append(f"{label} |{''.join(column[at] for column in columns)}|\n")
    return "".join(rows)


def letter(state, content):
    """The picture's letter for a chunk on one tier; a blank where it has no slot."""
    if state == "there":
        letters = {"params": "p", "gradients": "g", "both": "g", "state": "s", "activations": "a"}
        return letters.get(content, "-")
    return {"none": " ", "stale": "-"}.get(state, "~")


def time_is_split(bench):
    run = waiting().steps(6)
    text = bench.screen(run)
    bench.ok(fits(text), "a summary fits a screen", text)
    bench.ok(text.startswith("fixture in bf16 on null (fixture)\n"), "it names the machine", text)
    drawn = picture(run, 3, 5)
    bench.ok(text.endswith(drawn), "its picture shows what the slots hold", text + drawn)
    names = ["compute", *(f"stall: {cause}" for cause in ("link", "slot", "update", "norm", "map", "peer", "caller")), "neither"]
    shares = [part(text, name)[1] for name in names]
    bench.ok(abs(sum(shares) - 100) < 0.5, "the parts of a step add up to it", text)
    bench.ok(all(part(text, f"stall: {cause}")[1] > 0 for cause in ("link", "slot", "update", "map")),
             "stalls are told by their causes", text)
    bench.ok(abs(part(text, "compute")[0] - 16 * 2e-3) < 1e-4, "compute is what kernels took", text)
    bench.ok("steps 3 to 5, of 6 whole ones" in text, "warm-up and the run's last step are left out", text)
    bench.ok("warning" not in text, "sums that agree are not told", text)


def moves_are_told(bench):
    text = bench.screen(waiting().steps(6))
    bench.ok(re.search(r"to the device +12 MiB +4 MiB +2 MiB +0 B +demand 12 MiB", text), "bytes against planned and least", text)
    bench.ok("of 16 chunks asked for a step, 62.5% were there" in text, "the hit rate is what requests lacked", text)
    bench.ok(re.search(r"^ +0 +2\.0x +4 MiB layer0\.p0 \+1 ", text, re.M), "chunks that moved most, with their params", text)
    for cause, layer, end in (("slot  ", "2 backward: chunk 2", r"evict of 7 \(promote\)"),
                              ("update", "5 forward: chunk 5", "update of 5, host")):
        bench.ok(re.search(rf"{cause} step 3, 1 of 3, layer{layer} \(layer\d\.p0 \+1\); until {end}$", text, re.M),
                 f"a stall has its op, chunk, cause and what ended it: {cause}", text)
    run = waiting(activations=3).steps(6)
    text, copied = bench.screen(run), sum(line.get("to") == "device" and line["step"] == 4 for line in run.lines)
    bench.ok(re.search(r" 16 +2\.0x +4 MiB activations 0$", text, re.M), "activations are told by their names", text)
    bench.ok(re.search(r"what lies in it\n +4 +3\.0x +6 MiB layer4\.p0 \+1 ", text), "the chunk that moved most comes first", text)
    bench.ok(re.search(f"to the device +{2 * copied} MiB ", text) and "of 32 chunks asked for a step" in text,
             "and count as params do", text)


def unusual_things_are_told(bench):
    slow = bench.screen(waiting(4, slow_op={(4, "layer2 forward"): 6 * MS}, works=(("data", 1000), ("save", 2 * MS))).steps(6))
    bench.ok("median: 1\n" in slow and re.search(r"6\.00 ms, not 2\.00 ms, step 4, layer2 forward", slow),
             "a slow kernel is told, and no other", slow)
    bench.ok("between steps: data 6 x 1.00 us, save 6 x 2.00 ms" in slow, "work between steps is told", slow)
    killed = bench.screen(Run().steps(4).text(end=False))
    bench.ok("the run was killed" in killed, "a run that was killed is told", killed)
    wrong = bench.screen(Run().steps(4).text().replace('"busy_ns":1500', '"busy_ns":1000'))
    bench.ok("warning: 4 of 4 steps" in wrong and "compute_seconds" in wrong and fits(wrong),
             "sums that don't agree are told", wrong)
    dropped = Run().steps(4).text().replace('"dropped":0}', '"dropped":12345}')
    bench.ok("12,345 dropped" in bench.screen(dropped), "dropped events are told", dropped[-200:])


def ranks_stand_side_by_side(bench):
    paths = []
    for rank in range(3):
        paths.append(bench.folder / f"ranks.trace.rank-{rank}")
        made = waiting(rank=rank, ranks=3, slowest=(2, 0.1), op_ns=(2 + rank) * MS).steps(6)
        made.write(paths[rank], end=rank != 1)
    run = bench.command(paths[2], paths[0], paths[1])
    text, rows = run.stdout, run.stdout.splitlines()
    bench.ok((run.returncode, run.stderr, len(rows)) == (0, "", 5) and fits(text), "ranks: a line each", run)
    bench.ok(rows[0] == "fixture in bf16 on null, 3 ranks" and
             rows[1].split() == "rank steps a step compute link slot update map slowest".split(),
             "ranks: columns for compute and for the causes that there are", text)
    for rank, row in enumerate(rows[2:]):
        alone = bench.command(paths[rank]).stdout
        step, cells = re.search(r"a step took ([\d.]+ \w+)", alone)[1], re.findall(r"([\d.]+)%", row)
        names = ("compute", "stall: link", "stall: slot", "stall: update", "stall: map")
        shares = [part(alone, name)[1] for name in names]
        bench.ok(row.startswith(f"   {rank}       3-5") and step in row and list(map(float, cells)) == shares,
                 f"ranks: rank {rank}'s figures are those of its own summary", row + "\n" + alone)
        end = ("  in 0", "  in 0, killed", "  in 3")[rank]
        bench.ok(row.endswith(end), f"ranks: in how many steps {rank} was the slowest", row)
    some = bench.command(paths[2], paths[0]).stdout
    bench.ok("2 of 3 ranks\n" in some, "ranks: some of them", some)
    other = bench.command(paths[2], paths[2])
    bench.ok(other.returncode == 2 and "both of rank 2" in other.stderr, "ranks: one twice is refused", other)
    again = waiting(rank=1, ranks=3, number=2).steps(6).write(bench.folder / "again.trace.rank-1")
    other = bench.command(paths[2], again, paths[0])
    told = f"{again} (of 3 ranks) is of another run" in other.stderr
    bench.ok((other.returncode, other.stderr.count("\n"), told) == (2, 1, True),
             "ranks: another run's is refused", other)
    for rank in range(2):
        waiting(rank=rank, ranks=2, number=3).steps(6).write(paths[rank])
    other = bench.command(*paths, again)
    left = f"{again} (of 3 ranks), {paths[2]} (of 3 ranks)"
    told = f"summary: {left} are of another run than {paths[0]} (of 2 ranks)\n"
    bench.ok(other.returncode == 2 and other.stderr == "tidepool trace " + told,
             "ranks: those that a run of more ranks has left are named", other)


def rows_are_cut_between_words(bench):
    run = waiting().steps(6)
    for line in run.lines:
        line.update({"op": None} if line.get("cause") == "update" else {})
    text = re.sub(r'"name":"(layer\d)', r'"name":"a_very_long_name_of_a_module_inside_another_\1', run.text())
    text = text.replace('"predicted":true', '"predicted":false')
    stalls = re.findall(r"^ +[\d.]+ [mun]?s (?:slot|update) .*", bench.screen(text), re.M)
    end = r", (\S.*): chunk \d( \(.*\))?, not predicted; until (evict of \d \(promote\)|update of \d, host)$"
    ended = [re.search(end, row) for row in stalls]
    bench.ok(len(stalls) == 5 and all(ended) and all(len(row) <= COLUMNS_MOST for row in stalls),
             "names become shorter so that a row has what ended the stall", "\n".join(stalls))
    names = [row[1] for row in ended if row]
    bench.ok(any(name.endswith("between ops") for name in names) and
             all(name.endswith(("...", "between ops")) for name in names), "and are marked where they do", "\n".join(stalls))
    works = tuple((f"{letter * 30} some work", 1000) for letter in "abcdef")
    row = re.search("^between steps: .*", bench.screen(Run(works=works).steps(4)), re.M)[0]
    bench.ok(len(row) <= COLUMNS_MOST and row.endswith("...") and "a" * 21 + "... 4 x 1.00 us, " in row,
             "a row that is too long ends with a mark", row)


def partly_full_chunks_count_whole(bench):
    text = waiting().steps(6).text().replace('"bytes":2097152', '"bytes":1048576')
    bench.ok(re.search(r"to the device +12 MiB +4 MiB +2 MiB +0 B +demand 6 MiB", bench.screen(text)),
             "what moved is compared with plans in whole chunks, as these count", bench.screen(text))


def terminals_are_spared(bench):
    text = bench.screen(Run(settings={"model": "\x1b[2J\x07" + "é" * 200}).steps(3))
    bench.ok("\x1b" not in text and "\x07" not in text and fits(text),
             "control characters of names do not reach the terminal", text)


def empty_traces(bench):
    text = bench.screen(Run())
    bench.ok("\nno whole step in the trace; " in text and fits(text), "a trace without a step has a summary", text)
    first = Run().text().splitlines()[0] + "\n"
    bench.ok("no whole step" in bench.screen(first), "a trace of one line has a summary")


def refused(bench, name, run, status, part_of_line):
    lines = run.stderr.splitlines()
    good = run.returncode == status and len(lines) == 1 and part_of_line in lines[0] and not run.stdout
    bench.ok(good, name, run)


def what_is_no_trace(bench):
    text = Run().steps(3).text()
    lines = text.splitlines()
    refused(bench, "bytes", bench.of(bytes(range(256)) * 99), 1, "run.trace:1: not a trace")
    refused(bench, "a damaged line", bench.of(text.replace('"chunk":3,', '"chunk":333,', 1)), 1, "run.trace:")
    lines[200] = lines[200][:-5]
    refused(bench, "a line that breaks off in the middle", bench.of("\n".join(lines)), 1, "run.trace:201: ")
    refused(bench, "no such file", bench.command(bench.folder / "none"), 1, "none: can't be opened: No such file")
    refused(bench, "no file named", bench.command(), 2, "FILE is required")
    refused(bench, "files that are not there", bench.command("a", "b"), 1, "a: can't be opened")
    refused(bench, "an unknown option", bench.command("--metric", "b"), 2, "unknown option --metric")
    text = bench.command("--help").stdout
    bench.ok("usage: tidepool trace summary FILE" in text and "FILE" in text.split("\n\n")[-1], "help names the operand", text)


def other_subcommands(bench):
    def trace(*arguments):
        return subprocess.run([bench.program, "trace", *arguments], capture_output=True, text=True, timeout=60, check=False)
    refused(bench, "no subcommand", trace(), 2, "a subcommand is missing")
    refused(bench, "a mistyped subcommand", trace("sumary", "x"), 2, "did you mean summary?")
    bench.ok("summary" in trace("--help").stdout, "help lists the subcommands")


def record(bench, name, memory, *others):
    """gpt2-large on the null device: its trace, and the tokens a second of a steady step."""
    trace, metrics = bench.folder / f"{name}.trace", bench.folder / f"{name}.metrics"
    options = "--model gpt2-large --device null --steps 8 --eval-every 0 --sample 0 --link-bandwidth 6GB/s".split()
    files = ("--machine", MACHINES / "large.json", "--trace", trace, "--metrics", metrics)
    subprocess.run([bench.program, "train", *options, *files, "--device-memory", memory, *others],
                   check=True, capture_output=True, timeout=120)
    return trace, float(re.search(r'"tokens_per_second":([\d.]+)', metrics.read_text().splitlines()[5])[1])


def advice_is_true(bench):
    """A run that follows the advice gets what the advice promises."""
    on_host = ("--recompute", "all", "--clip", "0", "--optimizer-placement", "host")
    for name, memory, options, what in (
            ("too little memory", "2GiB", ("--recompute", "none"), r"[\d.]+ GiB more device memory"),
            ("updates on the host", "6GiB", on_host, r"the optimizer's place: \w+")):
        trace, before = record(bench, "before", memory, *options)
        text = bench.command(trace).stdout
        bench.ok(fits(text) and "a step took" in text and "warning" not in text,
                 f"{name}: a recorded trace adds up and fits", text)
        found = re.search(rf"^advice: {what}, (--[\w-]+) (\w+): about \+(\d+)% tokens/s$", text, re.M)
        bench.ok(found, f"{name}: there is advice", text)
        if not found:
            continue
        later = dict(zip(options[::2], options[1::2])) | {"--device-memory": memory} | {found[1]: found[2]}
        _, after = record(bench, "after", later.pop("--device-memory"), *sum(later.items(), ()))
        gained = 100 * (after / before - 1)
        bench.ok(abs(gained - float(found[3])) < 2, f"{name}: a run that follows the advice gains what it says",
                 f"{gained}: {found[0]}")


def advice_is_not_guessed(bench):
    ample, _ = record(bench, "ample", "40GiB")
    text = bench.command(ample).stdout
    bench.ok("compute" in text and "advice" not in text, "no advice on a run that lacks nothing", text)
    other, _ = record(bench, "other", "6GiB")
    text = bench.command(other).stdout
    bench.ok("more device memory" not in text, "no advice on memory that changes what is recomputed", text)
    tight, _ = record(bench, "tight", "2GiB", "--recompute", "none")
    tight.write_text(re.sub(r'("step_seconds":)([\d.]+)', lambda found: f"{found[1]}{1.3 * float(found[2])}",
                            tight.read_text()))
    text = bench.command(tight).stdout
    bench.ok("a step took" in text and "advice" not in text, "no advice on a step that plays otherwise", text)


def advice_knows_the_gpus_memory(bench):
    """More memory than the card has is no option of a run."""
    trace = bench.folder / "card.trace"
    model = "--model llama-3.1-8b --seq-len 256 --batch-tokens 512 --recompute all".split()
    machine = "--device null --machine rtx3090 --ram 160GiB --steps 6 --eval-every 0 --sample 0".split()
    subprocess.run([bench.program, "train", *model, *machine, "--trace", trace], check=True, capture_output=True, timeout=120)
    text = bench.command(trace).stdout
    advice = r"^advice: 8 GiB more device memory, on a larger GPU: about \+\d+% tokens/s$"
    bench.ok(re.search(advice, text, re.M), "memory that the GPU lacks is advised as another GPU, not as an option", text)
    lines = [json.loads(line) for line in trace.read_text().splitlines()
             if re.search('"(table":"chunk|event":"copy)"', line)]
    state = {line["chunk"] for line in lines if line.get("space") == "state"}
    mib = sum(line["bytes"] for line in lines if line.get("to") == "device" and line["chunk"] in state and
              3 <= line["step"] <= 5) / 3 / 2**20
    bench.ok(mib > 0 and re.search(rf"^  to the device .* {mib:.1f} MiB   demand ", text, re.M),
             "what is copied of state has a column", (mib, text))


if __name__ == "__main__":
    Bench.run(time_is_split, moves_are_told, unusual_things_are_told, ranks_stand_side_by_side,
              rows_are_cut_between_words,
              partly_full_chunks_count_whole, terminals_are_spared, empty_traces, what_is_no_trace, other_subcommands,
              advice_is_true, advice_is_not_guessed, advice_knows_the_gpus_memory)
