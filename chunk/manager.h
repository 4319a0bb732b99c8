/* The chunk manager: decides which chunks to fetch, evict, prefetch, update and restore. Its owner executes
 * the commands.
 *
 * The owner (src/pool) reports each event (an op begins, a step ends, a command is done) and asks next() for
 * the commands that follow. The manager uses no threads, no clock, no device and no other folder; equal calls
 * give equal commands. Not thread-safe: the pool's one lock guards it.
 *
 * Program order. The manager treats commands as if each took effect in the order in which next() returns
 * them; the owner makes that true on asynchronous streams. So the owner reports a command as done
 *
 *   FETCH              when the slot is mapped and the copy enqueued (work that uses the slot waits for it)
 *   WRITE_BACK         when the owner has seen the copy end
 *   EVICT              when the owner has seen the slot's last use and copy end, and the slot is unmapped
 *   UPDATE, RESTORE    host: when the host executor has finished; device: when it is enqueued. A host task's
 *                      chunks may have stale device slots; the owner has seen all copies from these end
 *   ACCESS             when the owner has finished its work on the host slots
 *
 * Several commands may be open at once and may be done in any order. A command that fails (done with a
 * status) leaves its chunk where it was; the owner then gives the step up (tide_manager_abort).
 *
 * Residency of a chunk
 *
 *             device slot  host slot
 *   absent    -            -          no content yet: zeros (model data) or nothing (FREE activations)
 *   host      -            valid
 *   stale     its own      valid      the host updates it: the slot waits, mapped, for the new values
 *   clean     valid        valid      evicted without a copy
 *   dirty     valid        -          evicted with a copy
 *
 * Requests, in order of precedence
 *
 *   1. the chunks of the open op or slice, on the device, pinned from when all are ready until its end
 *      (request.h). A chunk whose update is pending is updated first, so an op never reads old values.
 *   2. updates and restores, in forward order (tasks.h), on the host or on the device as placed (pending.h).
 *   3. prefetch along the plan made of the recorded step (planner.h, eviction_queue.h, prefetch.h).
 *
 * No deadlock: an op or host task pins its chunks only when all of them are in place, and then needs nothing
 * more to finish; a device task is done when it is enqueued. So with at least as many slots as
 * tide_manager_needs() says, every request becomes ready. victims.h says whose slots are taken.
 */
#ifndef TIDE_CHUNK_MANAGER_H
#define TIDE_CHUNK_MANAGER_H

#include "chunk/command.h"
#include "chunk/ops.h"
#include "chunk/planner.h"
#include "chunk/tensors.h"

typedef struct tide_manager tide_manager;

typedef struct tide_manager_options {
    uint32_t device_slots;
    uint32_t host_slots;
    tide_placement placement;
    bool prefetch;
    /* With several ranks (tide_layout_shard), and equal on all of them: the number of frames (frames.h), and
     * whether gathers run ahead of the ops that need them. They change no result. */
    uint32_t frames;
    bool ahead;
} tide_manager_options;

/* The fewest slots with which every request becomes ready. */
typedef struct tide_slot_needs {
    tide_op largest_op;        /* the op with the largest working set */
    uint32_t largest_op_slots; /* the chunks of that op's params and of its largest slice */
    /* fewest device slots: for that op, or for a device update if the placement has any */
    uint32_t device_slots;
    uint32_t host_slots; /* fewest host slots: for a host task */
    /* fewest slots of both tiers together: one for each chunk, and one more to exchange chunks */
    uint32_t total_slots;
    /* with several ranks: fewest frames (frames.h), each of a device slot for every other rank; and fewest
     * frames and device slots, without those of frames, for gathers that run ahead */
    uint32_t frames, frames_ahead, device_slots_ahead;
} tide_slot_needs;

/* --- set-up --- */

/* Set `needs` for a rank's layout and ops and a placement. */
void tide_manager_needs(const tide_ops *ops, tide_placement placement, tide_slot_needs *needs);

