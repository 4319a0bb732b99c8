/* The heat map: chunks against time. The rows are in groups, one for each space. A group's height depends on
 * its number of chunks, but is at least a tenth of the whole; STATE chunks count half, or a quarter if all of
 * them stay on the host. The vertical unit is the height of a PARAM chunk's row.
 *
 * A row at least a pixel high is drawn as a line of colours. Thinner rows are joined into bands of several
 * pixels. A band shows, stacked, the share of its chunks that is in each state at that time.
 */
const BAND_PIXELS = 8;
const STACK = [UPDATE, UP, DOWN, PINNED, GRADIENTS, PARAMS, OPTIMIZER, ACTIVATIONS, ON_HOST, UNKNOWN,
    ABSENT]; // in the order in which a band stacks them, from its top

class Rows {
    constructor(trace, intervals) {
        const counts = [0, 0, 0];
        let stateMoves = false;
        for (const { space, chunk } of trace.chunks) {
            counts[space]++;
            for (let i = intervals.first[chunk]; space === 1 && i < intervals.first[chunk + 1] && !stateMoves; i++)
                stateMoves = [PINNED, UP, DOWN, OPTIMIZER].includes(intervals.state[i]);
        }
        const units = counts.map((count, space) => count * (space === 1 ? (stateMoves ? 0.5 : 0.25) : 1)),
            all = units.reduce((a, b) => a + b, 0) || 1;
        const gap = all * 0.018;
        let first = 0, top = 0;
        this.groups = [];
        counts.forEach((count, space) => {
            if (count) {
                const height = Math.max(units[space], all * 0.1);
                this.groups.push({ space, first, count, top, unit: height / count, bottom: top + height });
                top += height + gap;
            }
            first += count;
        });
        this.total = Math.max(top - gap, 1e-9);
    }

    group(chunk) {
        return this.groups.find((group) => chunk >= group.first && chunk < group.first + group.count);
    }

    top(chunk) {
        const group = this.group(chunk);
        return group.top + (chunk - group.first) * group.unit;
    }

    chunkAt(unit) {
        const group = this.groups.find(({ top, bottom }) => unit >= top && unit < bottom);
        return group ? Math.min(group.first + group.count - 1, group.first
            + Math.floor((unit - group.top) / group.unit)) : NONE;
    }
}

class Heat {
    constructor(trace, intervals, rows) {
        this.trace = trace;
        this.intervals = intervals;
        this.rows = rows;
        this.shares = null; // created when first needed
        this.image = null;
    }

    /* Draws the visible part into an image of width x height pixels. `colors` has a pixel word for each state
     * and for the page. */
    draw(context, left, top, width, height, view, colors) {
        if (!this.image || this.image.width !== width || this.image.height !== height) {
            this.image = context.createImageData(width, height);
            this.pixels = new Uint32Array(this.image.data.buffer);
            this.line = new Uint32Array(width);
            this.spent = new Float64Array(STATE_COUNT);
        }
        this.pixels.fill(colors.page);
        colors = { ...colors, states: Uint32Array.from(colors.states) };
        const scale = height / (view.bottom - view.top);
        for (const group of this.rows.groups) {
            const row = group.unit * scale;
            if (row >= 1)
                this.drawRows(group, row, (group.top - view.top) * scale, view, colors);
            else
                this.drawBands(group, row, (group.top - view.top) * scale, view, colors);
        }
        context.putImageData(this.image, left, top);
    }

    drawRows(group, row, top, view, colors) {
        const { width, height } = this.image, space = row >= 5 ? 1 : 0;
        const from = Math.max(0, Math.floor(-top / row)), to = Math.min(group.count, Math.ceil((height - top) / row));
        for (let i = from; i < to; i++) {
            this.lineOf(group.first + i, view, colors.states);
            const past = Math.min(height, Math.round(top + (i + 1) * row) - space);
            for (let y = Math.max(0, Math.round(top + i * row)); y < past; y++)
                this.pixels.set(this.line, y * width);
        }
    }

