/* Commands: orders from the manager to the executor, each with its reason, and counts of the commands done.
 * manager.h says when a command counts as done. */
#ifndef TIDE_CHUNK_COMMAND_H
#define TIDE_CHUNK_COMMAND_H

#include "chunk/layout.h"

typedef enum tide_command_kind {
    /* Map device_slot at the chunk's place unless it stands there (in_place); then copy host_slot in (copy)
     * or zero it (zero). */
    TIDE_COMMAND_FETCH = 0,
    TIDE_COMMAND_EVICT,      /* copy device_slot out to host_slot (copy); after the last use unmap */
    TIDE_COMMAND_WRITE_BACK, /* copy device_slot out to host_slot; the chunk stays */
    TIDE_COMMAND_UPDATE,     /* optimizer on one piece of a PARAM chunk, on `tier`, slots in task[] */
    TIDE_COMMAND_RESTORE,    /* a piece of a PARAM chunk from its state, on `tier`, slots in task[] */
    TIDE_COMMAND_ACCESS,     /* the host request's chunks are in their host slots, slots in task[] */
} tide_command_kind;

const char *tide_command_kind_name(tide_command_kind kind);

typedef enum tide_reason {
    TIDE_REASON_DEMAND = 0, /* an op waits for it */
    TIDE_REASON_PREFETCH,
    TIDE_REASON_UPDATE,
    TIDE_REASON_RESTORE,
    TIDE_REASON_ACCESS,
    TIDE_REASON_PROMOTE, /* host memory is full: the chunk goes to, or stays on, the device */
} tide_reason;

const char *tide_reason_name(tide_reason reason);

/* One chunk of a task: where it is and whether it has to be zeroed first because it had no content. */
typedef struct tide_task_chunk {
    tide_chunk chunk;
    uint32_t slot; /* in the command's tier */
    bool needs_zero;
    uint8_t access; /* TIDE_ACCESS_READ, WRITE or both */
} tide_task_chunk;

enum { TIDE_TASK_CHUNKS_MAX = 2 };

typedef struct tide_command {
    uint32_t id;
    tide_command_kind kind;
    tide_reason reason;
    tide_chunk chunk;     /* the chunk moved; of a task, its PARAM chunk */
    uint32_t device_slot; /* moves */
    uint32_t host_slot;   /* moves with copy */
    bool copy;
    bool zero;
    bool in_place;  /* FETCH: the slot is the chunk's and mapped; the host has changed the chunk meanwhile */
    tide_tier tier; /* tasks */
    uint32_t piece; /* tasks: which one of the PARAM chunk (tide_layout_piece) */
    uint32_t task_count;
    tide_task_chunk task[TIDE_TASK_CHUNKS_MAX]; /* UPDATE, RESTORE: PARAM, STATE */
} tide_command;

/* The thing that a request waits for before it is ready. */
typedef enum tide_request_wait {
    TIDE_REQUEST_READY = 0, /* nothing, or no request is open */
    TIDE_REQUEST_PENDING,   /* an update or a restore of one of its chunks */
    TIDE_REQUEST_SLOT,      /* a device slot: fewer are free than it lacks */
    TIDE_REQUEST_MOVE,      /* a chunk that is on its way, or about to be */
} tide_request_wait;

/* Events since the manager was created. */
typedef struct tide_manager_counters {
    uint64_t evictions;      /* chunks that left the device, copied or not */
    uint64_t clean_drops;    /* evictions without a copy */
    uint64_t demand_fetches; /* an op had to wait for them */
    uint64_t prefetches;
    uint64_t write_backs;
    uint64_t promotions;     /* moves because the host was full */
    uint64_t re_recordings;  /* a step's ops differed from the recording */
    uint64_t plans;          /* made so far */
    uint64_t zero_gradients; /* trainable params without a gradient at step end */
    uint64_t calls;          /* begin, slice, end, next, done */
} tide_manager_counters;

/* Limits of one turn of next(). The manager begins a turn with everything allowed; the open request narrows
 * the limits. */
typedef struct tide_turn {
    bool in_busy, out_busy; /* the link's two ways */
    bool request_yields;    /* the request waits for a task, which may take the request's device slots */
    uint32_t reserved;      /* free device slots that the request will take */
    bool assembles;         /* chunks may move for tasks that no request waits for */
    bool prefetches;
} tide_turn;

#endif
