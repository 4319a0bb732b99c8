/* Data structures that make drawing fast at any zoom: its time depends on the number of pixels, not on the
 * length of the trace.
 *
 *   Intervals   for each chunk the begins of its states, in order of time; a binary search finds those in
 *               view
 *   Shares      the share of each state in groups of 16, 64, 256, ... chunks, for 2048 time slots over the
 *               whole trace: for views with more chunks than pixels. Closer views count the intervals
 *               themselves
 *   Spans       the spans of one stream, with running sums that give the busy time between any two times
 *   Steps       a number that changes at certain times, with the least and the largest of every 64 values
 */
const STATES = ['absent', 'host', 'params', 'gradients', 'pinned', 'up', 'down', 'update', 'unknown', 'state',
    'activations'];
const ABSENT = 0, ON_HOST = 1, PARAMS = 2, GRADIENTS = 3, PINNED = 4, UP = 5, DOWN = 6, UPDATE = 7, UNKNOWN = 8,
    OPTIMIZER = 9, ACTIVATIONS = 10;
const STATE_COUNT = STATES.length;
const STATE_TEXTS = ['absent', 'on the host', 'parameters on the device', 'gradients on the device', 'pinned: in use',
    'moving up to the device', 'moving down to the host', 'being updated', 'not in the trace',
    'optimizer state on the device', 'activations on the device'];
const STATE_LEGEND = [[UPDATE, 'being updated'], [DOWN, 'moving down'], [UP, 'moving up'], [PINNED, 'pinned'],
    [GRADIENTS, 'gradients'], [PARAMS, 'params, state on device'], [ACTIVATIONS, 'activations'],
    [ON_HOST, 'on the host'], [ABSENT, 'absent']];
/* The state to show for a chunk of each space that is on the device, is not pinned and holds no gradients. */
const ON_DEVICE = [PARAMS, OPTIMIZER, ACTIVATIONS];

/* Index of the last value in [from, to) that is at most `value`; `from` - 1: there is none. The values are
 * sorted. */
const lastAtMost = (values, value, from, to) => {
    while (from < to) {
        const middle = (from + to) >> 1;
        if (values[middle] <= value)
            from = middle + 1;
        else
            to = middle;
    }
    return from - 1;
};

/* ---- a chunk's place, packed into one number by trace_html.c ---- */

const place = {
    device: (word) => word % 5, // 0 none, 1 coming, 2 there, 3 evicting, 4 stale
    host: (word) => Math.floor(word / 5) % 3, // 0 none, 1 coming, 2 there
    content: (word) => Math.floor(word / 15) % 6, // 0 nothing, 1 params, 2 gradients, 3 both, 4 state, 5 activations
    // bits: 1 pinned, 2 pending, 4 has a device slot, 8 has a host slot, 16 snapshot
    flags: (word) => Math.floor(word / 90),
};

/* A table of the state to show for every packed place of a chunk of this space, while nothing runs on the
 * chunk or while a copy to the device (1), a copy to the host (2) or an update (4) runs. A chunk is shown as
 * moving while its copy runs; while the copy waits in its queue, the chunk is shown where it was. */
const stateTable = (space) => {
    const table = new Uint8Array(90 * 32 * 8);
    for (let word = 0; word < 90 * 32; word++)
        for (let busy = 0; busy < 8; busy++)
            table[word * 8 + busy] = stateOf(word, busy, space);
    return table;
};

const stateOf = (word, busy, space) => {
    const device = place.device(word), content = place.content(word);
    if (busy & 4)
        return UPDATE;
    if (busy & 1)
        return UP;
    if (busy & 2)
        return DOWN;
    if (device === 2 || device === 3) // a chunk that will be evicted is on the device until its copy begins
        return place.flags(word) & 1 ? PINNED : content === 2 || content === 3 ? GRADIENTS : ON_DEVICE[space];
    return place.host(word) === 2 ? ON_HOST : ABSENT;
};

