/* Runs the manager's tasks: updates and restores on the host executor or the update stream, and accesses to
 * values (tide_param_set, tide_param_get) on the host executor.
 *
 * The manager pins a task's chunks in slots of one tier. A host task cannot wait for a stream: the manager
 * hands it out only after the engine has seen all copies into its slots end, and the engine starts it only
 * after it has seen the copies out of them end. Then the host executor gets one function, which works on the
 * whole piece in one pass. For a device task the update stream waits for the work in the slots' marks
 * (order.h) and then gets a few kernels. The table has few entries; further tasks wait for a free one. The
 * engine fixes the terms of a step's updates when it releases those.
 *
 * A running task has the terms of its step and the piece's segments: for each param the addresses of its
 * values and of its state's planes in the slots, in two tables, one for the kernels and one for an optimizer
 * of the caller's. While an entry is busy it belongs to the stream that works on it.
 *
 * Owns the running tasks, the terms, the flags of params without gradient, and the access request while a
 * task works on it; all [lock]. Calls link (reach), order, telemetry, and monitor, whose lock it releases
 * during the launches of a device task.
 */
#ifndef TIDE_POOL_RUNNING_TASKS_H
#define TIDE_POOL_RUNNING_TASKS_H

#include "src/pool/tier_link.h"

/* Entries of the table: 2 for the host, 28 for the device (four PARAM chunks of seven pieces each), whose
 * tasks may all be waiting for the last gradients of backward. */
enum { TIDE_RUNNING_TASKS_HOST = 2, TIDE_RUNNING_TASKS_MAX = 28 + TIDE_RUNNING_TASKS_HOST };

/* The options, factor and number of a step's updates. */
typedef struct tide_update_terms {
    tide_step_options step;
    float scale;     /* by which the updates multiply gradients */
    uint64_t update; /* number of these updates, from 1 */
} tide_update_terms;

typedef struct tide_running_task {
    const tide_pool_context *context;
    tide_adamw_segment *segments;         /* [fixed] in a buffer that device and host reach */
    uint32_t segments_object;             /* [fixed] number of that buffer, for the hazard checker */
    tide_update_segment *update_segments; /* [fixed] */
    uint32_t segment_count;
    void *needs_zero[TIDE_TASK_CHUNKS_MAX]; /* the slots to zero first; NULL: none */
    bool updates;                           /* an update if true, else a restore */
    bool copies;                            /* a restore copies: the first plane is 16-bit */
    tide_update_terms terms;
    tide_status status; /* of the host executor; an error here does not fail the device */
    char message[256];
    bool busy;              /* [lock] */
    uint64_t update_number; /* [lock] the update stream's submission; 0: a host task */
    tide_chunk chunk;       /* [lock] the PARAM chunk updated */
    uint64_t record;        /* [lock] the record that counts this task (counters.h) */
} tide_running_task;

/* A param_set or param_get in progress, with the arguments for the executor. */
typedef struct tide_access_request {
    const tide_pool_context *context;
    bool set;
    tide_value value;
    tide_dtype dtype;            /* of the stored value */
    uint64_t offset_bytes;       /* of the value in its chunk */
    uint64_t param_offset_bytes; /* of the param in its PARAM chunk; for set of MASTER */
    uint64_t count;
    void *values; /* the caller's buffer; set does not change it */
    tide_dtype values_dtype;
    void *slots[2];
    bool needs_zero[2]; /* zero slots[i] first */
} tide_access_request;

typedef struct tide_running_tasks {
    const tide_pool_context *context;
    tide_monitor *monitor;
    tide_order *order;
    tide_telemetry *telemetry;
    const tide_link *link;
    tide_running_task table[TIDE_RUNNING_TASKS_MAX];
    uint32_t segments_max; /* [fixed] of a running task */
    bool *zero_gradient;   /* per param: no op made its gradient in the step updated */
    tide_update_terms terms;
    tide_access_request *request; /* on the stack of the waiting caller; NULL: none */
} tide_running_tasks;

/* The condition for which an open command waits (commands.h). The first two are for moves, the last two for
 * tasks. */
typedef enum tide_open_phase {
    TIDE_OPEN_COPY = 1, /* its copy out to end */
    TIDE_OPEN_UNMAP,    /* the last use of its slot to end */
    TIDE_OPEN_READY,    /* a free entry for the task, and its slots' copies to end */
    TIDE_OPEN_EXECUTOR, /* the host executor to finish the task */
} tide_open_phase;

typedef struct tide_open_command {
    tide_command command;
    tide_open_phase phase;
    uint64_t number;            /* submission of its copy out, or of its host task */
    tide_running_task *running; /* the running task of a started UPDATE or RESTORE; else NULL */
    uint64_t id;                /* the tracer's id of a move or a started task; 0: not traced */
    uint64_t issued_ns;         /* for the trace */
} tide_open_command;

/* Bytes of each running task's segment table. */
uint64_t tide_running_tasks_table_bytes(const tide_layout *layout);
/* Make the table of running tasks; layout and device must be there. NO_MEMORY, BUDGET; destroy frees it then,
 * too. The device frees the buffers at close. */
tide_status tide_running_tasks_create(tide_running_tasks *running_tasks);
void tide_running_tasks_destroy(tide_running_tasks *running_tasks);

/* --- [lock] --- */

/* Start an UPDATE, RESTORE or ACCESS if an entry is free and its slots are ready. `started`: any of its work
 * was enqueued, perhaps before a failure; then the command's `running` and `number` are set. May release the
 * lock for a while. */
tide_status tide_running_tasks_start(tide_running_tasks *running_tasks, tide_open_command *task,
                                     bool *started);
/* Has the host executor finished the task? If so, returns the task's status, with its message as this
 * thread's. */
tide_status tide_running_tasks_passed(tide_running_tasks *running_tasks, const tide_open_command *task,
                                      bool *passed);
/* The task's command has ended: free its entry, unless the update stream still reads that. */
void tide_running_tasks_finish(tide_running_tasks *running_tasks, const tide_open_command *task);
/* Free the entries whose tasks the update stream has finished. True if there was one. */
bool tide_running_tasks_poll(tide_running_tasks *running_tasks);
/* Does a task run, on the host executor or the update stream? */
bool tide_running_tasks_busy(const tide_running_tasks *running_tasks);
/* Does a task run that counts for record `record` of the counters? */
bool tide_running_tasks_busy_for(const tide_running_tasks *running_tasks, uint64_t record);
/* At a step's end: mark the params of which no op has made a gradient (NULL: none), and return how many. No
 * update may be running. */
uint64_t tide_running_tasks_zero_gradients(tide_running_tasks *running_tasks,
                                           const tide_gradients *gradients);
bool tide_running_tasks_is_valid(const tide_running_tasks *running_tasks);

/* --- running_task.c, without the lock; calls the kernels and the device --- */

/* Make a running task for up to `segments_max` segments. NO_MEMORY, BUDGET; destroy frees it then, too. */
tide_status tide_running_task_create(tide_running_task *running, const tide_pool_context *context,
                                     uint32_t segments_max);
void tide_running_task_destroy(tide_running_task *running); /* zeroed: allowed */

/* The functions of the host executor; each takes the arguments that launch was given. */
tide_status tide_running_task_run(void *stream, const void *address_of_running);
tide_status tide_running_task_run_access(void *stream, const void *access_request);

/* Enqueue the task on the update stream; sets `started` if any of it was enqueued. Without the lock, since
 * these may be many launches that sleep for space. */
tide_status tide_running_task_launch(const tide_running_task *running, const tide_work *work, bool *started);

#endif
