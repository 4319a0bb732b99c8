/* A CUDA runtime without a GPU: what the CUDA device and its module call, with CUDA's rules and more suspicion.
 *
 * Link these files in libcudart's place. Streams are threads, so commands really run later; events, times, errors and
 * memory behave as CUDA documents them:
 *
 *   device memory   a cuMemCreate handle is a memfd, a reservation is PROT_NONE, and a mapping can be touched only after
 *                   cuMemSetAccess: mappings of one handle are aliases. It begins poisoned, and there is a total of it.
 *   events          a wait captures the latest record at the time of the call; an event never recorded is complete;
 *                   times are taken when the record runs, at CUDA's resolution of half a microsecond
 *   errors          of one call, or sticky: after a command failed every call fails. "Not ready" stays the thread's last
 *                   error until somebody reads it, so that a launch that looks there sees it.
 *   copies          each side lies inside one live mapping, allocation or registration, else an illegal address
 *
 * What CUDA would let pass, or punish only now and then, is recorded as misuse: memory unmapped, freed or unregistered
 * while an enqueued copy uses it, asynchronous copies of memory that is not pinned, calls for another GPU than the calling
 * thread's current one, handles that are no more, sizes that CUDA refuses.
 *
 * The driver's virtual memory calls are reached by cudaGetDriverEntryPointByVersion alone, as there is no libcuda.
 */
#ifndef TIDE_TESTS_FAKE_CUDART_H
#define TIDE_TESTS_FAKE_CUDART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_CUDART_GRANULARITY = 2 << 20, FAKE_CUDART_GPUS_MAX = 4, FAKE_CUDART_INLINE_BYTES = 288 };
enum { FAKE_CUDART_GREATEST_PRIORITY = -5 }; /* of streams; the least is 0 */

typedef struct fake_cudart_options {
    int gpus;
    int gpu;                    /* the one that calls are meant for; others are misuse. -1: any */
    int driver;                 /* the driver's CUDA version, e.g. 13000; 0: no driver */
    int capability;             /* 90: 9.0 */
    bool no_vmm;                /* the GPU has no virtual memory management */
    const char *missing_symbol; /* a driver call that this driver lacks; NULL: none */
    uint64_t memory_bytes;      /* of each GPU */
    uint64_t pinned_bytes;      /* registering more fails; 0: no limit */
    uint64_t delay_seed;
    uint32_t delay_max_us; /* each command of each stream may sleep so long first; 0: none */
} fake_cudart_options;

/* One GPU of capability 9.0 with 256 MiB and a new driver. What there is before the first start, too. */
fake_cudart_options fake_cudart_defaults(void);

/* Begin anew: counts, faults, misuse and errors are forgotten; what is still live is taken away. No other thread may be
 * inside a call. */
void fake_cudart_start(const fake_cudart_options *options);

/* The N-th call from now of the function `name` (NULL: of any) returns `error`, once: a cudaError_t or the CUresult of the
 * same number. Without `refuses`, calls that give something back or wait do it all the same, as CUDA's may report
 * what failed before; with it they do nothing. */
void fake_cudart_fail(const char *name, uint64_t countdown, int error, bool refuses);
bool fake_cudart_has_failed(void);
/* The N-th copy, fill or kernel that begins from now on fails instead, and `error` is sticky. */
void fake_cudart_fail_command(uint64_t countdown, int error);
/* A failure that sticks from now on, as a kernel makes one. */
void fake_cudart_break(int error);

/* Calls of a function since the start; NULL: of all. */
uint64_t fake_cudart_count(const char *name);
/* The index-th function that was called, in the order of first calls; NULL: there are not so many. */
const char *fake_cudart_called(size_t index);
/* Commands that ran. */
uint64_t fake_cudart_commands(void);

/* How much is live, and a line about it: "2 streams, 1 mapping". */
size_t fake_cudart_live(char *text, size_t text_bytes);
/* How often the rules were broken since the start; `text` gets the first case. */
size_t fake_cudart_misuse(char *text, size_t text_bytes);

/* Kernels. run(closure) on the stream's thread; skipped after a failure. Returns what a launch would leave as error, and takes
 * it away, as launches' callers do: 0 or a cudaError_t. */
int fake_cudart_enqueue(void *stream, const char *label, void (*run)(void *closure), void *closure);
/* The same with arguments that are copied, at most FAKE_CUDART_INLINE_BYTES; what run() returns, if not 0, becomes the
 * sticky error. Returns the same. */
int fake_cudart_launch(void *stream, int (*run)(void *arguments), const void *arguments, size_t bytes);

#endif
