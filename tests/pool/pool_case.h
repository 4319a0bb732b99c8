/* A random test case for a pool. A seed determines the model, the machine and the calls. The case makes each
 * call on the pool and on a reference model of plain arrays (reference_pool.h), and counts events so that
 * the test can see what it covered. */
#ifndef TIDE_TESTS_POOL_CASE_H
#define TIDE_TESTS_POOL_CASE_H

#include "tests/support/reference_pool.h"

#include <stdatomic.h>

/* The test counts these events over all cases of one run and prints the counts with these names. It fails if
 * an event never happened, because it then covered less than it claims. */
#define POOL_EVENTS(EVENT)                                                                                   \
    EVENT(CASES, "cases")                                                                                    \
    EVENT(AT_THE_LEAST, "cases with exactly the least budgets")                                              \
    EVENT(PAIRS, "cases played on two pools that must give the same bits")                                   \
    EVENT(FROZEN, "frozen params")                                                                           \
    EVENT(FORMATS, "cases in which the optimizer keeps more planes for some params than for others")         \
    EVENT(HALF_MASTERS, "params without an fp32 master")                                                     \
    EVENT(HALF_SKIPS, "skipped steps of a model with such params")                                           \
    EVENT(STEPS, "steps")                                                                                    \
    EVENT(FORWARD_PASSES, "forward-only passes")                                                             \
    EVENT(OPS, "ops")                                                                                        \
    EVENT(TIED_CLOSINGS, "gradients that several ops added to")                                              \
    EVENT(OVERWRITTEN, "gradients that an op overwrote because they were new")                               \
    EVENT(BESIDE, "pools that finish gradients beside the next op")                                          \
    EVENT(GROUPED, "cases with more than one sum group")                                                     \
    EVENT(REDUCED_BF16, "cases whose sum groups' sums are rounded to bf16")                                  \
    EVENT(LEFT_OUT_GROUPS, "sum groups without a slice")                                                     \
    EVENT(FINISHED, "gradients finished before their ops ended")                                             \
    EVENT(FINISHED_IN_PARTS, "of them in parts")                                                             \
    EVENT(ABORTS, "aborts of open steps")                                                                    \
    EVENT(ABORTS_IN_OPS, "aborts inside ops")                                                                \
    EVENT(LATE_GIVEN_UP, "aborts after step end that gave the step up")                                      \
    EVENT(LATE_TAKEN, "that let the step take place")                                                        \
    EVENT(LATE_POISONED, "that poisoned the pool")                                                           \
    EVENT(KERNEL_FAILURES, "kernel failures")                                                                \
    EVENT(SKIPS, "skips")                                                                                    \
    EVENT(TEN_SKIPS, "ten in a row")                                                                         \
    EVENT(POISONED_BY_UPDATE, "poisons by an update")                                                        \
    EVENT(POISONED_BY_NORM, "by a norm")                                                                     \
    EVENT(POISONED_BY_ABORT, "by an abort")                                                                  \
    EVENT(RECOVERS, "recovers")                                                                              \
    EVENT(REFUSED_CLOSED, "refusals: of an op with a param whose place already holds its gradient")          \
    EVENT(REFUSED_STUCK, "of an op that would leave a gradient waiting for ever")                            \
    EVENT(REFUSED_DEAD_PARTS, "of dead parts")                                                               \
    EVENT(REFUSED_GROUPS, "of slices of an earlier sum group")                                               \
    EVENT(REFUSED_STEP_ENDS, "of step ends")                                                                 \
    EVENT(REFUSED_BUDGETS, "of budgets")                                                                     \
    EVENT(REFUSED_OTHERS, "others")                                                                          \
    EVENT(PREDICTIONS, "predictions")                                                                        \
    EVENT(TRACED, "trace events")

#define POOL_EVENT_NUMBER(event, name) EVENT_##event,
typedef enum pool_event { POOL_EVENTS(POOL_EVENT_NUMBER) EVENT_COUNT } pool_event;

