/* The manager's own structures, shared by its files and opened by its tests.
 *
 *   manager.c           set-up, needs, seal, queries, validity
 *   manager_op.c        what ops use, fixed before seal: chunk sets
 *   manager_step.c      steps, ops, slices: states and pins; abort
 *   manager_slots.c     where a slot comes from: victims, duplicates, spills
 *   manager_work.c      updates, restores and the host request: bringing a task's chunks together
 *   manager_pin_all.c   everything on the device at once
 *   manager_plan.c      the planner's plan at work: who leaves, who is fetched ahead
 *   manager_command.c   next and done
 *
 * Who may take slots from whom, in order of precedence (manager.h): the op's request from all, tasks from
 * each other never, prefetch only from chunks needed later. What a task has gathered stays while it is the
 * task being gathered, so every gather grows until it is complete; that is why nothing needs a pin before it
 * is.
 */
#ifndef TIDE_CHUNK_MANAGER_INTERNAL_H
#define TIDE_CHUNK_MANAGER_INTERNAL_H

#include "chunk/gradients.h"
#include "chunk/manager.h"
#include "chunk/planner.h"
#include "chunk/residency.h"
#include "chunk/schedule.h"
#include "chunk/tensor.h"
#include "chunk/use_set.h"

enum {
    TIDE_OPEN_COMMANDS_MAX = 256,
    TIDE_OPEN_TASKS_MAX = 2, /* updates and restores handed out at a time, per tier: one runs, one follows */
};

typedef struct tide_op_record {
    char *name;
    tide_pass pass;
    tide_use *params;
    uint32_t param_count;
    tide_use *checkpoints;
    uint32_t checkpoint_count;
    uint32_t slices;
    tide_chunk *chunks; /* of all its params, each once */
    bool *modifies;     /* per chunk: a gradient is rounded into it at op end. Filled at seal */
    uint32_t chunk_count;
    tide_chunk *slice_chunks; /* slice m's are [slice_first[m], slice_first[m + 1]) */
    uint32_t *slice_first;
    uint32_t largest_slice; /* chunks */
} tide_op_record;

typedef struct tide_param_record {
    tide_tensor_state state;
    tide_chunk first, last; /* PARAM chunks */
    bool has_gradient;      /* the gradient stands in its place */
    bool zero_gradient;
    uint32_t open_chunks;   /* chunks whose update or restore is still owed for this gradient */
    uint64_t gradient_step; /* the step that made it (or took it as zero); 0 before the first */
} tide_param_record;

typedef enum tide_work_kind { TIDE_WORK_NONE = 0, TIDE_WORK_UPDATE, TIDE_WORK_RESTORE } tide_work_kind;

/* What a PARAM chunk waits for before an op may use it: its parts one after the other. */
typedef struct tide_work {
    tide_work_kind kind;
    bool running; /* a part's task is handed out */
    bool on_device;
    uint32_t part;  /* the next, or running, one */
    uint32_t parts; /* parts that hold elements */
    uint64_t step;  /* whose gradients */
} tide_work;

typedef struct tide_task_item {
    tide_chunk chunk;
    uint32_t access;
} tide_task_item;

typedef struct tide_task {
    tide_command_kind kind;
    tide_tier tier;
    tide_reason reason;
    tide_chunk chunk;
    uint32_t part;
    uint32_t count; /* 0: no task */
    tide_task_item items[TIDE_TASK_CHUNKS_MAX];
} tide_task;

/* Why a chunk is spared, or its update comes first. */
enum {
    TIDE_MARK_REQUESTED = 1u << 0,     /* the open op or slice wants it on the device */
    TIDE_MARK_FIRST = 1u << 1,         /* a request waits for this PARAM chunk's work */
    TIDE_MARK_GATHER_DEVICE = 1u << 2, /* a device task is being gathered */
    TIDE_MARK_GATHER_HOST = 1u << 3,
    TIDE_MARK_LEAVING = 1u << 4, /* it leaves the device as soon as it can */
    TIDE_MARK_WRITING = 1u << 5, /* it is copied out as soon as it can, and keeps its slot */
    TIDE_MARK_QUEUED = 1u << 6,  /* it is in the queue of those, perhaps no longer LEAVING or WRITING */
    TIDE_MARK_KEPT = 1u << 7,    /* its device slot waits while the host updates it */
};

