/* Records which ops a training step runs, and measures how long each part of it takes. The player
 * (player.h) plays steps from these two.
 *
 * The measure keeps two things.
 *
 *   series    the mean time of one kind of work per unit: per byte copied, byte of optimizer traffic,
 *             mapping, or unit of an op. The thread that does the work adds to two sums (ns, amount); at the
 *             next step's begin a sample updates the mean from the growth of the sums.
 *   script    the ops and slices of a step in the order in which the caller ran them. Two buffers: one for
 *             the step being written, one for the last complete step.
 *
 *   series    copy in | out | adam host | device | map | unmap | before the ops | after them |
 *             units of op 0, 1, ... | beginnings of op 0, 1, ... | ends of op 0, 1, ...
 *
 * A unit of an op is one slice, or one run of an op without slices: a played step treats all slices of an op
 * alike. The pool's own work at an op's begin (zeroing accumulators) and end (rounding gradients, taking
 * their norm) has series of its own, since that work comes before the first and after the last slice.
 *
 * Samples. The first two steps (in the first, chunks are fetched on demand and memory is new) and a step
 * whose script is new replace a series' mean; later steps move it by a quarter of the difference. The next
 * step begins after a step's compute has ended, so the series of the ops are complete then. The step's
 * updates may still run; that does no harm, since ns and amount of a series always grow together.
 *
 * Cost: two relaxed atomic additions for each command and two stores for each op. The measure allocates
 * nothing after create.
 *
 * Fields: [any] atomic, any thread; [caller] the thread that drives the pool; [fixed] not changed after
 * create.
 */
#ifndef TIDE_POOL_MEASURE_H
#define TIDE_POOL_MEASURE_H

#include "offload/device.h"
#include "tidepool/pool.h"

#include <stdatomic.h>

typedef enum tide_series_kind {
    TIDE_SERIES_COPY_IN = 0, /* amount: bytes */
    TIDE_SERIES_COPY_OUT,
    TIDE_SERIES_ADAM_HOST, /* bytes of memory traffic */
    TIDE_SERIES_ADAM_DEVICE,
    TIDE_SERIES_MAP, /* calls */
    TIDE_SERIES_UNMAP,
    TIDE_SERIES_BEFORE, /* the compute stream's work outside ops; amount: steps */
    TIDE_SERIES_AFTER,
    TIDE_SERIES_FIRST_OP,
} tide_series_kind;

typedef struct tide_series {
    _Atomic uint64_t ns, amount;     /* [any] sums since create */
    uint64_t taken_ns, taken_amount; /* [caller] the sums at the last sample */
    double mean_ns;                  /* [caller] smoothed time per unit of amount; 0: nothing measured */
    double step_amount;              /* [caller] amount of the last sample */
} tide_series;

enum { TIDE_SCRIPT_OP = -1, TIDE_SCRIPT_END = -2 };

/* An op's begin (slice TIDE_SCRIPT_OP), one of its slices, or its end (TIDE_SCRIPT_END). */
typedef struct tide_script_line {
    uint32_t op;
    int32_t slice;
} tide_script_line;

typedef struct tide_script {
    tide_script_line *lines; /* [fixed] */
    uint32_t length;
    bool clips;    /* the updates of this step wait for the norm */
    bool too_long; /* the step had more lines than fit: it cannot be played */
} tide_script;

typedef struct tide_measure {
    uint32_t op_count;      /* [fixed] */
    uint32_t script_lines;  /* [fixed] allocated lines of each script */
    tide_series *series;    /* [fixed] tide_measure_series_count of them */
    tide_script scripts[2]; /* [caller] the first owns the lines of both */
    uint32_t last;          /* [caller] index of the last complete script; the open step writes the other */
    uint64_t version;       /* [caller] counts complete scripts that differ from the script before; 0: none */
    bool writing;           /* [caller] a training step is open */
    bool is_new;            /* [caller] the open (else the last) step's script differs from the one before */
    bool pending;           /* [caller] a step has ended since the last sample */
    uint32_t samples;       /* [caller] */
    bool complete;          /* [caller] the samples include a whole step: compute, moves and updates */
} tide_measure;

static inline uint32_t tide_measure_series_count(const tide_measure *measure)
{
    return (uint32_t)TIDE_SERIES_FIRST_OP + 3 * measure->op_count;
}

/* The series of op `op`: of its units, of the pool's work at its begin, and of the pool's work at its end. */
static inline uint32_t tide_series_of_op(uint32_t op)
{
    return (uint32_t)TIDE_SERIES_FIRST_OP + op;
}

static inline uint32_t tide_series_of_begin(const tide_measure *measure, uint32_t op)
{
    return (uint32_t)TIDE_SERIES_FIRST_OP + measure->op_count + op;
}

static inline uint32_t tide_series_of_end(const tide_measure *measure, uint32_t op)
{
    return (uint32_t)TIDE_SERIES_FIRST_OP + 2 * measure->op_count + op;
}

/* Allocate series, and scripts of at most `script_lines` lines. NO_MEMORY, with nothing left allocated. */
tide_status tide_measure_create(tide_measure *measure, uint32_t op_count, uint32_t script_lines);
void tide_measure_destroy(tide_measure *measure); /* zeroed: allowed */

/* Add `amount` units of work that took `ns` to the series. Any thread. */
static inline void tide_measure_add(tide_measure *measure, uint32_t series, uint64_t ns, uint64_t amount)
{
    atomic_fetch_add_explicit(&measure->series[series].ns, ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&measure->series[series].amount, amount, memory_order_relaxed);
}

/* --- the caller's thread --- */

/* A training step begins; `clips`: its updates wait for the norm. */
void tide_measure_step_begin(tide_measure *measure, bool clips);
void tide_measure_op(tide_measure *measure, uint32_t op, int32_t slice);
/* The step's last op has ended. */
void tide_measure_step_end(tide_measure *measure);
/* The step is given up: drop the ops and slices that it has recorded (its script) and everything measured
 * since the last sample. */
void tide_measure_step_forget(tide_measure *measure);
/* If a step has ended since the last sample, take a new one (see Samples above). The step's compute must have
 * ended; `updated`: its updates have ended, too. */
void tide_measure_sample(tide_measure *measure, bool updated);

bool tide_measure_is_valid(const tide_measure *measure);

static inline const tide_script *tide_measure_script(const tide_measure *measure)
{
    return &measure->scripts[measure->last];
}

#endif
