/* The chunk manager: decides which chunk to fetch, evict, prefetch, update and restore, and never does it.
 *
 * The owner (src/pool) reports each event (an op begins, a step ends, a command is done) and asks next() for
 * the commands that follow. The manager knows no threads, no clock, no device and no other folder; it is as
 * deterministic as its inputs. Not thread-safe: the pool's one lock guards it.
 *
 * Program order. The manager thinks in the order in which commands are handed out; the executor keeps that
 * order true on asynchronous streams. So a command is done
 *
 *   FETCH              when the mapping stands and the copy is enqueued (users of the slot wait for it)
 *   WRITE_BACK         when the copy has been seen to end
 *   EVICT              when the last use, the copy out included, has been seen and the place is unmapped
 *   UPDATE, RESTORE    host: when the host executor has finished; device: when it is enqueued. A host task's
 *                      chunks may stand, stale, in device slots; copies of them out have been seen to end
 *   ACCESS             when the caller's own work on the host slots is over
 *
 * Several commands may be open at once, in any order of completion. A command that fails (done with a status)
 * leaves its chunk where it was; the pool then stops stepping and aborts.
 *
 * Residency of a chunk
 *
 *             device slot  host slot
 *   absent    -            -          no content yet: zeros (model data) or nothing (FREE activations)
 *   host      -            valid
 *   stale     its own      valid      the host updates it: the slot waits, mapped, for the new values
 *   clean     valid        valid      evicted without a copy
 *   dirty     valid        -          evicted with a copy; exclusive residence looks the same
 *
 * Requests, in order of precedence
 *
 *   1. the open op's (or slice's) chunks, on the device, pinned from ready to end (request.h). A chunk whose
 *      update is pending is updated first: weights are never stale.
 *   2. updates and restores, in forward order (tasks.h), on the host or on the device as placed (pending.h).
 *   3. prefetch along the plan made of the recorded step (planner.h, eviction_queue.h, prefetch.h).
 *
 * Nothing pinned waits for anything that is not pinned: an op is pinned only when complete, a host task
 * finishes on its own, a device task pins for no time. With at least the slots tide_manager_needs() names,
 * every request becomes ready. Where slots come from: victims.h.
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
} tide_manager_options;

/* The fewest slots with which everything becomes ready. */
typedef struct tide_slot_needs {
    tide_op largest_op;        /* the op with the largest working set */
    uint32_t largest_op_slots; /* the chunks of that op's params and of its largest slice */
    /* fewest device slots: for that op, or for a device update if the placement asks for those */
    uint32_t device_slots;
    uint32_t host_slots; /* fewest host slots: for a host task */
    /* fewest slots of both tiers together: one for each chunk, and a spare one for exchanges */
    uint32_t total_slots;
} tide_slot_needs;

/* --- set-up --- */

/* The fewest slots that ops need under a placement. */
void tide_manager_needs(const tide_ops *ops, tide_placement placement, tide_slot_needs *needs);

/* A manager for a layout, which must outlive it, and the ops of its description. NO_MEMORY. Freed with
 * tide_manager_destroy (NULL allowed). */
tide_status tide_manager_create(const tide_layout *layout, tide_manager **manager);
void tide_manager_destroy(tide_manager *manager);

/* Fix tiers and placement. BUDGET if the slots are fewer than needed (the message counts slots; the pool says
 * it in bytes). Allocates everything; nothing is allocated afterwards. */
tide_status tide_manager_seal(tide_manager *manager, const tide_manager_options *options);

/* Seconds that the update of one PARAM chunk takes on each tier, as measured; 0: not known. With AUTO
 * placement state moves, chunk by chunk as updates are done, so that both tiers end their updates together as
 * far as device slots, and the host's, allow; by small differences it does not move. */
void tide_manager_set_update_seconds(tide_manager *manager, double host_seconds, double device_seconds);

/* --- a step --- */

/* Begin a training step or a forward-only pass. `updates_wait`: updates need tide_manager_release_updates
 * (clipping); otherwise each starts when its chunk's gradients are complete. Updates of the step before may
 * still be open: an op waits for those of its own chunks. STATE if a step is open or release/skip is still
 * pending from the step before. */