/* A manager for a layout, which must outlive it, and the ops of its description. BUDGET: there are fewer
 * slots than needed (the message counts slots; the pool's messages count bytes). UNSUPPORTED: a step has more
 * uses than can be numbered. NO_MEMORY. Allocates all memory that the manager needs, except for
 * tide_manager_watch. *manager is set on success only; freed with tide_manager_destroy (NULL allowed). */
tide_status tide_manager_create(const tide_layout *layout, const tide_manager_options *options,
                                tide_manager **manager);
void tide_manager_destroy(tide_manager *manager);

/* Seconds that the update of one PARAM chunk takes on each tier, as measured; 0: not known. With placement
 * AUTO the manager then changes which tier updates which chunks, each when none of its update is pending, so
 * that both tiers end their updates at about the same time, as far as slots allow. It changes nothing for
 * small differences. */
void tide_manager_set_update_seconds(tide_manager *manager, double host_seconds, double device_seconds);

/* --- a step --- */

/* Begin a training step or a forward-only pass. `updates_wait`: the step's updates wait for
 * tide_manager_release_updates (clipping); otherwise each starts when its chunk's gradients are complete.
 * Updates of the step before may still be pending: an op waits for those of its own chunks. STATE if a step
 * is open, or if the last step's updates were neither released nor skipped; with several ranks also if the
 * last step's NORM is not done, and for ever after an abort. */
tide_status tide_manager_step_begin(tide_manager *manager, bool training, bool updates_wait);

/* With several ranks, before a step begins: param values were set on one of the ranks, so that no frame has
 * the right ones. To be called on all ranks or on none. STATE if a step is open. */
tide_status tide_manager_values_set(tide_manager *manager);

/* Open an op and request its params (a slice's activations are requested by tide_manager_slice). The request
 * is ready at once if all chunks are resident. STATE, naming op or param: no step is open; an op is open; it
 * is a backward op in a forward-only pass; or as tide_gradients_check. */
tide_status tide_manager_begin(tide_manager *manager, tide_op op);
/* Release the open slice, if any, and request slice `slice` of the open op's ACTIVATION tensors. STATE: the
 * op is not ready, or the slice reads a part that is FREE (the message names the tensor). ARGUMENT: there is
 * no such slice. */
tide_status tide_manager_slice(tide_manager *manager, uint32_t slice);
/* Are all requested chunks resident and pinned? tide_request_try_pin (request.h) pins them as soon as they
 * can be. */
bool tide_manager_ready(const tide_manager *manager);
/* The reason why the open request waits. Sets *chunk, if `chunk` is not NULL, to one of the chunks for which
 * it waits; to TIDE_CHUNK_NONE if it is ready, or waits only for the REDUCE of the op before. */
tide_request_wait tide_manager_request_wait(tide_manager *manager, tide_chunk *chunk);
/* End the open op, which is ready: release its pins, move its tensors to their next states. Params whose
 * gradient this op completes become HOLD_AFTER_BWD; with several ranks they do, and their chunks stay pinned,
 * until the op's REDUCE is done. */
tide_status tide_manager_end(tide_manager *manager);
/* With several ranks: append to the roll a REDUCE of elements [first, first + count) of a param's gradient,
 * which the open op closes. The op's end appends one for the rest. STATE: no op is open and ready.
 * `*appended` is false if too many wait: call next() and done() until one is issued, then this again. */
tide_status tide_manager_reduce(tide_manager *manager, uint32_t param, uint64_t first, uint64_t count,
                                bool *appended);
/* End the step after its last op. Params without a gradient get gradient zero and are counted; ACTIVATION
 * tensors become FREE. Does not wait for this step's updates. STATE if an op is open, as
 * tide_gradients_check_end, or if an update of an earlier step is still pending, which can only be for a
 * chunk that no op of this step used; with several ranks also if the roll has entries that are not done. In
 * the last two cases call next() and done() until that is no longer so, then this again. */
tide_status tide_manager_step_end(tide_manager *manager);
/* With updates_wait, after the step's end: let its updates run; or skip the step: drop them and restore the
 * params from their state. */
tide_status tide_manager_release_updates(tide_manager *manager);
tide_status tide_manager_skip_updates(tide_manager *manager);
/* The number of UPDATE and RESTORE tasks of the last step that are not done yet. */
uint32_t tide_manager_updates_open(const tide_manager *manager);

