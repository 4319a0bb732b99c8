#!/usr/bin/env python3
"""Opens the page of `tidepool trace html` from the disk in a headless browser. The console must stay empty;
zoom, pan, hover, select, search, keys and both themes must work; no text may be cut off; and each action must
be fast enough.

usage: test_trace_page.py PROGRAM [TRACE ...]       prints TAP; also opens and times the given traces
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from browser import Browser, browser_find
from trace_runs import Run
from test_program import MACHINES, Tap

# Limits. Measured on 2 cores with other load: 0.6 s to open, of which the page's thread took 0.2 s, and 17 ms
# for a zoom.
OPEN_S, THREAD_OPEN_S, THREAD_ZOOM_S = 20, 2, 0.066


# A run in virtual time on a machine whose link is too slow.
RECORDED = ("--device null --model gpt2-nano --chunk-size 1MiB --device-memory 20MiB --batch-tokens 1024 "
            f"--machine {MACHINES / 'small.json'}")


class Page:
    """Queries of the page that the tests use."""

    def __init__(self, browser):
        self.browser, self.value = browser, browser.value

    def state(self):
        return self.value("tidepool.state")

    def selects(self, tap, wanted, name):
        selected = self.state()["selected"]
        tap.ok(selected == wanted, name, selected)

    def tip(self):
        return self.value("document.getElementById('tip').textContent")

    def details(self):
        return self.value("document.getElementById('details').innerText")

    def time_at(self, x):
        return self.value(f"tidepool.tracks.x.invert({x} - document.getElementById('drawing').getBoundingClientRect().left)")

    def view(self):
        return self.value("({ ...tidepool.state.view })")

    def panel(self, name):
        """A panel's left, top, width and height in the window."""
        return self.value(f"""(() => {{ const box = document.getElementById('drawing').getBoundingClientRect(), t = tidepool.tracks,
            p = t.panels['{name}']; return [box.left + t.left, box.top + p.top, t.width, p.height]; }})()""")

    def middle(self, name, x=0.5, y=0.5):
        left, top, width, height = self.panel(name)
        return left + width * x, top + height * y

    def stall_at(self, stall):
        """The position of a stall's middle in the window."""
        x, top = self.value(f"""(() => {{ const box = document.getElementById('drawing').getBoundingClientRect(), s = tidepool.trace.kinds.stall;
            return [box.left + tidepool.tracks.x((s.begin[{stall}] + s.end[{stall}]) / 2), box.top]; }})()""")
        _, panel_top, _, height = self.panel("stalls")
        return x, panel_top + height / 2

    def colors(self, name):
        """How many different colors a panel shows."""
        return self.value(f"""(() => {{ const t = tidepool.tracks, p = t.panels['{name}'], r = tidepool.ratio;
            const data = new Uint32Array(tidepool.context.getImageData(t.left * r, p.top * r, t.width * r,
                p.height * r).data.buffer);
            return new Set(data).size; }})()""")

    def states(self):
        """The chunk states whose colors the heat map shows."""
        return self.value("""(() => { const t = tidepool.tracks, p = t.panels.heat, r = tidepool.ratio, { states } = tidepool.colors.words;
            const seen = new Set(new Uint32Array(tidepool.context.getImageData(t.left * r, p.top * r, t.width * r,
                p.height * r).data.buffer));
            return [...states.keys()].filter((state) => seen.has(states[state])); })()""")

    def stall_ink(self):
        """Of the stall row's pixels: mean share of the stall color, number with any of it, and share with
        more than half of it."""
        return self.value("""(() => { const t = tidepool.tracks, p = t.panels.stalls, r = tidepool.ratio,
                { panel, stall } = tidepool.colors;
            const row = tidepool.context.getImageData(t.left * r, (p.top + p.height / 2) * r, t.width * r, 1).data;
            const blue = (css) => parseInt(css.slice(5, 7), 16), shown = [];
            for (let i = 2; i < row.length; i += 4)
                shown.push((blue(panel) - row[i]) / (blue(panel) - blue(stall)));
            return { mean: shown.reduce((a, b) => a + b) / shown.length, seen: shown.filter((one) => one > 0.02).length,
                half: shown.filter((one) => one > 0.5).length / shown.length }; })()""")

    def background(self):
        return self.value("Array.from(tidepool.context.getImageData(2, 2, 1, 1).data)")


# ---- the page's functions ----