tide_status tide_manager_step_begin(tide_manager *manager, bool training, bool updates_wait);

/* Request an op's params (and no slice yet). Ready at once if all is resident. STATE, naming op or param: no
 * step, an op is open, a backward op in a forward-only pass, as tide_gradients_check. */
tide_status tide_manager_begin(tide_manager *manager, tide_op op);
/* Request slice `slice` of the open op's ACTIVATION tensors; the slice before is released. STATE: the op is
 * not ready; READ of a part that is FREE (names the tensor); ARGUMENT: slice out of range. */
tide_status tide_manager_slice(tide_manager *manager, uint32_t slice);
/* Are all requested chunks resident and pinned? tide_request_try_pin (request.h) pins them as soon as they can be. */
bool tide_manager_ready(const tide_manager *manager);
/* The thing that the open request waits for. Sets *chunk, if `chunk` is not NULL, to one of the chunks that
 * it waits for; TIDE_CHUNK_NONE if it is ready. */
tide_request_wait tide_manager_request_wait(tide_manager *manager, tide_chunk *chunk);
/* End the open op, which is ready: release its pins, move its tensors to their next states. Params whose
 * gradient this op completes become HOLD_AFTER_BWD. */
tide_status tide_manager_end(tide_manager *manager);
/* Call when backward (or the forward-only pass) is over. Takes zero as the gradient of params without one and
 * counts them; ACTIVATION tensors become FREE. Does not wait for updates. STATE if an op is open, as
 * tide_gradients_check_end, or if an update of an earlier step is still pending for a chunk. (An op that uses
 * the chunk would have waited for that update, but no op of this step used it.) In the last case go on with
 * next() and done() until the step may end. */
tide_status tide_manager_step_end(tide_manager *manager);
/* With updates_wait: let the step's updates run, or drop them and rewrite the params from their state (a
 * skipped step). */
tide_status tide_manager_release_updates(tide_manager *manager);
tide_status tide_manager_skip_updates(tide_manager *manager);
/* The number of UPDATE and RESTORE tasks of the last step that are not done yet. */
uint32_t tide_manager_updates_open(const tide_manager *manager);

/* Give up the open step and every request. STATE if a command is open.
 *
 * If no update of this step has been handed out, nothing is lost: `*poisoned` is false, and a RESTORE task
 * follows for every chunk that holds gradients, or that may hold some because the open op rounds them into it
 * at its end. Otherwise `*poisoned` is true: the params are undefined, and the owner must set them all.
 * Updates of the step before go on; if one of them failed, that poisons, too.
 *
 * `*gave_up`: a training step was given up, by which the owner counts steps and updates. None was if a
 * forward-only pass was open, or if nothing was open and all updates were done. */
tide_status tide_manager_abort(tide_manager *manager, bool *gave_up, bool *poisoned);

/* --- commands --- */

/* Tell the manager for each direction of the link whether it has enough copies under way to be kept busy.
 * Moves that may as well come later then wait, so that an urgent one does not queue behind them, and chunks
 * leave the device in order of next use. A move that an op waits for never waits for this. At the start
 * neither direction is busy. The owner asks next() again when this changes. */
void tide_manager_set_link(tide_manager *manager, bool in_busy, bool out_busy);
/* Tell the manager that the work of the first `ends` calls of tide_manager_end is over on the device, which
 * the caller may be far ahead of: chunks leave in order of next use among those whose uses are over. Without
 * any call all uses count as over. */
void tide_manager_set_passed(tide_manager *manager, uint64_t ends);
/* The next command to execute; false if there is none at present (ask again after done or a request). */
bool tide_manager_next(tide_manager *manager, tide_command *command);
/* Command `id` is done, or failed and changed nothing. */
void tide_manager_done(tide_manager *manager, uint32_t id, tide_status status);
/* Task `id` was never started and changed nothing: it is pending as before. Unlike a failed UPDATE it poisons
 * nothing. */
