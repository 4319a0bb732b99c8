/* Contexts: each a stack and the place where execution on it stopped. cuda_on_cpu.cc makes its fibers of
 * them.
 *
 * One OS thread switches between its own contexts. A switch saves the registers that a call preserves on
 * the old stack: by a few instructions on x86-64 and arm64, by swapcontext elsewhere. Each stack has a
 * guard page at its low end and begins `colour` bytes below its top, since stacks that all began at the
 * same offset in a page would compete for a few sets of the cache. The code announces every switch to
 * AddressSanitizer and ThreadSanitizer. */
#ifndef TIDEPOOL_TESTS_CUDA_ON_CPU_CONTEXT_H
#define TIDEPOOL_TESTS_CUDA_ON_CPU_CONTEXT_H

#include <cstddef>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

struct cuda_on_cpu_context {
#if defined(__x86_64__) || defined(__aarch64__)
    void *stopped; /* stack pointer while it is stopped */
#else
    ucontext_t stopped;
#endif
    /* lowest address of the stack; for the OS thread's own context known from the first switch on */
    char *stack;
    size_t stack_bytes;
    void *fake_stack; /* AddressSanitizer's fake stack */
    void *tsan;       /* ThreadSanitizer's fiber */
};

/* Makes a context for the calling OS thread itself. */
void cuda_on_cpu_context_of_caller(cuda_on_cpu_context *made);

/* Makes a context with a stack of its own that begins in `entry`, which must never return. Ends the
 * process if memory is lacking. */
void cuda_on_cpu_context_make(cuda_on_cpu_context *made, void (*entry)(), size_t colour);
/* Frees a context other than the running one. */
void cuda_on_cpu_context_free(cuda_on_cpu_context *freed);

/* Makes the context begin in `entry` again and discards its stack's contents. */
void cuda_on_cpu_context_begin_at(cuda_on_cpu_context *made, void (*entry)(), size_t colour);

/* `entry` has to call this first. `from` is the context that switched to it if that may be an OS thread's
 * own; otherwise NULL. */
void cuda_on_cpu_context_arrived(cuda_on_cpu_context *self, cuda_on_cpu_context *from);

/* Stops `from` and continues `to`; returns when another context switches back to `from`. With `forget`, no
 * context ever does. */
void cuda_on_cpu_context_switch(cuda_on_cpu_context *from, cuda_on_cpu_context *to, bool forget);

#endif
