/* Draws the page on two canvases, with the axes between them. The lower canvas is redrawn when the view
 * changes. The upper one shows the marks that follow the mouse and the selection: marked rows, and the line
 * from a stall to its chunk and to the command that ended it. View (view.js) and the page (ui.js) extend this
 * class. */
const PALETTES = {
    light: { page: '#fbfbf9', panel: '#efefeb', ink: '#1c1e21', soft: '#5a6068', line: '#c3c5c9', tag: '#fbfbf9d8',
        accent: '#111',
        states: ['#ecece8', '#cdd1d6', '#56b4e9', '#009e73', '#0072b2', '#e69f00', '#cc79a7', '#f0e442', '#d9d9d4',
            '#56b4e9', '#a99cf0'],
        ops: ['#b9bec5', '#868d96', '#a0a6ae', '#d0d3d7', '#d55e00'],
            inks: ['#1c1e21', '#fff', '#1c1e21', '#1c1e21', '#fff'],
        stall: '#d55e00', stallInk: '#fff', memory: '#8fb8d2', memoryRange: '#5d93b5', region: '#8b929b88',
            budget: '#d55e00', idle: '#00000018' },
    dark: { page: '#141619', panel: '#1e2125', ink: '#eceef0', soft: '#a4abb3', line: '#41464d', tag: '#141619d8',
        accent: '#fff',
        states: ['#1b1e22', '#4a5058', '#56b4e9', '#00a87b', '#1f7fc0', '#e69f00', '#cc79a7', '#f0e442', '#2c3036',
            '#56b4e9', '#a195ea'],
        ops: ['#6d747d', '#a4abb3', '#8a9199', '#4a5058', '#ff8a3d'],
            inks: ['#fff', '#141619', '#141619', '#fff', '#141619'],
        stall: '#ee7320', stallInk: '#141619', memory: '#2e5f7f', memoryRange: '#5fa3cc', region: '#8b929b66',
            budget: '#ff8a3d',
        idle: '#ffffff18' },
};
const $ = (id) => document.getElementById(id);

class Picture {
    /* ---- themes ---- */

    themeSet(theme, draw = true) {
        this.state.theme = theme;
        document.documentElement.dataset.theme = theme;
        const palette = PALETTES[theme], inks = (fills) => fills.map((fill, i) => ({ fill, ink: palette.inks[i] }));
        const one = (fill, ink = '#1c1e21', other = fill) => [{ fill, ink }, { fill: other, ink }];
        const [, , , , , up, down, update] = palette.states, ops = inks(palette.ops);
        const word = (css) => {
            const [r, g, b] = [1, 3, 5].map((at) => parseInt(css.slice(at, at + 2), 16));
            return (0xff000000 | b << 16 | g << 8 | r) >>> 0;
        };
        this.colors = { ...palette, css: palette.states,
            words: { page: word(palette.page), states: palette.states.map(word) },
            ops, stalls: Object.keys(CAUSE_TEXTS).map(() => ({ fill: palette.stall, ink: palette.stallInk })), up, down,
            lanes: { compute: ops, in: one(up, '#1c1e21', palette.states[ON_HOST]), out: one(down),
                update: one(update), host: one(update),
                map: one(palette.ops[1], palette.inks[1]), caller: one(palette.states[ON_HOST], palette.ink) } };
        this.colors.hatch = this.hatch(palette.stall);
        this.colors.gap = this.hatch(palette.line);
        $('legend').innerHTML = STATE_LEGEND.map(([state, text]) => [palette.states[state], text])
            .concat([[`repeating-linear-gradient(135deg, ${palette.stall} 0 2px, transparent 2px 5px)`, 'stall']])
            .map(([color, text]) => `<li><i style="background:${color}"></i>${text}</li>`).join('');
        if (draw) {
            this.redraw();
            this.tell();
        }
    }

    hatch(color) {
        const tile = document.createElement('canvas'), context = tile.getContext('2d');
        tile.width = tile.height = 6;
        context.strokeStyle = color;
        context.globalAlpha = 0.55;
        context.lineWidth = 1;
        for (const shift of [-6, 0, 6]) {
            context.moveTo(shift, 6);
            context.lineTo(shift + 6, 0);
        }
        context.stroke();
        return context.createPattern(tile, 'repeat');
    }