/* The open op and what it wants on the device: [0, param_pins) its params, the rest the open slice. */
typedef struct tide_request {
    bool open;
    bool ready;
    tide_op op;
    uint32_t slice;
    uint32_t param_pins;
    uint32_t pin_count;
    uint32_t pinned_count; /* all of one request are pinned at once: 0, param_pins or pin_count */
    tide_chunk *pins;
    uint32_t param_use,
        slice_use; /* first uses of the open op and slice in the plan; TIDE_USE_NONE: not planned */
} tide_request;

/* A recorded step of one kind, and the plan for it. */
typedef struct tide_step_plan {
    tide_planner *planner;
    tide_use_trace trace;
    uint32_t *first_use;   /* per moment, in the trace */
    uint32_t recorded;     /* number of the recording */
    const tide_plan *plan; /* NULL: none */
} tide_step_plan;

/* Chunks that are to leave the device or to be copied out, first come first served; linked, so that each is in it once. */
typedef struct tide_leave_queue {
    tide_chunk *next; /* per chunk */
    uint64_t *ends;   /* per chunk: its use is over when so many ends have passed */
    tide_chunk head, tail;
    uint32_t count;
} tide_leave_queue;

/* How far the planned fetches have got. */
typedef struct tide_walk {
    const tide_plan *plan; /* NULL: begin anew */
    uint32_t first;        /* planned fetch: the first for a moment to come */
    uint32_t there;        /* of the fetches from there on, known to be on the device */
} tide_walk;

typedef struct tide_open_command {
    bool open;
    uint32_t generation;
    tide_command command;
    uint32_t access[TIDE_TASK_CHUNKS_MAX];
} tide_open_command;

struct tide_manager {
    const tide_layout *layout;
    tide_manager_options options;
    bool sealed;
    bool deep_checks;

    tide_op_record *ops;
    uint32_t op_count, op_capacity;
    uint32_t *seen; /* per chunk: stamp of the set being built */
    uint32_t seen_stamp;

    tide_param_record *params;
    uint32_t *part_first; /* per CHECKPOINT tensor: its parts' place in part_states */
    uint8_t *part_states;
    tide_tensor_counts *counts; /* per chunk; fp32 chunks have none */

    tide_places places;
    tide_schedule schedule;
    tide_step_plan plans[TIDE_SCHEDULE_KINDS];
    tide_leave_queue leaving;
    tide_walk walk;
    uint32_t *live_parts;   /* per chunk, while a trace is made: CHECKPOINT parts with content */
    uint8_t *part_live;     /* per part, likewise */
    bool placement_changed; /* since the last plan */
    uint8_t *marks;         /* per chunk */

    bool step_open, training, updates_wait;
    bool release_owed;      /* release or skip of the last step's updates */
    uint32_t updates_begun; /* updates of the last training step that were handed out and not cancelled */
    bool update_failed;     /* one changed params without finishing */
    uint64_t step;          /* counts steps of both kinds */
    uint64_t training_step; /* the last one that was a training step */
    tide_gradients gradients;
    tide_request request;
    tide_task host_request; /* count 0: none */
    bool host_request_running;

    tide_work *works;              /* per PARAM chunk */
    uint32_t work_count;           /* chunks with work */
    uint32_t work_first;           /* no chunk before has any */
    uint32_t parts_open;           /* tasks not done */
    bool *update_on_device;        /* per PARAM chunk */
    bool *update_wanted_on_device; /* likewise; it gets there when no update of it is owed */
    uint32_t updates_balanced;     /* the balance that was placed for */
    double update_seconds[TIDE_TIER_COUNT];
    tide_task gather[TIDE_TIER_COUNT];
    uint32_t tasks_running[TIDE_TIER_COUNT];