def opens(tap, page, seconds):
    state = page.state()
    tap.ok(state["chunks"] == 500, "all chunks of the trace are in the page", state["chunks"])
    tap.ok(state["redraws"] >= 1 and seconds < OPEN_S, f"the page opens: {state['openMs']:.0f} ms by its own clock")
    thread = page.browser.task_seconds()
    tap.ok(thread < THREAD_OPEN_S, f"opening takes the page's thread {1000 * thread:.0f} ms", thread)
    shown = page.states()
    tap.ok(set(shown) >= {1, 2, 3, 4, 5, 7},
        "the heat map shows chunks on the host, on the device, pinned, moving, updated", shown)
    tap.ok(10 in shown, "and activations in a color of their own", shown)
    for name, least in (("ops", 3), ("stalls", 2), ("link", 3), ("device", 3), ("streams", 5)):
        tap.ok(page.colors(name) >= least, f"something is drawn: {name}", page.colors(name))
    page.browser.until("tidepool.trace.passes.every((pass) => tidepool.model.path.isKnown(pass))")
    tap.ok(page.colors("path") >= 3, "the critical path is drawn", page.colors("path"))
    shares = page.value("tidepool.trace.passes.map((p) => Object.values(tidepool.model.path.of(p).shares).reduce((a, b) => a + b) / (p.end - p.begin))")
    tap.ok(all(abs(share - 1) < 1e-6 for share in shares), "a step's critical path is as long as the step", shares)


def zooms_and_pans(tap, page):
    browser, before = page.browser, page.view()
    x, y = page.middle("heat", 0.25)
    at = page.time_at(x)
    browser.wheel(x, y, -300)
    view = page.view()
    tap.ok(view["to"] - view["from"] < 0.7 * (before["to"] - before["from"]), "the wheel zooms time", view)
    still = page.time_at(x)
    tap.ok(abs(still - at) < 1e-3 * (view["to"] - view["from"]), "what is under the mouse stays there", (at, still))
    browser.wheel(x, y, -300, shift=True)
    rows = page.view()
    tap.ok(rows["bottom"] - rows["top"] < 0.7 * (before["bottom"] - before["top"]) and rows["from"] == view["from"],
           "with Shift it zooms rows", rows)
    browser.drag(x, y, x - 100, y - 40)
    panned = page.view()
    tap.ok(panned["from"] > rows["from"] and abs((panned["to"] - panned["from"]) - (rows["to"] - rows["from"])) < 1,
           "dragging pans time", panned)
    tap.ok(panned["top"] > rows["top"] or rows["bottom"] == before["bottom"], "and rows", panned)
    page.selects(tap, None, "what was dragged is not selected")
    browser.key("0")
    tap.ok(page.view() == before, "0 shows all of it again", page.view())


def keys(tap, page):
    browser, before = page.browser, page.view()
    browser.key("+")
    zoomed = page.view()
    tap.ok(zoomed["to"] - zoomed["from"] < before["to"] - before["from"], "+ zooms in", zoomed)
    browser.key("ArrowRight")
    tap.ok(page.view()["from"] > zoomed["from"], "an arrow pans", page.view())
    browser.key("ArrowLeft")
    tap.ok(abs(page.view()["from"] - zoomed["from"]) < 1, "and back", page.view())
    browser.key("-")
    tap.ok(abs(page.view()["to"] - before["to"]) < 1, "- zooms out", page.view())
    browser.key("i")
    rows = page.view()
    tap.ok(rows["bottom"] - rows["top"] < before["bottom"] - before["top"], "i zooms rows", rows)
    browser.key("ArrowDown")
    tap.ok(page.view()["top"] > rows["top"], "an arrow pans rows", page.view())
    browser.key("0")
    browser.key("]")
    view, step = page.view(), page.value("({ begin: tidepool.steps[2].begin, end: tidepool.steps[2].end })")
    tap.ok(abs(view["from"] - step["begin"]) < 1 and abs(view["to"] - step["end"]) < 1,
        "] fits the step in the middle", (view, step))
    browser.key("]")
    tap.ok(page.view()["from"] >= step["end"] - 1, "and the next", page.view())
    browser.key("0")
    browser.key("?", shift=True)
    tap.ok(page.value("document.getElementById('keys').open"), "? shows the keys")
    licence = page.value("document.getElementById('licences').textContent")
    tap.ok("Mike Bostock" in licence and "Redistribution and use" in licence, "with the licences of what draws", licence[:200])
    browser.key("Escape")
    tap.ok(not page.value("document.getElementById('keys').open"), "Escape closes them")
    browser.key("j")
    browser.key("j")
    page.selects(tap, {"kind": "chunk", "chunk": 1}, "j selects chunks")
    browser.key("Escape")
    page.selects(tap, None, "Escape selects nothing")