    /* ---- drawing ---- */

    resize() {
        const { clientWidth: width, clientHeight: height } = $('drawing'), ratio = window.devicePixelRatio || 1;
        if (width === this.width && height === this.height && ratio === this.ratio)
            return;
        Object.assign(this, { width, height, ratio });
        for (const id of ['canvas', 'overlay']) {
            $(id).width = Math.round(width * ratio);
            $(id).height = Math.round(height * ratio);
        }
        this.context = $('canvas').getContext('2d', { alpha: false,
            willReadFrequently: true }); // for putImageData, which every redraw calls
        this.over = $('overlay').getContext('2d');
        this.tracks.layout(width, height);
        this.titles();
        this.draw();
        this.tell();
    }

    titles() {
        const { panels } = this.tracks, lines = [];
        const put = (text, top, soft = '') =>
            lines.push(`<div class="${soft}" style="top:${Math.round(top)}px">${text}</div>`);
        for (const { title, top, height } of Object.values(panels))
            if (title && title !== 'streams')
                put(title, height > 30 ? top : top + height / 2 - 7);
        LANES.forEach((lane, i) => put(LANE_TEXTS[lane], this.tracks.laneAt(i).top - 1, 'soft'));
        $('titles').innerHTML = lines.join('');
    }

    redraw() {
        if (this.asked)
            return;
        this.asked = true;
        requestAnimationFrame(() => {
            this.asked = false;
            this.draw();
        });
    }

    draw() {
        const started = performance.now(), { context, colors, tracks, ratio, state: { view, redrawMs } } = this;
        const { heat } = tracks.panels;
        context.setTransform(1, 0, 0, 1, 0, 0);
        context.fillStyle = colors.page;
        context.fillRect(0, 0, context.canvas.width, context.canvas.height);
        this.heat.draw(context, Math.round(tracks.left * ratio), Math.round(heat.top * ratio),
            Math.round(tracks.width * ratio),
            Math.round(heat.height * ratio), view, colors.words);
        context.setTransform(ratio, 0, 0, ratio, 0, 0);
        tracks.draw(context, view, colors);
        this.rowLabels();
        tracks.axes(this.svg);
        this.drawOver();
        redrawMs.push(performance.now() - started);
        if (redrawMs.length > 500)
            redrawMs.shift();
        this.state.redraws++;
        this.pathsLater();
    }

    unitScale() {
        const { view } = this.state;
        return this.tracks.panels.heat.height / (view.bottom - view.top);
    }

    rowLabels() {
        const { context, colors, tracks, state: { view } } = this, { heat } = tracks.panels, scale = this.unitScale();
        context.textBaseline = 'middle';
        for (const group of this.rows.groups) {
            const top = heat.top + (group.top - view.top) * scale, bottom = heat.top + (group.bottom - view.top) * scale;
            const from = Math.max(heat.top, top), to = Math.min(heat.top + heat.height, bottom), row = group.unit * scale;
            if (to - from < 13)
                continue;
            context.font = '600 ' + FONT;
            const named = row >= 12;
            if (!named || to - from > 70)
                this.groupTitle(group, from, to, named);
            context.font = FONT;
            const every = Math.max(1, Math.ceil(13 / row)), nice = every === 1 ? 1
                : [2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4]
                .find((step) => step >= every) ?? 1e5;
            for (let i = Math.ceil(Math.max(0, (from - top) / row - 0.5) / nice) * nice; i < group.count; i += nice) {
                const y = top + (i + 0.5) * row;
                if (y > to - 5)
                    break;
                if (y < from + 5)
                    continue;
                const name = named ? chunkNames(this.trace, group.first + i)[0] : '';
                const text = name ? `${i} ${name}` : `${i}`;
                tracks.text(text, tracks.left - 6, y, named ? tracks.left - 32 : 60, colors.soft, 'right');
            }
        }
    }

