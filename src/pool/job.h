/* What one task's work is: the functions of the host lane, and the kernels on the update stream.
 *
 * A job is filled with the segments of the part (params where they lie in the PARAM slot, masters and states where they lie in
 * theirs; once as the kernels read them, once as a caller's optimizer does) and with the terms of its step. While it is busy it
 * belongs to the stream that works on it.
 *
 * Owns its tables. Calls the kernels and the device, and nobody in this folder.
 */
#ifndef TIDE_POOL_JOB_H
#define TIDE_POOL_JOB_H

#include "chunk/manager.h"
#include "src/pool/ground.h"

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
    void *fresh[TIDE_TASK_CHUNKS_MAX]; /* slots to zero first; NULL: none */
    bool updates;                      /* else it restores */
    tide_update_terms terms;
    tide_status status; /* the lane's answer: it never fails the device, so that what follows is still ordered */
    char message[256];
    bool busy;              /* [lock] */
    uint64_t update_number; /* [lock] piece of the update stream that reads the segments; 0: the host lane does */
    tide_chunk chunk;       /* [lock] the PARAM chunk updated */
} tide_job;

/* A param_set or param_get in progress, and what the lane is given for it. */
typedef struct tide_access_request {
    const tide_ground *ground;
    bool set;
    tide_space space;
    uint64_t offset_elements;       /* in the fp32 chunk (space PARAM: in the PARAM chunk) */
    uint64_t param_offset_elements; /* in the PARAM chunk */
    uint64_t count;
    float *values; /* the caller's; read only for set */
    void *slots[2];
    bool fresh[2]; /* to zero first */
} tide_access_request;

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
