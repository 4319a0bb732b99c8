#include "reference_manager.h"

#include "chunk/manager_internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define NONE UINT32_MAX

static void blame(reference_manager *n, const char *format, ...) TIDE_PRINTF(2, 3);

static void blame(reference_manager *n, const char *format, ...)
{
    if (n->problem[0])
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(n->problem, sizeof n->problem, format, arguments);
    va_end(arguments);
}

#define EXPECT(condition, ...)                                                                               \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            blame(n, __VA_ARGS__);                                                                           \
    } while (0)

void reference_create(reference_manager *n, const tide_layout *layout, tide_manager *manager,
                      const tide_manager_options *options, const reference_op *ops, uint32_t op_count,
                      const bool *frozen)
{
    memset(n, 0, sizeof *n);
    n->layout = layout;
    n->manager = manager;
    n->slot_count[TIDE_TIER_DEVICE] = options->device_slots;
    n->slot_count[TIDE_TIER_HOST] = options->host_slots;
    for (int tier = 0; tier < TIDE_TIER_COUNT; tier++)
        for (uint32_t i = 0; i < n->slot_count[tier]; i++)
            n->slots[tier][i] = (reference_slot){.chunk = NONE, .version = REFERENCE_GARBAGE};
    for (uint32_t i = 0; i < REFERENCE_CHUNKS_MAX; i++)
        n->mapped[i] = NONE;
    memcpy(n->ops, ops, op_count * sizeof *ops);
    n->op_count = op_count;
    n->open_op = NONE;
    n->params = tide_layout_params(layout);
    memcpy(n->frozen, frozen, n->params * sizeof *frozen);
    n->chunks = tide_layout_chunk_count(layout);
    n->param_chunks = tide_layout_space_chunks(layout, TIDE_SPACE_PARAM);
    for (uint32_t p = 0; p < n->params; p++)
        tide_layout_param_chunks(layout, p, &n->first[p], &n->last[p]);
    for (tide_chunk chunk = 0; chunk < n->chunks; chunk++)
        n->is_activation[chunk] = tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_ACTIVATION;
}

static uint32_t param_chunks(const reference_manager *n)
{
    return n->param_chunks;
}

static void param_range(const reference_manager *n, uint32_t param, tide_chunk *first, tide_chunk *last)
{
    *first = n->first[param];
    *last = n->last[param];
}

static bool is_activation(const reference_manager *n, tide_chunk chunk)
{
    return n->is_activation[chunk];
}

/* All params in a PARAM chunk have the same class. */
static bool is_frozen(const reference_manager *n, tide_chunk param_chunk)
{
    for (uint32_t p = 0; p < n->params; p++)
        if (n->frozen[p] && param_chunk >= n->first[p] && param_chunk <= n->last[p])
            return true;
    return false;
}

static bool overlaps(const reference_manager *n, uint32_t param, tide_chunk chunk)
{
    tide_chunk first, last;
    param_range(n, param, &first, &last);
    return chunk >= first && chunk <= last;
}

/* Does any chunk of the param hold a gradient of kind `least` or a higher one? */
static bool holds(const reference_manager *n, uint32_t param, reference_gradient least)
{
    tide_chunk first, last;
    param_range(n, param, &first, &last);
    for (tide_chunk chunk = first; chunk <= last; chunk++)
        if (n->gradient[param][chunk] >= least)
            return true;
    return false;
}

/* --- slots --- */

static reference_slot *slot_at(reference_manager *n, tide_tier tier, uint32_t slot)
{
    EXPECT(slot < n->slot_count[tier], "slot %u of tier %d does not exist", slot, (int)tier);
    return &n->slots[tier][slot < n->slot_count[tier] ? slot : 0];
}

/* Does a chunk have content that must be kept? Dead activations have none, nor have chunks that were never
 * written. */
static bool is_worth(const reference_manager *n, tide_chunk chunk)
{
    if (!is_activation(n, chunk))
        return n->truth[chunk] != 0 && n->truth[chunk] != REFERENCE_GARBAGE;
    for (uint32_t t = 0; t < tide_layout_activations(n->layout); t++)
        for (uint32_t part = 0; part < tide_layout_activation(n->layout, t)->parts; part++) {
            tide_chunk first, last;
            tide_layout_activation_chunks(n->layout, t, part, &first, &last);
            if (n->part_live[t][part] && chunk >= first && chunk <= last)
                return true;
        }
    return false;
}

static uint64_t all_pieces(const reference_manager *n, tide_chunk param_chunk)
{
    const uint32_t pieces = is_frozen(n, param_chunk) ? 0 : tide_layout_pieces(n->layout, param_chunk);
    assert(pieces < 64);
    return (UINT64_C(1) << pieces) - 1;
}

/* Is an update or restore of all pieces of the chunk pending? */
static bool is_whole(const reference_manager *n, tide_chunk param_chunk)
{
    return n->pending[param_chunk] && n->pending[param_chunk] == all_pieces(n, param_chunk);
}

/* Called before a slot gets new content: its present content must have another copy. */
static void check_no_loss(reference_manager *n, tide_tier tier, uint32_t slot)
{
    const reference_slot *losing = slot_at(n, tier, slot);
    if (losing->chunk == NONE || !is_worth(n, losing->chunk) || losing->version != n->truth[losing->chunk])
        return;
    if (losing->chunk < param_chunks(n) && n->pending_kind[losing->chunk] == TIDE_COMMAND_RESTORE &&
        is_whole(n, losing->chunk))
        return; /* the restore will rewrite it from MASTER */
    for (int other = 0; other < TIDE_TIER_COUNT; other++)
        for (uint32_t i = 0; i < n->slot_count[other]; i++) {
            const reference_slot *copy = &n->slots[other][i];
            if (copy != losing && copy->chunk == losing->chunk && copy->version == n->truth[losing->chunk])
                return;
        }
    blame(n, "chunk %u's last copy is lost from slot %u of tier %d", losing->chunk, slot, (int)tier);
}

