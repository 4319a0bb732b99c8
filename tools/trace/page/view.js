/* Changes of the view, the selection and the search. */
const LEAST_SPAN = 1000; // least nanoseconds in view
const NOTABLE_STALLS = 500;

class View extends Picture {
    /* ---- the view ---- */

    viewSet({ from, to, top, bottom }) {
        const { end } = this.trace, { view } = this.state, span = Math.min(end, Math.max(LEAST_SPAN, to - from));
        const { total } = this.rows, least = Math.min(total, 4 * Math.min(...this.rows.groups.map(({ unit }) => unit)));
        const rows = Math.min(total, Math.max(least, bottom - top));
        view.from = Math.max(0, Math.min(end - span, from));
        view.to = view.from + span;
        view.top = Math.max(0, Math.min(total - rows, top));
        view.bottom = view.top + rows;
        this.redraw();
        clearTimeout(this.telling);
        this.telling = setTimeout(() => this.tell(), 150);
    }

    zoom(factor, at = null) {
        const { view } = this.state, center = at ?? (view.from + view.to) / 2;
        this.viewSet({ ...view, from: center - (center - view.from) * factor, to: center + (view.to - center) * factor });
    }

    zoomRows(factor, at = null) {
        const { view } = this.state, center = at ?? (view.top + view.bottom) / 2;
        this.viewSet({ ...view, top: center - (center - view.top) * factor, bottom: center
            + (view.bottom - center) * factor });
    }

    pan(share, rows = 0) {
        const { view } = this.state, by = (view.to - view.from) * share, down = (view.bottom - view.top) * rows;
        this.viewSet({ from: view.from + by, to: view.to + by, top: view.top + down, bottom: view.bottom + down });
    }

    fit(from, to, margin = 0) {
        const extra = (to - from) * margin;
        this.viewSet({ ...this.state.view, from: from - extra, to: to + extra });
    }

    step(by) {
        const { view } = this.state, { steps } = this, middle = (view.from + view.to) / 2;
        if (!steps.length)
            return;
        const at = steps.findIndex(({ begin, end }) => begin <= view.from + 1 && end >= view.to - 1);
        const near = Math.max(0, steps.findIndex(({ end }) => end > middle));
        const to = steps[at < 0 ? near : Math.max(0, Math.min(steps.length - 1, at + by))];
        this.fit(to.begin, to.end);
    }

    /* ---- selection ---- */

    select(what) {
        this.state.selected = what;
        this.tell();
        this.drawOver();
    }

    selectChunk(chunk, seen = true) {
        if (seen)
            this.showRow(chunk);
        this.select({ kind: 'chunk', chunk });
    }

    showRow(chunk) {
        const { view } = this.state, group = this.rows.group(chunk), top = this.rows.top(chunk), bottom = top
            + group.unit;
        if (top >= view.top && bottom <= view.bottom)
            return;
        const half = (view.bottom - view.top) / 2, middle = (top + bottom) / 2;
        this.viewSet({ ...view, top: middle - half, bottom: middle + half });
    }

    /* Selects a stall. If `seen`, changes the view so that the stall and the command that ended it are
     * visible. */
    selectStall(stall, seen = true) {
        const { stall: kind } = this.trace.kinds, { view } = this.state, chunk = kind.chunk[stall];
        if (seen) {
            let from = kind.begin[stall], to = kind.end[stall];
            for (const [lane, i] of this.model.path.commands.get(kind.ended_by[stall]) ?? [])
                from = Math.max(kind.begin[stall] - 20 * (to - kind.begin[stall]),
                    Math.min(from, this.model.streams[lane].begin[i]));
            const wide = (to - kind.begin[stall]) / (view.to - view.from) * this.tracks.width;
            if (wide < 12 || from < view.from || to > view.to)
                this.fit(from, to, 1);
            if (chunk !== NONE)
                this.showRow(chunk);
        }
        this.select({ kind: 'stall', stall });
    }

    /* The longest stalls, in order of time: the keys n and p step through them. */
    notableStalls() {
        const { stall } = this.trace.kinds, length = (i) => stall.end[i] - stall.begin[i];
        return Uint32Array.from({ length: stall.count }, (_, i) => i).sort((a, b) => length(b) - length(a)).slice(0,
            NOTABLE_STALLS).sort();
    }

    nextStall(by) {
        const { stall } = this.trace.kinds, { selected, view } = this.state, { notable } = this;
        if (!notable.length)
            return;
        const from = selected?.kind === 'stall' ? stall.begin[selected.stall] : by > 0 ? view.from - 1 : view.to + 1;
        const next = by > 0 ? notable.findIndex((i) => stall.begin[i] > from)
            : notable.findLastIndex((i) => stall.begin[i] < from);
        this.selectStall(notable[next < 0 ? (by > 0 ? notable.length - 1 : 0) : next]);
    }

    nextChunk(by) {
        if (!this.trace.chunks.length)
            return;
        const { selected, view } = this.state, first = this.rows.chunkAt(view.top + 1e-9);
        const to = selected?.kind === 'chunk' ? selected.chunk + by : Math.max(0, first);
        this.selectChunk(Math.max(0, Math.min(this.trace.chunks.length - 1, to)));
    }

    fitSelected() {
        const { selected } = this.state;
        if (selected?.kind === 'stall') {
            const { begin, end, chunk } = this.trace.kinds.stall;
            this.fit(begin[selected.stall], end[selected.stall], 1);
            if (chunk[selected.stall] !== NONE)
                this.fitRow(chunk[selected.stall]);
        } else if (selected?.kind === 'chunk')
            this.fitRow(selected.chunk);
    }

    fitRow(chunk) {
        const top = this.rows.top(chunk), { unit } = this.rows.group(chunk);
        this.viewSet({ ...this.state.view, top: top - 8 * unit, bottom: top + 9 * unit });
    }

    tell() {
        const { selected, view } = this.state, aside = $('details');
        const html = selected?.kind === 'chunk' ? this.details.chunk(selected.chunk, view, this.colors)
            : selected?.kind === 'stall' ? this.details.stall(selected.stall, view)
                : this.details.overview(view, this.steps);
        if (html !== this.told) {
            aside.innerHTML = this.told = html;
        }
    }

    go(where) {
        const [kind, ...numbers] = where.split(':'), [one, two] = numbers.map(Number);
        if (kind === 'stall')
            this.selectStall(one);
        else if (kind === 'chunk')
            this.selectChunk(one);
        else if (two > one)
            this.fit(one, two, this.steps.some(({ begin, end }) => begin === one && end === two) ? 0 : 1);
    }

    /* ---- search ---- */

    search(query) {
        const wanted = query.trim().toLowerCase(), found = new Set();
        if (wanted)
            this.names.forEach((name, param) => name.includes(wanted) && found.add(param));
        const holds = ({ space, params }) => space === 0 && params.some((param) => found.has(param));
        const params = new Set(this.trace.chunks.filter(holds).map(({ chunk }) => chunk));
        const matches = this.trace.chunks.filter(({ chunk, space, of }) => params.has(chunk)
            || (space === 1 && of.some((one) => params.has(one))));
        Object.assign(this.state, { query, matches: matches.map(({ chunk }) => chunk) });
        this.matchAt = -1;
        $('found').textContent = wanted ? `${found.size} params, ${matches.length} chunks` : '';
        this.drawOver();
    }

    nextMatch() {
        const { matches } = this.state;
        if (!matches.length)
            return;
        this.matchAt = (this.matchAt + 1) % matches.length;
        this.selectChunk(matches[this.matchAt]);
    }
}
