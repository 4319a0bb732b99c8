/* See dues.h. */
#include "chunk/dues.h"

#include <assert.h>
#include <string.h>

enum {
    SPARE_SLOTS = 1,
    PLACEMENT_STEPS = 16, /* updates change sides only by so large a part of all at once */
};

/* --- set-up --- */

static uint32_t chunk_count(const tide_dues *dues)
{
    return tide_layout_space_chunks(dues->layout, TIDE_SPACE_PARAM);
}

tide_status tide_dues_create(tide_dues *dues, const tide_layout *layout, tide_tensors *tensors)
{
    *dues = (tide_dues){.layout = layout, .tensors = tensors};
    const uint32_t chunks = chunk_count(dues);
    dues->chunks = tide_arrays_add(&dues->arrays, chunks, sizeof *dues->chunks);
    dues->on_device = tide_arrays_add(&dues->arrays, chunks, sizeof *dues->on_device);
    dues->wanted_on_device = tide_arrays_add(&dues->arrays, chunks, sizeof *dues->wanted_on_device);
    if (dues->arrays.lacks)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for updates of %u chunks", chunks);
    for (tide_chunk chunk = 0; chunk < chunks; chunk++) {
        dues->chunks[chunk].pieces = tide_layout_pieces(layout, chunk);
        dues->trained += dues->chunks[chunk].pieces > 0;
    }
    return TIDE_OK;
}

void tide_dues_destroy(tide_dues *dues)
{
    tide_arrays_free(&dues->arrays);
    *dues = (tide_dues){.chunks = NULL};
}

/* --- what is owed --- */

static void note(tide_dues *dues, tide_chunk chunk)
{
    tide_places_note(dues->tensors->places, chunk, TIDE_WATCHERS_ALL);
}

bool tide_dues_owners(const tide_dues *dues, tide_chunk chunk, tide_chunk *first, tide_chunk *last)
{
    const tide_space space = tide_layout_chunk_space(dues->layout, chunk);
    *first = *last = chunk;
    if (space == TIDE_SPACE_STATE)
        tide_layout_state_owners(dues->layout, chunk, first, last);
    return space != TIDE_SPACE_ACTIVATION;
}

uint32_t tide_dues_piece(const tide_dues *dues, tide_chunk chunk)
{
    const tide_due *due = &dues->chunks[chunk];
    assert(due->kind != TIDE_DUE_NONE && due->done < due->pieces);
    return due->descends ? due->pieces - 1 - due->done : due->done;
}

/* Its gradients are complete and its own update has not begun. A param that spans chunks is at rest only when all of them
 * are updated, so its state alone does not tell. */
static bool awaits_update(const tide_dues *dues, tide_chunk chunk)
{
    assert(tide_dues_is_param_chunk(dues, chunk));
    if (!tide_tensors_all_closed(dues->tensors, chunk))
        return false;
    const uint32_t param = tide_layout_chunk_param(dues->layout, chunk, 0);
    return dues->chunks[chunk].step != dues->tensors->params[param].gradient_step;
}

bool tide_dues_must_leave(const tide_dues *dues, tide_chunk chunk)
{
    return tide_dues_is_param_chunk(dues, chunk) && !dues->on_device[chunk] &&
           (dues->chunks[chunk].kind != TIDE_DUE_NONE || awaits_update(dues, chunk));
}

bool tide_dues_owes(const tide_dues *dues, uint64_t step)
{
    for (tide_chunk chunk = 0; dues->count && chunk < chunk_count(dues); chunk++)
        if (dues->chunks[chunk].kind == TIDE_DUE_UPDATE && dues->chunks[chunk].step == step)
            return true;
    return false;
}

bool tide_dues_owes_older(const tide_dues *dues, uint64_t step, tide_chunk *owing)
{
    for (*owing = 0; dues->count && *owing < chunk_count(dues); ++*owing)
        if (dues->chunks[*owing].kind != TIDE_DUE_NONE && dues->chunks[*owing].step != step)
            return true;
    return false;
}

void tide_dues_step_begin(tide_dues *dues, uint64_t step)
{
    assert(step > dues->training_step);
    dues->training_step = step;
    dues->begun = 0;
}

static void start(tide_dues *dues, tide_chunk chunk, tide_due_kind kind, bool descends)
{
    tide_due *due = &dues->chunks[chunk];
    assert(tide_dues_is_param_chunk(dues, chunk));
    assert(due->kind == TIDE_DUE_NONE && due->pieces > 0);
    assert(kind == TIDE_DUE_RESTORE || tide_tensors_all_closed(dues->tensors, chunk));
    assert(kind == TIDE_DUE_RESTORE || due->step != dues->training_step);
    assert(kind != TIDE_DUE_NONE && !due->running && dues->count < chunk_count(dues));
    due->kind = kind;
    due->descends = descends;
    due->done = 0;
    due->step = dues->training_step;
    due->on_device = dues->on_device[chunk];
    dues->count++;
    dues->pieces_open += due->pieces;
    note(dues, chunk);
}

