/* Reads the trace that `tidepool trace html` has put into the page: tables as JSON, and events in columns,
 * one kind of event after the other. A column is a sequence of numbers in groups of 7 bits, the lowest first.
 * Its encoding is one of:
 *
 *   delta   the difference from the number before, for the first one from origin_ns; events of a kind are
 *           sorted by begin
 *   length  the length of a span, whose end is its begin plus this
 *   near    the difference from the number before, with its sign in the lowest bit
 *   null    0 for none, else the number plus 1
 *   enum    the index of a text
 *   count   the number itself
 *
 * Times are doubles here: nanoseconds since the page's first event.
 */
const SPACES = ['PARAM', 'STATE', 'ACTIVATION'];
const NONE = -1;

const bytesOf = (text) => {
    if (Uint8Array.fromBase64)
        return Uint8Array.fromBase64(text);
    const characters = atob(text), bytes = new Uint8Array(characters.length);
    for (let i = 0; i < bytes.length; i++)
        bytes[i] = characters.charCodeAt(i);
    return bytes;
};

class ColumnReader {
    constructor(bytes) {
        this.bytes = bytes;
        this.at = 0;
    }

    raw(count) {
        const { bytes } = this, values = new Float64Array(count);
        let at = this.at;
        for (let i = 0; i < count; i++) {
            let byte = bytes[at++], value = byte & 127, scale = 128;
            while (byte > 127) {
                byte = bytes[at++];
                value += (byte & 127) * scale;
                scale *= 128;
            }
            values[i] = value;
        }
        this.at = at;
        return values;
    }

    column(count, how, begin) {
        const values = this.raw(count);
        if (how === 'delta')
            for (let i = 1; i < count; i++)
                values[i] += values[i - 1];
        else if (how === 'length')
            for (let i = 0; i < count; i++)
                values[i] += begin[i];
        else if (how === 'near')
            for (let i = 0, last = 0; i < count; i++) {
                last += values[i] % 2 ? -(values[i] + 1) / 2 : values[i] / 2;
                values[i] = last;
            }
        else if (how === 'null')
            for (let i = 0; i < count; i++)
                values[i] -= 1;
        return values;
    }
}

const traceRead = () => {
    const tables = JSON.parse(document.getElementById('tables').textContent);
    const element = document.getElementById('events');
    const reader = new ColumnReader(bytesOf(element.textContent));
    element.textContent = ''; // frees the text, which is large
    const trace = { ...tables, kinds: {} };
    trace.end = 0;
    for (const { name, count, columns } of tables.kinds) {
        const kind = { name, count };
        for (const [column, how] of columns)
            kind[how === 'length' ? 'end' : column] = reader.column(count, how, kind.begin);
        trace.kinds[name] = kind;
        for (const time of kind.end ?? kind.begin ?? [])
            trace.end = Math.max(trace.end, time);
    }
    trace.end = Math.max(trace.end, 1);
    trace.chunks = tables.chunks.map(([space, index, bytes, params, of], chunk) =>
        ({ chunk, space, index, bytes, params, of }));
    trace.passes = passesOf(trace);
    return trace;
};

/* Returns the passes (steps and evaluations) in order of time, with their begins and ends. A pass ends where
 * the next begins. If the trace lacks the passes after it, it has its own end, and a gap follows. */
const passesOf = (trace) => {
    const { pass, 'pass end': ended } = trace.kinds, passes = [];
    const ends = new Map(Array.from(ended.pass, (number, i) => [number, ended.begin[i]]));
    for (let i = 0; i < pass.count; i++) {
        const number = pass.pass[i], next = i + 1 < pass.count;
        const follows = next && pass.pass[i + 1] === number + 1;
        const own = ends.get(number) ?? (next ? pass.begin[i + 1] : trace.end);
        passes.push({ pass: number, step: pass.number[i], training: pass.training[i] === 1, begin: pass.begin[i],
            end: follows ? pass.begin[i + 1] : next ? own : trace.end, gap: next && !follows });
    }
    return passes;
};

