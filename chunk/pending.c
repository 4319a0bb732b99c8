#include "chunk/pending.h"

#include <assert.h>
#include <string.h>

enum {
    SPARE_SLOTS = 1,
    PLACEMENT_STEPS = 16, /* the placement changes only if at least 1/16 of all updates would change tiers */
};

/* --- set-up --- */

static uint32_t chunk_count(const tide_pending *pending)
{
    return tide_layout_space_chunks(pending->layout, TIDE_SPACE_PARAM);
}

/* --- pending updates --- */

static void notify(tide_pending *pending, tide_chunk chunk)
{
    tide_places_notify(pending->tensors->places, chunk, TIDE_SUBSCRIBERS_ALL);
}

bool tide_pending_owners(const tide_pending *pending, tide_chunk chunk, tide_chunk *first, tide_chunk *last)
{
    const tide_space space = tide_layout_chunk_space(pending->layout, chunk);
    *first = *last = chunk;
    if (space == TIDE_SPACE_STATE)
        tide_layout_state_owners(pending->layout, chunk, first, last);
    return space != TIDE_SPACE_ACTIVATION;
}

uint32_t tide_pending_piece(const tide_pending *pending, tide_chunk chunk)
{
    const tide_pending_update *update = &pending->chunks[chunk];
    assert(update->kind != TIDE_PENDING_NONE && update->done < update->pieces);
    return update->descends ? update->pieces - 1 - update->done : update->done;
}

/* Are all gradients in the chunk complete, and has the chunk's update not begun? The params' states do not
 * tell: a param in several chunks keeps its state until all of them are updated. */
static bool awaits_update(const tide_pending *pending, tide_chunk chunk)
{
    assert(tide_pending_is_param_chunk(pending, chunk));
    if (!tide_tensors_all_closed(pending->tensors, chunk))
        return false;
    const uint32_t param = tide_layout_chunk_param(pending->layout, chunk, 0);
    return pending->chunks[chunk].step != pending->tensors->params[param].gradient_step;
}

bool tide_pending_must_leave(const tide_pending *pending, tide_chunk chunk)
{
    return tide_pending_is_param_chunk(pending, chunk) && !pending->on_device[chunk] &&
           (pending->chunks[chunk].kind != TIDE_PENDING_NONE || awaits_update(pending, chunk));
}

bool tide_pending_has_step(const tide_pending *pending, uint64_t step)
{
    for (tide_chunk chunk = 0; pending->count && chunk < chunk_count(pending); chunk++)
        if (pending->chunks[chunk].kind == TIDE_PENDING_UPDATE && pending->chunks[chunk].step == step)
            return true;
    return false;
}

bool tide_pending_has_older(const tide_pending *pending, uint64_t step, tide_chunk *older)
{
    for (*older = 0; pending->count && *older < chunk_count(pending); ++*older)
        if (pending->chunks[*older].kind != TIDE_PENDING_NONE && pending->chunks[*older].step != step)
            return true;
    return false;
}

void tide_pending_step_begin(tide_pending *pending, uint64_t step)
{
    assert(step > pending->training_step);
    pending->training_step = step;
    pending->begun = 0;
}

static void start(tide_pending *pending, tide_chunk chunk, tide_pending_kind kind, bool descends)
{
    tide_pending_update *update = &pending->chunks[chunk];
    assert(tide_pending_is_param_chunk(pending, chunk));
    assert(update->kind == TIDE_PENDING_NONE && update->pieces > 0);
    assert(kind == TIDE_PENDING_RESTORE || tide_tensors_all_closed(pending->tensors, chunk));
    assert(kind == TIDE_PENDING_RESTORE || update->step != pending->training_step);
    assert(kind != TIDE_PENDING_NONE && !update->running && pending->count < chunk_count(pending));
    update->kind = kind;
    update->descends = descends;
    update->done = 0;
    update->step = pending->training_step;
    update->on_device = pending->on_device[chunk];
    pending->count++;
    pending->pieces_open += update->pieces;
    notify(pending, chunk);
}

void tide_pending_start_complete(tide_pending *pending, uint32_t param)
{
    assert(param < tide_layout_params(pending->layout));
    const tide_param_record *record = &pending->tensors->params[param];
    for (tide_chunk chunk = record->first; chunk <= record->last; chunk++)
        if (pending->chunks[chunk].step != pending->training_step &&
            tide_tensors_is_complete(pending->tensors, chunk, pending->training_step))
            start(pending, chunk, TIDE_PENDING_UPDATE, true);
}

void tide_pending_start_all(tide_pending *pending)
{
    assert(pending->count == 0 && pending->pieces_open == 0);
    for (tide_chunk chunk = 0; chunk < chunk_count(pending); chunk++)
        if (pending->chunks[chunk].pieces > 0)
            start(pending, chunk, TIDE_PENDING_UPDATE, false);
}

