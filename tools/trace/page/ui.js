/* The page's handling of mouse and keys, and the text under the mouse. Tests read all of it through
 * window.tidepool. */
const KEYS = [
    [['+', '−'], 'zoom time'],
    [['←', '→'], 'earlier, later'],
    [['i', 'o'], 'zoom rows in, out'],
    [['↑', '↓'], 'rows up, down'],
    [['0'], 'the whole trace'],
    [['[', ']'], 'fit the step before, after'],
    [['n', 'p'], 'select the next long stall, the one before'],
    [['j', 'k'], 'select the chunk below, above'],
    [['f'], 'fit what is selected'],
    [['/'], 'search a param; Enter: the next chunk found'],
    [['t'], 'light, dark'],
    [['Esc'], 'select nothing; leave the search'],
    [['?'], 'these keys'],
];

class Page extends View {
    constructor() {
        super();
        const started = performance.now();
        const trace = this.trace = traceRead();
        const { chunk: places } = trace.kinds, snapshots = new Set();
        for (let i = 0; i < places.count; i++)
            if (place.flags(places.place[i]) & 16)
                snapshots.add(places.begin[i]);
        trace.snapshots = [...snapshots];
        trace.gaps = gapsOf(trace);
        const read = performance.now();
        this.intervals = new Intervals(trace);
        const swept = performance.now();
        this.rows = new Rows(trace, this.intervals);
        this.heat = new Heat(trace, this.intervals, this.rows);
        this.model = modelOf(trace);
        this.tracks = new Tracks(this.model);
        this.details = new Details(this.model, this.intervals);
        this.steps = trace.passes.filter(({ training }) => training).map(({ step, begin, end }) =>
            ({ step, begin, end, line: trace.steps.find((line) => line.step === step) }));
        this.notable = this.notableStalls();
        this.names = trace.params.map(([name]) => name.toLowerCase());
        this.state = {
            view: this.home(), selected: null, hovered: null, matches: [], query: '', theme: 'light',
            chunks: trace.chunks.length, intervals: this.intervals.count,
            readMs: read - started, sweepMs: swept - read, openMs: 0, redraws: 0, redrawMs: [],
        };
        this.pointer = null;
    }

    /* The first view: the last training steps that have no gap between them, with all rows. */
    home() {
        const from = this.trace.gaps.at(-1)?.[1] ?? 0, steps = this.steps.filter(({ begin }) => begin >= from);
        return { from: steps[0]?.begin ?? 0, to: steps.at(-1)?.end ?? this.trace.end, top: 0, bottom: this.rows.total };
    }

    start() {
        this.svg = d3.select('#axes');
        $('file').textContent = this.trace.file;
        const { trace: made } = this.trace, numbers = this.steps.map(({ step }) => step);
        $('facts').textContent = `${made.device} · ${made.dtype} · ${this.trace.chunks.length} chunks of ${bytesText(made.chunk_bytes)}` +
            (numbers.length ? ` · steps ${numbers[0]} to ${numbers.at(-1)}` : '');
        document.title = `${this.trace.file} · tidepool trace`;
        $('keys-table').innerHTML = KEYS.map(([keys, text]) =>
            `<tr><td>${keys.map((key) => `<kbd>${key}</kbd>`).join(' ')}</td><td>${text}</td></tr>`).join('');
        const asked = window.matchMedia('(prefers-color-scheme: dark)');
        asked.addEventListener('change', () => this.themeSet(asked.matches ? 'dark' : 'light'));
        this.listen();
        this.themeSet(asked.matches ? 'dark' : 'light', false);
        this.resize();
        new ResizeObserver(() => this.resize()).observe($('drawing'));
        this.state.openMs = performance.now();
        this.pathsLater();
    }

    /* Computes the critical paths of the steps in view, one at a time, when the browser is idle. */
    pathsLater() {
        const { view } = this.state, { path } = this.model;
        const pass = this.trace.passes.find((one) => one.end > view.from && one.begin < view.to && !path.isKnown(one));
        if (!pass || this.pathAsked)
            return;
        this.pathAsked = true;
        requestIdleCallback(() => {
            this.pathAsked = false;
            path.of(pass);
            this.redraw();
            this.tell();
            this.pathsLater();
        }, { timeout: 500 });
    }

