/* The critical path of a step: divides the step's time, from its end back to its begin, among the operations
 * that determined its length.
 *
 *   1. While compute was busy, the time belongs to the op.
 *   2. While compute stood still, the time belongs to the command that ended the stall. If that command began
 *      when another one ended (in its own stream, or of the same move, chunk or slot), the time before
 *      belongs to the other one, and so on.
 *   3. If no other command ended when this one began, this one had just been enqueued: continue with 1 at
 *      that time. Time for which no cause is known is idle.
 */
const LANES = ['compute', 'in', 'out', 'update', 'host', 'map', 'caller'];
const LANE_TEXTS = { compute: 'compute', in: 'to the device', out: 'to the host', update: 'update on device',
    host: 'update on host',
    map: 'map, unmap', caller: 'caller', idle: 'idle' };
const PATH_LOOK_BACK = 48;

class CriticalPath {
    constructor(trace, streams, commands) {
        this.trace = trace;
        this.streams = streams;
        this.commands = commands; // command id -> [[stream, span], ...], for the commands that ended stalls
        this.found = new Map();
    }

    of(pass) {
        if (!this.found.has(pass.pass))
            this.found.set(pass.pass, this.walk(pass));
        return this.found.get(pass.pass);
    }

    isKnown(pass) {
        return this.found.has(pass.pass);
    }

    walk(pass) {
        const { compute } = this.streams, pieces = [];
        let time = pass.end;
        const put = (lane, from, span, stall = NONE) => {
            const begin = Math.max(pass.begin, from);
            if (begin < time)
                pieces.push({ lane, span, stall, begin, end: time });
            time = Math.min(time, begin);
        };
        // No later pass computes: the command that ends last, such as an update, ends this pass.
        if (pass === this.trace.passes.at(-1))
            this.follow(this.lastOf(time), put, () => time, pass.begin);
        for (let steps = 0; time > pass.begin && steps < 1e6; steps++) {
            const i = lastAtMost(compute.begin, time - 0.5, 0, compute.count);
            if (i >= 0 && compute.end[i] >= time) {
                put('compute', compute.begin[i], i);
                continue;
            }
            const before = i >= 0 ? compute.end[i] : pass.begin, stall = this.stallIn(before, time);
            const command = stall && this.ended(stall.index, time);
            if (!stall || stall.end < time)
                this.rest(stall ? stall.end : before, time, put);
            else if (command)
                this.follow(command, put, () => time, pass.begin);
            else
                put('idle', Math.max(before, stall.begin), NONE, stall.index);
        }
        pieces.reverse();
        return { pieces, shares: this.sharesOf(pieces) };
    }

    sharesOf(pieces) {
        const shares = {};
        for (const { lane, begin, end } of pieces)
            shares[lane] = (shares[lane] ?? 0) + end - begin;
        return shares;
    }

    /* Compute stood still in [from, to) and no command ended that: the time belongs to the caller's work, if
     * any, or is idle. */
    rest(from, to, put) {
        const { caller } = this.streams, i = lastAtMost(caller.begin, to - 0.5, 0, caller.count);
        if (i < 0 || caller.end[i] <= from)
            put('idle', from, NONE);
        else if (caller.end[i] < to)
            put('idle', caller.end[i], NONE);
        else
            put('caller', Math.max(from, caller.begin[i]), i);
    }

    /* The last stall that overlaps (from, to]. */
    stallIn(from, to) {
        const { stall } = this.trace.kinds, index = lastAtMost(stall.begin, to - 0.5, 0, stall.count);
        return index < 0 || stall.end[index] <= from ? null
            : { index, begin: stall.begin[index], end: Math.min(to, stall.end[index]) };
    }

    /* The span of the command that ended this stall which ended last before `to`: [stream, span]. */
    ended(index, to) {
        const { stall } = this.trace.kinds;
        const spans = (this.commands.get(stall.ended_by[index]) ?? []).filter(([lane, span]) => lane !== 'move'
            && this.streams[lane].begin[span] < to &&
            this.streams[lane].end[span] > stall.begin[index]);
        return spans.sort((a, b) => this.streams[b[0]].end[b[1]] - this.streams[a[0]].end[a[1]])[0] ?? null;
    }

    follow(command, put, now, least) {
        while (command && now() > least) {
            const [lane, span] = command, stream = this.streams[lane];
            if (stream.end[span] < now())
                put('idle', stream.end[span], NONE);
            put(lane, stream.begin[span], span);
            command = this.before(lane, span);
        }
    }

    /* The span that ended last up to `time`: [stream, span]; null: none, or an op. */
    lastOf(time) {
        let best = null, latest = -1;
        for (const lane of ['in', 'out', 'update', 'host', 'map', 'compute']) {
            const spans = this.streams[lane], i = lastAtMost(spans.begin, time, 0, spans.count);
            if (i >= 0 && spans.end[i] > latest) {
                latest = spans.end[i];
                best = lane === 'compute' ? null : [lane, i];
            }
        }
        return best;
    }

    /* The span that ended when this one began and is related to it: [stream, span]; null: none. */
    before(lane, span) {
        const stream = this.streams[lane], begin = stream.begin[span], kind = stream.kind(span),
            event = stream.event[span];
        const slack = Math.max(20e3, (stream.end[span] - begin) / 50);
        const chunk = kind.chunk?.[event], slot = kind.device_slot?.[event], id = kind.id?.[event];
        let best = null, latest = begin - slack;
        for (const other of ['in', 'out', 'update', 'host', 'map']) {
            const spans = this.streams[other];
            for (let i = lastAtMost(spans.begin, begin - 0.5, 0, spans.count), look = 0; i >= 0
                    && look < PATH_LOOK_BACK; i--, look++) {
                const its = spans.kind(i), at = spans.event[i];
                const related = other === lane || its.chunk[at] === chunk || its.id[at] === id ||
                    (slot !== undefined && its.device_slot?.[at] === slot);
                if (related && spans.end[i] <= begin + 1 && spans.end[i] > latest && !(other === lane && i === span)) {
                    latest = spans.end[i];
                    best = [other, i];
                }
            }
        }
        return best;
    }
}

/* For each command that ended a stall: its spans, by the command's id. */
const stallCommands = (trace, streams) => {
    const { stall } = trace.kinds, commands = new Map();
    for (let i = 0; i < stall.count; i++)
        if (stall.ended_by[i] !== NONE)
            commands.set(stall.ended_by[i], []);
    for (const lane of [...LANES, 'move'])
        for (let i = 0, spans = streams[lane]; i < spans.count; i++) {
            const id = spans.kind(i).id?.[spans.event[i]];
            if (id !== undefined)
                commands.get(id)?.push([lane, i]);
        }
    return commands;
};
