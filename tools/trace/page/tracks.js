/* Draws all panels except the heat map: steps, ops and stalls above it; memory, link, streams and critical
 * path below. Scales, axes and areas are d3's. Where spans are narrower than a pixel, the opacity of a pixel
 * shows how busy the stream was then; very short spans keep a faint trace. */
const SPANS_DRAWN_MOST = 2500; // if more spans are in view, drawing does not look at each of them
const FAINT = 0.12, FAINTEST = 0.05; // least opacity of a pixel, and of one that its spans fill by less than a 250th
const opacityOf = (share) => Math.max(share < 0.004 ? FAINTEST : FAINT, Math.min(1, share));
const FONT = '11px system-ui, "DejaVu Sans", sans-serif';
const LETTER = 6.3; // approximate width of a letter in this font

const PANELS = [
    { name: 'steps', title: '', height: 17 },
    { name: 'ops', title: 'ops', height: 18 },
    { name: 'stalls', title: 'stalls', height: 18 },
    { name: 'heat', title: '', height: 0 }, // the heat map gets the rest of the height
    { name: 'device', title: 'device<br>memory', height: 46 },
    { name: 'host', title: 'host<br>memory', height: 46 },
    { name: 'link', title: 'link<br>up ↑<br>down ↓', height: 60 },
    { name: 'streams', title: 'streams', height: 98 },
    { name: 'path', title: 'critical path', height: 19 },
    { name: 'time', title: '', height: 20 },
];
const PANEL_GAP = 7;
const GUTTER = 148;
const MARGIN = 34; // space for half of the last time label

/* Derives from the trace, once, everything that drawing needs. */
const modelOf = (trace) => {
    const all = (name, tag = 0) => [trace.kinds[name], null, tag];
    const where = (name, column, text, tag = 0) => {
        const kind = trace.kinds[name], value = enumIndex(trace, column, text), found = [];
        for (let i = 0; i < kind.count; i++)
            if (kind[column][i] === value)
                found.push(i);
        return [kind, found, tag];
    };
    const { op } = trace.kinds, passes = trace.ops.map(([, pass]) => pass);
    const ops = new Spans([all('op')]);
    for (let i = 0; i < ops.count; i++)
        ops.tag[i] = op.op[i] === NONE ? 3 : passes[op.op[i]] ?? 3;
    const onDevice = (name) => where(name, 'tier', 'device'), onHost = (name) => where(name, 'tier', 'host');
    const streams = {
        compute: new Spans([all('op'), all('norm', 4)]), in: new Spans([where('copy', 'to', 'device'), all('zero', 1)]),
        out: new Spans([where('copy', 'to', 'host')]), update: new Spans([onDevice('update'), onDevice('restore')]),
        host: new Spans([onHost('update'), onHost('restore'), all('access', 1)]), map: new Spans([all('map')]),
        caller: new Spans([all('work')]), move: new Spans([all('move')]),
            // moves have no track of their own: their parts are in the other streams
    };
    for (let i = 0; i < streams.compute.count; i++)
        if (streams.compute.kind(i) === op)
            streams.compute.tag[i] = op.op[streams.compute.event[i]] === NONE ? 3
                : passes[op.op[streams.compute.event[i]]] ?? 3;
    const stalls = new Spans([all('stall')]);
    for (let i = 0; i < stalls.count; i++)
        stalls.tag[i] = trace.kinds.stall.cause[i];
    const weigh = (kind, event) => kind.bytes[event];
    const link = { up: new Spans([where('copy', 'to', 'device')], weigh),
        down: new Spans([where('copy', 'to', 'host')], weigh) };
    return { trace, ops, streams, stalls, link, linkMost: linkMostOf(trace),
        memory: { device: slotsTaken(trace, 4), host: slotsTaken(trace, 8) },
        path: new CriticalPath(trace, streams, stallCommands(trace, streams)) };
};

/* The link's rate in bytes a nanosecond: that of the trace's machine if it has one, else that of the fastest
 * large copy. */
