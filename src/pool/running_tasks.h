/* Running tasks: updates, restores and host accesses, on the host executor and the update stream.
 *
 * The manager pins a task's chunks in slots of one tier. No stream waits for the host: before the manager
 * hands a task out, the engine has seen copies into its slots end, and before it starts the task, copies out
 * of them. Then the host executor gets one function that does the whole piece in one pass. On the device the
 * update stream waits for the slots' marks and gets a few kernels. Few tasks run at a time; the others wait
 * for a free entry. The engine fixes the terms of a step's updates when it releases them.
 *
 * A running task gets the segments of the piece (params where they lie in the PARAM slot, the planes of their
 * state where they lie in theirs; once in the form of the kernels, once in that of a caller's optimizer) and
 * the terms of its step. While it is busy it belongs to the stream that works on it.
 *
 * Owns the running tasks, the terms, the flags of zero gradients, and the access request while a task works
 * on it; all [lock]. Calls link (reach), order, telemetry, and monitor, whose lock it releases while it makes
 * a task's many launches.
 */
#ifndef TIDE_POOL_RUNNING_TASKS_H
#define TIDE_POOL_RUNNING_TASKS_H

#include "src/pool/tier_link.h"

/* Tasks in flight: on the device those of four PARAM chunks of seven pieces, which may all wait for
 * backward's last gradients; the host has two at a time. */
enum { TIDE_RUNNING_TASKS_HOST = 2, TIDE_RUNNING_TASKS_MAX = 28 + TIDE_RUNNING_TASKS_HOST };

/* The terms of the updates that run. */
typedef struct tide_update_terms {
    tide_step_options step;
    float scale;     /* the factor of gradients in these updates */
    uint64_t update; /* number of these updates, from 1 */
} tide_update_terms;

typedef struct tide_running_task {
    const tide_pool_context *context;
    tide_adamw_segment *segments;         /* [fixed] in a buffer that device and host reach */
    uint32_t segments_object;             /* [fixed] number of that buffer, for the hazard checker */
    tide_update_segment *update_segments; /* [fixed] */
    uint32_t segment_count;
    void *needs_zero[TIDE_TASK_CHUNKS_MAX]; /* the slots to zero first; NULL: none */
    bool updates;                           /* an update; else a restore */
    bool copies;                            /* a restore copies: the first plane has 16 bits, as the params */
    tide_update_terms terms;
    tide_status status; /* the executor's status, which never fails the device: later work keeps its order */
    char message[256];
    bool busy;              /* [lock] */
    uint64_t update_number; /* [lock] submission of the update stream with the task; 0: the host executor's */
    tide_chunk chunk;       /* [lock] the PARAM chunk updated */
    uint64_t record;        /* [lock] number of the counters' record for this task */
} tide_running_task;

/* A param_set or param_get in progress, with the arguments for the executor. */
typedef struct tide_access_request {
    const tide_pool_context *context;
    bool set;
    tide_value value;
    tide_dtype dtype;            /* the dtype of the kept value */
    uint64_t offset_bytes;       /* in the chunk that holds the value */
    uint64_t param_offset_bytes; /* in the PARAM chunk, if this sets MASTER */
    uint64_t count;
    void *values; /* the caller's; a set only reads them */
    tide_dtype values_dtype;
    void *slots[2];
    bool needs_zero[2]; /* the slots to zero first */
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

/* What does an open command wait for? commands.h has the phases of a move, the last two are those of a
 * task. */
typedef enum tide_open_phase {
    TIDE_OPEN_COPY = 1, /* the end of its copy out */
    TIDE_OPEN_UNMAP,    /* the end of the last use of its slot */
    TIDE_OPEN_READY,    /* a free running task, and the copies of its slots */
    TIDE_OPEN_EXECUTOR, /* the end of the task on the host executor */
} tide_open_phase;

typedef struct tide_open_command {
    tide_command command;
    tide_open_phase phase;
    uint64_t number;            /* submission of its copy out, or of its task on the host executor */
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

/* Start an UPDATE, RESTORE or ACCESS if its slots have arrived. Sets `started` if any of it was enqueued,
 * also on failure, and then the command's `running` and `number`. May release the lock for a while. */
tide_status tide_running_tasks_start(tide_running_tasks *running_tasks, tide_open_command *task,
                                     bool *started);
/* Has the host executor finished the task? Then returns its status and writes its message. */
tide_status tide_running_tasks_passed(tide_running_tasks *running_tasks, const tide_open_command *task,
                                      bool *passed);
/* The task's command has ended: free its running task, unless the update stream still reads it. */
void tide_running_tasks_finish(tide_running_tasks *running_tasks, const tide_open_command *task);
/* Free the running tasks that the update stream has finished. True if there was one. */
bool tide_running_tasks_poll(tide_running_tasks *running_tasks);
/* Does a task run, on the host executor or the update stream? */
bool tide_running_tasks_busy(const tide_running_tasks *running_tasks);
/* Does a task run that counts for that record? */
bool tide_running_tasks_busy_for(const tide_running_tasks *running_tasks, uint64_t record);
/* Mark the params without a gradient in the step that ends; NULL: mark none. Returns their number. No update
 * may run. */
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
