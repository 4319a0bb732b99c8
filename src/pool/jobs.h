/* Tasks at work: updates, restores and host accesses, on the host lane and the update stream.
 *
 * A task's chunks are in slots of one tier, pinned there by the manager. No stream waits for the host: copies into its slots
 * have been seen to end before the manager hands a task out, and the engine sees those out of them end. Then the host lane
 * gets one function that does the whole piece in one pass. On the device the update stream waits for the slots'
 * marks and gets a few kernels. Jobs are few; a task waits for a free one. What all updates of a step use (terms) is fixed
 * when they are let go.
 *
 * A job is filled with the segments of the piece (params where they lie in the PARAM slot, the planes of their state where they
 * lie in theirs; once as the kernels read them, once as a caller's optimizer does) and with the terms of its step. While it is
 * busy it belongs to the stream that works on it.
 *
 * Owns jobs, terms, which gradients are zero, and the access request while it is worked on; all [lock]. Calls link
 * (reach), order, journal, and monitor, whose lock it lets go of while a job is many launches.
 */
#ifndef TIDE_POOL_JOBS_H
#define TIDE_POOL_JOBS_H

#include "src/pool/tier_link.h"
#include "src/pool/model.h"

/* Tasks in flight: on the device those of four PARAM chunks of seven pieces, which may all wait for the gradients that backward
 * makes last; the host has two at a time. */
enum { TIDE_JOBS_HOST = 2, TIDE_JOBS_MAX = 28 + TIDE_JOBS_HOST };

/* Of the updates that run. */
typedef struct tide_update_terms {
    tide_step_options step;
    float scale;     /* what they multiply gradients by */
    uint64_t update; /* their number, from 1 */
} tide_update_terms;

typedef struct tide_job {
    const tide_ground *ground;
    tide_adamw_segment *segments;         /* [fixed] in a buffer that device and host reach */
    uint32_t segments_object;             /* [fixed] the table, for the checker */
    tide_update_segment *update_segments; /* [fixed] */
    uint32_t segment_count;
    void *needs_zero[TIDE_TASK_CHUNKS_MAX]; /* slots to zero first; NULL: none */
    bool updates;                      /* else it restores, */
    bool copies;                       /* without rounding: the first plane has 16 bits as the params have */
    tide_update_terms terms;
    tide_status status; /* the lane's answer: it never fails the device, so that what follows is still ordered */
    char message[256];
    bool busy;              /* [lock] */
    uint64_t update_number; /* [lock] piece of the update stream that reads the segments; 0: the host lane does */
    tide_chunk chunk;       /* [lock] the PARAM chunk updated */
    uint64_t record;        /* [lock] number of the record that it counts for */
} tide_job;

/* A param_set or param_get in progress, and what the lane is given for it. */
typedef struct tide_access_request {
    const tide_ground *ground;
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

typedef struct tide_jobs {
    const tide_ground *ground;
    const tide_model *model;
    tide_monitor *monitor;
    tide_order *order;
    tide_journal *journal;
    const tide_link *link;
    tide_job table[TIDE_JOBS_MAX];
    uint32_t segments_max; /* [fixed] of a job */
    bool *zero_gradient;   /* per param: no op made a gradient in the step whose updates run */
    tide_update_terms terms;
    tide_access_request *request; /* on the stack of the caller, who waits; NULL: none */
} tide_jobs;

/* What a command that is not done waits for: the phases of a task are here, those of a move in commands.h. */
typedef enum tide_open_phase {
    TIDE_OPEN_COPY = 1, /* its copy out */
    TIDE_OPEN_UNMAP,    /* the last use of its slot */
    TIDE_OPEN_READY,    /* a task: a free job and its slots' copies */
    TIDE_OPEN_LANE,     /* the host lane, to finish it */
} tide_open_phase;

typedef struct tide_pending_command {
    tide_command command;
    tide_open_phase phase;
    uint64_t number; /* of its copy out, if it has one; of a task on the host lane, once started */
    tide_job *job;   /* a started UPDATE's or RESTORE's; else NULL */
    uint64_t id;        /* the tracer's, of a move, or of a task once started; 0: not told */
    uint64_t issued_ns; /* for the trace */
} tide_pending_command;

/* Bytes of each job's table. */
uint64_t tide_jobs_table_bytes(const tide_layout *layout);
/* With layout and device. NO_MEMORY, BUDGET, leaving what destroy frees; the device's close frees the buffers. */
tide_status tide_jobs_create(tide_jobs *jobs);
void tide_jobs_destroy(tide_jobs *jobs);

/* --- [lock] --- */

/* Try to start an UPDATE, RESTORE or ACCESS whose slots may not have arrived yet: sets `started` if any of it was enqueued,
 * also on failure, and then the task's `job` and `number`. May give up the lock for a while. */
tide_status tide_jobs_start(tide_jobs *jobs, tide_pending_command *task, bool *started);
/* Has the host lane finished it? Then what it answered; writes the message. */
tide_status tide_jobs_passed(tide_jobs *jobs, const tide_pending_command *task, bool *passed);
/* Its command is over: its job may be used again, unless the update stream still reads it. */
void tide_jobs_finish(tide_jobs *jobs, const tide_pending_command *task);
/* See which jobs of the update stream have passed. True if one has. */
bool tide_jobs_poll(tide_jobs *jobs);
/* Is one under way, on the host lane or the update stream? */
bool tide_jobs_busy(const tide_jobs *jobs);
/* One that counts for that record? */
bool tide_jobs_busy_for(const tide_jobs *jobs, uint64_t record);
/* Params without a gradient in the step that ends (NULL: there are none). No update runs. Returns their number. */
uint64_t tide_jobs_zero_gradients(tide_jobs *jobs, const tide_gradients *gradients);
bool tide_jobs_is_valid(const tide_jobs *jobs);

/* --- job.c, without the lock; calls the kernels and the device --- */

/* With tables of `segments_max` segments. NO_MEMORY, BUDGET, leaving what destroy frees. */
tide_status tide_job_create(tide_job *job, const tide_ground *ground, uint32_t segments_max);
void tide_job_destroy(tide_job *job); /* zeroed: allowed */

/* For the host lane. */
tide_status tide_job_run(void *stream, const void *address_of_job);
tide_status tide_job_run_access(void *stream, const void *access_request);

/* Enqueue the job on the update stream. `started`: some of it is there. Without the lock: it may be many launches, and sleep
 * for room. */
tide_status tide_job_launch(const tide_job *job, const tide_work *work, bool *started);

#endif