def hovers_and_selects(tap, page):
    browser = page.browser
    browser.hover(*page.middle("heat", 0.3, 0.1))
    hovered, tip = page.state()["hovered"], page.tip()
    names = page.value(f"tidepool.trace.chunks[{hovered['chunk']}].params.map((param) => tidepool.trace.params[param][0])")
    tap.ok(tip.startswith("PARAM ") and all(name in tip for name in names), "a chunk's params show under the mouse", tip)
    words = page.value("""(() => { const { intervals, trace } = tidepool, of = (state) => {
        const at = intervals.state.indexOf(state), { first } = intervals;
        const { chunk } = trace.chunks.find(({ chunk }) => first[chunk] <= at && at < first[chunk + 1]);
        const time = intervals.begin[at];
        return [tidepool.tipText({ kind: 'chunk', chunk, time }),
            tidepool.details.chunk(chunk, { from: time, to: time + 1 }, tidepool.colors)]; };
        return [of(10), of(2)]; })()""")
    tap.ok(words[0][0].startswith("ACTIVATION") and all("activations on the device" in one and "parameters on" not in one
           for one in words[0]) and all("parameters on the device" in one for one in words[1]),
           "what is on the device is told by its space", words)
    for panel, words in (("ops", "busy"), ("link", "to the device"), ("device", "slots"), ("host", "slots"),
        ("path", "critical path"),
                         ("steps", "step")):
        browser.hover(*page.middle(panel, 0.37))
        tip = page.tip()
        tap.ok(words in tip, f"so does what else is there: {panel}", tip)
    browser.click(*page.middle("heat", 0.3, 0.1))
    text = page.details()
    tap.ok(page.state()["selected"]["kind"] == "chunk" and "History in view" in text and "copy to the" in text,
           "a click on a chunk tells its history", text[:300])
    browser.key("Escape")
    browser.key("n")
    selected, text = page.state()["selected"], page.details()
    tap.ok(selected["kind"] == "stall" and "Waited for" in text and "Ended by" in text,
        "n selects a stall, which is told", text[:300])
    stall = selected["stall"]
    marks = page.value("tidepool.marks")
    chunk = page.value(f"tidepool.trace.kinds.stall.chunk[{stall}]")
    tap.ok(marks["stall"] == stall and len(marks["points"]) == 3 and marks["command"],
           "a line leads from the stall to its chunk and to the command that ended it", marks)
    title = page.value(f"(({{ space, index }}) => ['PARAM', 'STATE', 'ACTIVATION'][space] + ' ' + index)(tidepool.trace.chunks[{chunk}])")
    tap.ok(title in text, "the chunk is named", (title, text[:200]))
    wide = page.value(f"tidepool.tracks.x(tidepool.trace.kinds.stall.end[{stall}]) - tidepool.tracks.x(tidepool.trace.kinds.stall.begin[{stall}])")
    tap.ok(wide >= 12, "and wide enough to be seen", wide)
    browser.key("Escape")
    browser.hover(*page.stall_at(stall))
    tap.ok(page.value("tidepool.marks?.stall") == stall, "hovering over a stall draws the line, too",
        page.value("tidepool.marks"))
    browser.click(*page.stall_at(stall))
    page.selects(tap, {"kind": "stall", "stall": stall}, "a click selects it")
    browser.key("n")
    tap.ok(page.state()["selected"]["stall"] > stall, "n goes on to a later one", page.state()["selected"])
    browser.key("p")
    tap.ok(page.state()["selected"]["stall"] == stall, "p goes back", page.state()["selected"])
    browser.key("f")
    rows, top = page.view(), page.value(f"tidepool.rows.top({chunk})")
    tap.ok(rows["bottom"] - rows["top"] < 30 and rows["top"] <= top < rows["bottom"], "f fits it, and its chunk", (rows, top))
    browser.key("Escape")
    browser.key("0")
    page.value("document.querySelector('#details [data-go^=\"stall:\"]').focus()")
    browser.key("Enter")
    tap.ok(page.state()["selected"]["kind"] == "stall", "the list's longest stall is selected by Enter",
           page.state()["selected"])
    browser.key("Escape")
    browser.key("0")


def searches(tap, page):
    browser = page.browser
    browser.key("/")
    browser.write("layer7.")
    matches = page.state()["matches"]
    wanted = page.value("""tidepool.trace.chunks.filter(({ space, params, of }) => (space === 1 ? of : params).length &&
        (space === 1 ? of.flatMap((chunk) => tidepool.trace.chunks[chunk].params) : params)
        .some((param) => tidepool.trace.params[param][0].includes('layer7.'))).map(({ chunk }) => chunk)""")
    tap.ok(matches == wanted and matches, "a search finds the chunks that hold the param, and their state", (matches, wanted))
    browser.key("Enter")
    page.selects(tap, {"kind": "chunk", "chunk": matches[0]}, "Enter selects the first")
    view = page.view()
    top = page.value(f"tidepool.rows.top({matches[0]})")
    tap.ok(view["top"] <= top < view["bottom"], "which is in view", (view, top))
    browser.key("Escape")
    tap.ok(page.state()["matches"] == [] and page.value("document.activeElement.id") == "drawing",
        "Escape leaves the search",
           page.value("document.activeElement.id"))


