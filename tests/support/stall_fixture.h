/* A pool of layers whose kernels, optimizer, link, mappings and caller last what a test says; what its steps stalled for. */
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

/* So many that the pool's own kernels take no time. */
#define FLOPS_PER_NS 1e9

/* Layers of one param and one activation, a chunk each: a forward and a backward op. */
typedef struct fixture {
    tide_pool *pool;
    tide_op forward[LAYERS], backward[LAYERS];
    uint64_t kernel_ns; /* of an op */
    uint64_t late_ns;   /* the caller sleeps as long behind each op's kernel, */
    uint64_t away_ns;   /* and as long before, and after, a step's ops */
    uint32_t layers;    /* a step runs so many */
    float clip_norm;
    _Atomic uint32_t misplaced;                         /* stall events of another step than the open one */
    _Atomic uint64_t traced_ns[TIDE_STALL_CAUSE_COUNT]; /* by the trace's stall events */
    _Atomic uint32_t followed[TIDE_STALL_CAUSE_COUNT][TIDE_STALL_CAUSE_COUNT]; /* one at once by the other */
    tide_trace_event *heard; /* in virtual time: all events, if there is a place for them */
    uint32_t heard_count, heard_most;
} fixture;

typedef struct fixture_options {
    tide_pool_options pool;
    uint64_t elements;     /* of a param */
    uint32_t spare_chunks; /* device slots beyond the least; UINT32_MAX: all that are of use */
    float clip_norm;
    tide_trace_event *heard; /* NULL, or a place for so many events */
    uint32_t heard_most;
} fixture_options;

/* A machine on which everything but kernels is too fast to see. */
fixture_options options_of(const char *device);
void fixture_open(fixture_options *options, fixture *r);
/* An update callback that sleeps; its context: the nanoseconds. Host device. */
tide_status slow_optimizer(void *context, const tide_step_options *step, uint64_t update,
                           float gradient_scale, const tide_update_segment *segments, uint32_t count);
/* Virtual time is the device's: there the caller sleeps by waiting for a job of the host executor. */
void caller_sleeps(const fixture *r, uint64_t ns);
/* A kernel of kernel_ns. */
void launch_sleep(const fixture *r);
void run_op(fixture *r, tide_op op);
void run_step(fixture *r, bool training);
/* STEPS steps and a drain. Taken are all that finished but the first, which begins with everything still to come, and the
 * last, which the drain ends; returns their count. */
uint32_t run(fixture *r, tide_pool_counters taken[STEPS]);
void add(tide_pool_counters *sum, const tide_pool_counters *more, double part);
/* The mean of those. */
tide_pool_counters mean_step(fixture *r);
tide_pool_counters mean_of(fixture_options *options);
void fail_with(const char *what, const tide_pool_counters *counters);
/* To two nanoseconds. */
void assert_seconds(const char *what, const tide_pool_counters *counters, double seconds, double expected);
/* In virtual time: all of the step that is not computing, and no other cause at all. */
void assert_only(const tide_pool_counters *counters, tide_stall_cause cause);
/* On a machine that others use, too: all the rest together is less. */
void assert_above_all(const tide_pool_counters *counters, tide_stall_cause cause, double least);

#endif