void tide_dues_start_complete(tide_dues *dues, uint32_t param)
{
    assert(param < tide_layout_params(dues->layout));
    const tide_param_record *record = &dues->tensors->params[param];
    for (tide_chunk chunk = record->first; chunk <= record->last; chunk++)
        if (dues->chunks[chunk].step != dues->training_step &&
            tide_tensors_is_complete(dues->tensors, chunk, dues->training_step))
            start(dues, chunk, TIDE_DUE_UPDATE, true);
}

void tide_dues_start_all(tide_dues *dues)
{
    assert(dues->count == 0 && dues->pieces_open == 0);
    for (tide_chunk chunk = 0; chunk < chunk_count(dues); chunk++)
        if (dues->chunks[chunk].pieces > 0)
            start(dues, chunk, TIDE_DUE_UPDATE, false);
}

/* What is left of it is owed no more. */
static void drop(tide_dues *dues, tide_chunk chunk)
{
    tide_due *due = &dues->chunks[chunk];
    assert(!due->running);
    if (due->kind == TIDE_DUE_NONE)
        return;
    assert(dues->count > 0 && dues->pieces_open >= due->pieces - due->done);
    dues->pieces_open -= due->pieces - due->done;
    dues->count--;
    due->kind = TIDE_DUE_NONE;
    note(dues, chunk);
}

static void restore(tide_dues *dues, tide_chunk chunk)
{
    const uint64_t step = dues->training_step;
    const tide_due *due = &dues->chunks[chunk];
    if (due->kind == TIDE_DUE_UPDATE && due->step == step) {
        assert(due->done == 0);
        drop(dues, chunk);
    }
    if (due->kind != TIDE_DUE_NONE || due->pieces == 0)
        return;
    tide_places_unmark(dues->tensors->places, chunk, TIDE_MARK_LEAVING | TIDE_MARK_WRITING | TIDE_MARK_KEPT);
    if (tide_tensors_has_gradient(dues->tensors, chunk, step))
        start(dues, chunk, TIDE_DUE_RESTORE, false);
    else
        tide_tensors_settle(dues->tensors, chunk, step);
}

void tide_dues_restore(tide_dues *dues)
{
    assert(dues->begun == 0);
    for (tide_chunk chunk = 0; chunk < chunk_count(dues); chunk++)
        restore(dues, chunk);
}

void tide_dues_forget(tide_dues *dues)
{
    for (tide_chunk chunk = 0; chunk < chunk_count(dues); chunk++)
        drop(dues, chunk);
    assert(dues->count == 0 && dues->pieces_open == 0);
    tide_tensors_forget_gradients(dues->tensors);
    dues->failed = false;
}

/* --- pieces --- */

void tide_dues_piece_begin(tide_dues *dues, tide_chunk chunk)
{
    tide_due *due = &dues->chunks[chunk];
    assert(due->kind != TIDE_DUE_NONE && !due->running);
    assert(tide_dues_is_param_chunk(dues, chunk) && due->done < due->pieces);
    due->running = true;
    note(dues, chunk);
    dues->begun += due->kind == TIDE_DUE_UPDATE && due->step == dues->training_step;
}

static void change_sides(tide_dues *dues, tide_chunk chunk)
{
    assert(dues->on_device[chunk] != dues->wanted_on_device[chunk]);
    assert(dues->chunks[chunk].kind == TIDE_DUE_NONE);
    dues->placements++;
    dues->on_device[chunk] = dues->wanted_on_device[chunk];
    for (uint32_t i = 0; i < dues->chunks[chunk].pieces; i++)
        note(dues, tide_layout_piece(dues->layout, chunk, i).state_chunk);
}

static void finish(tide_dues *dues, tide_chunk chunk)
{
    tide_due *due = &dues->chunks[chunk];
    assert(due->done < due->pieces && dues->pieces_open > 0);
    due->done++;
    dues->pieces_open--;
    if (due->done < due->pieces)
        return;
    drop(dues, chunk);
    if (dues->on_device[chunk] != dues->wanted_on_device[chunk])
        change_sides(dues, chunk);
    tide_tensors_settle(dues->tensors, chunk, due->step);
}

void tide_dues_piece_end(tide_dues *dues, tide_chunk chunk, tide_piece_end how)
{
    tide_due *due = &dues->chunks[chunk];
    const bool updates = due->kind == TIDE_DUE_UPDATE;
    assert(due->kind != TIDE_DUE_NONE && due->running);
    assert((unsigned)how <= TIDE_PIECE_CANCELLED && tide_dues_is_param_chunk(dues, chunk));
    due->running = false;
    note(dues, chunk);
    if (how == TIDE_PIECE_DONE)
        finish(dues, chunk);
    else if (updates && how == TIDE_PIECE_FAILED)
        dues->failed = true;
    else if (updates && due->step == dues->training_step)
        dues->begun--;
}

/* --- placement --- */