def themes(tap, page):
    browser, light = page.browser, page.background()
    tap.ok(page.state()["theme"] == "light" and min(light[:3]) > 200, "the page is light where the system is", light)
    browser.scheme(True)
    browser.drawn()
    dark = page.background()
    tap.ok(page.state()["theme"] == "dark" and max(dark[:3]) < 60, "and dark where the system is", dark)
    tap.ok(len(page.states()) >= 6, "the dark heat map has its colors", page.states())
    browser.key("t")
    tap.ok(page.background() == light and page.state()["theme"] == "light", "t changes it", page.background())
    contrast = page.value("""['light', 'dark'].map((name) => { const of = (css) => [1, 3, 5].map((at) => parseInt(css.slice(at, at + 2), 16) / 255)
        .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, i) => sum + c * [0.2126,
            0.7152, 0.0722][i], 0);
        tidepool.themeSet(name); const { page, ink, soft } = tidepool.colors;
        return [ink, soft].map((css) => { const [a, b] = [of(css),
            of(page)].sort((x, y) => y - x); return (a + 0.05) / (b + 0.05); }); }).flat()""")
    tap.ok(min(contrast) >= 4.5, "letters stand out by 4.5 to 1 in both", contrast)
    browser.scheme(False)
    page.value("tidepool.themeSet('light')")


def nothing_is_cut(tap, browser, page, width, height):
    browser.size(width, height)
    browser.drawn()
    browser.drawn()
    cut = page.value("""[...document.querySelectorAll('header *, #legend li, #titles div, #details td')].filter((one) => one.id !== 'facts' &&
        one.tagName !== 'H1' && one.clientWidth && one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)""")
    tap.ok(cut == [], f"{width}x{height}: no text is cut off", cut)
    outside = page.value("""[...document.querySelectorAll('header *, #legend li, #titles div, #axes text')].filter((one) => {
        const box = one.getBoundingClientRect();
        return box.width && (box.left < -0.5 || box.right > innerWidth + 0.5 || box.top < -0.5 || box.bottom > innerHeight + 0.5);
        }).map((one) => one.textContent)""")
    tap.ok(outside == [], f"{width}x{height}: nothing reaches out of the window", outside)
    over = page.value("""(() => { const all = [...document.querySelectorAll('#titles div, #axes text')].filter((one) => one.textContent)
        .map((one) => [one.textContent, one.getBoundingClientRect()]), found = [];
        all.forEach(([a, p], i) => all.slice(i + 1).forEach(([b,
            q]) => { if (Math.min(p.right, q.right) - Math.max(p.left, q.left) > 2 &&
            Math.min(p.bottom, q.bottom) - Math.max(p.top,
                q.top) > 4 && a !== b) found.push(a + ' | ' + b); })); return found; })()""")
    tap.ok(over == [], f"{width}x{height}: no label lies on another", over)
    tap.ok(page.value("document.documentElement.scrollWidth <= innerWidth"), f"{width}x{height}: nothing to scroll sideways")


def redraws(tap, page, name, limit_s):
    """Measure the main thread's CPU time for a zoom: input, script, layout and painting."""
    browser = page.browser
    x, y = page.middle("heat", 0.4, 0.2)
    turns = [-120] * 12 + [120] * 12
    for turn in turns[6:18]:
        browser.wheel(x, y, turn)
    page.value("tidepool.state.redrawMs.length = 0")
    began = browser.task_seconds()
    for turn in turns:
        browser.wheel(x, y, turn)
    each = (browser.task_seconds() - began) / len(turns)
    longest = page.value("Math.max(...tidepool.state.redrawMs)")
    tap.ok(each < limit_s,
        f"{name}: a zoom takes the page's thread {1000 * each:.1f} ms (a drawing at most {longest:.0f} ms by the clock)", each)


def test_page(tap, browser, page_path, trace):
    seconds = browser.open(page_path)
    page = Page(browser)
    opens(tap, page, seconds)
    zooms_and_pans(tap, page)
    keys(tap, page)
    hovers_and_selects(tap, page)
    searches(tap, page)
    themes(tap, page)
    redraws(tap, page, "500 chunks, 5 steps", THREAD_ZOOM_S)
    knows_the_trace(tap, page, trace, "made up")
    for width, height in ((1280, 800), (1920, 1080)):
        nothing_is_cut(tap, browser, page, width, height)
    tap.ok(browser.problems == [], "nothing was said on the console, nothing thrown", "\n".join(browser.problems))
    asked = page.value("performance.getEntriesByType('resource').length")
    tap.ok(asked == 0, "the page asked for nothing beside itself", asked)


# ---- the page's data, compared with the lines of the trace ----