/* Drop the rest of a chunk's pending update or restore. */
static void drop(tide_pending *pending, tide_chunk chunk)
{
    tide_pending_update *update = &pending->chunks[chunk];
    assert(!update->running);
    if (update->kind == TIDE_PENDING_NONE)
        return;
    assert(pending->count > 0 && pending->pieces_open >= update->pieces - update->done);
    pending->pieces_open -= update->pieces - update->done;
    pending->count--;
    update->kind = TIDE_PENDING_NONE;
    notify(pending, chunk);
}

static void restore(tide_pending *pending, tide_chunk chunk)
{
    const uint64_t step = pending->training_step;
    const tide_pending_update *update = &pending->chunks[chunk];
    if (update->kind == TIDE_PENDING_UPDATE && update->step == step) {
        assert(update->done == 0);
        drop(pending, chunk);
    }
    if (update->kind != TIDE_PENDING_NONE || update->pieces == 0)
        return;
    tide_places_unmark(pending->tensors->places, chunk,
                       TIDE_MARK_EVICTING | TIDE_MARK_WRITING | TIDE_MARK_KEPT);
    if (tide_tensors_has_gradient(pending->tensors, chunk, step))
        start(pending, chunk, TIDE_PENDING_RESTORE, false);
    else
        tide_tensors_settle(pending->tensors, chunk, step);
}

void tide_pending_restore(tide_pending *pending)
{
    assert(pending->begun == 0);
    for (tide_chunk chunk = 0; chunk < chunk_count(pending); chunk++)
        restore(pending, chunk);
}

void tide_pending_forget(tide_pending *pending)
{
    for (tide_chunk chunk = 0; chunk < chunk_count(pending); chunk++)
        drop(pending, chunk);
    assert(pending->count == 0 && pending->pieces_open == 0);
    tide_tensors_forget_gradients(pending->tensors);
    pending->failed = false;
}

/* --- pieces --- */

void tide_pending_piece_begin(tide_pending *pending, tide_chunk chunk)
{
    tide_pending_update *update = &pending->chunks[chunk];
    assert(update->kind != TIDE_PENDING_NONE && !update->running);
    assert(tide_pending_is_param_chunk(pending, chunk) && update->done < update->pieces);
    update->running = true;
    notify(pending, chunk);
    pending->begun += update->kind == TIDE_PENDING_UPDATE && update->step == pending->training_step;
}

static void change_sides(tide_pending *pending, tide_chunk chunk)
{
    assert(pending->on_device[chunk] != pending->wanted_on_device[chunk]);
    assert(pending->chunks[chunk].kind == TIDE_PENDING_NONE);
    pending->placements++;
    pending->on_device[chunk] = pending->wanted_on_device[chunk];
    for (uint32_t i = 0; i < pending->chunks[chunk].pieces; i++)
        notify(pending, tide_layout_piece(pending->layout, chunk, i).state_chunk);
}

static void finish(tide_pending *pending, tide_chunk chunk)
{
    tide_pending_update *update = &pending->chunks[chunk];
    assert(update->done < update->pieces && pending->pieces_open > 0);
    update->done++;
    pending->pieces_open--;
    if (update->done < update->pieces)
        return;
    drop(pending, chunk);
    if (pending->on_device[chunk] != pending->wanted_on_device[chunk])
        change_sides(pending, chunk);
    tide_tensors_settle(pending->tensors, chunk, update->step);
}

void tide_pending_piece_end(tide_pending *pending, tide_chunk chunk, tide_piece_end how)
{
    tide_pending_update *update = &pending->chunks[chunk];
    const bool updates = update->kind == TIDE_PENDING_UPDATE;
    assert(update->kind != TIDE_PENDING_NONE && update->running);
    assert((unsigned)how <= TIDE_PIECE_CANCELLED && tide_pending_is_param_chunk(pending, chunk));
    update->running = false;
    notify(pending, chunk);
    if (how == TIDE_PIECE_DONE)
        finish(pending, chunk);
    else if (updates && how == TIDE_PIECE_FAILED)
        pending->failed = true;
    else if (updates && update->step == pending->training_step)
        pending->begun--;
}

/* --- placement --- */

/* How many chunks the device should update so that it finishes together with the host, which updates the
 * others; but at least as many as the host has no slots for. All of them if the seconds are not known. */
static uint32_t balanced_updates(const tide_pending *pending)
{
    const uint32_t chunks = pending->trained;
    const double host = pending->seconds[TIDE_TIER_HOST], device = pending->seconds[TIDE_TIER_DEVICE];
    if (chunks == 0 || !(host > 0 && device > 0))
        return chunks;
    const uint32_t balanced = (uint32_t)(chunks * (host / (host + device)) + 0.5);
    assert(balanced <= chunks);
    /* for a chunk that the host updates it needs slots for the state and for a copy of the chunk */
    const uint64_t all = (uint64_t)chunks + tide_layout_space_chunks(pending->layout, TIDE_SPACE_STATE);
    const uint32_t elsewhere = (uint32_t)(pending->slots[TIDE_TIER_HOST] * (uint64_t)chunks / all);
    return balanced + elsewhere < chunks ? chunks - elsewhere : balanced;
}

/* The number of STATE chunks counted for a trained PARAM chunk: without the one that it shares with the next
 * PARAM chunk, which counts for that. */
