/* Several managers, one a rank, that play one program over a reference network, in one thread.
 *
 * The program is drawn as it is played: the rank that comes to its end first draws what follows, and the
 * other ranks do the same. Each rank has another budget, placement, prefetch, link and order of completion.
 *
 *   owner      executes the manager's commands. The device has a queue of effects, in the order in which
 *              the manager handed commands out; the owner reports them as done late and in random order
 *   network    a collective at the front of a rank's queue is executed when it is at the front of all; all
 *              must have the same one there
 *   values     every slot has a content: the value of its chunk, which changes with each update, and the
 *              params whose gradients stand in it. Each op checks the values that it reads, its own and those
 *              in frames, against the values that the program has at that step
 *   deadlock   no rank can do anything, and one is not at the program's end
 */
#ifndef TIDE_TESTS_RANKS_WORLD_H
#define TIDE_TESTS_RANKS_WORLD_H

#include "chunk/manager_internal.h"

enum {
    RANKS_MAX = 8,
    PARAMS_MAX = 12,
    OPS_MAX = 26,
    USES_MAX = 6,
    CHUNKS_MAX = 512,
    OPEN_MAX = 256,
    EFFECTS_MAX = 256, /* effects that are enqueued and not executed */
    ITEMS_MAX = 4096,
    OP_CHUNKS_MAX = 48,
    ENDS_MAX = 1024,
};

/* A rule that one rank or all of them break. */
typedef enum sabotage {
    SABOTAGE_NONE = 0,
    SABOTAGE_OTHER_OP,      /* rank 1 runs another op than the others */
    SABOTAGE_LOCAL_CHOICE,  /* rank 1 lets local state choose which group leaves a frame */
    SABOTAGE_OTHER_FRAMES,  /* rank 1 has a frame more */
    SABOTAGE_OTHER_AHEAD,   /* rank 1 gathers ahead, the others do not */
    SABOTAGE_FORGOTTEN,     /* rank 1 drops a gather for an op that did not come */
    SABOTAGE_FEW_FRAMES,    /* all gather ahead with the fewest frames for an op */
    SABOTAGE_FEW_SLOTS,     /* all gather ahead with the fewest device slots for an op */
    SABOTAGE_EARLY_RELEASE, /* an op's chunks are released at its end, before its REDUCE is issued */
    SABOTAGE_GATHER_AT_END, /* the next step's first gathers are appended at a step's end */
    SABOTAGE_OTHER_ORDER,   /* rank 1 issues the next collective before the head */
    SABOTAGES,
} sabotage;

typedef struct content {
    uint64_t value;
    uint32_t gradients; /* bit p: the gradient of param p stands in it */
} content;

typedef enum effect_kind {
    EFFECT_COPY_IN = 0,
    EFFECT_ZERO,
    EFFECT_COPY_OUT,
    EFFECT_COMPUTE,
    EFFECT_TASK, /* on the device */
    EFFECT_COLLECTIVE,
} effect_kind;

typedef struct effect {
    effect_kind kind;
    uint32_t device_slot, host_slot;
    tide_op op;
    uint32_t step; /* the program's */
    tide_command command;
    /* of a COMPUTE or REDUCE: the op's chunks, their slots, and the frames of their groups */
    tide_chunk chunks[OP_CHUNKS_MAX];
    uint32_t slots[OP_CHUNKS_MAX], frames[OP_CHUNKS_MAX];
    uint32_t chunk_count;
    uint32_t gradients; /* of a REDUCE: the params that it closes; of an UPDATE: whose gradients it needs */
} effect;

typedef struct open_command {
    tide_command command;
    uint64_t behind; /* may be done, or take effect on the host, when so many effects are executed */
} open_command;

typedef enum item_kind {
    ITEM_STEP_BEGIN = 0,
    ITEM_OP,
    ITEM_SLICE,
    ITEM_REDUCE,
    ITEM_OP_END,
    ITEM_STEP_END,
    ITEM_RELEASE,
    ITEM_SKIP,
    ITEM_SET,
    ITEM_DESTROY,
} item_kind;

typedef struct item {
    item_kind kind;
    uint32_t number; /* op, slice, param, or rank that sets */
    uint32_t chunk;  /* that is set */
    uint64_t value;
    bool training, updates_wait, values_set;
} item;

typedef struct rank {
    tide_layout *layout;
    tide_manager *manager;
    tide_manager_options options;
    content *slots[TIDE_TIER_COUNT];
    content *frames;    /* for each frame, the content of each member */
    tide_chunk *mapped; /* for each frame */
    uint64_t *states;   /* for each PARAM chunk, the value that its state has */
    uint32_t *pieces;   /* for each PARAM chunk, pieces done of the update that is under way */
    effect *effects;
    uint64_t enqueued, executed, norms; /* norms: effects up to the last NORM */
    open_command open[OPEN_MAX];
    uint32_t needed[OPEN_MAX]; /* as effect.gradients, of host tasks */
    uint32_t open_count;
    uint32_t next;  /* item of the program */
    uint32_t steps; /* steps begun */
    uint64_t set;   /* the value that the open host request sets */
    bool idle;      /* the manager has no command */
    bool computes;  /* the open op or slice has not been enqueued */
    bool tells;     /* tells the manager how busy the link is and how far the device is */
    uint64_t ended, passed, ends[ENDS_MAX]; /* op ends: effects that were enqueued then */
    uint32_t calmness;                      /* the larger, the later it does what it can do */
} rank;

typedef struct world {
    uint64_t seed, random;
    sabotage sabotage;
    uint32_t ranks;
    tide_description *description;
    tide_op_description ops[OPS_MAX];
    tide_use uses[OPS_MAX][USES_MAX], activations[OPS_MAX][2];
    uint32_t op_count, param_count, forward_count, activation_count, parts;
    rank rank[RANKS_MAX];
    item program[ITEMS_MAX];
    uint32_t item_count, destroy_at, cursor, slice, steps_left;
    bool steady;                           /* the open step runs the ops in their order */
    bool values_set;                       /* since the last step began */
    uint64_t truth[RANKS_MAX][CHUNKS_MAX]; /* at the program's end */
    uint64_t hashes[ITEMS_MAX];            /* of the roll, at the begin of each step */
    uint64_t *values[ITEMS_MAX];           /* the same at the begin of each step */
    uint32_t steps;
    uint64_t sets;
    char failure[256];    /* empty: none */
    bool deadlock, stuck; /* stuck: as each manager says that waits in a deadlock */
    bool tight;           /* no activations, no slot more than needed, and slow updates */
    bool aborts;          /* the ranks give the step up at the end, wherever they are */
} world;

/* Counts over all worlds of things that must happen somewhere. */
typedef struct world_events {
    uint64_t steps, passes, gathers, gathers_kept, gathers_ahead, unexpected_ops, reduces, early_reduces,
        skips, releases, sets, destroys, refused, empty_members, aborts, aborts_in_close, waits_for_peers;
} world_events;
extern world_events world_seen;

/* Draw a model for `ranks` ranks (0: 2 to 8); make the managers; play to the end, a failure or a deadlock. */
void world_draw(world *w, uint64_t seed, uint32_t ranks, sabotage how);
/* Ops, both passes in one, with a param of one group each, on two ranks. */
void world_draw_ops(world *w, uint32_t ops, sabotage how);
/* Make the managers. `options` NULL: draw budgets, placement and prefetch of each rank. */
void world_start(world *w, const tide_manager_options *options);
void world_play(world *w);
void world_destroy(world *w);

#endif