    tide_open_command *open;
    uint32_t *open_free;
    uint32_t open_free_count;
    uint32_t evictions_open; /* device slots about to be free */
    uint32_t spills_open;    /* host slots about to be free */
    bool pin_all;            /* everything is to be pinned, or is */
    tide_chunk pin_all_next; /* chunks before are pinned; = chunk count: all */
    bool in_busy, out_busy;  /* the link's two ways */
    uint64_t ends;           /* of ops, so far */
    uint64_t ends_passed;    /* of those, over on the device */
    bool idle;               /* next had nothing, and nothing happened since */
    bool prefetch_idle;      /* the walk had nothing, and nothing happened since */

    tide_manager_counters counters;
};

/* --- manager.c --- */

/* A task's chunks: one each of PARAM, MASTER and the optimizer's states. */
uint32_t tide_manager_task_slots(const tide_manager *manager);
/* Decide anew which chunks are updated on the device. */
void tide_manager_place_updates(tide_manager *manager);

/* Walk every structure at every mutation; for tests. */
void tide_manager_check_deeply(tide_manager *manager, bool on);
/* Assert validity after a mutation, and let next() look again. */
void tide_manager_changed(tide_manager *manager);
void tide_manager_set_param_state(tide_manager *manager, uint32_t param, tide_tensor_state to);
tide_tensor_state tide_manager_part_state(const tide_manager *manager, uint32_t tensor, uint32_t part);
void tide_manager_set_part_state(tide_manager *manager, uint32_t tensor, uint32_t part, tide_tensor_state to);
static inline bool tide_manager_is_param_chunk(const tide_manager *manager, tide_chunk chunk)
{
    return chunk < tide_layout_space_chunks(manager->layout, TIDE_SPACE_PARAM);
}
/* Do an update or a restore have to come before the chunk's values can be used? */
static inline bool tide_manager_has_work(const tide_manager *manager, tide_chunk chunk)
{
    return tide_manager_is_param_chunk(manager, chunk) && manager->works[chunk].kind != TIDE_WORK_NONE;
}

/* --- manager_op.c --- */

void tide_op_record_free(tide_op_record *op);
/* Fill `modifies` of every op. */
void tide_manager_fix_modified(tide_manager *manager);
/* tide_moment_chunks of the schedule; owner: the manager. */
const tide_chunk *tide_manager_moment_chunks(const void *owner, tide_moment moment, uint32_t *count);

/* --- manager_step.c --- */

/* Pin the open request if all of it is on the device, at rest, and without work to come first. */
bool tide_manager_try_pin(tide_manager *manager);

/* --- manager_slots.c --- */

typedef struct tide_victim_rule {
    uint32_t spared;            /* marks of chunks that stay */
    uint32_t spared_duplicates; /* marks of chunks whose host copy stays too */
} tide_victim_rule;

/* The host will update it (its gradients are complete, or its work is on): it has to leave the device, or stay away. */
bool tide_manager_must_leave(const tide_manager *manager, tide_chunk chunk);
/* How far a chunk's next use is: moments, or without a recording uses since its last one. */
uint64_t tide_manager_remoteness(const tide_manager *manager, tide_chunk chunk);
/* Moments to a chunk's next use, updated or not; 0 without a recording. */
uint64_t tide_manager_next_use(const tide_manager *manager, tide_chunk chunk);
/* Let a chunk in: FETCH from its host copy, or zeroed, or as it comes. There is a free slot. */
void tide_manager_fetch(tide_manager *manager, tide_chunk chunk, tide_reason reason, tide_command *command);
/* Let it out, with a copy (there is a free host slot) or without. */
void tide_manager_evict(tide_manager *manager, tide_chunk chunk, bool copy, tide_reason reason,
                        tide_command *command);
/* Copy a dirty chunk out; it stays. There is a free host slot. */
void tide_manager_write_back(tide_manager *manager, tide_chunk chunk, tide_reason reason, tide_command *command);
/* Is there a slot for it: a free one, or its own? */
bool tide_manager_has_slot_for(const tide_manager *manager, tide_chunk chunk);
/* Evict, without a copy, a chunk whose slot holds nothing of worth. False if a rule allows none. */
bool tide_manager_evict_spent(tide_manager *manager, tide_victim_rule rule, tide_reason reason,
                              tide_command *command);
