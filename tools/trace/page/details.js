/* The side panel: it describes the trace, a chunk or a stall in HTML. All texts from the trace go through
 * `plain`, which escapes them. A click on a row with data-go selects or shows its target: stall:N, chunk:N,
 * view:FROM:TO. */
const CAUSE_TEXTS = {
    link: 'The copy of what the op needs was still under way.',
    slot: 'No device slot was free for what the op needs: one was being emptied.',
    update: 'What the op needs was waiting for its optimizer step or restore, or was in it.',
    norm: 'The step before was not over until its gradient norm was on the host.',
    map: 'What the op needs was being mapped, or a slot for it unmapped.',
    peer: 'The ranks were adding their gradients, or other ranks had not come to that yet.',
    caller: 'Nothing held the op up: the caller was late to enqueue its next kernel.',
};
const HISTORY_MOST = 200;
const STALLS_SHOWN = 5;

const plain = (text) =>
    String(text).replace(/[&<>"]/g, (letter) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' }[letter]));
const cell = (text, isNumber = false) => `<td${isNumber ? ' class="number"' : ''}>${plain(text)}</td>`;
const rowOf = (go, ...cells) => `<tr${go ? ` data-go="${go}" tabindex="0"` : ''}>${cells.join('')}</tr>`;

class Details {
    constructor(model, intervals) {
        this.model = model;
        this.trace = model.trace;
        this.intervals = intervals;
    }

    /* ---- the trace ---- */

    overview(view, steps) {
        const { trace } = this, { trace: made } = trace;
        const facts = [['device', `${made.device}, ${made.dtype}`],
            ['chunks', `${trace.chunks.length} of ${bytesText(made.chunk_bytes)}`],
            ['device', `${made.device_slots} slots in ${bytesText(made.device_memory_bytes)}`],
            ['host', `${made.host_slots} slots in ${bytesText(made.host_memory_bytes)}`],
            ['machine', trace.machine?.name || '?'], ['tidepool', made.tidepool]];
        if (made.ranks > 1)
            facts.push(['rank', `${made.rank} of ${made.ranks}`]);
        return `${this.warnings()}<h2>Steps</h2>${this.steps(steps)}<h2>Longest stalls in view</h2>${this.longest(view)}` +
            `${this.pathShares(view)}<h2>Run</h2><table>` +
            facts.map(([name, text]) => `<tr><th>${name}</th>${cell(text)}</tr>`).join('') + '</table>' +
            `<h3>Options</h3><table>${trace.settings.map(([name, value]) => `<tr><th>${plain(name)}</th>${cell(value)}</tr>`).join('')}</table>`;
    }

    warnings() {
        const { trace } = this, said = [];
        if (trace.dropped > 0)
            said.push(`${trace.dropped} events were lost while the trace was written: gaps look like nothing happened.`);
        if (trace.is_cut)
            said.push('The trace breaks off: its run was killed.');
        return said.map((text) => `<p class="mark">${text}</p>`).join('');
    }

    steps(steps) {
        const rows = steps.map(({ step, begin, end, line }) =>
            rowOf(`view:${begin}:${end}`, cell(step), cell(durationText(end - begin), true),
            cell(line ? durationText(line.stall_seconds * 1e9) : '', true),
                cell(line ? bytesText(line.h2d_bytes) : '', true),
            cell(line ? bytesText(line.d2h_bytes) : '', true)));
        return '<table><tr><th>step</th><th class="number">time</th><th class="number">stalled</th><th class="number">up</th>' +
            `<th class="number">down</th></tr>${rows.join('')}</table>`;
    }

    longest({ from, to }) {
        const { stall } = this.trace.kinds, { begin, end } = stall, most = [];
        let count = 0, sum = 0;
        for (let i = 0; i < stall.count; i++) {
            if (end[i] <= from || begin[i] >= to)
                continue;
            count++;
            sum += Math.min(to, end[i]) - Math.max(from, begin[i]);
            const at = most.findIndex((other) => end[i] - begin[i] > end[other] - begin[other]);
            if (at >= 0 || most.length < STALLS_SHOWN) {
                most.splice(at < 0 ? most.length : at, 0, i);
                most.length = Math.min(most.length, STALLS_SHOWN);
            }
        }
        if (!count)
            return `<p class="soft">${this.computes(from, to) ? 'None: compute never stood still here.'
                : 'The trace tells of no op here.'}</p>`;
        const rows = most.map((i) => rowOf(`stall:${i}`, cell(enumText(this.trace, 'cause', stall.cause[i])),
            cell(opName(this.trace, stall.op[i])), cell(durationText(end[i] - begin[i]), true)));
        return `<p class="soft">${count} stalls, ${durationText(sum)} in all</p><table>${rows.join('')}</table>`;
    }

    computes(from, to) {
        const { ops } = this.model, [first, last] = ops.range(from, to);
        for (let i = first; i < last; i++)
            if (ops.end[i] > from && ops.begin[i] < to)
                return true;
        return false;
    }

    pathShares({ from, to }) {
        const { path } = this.model, middle = (from + to) / 2;
        const pass = this.trace.passes.find(({ begin, end }) => begin <= middle && middle < end);
        if (!pass || !path.isKnown(pass))
            return '';
        const { shares } = path.of(pass), whole = pass.end - pass.begin;
        const rows = Object.entries(shares).sort((a, b) => b[1] - a[1]).map(([lane, time]) =>
            rowOf('', cell(LANE_TEXTS[lane]), cell(durationText(time), true), cell(percentText(time / whole), true)));
        return `<h2>Critical path of ${pass.training ? `step ${pass.step}` : 'the evaluation'}</h2><table>${rows.join('')}</table>`;
    }

    /* ---- a chunk ---- */

    chunk(chunk, view, colors) {
        const { trace } = this, { bytes, of, space } = trace.chunks[chunk], names = chunkNames(trace, chunk);
        const spent = this.intervals.spent(chunk, view.from, view.to), whole = spent.reduce((a, b) => a + b, 0) || 1;
        const order = Array.from(spent.keys()).filter((state) => spent[state] > 0).sort((a, b) => spent[b] - spent[a]);
        const shares = order.map((state) =>
            `<tr><td><i style="background:${colors.css[state]}"></i>${STATE_TEXTS[state]}</td>` +
            `${cell(durationText(spent[state]), true)}${cell(percentText(spent[state] / whole), true)}</tr>`);
        const holds = names.slice(0, 40).map(plain).join('<br>')
            + (names.length > 40 ? `<br>and ${names.length - 40} more` : '');
        return `<h2>${chunkTitle(trace, chunk)}</h2><p class="soft">${bytesText(bytes)} in use` +
            `${space === 1 && of.length ? `; state of PARAM ${of.slice(0, 8).join(', ')}${of.length > 8 ? ', ...' : ''}` : ''}</p>` +
            `<h3>Holds</h3><p>${holds || 'nothing of the model'}</p><h3>In view</h3><table>${shares.join('')}</table>` +
            `<h3>History in view</h3>${this.history(chunk, view)}`;
    }

    history(chunk, { from, to }) {
        const { trace } = this, found = [], span = to - from;
        const look = (name, column, text, go) => {
            const kind = trace.kinds[name], { begin } = kind, end = kind.end ?? begin, its = kind[column];
            for (let i = 0; i < kind.count; i++)
                if (its[i] === chunk && end[i] >= from && begin[i] <= to)
                    found.push([begin[i], end[i], text(kind, i), go ? `${go}:${i}` : `view:${begin[i]}:${end[i]}`]);
        };
        const text = (column) => (kind, i) => enumText(trace, column, kind[column][i]);
        look('move', 'chunk', (kind, i) =>
            `${text('move')(kind, i)} (${text('reason')(kind, i)}), slot ${kind.device_slot[i]}`);
        look('copy', 'chunk', (kind, i) => `copy to the ${text('to')(kind, i)}, ${bytesText(kind.bytes[i])}`);
        look('map', 'chunk', (kind, i) => `${text('map')(kind, i)}, slot ${kind.device_slot[i]}`);
        look('zero', 'chunk', () => 'zeroed');
        look('access', 'chunk', () => 'values read or set');
        for (const name of ['update', 'restore'])
            for (const column of ['chunk', 'state_chunk'])
                look(name, column, (kind, i) => `${name} on the ${text('tier')(kind, i)}, piece ${kind.piece[i]}`);
        look('wait', 'chunk', (kind, i) => `${opName(trace, kind.op[i])} lacked it: ${text('for')(kind, i)}`);
        look('stall', 'chunk', (kind, i) => `stall: ${text('cause')(kind, i)}, ${opName(trace, kind.op[i])}`, 'stall');
        if (!found.length)
            return '<p class="soft">Nothing happened to it here.</p>';
        found.sort((a, b) => a[0] - b[0]);
        const rows = found.slice(0, HISTORY_MOST).map(([begin, end, what, go]) =>
            rowOf(go, cell(momentText(begin, span)), cell(what),
            cell(end > begin ? durationText(end - begin) : '', true)));
        const more = found.length > HISTORY_MOST
            ? `<p class="soft">and ${found.length - HISTORY_MOST} more: zoom in</p>` : '';
        return `<table>${rows.join('')}</table>${more}`;
    }

    /* ---- a stall ---- */

    stall(stall, view) {
        const { trace } = this, { stall: stalls } = trace.kinds, cause = enumText(trace, 'cause', stalls.cause[stall]);
        const begin = stalls.begin[stall], end = stalls.end[stall], chunk = stalls.chunk[stall],
            span = view.to - view.from;
        const names = chunk === NONE ? [] : chunkNames(trace, chunk);
        const facts = [['when',
            `${momentText(begin, span)}, ${stalls.step[stall] ? `step ${stalls.step[stall]}` : 'evaluation'}`],
            ['op', opName(trace, stalls.op[stall])]];
        if (stalls.slice[stall] !== NONE)
            facts.push(['slice', stalls.slice[stall]]);
        facts.push(['plan', stalls.predicted[stall] ? 'knew that this op would come'
            : 'did not know that this op would come']);
        const waited = chunk === NONE ? ''
            : `<h3>Waited for</h3><table>${rowOf(`chunk:${chunk}`, cell(chunkTitle(trace, chunk)),
            cell(names.slice(0, 3).join(', ') + (names.length > 3 ? `, ${names.length - 3} more` : '')))}</table>`;
        return `<h2><span class="mark">Stall: ${cause}</span>, ${durationText(end - begin)}</h2><p>${CAUSE_TEXTS[cause] ?? ''}</p><table>` +
            `${facts.map(([name, text]) => `<tr><th>${name}</th>${cell(text)}</tr>`).join('')}</table>${waited}` +
            `<h3>Ended by</h3>${this.ending(stall, span)}`;
    }

    spanText(lane, i) {
        const { trace, model: { streams } } = this, kind = streams[lane].kind(i), event = streams[lane].event[i];
        const chunk = kind.chunk === undefined ? '' : ` of ${chunkTitle(trace, kind.chunk[event])}`;
        return kind === trace.kinds.move ? `${enumText(trace, 'move', kind.move[event])}${chunk}`
            : kind === trace.kinds.map ? `${enumText(trace, 'map', kind.map[event])}${chunk}`
            : kind === trace.kinds.zero ? `zeroing${chunk}` :
            kind === trace.kinds.access ? `access${chunk}` :
            { compute: 'op', in: 'copy to the device', out: 'copy to the host', update: 'update on the device',
                host: 'update on the host', caller: 'caller' }[lane] + chunk;
    }

    /* Describes how the stall ended: the spans of the command that ended it, and the spans that each of those
     * waited for. */
    ending(stall, span) {
        const { trace, model: { streams, path } } = this, id = trace.kinds.stall.ended_by[stall];
        if (id === NONE)
            return '<p class="soft">no command: compute just went on</p>';
        const spans = [...path.commands.get(id) ?? []], parts = spans.filter(([lane]) => lane !== 'move');
        const away = ([lane, i]) => Math.abs(streams[lane].end[i] - trace.kinds.stall.end[stall]);
        let before = parts.length ? parts.reduce((a, b) => (away(a) < away(b) ? a : b)) : null;
        for (let back = 0; before && back < 4; back++) {
            before = path.before(...before);
            if (before && !spans.some(([lane, i]) => lane === before[0] && i === before[1]))
                spans.push(before);
        }
        spans.sort((a, b) => streams[b[0]].end[b[1]] - streams[a[0]].end[a[1]]);
        const rows = spans.map(([lane, i]) => rowOf(`view:${streams[lane].begin[i]}:${streams[lane].end[i]}`,
            cell(momentText(streams[lane].begin[i], span)), cell(this.spanText(lane, i)),
            cell(durationText(streams[lane].end[i] - streams[lane].begin[i]), true)));
        return rows.length
            ? `<p class="soft">the last first; below what that waited for</p><table>${rows.join('')}</table>` :
            `<p class="soft">command ${id}, which is not in the trace</p>`;
    }
}