const linkMostOf = (trace) => {
    const { copy } = trace.kinds, said = (trace.machine?.link_bytes_per_second ?? 0) / 1e9;
    let most = 0;
    for (let i = 0; i < copy.count; i++)
        if (copy.bytes[i] * 4 > trace.trace.chunk_bytes && copy.end[i] > copy.begin[i])
            most = Math.max(most, copy.bytes[i] / (copy.end[i] - copy.begin[i]));
    return said > 0 ? Math.max(said, 0.001) : most || 1;
};

class Tracks {
    constructor(model) {
        this.model = model;
    }

    /* Sets the position of each panel, in CSS pixels: {name: {top, height}}. */
    layout(width, height) {
        const fixed = PANELS.reduce((sum, panel) => sum + panel.height, 0) + PANEL_GAP * (PANELS.length - 1) + 4;
        let top = 2;
        this.panels = {};
        for (const { name, title, height: own } of PANELS) {
            const tall = name === 'heat' ? Math.max(90, height - fixed) : own;
            this.panels[name] = { name, title, top, height: tall };
            top += tall + (name === 'steps' || name === 'ops' || name === 'stalls' ? 2 : PANEL_GAP);
        }
        this.left = GUTTER;
        this.width = Math.max(50, width - GUTTER - MARGIN);
        this.x = d3.scaleLinear().range([this.left, this.left + this.width]);
    }

    draw(context, view, colors) {
        this.x.domain([view.from, view.to]);
        this.context = context;
        this.view = view;
        this.colors = colors;
        context.font = FONT;
        context.textBaseline = 'middle';
        this.labels = [];
        this.drawSteps();
        this.spans(this.model.ops, this.panels.ops, colors.ops, (event) =>
            opName(this.model.trace, this.model.trace.kinds.op.op[event]));
        this.drawStalls();
        this.drawMemory('device');
        this.drawMemory('host');
        this.drawLink();
        this.drawStreams();
        this.drawPath();
        this.drawGaps();
    }

    /* ---- drawing of spans ---- */

    text(text, x, y, width, color, align = 'left') {
        const { context } = this, room = Math.floor(width / LETTER);
        if (room < 2)
            return -1;
        context.fillStyle = color;
        context.textAlign = align;
        context.fillText(text.length <= room ? text : text.slice(0, room - 1) + '…', x, y);
        return -1; // tells the caller that fillStyle has changed
    }

    base({ top, height }) {
        this.context.fillStyle = this.colors.panel;
        this.context.fillRect(this.left, top, this.width, height);
    }

    spans(spans, { top, height }, colors, label = null) {
        this.base({ top, height });
        this.paint(spans, top, height, colors, label);
    }

    paint(spans, top, height, colors, label = null) {
        const { view, left, width, context } = this, [first, last] = spans.range(view.from, view.to);
        const scale = width / (view.to - view.from), narrow = [];
        let drawn = -1;
        if (last - first > SPANS_DRAWN_MOST) {
            this.density(spans, top, height, colors);
            return;
        }
        for (let i = first; i < last; i++) {
            const a = Math.max(0, (spans.begin[i] - view.from) * scale);
            const b = Math.min(width, (spans.end[i] - view.from) * scale), wide = b - a;
            if (b < 0 || a >= width)
                continue;
            if (wide < 1) {
                narrow.push([i, a, b]);
                continue;
            }
            if (drawn !== spans.tag[i])
                context.fillStyle = colors[drawn = spans.tag[i]].fill;
            context.fillRect(left + a, top, wide - (wide > 4 ? 0.5 : 0), height);
            if (label && wide > 26 && height > 11)
                drawn = this.text(label(spans.event[i], spans.kind(i)), left + a + 4, top + height / 2 + 0.5, wide - 6,
                    colors[spans.tag[i]].ink);
        }
        this.columns(spans, narrow, top, height, colors);
    }

