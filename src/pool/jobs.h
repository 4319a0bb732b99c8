/* Tasks at work: updates, restores and host accesses, on the host lane and the update stream.
 *
 * A task's chunks are in slots of one tier, pinned there by the manager. No stream waits for the host: copies into its slots
 * have been seen to end before the manager hands a task out, and the engine sees those out of them end. Then the host lane
 * gets one function that does the whole part of the chunk in one pass. On the device the update stream waits for the slots'
 * marks and gets a few kernels. Jobs are few; a task waits for a free one. What all updates of a step use (terms) is fixed
 * when they are let go.
 *
 * Owns jobs, terms, which gradients are zero, and the access request while it is worked on; all [lock]. Calls job, link
 * (reach), order, journal, and monitor, whose lock it lets go of while a job is many launches.
 */
#ifndef TIDE_POOL_JOBS_H
#define TIDE_POOL_JOBS_H

#include "src/pool/job.h"
#include "src/pool/tier_link.h"
#include "src/pool/model.h"

enum { TIDE_JOBS_MAX = 8 }; /* tasks in flight */

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

/* What a command that is not done waits for. */
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
} tide_pending_command;

/* Bytes of each job's table. */
uint64_t tide_jobs_table_bytes(const tide_layout *layout);
/* With layout and device. NO_MEMORY, BUDGET, leaving what destroy frees; the device's close frees the buffers. */
tide_status tide_jobs_create(tide_jobs *jobs);
void tide_jobs_destroy(tide_jobs *jobs);

/* --- [lock] --- */

/* Try to start an UPDATE, RESTORE or ACCESS whose slots may not have arrived yet: sets `started` if any of it was enqueued,
 * also on failure. May give up the lock for a while. */
tide_status tide_jobs_start(tide_jobs *jobs, tide_pending_command *task, bool *started);
/* Has the host lane finished it? Then what it answered; writes the message. */
tide_status tide_jobs_passed(tide_jobs *jobs, const tide_pending_command *task, bool *passed);
/* Its command is over: its job may be used again, unless the update stream still reads it. */
void tide_jobs_finish(tide_jobs *jobs, const tide_pending_command *task);
/* See which jobs of the update stream have passed. True if one has. */
bool tide_jobs_poll(tide_jobs *jobs);
/* Is one under way, on the host lane or the update stream? */
bool tide_jobs_busy(const tide_jobs *jobs);
/* Params without a gradient in the step that ends (NULL: there are none). No update runs. Returns their number. */
uint64_t tide_jobs_zero_gradients(tide_jobs *jobs, const tide_gradients *gradients);
bool tide_jobs_is_valid(const tide_jobs *jobs);

#endif