static void set_busy(reference_manager *n, tide_tier tier, uint32_t slot, bool busy)
{
    reference_slot *at = slot_at(n, tier, slot);
    EXPECT(at->busy != busy, "slot %u of tier %d is used by two commands", slot, (int)tier);
    at->busy = busy;
}

static void set_chunk_busy(reference_manager *n, tide_chunk chunk, bool busy)
{
    EXPECT(n->busy[chunk] != busy, "chunk %u is in two commands", chunk);
    n->busy[chunk] = busy;
}

static bool is_pinned_by_op(const reference_manager *n, tide_chunk chunk)
{
    const tide_request *request = &n->manager->request;
    for (uint32_t i = 0; i < request->pin_count; i++)
        if (request->pins[i] == chunk)
            return tide_manager_ready(n->manager);
    return false;
}

/* --- compare with everything that the manager reports --- */

/* The manager pins all of an op's params at once; a slice's chunks are pinned later. */
static bool op_is_pinned(const reference_manager *n)
{
    return n->open_op != NONE && (tide_manager_ready(n->manager) || n->open_slice != NONE);
}

static bool names(const tide_use *uses, uint32_t count, uint32_t tensor)
{
    for (uint32_t i = 0; i < count; i++)
        if (uses[i].tensor == tensor)
            return true;
    return false;
}

static tide_tensor_state param_state(const reference_manager *n, uint32_t param)
{
    if (op_is_pinned(n) && names(n->ops[n->open_op].params, n->ops[n->open_op].param_count, param))
        return TIDE_TENSOR_COMPUTE;
    if (n->stands_complete[param])
        return TIDE_TENSOR_HOLD_AFTER_BWD;
    if (n->used_now[param])
        return TIDE_TENSOR_HOLD_AFTER_FWD;
    return n->has_value[param] ? TIDE_TENSOR_HOLD : TIDE_TENSOR_FREE;
}

static tide_tensor_state part_state(const reference_manager *n, uint32_t tensor, uint32_t part)
{
    const bool pinned = n->open_op != NONE && n->open_slice == part && tide_manager_ready(n->manager);
    if (pinned && names(n->ops[n->open_op].activations, n->ops[n->open_op].activation_count, tensor))
        return TIDE_TENSOR_COMPUTE;
    return n->part_live[tensor][part] ? TIDE_TENSOR_HOLD : TIDE_TENSOR_FREE;
}

/* Per chunk: one bit for each state that some tensor in it has. */
typedef struct reference_chunk_states {
    uint8_t tensors[REFERENCE_CHUNKS_MAX];
    bool in_task[REFERENCE_CHUNKS_MAX];
    bool running[REFERENCE_CHUNKS_MAX]; /* of a PARAM chunk: an update or restore runs */
    bool worth[REFERENCE_CHUNKS_MAX];   /* of an ACTIVATION chunk: some part was written and is not dead */
} reference_chunk_states;

static void compare_param(reference_manager *n, uint32_t p, reference_chunk_states *states)
{
    tide_tensor_state state = param_state(n, p), said = n->manager->tensors.params[p].state;
    bool gradient = holds(n, p, REFERENCE_GRADIENT_REAL);
    tide_chunk first, last;
    EXPECT(said == state, "param %u is in state %d, the manager says %d", p, (int)state, (int)said);
    EXPECT(n->manager->tensors.params[p].has_gradient == gradient, "param %u: gradient %d", p, gradient);
    param_range(n, p, &first, &last);
    for (tide_chunk chunk = first; chunk <= last; chunk++)
        states->tensors[chunk] |= (uint8_t)(1u << state);
}

static void compare_parts(reference_manager *n, uint32_t tensor, reference_chunk_states *states)
{
    for (uint32_t part = 0; part < tide_layout_activation(n->layout, tensor)->parts; part++) {
        tide_tensor_state state = part_state(n, tensor, part);
        tide_tensor_state said = tide_tensors_part(&n->manager->tensors, tensor, part);
        tide_chunk first, last;
        EXPECT(said == state, "part %u of activation %u is in state %d, the manager says %d", part, tensor,
               (int)state, (int)said);
        tide_layout_activation_chunks(n->layout, tensor, part, &first, &last);
        for (tide_chunk chunk = first; chunk <= last; chunk++) {
            states->tensors[chunk] |= (uint8_t)(1u << state);
            states->worth[chunk] |= n->part_live[tensor][part];
        }
    }
}

static void note_tasks(const reference_manager *n, reference_chunk_states *states)
{
    for (uint32_t i = 0; i < n->open_count; i++) {
        const tide_command *c = &n->open[i];
        for (uint32_t k = 0; k < c->task_count; k++)
            states->in_task[c->task[k].chunk] = true;
        states->running[c->chunk] |= c->kind == TIDE_COMMAND_UPDATE || c->kind == TIDE_COMMAND_RESTORE;
    }
}