    /* Draws spans narrower than a pixel, each [span, from, to]. A pixel column's opacity is the share that
     * its spans fill, its colour that of the last span. */
    columns(spans, narrow, top, height, colors) {
        const shares = new Map(), tags = new Map(), { context, width } = this;
        const add = (x, share, tag) => {
            shares.set(x, (shares.get(x) ?? 0) + share);
            tags.set(x, tag);
        };
        for (const [i, a, b] of narrow) {
            const x = Math.floor(a), edge = Math.min(b, x + 1);
            add(x, edge - a, spans.tag[i]);
            if (b > edge && x + 1 < width)
                add(x + 1, b - edge, spans.tag[i]);
        }
        for (const [x, share] of shares)
            this.column(x, top, height, share, colors[tags.get(x)].fill);
        context.globalAlpha = 1;
    }

    column(x, top, height, share, fill) {
        const { context, left } = this;
        context.globalAlpha = opacityOf(share);
        context.fillStyle = fill;
        context.fillRect(left + x, top, 1, height);
    }

    density(spans, top, height, colors) {
        const { context, width, view } = this, wide = (view.to - view.from) / width;
        let before = spans.until(view.from);
        for (let x = 0; x < width; x++) {
            const from = view.from + x * wide, now = spans.until(from + wide), share = (now - before) / wide;
            before = now;
            if (share > 1e-6)
                this.column(x, top, height, share,
                    colors[spans.tag[Math.max(0, spans.at(from + wide / 2, wide / 2))]].fill);
        }
        context.globalAlpha = 1;
    }

    /* ---- panels ---- */

    drawSteps() {
        const { context, colors, left, width, model: { trace } } = this, { top, height } = this.panels.steps;
        const bottom = this.panels.time.top;
        let drawn = -9;
        for (const pass of trace.passes) {
            const a = this.x(pass.begin), b = this.x(pass.end), from = Math.max(left, a), to = Math.min(left + width, b);
            if (to <= from)
                continue;
            if (a >= left && a >= drawn + 24) {
                context.fillStyle = colors.line;
                context.fillRect(Math.round(a), top, 1, bottom - top);
                drawn = a;
            }
            const name = pass.training ? `step ${pass.step}` : 'evaluation',
                seconds = durationText(pass.end - pass.begin);
            const texts = [name, `${pass.training ? pass.step : ''}`];
            if ((to - from) / LETTER > name.length + seconds.length + 5)
                texts.unshift(`${name} · ${seconds}`);
            this.stepLabel(texts, from, to, colors.ink);
        }
    }

    /* Draws the first of `texts` that fits between `from` and `to` in the row of steps without covering a
     * label there. */
    stepLabel(texts, from, to, color) {
        const { context, labels } = this, { top, height } = this.panels.steps, a = from + 5;
        const past = Math.min(to - 3, ...labels.filter((other) => other.to > a).map((other) => other.from - 5));
        const text = texts.find((one) => a + context.measureText(one).width <= past);
        if (!text || labels.some((other) => other.from <= a && other.to + 5 > a))
            return;
        context.fillStyle = color;
        context.textAlign = 'left';
        context.fillText(text, a, top + height / 2);
        labels.push({ text, from: a, to: a + context.measureText(text).width });
    }

    /* Covers all panels where the trace has a gap. */
    drawGaps() {
        const { context, colors, left, width, panels, model: { trace } } = this;
        for (const [from, to] of trace.gaps) {
            const a = Math.max(left, this.x(from)), b = Math.min(left + width, this.x(to));
            if (b <= a)
                continue;
            context.fillStyle = colors.page;
            context.fillRect(a, panels.ops.top, b - a, panels.time.top - panels.ops.top - 4);
            context.fillStyle = colors.gap;
            context.fillRect(a, panels.ops.top, b - a, panels.time.top - panels.ops.top - 4);
            this.stepLabel(['not in the trace'], a, b, colors.soft);
        }
    }

    drawStalls() {
        const { model: { stalls, trace }, colors, context, left, width, view } = this,
            { top, height } = this.panels.stalls;
        this.spans(stalls, this.panels.stalls, colors.stalls, (event) =>
            enumText(trace, 'cause', trace.kinds.stall.cause[event]));
        this.paint(stalls, top + height, 3, colors.stalls); // a thin line leads the eye to the heat map
        const [first, last] = stalls.range(view.from, view.to), heat = this.panels.heat;
        if (last - first > SPANS_DRAWN_MOST)
            return;
        context.fillStyle = colors.hatch;
        for (let i = first; i < last; i++) {
            const a = Math.max(left, this.x(stalls.begin[i])), b = Math.min(left + width, this.x(stalls.end[i]));
            if (b - a >= 3)
                context.fillRect(a, heat.top, b - a, heat.height);
        }
    }