/* ---- intervals ---- */

/* Groups events by chunk: order[first[c]] to order[first[c + 1] - 1] are the indices of the events of chunk
 * c. */
const byChunk = (column, count, chunks) => {
    const first = new Uint32Array(chunks + 1), order = new Uint32Array(count);
    for (let i = 0; i < count; i++)
        if (column[i] < chunks)
            first[column[i] + 1]++;
    for (let c = 0; c < chunks; c++)
        first[c + 1] += first[c];
    const next = first.slice();
    for (let i = 0; i < count; i++)
        if (column[i] < chunks)
            order[next[column[i]]++] = i;
    return { first, order };
};

/* The events that may change a chunk's state: [kind, events grouped by chunk, the bit that is set during a
 * span]. */
const sourcesOf = (trace) => {
    const { copy, zero, update, restore } = trace.kinds, chunks = trace.chunks.length, sources = [];
    const add = (kind, column, bit) => sources.push({ kind, bit, ...byChunk(kind[column], kind.count, chunks) });
    add(copy, 'chunk', 0);
    add(zero, 'chunk', 1);
    for (const kind of [update, restore])
        for (const column of ['chunk', 'state_chunk'])
            add(kind, column, 4);
    return sources;
};

class Intervals {
    constructor(trace) {
        const { chunk: places } = trace.kinds, chunks = trace.chunks.length;
        const sources = sourcesOf(trace), own = byChunk(places.chunk, places.count, chunks);
        const room = places.count + 2 * sources.reduce((sum, source) => sum + source.order.length, 0) +
            chunks * (2 + 2 * trace.gaps.length);
        this.trace = trace;
        this.first = new Uint32Array(chunks + 1);
        this.begin = new Float64Array(room);
        this.state = new Uint8Array(room);
        this.tables = ON_DEVICE.map((_, space) => stateTable(space));
        this.upward = enumIndex(trace, 'to', 'device');
        this.count = 0;
        for (let chunk = 0; chunk < chunks; chunk++)
            this.sweep(chunk, own, places, sources);
    }

    /* Collects the events of one chunk. A code of 16 or more is a place, plus 16. In smaller codes bits 0 to
     * 2 are those of a span, and bit 3 is set at its end; 0 begins a gap. */
    sweep(chunk, own, places, sources) {
        const times = [], codes = [], { gaps } = this.trace;
        for (let i = own.first[chunk]; i < own.first[chunk + 1]; i++) {
            times.push(places.begin[own.order[i]]);
            codes.push(16 + places.place[own.order[i]]);
        }
        let placed = times.length;
        for (const { kind, bit, first, order } of sources)
            for (let i = first[chunk]; i < first[chunk + 1]; i++) {
                const event = order[i], what = bit || (kind.to[event] === this.upward ? 1 : 2);
                times.push(kind.begin[event], kind.end[event]);
                codes.push(what, 8 + what);
            }
        for (const [begin] of gaps) {
            times.push(begin);
            codes.push(0);
        }
        this.first[chunk] = this.count;
        this.play(times, codes, placed, this.tables[this.trace.chunks[chunk].space]);
        this.first[chunk + 1] = this.count;
    }

    play(times, codes, placed, table) {
        const order = Uint32Array.from(times, (_, i) => i);
        if (placed < times.length)
            order.sort((a, b) => times[a] - times[b] || a - b);
        const running = [0, 0, 0, 0, 0];
        let word = 0, unknown = false, last = ABSENT, gap = 0;
        this.put(0, ABSENT, true);
        const { gaps } = this.trace;
        for (let i = 0; i < order.length; i++) {
            const time = times[order[i]], code = codes[order[i]];
            while (unknown && gap < gaps.length && time >= gaps[gap][1])
                unknown = false, word = 0, gap++, running.fill(0), last = this.put(gaps[gap - 1][1], ABSENT);
            if (code >= 16)
                word = code - 16;
            else if (code === 0)
                unknown = true;
            else
                running[code & 7] = Math.max(0, running[code & 7] + (code & 8 ? -1 : 1));
            const busy = (running[1] > 0) | (running[2] > 0) << 1 | (running[4] > 0) << 2;
            const state = unknown ? UNKNOWN : table[word * 8 + busy];
            if (state !== last)
                last = this.put(time, state);
        }
        if (unknown && gap < gaps.length)
            this.put(gaps[gap][1], ABSENT);
    }

