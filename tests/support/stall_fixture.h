/* A pool of layers whose kernels, optimizer, copies, mappings and caller take chosen times; tests check
 * the causes of its stalls. */
#ifndef TIDE_TESTS_STALL_FIXTURE_H
#define TIDE_TESTS_STALL_FIXTURE_H

#include "src/pool/internal.h"
#include "tests/support/assert_ok.h"

#include <stdatomic.h>

enum {
    LAYERS = 5,
    MS = 1000000,
    BYTES_PER_NS = 1000,
    CHUNK_BYTES = 256 * 1024,
    ELEMENTS = CHUNK_BYTES / 2,
    STEPS = 12
};

/* A rate at which the pool's own kernels take no time. */
#define FLOPS_PER_NS 1e9

/* Each layer has one param and one activation, of one chunk each, and a forward and a backward op. */
typedef struct fixture {
    tide_description *description;
    tide_pool *pool;
    tide_op forward[LAYERS], backward[LAYERS];
    uint64_t kernel_ns; /* duration of an op's kernel */
    uint64_t late_ns;   /* the caller sleeps so long behind each op's kernel */
    uint64_t away_ns;   /* the caller sleeps so long before and after a step's ops */
    uint32_t layers;    /* layers that a step runs */
    float clip_norm;
    /* Stall events with the number of another step than the open one. */
    _Atomic uint32_t misplaced;
    _Atomic uint64_t traced_ns[TIDE_STALL_CAUSE_COUNT]; /* sums of the trace's stall events */
    /* [first][second]: how often a stall of the second cause followed one of the first without a gap */
    _Atomic uint32_t followed[TIDE_STALL_CAUSE_COUNT][TIDE_STALL_CAUSE_COUNT];
    tide_trace_event *heard; /* in virtual time: all events of the trace; may be NULL */
    uint32_t heard_count, heard_most;
} fixture;

typedef struct fixture_options {
    tide_pool_options pool;
    uint64_t nonmodel_bytes;
    uint64_t elements;     /* elements of a param */
    uint32_t spare_chunks; /* device slots beyond the least number; UINT32_MAX: all that are useful */
    float clip_norm;
    tide_trace_event *heard; /* memory for `heard_most` events, or NULL */
    uint32_t heard_most;
} fixture_options;

/* Returns options in which everything but kernels is too fast to matter. */
fixture_options options_of(const char *device);
void fixture_open(const fixture_options *options, fixture *r);
void fixture_close(fixture *r);
/* An update callback that sleeps for *context nanoseconds (uint64_t). For the host device. */
tide_status slow_optimizer(void *context, const tide_step_options *step, uint64_t update,
                           float gradient_scale, const tide_update_segment *segments, uint32_t count);
/* Makes the caller sleep. On the null device time passes only in commands, so the caller waits for one on
 * the host executor. */
void caller_sleeps(const fixture *r, uint64_t ns);
/* Enqueues a kernel that takes kernel_ns. */
void launch_sleep(const fixture *r);
void run_op(fixture *r, tide_op op);
void run_step(fixture *r, bool training);
/* Runs STEPS steps and drains the pool. Stores the counters of the finished steps without the first, which
 * begins with nothing prefetched, and the last, which the drain ends. Returns their number. */
uint32_t run(fixture *r, tide_pool_counters taken[STEPS]);
void add(tide_pool_counters *sum, const tide_pool_counters *more, double part);
/* Returns the mean of the counters that `run` stores. */
tide_pool_counters mean_step(fixture *r);
tide_pool_counters mean_of(const fixture_options *options);
void fail_with(const char *what, const tide_pool_counters *counters);
/* The seconds must agree to two nanoseconds. */
void assert_seconds(const char *what, const tide_pool_counters *counters, double seconds, double expected);
/* In virtual time: all time without compute is stalled by this cause alone. */
void assert_only(const tide_pool_counters *counters, tide_stall_cause cause);
/* On a real machine with other load: this cause is at least `least` and more than all others together. */
void assert_above_all(const tide_pool_counters *counters, tide_stall_cause cause, double least);

#endif