    /* Computes a line of pixels: each has the colour of the state in which the chunk spends most of that
     * pixel's time. */
    lineOf(chunk, { from, to }, states) {
        const { line, spent, intervals } = this, { begin, state: stateOf } = intervals, { width } = this.image;
        const scale = width / (to - from), past = intervals.first[chunk + 1], first = intervals.at(chunk, from);
        if (lastAtMost(begin, to, first, past) - first > 16 * width) {
            this.sample(chunk, first, past, from, scale, states);
            return;
        }
        let x = 0, parts = 0; // number of intervals that lie partly in pixel x so far
        for (let i = first; i < past && x < width; i++) {
            const state = stateOf[i], a = Math.max(x, (begin[i] - from) * scale);
            const b = Math.min(width, ((i + 1 < past ? begin[i + 1] : intervals.trace.end) - from) * scale);
            if (b < x + 1) {
                spent[state] += b - a;
                parts++;
                continue;
            }
            if (parts > 0) { // the interval shares its first pixel with those before it
                spent[state] += x + 1 - a;
                line[x++] = states[this.longest()];
                parts = 0;
            }
            const whole = Math.floor(b);
            if (whole > x) {
                line.fill(states[state], x, whole);
                x = whole;
            }
            if (b > x) {
                spent[state] += b - x;
                parts++;
            }
        }
        if (parts > 0 && x < width)
            line[x++] = states[this.longest()];
        line.fill(states[ABSENT], x);
    }

    /* Returns the state with most of the pixel's time, and resets the times for the next pixel. */
    longest() {
        const { spent } = this;
        let state = 0;
        for (let other = 1; other < STATE_COUNT; other++)
            if (spent[other] > spent[state])
                state = other;
        spent.fill(0);
        return state;
    }

    sample(chunk, first, past, from, scale, states) {
        for (let x = 0, i = first; x < this.image.width; x++) {
            i = Math.max(first, lastAtMost(this.intervals.begin, from + (x + 0.5) / scale, i, past));
            this.line[x] = states[this.intervals.state[i]];
        }
    }

    drawBands(group, row, top, view, colors) {
        const { height } = this.image, bottom = top + group.count * row;
        const bands = Math.max(1, Math.round((bottom - top) / BAND_PIXELS)), size = (bottom - top) / bands;
        for (let band = 0; band < bands; band++) {
            const a = top + band * size, b = a + size;
            if (b <= 0 || a >= height)
                continue;
            const first = group.first + Math.floor(band * group.count / bands);
            const last = group.first + Math.max(Math.floor((band + 1) * group.count / bands),
                Math.floor(band * group.count / bands) + 1);
            this.drawBand(group, first, last, Math.round(a), Math.round(b), view, colors);
        }
    }

    drawBand(group, first, last, top, bottom, view, colors) {
        const { width, height } = this.image, words = STATE_COUNT * (width + 1);
        if (!this.sums || this.sums.length !== words) {
            this.sums = new Float32Array(words);
            this.edges = new Int32Array(words);
            this.starts = new Float32Array(width);
        }
        const { sums, starts, pixels } = this;
        sums.fill(0);
        const whole = this.collect(group, first, last, view), scale = (bottom - top) / whole;
        const from = Math.max(0, top), past = Math.min(height, bottom);
        pixels.fill(colors.states[ABSENT], from * width, past * width);
        starts.fill(top + 0.5);
        for (const state of STACK) {
            if (state === ABSENT)
                continue;
            const color = colors.states[state], base = state * (width + 1);
            for (let x = 0; x < width; x++) {
                const share = sums[base + x];
                if (share === 0)
                    continue;
                const a = starts[x], b = a + share * scale;
                starts[x] = b;
                for (let y = Math.max(from, a | 0), end = Math.min(past, b | 0); y < end; y++)
                    pixels[y * width + x] = color;
            }
        }
    }

    /* Sums up the states of the chunks for each pixel; returns the sum over all states of a pixel. If the
     * trace is long, a view of more than a quarter of it uses the precomputed shares; other views count the
     * intervals. */
    collect(group, first, last, { from, to }) {
        const { width } = this.image, { intervals } = this;
        if (intervals.count > 300e3 && to - from > intervals.trace.end / 4) {
            this.shares ??= new Shares(intervals, [0, 1, 2].map((space) => {
                const its = this.rows.groups.find((one) => one.space === space);
                return its ? [its.first, its.first + its.count] : [0, 0];
            }));
            return this.shares.read(group.space, first - group.first, last - group.first, from, to, width, this.sums);
        }
        this.edges.fill(0);
        sharesAdd(intervals, first, last, from, to, width, this.sums, this.edges);
        sharesClose(width, this.sums, this.edges);
        return last - first;
    }
}