/* Give up the open step and every request; with no step open, the last training step if its updates are not
 * all done. STATE if a command is open.
 *
 * If no update of this step has been handed out, nothing is lost: `*poisoned` is false, and RESTORE tasks
 * follow for every chunk with gradients, and for every chunk into which the open op's end rounds gradients,
 * since that may have begun. Otherwise `*poisoned` is true: the params are undefined, and the owner must set
 * them all. Updates of the step before go on; if one of them has failed, `*poisoned` is true, too.
 *
 * With several ranks no step follows: the others have done something else.
 *
 * `*gave_up` is true if a training step was given up, so that the owner can correct its counts. It is false
 * if a forward-only pass was open, or if no step was open and all updates were done. */
tide_status tide_manager_abort(tide_manager *manager, bool *gave_up, bool *poisoned);

/* --- commands --- */

/* Tell the manager for each direction of the link whether it has enough copies enqueued to stay busy. If so,
 * next() returns no move in that direction that is not urgent, so that an urgent one need not queue behind
 * it, and so that chunks leave the device in order of next use. A move for which an op waits is always
 * returned. At the start neither direction is busy. Call next() again when this changes. */
void tide_manager_set_link(tide_manager *manager, bool in_busy, bool out_busy);
/* Tell the manager that the device has finished the first `ends` op ends, which may be many fewer than there
 * were: calls of tide_manager_end and, with several ranks, done REDUCEs of whole ops, which count from when
 * the collective has ended. The eviction queue prefers chunks whose uses have ended on the device. If
 * this is never called, a use counts as ended there at tide_manager_end. */
void tide_manager_set_passed(tide_manager *manager, uint64_t ends);
/* The next command to execute; false if there is none at present (ask again after a call of done or of a
 * request). */
bool tide_manager_next(tide_manager *manager, tide_command *command);
/* Command `id` is done, or failed and changed nothing. */
void tide_manager_done(tide_manager *manager, uint32_t id, tide_status status);
/* Task `id` was never started and changed nothing: it is pending as before. Unlike a failed UPDATE it poisons
 * nothing. */
void tide_manager_cancel(tide_manager *manager, uint32_t id);
/* How many chunks wait to leave the device or to be copied out. */
uint32_t tide_manager_evicting(const tide_manager *manager);
/* False if next() has no command; true if it may have one. Cheaper than next(): while everything is resident
 * this is false, and the owner need not wake the thread that calls next(). */
bool tide_manager_may_act(const tide_manager *manager);
/* Is there a bug through which the owner would wait for ever? That is so if a request is open, or updates or
 * collectives are and no op is, or if tide_manager_reduce appends no more, although no command is open and
 * the last next() returned none. Ask after next() has returned
 * false. */
bool tide_manager_is_stuck(tide_manager *manager);

/* --- the host request: param_set and param_get --- */

/* Request up to TIDE_TASK_CHUNKS_MAX chunks in host slots. next() returns an ACCESS command when the chunks
 * are there and their updates are done; done() of that command ends the request. With access WRITE the host
 * copy becomes the only valid one; the old content is still copied there first, so that the caller may write
 * only a part of it. STATE: a step or another host request is open, or the last step's updates were neither
 * released nor skipped. ARGUMENT: no chunk, too many, an unknown chunk, or one named twice. */
tide_status tide_manager_host_request(tide_manager *manager, const tide_use *chunks, uint32_t count);

/* --- queries --- */

/* The state of the step's gradients. The manager owns it; only tide_manager_step_begin, begin and end change
 * it. */
tide_gradients *tide_manager_gradients(tide_manager *manager);
/* Does PARAM chunk `param_chunk` keep its optimizer state on the device? Changes only when its update is
 * done. */
bool tide_manager_updates_on_device(const tide_manager *manager, tide_chunk param_chunk);
/* The device slot of a chunk that the open op holds. */
uint32_t tide_manager_held_slot(const tide_manager *manager, tide_chunk chunk);
void tide_manager_counters_get(const tide_manager *manager, tide_manager_counters *counters);

#endif