/* Evict the best victim a rule allows. False if there is none, or its host slot cannot be had now. */
bool tide_manager_evict_victim(tide_manager *manager, tide_victim_rule rule, tide_reason reason,
                               tide_command *command);
/* Make a host slot free at once, dropping a duplicate if need be. False if there is none. */
bool tide_manager_free_host_slot(tide_manager *manager, uint32_t spared);
/* The chunk whose host copy could be given up because the device has it too, TIDE_CHUNK_NONE if there is none without
 * `spared` marks. Walks the device's slots. */
tide_chunk tide_manager_find_duplicate(const tide_manager *manager, uint32_t spared);
/* Give up the host copy of one chunk that the device has too. False if there is none without `spared` marks.
 */
bool tide_manager_drop_duplicate(tide_manager *manager, uint32_t spared);
/* Move some host chunk to the device so that a host slot becomes free. */
bool tide_manager_spill(tide_manager *manager, tide_command *command);

/* --- manager_work.c --- */

void tide_manager_start_work(tide_manager *manager, tide_chunk chunk, tide_work_kind kind);
/* The chunk owes nothing any more for `step`: its params go back to HOLD when no other chunk of theirs owes.
 */
void tide_manager_settle_chunk(tide_manager *manager, tide_chunk chunk, uint64_t step);
/* Forget a chunk's work, without settling it. */
void tide_manager_drop_work(tide_manager *manager, tide_chunk chunk);
/* A task's part is done. */
void tide_manager_finish_part(tide_manager *manager, tide_chunk chunk);
/* Does any param in the chunk hold its gradient, or part of it, made by `step`? */
bool tide_manager_chunk_has_gradient(const tide_manager *manager, tide_chunk chunk, uint64_t step);
/* No request waits for the host any more. */
void tide_manager_close_host_request(tide_manager *manager);
/* The next command of updates and restores; with `first_only` only of chunks that a request waits for. */
bool tide_manager_next_work(tide_manager *manager, bool first_only, tide_command *command);
/* Of those, the first one on the host whose chunks are all there. */
bool tide_manager_next_ready_work(tide_manager *manager, bool first_only, tide_command *command);
bool tide_manager_next_host_request(tide_manager *manager, tide_command *command);
/* Does the open request wait for an update or a restore? Until then its chunks are fair game for that task.
 * */
bool tide_manager_request_waits_for_work(const tide_manager *manager);
void tide_manager_clear_gather(tide_manager *manager, tide_tier tier);

/* --- manager_pin_all.c --- */

bool tide_manager_next_pin_all(tide_manager *manager, tide_command *command);

/* --- manager_plan.c --- */

/* Memory for traces and plans of both kinds of step. NO_MEMORY. */
tide_status tide_manager_plans_create(tide_manager *manager);
void tide_manager_plans_destroy(tide_manager *manager);
/* Make a plan where the recording or the placement is new. Between steps. */
void tide_manager_plan_step(tide_manager *manager);
/* The first planned use of the moment that has just begun, TIDE_USE_NONE if no plan is followed. */
uint32_t tide_manager_planned_use(const tide_manager *manager);
/* Uses of chunks have ended, the first of them `first_use` of the plan: who leaves, leaves. */
void tide_manager_use_ended(tide_manager *manager, const tide_chunk *chunks, uint32_t count,
                            uint32_t first_use);
/* The next chunk that leaves, or is copied out, as the way out has room for it. */
bool tide_manager_next_leave(tide_manager *manager, tide_command *command);
/* A slot is wanted now: the next chunk that leaves anyway, with a copy or only without. */
bool tide_manager_next_slot(tide_manager *manager, bool with_copy, tide_command *command);
bool tide_manager_next_prefetch(tide_manager *manager, tide_command *command);

/* --- manager_command.c --- */

/* Slots that the open request will still take. */
uint32_t tide_manager_requested_slots(const tide_manager *manager);

/* Register a command and give it its id. There is room: next() asked. */
void tide_manager_issue(tide_manager *manager, tide_command *command, const uint32_t *access);

#endif
