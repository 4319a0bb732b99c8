#include "tests/chunk/ranks_world.h"

#include "base/hash.h"
#include "chunk/watch.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 4096 };

world_events world_seen;

static void fail(world *w, const char *format, ...)
{
    va_list list;
    if (w->failure[0] != 0)
        return;
    va_start(list, format);
    vsnprintf(w->failure, sizeof w->failure, format, list);
    va_end(list);
}

static uint32_t below(world *w, uint32_t limit)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (uint32_t)((w->random >> 11) % limit);
}

static bool percent(world *w, uint32_t chance)
{
    return below(w, 100) < chance;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void must(tide_status status)
{
    if (status != TIDE_OK) {
        fprintf(stderr, "%s\n", tide_message());
        abort();
    }
}

/* --- the model --- */

static void add_params(world *w, tide_dtype dtype)
{
    static const tide_state_format formats[] = {{3, {128, 128, 128}}, {1, {128}}, {2, {64, 64}}, {1, {8}}};
    const uint32_t group = CHUNK_BYTES / (uint32_t)tide_dtype_bytes(dtype) * w->ranks;
    const uint32_t classes = 1 + below(w, 2), first = below(w, 4);
    w->param_count = 1 + below(w, PARAMS_MAX);
    for (uint32_t p = 0; p < w->param_count; p++) {
        const uint32_t sizes[] = {200, group / 2, group, 3 * group};
        const uint64_t elements = 1 + below(w, sizes[below(w, 4)]);
        const bool frozen = percent(w, 12);
        const tide_param_class of = {.frozen = frozen,
                                     .state = frozen ? (tide_state_format){0}
                                                     : formats[(first + below(w, classes)) % 4]};
        char name[16];
        tide_param number;
        snprintf(name, sizeof name, "p%u", p);
        must(tide_description_add_param(w->description, name, &elements, 1, &of, &number));
    }
}

static void add_activations(world *w)
{
    w->activation_count = w->tight ? 0 : below(w, 4);
    w->parts = 1 + below(w, 3);
    for (uint32_t i = 0; i < w->activation_count; i++) {
        char name[16];
        tide_activation number;
        snprintf(name, sizeof name, "a%u", i);
        must(tide_description_add_activation(w->description, name, w->parts, 1 + below(w, 6000), &number));
    }
}

static tide_op_description *new_op(world *w, tide_pass pass)
{
    tide_op_description *op = &w->ops[w->op_count];
    *op = (tide_op_description){
        .pass = pass, .params = w->uses[w->op_count], .activations = w->activations[w->op_count]};
    w->op_count++;
    return op;
}

static void use_param(world *w, tide_op_description *op, uint32_t param, uint32_t access)
{
    tide_use *uses = w->uses[op - w->ops];
    param %= w->param_count;
    if (tide_description_is_frozen(w->description, param))
        access = TIDE_ACCESS_READ;
    for (uint32_t i = 0; i < op->param_count; i++)
        if (uses[i].tensor == param)
            return;
    assert(op->param_count < USES_MAX);
    uses[op->param_count++] = (tide_use){param, access};
}

static void use_activation(world *w, tide_op_description *op, uint32_t number, uint32_t access)
{
    tide_use *uses = w->activations[op - w->ops];
    if (w->activation_count == 0)
        return;
    number %= w->activation_count;
    if (op->activation_count > 0 && uses[0].tensor == number)
        return;
    uses[op->activation_count++] = (tide_use){number, access};
    op->slices = w->parts;
}

static void add_ops(world *w)
{
    const uint32_t layers = 1 + below(w, 8);
    uint32_t first[8], count[8];
    for (uint32_t l = 0; l < layers; l++) {
        first[l] = below(w, w->param_count);
        count[l] = 1 + below(w, 3);
        tide_op_description *op = new_op(w, TIDE_PASS_FORWARD);
        for (uint32_t i = 0; i < count[l]; i++)
            use_param(w, op, first[l] + i, TIDE_ACCESS_READ);
        use_activation(w, op, l, TIDE_ACCESS_WRITE);
    }
    w->forward_count = w->op_count;
    if (percent(w, 60))
        use_param(w, new_op(w, TIDE_PASS_BOTH), below(w, w->param_count),
                  TIDE_ACCESS_READ | TIDE_ACCESS_GRAD);
    for (uint32_t l = layers; l-- > 0;) {
        tide_op_description *op = new_op(w, TIDE_PASS_BACKWARD);
        for (uint32_t i = 0; i < count[l]; i++)
            use_param(w, op, first[l] + i,
                      percent(w, 80)   ? TIDE_ACCESS_READ | TIDE_ACCESS_GRAD
                      : percent(w, 50) ? TIDE_ACCESS_GRAD
                                       : TIDE_ACCESS_READ);
        use_activation(w, op, l, TIDE_ACCESS_READ | TIDE_ACCESS_LAST);
    }
}

static void describe_ops(world *w)
{
    for (uint32_t i = 0; i < w->op_count; i++) {
        char name[16];
        tide_op number;
        snprintf(name, sizeof name, "op%u", i);
        w->ops[i].name = name;
        must(tide_description_add_op(w->description, &w->ops[i], &number));
    }
}

void world_draw(world *w, uint64_t seed, uint32_t ranks, sabotage how)
{
    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->sabotage = how;
    w->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (int i = 0; i < 8; i++)
        below(w, 2);
    w->ranks = ranks != 0 ? ranks : 2 + below(w, percent(w, 30) ? RANKS_MAX - 1 : 3);
    w->tight = percent(w, 40);
    const tide_dtype dtype = percent(w, 50) ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32;
    must(tide_description_create(dtype, 0, &w->description));
    add_params(w, dtype);
    add_activations(w);
    add_ops(w);
    describe_ops(w);
    w->steps_left = 2 + below(w, 5);
    w->destroy_at = percent(w, 30) ? 1 + below(w, 150) : ITEMS_MAX - 1;
    w->aborts = percent(w, 40);
}

void world_draw_ops(world *w, uint32_t ops, sabotage how)
{
    const uint64_t elements = 2 * CHUNK_BYTES / 4;
    tide_param number;
    memset(w, 0, sizeof *w);
    w->random = 1;
    w->sabotage = how;
    w->ranks = 2;
    must(tide_description_create(TIDE_DTYPE_FP32, 0, &w->description));
    for (uint32_t p = 0; p < ops; p++) {
        const tide_param_class of = {.state = {1, {128}}};
        const char name[] = {(char)('A' + p), 0};
        must(tide_description_add_param(w->description, name, &elements, 1, &of, &number));
        w->param_count++;
        use_param(w, new_op(w, TIDE_PASS_BOTH), p, TIDE_ACCESS_READ | TIDE_ACCESS_GRAD);
    }
    describe_ops(w);
    w->steps_left = 6;
    w->destroy_at = ITEMS_MAX - 1;
}

/* --- ranks --- */

static tide_slot_needs needs_of(const rank *r, tide_placement placement)
{
    tide_ops ops;
    tide_slot_needs needs;
    must(tide_ops_create(&ops, r->layout));
    tide_manager_needs(&ops, placement, &needs);
    tide_ops_destroy(&ops);
    return needs;
}

static uint32_t extra(world *w, uint32_t chunks)
{
    return w->tight || percent(w, 35) ? 0 : below(w, percent(w, 50) ? 4 : chunks + 1);
}

static void draw_options(world *w, uint32_t number, uint32_t frames, bool ahead)
{
    rank *r = &w->rank[number];
    const uint32_t chunks = tide_layout_chunk_count(r->layout);
    tide_manager_options *o = &r->options;
    o->placement = percent(w, 40) ? TIDE_PLACEMENT_AUTO : (tide_placement)below(w, 3);
    o->prefetch = percent(w, 70);
    const tide_slot_needs needs = needs_of(r, o->placement);
    o->frames = frames;
    o->ahead = ahead;
    o->device_slots = (ahead ? needs.device_slots_ahead : needs.device_slots) + extra(w, chunks);
    if (w->sabotage == SABOTAGE_FEW_SLOTS)
        o->device_slots = needs_of(r, o->placement = TIDE_PLACEMENT_DEVICE).device_slots;
    o->host_slots = max_u32(needs.host_slots,
                            needs.total_slots > o->device_slots ? needs.total_slots - o->device_slots : 0) +
                    extra(w, chunks);
}

static void make_rank(world *w, uint32_t number)
{
    rank *r = &w->rank[number];
    tide_manager_options made = r->options;
    const bool unfit = w->sabotage == SABOTAGE_FEW_FRAMES || w->sabotage == SABOTAGE_FEW_SLOTS;
    const uint32_t chunks = tide_layout_space_chunks(r->layout, TIDE_SPACE_PARAM);
    if (number == 1 && w->sabotage == SABOTAGE_OTHER_FRAMES)
        made.frames = ++r->options.frames;
    made.ahead = made.ahead && !unfit;
    must(tide_manager_create(r->layout, &made, &r->manager));
    r->manager->collectives.frames.ahead =
        r->options.ahead != (number == 1 && w->sabotage == SABOTAGE_OTHER_AHEAD);
    r->manager->deep_checks = w->seed % 8 == 0;
    for (int tier = 0; tier < TIDE_TIER_COUNT; tier++)
        r->slots[tier] =
            calloc(tier == TIDE_TIER_DEVICE ? made.device_slots : made.host_slots, sizeof *r->slots[tier]);
    r->frames = calloc((size_t)made.frames * w->ranks + 1, sizeof *r->frames);
    r->mapped = malloc((made.frames + 1) * sizeof *r->mapped);
    memset(r->mapped, 0xff, (made.frames + 1) * sizeof *r->mapped);
    r->states = calloc(chunks, sizeof *r->states);
    r->pieces = calloc(chunks, sizeof *r->pieces);
    r->effects = calloc(EFFECTS_MAX, sizeof *r->effects);
    r->tells = percent(w, 50);
    r->calmness = below(w, 4);
}

void world_start(world *w, const tide_manager_options *options)
{
    for (uint32_t i = 0; i < w->ranks; i++)
        must(tide_layout_create(w->description, CHUNK_BYTES, (tide_shard){w->ranks, i}, &w->rank[i].layout));
    assert(tide_layout_space_chunks(w->rank[0].layout, TIDE_SPACE_PARAM) <= CHUNKS_MAX);
    const tide_slot_needs needs = needs_of(&w->rank[0], TIDE_PLACEMENT_HOST);
    const bool unfit = w->sabotage == SABOTAGE_FEW_FRAMES || w->sabotage == SABOTAGE_FEW_SLOTS;
    const bool ahead = percent(w, 60) || unfit || w->sabotage == SABOTAGE_GATHER_AT_END;
    uint32_t frames = needs.frames + (percent(w, 50) ? 0 : below(w, 4));
    frames = ahead ? max_u32(frames, needs.frames_ahead) : frames;
    if (w->sabotage == SABOTAGE_FEW_FRAMES)
        frames = needs.frames;
    for (uint32_t i = 0; i < w->ranks; i++) {
        draw_options(w, i, frames, ahead);
        if (options != NULL)
            w->rank[i].options = *options;
        make_rank(w, i);
        const uint32_t last = tide_layout_space_chunks(w->rank[i].layout, TIDE_SPACE_PARAM) - 1;
        uint32_t first;
        world_seen.empty_members += tide_layout_chunk_segments(w->rank[i].layout, last, &first) == 0;
    }
}

void world_destroy(world *w)
{
    for (uint32_t i = 0; i < w->ranks; i++) {
        rank *r = &w->rank[i];
        tide_manager_destroy(r->manager);
        tide_layout_destroy(r->layout);
        for (int tier = 0; tier < TIDE_TIER_COUNT; tier++)
            free(r->slots[tier]);
        free(r->frames);
        free(r->mapped);
        free(r->states);
        free(r->pieces);
        free(r->effects);
    }
    for (uint32_t s = 0; s < w->steps; s++)
        free(w->values[s]);
    tide_description_destroy(w->description);
}

/* --- effects --- */

static uint32_t number_of(const world *w, const rank *r)
{
    return (uint32_t)(r - w->rank);
}

static effect *enqueue(rank *r, effect_kind kind)
{
    effect *e = &r->effects[r->enqueued++ % EFFECTS_MAX];
    assert(r->enqueued - r->executed <= EFFECTS_MAX);
    *e = (effect){.kind = kind, .step = r->steps - 1};
    return e;
}

/* The value that a chunk of a rank has in a step. */
static uint64_t value_in(const world *w, uint32_t step, uint32_t of, tide_chunk chunk)
{
    return w->values[step][of * CHUNKS_MAX + chunk];
}

static bool has_part(const rank *r, tide_chunk chunk, uint32_t param)
{
    uint32_t first;
    const uint32_t count = tide_layout_chunk_segments(r->layout, chunk, &first);
    for (uint32_t i = first; i < first + count; i++)
        if (tide_layout_chunk_segment(r->layout, chunk, i).param == param)
            return true;
    return false;
}

static void check_value(world *w, const rank *r, const effect *e, content found, uint32_t of,
                        tide_chunk chunk, uint32_t param)
{
    if (found.value != value_in(w, e->step, of, chunk) || found.gradients >> param & 1u)
        fail(w, "rank %u, step %u, op%u reads p%u in chunk %u of rank %u: %s", number_of(w, r), e->step,
             e->op, param, chunk, of,
             found.gradients >> param & 1u ? "its gradient stands there" : "other values stand there");
}

static void execute_compute(world *w, rank *r, const effect *e)
{
    const tide_op_description *op = &w->ops[e->op];
    for (uint32_t u = 0; u < op->param_count; u++) {
        const tide_use use = op->params[u];
        tide_chunk first, last;
        tide_layout_param_chunks(r->layout, use.tensor, &first, &last);
        for (uint32_t i = 0; i < e->chunk_count && use.access & TIDE_ACCESS_READ; i++) {
            const tide_chunk chunk = e->chunks[i];
            if (chunk < first || chunk > last)
                continue;
            const uint32_t frame = e->frames[i];
            if (frame == TIDE_FRAME_NONE || r->mapped[frame] != chunk) {
                fail(w, "rank %u, op%u reads group %u, which is in no frame", number_of(w, r), e->op, chunk);
                return;
            }
            for (uint32_t m = 0; m < w->ranks; m++)
                check_value(w, r, e,
                            m == number_of(w, r) ? r->slots[TIDE_TIER_DEVICE][e->slots[i]]
                                                 : r->frames[frame * w->ranks + m],
                            m, chunk, use.tensor);
        }
    }
}

/* An update or restore of a piece, in the slot of its PARAM chunk. */
static void execute_task(world *w, rank *r, const tide_command *command, uint32_t gradients)
{
    const tide_chunk chunk = command->chunk;
    content *it = &r->slots[command->tier][command->task[0].slot];
    if (command->task[0].needs_zero)
        *it = (content){0};
    if (command->kind == TIDE_COMMAND_UPDATE &&
        (it->value != r->states[chunk] || (it->gradients & gradients) != gradients))
        fail(w, "rank %u: an update of chunk %u finds gradients %x, %x are needed", number_of(w, r), chunk,
             it->gradients, gradients);
    if (++r->pieces[chunk] < tide_layout_pieces(r->layout, chunk))
        return;
    r->pieces[chunk] = 0;
    if (command->kind == TIDE_COMMAND_UPDATE)
        r->states[chunk] = tide_hash_u64(r->states[chunk], 1);
    *it = (content){.value = r->states[chunk]};
}

static void execute_gather(world *w, uint32_t number, const effect *e)
{
    rank *r = &w->rank[number];
    const tide_collective *c = &e->command.collective;
    if (r->mapped[c->frame] != c->replaced)
        fail(w, "rank %u: group %u is said to replace group %u", number, c->group, c->replaced);
    for (uint32_t frame = 0; frame < r->options.frames; frame++)
        if (frame != c->frame && r->mapped[frame] == c->group)
            fail(w, "rank %u: group %u is mapped twice", number, c->group);
    r->mapped[c->frame] = c->group;
    for (uint32_t m = 0; m < w->ranks; m++) {
        const effect *theirs = &w->rank[m].effects[w->rank[m].executed % EFFECTS_MAX];
        const content sent = w->rank[m].slots[TIDE_TIER_DEVICE][theirs->device_slot];
        if (sent.value != value_in(w, e->step, m, c->group))
            fail(w, "step %u: rank %u gathers other values of group %u than it has", e->step, m, c->group);
        r->frames[c->frame * w->ranks + m] = sent;
    }
}

static void execute_reduce(rank *r, const effect *e)
{
    for (uint32_t i = 0; i < e->chunk_count && e->slots[i] != TIDE_SLOT_NONE; i++)
        for (uint32_t p = 0; p < PARAMS_MAX; p++)
            if (e->gradients >> p & 1u && has_part(r, e->chunks[i], p))
                r->slots[TIDE_TIER_DEVICE][e->slots[i]].gradients |= 1u << p;
}

/* The network: execute the collective that is at the front of all ranks' queues. */
static void execute_collective(world *w)
{
    const effect *first = &w->rank[0].effects[w->rank[0].executed % EFFECTS_MAX];
    const tide_collective *c = &first->command.collective;
    for (uint32_t i = 1; i < w->ranks; i++) {
        const effect *e = &w->rank[i].effects[w->rank[i].executed % EFFECTS_MAX];
        const tide_collective *other = &e->command.collective;
        if (c->kind != other->kind || c->group != other->group || c->frame != other->frame ||
            c->replaced != other->replaced || c->op != other->op || c->param != other->param ||
            c->first != other->first || c->count != other->count || e->step != first->step) {
            fail(w, "ranks 0 and %u issue other collectives: kind %u of %u and kind %u of %u", i, c->kind,
                 c->kind == TIDE_COLLECTIVE_GATHER ? c->group : c->op, other->kind,
                 other->kind == TIDE_COLLECTIVE_GATHER ? other->group : other->op);
            return;
        }
    }
    for (uint32_t i = 0; i < w->ranks; i++) {
        const effect *e = &w->rank[i].effects[w->rank[i].executed % EFFECTS_MAX];
        if (c->kind == TIDE_COLLECTIVE_GATHER)
            execute_gather(w, i, e);
        else if (c->kind == TIDE_COLLECTIVE_REDUCE && c->param == TIDE_PARAM_NONE)
            execute_reduce(&w->rank[i], e);
    }
    world_seen.gathers += c->kind == TIDE_COLLECTIVE_GATHER;
    world_seen.gathers_kept += c->kind == TIDE_COLLECTIVE_GATHER && c->replaced == c->group;
    world_seen.reduces += c->kind == TIDE_COLLECTIVE_REDUCE;
    for (uint32_t i = 0; i < w->ranks; i++) {
        w->rank[i].executed++;
        w->rank[i].idle = false;
    }
}

static bool all_are_at_a_collective(const world *w)
{
    for (uint32_t i = 0; i < w->ranks; i++) {
        const rank *r = &w->rank[i];
        if (r->executed == r->enqueued || r->effects[r->executed % EFFECTS_MAX].kind != EFFECT_COLLECTIVE)
            return false;
    }
    return true;
}

static bool execute(world *w, rank *r)
{
    const effect *e = &r->effects[r->executed % EFFECTS_MAX];
    content *device = r->slots[TIDE_TIER_DEVICE], *host = r->slots[TIDE_TIER_HOST];
    if (r->executed == r->enqueued || (e->kind == EFFECT_COLLECTIVE && !all_are_at_a_collective(w)))
        return false;
    switch (e->kind) {
    case EFFECT_COPY_IN:
        device[e->device_slot] = host[e->host_slot];
        break;
    case EFFECT_ZERO:
        device[e->device_slot] = (content){0};
        break;
    case EFFECT_COPY_OUT:
        host[e->host_slot] = device[e->device_slot];
        break;
    case EFFECT_COMPUTE:
        execute_compute(w, r, e);
        break;
    case EFFECT_TASK:
        execute_task(w, r, &e->command, e->gradients);
        break;
    case EFFECT_COLLECTIVE:
        execute_collective(w);
        return true;
    }
    r->executed++;
    return true;
}

/* --- the owner --- */

/* The params in the chunk whose gradients some op has made in the step. */
static uint32_t gradients_in(const rank *r, tide_chunk chunk)
{
    uint32_t gradients = 0, first;
    const uint32_t count = tide_layout_chunk_segments(r->layout, chunk, &first);
    for (uint32_t i = first; i < first + count; i++) {
        const uint32_t param = tide_layout_chunk_segment(r->layout, chunk, i).param;
        gradients |= (uint32_t)r->manager->tensors.params[param].has_gradient << param;
    }
    return gradients;
}

static void note_chunks(effect *e, const rank *r, tide_op op, bool modified)
{
    const tide_op_record *record = &r->manager->ops.records[op];
    e->op = op;
    for (uint32_t i = 0; i < record->chunks.count; i++) {
        const tide_chunk chunk = record->chunks.list[i];
        if (modified && !record->modifies[i])
            continue;
        assert(e->chunk_count < OP_CHUNKS_MAX);
        e->chunks[e->chunk_count] = chunk;
        e->frames[e->chunk_count] = r->manager->collectives.frames.groups[chunk].frame;
        e->slots[e->chunk_count++] = tide_place_of(&r->manager->places, chunk)->slot[TIDE_TIER_DEVICE];
    }
}

static void take_collective(world *w, rank *r, const tide_command *command)
{
    const tide_collective *c = &command->collective;
    effect *e = enqueue(r, EFFECT_COLLECTIVE);
    e->command = *command;
    e->device_slot = command->device_slot;
    if (c->kind == TIDE_COLLECTIVE_NORM)
        r->norms = r->enqueued;
    if (c->kind != TIDE_COLLECTIVE_REDUCE || c->param != TIDE_PARAM_NONE)
        return;
    note_chunks(e, r, c->op, true);
    for (uint32_t i = 0; i < e->chunk_count; i++)
        if (e->slots[i] == TIDE_SLOT_NONE)
            fail(w, "a REDUCE of op%u is issued, and chunk %u is not on the device", c->op, e->chunks[i]);
    const tide_op_record *record = &r->manager->ops.records[c->op];
    for (uint32_t i = 0; i < record->param_count; i++) {
        const tide_gradient *gradient = &r->manager->ops.gradients.params[record->params[i].tensor];
        if (gradient->is_closed && gradient->closing_op == c->op)
            e->gradients |= 1u << record->params[i].tensor;
    }
}

static void take_move(rank *r, const tide_command *command)
{
    const bool fetch = command->kind == TIDE_COMMAND_FETCH;
    if (!command->copy && !command->zero)
        return;
    effect *e = enqueue(r, command->zero ? EFFECT_ZERO : fetch ? EFFECT_COPY_IN : EFFECT_COPY_OUT);
    e->device_slot = command->device_slot;
    e->host_slot = command->host_slot;
}

/* Rank 1 issues the last collective before the one in front of it. */
static void swap_collectives(rank *r)
{
    effect *last = &r->effects[(r->enqueued - 1) % EFFECTS_MAX],
           *before = &r->effects[(r->enqueued - 2) % EFFECTS_MAX];
    if (r->enqueued - r->executed < 2 || before->kind != EFFECT_COLLECTIVE)
        return;
    const effect kept = *last;
    *last = *before;
    *before = kept;
}

static bool take(world *w, rank *r)
{
    tide_command command;
    uint64_t behind = 0;
    uint32_t needed = 0;
    if (r->idle || r->enqueued - r->executed > EFFECTS_MAX / 2)
        return false;
    if (r->tells && percent(w, 10))
        tide_manager_set_link(r->manager, percent(w, 30), percent(w, 30));
    if (!tide_manager_next(r->manager, &command)) {
        r->idle = true;
        return true;
    }
    if (command.kind == TIDE_COMMAND_COLLECTIVE)
        take_collective(w, r, &command);
    if (command.kind == TIDE_COMMAND_COLLECTIVE && w->sabotage == SABOTAGE_OTHER_ORDER &&
        number_of(w, r) == 1)
        swap_collectives(r);
    if (command.kind == TIDE_COMMAND_COLLECTIVE)
        behind = 0;
    else if (command.kind <= TIDE_COMMAND_WRITE_BACK) {
        take_move(r, &command);
        behind = command.kind == TIDE_COMMAND_FETCH ? 0 : r->enqueued;
    } else {
        needed = command.kind == TIDE_COMMAND_UPDATE ? gradients_in(r, command.chunk) : 0;
        if (command.tier == TIDE_TIER_DEVICE) {
            effect *e = enqueue(r, EFFECT_TASK);
            e->command = command;
            e->gradients = needed;
        } else
            behind = r->enqueued;
    }
    r->needed[r->open_count] = needed;
    r->open[r->open_count++] = (open_command){command, behind};
    return true;
}

static void count_end(rank *r)
{
    r->ends[r->ended++ % ENDS_MAX] = r->enqueued;
    assert(r->ended - r->passed < ENDS_MAX);
}

/* The host executor's part of a command. */
static void execute_on_host(world *w, rank *r, const tide_command *command, uint32_t needed)
{
    if (command->kind == TIDE_COMMAND_ACCESS) {
        content *it = &r->slots[TIDE_TIER_HOST][command->task[0].slot];
        r->states[command->chunk] = r->set;
        *it = (content){.value = r->set};
    } else
        execute_task(w, r, command, needed);
}

static bool complete(world *w, rank *r)
{
    uint32_t at = r->open_count > 0 ? below(w, r->open_count) : 0, tried = 0;
    for (int i = 0; i < 4 && w->tight && r->open_count > 0; i++)
        if (r->open[at].command.kind == TIDE_COMMAND_UPDATE)
            at = below(w, r->open_count);
    while (tried < r->open_count && r->open[at].behind > r->executed) {
        at = (at + 1) % r->open_count;
        tried++;
    }
    if (tried == r->open_count)
        return false;
    const tide_command command = r->open[at].command;
    if (command.kind > TIDE_COMMAND_WRITE_BACK && command.kind < TIDE_COMMAND_COLLECTIVE &&
        command.tier == TIDE_TIER_HOST)
        execute_on_host(w, r, &command, r->needed[at]);
    r->open_count--;
    r->open[at] = r->open[r->open_count];
    r->needed[at] = r->needed[r->open_count];
    r->idle = false;
    if (command.kind == TIDE_COMMAND_COLLECTIVE && command.collective.kind == TIDE_COLLECTIVE_REDUCE &&
        command.collective.param == TIDE_PARAM_NONE)
        count_end(r);
    tide_manager_done(r->manager, command.id, TIDE_OK);
    while (r->passed < r->ended && r->ends[r->passed % ENDS_MAX] <= r->executed)
        r->passed++;
    if (r->tells)
        tide_manager_set_passed(r->manager, r->passed);
    return true;
}

/* --- the program --- */

static item *append(world *w, item_kind kind, uint32_t number)
{
    assert(w->item_count < ITEMS_MAX);
    w->program[w->item_count] = (item){.kind = kind, .number = number};
    return &w->program[w->item_count++];
}

static void update_truth(world *w)
{
    const tide_layout *layout = w->rank[0].layout;
    for (tide_chunk chunk = 0; chunk < tide_layout_space_chunks(layout, TIDE_SPACE_PARAM); chunk++)
        for (uint32_t i = 0; i < w->ranks && tide_layout_pieces(layout, chunk) > 0; i++)
            w->truth[i][chunk] = tide_hash_u64(w->truth[i][chunk], 1);
}

static void draw_between(world *w, const rank *r)
{
    if (r->manager->phase == TIDE_PHASE_RELEASE_PENDING) {
        const bool releases = percent(w, 75);
        (void)append(w, releases ? ITEM_RELEASE : ITEM_SKIP, 0);
        world_seen.releases += releases;
        world_seen.skips += !releases;
        if (releases)
            update_truth(w);
        return;
    }
    if (percent(w, 20)) {
        item *set = append(w, ITEM_SET, below(w, w->ranks));
        set->chunk = below(w, tide_layout_space_chunks(r->layout, TIDE_SPACE_PARAM));
        set->value = tide_hash_u64(++w->sets, 2);
        w->truth[set->number][set->chunk] = set->value;
        w->values_set = true;
        world_seen.sets++;
        return;
    }
    if (w->steps_left-- == 0) {
        w->destroy_at = w->item_count;
        return;
    }
    item *begin = append(w, ITEM_STEP_BEGIN, 0);
    begin->training = percent(w, 75);
    begin->updates_wait = percent(w, 60);
    begin->values_set = w->values_set;
    w->values_set = false;
    w->values[w->steps] = malloc(RANKS_MAX * CHUNKS_MAX * sizeof *w->values[0]);
    memcpy(w->values[w->steps++], w->truth, RANKS_MAX * CHUNKS_MAX * sizeof *w->values[0]);
    w->cursor = 0;
    w->steady = percent(w, 70);
    world_seen.steps += begin->training;
    world_seen.passes += !begin->training;
}

static bool may_begin(const world *w, const rank *r, uint32_t op)
{
    if (r->manager->phase == TIDE_PHASE_FORWARD && w->ops[op].pass != TIDE_PASS_FORWARD)
        return false;
    return tide_gradients_check(&r->manager->ops.gradients, op) == TIDE_OK;
}

static void draw_op(world *w, const rank *r)
{
    const bool training = r->manager->phase == TIDE_PHASE_TRAINING;
    const uint32_t ops = training ? w->op_count : w->forward_count;
    const bool may_end = tide_gradients_check_end(&r->manager->ops.gradients) == TIDE_OK;
    uint32_t op = w->steady ? w->cursor++ : below(w, ops);
    if (may_end && (w->steady ? op == ops : percent(w, 10))) {
        (void)append(w, ITEM_STEP_END, 0);
        if (training && !r->manager->updates_wait)
            update_truth(w);
        return;
    }
    for (int tries = 0; tries < 4 && !may_begin(w, r, op); tries++) {
        world_seen.refused++;
        op = below(w, ops);
    }
    if (!may_begin(w, r, op))
        for (op = 0; op < ops && !may_begin(w, r, op);)
            op++;
    if (op == ops) { /* no op may begin any more */
        w->steady = true;
        w->cursor = ops;
        return;
    }
    (void)append(w, ITEM_OP, op);
    w->slice = 0;
}

static bool may_slice(const world *w, const rank *r, uint32_t op, uint32_t slice)
{
    for (uint32_t i = 0; i < w->ops[op].activation_count; i++) {
        const tide_use use = w->ops[op].activations[i];
        const bool free = tide_tensors_part(&r->manager->tensors, use.tensor, slice) == TIDE_TENSOR_FREE;
        if (use.access & TIDE_ACCESS_READ && free)
            return false;
    }
    return true;
}

static void draw_in_op(world *w, const rank *r)
{
    const uint32_t op = r->manager->request.op;
    while (w->slice < w->ops[op].slices) {
        const uint32_t slice = w->slice++;
        if (may_slice(w, r, op, slice) && (w->steady || percent(w, 70))) {
            (void)append(w, ITEM_SLICE, slice);
            return;
        }
    }
    for (uint32_t i = 0; i < w->ops[op].param_count && percent(w, 15); i++) {
        if (tide_gradients_closes(&r->manager->ops.gradients, op, &w->ops[op].params[i])) {
            (void)append(w, ITEM_REDUCE, w->ops[op].params[i].tensor);
            return;
        }
    }
    (void)append(w, ITEM_OP_END, op);
}

/* Draw what follows the program's end, which this rank has reached. */
static void draw(world *w, const rank *r)
{
    const tide_manager *m = r->manager;
    if (m->phase == TIDE_PHASE_BETWEEN || m->phase == TIDE_PHASE_RELEASE_PENDING)
        draw_between(w, r);
    else if (m->request.open)
        draw_in_op(w, r);
    else
        draw_op(w, r);
}

/* --- the caller --- */

static bool all_have_come(const world *w, uint32_t next)
{
    for (uint32_t i = 0; i < w->ranks; i++)
        if (w->rank[i].next < next)
            return false;
    return true;
}

/* May the caller go on to the item? */
static bool may_do(const world *w, const rank *r, const item *it)
{
    tide_chunk older;
    const tide_manager *m = r->manager;
    const bool issued = tide_roll_count(&m->collectives.roll) == 0;
    switch (it->kind) {
    case ITEM_STEP_BEGIN:
        return issued && all_have_come(w, r->next);
    case ITEM_STEP_END:
        return issued &&
               !(m->phase == TIDE_PHASE_TRAINING && tide_pending_has_older(&m->pending, m->step, &older));
    case ITEM_RELEASE:
    case ITEM_SKIP:
        return issued && r->executed >= r->norms;
    default:
        return true;
    }
}

/* The ranks compare their hashes of the program; the first to begin the step notes its own. */
static void check_hash(world *w, const rank *r)
{
    bool first = true;
    for (uint32_t i = 0; i < w->ranks; i++)
        first = first && w->rank[i].steps <= r->steps;
    if (first)
        w->hashes[r->steps] = r->manager->collectives.roll.hash;
    else if (w->hashes[r->steps] != r->manager->collectives.roll.hash)
        fail(w, "rank %u has another hash of the program than the ranks before it", number_of(w, r));
}

static void begin_step(world *w, rank *r, const item *it)
{
    check_hash(w, r);
    r->steps++;
    if (it->values_set)
        must(tide_manager_values_set(r->manager));
    must(tide_manager_step_begin(r->manager, it->training, it->updates_wait));
}

static void sabotage_op(world *w, rank *r)
{
    tide_collectives *c = &r->manager->collectives;
    const tide_collective *head = tide_roll_head(&c->roll);
    if (number_of(w, r) != 1)
        return;
    if (w->sabotage == SABOTAGE_LOCAL_CHOICE)
        for (tide_chunk group = 0; group < c->frames.group_count; group++)
            c->frames.groups[group].last_read = tide_place_of(&r->manager->places, group)->last_use;
    if (w->sabotage == SABOTAGE_FORGOTTEN && head != NULL && !c->running && !c->frames.follows &&
        head->kind == TIDE_COLLECTIVE_GATHER)
        tide_roll_pop(&c->roll);
}

static void begin_op(world *w, rank *r, uint32_t op)
{
    const tide_collectives *c = &r->manager->collectives;
    const bool followed = c->frames.follows;
    const uint64_t before = c->roll.appended;
    if (w->sabotage == SABOTAGE_OTHER_OP && number_of(w, r) == 1 && op + 1 < w->op_count &&
        may_begin(w, r, op + 1))
        op++;
    sabotage_op(w, r);
    must(tide_manager_begin(r->manager, op));
    r->computes = true;
    world_seen.unexpected_ops += followed && !c->frames.follows;
    for (uint64_t n = before; n < c->roll.appended; n++) {
        const tide_chunk group = c->roll.entries[n % c->roll.capacity].group;
        bool own = false;
        for (uint32_t i = 0; i < r->manager->ops.records[op].chunks.count; i++)
            own = own || r->manager->ops.records[op].chunks.list[i] == group;
        world_seen.gathers_ahead += !own;
    }
}

/* With SABOTAGE_EARLY_RELEASE nothing is left to do when the REDUCE is issued. */
void __real_tide_manager_op_closed(tide_manager *manager);
void __wrap_tide_manager_op_closed(tide_manager *manager);
void __wrap_tide_manager_op_closed(tide_manager *manager)
{
    if (manager->collectives.closing != TIDE_OP_NONE)
        __real_tide_manager_op_closed(manager);
}

static void end_op(world *w, rank *r)
{
    must(tide_manager_end(r->manager));
    count_end(r);
    if (w->sabotage == SABOTAGE_EARLY_RELEASE && r->manager->collectives.closing != TIDE_OP_NONE) {
        __real_tide_manager_op_closed(r->manager);
        tide_manager_changed(r->manager);
        count_end(r);
    }
}

static void end_step(world *w, rank *r)
{
    must(tide_manager_step_end(r->manager));
    tide_frames *frames = &r->manager->collectives.frames;
    if (w->sabotage == SABOTAGE_GATHER_AT_END)
        tide_frames_step_begin(frames, true);
}

static void enqueue_compute(rank *r)
{
    r->computes = false;
    note_chunks(enqueue(r, EFFECT_COMPUTE), r, r->manager->request.op, false);
}

static void do_item(world *w, rank *r, const item *it)
{
    bool appended;
    switch (it->kind) {
    case ITEM_STEP_BEGIN:
        begin_step(w, r, it);
        break;
    case ITEM_OP:
        begin_op(w, r, it->number);
        break;
    case ITEM_SLICE:
        must(tide_manager_slice(r->manager, it->number));
        r->computes = true;
        break;
    case ITEM_REDUCE:
        must(tide_manager_reduce(r->manager, it->number, 0, 64, &appended));
        assert(appended);
        world_seen.early_reduces++;
        break;
    case ITEM_OP_END:
        end_op(w, r);
        break;
    case ITEM_STEP_END:
        end_step(w, r);
        break;
    case ITEM_RELEASE:
        must(tide_manager_release_updates(r->manager));
        break;
    case ITEM_SKIP:
        must(tide_manager_skip_updates(r->manager));
        break;
    case ITEM_SET:
        r->set = it->value;
        if (it->number == number_of(w, r))
            must(tide_manager_host_request(r->manager, &(tide_use){it->chunk, TIDE_ACCESS_WRITE}, 1));
        break;
    case ITEM_DESTROY:
        break;
    }
}

/* One rank gives up, so all do: their collectives in flight end, and there is no next step. */
static void abort_all(world *w)
{
    for (uint32_t i = 0; i < w->ranks; i++) {
        rank *r = &w->rank[i];
        tide_manager *m = r->manager;
        bool gave_up, poisoned;
        while (r->open_count > 0)
            tide_manager_done(m, r->open[--r->open_count].command.id, TIDE_OK);
        world_seen.aborts++;
        world_seen.aborts_in_close += m->collectives.closing != TIDE_OP_NONE;
        must(tide_manager_abort(m, &gave_up, &poisoned));
        if (!tide_manager_is_valid(m) || tide_roll_count(&m->collectives.roll) > 0)
            fail(w, "rank %u is not valid after an abort", i);
        if (tide_manager_step_begin(m, true, true) != TIDE_ERROR_STATE)
            fail(w, "rank %u begins a step after an abort", i);
        r->next = w->destroy_at + 1;
        r->executed = r->enqueued;
    }
}

/* The manager's answers about a request that waits must be true. */
static void check_wait(world *w, rank *r)
{
    tide_chunk chunk, lacking = TIDE_CHUNK_NONE;
    uint32_t at = 0;
    tide_request_wait wait = TIDE_REQUEST_READY;
    const tide_request_wait answer = tide_manager_request_wait(r->manager, &chunk);
    const bool closing = r->manager->collectives.closing != TIDE_OP_NONE;
    const bool lacks = tide_manager_lacks(r->manager, &at, &lacking, &wait);
    const bool peers = answer == TIDE_REQUEST_PEERS;
    world_seen.waits_for_peers += peers;
    const bool complete = answer == TIDE_REQUEST_MOVE && chunk == TIDE_CHUNK_NONE; /* next() will pin it */
    if (answer == TIDE_REQUEST_READY || (!lacks && !complete && !(peers && closing)) ||
        (peers && lacks && wait != TIDE_REQUEST_PEERS) || (chunk == TIDE_CHUNK_NONE) == lacks)
        fail(w, "rank %u: the request waits for %d of chunk %u, and lacks %d of chunk %u", number_of(w, r),
             (int)answer, chunk, (int)wait, lacking);
}

static bool call(world *w, rank *r)
{
    const tide_manager *m = r->manager;
    if (r->next > w->destroy_at)
        return false;
    if (r->next == w->destroy_at) { /* whatever is open */
        world_seen.destroys++;
        if (w->aborts)
            abort_all(w);
        r->next++;
        return true;
    }
    if (m->request.open && !m->request.ready) {
        check_wait(w, r);
        return false;
    }
    if (m->tasks.access.task_count > 0 || r->enqueued - r->executed > EFFECTS_MAX / 2)
        return false;
    if (r->computes)
        enqueue_compute(r);
    if (r->next == w->item_count) {
        draw(w, r);
        return true;
    }
    const item *it = &w->program[r->next];
    if (!may_do(w, r, it))
        return false;
    r->next++;
    do_item(w, r, it);
    r->idle = false;
    return true;
}

/* --- play --- */

typedef bool act(world *w, rank *r);
static act *const acts[] = {take, complete, execute, call};
enum { ACTS = sizeof acts / sizeof acts[0] };

/* Let one rank do one thing. False: none can do any. */
static bool play_once(world *w)
{
    for (int tries = 0; tries < 8; tries++) {
        rank *r = &w->rank[below(w, w->ranks)];
        if (below(w, r->calmness + 1) == 0 && acts[below(w, ACTS)](w, r))
            return true;
    }
    for (uint32_t i = 0; i < w->ranks * ACTS; i++)
        if (acts[i % ACTS](w, &w->rank[i / ACTS]))
            return true;
    return false;
}

/* Tell all managers that their links are free, for which they may have waited. */
static bool free_links(world *w)
{
    bool any = false;
    for (uint32_t i = 0; i < w->ranks; i++) {
        tide_manager *m = w->rank[i].manager;
        any = any || m->in_busy || m->out_busy;
        tide_manager_set_link(m, false, false);
        w->rank[i].idle = w->rank[i].idle && m->idle;
    }
    return any;
}

static bool has_ended(const world *w)
{
    for (uint32_t i = 0; i < w->ranks; i++) {
        const rank *r = &w->rank[i];
        if (r->next <= w->destroy_at || tide_roll_count(&r->manager->collectives.roll) > 0 ||
            r->executed < r->enqueued)
            return false;
    }
    return true;
}

void world_play(world *w)
{
    while (w->failure[0] == 0 && !has_ended(w)) {
        if (play_once(w) || free_links(w))
            continue;
        w->deadlock = true;
        fail(w, "deadlock at item %u", w->rank[0].next);
        for (uint32_t i = 0; i < w->ranks; i++)
            w->stuck = w->stuck || tide_manager_is_stuck(w->rank[i].manager);
    }
}
