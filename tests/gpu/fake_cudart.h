/* A fake CUDA runtime that needs no GPU: the functions that the CUDA device and its module call, with
 * CUDA's rules and stricter checks.
 *
 * Link these files in libcudart's place. Each stream is a thread, so commands really run later. Events,
 * times, errors and memory behave as CUDA documents:
 *
 *     device memory   a cuMemCreate handle is a memfd, a reservation is PROT_NONE, and a mapping is
 *                     accessible only after cuMemSetAccess; mappings of one handle are aliases. Memory
 *                     begins poisoned, and its total is limited.
 *     events          a wait captures the latest record at the time of the call; an event never recorded
 *                     is complete; times are taken when the record runs, at CUDA's resolution of half a
 *                     microsecond
 *     errors          of one call, or sticky: after a command failed every call fails. "Not ready" stays
 *                     the thread's last error until it is read, so a launch that checks the last error
 *                     sees it.
 *     copies          each side lies inside one live mapping, allocation or registration; otherwise the
 *                     copy is an illegal address
 *
 * Some errors CUDA lets pass or punishes only now and then. The fake records them as misuse: memory
 * unmapped, freed or unregistered while an enqueued copy uses it, asynchronous copies of memory that is
 * not pinned, calls for another GPU than the calling thread's current one, handles already destroyed,
 * sizes that CUDA refuses.
 *
 * The driver's virtual memory functions are found by cudaGetDriverEntryPointByVersion alone, as there is
 * no libcuda. */
#ifndef TIDE_TESTS_FAKE_CUDART_H
#define TIDE_TESTS_FAKE_CUDART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_CUDART_GRANULARITY = 2 << 20, FAKE_CUDART_GPUS_MAX = 4, FAKE_CUDART_INLINE_BYTES = 288 };
/* the greatest priority of streams; the least is 0 */
enum { FAKE_CUDART_GREATEST_PRIORITY = -5 };

typedef struct fake_cudart_options {
    int gpus;
    int gpu;                    /* the GPU that calls should be for; calls for others are misuse. -1: any */
    int driver;                 /* the driver's CUDA version, such as 13000; 0: no driver */
    int capability;             /* 90 means 9.0 */
    bool no_vmm;                /* the GPU has no virtual memory management */
    const char *missing_symbol; /* a driver function that this driver lacks; NULL: none */
    uint64_t memory_bytes;      /* of each GPU */
    uint64_t pinned_bytes;      /* the most that can be registered; 0: no limit */
    uint64_t delay_seed;
    /* each command of each stream may sleep up to this long first; 0: none does */
    uint32_t delay_max_us;
} fake_cudart_options;

/* One GPU of capability 9.0 with 256 MiB and a new driver. These options hold before the first start too. */
fake_cudart_options fake_cudart_defaults(void);

/* Resets counts, injected failures, misuse and errors, and destroys everything still live. No other thread
 * may be inside a call. */
void fake_cudart_start(const fake_cudart_options *options);

/* Injects a failure: the N-th call from now of the function `name` (NULL: of any function) returns
 * `error`, once; a cudaError_t, or the CUresult with the same number. With `refuses` the call does
 * nothing. Without it, a call that frees something or waits still does its work, since CUDA's calls may
 * report an earlier failure. */
void fake_cudart_fail(const char *name, uint64_t countdown, int error, bool refuses);
bool fake_cudart_has_failed(void);
/* The N-th copy, fill or kernel that begins from now on fails, and `error` becomes the sticky error. */
void fake_cudart_fail_command(uint64_t countdown, int error);
/* Makes `error` the sticky error at once, as a failing kernel would. */
void fake_cudart_break(int error);

/* Calls of a function since the start; NULL: of all functions. */
uint64_t fake_cudart_count(const char *name);
/* The name of function `index` in the order of first calls; NULL: fewer were called. */
const char *fake_cudart_called(size_t index);
/* Number of commands that ran. */
uint64_t fake_cudart_commands(void);

/* Number of live objects; `text` gets a line about them: "2 streams, 1 mapping". */
size_t fake_cudart_live(char *text, size_t text_bytes);
/* Number of broken rules since the start; `text` gets a description of the first. */
size_t fake_cudart_misuse(char *text, size_t text_bytes);

/* Enqueues a kernel: the stream's thread calls run(closure), or skips it after a failure. Returns the
 * error that a launch would leave, and clears it as callers of launches do: 0 or a cudaError_t. */
int fake_cudart_enqueue(void *stream, const char *label, void (*run)(void *closure), void *closure);
/* Enqueues a kernel with a copy of its arguments, at most FAKE_CUDART_INLINE_BYTES. A result of run()
 * other than 0 becomes the sticky error. Returns the launch's error, as fake_cudart_enqueue() does. */
int fake_cudart_launch(void *stream, int (*run)(void *arguments), const void *arguments, size_t bytes);

#endif