/* Compare a chunk's tensor states, and whether an update or restore of it runs. */
static void compare_states(reference_manager *n, tide_chunk chunk, const reference_chunk_states *states)
{
    const tide_manager *m = n->manager;
    const bool fp32 = chunk >= param_chunks(n) && !is_activation(n, chunk);
    for (unsigned state = 0; !fp32 && state < TIDE_TENSOR_STATE_COUNT; state++)
        EXPECT((m->tensors.counts[chunk].in[state] > 0) == (states->tensors[chunk] >> state & 1),
               "chunk %u has tensors in state %u: %d", chunk, state, states->tensors[chunk] >> state & 1);
    EXPECT(chunk >= param_chunks(n) || m->pending.chunks[chunk].running == states->running[chunk],
           "chunk %u: running %d", chunk, states->running[chunk]);
    EXPECT(!fp32 || states->in_task[chunk] || m->places.chunks[chunk].live == (n->truth[chunk] != 0),
           "chunk %u: live %d", chunk, m->places.chunks[chunk].live);
}

/* Of a chunk that no command moves: each copy that the manager calls valid must have the true version, and
 * content that must be kept needs at least one such copy. */
static void compare_place(reference_manager *n, tide_chunk chunk, bool worth)
{
    const tide_place *place = tide_place_of(&n->manager->places, chunk);
    const bool on_device = tide_place_has(place, TIDE_TIER_DEVICE),
               on_host = tide_place_has(place, TIDE_TIER_HOST);
    const uint32_t device_slot = place->slot[TIDE_TIER_DEVICE], host_slot = place->slot[TIDE_TIER_HOST];
    const uint64_t truth = n->truth[chunk];
    EXPECT(device_slot == n->mapped[chunk], "chunk %u is in device slot %d, the manager says %d", chunk,
           (int)n->mapped[chunk], (int)device_slot);
    EXPECT(!on_device || device_slot != NONE, "chunk %u is valid nowhere on the device", chunk);
    EXPECT(!on_host || host_slot != NONE, "chunk %u is valid nowhere on the host", chunk);
    /* poisoned params or dead activations have no true version */
    const bool of_none = truth == REFERENCE_GARBAGE || (is_activation(n, chunk) && !worth);
    if (n->problem[0] || of_none)
        return;
    if (on_device)
        EXPECT(n->slots[TIDE_TIER_DEVICE][device_slot].version == truth,
               "chunk %u's device copy is old, the manager calls it valid", chunk);
    if (on_host) {
        const reference_slot *slot = slot_at(n, TIDE_TIER_HOST, host_slot);
        EXPECT(slot->chunk == chunk && slot->version == truth,
               "chunk %u's host copy is old, the manager calls it valid", chunk);
    }
    bool rewritten =
        n->pending_kind[chunk] == TIDE_COMMAND_RESTORE && chunk < param_chunks(n) && is_whole(n, chunk);
    EXPECT(!worth || rewritten || on_device || on_host, "chunk %u has content, the manager has it nowhere",
           chunk);
}

static void compare_chunk(reference_manager *n, tide_chunk chunk, const reference_chunk_states *states)
{
    const tide_place *place = tide_place_of(&n->manager->places, chunk);
    const bool pinned = place->pins[TIDE_TIER_DEVICE] || place->pins[TIDE_TIER_HOST];
    bool computes = states->tensors[chunk] & 1u << TIDE_TENSOR_COMPUTE;
    compare_states(n, chunk, states);
    EXPECT(pinned == (computes || states->in_task[chunk]), "chunk %u: pinned %d", chunk, pinned);
    if (!n->busy[chunk])
        compare_place(n, chunk, is_activation(n, chunk) ? states->worth[chunk] : n->truth[chunk] != 0);
}

/* Compare all chunks if compares_always is set. Otherwise compare only after an important call, one that
 * changes more than where chunks are, and only PARAM chunks. */
static void compare(reference_manager *n, bool important)
{
    reference_chunk_states states;
    if (n->problem[0] || (!important && !n->compares_always))
        return;
    memset(states.tensors, 0, n->chunks);
    memset(states.in_task, 0, n->chunks);
    memset(states.running, 0, n->chunks);
    memset(states.worth, 0, n->chunks);
    note_tasks(n, &states);
    for (uint32_t p = 0; p < n->params; p++)
        compare_param(n, p, &states);
    for (uint32_t tensor = 0; tensor < tide_layout_activations(n->layout); tensor++)
        compare_parts(n, tensor, &states);
    for (tide_chunk chunk = 0; chunk < (n->compares_always ? n->chunks : n->param_chunks); chunk++)
        compare_chunk(n, chunk, &states);
    EXPECT(tide_manager_updates_open(n->manager) == reference_pieces_pending(n),
           "%u pieces pending, the manager says %u", reference_pieces_pending(n),
           tide_manager_updates_open(n->manager));
    EXPECT(n->manager->counters.zero_gradients == n->zero_gradients, "%u zero gradients, the manager says %u",
           (unsigned)n->zero_gradients, (unsigned)n->manager->counters.zero_gradients);
}

/* --- take commands --- */

static void take_fetch(reference_manager *n, const tide_command *c)
{
    reference_slot *slot = slot_at(n, TIDE_TIER_DEVICE, c->device_slot);
    EXPECT(n->mapped[c->chunk] == (c->in_place ? c->device_slot : NONE),
           "fetch of chunk %u, which is on the device", c->chunk);
    EXPECT(slot->chunk == (c->in_place ? c->chunk : NONE), "fetch of chunk %u into a mapped slot", c->chunk);
    bool undefined = n->truth[c->chunk] == REFERENCE_GARBAGE; /* poisoned params, until they are set again */
    EXPECT(!c->in_place || (c->copy && (undefined || slot->version != n->truth[c->chunk])),
           "fetch of chunk %u again", c->chunk);
    EXPECT(!(c->copy && c->zero), "fetch of chunk %u copies and zeroes", c->chunk);
    set_busy(n, TIDE_TIER_DEVICE, c->device_slot, true);
    if (!c->copy)
        return;
    const reference_slot *source = slot_at(n, TIDE_TIER_HOST, c->host_slot);
    EXPECT(undefined || (source->chunk == c->chunk && source->version == n->truth[c->chunk]),
           "fetch of chunk %u copies something else", c->chunk);
    EXPECT(is_worth(n, c->chunk) || !is_activation(n, c->chunk), "fetch of chunk %u copies what nobody needs",
           c->chunk);
    set_busy(n, TIDE_TIER_HOST, c->host_slot, true);
}