void tide_manager_cancel(tide_manager *manager, uint32_t id);
/* How many chunks wait to leave the device or to be copied out. */
uint32_t tide_manager_evicting(const tide_manager *manager);
/* Might next() have a command? Cheaper than next(), and true too often rather than too seldom: while
 * everything is resident the owner need not wake the thread that calls next(). */
bool tide_manager_may_act(const tide_manager *manager);
/* True when a request is open (or updates are, with no op open), no command is, and the last next() had none:
 * it would never become ready. A bug; the owner reports it instead of hanging. Ask after next() returned
 * false. */
bool tide_manager_is_stuck(tide_manager *manager);

/* --- the host request: param_set and param_get --- */

/* Ask for up to TIDE_TASK_CHUNKS_MAX chunks in the HOST tier, which has slots for them all. An ACCESS command
 * comes when they are there and their updates are done; the request is over with done(). WRITE: the host copy
 * becomes the only valid one; the old content is brought all the same, so that the caller may write a part of
 * it. STATE: a step or another host request is open, or release or skip of the last step is pending.
 * ARGUMENT: no such chunk, one named twice, no chunk or too many. */
tide_status tide_manager_host_request(tide_manager *manager, const tide_use *chunks, uint32_t count);

/* --- queries --- */

/* The gradients of the step. The manager owns them; only its step_begin, begin and end change them. */
tide_gradients *tide_manager_gradients(tide_manager *manager);
/* Does PARAM chunk `param_chunk` keep its optimizer state on the device? Changes only when its update is
 * done. */
bool tide_manager_updates_on_device(const tide_manager *manager, tide_chunk param_chunk);
/* The device slot of a chunk that the open op holds. */
uint32_t tide_manager_held_slot(const tide_manager *manager, tide_chunk chunk);
void tide_manager_counters_get(const tide_manager *manager, tide_manager_counters *counters);

/* --- for observers: trace and telemetry (watch.c) --- */

typedef struct tide_chunk_view {
    tide_stand device, host;
    uint32_t device_slot, host_slot; /* TIDE_SLOT_NONE: it has none */
    tide_content content;
    uint32_t closed; /* of a PARAM chunk: the number of its params whose gradient is complete */
    bool pinned;     /* an op or a task holds it */
    bool pending;    /* an update or a restore of the chunk is pending */
} tide_chunk_view;

/* A chunk that may have changed since this call last returned it; false: there is none. Each changed chunk is
 * returned once. */
bool tide_manager_changed_chunk(tide_manager *manager, tide_chunk *chunk, tide_chunk_view *view);
/* Let tide_manager_changed_chunk return every chunk once more. */
void tide_manager_changed_all(tide_manager *manager);
/* Does the param's place hold its gradient? */
bool tide_manager_has_gradient(const tide_manager *manager, uint32_t param);
/* Lists the chunks that the open request lacks, one a call, with the thing that each waits for. Begin with *i
 * = 0; false: there are no more. */
bool tide_manager_lacks(tide_manager *manager, uint32_t *i, tide_chunk *chunk, tide_request_wait *wait);
/* How many chunks the open op, or its open slice, asked for. */
uint32_t tide_manager_requested(const tide_manager *manager);
/* Has the pass followed the recording so far? */
bool tide_manager_follows(const tide_manager *manager);

/* The plan for training steps, or for forward-only passes; false without one. */
typedef struct tide_manager_plan {
    uint64_t number;                /* the plan's number among all plans made so far */
    uint64_t copies_in, copies_out; /* chunks copied in a pass */
    uint64_t least_in, least_out;   /* lower bounds on them (least.h); 0 before tide_manager_plan_least */
} tide_manager_plan;

bool tide_manager_plan_get(const tide_manager *manager, bool training, tide_manager_plan *plan);
/* Fill in least_in and least_out of a plan from tide_manager_plan_get; least.h says how long that takes.
 * Needs tide_manager_watch. */
void tide_manager_plan_least(const tide_manager *manager, bool training, tide_manager_plan *plan);
/* Allocate the memory that tide_manager_plan_least needs. Call after seal. NO_MEMORY. */
tide_status tide_manager_watch(tide_manager *manager);

#endif