/* Chunks whose update the device would end at the same time as the host the others, but no fewer than the host has no room
 * for. Not known yet: all. */
static uint32_t balanced_updates(const tide_dues *dues)
{
    const uint32_t chunks = dues->trained;
    const double host = dues->seconds[TIDE_TIER_HOST], device = dues->seconds[TIDE_TIER_DEVICE];
    if (chunks == 0 || !(host > 0 && device > 0))
        return chunks;
    const uint32_t balanced = (uint32_t)(chunks * (host / (host + device)) + 0.5);
    assert(balanced <= chunks);
    /* The host has room for the state of so many, with a copy of each. */
    const uint64_t all = (uint64_t)chunks + tide_layout_space_chunks(dues->layout, TIDE_SPACE_STATE);
    const uint32_t elsewhere = (uint32_t)(dues->slots[TIDE_TIER_HOST] * (uint64_t)chunks / all);
    return balanced + elsewhere < chunks ? chunks - elsewhere : balanced;
}

/* STATE chunks of a trained PARAM chunk; one that it shares with the next chunk is counted there. */
static uint32_t own_states(const tide_dues *dues, tide_chunk chunk)
{
    const uint32_t pieces = dues->chunks[chunk].pieces;
    tide_chunk first, last;
    assert(pieces > 0);
    const tide_piece piece = tide_layout_piece(dues->layout, chunk, pieces - 1);
    tide_layout_state_owners(dues->layout, piece.state_chunk, &first, &last);
    return pieces - (last > chunk);
}

static void place(tide_dues *dues)
{
    const uint32_t chunks = chunk_count(dues);
    const uint32_t others =
        chunks + tide_layout_space_chunks(dues->layout, TIDE_SPACE_ACTIVATION) + SPARE_SLOTS;
    const uint32_t device = dues->slots[TIDE_TIER_DEVICE];
    uint32_t margin = device > others ? device - others : 0, wanted = balanced_updates(dues);
    bool has_room = margin > 0; /* for what goes back and forth, too, if none of it stays */
    dues->balanced = wanted;
    for (tide_chunk i = 0; i < chunks; i++) {
        if (dues->chunks[i].pieces == 0)
            continue;
        const uint32_t slots = own_states(dues, i);
        const bool fits = dues->placement == TIDE_PLACEMENT_AUTO && has_room && slots <= margin && wanted > 0;
        margin -= fits ? slots : 0;
        has_room = fits;
        wanted -= fits;
        dues->wanted_on_device[i] = fits || dues->placement == TIDE_PLACEMENT_DEVICE;
    }
}

void tide_dues_seal(tide_dues *dues, const uint32_t slots[TIDE_TIER_COUNT], tide_placement placement)
{
    assert(dues->count == 0 && slots[TIDE_TIER_DEVICE] > 0 && slots[TIDE_TIER_HOST] > 0);
    assert((unsigned)placement <= TIDE_PLACEMENT_DEVICE);
    memcpy(dues->slots, slots, sizeof dues->slots);
    dues->placement = placement;
    place(dues);
    memcpy(dues->on_device, dues->wanted_on_device, chunk_count(dues) * sizeof *dues->on_device);
}

void tide_dues_set_seconds(tide_dues *dues, double host_seconds, double device_seconds)
{
    assert(host_seconds >= 0 && device_seconds >= 0);
    dues->seconds[TIDE_TIER_HOST] = host_seconds;
    dues->seconds[TIDE_TIER_DEVICE] = device_seconds;
    const uint32_t chunks = dues->trained;
    const uint32_t wanted = balanced_updates(dues), had = dues->balanced;
    const uint32_t moved = wanted > had ? wanted - had : had - wanted;
    if (dues->placement == TIDE_PLACEMENT_AUTO && moved * PLACEMENT_STEPS >= chunks)
        place(dues);
}

uint32_t tide_dues_state_slots(const tide_dues *dues)
{
    const uint32_t in_all = tide_layout_space_chunks(dues->layout, TIDE_SPACE_STATE);
    uint32_t on_device = 0;
    for (tide_chunk chunk = 0; tide_dues_is_param_chunk(dues, chunk); chunk++) {
        if (dues->on_device[chunk] && dues->placement == TIDE_PLACEMENT_AUTO)
            on_device += own_states(dues, chunk);
    }
    assert(on_device <= in_all);
    const uint32_t room = dues->slots[TIDE_TIER_HOST];
    const uint32_t off_host = in_all - on_device > room ? in_all - on_device - room : 0;
    return on_device + off_host;
}

bool tide_dues_is_valid(const tide_dues *dues)
{
    uint32_t count = 0, pieces = 0;
    for (tide_chunk chunk = 0; chunk < chunk_count(dues); chunk++) {
        const tide_due *due = &dues->chunks[chunk];
        if (due->kind == TIDE_DUE_NONE)
            continue;
        if (due->done >= due->pieces)
            return false;
        count++;
        pieces += due->pieces - due->done;
    }
    return count == dues->count && pieces == dues->pieces_open;
}