class Lines:
    """A trace's events, read by a few lines of Python to compare with the page."""

    def __init__(self, path):
        told = [json.loads(line) for line in path.read_text().splitlines()]
        self.events = [line for line in told if "event" in line]
        self.spaces = {line["chunk"]: line["space"] for line in told if line.get("table") == "chunk"}
        for event in self.events:
            event.setdefault("begin_ns", event.get("t_ns"))
            event.setdefault("end_ns", event["begin_ns"])
        self.events.sort(key=lambda event: event["begin_ns"])
        self.origin = self.events[0]["begin_ns"]
        self.of_chunk = {}
        for event in self.events:
            for chunk in {event.get("chunk"), event.get("state_chunk")} - {None}:
                self.of_chunk.setdefault(chunk, []).append(event)

    def kind(self, name):
        return [event for event in self.events if event["event"] == name]

    def place(self, chunk, time):
        told = [event for event in self.of_chunk.get(chunk, []) if event["event"] in ("chunk", "snapshot") and
                event["begin_ns"] <= time]
        return told[-1] if told else None

    def state(self, chunk, time):
        """The state of a chunk, as the page's legend calls it; None at the border between two states."""
        its = self.of_chunk.get(chunk, [])
        if any(time in (event["begin_ns"], event["end_ns"]) for event in its):
            return None
        under_way = [event for event in its if event["begin_ns"] < time < event["end_ns"]]
        place = self.place(chunk, time)
        if any(event["event"] in ("update", "restore") for event in under_way):
            return "update"
        if any(event["event"] == "zero" or event["event"] == "copy" and event["to"] == "device" for event in under_way):
            return "up"
        if any(event["event"] == "copy" for event in under_way):
            return "down"
        if place is None:
            return "absent"
        if place["device"] in ("there", "evicting"):
            return "pinned" if place["pinned"] else "gradients" if place["content"] in ("gradients", "both") else \
                ON_DEVICE[self.spaces[chunk]]
        return "host" if place["host"] == "there" else "absent"


STATES = "absent host params gradients pinned up down update unknown state activations".split()
ON_DEVICE = {"param": "params", "state": "state", "activation": "activations"}
COLUMNS = {"copy": "id to chunk reason bytes device_slot", "op": "busy_ns op slice",
    "move": "id move chunk reason device_slot copied",
           "map": "id map chunk device_slot", "update": "id tier chunk state_chunk piece",
           "stall": "step cause op slice chunk ended_by predicted", "wait": "op slice chunk for"}


def knows_the_trace(tap, page, path, name):
    lines, wrong = Lines(path), []
    texts = page.value("tidepool.trace.enums")
    for kind, columns in COLUMNS.items():
        names = ["begin"] + (["end"] if kind != "wait" else []) + columns.split()
        got = page.value(f"({json.dumps(names)}).map((name) => Array.from(tidepool.trace.kinds['{kind}'][name]))")
        told = lines.kind(kind)
        if any(len(values) != len(told) for values in got):
            wrong.append((kind, len(told), [len(values) for values in got]))
            continue
        for column, values in zip(names, got):
            key = {"begin": "begin_ns", "end": "end_ns"}.get(column, column)
            want = [event[key] for event in told]
            if column in ("begin", "end"):
                want = [time - lines.origin for time in want]
            elif column in texts:
                values = [texts[column][int(value)] for value in values]
            else:
                want = [-1 if value is None else int(value) for value in want]
            wrong += [(kind, column, at, a, b) for at, (a, b) in enumerate(zip(want, values)) if a != b][:2]
    tap.ok(not wrong and sum(len(lines.kind(kind)) for kind in COLUMNS) > 500,
        f"{name}: the page has every number of the trace", wrong[:5])
    draw, end = random.Random(1), int(page.value("tidepool.trace.end"))
    asked = [(draw.randrange(page.state()["chunks"]), draw.randrange(end)) for _ in range(3000)]
    told = lines.kind("chunk")
    asked += [(event["chunk"], event["begin_ns"] - lines.origin + 1) for event in draw.sample(told, min(1000, len(told)))]
    got = page.value(f"({json.dumps(asked)}).map(([chunk, time]) => tidepool.intervals.state[tidepool.intervals.at(chunk, time)])")
    wrong = [(chunk, time, want, STATES[state]) for (chunk, time), state in zip(asked, got)
             if (want := lines.state(chunk, time + lines.origin)) not in (None, STATES[state])]
    tap.ok(not wrong, f"{name}: at any time it knows each chunk's state", wrong[:5])
    for tier in ("device", "host"):
        times = [draw.randrange(end) for _ in range(30)]
        got = page.value(f"({json.dumps(times)}).map((time) => tidepool.model.memory.{tier}.at(time))")
        places = [[lines.place(chunk, time + lines.origin) for chunk in lines.of_chunk] for time in times]
        want = [sum(place is not None and place[f"{tier}_slot"] is not None for place in now) for now in places]
        tap.ok(got == want, f"{name}: and how many slots are taken on the {tier}", (got, want))
    rates = page.value("['up', 'down'].map((way) => tidepool.model.link[way].until(tidepool.trace.end + 1))")
    want = [sum(copy["bytes"] for copy in lines.kind("copy") if copy["to"] == to) for to in ("device", "host")]
    tap.ok(rates == want, f"{name}: and all bytes of the link", (rates, want))