static void take_evicting(reference_manager *n, const tide_command *c)
{
    EXPECT(n->mapped[c->chunk] == c->device_slot, "chunk %u leaves a slot it is not in", c->chunk);
    EXPECT(!is_pinned_by_op(n, c->chunk), "chunk %u leaves while it is pinned", c->chunk);
    set_busy(n, TIDE_TIER_DEVICE, c->device_slot, true);
    if (!c->copy)
        return;
    EXPECT(!tide_place_has(tide_place_of(&n->manager->places, c->chunk), TIDE_TIER_HOST),
           "chunk %u is clean, and copied", c->chunk);
    EXPECT(is_worth(n, c->chunk) || !is_activation(n, c->chunk), "chunk %u is copied, and nobody needs it",
           c->chunk);
    check_no_loss(n, TIDE_TIER_HOST, c->host_slot);
    set_busy(n, TIDE_TIER_HOST, c->host_slot, true);
}

/* A task must read the true version, or zero the chunk if it never had content. */
static void check_task_chunk(reference_manager *n, const tide_command *c, uint32_t i)
{
    const tide_task_chunk *t = &c->task[i];
    const reference_slot *slot = slot_at(n, c->tier, t->slot);
    bool restores_whole = c->kind == TIDE_COMMAND_RESTORE && i == 0 && is_whole(n, c->chunk);
    if (restores_whole || n->truth[t->chunk] == REFERENCE_GARBAGE)
        return;
    if (is_activation(n, t->chunk) && !is_worth(n, t->chunk))
        return;
    if (t->needs_zero) {
        EXPECT(n->truth[t->chunk] == 0, "chunk %u needs zeros, but has content", t->chunk);
        return;
    }
    EXPECT(slot->chunk == t->chunk && slot->version == n->truth[t->chunk],
           "a task on chunk %u sees something else", t->chunk);
}

/* Does a PARAM chunk of the other tier have a pending piece with the same STATE chunk? */
static bool is_among_neighbours(const reference_manager *n, const tide_command *c)
{
    for (tide_chunk other = 0; other < param_chunks(n); other++) {
        const tide_pending_update *update = &n->manager->pending.chunks[other];
        for (uint32_t i = 0; n->pending[other] >> i && other != c->chunk; i++)
            if (n->pending[other] >> i & 1 && update->on_device == (c->tier == TIDE_TIER_HOST) &&
                tide_layout_piece(n->layout, other, i).state_chunk == c->task[1].chunk)
                return true;
    }
    return false;
}

static void take_work(reference_manager *n, const tide_command *c)
{
    EXPECT(n->pending[c->chunk] && n->pending_kind[c->chunk] == c->kind, "chunk %u has no pending %s",
           c->chunk, tide_command_kind_name(c->kind));
    EXPECT(n->pending[c->chunk] >> c->piece & 1, "chunk %u: piece %u is not pending", c->chunk, c->piece);
    EXPECT(c->task_count == 2 && c->task[0].chunk == c->chunk, "chunk %u: not its task", c->chunk);
    EXPECT(c->task[1].chunk == tide_layout_piece(n->layout, c->chunk, c->piece).state_chunk,
           "chunk %u: not its state", c->chunk);
    bool on_device = tide_manager_updates_on_device(n->manager, c->chunk);
    EXPECT(c->tier == (on_device ? TIDE_TIER_DEVICE : TIDE_TIER_HOST), "chunk %u: wrong tier", c->chunk);
    n->updates_begun += c->kind == TIDE_COMMAND_UPDATE && n->pending_step[c->chunk] == n->training_step;
    n->among_neighbours += is_among_neighbours(n, c);
}

static void take_access(reference_manager *n, const tide_command *c)
{
    EXPECT(n->host_count > 0 && c->task_count == n->host_count, "an access that nobody asked for");
    for (uint32_t i = 0; i < c->task_count; i++)
        EXPECT(c->task[i].chunk == n->host_uses[i].tensor, "access to chunk %u", c->task[i].chunk);
}

static bool task_writes(const reference_manager *n, const tide_command *c, uint32_t i)
{
    return c->kind == TIDE_COMMAND_UPDATE || (c->kind == TIDE_COMMAND_RESTORE && i == 0) ||
           (c->kind == TIDE_COMMAND_ACCESS && n->host_uses[i].access & TIDE_ACCESS_WRITE);
}

static void take_task(reference_manager *n, const tide_command *c)
{
    if (c->kind == TIDE_COMMAND_ACCESS)
        take_access(n, c);
    else
        take_work(n, c);
    for (uint32_t i = 0; i < c->task_count; i++) {
        EXPECT(!is_pinned_by_op(n, c->task[i].chunk), "a task on chunk %u, which an op uses",
               c->task[i].chunk);
        check_task_chunk(n, c, i);
        if (c->tier == TIDE_TIER_HOST && slot_at(n, c->tier, c->task[i].slot)->chunk != c->task[i].chunk)
            check_no_loss(n, c->tier, c->task[i].slot);
        /* A host task is about to change the chunk. The device slot that waits for it has no valid content
         * any more, even if the task is cancelled. */
        const uint32_t waiting = c->tier == TIDE_TIER_HOST ? n->mapped[c->task[i].chunk] : NONE;
        if (waiting != NONE && task_writes(n, c, i))
            n->slots[TIDE_TIER_DEVICE][waiting].version = REFERENCE_GARBAGE;
        set_busy(n, c->tier, c->task[i].slot, true);
        if (i > 0)
            set_chunk_busy(n, c->task[i].chunk, true);
    }
    EXPECT(c->task_count > 0, "an empty task");
}