    put(time, state, isFirst = false) {
        const at = this.count;
        if (!isFirst && this.begin[at - 1] === time) // replaces a state that lasted no time
            this.state[at - 1] = state;
        else {
            this.begin[at] = time;
            this.state[at] = state;
            this.count++;
        }
        return state;
    }

    at(chunk, time) {
        return Math.max(lastAtMost(this.begin, time, this.first[chunk], this.first[chunk + 1]), this.first[chunk]);
    }

    end(interval, chunk) {
        return interval + 1 < this.first[chunk + 1] ? this.begin[interval + 1] : this.trace.end;
    }

    /* Nanoseconds that the chunk spends in each state within [from, to). */
    spent(chunk, from, to) {
        const spent = new Float64Array(STATE_COUNT);
        for (let i = this.at(chunk, from); i < this.first[chunk + 1] && this.begin[i] < to; i++)
            spent[this.state[i]] += Math.max(0, Math.min(to, this.end(i, chunk)) - Math.max(from, this.begin[i]));
        return spent;
    }
}

/* ---- shares of states among many chunks ---- */

/* Adds to `shares`, [state][slot], the time that chunks [first, last) spend in each state, in each of `slots`
 * equal parts of [from, to), as a fraction of a slot. An interval takes the same time however many slots it
 * covers: its whole slots are only marked at both ends (`edges`), and sharesClose sums up the marks. */
const sharesAdd = (intervals, first, last, from, to, slots, shares, edges) => {
    const { begin, state } = intervals, scale = slots / (to - from), end = intervals.trace.end;
    for (let chunk = first; chunk < last; chunk++) {
        const past = intervals.first[chunk + 1];
        let i = intervals.at(chunk, from);
        let a = Math.max(0, (begin[i] - from) * scale);
        while (i < past && a < slots) {
            const b = Math.min(slots, ((i + 1 < past ? begin[i + 1] : end) - from) * scale);
            const base = state[i] * (slots + 1), p = a | 0, q = b | 0;
            if (p === q)
                shares[base + p] += b - a;
            else {
                shares[base + p] += p + 1 - a;
                if (q < slots)
                    shares[base + q] += b - q;
                edges[base + p + 1]++;
                edges[base + q]--;
            }
            a = Math.max(b, 0);
            i++;
        }
    }
};

const sharesClose = (slots, shares, edges) => {
    for (let state = 0; state < STATE_COUNT; state++)
        for (let slot = 0, base = state * (slots + 1), open = 0; slot < slots; slot++) {
            open += edges[base + slot];
            shares[base + slot] += open;
        }
};

const SHARE_SLOTS = 2048;
const SHARE_GROUP = 16;

class Shares {
    /* `spaces` has [first chunk, last chunk) for each space; no group has chunks of two spaces. */
    constructor(intervals, spaces) {
        this.intervals = intervals;
        this.levels = spaces.map(([first, last]) => {
            const levels = [this.groupsOf(first, last)];
            while (levels.at(-1).length > 4)
                levels.push(this.wider(levels.at(-1)));
            return levels;
        });
    }