    /* Draws the memory in use, for each pixel its range, and the budget as a line. */
    drawMemory(tier) {
        const { model: { memory, trace }, colors, context, left, width } = this, panel = this.panels[tier];
        const fixed = tier === 'device' ? trace.trace.region_bytes : 0, budget = trace.trace[`${tier}_memory_bytes`];
        const taken = memory[tier], size = trace.trace.chunk_bytes, points = [];
        const most = Math.max(budget, fixed + taken.most * size) * 1.1;
        const y = d3.scaleLinear().domain([0, most]).range([panel.top + panel.height, panel.top]);
        this.base(panel);
        const slots = Math.ceil(width), end = left + width, low = new Float64Array(slots), high = new Float64Array(slots);
        taken.range(this.view.from, this.view.to, slots, low, high);
        for (let slot = 0; slot < slots; slot++) // only the points at which the curve changes
            if (slot === 0 || low[slot] !== low[slot - 1] || high[slot] !== high[slot - 1])
                points.push([left + slot, y(fixed + low[slot] * size), y(fixed + high[slot] * size)]);
        points.push([end, ...points.at(-1).slice(1)]);
        this.area(points, (point) => point[2], y(0), colors.memory);
        this.area(points, (point) => point[2], (point) => point[1], colors.memoryRange);
        if (fixed > 0) {
            context.fillStyle = colors.region;
            context.fillRect(left, y(fixed), end - left, y(0) - y(fixed));
        }
        this.rule(y(budget), colors.budget, `budget ${bytesText(budget)}`, panel);
        panel.y = y;
    }

    area(points, above, below, color) {
        const { context } = this;
        context.fillStyle = color;
        context.beginPath();
        d3.area().x((point) => point[0]).y1(above).y0(below).curve(d3.curveStepAfter).context(context)(points);
        context.fill();
    }

    rule(y, color, text) {
        const { context, left, width } = this;
        context.strokeStyle = color;
        context.setLineDash([5, 3]);
        context.beginPath();
        context.moveTo(left, Math.round(y) + 0.5);
        context.lineTo(left + width, Math.round(y) + 0.5);
        context.stroke();
        context.setLineDash([]);
        if (!text)
            return;
        const wide = text.length * LETTER + 8;
        context.fillStyle = this.colors.tag;
        context.fillRect(left + width - wide - 2, y + 2, wide, 14);
        this.text(text, left + width - 6, y + 9.5, wide, this.colors.ink, 'right');
    }

    /* [x, bytes a nanosecond] for each pixel at which the rate changes. */
    rates(spans) {
        const { left, width, view } = this, wide = (view.to - view.from) / width, points = [];
        let before = spans.until(view.from), last = -1;
        for (let x = 0; x < width; x++) {
            const now = spans.until(view.from + (x + 1) * wide), rate = (now - before) / wide;
            if (rate !== last)
                points.push([left + x, rate]);
            last = rate;
            before = now;
        }
        points.push([left + width, last]);
        return points;
    }

    /* Draws the rates of the link in bytes a nanosecond (GB/s): to the device above the middle, to the host
     * below it. If the rates come near the link's own rate, that is drawn as a line. */
    drawLink() {
        const { model: { link, linkMost }, colors, left, width } = this, panel = this.panels.link;
        const ways = [['up', 1, this.rates(link.up)], ['down', -1, this.rates(link.down)]];
        let most = 0;
        for (const [, , points] of ways)
            for (const [, rate] of points)
                most = Math.max(most, rate);
        panel.most = most > linkMost / 3 ? linkMost : Math.max(most, linkMost / 1e6);
        const y = d3.scaleLinear().domain([-panel.most * 1.3, panel.most * 1.3]).range([panel.top + panel.height,
            panel.top]);
        this.base(panel);
        for (const [way, sign, points] of ways)
            this.area(points, (point) => y(sign * Math.min(point[1], panel.most * 1.3)), y(0), colors[way]);
        if (panel.most === linkMost)
            for (const rate of [linkMost, -linkMost])
                this.rule(y(rate), colors.line);
        this.context.fillStyle = colors.line;
        this.context.fillRect(left, Math.round(y(0)), width, 1);
        panel.y = y;
    }