bool reference_take(reference_manager *n)
{
    tide_command c;
    if (!tide_manager_next(n->manager, &c)) {
        compare(n, false);
        return false;
    }
    EXPECT(n->open_count < REFERENCE_OPEN_MAX, "too many commands");
    EXPECT(c.chunk < n->chunks, "command on chunk %u", c.chunk);
    set_chunk_busy(n, c.chunk, true);
    if (c.kind == TIDE_COMMAND_FETCH)
        take_fetch(n, &c);
    else if (c.kind == TIDE_COMMAND_EVICT || c.kind == TIDE_COMMAND_WRITE_BACK)
        take_evicting(n, &c);
    else
        take_task(n, &c);
    if (n->open_count < REFERENCE_OPEN_MAX)
        n->open[n->open_count++] = c;
    compare(n, false);
    return true;
}

/* --- complete commands --- */

static void complete_move(reference_manager *n, const tide_command *c, bool ok)
{
    reference_slot *device = slot_at(n, TIDE_TIER_DEVICE, c->device_slot);
    reference_slot *host = c->copy ? slot_at(n, TIDE_TIER_HOST, c->host_slot) : NULL;
    set_busy(n, TIDE_TIER_DEVICE, c->device_slot, false);
    if (host)
        set_busy(n, TIDE_TIER_HOST, c->host_slot, false);
    if (!ok)
        return;
    if (c->kind == TIDE_COMMAND_FETCH) {
        n->mapped[c->chunk] = c->device_slot;
        device->chunk = c->chunk;
        device->version = c->copy ? host->version : c->zero ? 0 : REFERENCE_GARBAGE;
        n->copied_in += c->copy;
        return;
    }
    if (c->copy) {
        host->chunk = c->chunk;
        host->version = device->version;
        n->copied_out++;
    }
    if (c->kind == TIDE_COMMAND_EVICT) {
        if (!c->copy)
            check_no_loss(n, TIDE_TIER_DEVICE, c->device_slot);
        n->mapped[c->chunk] = NONE;
        device->chunk = NONE;
        device->version = REFERENCE_GARBAGE;
    }
}

/* The chunk was updated or restored, or had no gradient that needed that. */
static void end_gradients(reference_manager *n, tide_chunk chunk)
{
    for (uint32_t p = 0; p < n->params; p++) {
        n->gradient[p][chunk] = REFERENCE_GRADIENT_NONE;
        if (n->stands_complete[p] && !holds(n, p, REFERENCE_GRADIENT_ZERO))
            /* the param's gradient has ended, perhaps before the open step has */
            n->stands_complete[p] = n->used_now[p] = false;
    }
}

static void new_version(reference_manager *n, tide_chunk chunk, tide_tier tier, uint32_t slot)
{
    reference_slot *at = slot_at(n, tier, slot);
    n->truth[chunk] = ++n->versions;
    at->chunk = chunk;
    at->version = n->truth[chunk];
}

/* A task has written the whole chunk, so all params in it have values. */
static void note_values(reference_manager *n, tide_chunk chunk)
{
    for (uint32_t p = 0; p < n->params; p++)
        n->has_value[p] |= overlaps(n, p, chunk);
}

static void complete_task_chunk(reference_manager *n, const tide_command *c, uint32_t i,
                                reference_outcome outcome)
{
    const tide_task_chunk *t = &c->task[i];
    reference_slot *slot = slot_at(n, c->tier, t->slot);
    set_busy(n, c->tier, t->slot, false);
    if (i > 0)
        set_chunk_busy(n, t->chunk, false);
    if (outcome == REFERENCE_CANCELLED)
        return;
    if (t->needs_zero)
        *slot = (reference_slot){.chunk = t->chunk, .version = 0};
    if (outcome == REFERENCE_FAILED && c->kind == TIDE_COMMAND_RESTORE && i == 0)
        n->truth[t->chunk] = REFERENCE_GARBAGE;
    if (outcome != REFERENCE_DONE || !task_writes(n, c, i))
        return;
    new_version(n, t->chunk, c->tier, t->slot);
    if (t->chunk < param_chunks(n))
        note_values(n, t->chunk);
}

static void complete_task(reference_manager *n, const tide_command *c, reference_outcome outcome)
{
    for (uint32_t i = 0; i < c->task_count; i++)
        complete_task_chunk(n, c, i, outcome);
    if (c->kind == TIDE_COMMAND_ACCESS) {
        n->host_count = 0;
        return;
    }
    if (c->kind == TIDE_COMMAND_UPDATE && outcome == REFERENCE_CANCELLED)
        n->updates_begun -= n->pending_step[c->chunk] == n->training_step;
    n->update_failed |= c->kind == TIDE_COMMAND_UPDATE && outcome == REFERENCE_FAILED;
    if (outcome != REFERENCE_DONE)
        return;
    n->pending[c->chunk] &= ~(UINT64_C(1) << c->piece);
    if (n->pending[c->chunk] == 0)
        end_gradients(n, c->chunk);
}