    groupTitle(group, from, to, turned) {
        const { context, colors } = this, title = SPACES[group.space];
        if (turned) {
            context.save();
            context.translate(15, (from + to) / 2);
            context.rotate(-Math.PI / 2);
            context.fillStyle = colors.ink;
            context.textAlign = 'center';
            if (to - from > title.length * 8)
                context.fillText(title, 0, 0);
            context.restore();
            return;
        }
        this.tracks.text(title, 10, from + 7, 100, colors.ink);
        context.font = FONT;
        if (to - from > 30)
            this.tracks.text(`${group.count} chunks`, 10, from + 21, 90, colors.soft);
    }

    /* ---- marks that follow the mouse and the selection ---- */

    drawOver() {
        const { over, ratio, width, height, tracks, state } = this, { heat, time } = tracks.panels;
        over.setTransform(ratio, 0, 0, ratio, 0, 0);
        over.clearRect(0, 0, width, height);
        over.font = FONT;
        over.textBaseline = 'middle';
        over.lineWidth = 1;
        this.marks = null;
        for (const chunk of state.matches)
            this.rowMark(chunk, 1.5, false);
        if (state.selected?.kind === 'chunk')
            this.rowMark(state.selected.chunk, 2, true);
        if (state.hovered?.kind === 'stall' && state.selected?.kind !== 'stall')
            this.causeLine(state.hovered.stall);
        if (state.selected?.kind === 'stall')
            this.causeLine(state.selected.stall);
        if (this.pointer && this.pointer.x >= tracks.left && this.pointer.x <= tracks.left + tracks.width) {
            over.strokeStyle = this.colors.soft;
            over.setLineDash([2, 3]);
            over.beginPath();
            over.moveTo(Math.round(this.pointer.x) + 0.5, tracks.panels.steps.top);
            over.lineTo(Math.round(this.pointer.x) + 0.5, time.top);
            over.stroke();
            over.setLineDash([]);
        }
    }

    rowY(chunk) {
        const { heat } = this.tracks.panels, group = this.rows.group(chunk), scale = this.unitScale();
        const top = heat.top + (this.rows.top(chunk) - this.state.view.top) * scale;
        return [top, top + group.unit * scale];
    }

    rowMark(chunk, line, labelled) {
        const { over, tracks, colors } = this, { heat } = tracks.panels, [a, b] = this.rowY(chunk);
        if (b < heat.top || a > heat.top + heat.height)
            return;
        const middle = Math.max(heat.top, Math.min(heat.top + heat.height, (a + b) / 2)), half = (b - a) / 2;
        over.strokeStyle = colors.accent;
        over.fillStyle = colors.accent;
        over.lineWidth = line;
        if (half >= 3)
            over.strokeRect(tracks.left - 1, middle - half, tracks.width + 2, 2 * half);
        else { // a frame around so thin a row would hide it
            over.globalAlpha = labelled ? 0.9 : 0.45;
            over.fillRect(tracks.left, middle - 0.5, tracks.width, 1);
            over.globalAlpha = 1;
        }
        over.beginPath();
        over.moveTo(tracks.left - 2, middle);
        over.lineTo(tracks.left - 9, middle - 4.5);
        over.lineTo(tracks.left - 9, middle + 4.5);
        over.fill();
        if (labelled && b - a < 12)
            this.label(chunkTitle(this.trace, chunk), tracks.left - 12, middle, 'right');
    }

    label(text, x, y, align = 'left') {
        const { over, colors } = this, wide = over.measureText(text).width + 8;
        const left = Math.max(2, Math.min(this.width - wide - 2, align === 'right' ? x - wide : x));
        over.fillStyle = colors.page;
        over.strokeStyle = colors.accent;
        over.lineWidth = 1;
        over.fillRect(left, y - 8, wide, 16);
        over.strokeRect(left, y - 8, wide, 16);
        over.fillStyle = colors.ink;
        over.textAlign = 'left';
        over.fillText(text, left + 4, y + 0.5);
    }