/* Returns the gaps between the trace's segments, as [begin, end) each, and ends the passes before them there.
 * A gap ends at the next segment's snapshot. It begins where the longest time without events before that
 * begins, because events of the next segment may begin before its snapshot. */
const gapsOf = (trace) => {
    const { snapshots } = trace, gaps = [];
    trace.passes.forEach((pass, i) => {
        if (!pass.gap)
            return;
        const next = trace.passes[i + 1].begin, to = snapshots.find((at) => at > pass.begin && at <= next) ?? next;
        pass.end = silenceBefore(trace, pass.begin, to);
        if (pass.end < to)
            gaps.push([pass.end, to]);
    });
    return gaps;
};

const silenceBefore = (trace, from, to) => {
    const spans = [[to, to]];
    for (const { count, begin, end = begin } of Object.values(trace.kinds))
        for (let i = 0; i < count && begin[i] < to; i++)
            if (begin[i] >= from && end[i] < to)
                spans.push([begin[i], end[i]]);
    spans.sort((a, b) => a[0] - b[0]);
    let last = from, silence = from, longest = 0;
    for (const [begin, end] of spans) {
        if (begin - last > longest) {
            longest = begin - last;
            silence = last;
        }
        last = Math.max(last, end);
    }
    return silence;
};

const paramNames = (trace, chunk) => {
    const { params, of, space } = trace.chunks[chunk];
    const own = space === 1 ? of.flatMap((one) => trace.chunks[one]?.params ?? []) : params;
    return [...new Set(own)].map((param) => trace.params[param]?.[0] ?? '?');
};

/* The names of an activation chunk are those of the activations of which a part lies in it. */
const activationNames = (trace, chunk) => {
    const { index } = trace.chunks[chunk], size = trace.trace.chunk_bytes;
    return trace.activations.filter(([, parts, bytes, offset]) => offset < (index + 1) * size && offset
        + parts * bytes > index * size)
        .map(([name]) => name);
};

const chunkNames = (trace, chunk) => (trace.chunks[chunk].space === 2 ? activationNames : paramNames)(trace, chunk);
const chunkTitle = (trace, chunk) => `${SPACES[trace.chunks[chunk].space]} ${trace.chunks[chunk].index}`;
const opName = (trace, op) => (op === NONE ? 'between ops' : trace.ops[op]?.[0] ?? `op ${op}`);
const enumIndex = (trace, column, text) => trace.enums[column].indexOf(text);
const enumText = (trace, column, value) => trace.enums[column][value] ?? '?';

/* ---- numbers as text ---- */

const durationText = (ns) => {
    const size = Math.abs(ns);
    const [scale, unit] = size >= 1e9 ? [1e9, 's'] : size >= 1e6 ? [1e6, 'ms'] : size >= 1e3 ? [1e3, 'µs'] : [1, 'ns'];
    return `${+(ns / scale).toPrecision(3)} ${unit}`;
};

/* A time with enough digits to tell a thousandth of the visible span. */
const momentText = (ns, span) => {
    const [scale, unit] = span >= 2e9 ? [1e9, 's'] : span >= 2e6 ? [1e6, 'ms'] : [1e3, 'µs'];
    const digits = Math.min(6, Math.max(0, Math.ceil(Math.log10(scale / (span / 1000)))));
    return `${(ns / scale).toFixed(digits)} ${unit}`;
};

const bytesText = (bytes) => {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let unit = 0;
    while (bytes >= 1024 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    return `${+bytes.toPrecision(bytes >= 1000 ? 4 : 3)} ${units[unit]}`;
};

/* Text of a rate in bytes a nanosecond. */
const rateText = (rate) => {
    if (rate < 1e-9)
        return '0';
    const [scale, unit] = rate >= 0.1 ? [1, 'GB/s'] : rate >= 1e-4 ? [1e3, 'MB/s'] : [1e6, 'kB/s'];
    return `${+(rate * scale).toPrecision(2)} ${unit}`;
};

const percentText = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;