void reference_complete(reference_manager *n, uint32_t at, reference_outcome outcome)
{
    tide_command c = n->open[at];
    n->open[at] = n->open[--n->open_count];
    set_chunk_busy(n, c.chunk, false);
    if (c.kind <= TIDE_COMMAND_WRITE_BACK)
        complete_move(n, &c, outcome == REFERENCE_DONE);
    else
        complete_task(n, &c, outcome);
    if (outcome == REFERENCE_CANCELLED)
        tide_manager_cancel(n->manager, c.id);
    else
        tide_manager_done(n->manager, c.id, outcome == REFERENCE_DONE ? TIDE_OK : TIDE_ERROR_DEVICE);
    compare(n, c.kind > TIDE_COMMAND_WRITE_BACK);
}

/* --- gradients, by definition --- */

static const tide_use *find_use(const reference_op *op, uint32_t param)
{
    for (uint32_t i = 0; i < op->param_count; i++)
        if (op->params[i].tensor == param)
            return &op->params[i];
    return NULL;
}

static tide_op closing_op(const reference_manager *n, uint32_t param)
{
    for (tide_op op = n->op_count; op-- > 0;)
        if (n->ops[op].pass != TIDE_PASS_FORWARD && find_use(&n->ops[op], param))
            return op;
    return NONE;
}

static bool closes(const reference_manager *n, tide_op op, uint32_t param)
{
    const tide_use *use = find_use(&n->ops[op], param);
    return closing_op(n, param) == op && (n->added_now[param] || use->access & TIDE_ACCESS_GRAD);
}

tide_op reference_waited_for(const reference_manager *n)
{
    tide_op first = NONE;
    for (uint32_t p = 0; p < n->params; p++)
        if (n->added_now[p] && !n->closed_now[p] && closing_op(n, p) < first)
            first = closing_op(n, p);
    return first;
}

static void set_pending(reference_manager *n, tide_chunk chunk, tide_command_kind kind)
{
    n->pending_kind[chunk] = kind;
    n->pending[chunk] = all_pieces(n, chunk);
    n->pending_step[chunk] = n->training_step;
    n->updated_early[chunk] = true;
}

static void set_pending_complete_chunks(reference_manager *n)
{
    for (tide_chunk chunk = 0; chunk < param_chunks(n) && !n->updates_wait; chunk++) {
        bool complete = !n->updated_early[chunk];
        for (uint32_t p = 0; p < n->params; p++)
            complete &= n->closed_now[p] || n->is_zero_now[p] || !overlaps(n, p, chunk);
        if (complete)
            set_pending(n, chunk, TIDE_COMMAND_UPDATE);
    }
}

uint32_t reference_pieces_pending(const reference_manager *n)
{
    uint32_t pieces = 0;
    for (tide_chunk chunk = 0; chunk < param_chunks(n); chunk++)
        pieces += (uint32_t)__builtin_popcountll(n->pending[chunk]);
    return pieces;
}

bool reference_has_older_pending(const reference_manager *n)
{
    for (tide_chunk chunk = 0; chunk < param_chunks(n); chunk++)
        if (n->pending[chunk] && n->pending_step[chunk] != n->step)
            return true;
    return false;
}

bool reference_has_new_gradient(const reference_manager *n)
{
    for (uint32_t p = 0; p < n->params; p++)
        if (n->closed_now[p] && holds(n, p, REFERENCE_GRADIENT_REAL))
            return true;
    return false;
}

/* --- the caller's calls --- */

static void expect_status(reference_manager *n, tide_status status, bool ok, const char *what)
{
    EXPECT((status == TIDE_OK) == ok, "%s: %s (%s)", what, tide_status_name(status), tide_message());
}

void reference_step_begin(reference_manager *n, bool training, bool updates_wait)
{
    expect_status(n, tide_manager_step_begin(n->manager, training, updates_wait), true, "step begin");
    n->step_open = true;
    n->training = training;
    n->step++;
    memset(n->added_now, 0, sizeof n->added_now);
    memset(n->closed_now, 0, sizeof n->closed_now);
    memset(n->is_zero_now, 0, sizeof n->is_zero_now);
    if (training) {
        n->updates_begun = 0;
        n->training_step = n->step;
        n->updates_wait = updates_wait;
        memset(n->updated_early, 0, sizeof n->updated_early);
    }
    compare(n, true);
}

/* Has a param of the op been closed in this step, or will op `next` close one? */
static bool is_over(const reference_manager *n, tide_op op, tide_op next)
{
    for (uint32_t p = 0; p < n->params; p++)
        if (find_use(&n->ops[op], p) &&
            (n->closed_now[p] || (next != NONE && find_use(&n->ops[next], p) && closes(n, next, p))))
            return true;
    return false;
}

/* Once `next` has begun: can the closing op of this gradient still run, and the closing ops of all gradients
 * to which that op adds? */
static bool can_close(const reference_manager *n, uint32_t param, tide_op next)
{
    const tide_op closing = closing_op(n, param);
    bool can = !is_over(n, closing, next);
    for (uint32_t p = 0; p < n->params && can; p++) {
        const tide_use *use = find_use(&n->ops[closing], p);
        if (use && use->access & TIDE_ACCESS_GRAD && closing_op(n, p) != closing)
            can = can_close(n, p, next);
    }
    return can;
}

static bool may_begin(const reference_manager *n, tide_op op)
{
    if (!n->training)
        return n->ops[op].pass == TIDE_PASS_FORWARD;
    if (is_over(n, op, NONE))
        return false;
    for (uint32_t p = 0; p < n->params; p++) {
        const tide_use *use = find_use(&n->ops[op], p);
        const bool waits = n->added_now[p] && !n->closed_now[p];
        if ((waits || (use && use->access & TIDE_ACCESS_GRAD)) && closing_op(n, p) != op &&
            !can_close(n, p, op))
            return false;
    }
    return true;
}