extern uint64_t pool_events[EVENT_COUNT];
extern const char *const pool_event_names[EVENT_COUNT];

typedef struct pool_case {
    uint64_t seed;
    uint32_t variant; /* 0: the first pool; 1: the second pool of a pair */
    bool paired;      /* both pools must act alike, so the case avoids calls whose outcome depends on time */
    uint64_t random;  /* state of the random number generator for the calls */
    reference_pool model;
    tide_description *description;
    tide_pool *pool;
    tide_pool_options options;
    uint64_t nonmodel_bytes;
    tide_pool_plan plan;
    bool least;
    char *region; /* copy of the bytes that tide_region must hold [nonmodel_bytes] */
    bool region_known;
    float *buffers[3]; /* for values to set or just read, each as large as the largest param */
    uint64_t hash;     /* hash of all results that must not depend on the machine */

    uint32_t step; /* steps begun, training or not */
    const char *op_name;
    int giving_up_in;                  /* calls until the open step is given up; REF_NONE: it isn't */
    int skips_to_come;                 /* how many of the next steps must be skipped */
    float size;                        /* factor of the open step's gradients */
    bool spoil;                        /* the open step's next gradient is not finite */
    uint64_t finished[REF_PARAMS_MAX]; /* so many elements the open op has finished, or left for its end */
    uint32_t adders[REF_PARAMS_MAX];   /* how many ops added to the param's gradient in this step */
    bool result_known;                 /* the case has compared the pending step's result */
    bool failed;                       /* a call has reported the failure of a kernel */
    bool predicted;                    /* tide_pool_predict was called, which may allocate */
    /* updates of the training step before a forward-only pass may still run */
    bool updates_may_run;
    bool kernels_may_run; /* kernels of a forward-only pass may still read the model's values */
    uint32_t training_steps;
    uint32_t ops_played;         /* ops run in the last step */
    tide_pool_counters counters; /* the pool's counters, once two training steps have ended */

    _Atomic uint64_t failing_update; /* number of the update in which one piece fails; 0: none */
    atomic_int failing_piece;
    atomic_uint update_failures, traced;
    _Atomic uint64_t begun_update; /* number of the last update of which a piece has begun */
    unsigned update_us;            /* microseconds that the callback sleeps in each piece */
} pool_case;

uint64_t pool_random(pool_case *c, uint64_t below);
bool pool_chance(pool_case *c, unsigned percent);

/* Fail the test with a message that names seed, step and op and says how to play this case alone. */
void pool_case_fail(const pool_case *c, const char *format, ...) TIDE_PRINTF(2, 3);
void pool_expect(const pool_case *c, const char *call, tide_status got, tide_status wanted);
#define pool_expect_ok(c, call) pool_expect(c, #call, call, TIDE_OK)
void pool_expect_true(const pool_case *c, const char *what, bool is_true);

/* Draw the model from the seed and the machine from seed and variant. Then describe the model, choose
 * budgets, make the pool, and set all values. */
void pool_case_create(pool_case *c, uint64_t seed, uint32_t variant);
void pool_case_destroy(pool_case *c);
/* Wait a little until the next update has begun. Works only with the case's own optimizer. */
void pool_await_update(pool_case *c);

/* --- between steps (pool_between.c) --- */

/* Does the model not know the values? They are then compared only with those of the first pool. */
bool pool_is_blind(const pool_case *c);
void pool_know_result(pool_case *c); /* get the pending step's result and compare it */
void pool_settle(pool_case *c);      /* the pending step has taken place in the pool: apply it to the model */
void pool_give_up(pool_case *c);     /* abort the open step, or the pending one */
void pool_between(pool_case *c);     /* make a random call while no step is open */
void pool_check_all(pool_case *c);   /* compare every value and add it to the hash */

/* --- a step (pool_step.c) --- */

void pool_step(pool_case *c);
void pool_region_write(pool_case *c);
void pool_region_read(pool_case *c);

#endif