    /* Draws a line from the stall down to its chunk's row, and on to the span of the command that ended the
     * stall. */
    causeLine(stall) {
        const { over, tracks, colors, trace, model } = this, { panels } = tracks, kind = trace.kinds.stall;
        const inside = (x) => Math.max(tracks.left, Math.min(tracks.left + tracks.width, x));
        const a = inside(tracks.x(kind.begin[stall])), b = inside(tracks.x(kind.end[stall])), { stalls, heat } = panels;
        const points = [[b, stalls.top + stalls.height]], chunk = kind.chunk[stall];
        over.strokeStyle = colors.accent;
        over.lineWidth = 2;
        over.strokeRect(a - 1, stalls.top - 1, Math.max(2, b - a) + 2, stalls.height + 2);
        over.setLineDash([4, 3]);
        over.lineWidth = 1;
        over.strokeRect(a, heat.top, Math.max(1, b - a), heat.height);
        over.setLineDash([]);
        if (chunk !== NONE) {
            const [top, bottom] = this.rowY(chunk), y = Math.max(heat.top,
                Math.min(heat.top + heat.height, (top + bottom) / 2));
            points.push([b, y]);
            this.rowMark(chunk, 1, false);
        }
        const away = ([lane, i]) => Math.abs(model.streams[lane].end[i] - kind.end[stall]);
        const spans = (model.path.commands.get(kind.ended_by[stall]) ?? []).slice().sort((one, two) =>
            away(one) - away(two));
        let command = '';
        const parts = spans.filter(([lane]) => lane !== 'move');
        if (!parts.length && spans.length) { // only the move is known: go to its chunk's row
            const { move } = model.streams, [, i] = spans[0], its = move.kind(i).chunk[move.event[i]],
                [top, bottom] = this.rowY(its);
            this.rowMark(its, 1, false);
            points.push([inside(tracks.x(move.end[i])),
                Math.max(heat.top, Math.min(heat.top + heat.height, (top + bottom) / 2))]);
            command = this.details.spanText('move', i);
        }
        for (const [lane, i] of parts) {
            const { top, height } = tracks.laneAt(LANES.indexOf(lane)), stream = model.streams[lane];
            const from = inside(tracks.x(stream.begin[i])), to = inside(tracks.x(stream.end[i]));
            over.strokeStyle = colors.accent;
            over.lineWidth = 2;
            over.strokeRect(from - 1, top - 1, Math.max(2, to - from) + 2, height + 2);
            if (!command) {
                points.push([(from + to) / 2, top - 1]);
                command = this.details.spanText(lane, i);
            }
        }
        this.trail(points, command ? 1 : 0);
        const cause = enumText(trace, 'cause', kind.cause[stall]);
        this.label(`stall: ${cause}, ${durationText(kind.end[stall] - kind.begin[stall])}`, b + 8, stalls.top + 9);
        if (chunk !== NONE)
            this.label(`${chunkTitle(trace, chunk)} ${chunkNames(trace, chunk)[0] ?? ''}`.slice(0, 44), b + 10,
                points[1][1] < heat.top + 20 ? points[1][1] + 16 : points[1][1] - 14);
        if (command) {
            const [x, y] = points.at(-1);
            this.label(command, x + 8, y - 12);
        }
        this.marks = { stall, points, command };
    }

    trail(points, arrow) {
        const { over, colors } = this;
        for (const [color, line] of [[colors.page, 5], [colors.accent, 2]]) {
            over.strokeStyle = color;
            over.lineWidth = line;
            over.beginPath();
            points.forEach(([x, y], i) => (i ? over.lineTo(x, y) : over.moveTo(x, y)));
            over.stroke();
        }
        over.fillStyle = colors.accent;
        for (const [x, y] of points.slice(1, points.length - arrow)) {
            over.beginPath();
            over.arc(x, y, 4, 0, 7);
            over.fill();
        }
        if (!arrow || points.length < 2)
            return;
        const [[x0, y0], [x, y]] = points.slice(-2), angle = Math.atan2(y - y0, x - x0);
        over.beginPath();
        over.moveTo(x, y);
        over.lineTo(x - 10 * Math.cos(angle - 0.4), y - 10 * Math.sin(angle - 0.4));
        over.lineTo(x - 10 * Math.cos(angle + 0.4), y - 10 * Math.sin(angle + 0.4));
        over.fill();
    }
}