static uint32_t own_states(const tide_pending *pending, tide_chunk chunk)
{
    const uint32_t pieces = pending->chunks[chunk].pieces;
    tide_chunk first, last;
    assert(pieces > 0);
    const tide_piece piece = tide_layout_piece(pending->layout, chunk, pieces - 1);
    tide_layout_state_owners(pending->layout, piece.state_chunk, &first, &last);
    return pieces - (last > chunk);
}

static void place(tide_pending *pending)
{
    const uint32_t chunks = chunk_count(pending);
    const uint32_t others =
        chunks + tide_layout_space_chunks(pending->layout, TIDE_SPACE_ACTIVATION) + SPARE_SLOTS;
    const uint32_t device = pending->slots[TIDE_TIER_DEVICE];
    uint32_t margin = device > others ? device - others : 0, wanted = balanced_updates(pending);
    bool has_capacity = margin > 0; /* with no margin not even an update that needs no slot goes there */
    pending->balanced = wanted;
    for (tide_chunk i = 0; i < chunks; i++) {
        if (pending->chunks[i].pieces == 0)
            continue;
        const uint32_t slots = own_states(pending, i);
        const bool fits =
            pending->placement == TIDE_PLACEMENT_AUTO && has_capacity && slots <= margin && wanted > 0;
        margin -= fits ? slots : 0;
        has_capacity = fits;
        wanted -= fits;
        pending->wanted_on_device[i] = fits || pending->placement == TIDE_PLACEMENT_DEVICE;
    }
}

/* --- creation --- */

tide_status tide_pending_create(tide_pending *pending, const tide_layout *layout, tide_tensors *tensors,
                                const uint32_t slots[TIDE_TIER_COUNT], tide_placement placement)
{
    assert(slots[TIDE_TIER_DEVICE] > 0 && slots[TIDE_TIER_HOST] > 0);
    assert((unsigned)placement <= TIDE_PLACEMENT_DEVICE);
    *pending = (tide_pending){.layout = layout, .tensors = tensors, .placement = placement};
    memcpy(pending->slots, slots, sizeof pending->slots);
    const uint32_t chunks = chunk_count(pending);
    pending->chunks = tide_arrays_add(&pending->arrays, chunks, sizeof *pending->chunks);
    pending->on_device = tide_arrays_add(&pending->arrays, chunks, sizeof *pending->on_device);
    pending->wanted_on_device = tide_arrays_add(&pending->arrays, chunks, sizeof *pending->wanted_on_device);
    if (pending->arrays.lacks)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for updates of %u chunks", chunks);
    for (tide_chunk chunk = 0; chunk < chunks; chunk++) {
        pending->chunks[chunk].pieces = tide_layout_pieces(layout, chunk);
        pending->trained += pending->chunks[chunk].pieces > 0;
    }
    place(pending);
    memcpy(pending->on_device, pending->wanted_on_device, chunks * sizeof *pending->on_device);
    return TIDE_OK;
}

void tide_pending_destroy(tide_pending *pending)
{
    tide_arrays_free(&pending->arrays);
    *pending = (tide_pending){.chunks = NULL};
}

void tide_pending_set_seconds(tide_pending *pending, double host_seconds, double device_seconds)
{
    assert(host_seconds >= 0 && device_seconds >= 0);
    pending->seconds[TIDE_TIER_HOST] = host_seconds;
    pending->seconds[TIDE_TIER_DEVICE] = device_seconds;
    const uint32_t chunks = pending->trained;
    const uint32_t wanted = balanced_updates(pending), had = pending->balanced;
    const uint32_t moved = wanted > had ? wanted - had : had - wanted;
    if (pending->placement == TIDE_PLACEMENT_AUTO && moved * PLACEMENT_STEPS >= chunks)
        place(pending);
}

uint32_t tide_pending_state_slots(const tide_pending *pending)
{
    const uint32_t in_all = tide_layout_space_chunks(pending->layout, TIDE_SPACE_STATE);
    uint32_t on_device = 0;
    for (tide_chunk chunk = 0; tide_pending_is_param_chunk(pending, chunk); chunk++) {
        if (pending->on_device[chunk] && pending->placement == TIDE_PLACEMENT_AUTO)
            on_device += own_states(pending, chunk);
    }
    assert(on_device <= in_all);
    const uint32_t host_slots = pending->slots[TIDE_TIER_HOST];
    const uint32_t off_host = in_all - on_device > host_slots ? in_all - on_device - host_slots : 0;
    return on_device + off_host;
}

bool tide_pending_is_valid(const tide_pending *pending)
{
    uint32_t count = 0, pieces = 0;
    for (tide_chunk chunk = 0; chunk < chunk_count(pending); chunk++) {
        const tide_pending_update *update = &pending->chunks[chunk];
        if (update->kind == TIDE_PENDING_NONE)
            continue;
        if (update->done >= update->pieces)
            return false;
        count++;
        pieces += update->pieces - update->done;
    }
    return count == pending->count && pieces == pending->pieces_open;
}