# ---- the command ----

def run(program, *words):
    return subprocess.run([program, "trace", "html", *map(str, words)], capture_output=True, text=True, timeout=120,
                          check=False)


def test_command(tap, program, folder, trace):
    tables = json.loads(re.search('id="tables">(.*?)</script>', (folder / "page.html").read_text(), re.S)[1])
    told = [json.loads(line) for line in trace.read_text().splitlines() if '"table":"setting"' in line]
    tap.ok(tables["settings"] == [[line["name"], line["value"]] for line in told],
        "its tables are JSON, with the settings", tables["settings"])
    told = run(program, trace)
    tap.ok(told.returncode == 2 and "-o" in told.stderr and told.stderr.count("\n") == 1,
        "without -o: usage, one line", told.stderr)
    told = run(program, trace, "-o", trace)
    tap.ok(told.returncode == 2 and "trace itself" in told.stderr and trace.stat().st_size > 0,
        "the trace is never overwritten", told.stderr)
    told = run(program, trace, "-o", folder / "nowhere" / "page.html")
    tap.ok(told.returncode == 1 and "nowhere" in told.stderr and told.stderr.count("\n") == 1,
        "a page that can't be written: one line", told.stderr)
    if os.path.exists("/dev/full"):
        told = run(program, trace, "-o", "/dev/full")
        tap.ok(told.returncode == 1 and "/dev/full: can't be written: No space left" in told.stderr
            and told.stderr.count("\n") == 1, "so is a full disk", told.stderr)
    for words in ("0", "5-3", "x", "2-", ""):
        told = run(program, trace, "-o", folder / "no.html", "--steps", words)
        tap.ok(told.returncode == 2 and told.stderr.count("\n") == 1, f"--steps {words or '(empty)'} is refused", told.stderr)
    told = run(program, trace, "-o", folder / "no.html", "--steps", "77")
    tap.ok(told.returncode != 0 and "77" in told.stderr and not (folder / "no.html").exists(),
        "so are steps that are not there", told.stderr)
    told = run(program, trace, "-o", folder / "some.html", "--steps", "2-3")
    tap.ok(told.returncode == 0 and not told.stderr, "some steps", told.stderr)


def strange_trace(path):
    """Put names into the trace that would end the page's script, or begin a tag, if the page did not
    escape them."""
    lines = path.read_text().splitlines()
    for at, line in enumerate(lines):
        told = json.loads(line)
        if told.get("table") in ("param", "op", "setting"):
            key = "value" if told["table"] == "setting" else "name"
            told[key] = f"</script ><img src=x onerror=alert(1)><!--\\\"&amp; {told[key]} \u00fc\u2028"
            lines[at] = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    strange = path.with_suffix(".strange")
    strange.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return strange


def test_other_pages(tap, program, folder, browser, trace):
    browser.open(folder / "some.html")
    page = Page(browser)
    steps = page.value("tidepool.steps.map(({ step }) => step)")
    tap.ok(steps == [2, 3], "--steps 2-3 shows these", steps)
    known = page.value("tidepool.trace.chunks.filter(({ chunk }) => tidepool.intervals.state[tidepool.intervals.at(chunk, 1)] !== 0).length")
    tap.ok(known == 500, "where chunks were before is known", known)
    whole = page.value("[tidepool.intervals.count, tidepool.trace.end]")
    plain = browser.page("Page.addScriptToEvaluateOnNewDocument", source="delete Uint8Array.fromBase64;")
    browser.open(folder / "some.html")
    read = page.value("[tidepool.intervals.count, tidepool.trace.end]")
    tap.ok(read == whole, "a browser without Uint8Array.fromBase64 reads the same", (read, whole))
    browser.page("Page.removeScriptToEvaluateOnNewDocument", **plain)
    told = run(program, strange_trace(trace), "-o", folder / "strange.html")
    tap.ok(told.returncode == 0, "strange names", told.stderr)
    browser.open(folder / "strange.html")
    browser.hover(*Page(browser).middle("heat", 0.3, 0.1))
    browser.key("n")
    name = browser.value("tidepool.trace.params[0][0]")
    tap.ok(name.startswith("</script ><img") and browser.value("document.images.length") == 0,
        "are told as they are, and do nothing", name)
    tap.ok(browser.problems == [], "those pages have nothing to say, either", "\n".join(browser.problems))