    /* ---- what is under the mouse ---- */

    hit({ x, y }) {
        const { tracks, trace, model, state: { view } } = this, { panels } = tracks;
        if (x < tracks.left || x > tracks.left + tracks.width)
            return null;
        const time = tracks.x.invert(x), slack = 2 * (view.to - view.from) / tracks.width;
        const panel = Object.values(panels).find(({ top, height }) => y >= top && y < top + height);
        const found = { panel: panel?.name, time };
        if (!panel)
            return null;
        if (panel.name === 'heat') {
            const chunk = this.rows.chunkAt(view.top + (y - panel.top) / this.unitScale());
            return chunk === NONE ? null : { ...found, kind: 'chunk', chunk };
        }
        if (panel.name === 'stalls') {
            const stall = this.nearestStall(time, slack * 2);
            return stall === NONE ? null : { ...found, kind: 'stall', stall };
        }
        if (panel.name === 'steps') {
            const pass = trace.passes.find(({ begin, end }) => time >= begin && time < end);
            return pass ? { ...found, kind: 'pass', pass } : null;
        }
        if (panel.name === 'ops') {
            const i = model.ops.at(time, slack);
            return i === NONE ? null : { ...found, kind: 'span', lane: 'compute', span: i, spans: model.ops };
        }
        if (panel.name === 'streams') {
            const lane = LANES.find((_, i) => y < tracks.laneAt(i).top + tracks.laneAt(i).height + 2),
                spans = model.streams[lane];
            const i = spans ? spans.at(time, slack) : NONE;
            return i === NONE ? null : { ...found, kind: 'span', lane, span: i, spans };
        }
        return { ...found, kind: panel.name };
    }

    nearestStall(time, slack) {
        const { stalls } = this.model, [first, last] = stalls.range(time - slack, time + slack);
        let best = NONE, near = slack;
        for (let i = first; i < last; i++) {
            const away = Math.max(0, stalls.begin[i] - time, time - stalls.end[i]);
            if (away <= near) {
                near = away;
                best = i;
            }
        }
        return best;
    }

    tipText(hit) {
        const { trace, model, state: { view } } = this, when = momentText(hit.time, view.to - view.from);
        if (hit.kind === 'chunk') {
            const names = chunkNames(trace, hit.chunk),
                state = this.intervals.state[this.intervals.at(hit.chunk, hit.time)];
            const list = names.slice(0, 8).join('\n') + (names.length > 8 ? `\nand ${names.length - 8} more` : '');
            return `${chunkTitle(trace, hit.chunk)}: ${STATE_TEXTS[state]}\n${when}\n${list}`;
        }
        if (hit.kind === 'stall') {
            const { stall } = trace.kinds, cause = enumText(trace, 'cause', stall.cause[hit.stall]),
                chunk = stall.chunk[hit.stall];
            return `stall: ${cause}, ${durationText(stall.end[hit.stall] - stall.begin[hit.stall])}\n${opName(trace, stall.op[hit.stall])}` +
                (chunk === NONE ? '' : ` waits for ${chunkTitle(trace, chunk)}`);
        }
        if (hit.kind === 'pass')
            return `${hit.pass.training ? `step ${hit.pass.step}` : 'evaluation'}: ${durationText(hit.pass.end - hit.pass.begin)}`;
        if (hit.kind === 'span')
            return this.spanTip(hit);
        if (hit.kind === 'device' || hit.kind === 'host') {
            const slots = model.memory[hit.kind].at(hit.time), fixed = hit.kind === 'device' ? trace.trace.region_bytes
                : 0;
            return `${when}: ${slots} of ${trace.trace[`${hit.kind}_slots`]} slots` +
                `\n${bytesText(fixed + slots * trace.trace.chunk_bytes)}${fixed ? `, ${bytesText(fixed)} of it not in slots` : ''}`;
        }
        if (hit.kind === 'link') {
            const half = (view.to - view.from) / this.tracks.width / 2;
            const rate = (spans) => rateText((spans.until(hit.time + half) - spans.until(hit.time - half)) / (2 * half));
            return `${when}\nto the device ${rate(model.link.up)}\nto the host ${rate(model.link.down)}`;
        }
        if (hit.kind === 'path')
            return this.pathTip(hit);
        return '';
    }