    laneAt(index) {
        const { top, height } = this.panels.streams, size = height / LANES.length;
        return { top: Math.round(top + index * size), height: Math.floor(size) - 2 };
    }

    drawStreams() {
        const { model: { streams, trace }, colors } = this;
        LANES.forEach((lane, i) => {
            const label = (event, kind) => {
                if (kind === trace.kinds.norm)
                    return 'norm';
                if (lane === 'compute')
                    return opName(trace, kind.op[event]);
                if (lane === 'caller')
                    return enumText(trace, 'work', kind.work[event]);
                return chunkTitle(trace, kind.chunk[event]);
            };
            this.spans(streams[lane], this.laneAt(i), colors.lanes[lane], label);
        });
    }

    /* Draws the critical paths that are known; ui.js computes the others when the browser is idle. */
    drawPath() {
        const { model: { path, trace }, colors, context, left, width, view } = this, panel = this.panels.path;
        this.base(panel);
        for (const pass of trace.passes) {
            if (!path.isKnown(pass) || pass.end <= view.from || pass.begin >= view.to)
                continue;
            const { pieces } = path.of(pass), scale = width / (view.to - view.from), right = left + width;
            let drawn = left;
            for (const { lane, begin, end } of pieces) {
                const a = Math.max(left, left + (begin - view.from) * scale),
                    b = Math.min(right, left + (end - view.from) * scale);
                if (b < drawn + 0.5 && b - a < 0.5 || b < left || a > right)
                    continue;
                const wide = Math.max(0.7, b - a), { fill, ink } = lane === 'idle'
                    ? { fill: colors.idle, ink: colors.ink } : colors.lanes[lane][0];
                context.fillStyle = fill;
                context.fillRect(a, panel.top, wide, panel.height);
                drawn = a + wide;
                if (wide > 60 && lane !== 'compute')
                    this.text(LANE_TEXTS[lane], a + 4, panel.top + panel.height / 2, wide - 6, ink);
            }
        }
    }

    /* ---- axes, as SVG over the canvas ---- */

    axes(svg) {
        const { view, panels } = this, span = view.to - view.from, ticks = Math.max(3, Math.round(this.width / 130));
        const [scale, unit] = span >= 2e9 ? [1e9, 's'] : span >= 2e6 ? [1e6, 'ms'] : [1e3, 'µs'];
        const time = d3.scaleLinear().domain([view.from / scale, view.to / scale]).range(this.x.range());
        const step = Math.abs(d3.tickStep(view.from / scale, view.to / scale, ticks));
        const write = d3.format(`,.${Math.max(0, d3.precisionFixed(step))}f`);
        svg.select('.time').attr('transform', `translate(0,${panels.time.top - 4})`)
            .call(d3.axisBottom(time).ticks(ticks).tickSizeOuter(0).tickFormat((value) => `${write(value)} ${unit}`));
        for (const tier of ['device', 'host']) {
            const { y } = panels[tier], budget = this.model.trace.trace[`${tier}_memory_bytes`];
            svg.select(`.${tier}`).attr('transform', `translate(${this.left},0)`)
                .call(d3.axisLeft(y).tickValues([0, budget / 2, budget]).tickSize(3).tickFormat((bytes) =>
                    (bytes ? bytesText(bytes) : '0')));
        }
        const { most } = panels.link;
        svg.select('.link').attr('transform', `translate(${this.left},0)`)
            .call(d3.axisLeft(panels.link.y).tickValues([-most, 0, most]).tickSize(3)
                .tickFormat((rate) => (rate === 0 ? '0' : rateText(Math.abs(rate)))));
    }
}