bool reference_begin(reference_manager *n, tide_op op)
{
    bool may = may_begin(n, op);
    expect_status(n, tide_manager_begin(n->manager, op), may, "begin");
    if (may)
        n->open_op = op;
    n->open_slice = NONE;
    compare(n, true);
    return may;
}

static void end_slice(reference_manager *n)
{
    const reference_op *op = &n->ops[n->open_op];
    for (uint32_t i = 0; n->open_slice != NONE && i < op->activation_count; i++)
        n->part_live[op->activations[i].tensor][n->open_slice] =
            !(op->activations[i].access & TIDE_ACCESS_LAST);
}

bool reference_slice(reference_manager *n, uint32_t slice)
{
    const reference_op *op = &n->ops[n->open_op];
    bool may = true;
    for (uint32_t i = 0; i < op->activation_count; i++) {
        const tide_use *use = &op->activations[i];
        bool live = n->part_live[use->tensor][slice];
        if (slice == n->open_slice)
            live = !(use->access & TIDE_ACCESS_LAST);
        may &= live || !(use->access & TIDE_ACCESS_READ);
    }
    expect_status(n, tide_manager_slice(n->manager, slice), may, "slice");
    if (!may) {
        compare(n, false);
        return false;
    }
    end_slice(n);
    n->open_slice = slice;
    for (uint32_t i = 0; i < op->activation_count; i++)
        if (!(op->activations[i].access & TIDE_ACCESS_READ))
            n->part_live[op->activations[i].tensor][slice] = false;
    compare(n, true);
    return true;
}

static void check_seen(reference_manager *n, tide_chunk chunk)
{
    EXPECT(!n->busy[chunk], "chunk %u is pinned while a command is open on it", chunk);
    EXPECT(n->mapped[chunk] != NONE, "chunk %u is pinned but not on the device", chunk);
    if (n->problem[0])
        return;
    uint64_t version = n->slots[TIDE_TIER_DEVICE][n->mapped[chunk]].version;
    bool matters = is_worth(n, chunk) || !is_activation(n, chunk);
    EXPECT(!matters || n->truth[chunk] == REFERENCE_GARBAGE || version == n->truth[chunk],
           "chunk %u is seen with an old version", chunk);
}

void reference_check_ready(reference_manager *n)
{
    const reference_op *op = &n->ops[n->open_op];
    tide_chunk first, last;
    for (uint32_t i = 0; i < op->param_count; i++) {
        param_range(n, op->params[i].tensor, &first, &last);
        for (tide_chunk chunk = first; chunk <= last; chunk++) {
            check_seen(n, chunk);
            EXPECT(n->pending[chunk] == 0, "chunk %u is used before its update", chunk);
        }
    }
    for (uint32_t i = 0; n->open_slice != NONE && i < op->activation_count; i++) {
        tide_layout_activation_chunks(n->layout, op->activations[i].tensor, n->open_slice, &first, &last);
        for (tide_chunk chunk = first; chunk <= last; chunk++)
            check_seen(n, chunk);
    }
    for (uint32_t i = 0; n->open_slice != NONE && i < op->activation_count && !n->problem[0]; i++) {
        const tide_use *use = &op->activations[i];
        if (!(use->access & TIDE_ACCESS_WRITE))
            continue;
        tide_layout_activation_chunks(n->layout, use->tensor, n->open_slice, &first, &last);
        for (tide_chunk chunk = first; chunk <= last; chunk++)
            new_version(n, chunk, TIDE_TIER_DEVICE, n->mapped[chunk]);
        n->part_live[use->tensor][n->open_slice] = true;
    }
}

/* Put the gradients that the op closes into their params' places. */
static void close_gradients(reference_manager *n, tide_op op)
{
    for (uint32_t p = 0; p < n->params; p++) {
        if (!find_use(&n->ops[op], p) || !closes(n, op, p))
            continue;
        n->closed_now[p] = true;
        for (tide_chunk chunk = n->first[p]; chunk <= n->last[p]; chunk++) {
            n->gradient[p][chunk] = REFERENCE_GRADIENT_REAL;
            new_version(n, chunk, TIDE_TIER_DEVICE, n->mapped[chunk]);
        }
    }
}

void reference_end(reference_manager *n)
{
    tide_op index = n->open_op;
    const reference_op *op = &n->ops[index];
    end_slice(n);
    close_gradients(n, index);
    for (uint32_t i = 0; i < op->param_count; i++) {
        const uint32_t p = op->params[i].tensor;
        n->added_now[p] |= (op->params[i].access & TIDE_ACCESS_GRAD) != 0;
        n->used_now[p] = n->has_value[p] = true;
        n->stands_complete[p] |= n->closed_now[p];
    }
    n->open_op = NONE;
    expect_status(n, tide_manager_end(n->manager), true, "end");
    if (n->training)
        set_pending_complete_chunks(n);
    compare(n, true);
}

/* The step has ended or was given up: activations are dead, and no param counts as used. */
static void close_step(reference_manager *n)
{
    memset(n->part_live, 0, sizeof n->part_live);
    memset(n->used_now, 0, sizeof n->used_now);
    n->step_open = false;
}

static void take_as_zero(reference_manager *n, uint32_t p)
{
    for (tide_chunk chunk = n->first[p]; chunk <= n->last[p]; chunk++)
        n->gradient[p][chunk] = REFERENCE_GRADIENT_ZERO;
    n->is_zero_now[p] = n->stands_complete[p] = n->has_value[p] = true;
    n->zero_gradients++;
}