    spanTip({ lane, span, spans }) {
        const { trace } = this, kind = spans.kind(span), event = spans.event[span];
        const length = durationText(spans.end[span] - spans.begin[span]);
        if (kind === trace.kinds.op)
            return `${opName(trace, kind.op[event])}${kind.slice[event] === NONE ? '' : `, slice ${kind.slice[event]}`}\n${length}, ` +
                `${durationText(kind.busy_ns[event])} of it busy`;
        if (kind === trace.kinds.norm)
            return `gradient norm to the host\n${length}`;
        if (kind === trace.kinds.work)
            return `caller: ${enumText(trace, 'work', kind.work[event])}\n${length}`;
        const bytes = kind.bytes ? `, ${bytesText(kind.bytes[event])}` : '';
        return `${this.details.spanText(lane, span)}\n${length}${bytes}\n${chunkNames(trace, kind.chunk[event]).slice(0, 4).join('\n')}`;
    }

    pathTip({ time }) {
        const { path } = this.model, pass = this.trace.passes.find(({ begin, end }) => time >= begin && time < end);
        const piece = pass && path.isKnown(pass) && path.of(pass).pieces.find(({ begin, end }) => time >= begin
            && time < end);
        if (!piece)
            return '';
        const what = piece.lane === 'caller' ? enumText(this.trace, 'work', this.trace.kinds.work.work[piece.span])
            : piece.lane === 'compute' ? opName(this.trace, this.opOf(piece.span)) : piece.lane === 'idle'
            ? (piece.stall === NONE ? 'nothing known held it' :
                `stall: ${enumText(this.trace, 'cause', this.trace.kinds.stall.cause[piece.stall])}`)
            : this.details.spanText(piece.lane, piece.span);
        return `critical path: ${LANE_TEXTS[piece.lane]}\n${what}\n${durationText(piece.end - piece.begin)}`;
    }

    opOf(span) {
        const { compute } = this.model.streams;
        return compute.kind(span) === this.trace.kinds.op ? this.trace.kinds.op.op[compute.event[span]] : NONE;
    }

    hover(point) {
        this.pointer = point;
        const hit = point && !this.dragged ? this.hit(point) : null, tip = $('tip'), text = hit ? this.tipText(hit) : '';
        this.state.hovered = hit;
        tip.style.display = text ? 'block' : 'none';
        if (text) {
            tip.textContent = text;
            const { offsetWidth: wide, offsetHeight: tall } = tip;
            tip.style.left = `${point.x + 16 + wide > this.width ? Math.max(2, point.x - wide - 12) : point.x + 16}px`;
            tip.style.top = `${Math.max(2, Math.min(this.height - tall - 2, point.y + 14))}px`;
        }
        this.drawOver();
    }

    /* ---- mouse and keys ---- */

    pointOf(event) {
        const box = $('drawing').getBoundingClientRect();
        return { x: event.clientX - box.left, y: event.clientY - box.top };
    }

    listen() {
        const drawing = $('drawing');
        drawing.addEventListener('wheel', (event) => this.wheeled(event), { passive: false });
        drawing.addEventListener('pointerdown', (event) => this.pressed(event));
        drawing.addEventListener('pointermove', (event) => this.moved(event));
        drawing.addEventListener('pointerup', (event) => this.released(event));
        drawing.addEventListener('pointerleave', () => this.hover(null));
        drawing.addEventListener('dblclick', (event) => this.doubled(event));
        document.addEventListener('keydown', (event) => this.keyed(event));
        $('search').addEventListener('input', () => this.search($('search').value));
        $('fit').addEventListener('click', () => this.all());
        $('theme').addEventListener('click', () => this.themeToggle());
        $('help').addEventListener('click', () => $('keys').showModal());
        $('details').addEventListener('click', ({ target }) => {
            const row = target.closest('[data-go]');
            if (row)
                this.go(row.dataset.go);
        });
    }

    themeToggle() {
        this.themeSet(this.state.theme === 'dark' ? 'light' : 'dark');
    }

