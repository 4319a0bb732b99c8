/* A random case for a pool: a model and a machine drawn from a seed, the pool beside the plain one, and what was met. */
#ifndef TIDE_TESTS_POOL_CASE_H
#define TIDE_TESTS_POOL_CASE_H

#include "tests/support/reference_pool.h"

#include <stdatomic.h>

/* What has happened in all cases: each must have, or the test tests less than it says. */
typedef enum pool_event {
    EVENT_CASES,
    EVENT_AT_THE_LEAST, /* cases with exactly the least budgets */
    EVENT_PAIRS,        /* cases played on two pools, to the same bits */
    EVENT_FROZEN,       /* params that are */
    EVENT_FORMATS,      /* cases in which the optimizer keeps more of some params than of others */
    EVENT_HALF_MASTERS, /* params without an fp32 master, */
    EVENT_HALF_SKIPS,   /* and steps skipped with such */
    EVENT_STEPS,        /* training steps that ended */
    EVENT_FORWARD_PASSES,
    EVENT_OPS,
    EVENT_TIED_CLOSINGS, /* of gradients that several ops had added to */
    EVENT_OVERWRITTEN,   /* gradients that were new */
    EVENT_ABORTS,        /* of open steps */
    EVENT_ABORTS_IN_OPS,
    EVENT_LATE_GIVEN_UP, /* aborts after step end: the step was given up, ... */
    EVENT_LATE_TAKEN,    /* ... had taken place, ... */
    EVENT_LATE_POISONED, /* ... or had begun its updates */
    EVENT_KERNEL_FAILURES,
    EVENT_SKIPS,
    EVENT_TEN_SKIPS,
    EVENT_POISONED_BY_UPDATE,
    EVENT_POISONED_BY_NORM,
    EVENT_POISONED_BY_ABORT,
    EVENT_RECOVERS,
    EVENT_REFUSED_CLOSED, /* refusals: an op that uses a param whose place holds its gradient */
    EVENT_REFUSED_STUCK,  /* an op that would leave a gradient waiting for ever */
    EVENT_REFUSED_DEAD_PARTS,
    EVENT_REFUSED_STEP_ENDS,
    EVENT_REFUSED_BUDGETS,
    EVENT_REFUSED_OTHERS,
    EVENT_PREDICTIONS,
    EVENT_TRACED,
    EVENT_COUNT,
} pool_event;

extern uint64_t pool_events[EVENT_COUNT];
extern const char *const pool_event_names[EVENT_COUNT];

typedef struct pool_case {
    uint64_t seed;
    uint32_t variant; /* 1: the second pool of a pair */
    bool paired;      /* nothing is done whose outcome depends on time */
    uint64_t random;  /* of the scenario */
    reference_pool model;
    tide_pool *pool;
    tide_pool_options options;
    tide_pool_plan plan;
    bool least;
    char *region; /* what tide_region must hold; nonmodel_bytes */
    bool region_known;
    float *buffers[3]; /* for values that come and go: of the largest param's elements each */
    uint64_t hash;     /* of what must not depend on the machine */

    uint32_t step; /* steps begun, training or not */
    const char *op_name;
    int giving_up_in;                /* moments until the open step is given up; REF_NONE: it isn't */
    int skips_to_come;               /* steps in a row to be skipped */
    float size;                      /* of the open step's gradients */
    bool spoil;                      /* the open step's next gradient is not finite */
    uint32_t adders[REF_PARAMS_MAX]; /* ops that added to it in this step */
    bool result_known;               /* of the pending step */
    bool failed;                     /* a kernel's failure was met */
    bool predicted;                  /* tide_pool_predict was called, which may allocate */
    bool updates_may_run;            /* of the step before a forward-only pass */
    bool kernels_may_run;            /* of a forward-only pass, on the model's values */
    uint32_t training_steps;
    uint32_t ops_played;         /* in the last step */
    tide_pool_counters counters; /* once two training steps have ended */

    _Atomic uint64_t failing_update; /* the update of which a piece fails; 0: none */
    atomic_int failing_piece;
    atomic_uint update_failures, traced;
    _Atomic uint64_t begun_update; /* the last of which a piece has begun */
    unsigned update_us;            /* that a piece takes, beside its work */
} pool_case;

uint64_t pool_random(pool_case *c, uint64_t below);
bool pool_chance(pool_case *c, unsigned percent);

/* Fails the test, naming seed, step and op, and how to play the case alone. */
void pool_case_fail(const pool_case *c, const char *format, ...) TIDE_PRINTF(2, 3);
void pool_expect(const pool_case *c, const char *call, tide_status got, tide_status wanted);
void pool_expect_true(const pool_case *c, const char *what, bool is_true);

/* Draw the model by the seed, the machine by seed and variant; register, budget, seal, set values. */
void pool_case_create(pool_case *c, uint64_t seed, uint32_t variant);
void pool_case_destroy(pool_case *c);
/* Wait a little until the next update, of an optimizer of one's own, has begun. */
void pool_await_update(pool_case *c);

/* --- between steps (pool_between.c) --- */

bool pool_is_blind(
    const pool_case *c); /* the model does not know the values: they are compared with the other pool's */
void pool_know_result(pool_case *c); /* ask for the pending step's result and compare it */
void pool_settle(pool_case *c);      /* the pending step has taken place: so it does in the model */
void pool_give_up(pool_case *c);     /* the open step, or the pending one */
void pool_between(pool_case *c);     /* something, with no step open */
void pool_check_all(pool_case *c);   /* every value; into the hash */

/* --- a step (pool_step.c) --- */

void pool_step(pool_case *c);
void pool_region_write(pool_case *c);
void pool_region_read(pool_case *c);

#endif