bool reference_step_end(reference_manager *n)
{
    const bool may = reference_waited_for(n) == NONE;
    expect_status(n, tide_manager_step_end(n->manager), may, "step end");
    if (!may)
        return false;
    for (uint32_t p = 0; p < n->params && n->training; p++)
        if (!n->closed_now[p] && !n->frozen[p])
            take_as_zero(n, p);
    if (n->training) {
        set_pending_complete_chunks(n);
        n->release_pending = n->updates_wait;
    }
    close_step(n);
    compare(n, true);
    return true;
}

static bool chunk_has_gradient(const reference_manager *n, tide_chunk chunk)
{
    for (uint32_t p = 0; p < n->params; p++)
        if (n->gradient[p][chunk] == REFERENCE_GRADIENT_REAL)
            return true;
    return false;
}

/* After an abort: drop the updates of the last training step that have not begun, and restore every chunk
 * with a gradient of that step. Pending updates of older steps stay; a chunk with such an update holds no
 * newer gradient. */
static void restore_all(reference_manager *n)
{
    for (tide_chunk chunk = 0; chunk < param_chunks(n); chunk++) {
        if (n->pending_kind[chunk] == TIDE_COMMAND_UPDATE && n->updated_early[chunk])
            n->pending[chunk] = 0;
        if (n->pending[chunk])
            continue;
        if (chunk_has_gradient(n, chunk))
            set_pending(n, chunk, TIDE_COMMAND_RESTORE);
        else
            end_gradients(n, chunk);
    }
}

void reference_release(reference_manager *n, bool skip)
{
    n->release_pending = false;
    if (skip) {
        restore_all(n);
        expect_status(n, tide_manager_skip_updates(n->manager), true, "skip");
    } else {
        for (tide_chunk chunk = 0; chunk < param_chunks(n); chunk++)
            set_pending(n, chunk, TIDE_COMMAND_UPDATE);
        expect_status(n, tide_manager_release_updates(n->manager), true, "release");
    }
    compare(n, true);
}

static bool has_pending_updates(const reference_manager *n)
{
    for (tide_chunk chunk = 0; chunk < param_chunks(n); chunk++)
        if (n->pending[chunk] && n->pending_kind[chunk] == TIDE_COMMAND_UPDATE &&
            n->pending_step[chunk] == n->training_step)
            return true;
    return false;
}

/* All trained params become undefined, and no update is pending. */
static void poison(reference_manager *n)
{
    memset(n->pending, 0, sizeof n->pending);
    memset(n->gradient, 0, sizeof n->gradient);
    memset(n->stands_complete, 0, sizeof n->stands_complete);
    for (tide_chunk chunk = 0; chunk < param_chunks(n); chunk++)
        n->truth[chunk] = is_frozen(n, chunk) ? n->truth[chunk] : REFERENCE_GARBAGE;
    n->update_failed = false;
}

void reference_abort(reference_manager *n, bool *poisoned)
{
    if (op_is_pinned(n)) { /* the open op may already have rounded its gradients */
        close_gradients(n, n->open_op);
        for (uint32_t i = 0; i < n->ops[n->open_op].param_count; i++)
            n->has_value[n->ops[n->open_op].params[i].tensor] = true;
    }
    bool gives_up = n->step_open ? n->training : n->release_pending || has_pending_updates(n);
    bool poisons = n->update_failed || (gives_up && n->updates_begun > 0);
    bool gave_up = !gives_up;
    *poisoned = !poisons;
    expect_status(n, tide_manager_abort(n->manager, &gave_up, poisoned), true, "abort");
    EXPECT(gave_up == gives_up, "gave up: %d, expected %d", gave_up, gives_up);
    EXPECT(*poisoned == poisons, "poisoned: %d, expected %d", *poisoned, poisons);
    n->open_op = NONE;
    n->release_pending = false;
    n->host_count = 0;
    if (poisons)
        poison(n);
    else if (gives_up)
        restore_all(n);
    close_step(n);
    compare(n, true);
}

void reference_host_request(reference_manager *n, const tide_use *uses, uint32_t count)
{
    memcpy(n->host_uses, uses, count * sizeof *uses);
    n->host_count = count;
    expect_status(n, tide_manager_host_request(n->manager, uses, count), true, "host request");
    compare(n, true);
}

static void expect_refusal(reference_manager *n, tide_status status, const char *what)
{
    EXPECT(status == TIDE_ERROR_STATE, "%s is not refused: %s", what, tide_status_name(status));
}

static void ask_for_steps(reference_manager *n)
{
    bool gave_up, poisoned;
    if (n->step_open || n->release_pending || n->host_count)
        expect_refusal(n, tide_manager_step_begin(n->manager, true, true), "step begin");
    if (!n->step_open || n->open_op != NONE || (n->training && reference_has_older_pending(n)))
        expect_refusal(n, tide_manager_step_end(n->manager), "step end");
    if (!n->release_pending) {
        expect_refusal(n, tide_manager_release_updates(n->manager), "release");
        expect_refusal(n, tide_manager_skip_updates(n->manager), "skip");
    }
    if (n->open_count)
        expect_refusal(n, tide_manager_abort(n->manager, &gave_up, &poisoned), "abort");
}

void reference_ask_wrongly(reference_manager *n)
{
    const tide_use use = {.tensor = 0, .access = TIDE_ACCESS_WRITE};
    ask_for_steps(n);
    if (!n->step_open || n->open_op != NONE)
        expect_refusal(n, tide_manager_begin(n->manager, 0), "begin");
    if (n->open_op == NONE || !tide_manager_ready(n->manager)) {
        expect_refusal(n, tide_manager_slice(n->manager, 0), "slice");
        expect_refusal(n, tide_manager_end(n->manager), "end");
    }
    if (n->step_open || n->host_count || n->release_pending)
        expect_refusal(n, tide_manager_host_request(n->manager, &use, 1), "host request");
    compare(n, true);
}