    groupsOf(first, last) {
        const groups = [], words = STATE_COUNT * (SHARE_SLOTS + 1), end = this.intervals.trace.end;
        const shares = new Float32Array(words), edges = new Int32Array(words);
        for (let chunk = first; chunk < last; chunk += SHARE_GROUP) {
            const past = Math.min(last, chunk + SHARE_GROUP);
            shares.fill(0);
            edges.fill(0);
            sharesAdd(this.intervals, chunk, past, 0, end, SHARE_SLOTS, shares, edges);
            sharesClose(SHARE_SLOTS, shares, edges);
            groups.push(this.bytesOf(shares, 255 / (past - chunk)));
        }
        return groups;
    }

    bytesOf(shares, scale) {
        const bytes = new Uint8Array(shares.length);
        for (let i = 0; i < bytes.length; i++)
            bytes[i] = shares[i] * scale + 0.5;
        return bytes;
    }

    wider(groups) {
        const wide = [], sums = new Float32Array(groups[0].length);
        for (let i = 0; i < groups.length; i += 4) {
            const past = Math.min(groups.length, i + 4);
            sums.fill(0);
            for (let j = i; j < past; j++)
                for (let at = 0, group = groups[j]; at < sums.length; at++)
                    sums[at] += group[at];
            wide.push(this.bytesOf(sums, 1 / (past - i)));
        }
        return wide;
    }

    /* Adds to `into`, [state][slot], the shares of chunks [first, last) of a space in `slots` equal parts of
     * [from, to). Returns the sum over all states of a slot. Counts each group as a whole or not at all, by
     * rounding. */
    read(space, first, last, from, to, slots, into) {
        const levels = this.levels[space], end = this.intervals.trace.end;
        let level = 0;
        while (level + 1 < levels.length && SHARE_GROUP * 4 ** (level + 1) * 2 <= last - first)
            level++;
        const size = SHARE_GROUP * 4 ** level, a = Math.floor(first / size);
        const b = Math.min(levels[level].length, Math.max(a + 1, Math.round(last / size)));
        const scale = (to - from) / end * SHARE_SLOTS / slots, shift = from / end * SHARE_SLOTS;
        if (this.slots?.length !== slots)
            this.slots = new Uint16Array(slots);
        for (let slot = 0; slot < slots; slot++)
            this.slots[slot] = Math.max(0, Math.min(SHARE_SLOTS - 1, shift + (slot + 0.5) * scale));
        for (let group = a; group < b; group++)
            for (let state = 1; state < STATE_COUNT; state++) // the absent chunks are the rest
                this.add(levels[level][group], state, into, slots);
        return 255 * (b - a);
    }

    add(shares, state, into, slots) {
        const base = state * (SHARE_SLOTS + 1), to = state * (slots + 1), { slots: from } = this;
        for (let slot = 0; slot < slots; slot++)
            into[to + slot] += shares[base + from[slot]];
    }
}

/* ---- spans of a stream ---- */

class Spans {
    /* Each of `parts` is [kind, indices or null for all events, tag]. `weight` gives the amount that a span
     * adds to the sum from its begin to its end; by default its time. */
    constructor(parts, weight = null) {
        const all = [];
        for (const [kind, indices, tag] of parts) {
            const count = indices ? indices.length : kind.count;
            for (let i = 0; i < count; i++)
                all.push([kind, indices ? indices[i] : i, tag]);
        }
        const ordered = parts.length === 1 ? all : all.sort((a, b) => a[0].begin[a[1]] - b[0].begin[b[1]]);
        const count = this.count = ordered.length;
        this.begin = new Float64Array(count);
        this.end = new Float64Array(count);
        this.tag = new Uint8Array(count);
        this.event = new Uint32Array(count);
        this.kinds = parts.map(([kind]) => kind);
        this.part = new Uint8Array(count);
        this.sum = new Float64Array(count + 1);
        this.longest = 0;
        ordered.forEach(([kind, event, tag], i) => {
            this.begin[i] = kind.begin[event];
            this.end[i] = kind.end[event];
            this.tag[i] = tag;
            this.event[i] = event;
            this.part[i] = this.kinds.indexOf(kind);
            this.sum[i + 1] = this.sum[i] + (weight ? weight(kind, event) : this.end[i] - this.begin[i]);
            this.longest = Math.max(this.longest, this.end[i] - this.begin[i]);
        });
    }