def short_stalls(path, count, share):
    """Replace the trace's stalls by `count` others at equal distances, in all `share` of its time."""
    told = [json.loads(line) for line in path.read_text().splitlines()]
    stall = next(line for line in told if line.get("event") == "stall")
    ops = [line for line in told if line.get("event") == "op"]
    first = min(op["begin_ns"] for op in ops)
    each = (max(op["end_ns"] for op in ops) - first) // count
    told = [line for line in told if line.get("event") != "stall"]
    last = next(at for at in range(len(told) - 1, -1, -1) if told[at].get("event") == "op")
    moments = [first + at * each + each // 3 for at in range(count)]
    told[last:last] = [{**stall, "begin_ns": at, "end_ns": at + int(each * share)} for at in moments]
    short = path.with_suffix(f".short{count}")
    short.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in told) + "\n", encoding="utf-8")
    return short


def test_short_stalls(tap, program, folder, browser, trace):
    """Stalls narrower than a pixel must be visible, but not look like more time than they are."""
    for count, share, most in ((5, 0.01, 0.03), (300, 0.01, 0.08), (2000, 0.01, 0.14), (2000, 0.4, 0.44)):
        told = run(program, short_stalls(trace, count, share), "-o", folder / "short.html")
        if not tap.ok(told.returncode == 0, f"a page of {count} stalls", told.stderr):
            continue
        browser.open(folder / "short.html")
        page = Page(browser)
        ink, held = page.stall_ink(), page.value("tidepool.trace.kinds.stall.count")
        tap.ok(held == count and ink["mean"] < most and (share > 0.1 or ink["half"] < 0.03),
            f"{count} stalls of {100 * share:.0f}% of the time do not look like more", (held, ink))
        tap.ok(ink["seen"] >= min(count, 300), "but are seen", ink)


def labels_apart(tap, page, name):
    """Labels of steps and gaps must not overlap, wherever the view begins."""
    wrong = page.value("""(() => { const wrong = [], { trace } = tidepool;
        const home = tidepool.home(), span = home.to - home.from;
        const edges = trace.gaps.flat().concat(trace.passes.map(({ begin }) => begin));
        for (const edge of edges)
            for (const wide of [span / 20, span / 4, span, trace.end])
                for (const at of [0.01, 0.04, 0.12, 0.5]) {
                    const from = Math.max(0, Math.min(trace.end - wide, edge - at * wide));
                    tidepool.viewSet({ ...home, from, to: from + wide });
                    tidepool.draw();
                    const labels = tidepool.tracks.labels.slice().sort((a, b) => a.from - b.from);
                    const end = tidepool.tracks.left + tidepool.tracks.width;
                    labels.forEach((one, i) => {
                        if (one.to > (labels[i + 1]?.from ?? end)) wrong.push([from, one.text]); });
                }
        tidepool.viewSet(home);
        tidepool.draw();
        return [wrong, tidepool.tracks.labels.length]; })()""")
    tap.ok(wrong[0] == [] and wrong[1] > 0, f"{name}: no label of a step or a gap lies on another", wrong)


def nothing_to_tell(tap, page):
    """The page says that compute never stood still only of times whose events are known."""
    text = page.value("""(() => { const [[from, to]] = tidepool.trace.gaps, wide = to - from;
        return [tidepool.details.longest({ from: from + wide / 4, to: to - wide / 4 }),
            tidepool.details.longest({ from: 0, to: 0 })]; })()""")
    tap.ok(all("tells of no op" in one and "never" not in one for one in text), "in a gap nothing is said of stalls", text)
    text = page.value("""(() => { const { stall, op } = tidepool.trace.kinds, { ops } = tidepool.model;
        const i = Array.from(ops.begin).findIndex((begin, at) =>
            !stall.begin.some((b, s) => b < ops.end[at] && stall.end[s] > begin));
        return tidepool.details.longest({ from: ops.begin[i], to: ops.end[i] }); })()""")
    tap.ok("never stood still" in text, "but it is where ops ran without one", text)


def recorded(tap, program, folder, browser, name, *options):
    """The trace of a run of the program, and its page."""
    trace = folder / f"{name}.trace"
    made = subprocess.run([program, "train", *RECORDED.split(), "--trace", trace, *options], capture_output=True, text=True,
                          timeout=120, check=False)
    told = run(program, trace, "-o", folder / f"{name}.html")
    if not tap.ok(made.returncode == 0 and told.returncode == 0, f"{name}: a trace is recorded and has a page",
                  made.stderr + told.stderr):
        return None, None
    browser.open(folder / f"{name}.html")
    return trace, Page(browser)


