/* What a training step does and how long each part takes: from this predict.c plays steps.
 *
 * Two things are kept.
 *
 *   series    a duration per unit: nanoseconds a byte copied, a byte of optimizer traffic, a mapping, or a unit of an
 *             op. Whoever does the work adds to two sums (ns, amount); at a step's begin a sample takes their growth
 *             and smooths it.
 *   script    the ops and slices of a step in the order in which the caller ran them. Two buffers: the step being
 *             written, and the last one complete.
 *
 *   series    copy in | out | adam host | device | map | unmap | before the ops | after them |
 *             units of op 0, 1, ... | beginnings of op 0, 1, ... | ends of op 0, 1, ...
 *
 * A unit of an op is one slice, or one run of an op without slices: a step plays each slice of an op alike. What the pool
 * itself does at an op's begin (zero accumulators) and end (round gradients, take their norm) are series of their own,
 * since they come before and after the slices.
 *
 * Samples. The first two steps (the first runs on demand, with fresh memory) and a step whose script is new replace a
 * series' mean; later ones move it by a quarter. A step's compute is over when the next begins, so its series are whole;
 * updates may still run, but every series' ns and amount grow together.
 *
 * Cost: two relaxed atomic additions a command and two stores an op. Nothing is allocated after create.
 *
 * Fields: [any] atomic, any thread; [caller] the thread that drives the pool; [fixed] not changed after create.
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
    TIDE_SERIES_BEFORE, /* the compute stream's work of a training step outside ops; amount: steps */
    TIDE_SERIES_AFTER,
    TIDE_SERIES_FIRST_OP,
} tide_series_kind;

typedef struct tide_series {
    _Atomic uint64_t ns, amount;     /* [any] sums since create */
    uint64_t taken_ns, taken_amount; /* [caller] of the sums, what samples have got */
    double mean_ns;                  /* [caller] per unit of amount, smoothed; 0: nothing measured */
    double step_amount;              /* [caller] of the last sample */
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
    bool clips;    /* its updates wait for the norm */
    bool too_long; /* more lines than there is room for: it can't be played */
} tide_script;

typedef struct tide_measure {
    uint32_t op_count;      /* [fixed] */
    uint32_t script_lines;  /* [fixed] room of each script */
    tide_series *series;    /* [fixed] tide_measure_series_count of them */
    tide_script scripts[2]; /* [caller] the first owns both's lines */
    uint32_t last;          /* [caller] which script is the last complete one; the other is written */
    uint64_t version;       /* [caller] counts scripts that differ from the one before; 0: none is complete */
    bool writing;           /* [caller] a training step is open */
    bool
        fresh; /* [caller] the script written differs from the last one so far; once ended: the last one did, and its sample
                         replaces */
    bool pending;     /* [caller] a step has ended that no sample has seen */
    uint32_t samples; /* [caller] */
    bool complete;    /* [caller] some step has been taken whole: compute, moves and updates */
} tide_measure;

static inline uint32_t tide_measure_series_count(const tide_measure *measure)
{
    return (uint32_t)TIDE_SERIES_FIRST_OP + 3 * measure->op_count;
}

/* A unit of op `op`; what the pool does at its begin; at its end. */
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

/* Room for scripts of `script_lines` lines. NO_MEMORY, leaving nothing behind. */
tide_status tide_measure_create(tide_measure *measure, uint32_t op_count, uint32_t script_lines);
void tide_measure_destroy(tide_measure *measure); /* zeroed: allowed */

/* `amount` units of work took `ns`. Any thread. */
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
/* The step is given up: what it measured and wrote is forgotten. */
void tide_measure_step_forget(tide_measure *measure);
/* If a step has ended since the last sample: take its growth. All of its compute has been added; `updated`: all of its
 * updates, too. */
void tide_measure_sample(tide_measure *measure, bool updated);

bool tide_measure_is_valid(const tide_measure *measure);

static inline const tide_script *tide_measure_script(const tide_measure *measure)
{
    return &measure->scripts[measure->last];
}

#endif
