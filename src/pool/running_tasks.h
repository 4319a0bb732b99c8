/* Running tasks: updates, restores and host accesses, on the host executor and the update stream.
 *
 * A task's chunks are in slots of one tier, pinned there by the manager. No stream waits for the host: copies into its slots
 * have been seen to end before the manager hands a task out, and the engine sees those out of them end. Then the host executor
 * gets one function that does the whole piece in one pass. On the device the update stream waits for the slots'
 * marks and gets a few kernels. Few run at a time; a task waits for a free entry. What all updates of a step use (terms) is fixed
 * when they are let go.
 *
 * A running task is filled with the segments of the piece (params where they lie in the PARAM slot, the planes of their state where they
 * lie in theirs; once as the kernels read them, once as a caller's optimizer does) and with the terms of its step. While it is
 * busy it belongs to the stream that works on it.
 *
 * Owns the running tasks, terms, which gradients are zero, and the access request while it is worked on; all [lock]. Calls link
 * (reach), order, telemetry, and monitor, whose lock it lets go of while a task is many launches.
 */
#ifndef TIDE_POOL_RUNNING_TASKS_H
#define TIDE_POOL_RUNNING_TASKS_H

#include "src/pool/model.h"
#include "src/pool/tier_link.h"

/* Tasks in flight: on the device those of four PARAM chunks of seven pieces, which may all wait for the gradients that backward
 * makes last; the host has two at a time. */
enum { TIDE_RUNNING_TASKS_HOST = 2, TIDE_RUNNING_TASKS_MAX = 28 + TIDE_RUNNING_TASKS_HOST };

/* Of the updates that run. */
typedef struct tide_update_terms {
    tide_step_options step;
    float scale;     /* what they multiply gradients by */
    uint64_t update; /* their number, from 1 */
} tide_update_terms;

typedef struct tide_running_task {
    const tide_sealed_context *context;
    tide_adamw_segment *segments;         /* [fixed] in a buffer that device and host reach */
    uint32_t segments_object;             /* [fixed] the table, for the checker */
    tide_update_segment *update_segments; /* [fixed] */
    uint32_t segment_count;
    void *needs_zero[TIDE_TASK_CHUNKS_MAX]; /* slots to zero first; NULL: none */
    bool updates;                           /* else it restores, */
    bool copies; /* without rounding: the first plane has 16 bits as the params have */
    tide_update_terms terms;
    tide_status
        status; /* the executor's answer: it never fails the device, so that what follows is still ordered */
    char message[256];
    bool busy; /* [lock] */
    uint64_t
        update_number; /* [lock] piece of the update stream that reads the segments; 0: the host executor does */
    tide_chunk chunk; /* [lock] the PARAM chunk updated */
    uint64_t record;  /* [lock] number of the record that it counts for */
} tide_running_task;

/* A param_set or param_get in progress, and what the executor is given for it. */
typedef struct tide_access_request {
    const tide_sealed_context *context;
    bool set;
    tide_value value;
    tide_dtype dtype;            /* in which it is kept */
    uint64_t offset_bytes;       /* in the chunk that holds the value */
    uint64_t param_offset_bytes; /* in the PARAM chunk, when MASTER is set */
    uint64_t count;
    void *values; /* the caller's; read only for set */
    tide_dtype values_dtype;
    void *slots[2];
    bool needs_zero[2]; /* to zero first */
} tide_access_request;

typedef struct tide_running_tasks {
    const tide_sealed_context *context;
    const tide_model *model;
    tide_monitor *monitor;
    tide_order *order;
    tide_telemetry *telemetry;
    const tide_link *link;
    tide_running_task table[TIDE_RUNNING_TASKS_MAX];
    uint32_t segments_max; /* [fixed] of a running task */
    bool *zero_gradient;   /* per param: no op made a gradient in the step whose updates run */
    tide_update_terms terms;
    tide_access_request *request; /* on the stack of the caller, who waits; NULL: none */
} tide_running_tasks;

/* What a command that is not done waits for: the phases of a task are here, those of a move in commands.h. */
typedef enum tide_open_phase {
    TIDE_OPEN_COPY = 1, /* its copy out */
    TIDE_OPEN_UNMAP,    /* the last use of its slot */
    TIDE_OPEN_READY,    /* a task: a free entry among the running ones, and its slots' copies */
    TIDE_OPEN_EXECUTOR, /* the host executor, to finish it */
} tide_open_phase;

typedef struct tide_open_command {
    tide_command command;
    tide_open_phase phase;
    uint64_t number; /* of its copy out, if it has one; of a task on the host executor, once started */
    tide_running_task *running; /* a started UPDATE's or RESTORE's; else NULL */
    uint64_t id;                /* the tracer's, of a move, or of a task once started; 0: not told */
    uint64_t issued_ns;         /* for the trace */
} tide_open_command;

/* Bytes of each running task's table. */
uint64_t tide_running_tasks_table_bytes(const tide_layout *layout);
/* With layout and device. NO_MEMORY, BUDGET, leaving what destroy frees; the device's close frees the buffers. */
tide_status tide_running_tasks_create(tide_running_tasks *running_tasks);
void tide_running_tasks_destroy(tide_running_tasks *running_tasks);

/* --- [lock] --- */

/* Try to start an UPDATE, RESTORE or ACCESS whose slots may not have arrived yet: sets `started` if any of it was enqueued,
 * also on failure, and then its `running` and `number`. May give up the lock for a while. */
tide_status tide_running_tasks_start(tide_running_tasks *running_tasks, tide_open_command *task,
                                     bool *started);
/* Has the host executor finished it? Then what it answered; writes the message. */
tide_status tide_running_tasks_passed(tide_running_tasks *running_tasks, const tide_open_command *task,
                                      bool *passed);
/* Its command is over: its running task may be used again, unless the update stream still reads it. */
void tide_running_tasks_finish(tide_running_tasks *running_tasks, const tide_open_command *task);
/* See which tasks of the update stream have passed. True if one has. */
bool tide_running_tasks_poll(tide_running_tasks *running_tasks);
/* Is one under way, on the host executor or the update stream? */
bool tide_running_tasks_busy(const tide_running_tasks *running_tasks);
/* One that counts for that record? */
bool tide_running_tasks_busy_for(const tide_running_tasks *running_tasks, uint64_t record);
/* Params without a gradient in the step that ends (NULL: there are none). No update runs. Returns their number. */
uint64_t tide_running_tasks_zero_gradients(tide_running_tasks *running_tasks,
                                           const tide_gradients *gradients);
bool tide_running_tasks_is_valid(const tide_running_tasks *running_tasks);

/* --- running_task.c, without the lock; calls the kernels and the device --- */

/* With tables of `segments_max` segments. NO_MEMORY, BUDGET, leaving what destroy frees. */
tide_status tide_running_task_create(tide_running_task *running, const tide_sealed_context *context,
                                     uint32_t segments_max);
void tide_running_task_destroy(tide_running_task *running); /* zeroed: allowed */

/* For the host executor. */
tide_status tide_running_task_run(void *stream, const void *address_of_running);
tide_status tide_running_task_run_access(void *stream, const void *access_request);

/* Enqueue the task on the update stream. `started`: some of it is there. Without the lock: it may be many launches, and sleep
 * for room. */
tide_status tide_running_task_launch(const tide_running_task *running, const tide_work *work, bool *started);

#endif