def test_recorded(tap, program, folder, browser):
    """Traces recorded by the program: without the events of the middle steps, and with those of all steps."""
    trace, page = recorded(tap, program, folder, browser, "whole", "--steps", "4", "--trace-steps", "all")
    if page:
        knows_the_trace(tap, page, trace, "recorded")
    trace, page = recorded(tap, program, folder, browser, "recorded", "--steps", "14", "--trace-steps", "3")
    if not page:
        return
    steps, gaps, view = page.value("tidepool.steps.map(({ step }) => step)"), page.value("tidepool.trace.gaps"), page.view()
    tap.ok(steps == [1, 2, 12, 13, 14] and len(gaps) == 1, "the warm-up and the last three steps are told, and one gap",
        (steps, gaps))
    tap.ok(view["from"] == gaps[0][1], "what is behind the gap is seen first", (view, gaps))
    unknown = page.value("""(() => { const [[from, to]] = tidepool.trace.gaps, { intervals, trace } = tidepool;
        return trace.chunks.filter(({ chunk }) => intervals.state[intervals.at(chunk,
            (from + to) / 2)] !== 8).length; })()""")
    tap.ok(unknown == 0, "where a chunk was in the gap is not known", unknown)
    labels_apart(tap, page, "recorded")
    nothing_to_tell(tap, page)
    least = page.value("Math.min(...tidepool.steps.slice(-3).map(({ begin }) => tidepool.model.memory.device.at(begin + 1)))")
    slots = page.value("tidepool.trace.trace.device_slots")
    most = page.value("tidepool.model.memory.device.most")
    tap.ok(0 < least <= most <= slots, "no more slots are taken than there are", (least, most, slots))
    page.value("tidepool.trace.passes.map((pass) => tidepool.model.path.of(pass))")
    idle = page.value("(({ shares }) => (shares.idle ?? 0) / Object.values(shares).reduce((a, b) => a + b))"
                      "(tidepool.model.path.of(tidepool.trace.passes.at(-2)))")
    tap.ok(idle < 0.02, "the critical path of a step in virtual time leaves nothing out", idle)


def test_broken_off(tap, program, folder, browser, trace):
    lines = trace.read_text().splitlines(keepends=True)
    tables = next(at for at, line in enumerate(lines) if '"event"' in line)
    for name, count in (("tables", tables), ("a few lines", 12), ("half", len(lines) // 2)):
        broken = folder / "broken.trace"
        broken.write_text("".join(lines[:count]))
        told = run(program, broken, "-o", folder / "broken.html")
        if not tap.ok(told.returncode == 0, f"a trace that breaks off has a page: {name}", told.stderr):
            continue
        browser.open(folder / "broken.html")
        for key in "+-0[]npjkft":
            browser.key(key)
        for panel in ("heat", "ops", "stalls", "link", "device", "streams", "path", "steps"):
            browser.hover(*Page(browser).middle(panel))
        tap.ok(browser.problems == [], f"and it works: {name}", "\n".join(browser.problems))
        browser.problems.clear()


def main(program, own):
    tap, found = Tap(), browser_find()
    with tempfile.TemporaryDirectory(prefix="tidepool-page-") as name:
        folder = Path(name)
        trace = folder / "some.trace"
        Run(chunks=240, device_slots=96, params_of_chunk=2, activations=20, op_ns=8_000_000, link=5_000_000, map_ns=40_000,
            update_ns=9_000_000, split_stalls=True).steps(5).write(trace)
        told = run(program, trace, "-o", folder / "page.html")
        if told.returncode == 1 and "no page" in told.stderr:
            print("1..0 # SKIP this build has no page: d3 was not there when it was made")
            return 0
        tap.ok(told.returncode == 0 and told.stdout == "" and told.stderr == "", "a page is written without a word", told.stderr)
        test_command(tap, program, folder, trace)
        if found is None:
            tap.skip("the page in a browser", "there is no chromium")
        else:
            with Browser(found) as browser:
                test_page(tap, browser, folder / "page.html", trace)
                test_other_pages(tap, program, folder, browser, trace)
                test_short_stalls(tap, program, folder, browser, trace)
                test_recorded(tap, program, folder, browser)
                test_broken_off(tap, program, folder, browser, trace)
                for number, path in enumerate(own):
                    told = run(program, path, "-o", folder / f"own-{number}.html")
                    tap.ok(told.returncode == 0, f"{path}: a page", told.stderr)
                    seconds = browser.open(folder / f"own-{number}.html")
                    print(f"# {path}: open in {seconds:.1f} s, by its own clock {browser.value('tidepool.state.openMs') / 1000:.1f} s")
                    browser.until("!tidepool.pathAsked", 60)
                    redraws(tap, Page(browser), path, 1)
                    tap.ok(browser.problems == [], f"{path}: nothing on the console", "\n".join(browser.problems))
    tap.done()
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