    kind(i) {
        return this.kinds[this.part[i]];
    }

    /* The sum over all spans up to `time`. */
    until(time) {
        const i = lastAtMost(this.begin, time, 0, this.count);
        if (i < 0)
            return 0;
        const length = this.end[i] - this.begin[i];
        return this.sum[i] + (this.sum[i + 1] - this.sum[i]) * (length > 0
            ? Math.min(1, (time - this.begin[i]) / length) : 1);
    }

    /* The range [first, last) of spans that may overlap [from, to). */
    range(from, to) {
        let first = lastAtMost(this.begin, from, 0, this.count);
        for (let back = 0; first > 0 && back < 16 && this.end[first - 1] > from; back++)
            first--;
        return [Math.max(0, first), lastAtMost(this.begin, to, 0, this.count) + 1];
    }

    at(time, slack = 0) {
        const last = lastAtMost(this.begin, time + slack, 0, this.count);
        for (let i = last; i >= 0 && i > last - 16; i--)
            if (this.end[i] + slack >= time)
                return i;
        return NONE;
    }
}

/* ---- a number over time ---- */

class Steps {
    constructor(times, values) {
        this.times = times;
        this.values = values;
        this.most = values.reduce((a, b) => Math.max(a, b), 0);
        const blocks = Math.ceil(values.length / 64);
        this.low = new Float64Array(blocks).fill(Infinity);
        this.high = new Float64Array(blocks).fill(-Infinity);
        values.forEach((value, i) => {
            this.low[i >> 6] = Math.min(this.low[i >> 6], value);
            this.high[i >> 6] = Math.max(this.high[i >> 6], value);
        });
    }

    at(time) {
        const i = lastAtMost(this.times, time, 0, this.times.length);
        return i < 0 ? 0 : this.values[i];
    }

    /* Writes the least and the largest value in each of `slots` equal parts of [from, to) to low and high. */
    range(from, to, slots, low, high) {
        const { times, values } = this, wide = (to - from) / slots;
        let i = lastAtMost(times, from, 0, times.length), value = i < 0 ? 0 : values[i++];
        i = Math.max(0, i);
        for (let slot = 0; slot < slots; slot++) {
            const end = from + (slot + 1) * wide;
            let least = value, most = value;
            while (i < times.length && times[i] < end) {
                const whole = (i & 63) === 0 && i + 63 < times.length && times[i + 63] < end;
                least = Math.min(least, whole ? this.low[i >> 6] : values[i]);
                most = Math.max(most, whole ? this.high[i >> 6] : values[i]);
                i += whole ? 64 : 1;
                value = values[i - 1];
            }
            low[slot] = least;
            high[slot] = most;
        }
    }
}

/* The number of slots in use on a tier over time: a chunk uses one if its place has the flag (4: device, 8:
 * host). */
const slotsTaken = (trace, flag) => {
    const { chunk: places } = trace.kinds, has = new Uint8Array(trace.chunks.length);
    const times = [0], values = [0];
    let taken = 0, gap = 0;
    for (let i = 0; i < places.count; i++) {
        const time = places.begin[i];
        if (gap < trace.gaps.length && time >= trace.gaps[gap][1]) {
            times.push(trace.gaps[gap][0], trace.gaps[gap][1]);
            values.push(0, 0);
            has.fill(0);
            taken = 0;
            gap++;
        }
        const now = place.flags(places.place[i]) & flag ? 1 : 0, before = has[places.chunk[i]];
        if (now === before)
            continue;
        has[places.chunk[i]] = now;
        taken += now - before;
        if (times.at(-1) === time)
            values[values.length - 1] = taken;
        else {
            times.push(time);
            values.push(taken);
        }
    }
    return new Steps(Float64Array.from(times), Float64Array.from(values));
};