    all() {
        this.viewSet({ from: 0, to: this.trace.end, top: 0, bottom: this.rows.total });
    }

    wheeled(event) {
        event.preventDefault();
        const { x, y } = this.pointOf(event), { view } = this.state, { heat } = this.tracks.panels;
        const turn = event.deltaY || event.deltaX, factor = Math.exp(Math.max(-0.7,
            Math.min(0.7, turn * (event.deltaMode ? 0.05 : 0.002))));
        if (event.shiftKey)
            this.zoomRows(factor, view.top + (Math.max(heat.top,
                Math.min(heat.top + heat.height, y)) - heat.top) / this.unitScale());
        else
            this.zoom(factor, this.tracks.x.invert(Math.max(this.tracks.left, x)));
    }

    pressed(event) {
        if (event.button !== 0)
            return;
        this.held = { ...this.pointOf(event), view: { ...this.state.view } };
        this.dragged = false;
        $('drawing').setPointerCapture(event.pointerId);
    }

    moved(event) {
        const point = this.pointOf(event);
        if (this.held) {
            const dx = point.x - this.held.x, dy = point.y - this.held.y, { view } = this.held;
            this.dragged ||= Math.hypot(dx, dy) > 4;
            if (this.dragged) {
                const by = dx / this.tracks.width * (view.to - view.from),
                    down = dy / this.tracks.panels.heat.height * (view.bottom - view.top);
                this.viewSet({ from: view.from - by, to: view.to - by, top: view.top - down,
                    bottom: view.bottom - down });
            }
        }
        this.hover(point);
    }

    released(event) {
        const { held, dragged } = this;
        this.held = null;
        this.dragged = false;
        if (!held || dragged)
            return;
        const hit = this.hit(this.pointOf(event));
        if (hit?.kind === 'chunk')
            this.selectChunk(hit.chunk, false);
        else if (hit?.kind === 'stall')
            this.selectStall(hit.stall, false);
        else if (hit?.kind === 'span' && hit.spans.kind(hit.span).chunk)
            this.selectChunk(hit.spans.kind(hit.span).chunk[hit.spans.event[hit.span]]);
        else
            this.select(null);
    }

    doubled(event) {
        const hit = this.hit(this.pointOf(event));
        if (hit?.kind === 'pass')
            this.fit(hit.pass.begin, hit.pass.end);
        else if (hit?.kind === 'span')
            this.fit(hit.spans.begin[hit.span], hit.spans.end[hit.span], 1);
    }

    escape() {
        if (this.state.query) {
            $('search').value = '';
            this.search('');
        }
        $('drawing').focus();
        this.select(null);
    }

    keyed(event) {
        if ($('keys').open || event.ctrlKey || event.metaKey || event.altKey)
            return;
        if (event.target === $('search')) {
            if (event.key === 'Enter')
                this.nextMatch();
            else if (event.key === 'Escape')
                this.escape();
            return;
        }
        const row = event.target.closest?.('[data-go]');
        if (row && event.key === 'Enter') {
            this.go(row.dataset.go);
            return;
        }
        const action = this.actions()[event.key];
        if (!action)
            return;
        event.preventDefault();
        action();
    }

    actions() {
        const zoomIn = () => this.zoom(1 / 1.4), zoomOut = () => this.zoom(1.4);
        return { '+': zoomIn, '=': zoomIn, '-': zoomOut, '_': zoomOut, ArrowLeft: () => this.pan(-0.15),
            ArrowRight: () => this.pan(0.15),
            ArrowUp: () => this.pan(0, -0.15), ArrowDown: () => this.pan(0, 0.15), i: () => this.zoomRows(1 / 1.4),
                o: () => this.zoomRows(1.4),
            0: () => this.all(), '[': () => this.step(-1), ']': () => this.step(1), n: () => this.nextStall(1),
                p: () => this.nextStall(-1),
            j: () => this.nextChunk(1), k: () => this.nextChunk(-1), f: () => this.fitSelected(), t: () =>
                this.themeToggle(),
            '/': () => $('search').focus(), '?': () => $('keys').showModal(), Escape: () => this.escape() };
    }
}

const page = new Page();
page.start();
window.tidepool = page;
