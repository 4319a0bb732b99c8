/* Commands that the manager gives to its owner (src/pool's engine), each with its reason, and counters of
 * them. manager.h says when a command is done. */
#ifndef TIDE_CHUNK_COMMAND_H
#define TIDE_CHUNK_COMMAND_H

#include "chunk/roll.h"

typedef enum tide_command_kind {
    /* Map device_slot at the chunk's address, unless it is mapped there already (in_place). Then copy
     * host_slot to it (if `copy`), or zero it (if `zero`). */
    TIDE_COMMAND_FETCH = 0,
    TIDE_COMMAND_EVICT,      /* Copy device_slot to host_slot (if `copy`); unmap it after its last use. */
    TIDE_COMMAND_WRITE_BACK, /* Copy device_slot to host_slot; the chunk stays on the device. */
    /* run the optimizer on one piece of a PARAM chunk, on `tier`, in the slots of task[] */
    TIDE_COMMAND_UPDATE,
    /* restore one piece of a PARAM chunk from its state, on `tier`, in the slots of task[] */
    TIDE_COMMAND_RESTORE,
    TIDE_COMMAND_ACCESS,     /* read or write values for the host request, in the slots of task[] */
    TIDE_COMMAND_COLLECTIVE, /* enqueue `collective`, behind all that the manager has returned before */
} tide_command_kind;

const char *tide_command_kind_name(tide_command_kind kind);

/* One chunk of a task. */
typedef struct tide_task_chunk {
    tide_chunk chunk;
    uint32_t slot; /* a slot of the command's tier */
    bool needs_zero;
    uint8_t access; /* TIDE_ACCESS_READ, WRITE or both */
} tide_task_chunk;

enum { TIDE_TASK_CHUNKS_MAX = 2 };

typedef struct tide_command {
    uint32_t id;
    tide_command_kind kind;
    tide_reason reason;
    tide_chunk chunk;     /* a move's chunk; a task's PARAM chunk; the rank's chunk of a group to GATHER */
    uint32_t device_slot; /* of a move; of the rank's chunk of a group to GATHER */
    uint32_t host_slot;   /* of a move that copies */
    bool copy;
    bool zero;
    bool in_place;  /* of a FETCH: device_slot is still mapped at the chunk's address */
    tide_tier tier; /* of a task */
    uint32_t piece; /* of a task: number of the PARAM chunk's piece (tide_layout_piece) */
    uint32_t task_count;
    /* of a task: for UPDATE and RESTORE the PARAM chunk, then the STATE chunk */
    tide_task_chunk task[TIDE_TASK_CHUNKS_MAX];
    tide_collective collective;
} tide_command;

/* The reason why an open request waits. */
typedef enum tide_request_wait {
    TIDE_REQUEST_READY = 0, /* nothing; or no request is open */
    TIDE_REQUEST_PENDING,   /* an update or a restore of one of its chunks */
    TIDE_REQUEST_SLOT,      /* a device slot: it lacks more slots than are free */
    TIDE_REQUEST_MOVE,      /* a move of one of its chunks, open or still to be made */
    /* only the issue of a collective: a gather of one of its groups, or the REDUCE of the op before */
    TIDE_REQUEST_PEERS,
} tide_request_wait;

/* Counts since the manager was created. */
typedef struct tide_manager_counters {
    uint64_t evictions;      /* chunks that left the device, copied or not */
    uint64_t clean_drops;    /* evictions without a copy */
    uint64_t demand_fetches; /* fetches for which an op had to wait */
    uint64_t prefetches;
    uint64_t write_backs;
    uint64_t promotions;     /* moves to the device because the host was full */
    uint64_t re_recordings;  /* steps whose ops differed from the recording */
    uint64_t plans;          /* plans made */
    uint64_t zero_gradients; /* trainable params without a gradient at step end */
    uint64_t calls;          /* of tide_manager_begin, slice, end, next and done */
} tide_manager_counters;

/* The limits of one call of tide_manager_next (a turn). The manager begins a turn with everything allowed;
 * the open request then forbids what would delay it. */
typedef struct tide_turn {
    bool in_busy, out_busy; /* the link to the device, to the host has enough copies */
    /* the request waits for a task, which may therefore take the request's device slots */
    bool request_yields;
    uint32_t reserved; /* free device slots that the request will need */
    bool assembles;    /* moves for tasks are allowed although no request waits for the task */
    bool prefetches;
} tide_turn;

#endif
