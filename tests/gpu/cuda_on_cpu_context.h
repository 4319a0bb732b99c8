/* A stack of its own and the place where it stopped: what a fiber of cuda_on_cpu.cc is made of.
 *
 * One OS thread switches among contexts of its own. A switch saves what a call preserves on the stack that is left, by a
 * few instructions on x86-64 and arm64, by swapcontext elsewhere. A stack has a guard page at its low end, and begins
 * `colour` bytes below its top: stacks that all began at the same place of a page would share a few of the cache's sets.
 * AddressSanitizer and ThreadSanitizer are told of every switch.
 */
#ifndef TIDEPOOL_TESTS_CUDA_ON_CPU_CONTEXT_H
#define TIDEPOOL_TESTS_CUDA_ON_CPU_CONTEXT_H

#include <cstddef>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

struct cuda_on_cpu_context {
#if defined(__x86_64__) || defined(__aarch64__)
    void *stopped; /* its stack pointer */
#else
    ucontext_t stopped;
#endif
    char *stack; /* lowest address; the OS thread's own context: of its stack, learnt at the first switch */
    size_t stack_bytes;
    void *fake_stack; /* AddressSanitizer's */
    void *tsan;       /* ThreadSanitizer's */
};

/* The context of the OS thread that calls. */
void cuda_on_cpu_context_of_caller(cuda_on_cpu_context *made);

/* A context with a stack, that is to begin in `entry`; `entry` never returns. Without memory the process ends. */
void cuda_on_cpu_context_make(cuda_on_cpu_context *made, void (*entry)(), size_t colour);
void cuda_on_cpu_context_free(cuda_on_cpu_context *freed); /* not the one that runs */

/* Make the context begin in `entry`, whatever was on its stack. */
void cuda_on_cpu_context_begin_at(cuda_on_cpu_context *made, void (*entry)(), size_t colour);

/* What `entry` does first. `from` is the context that it was switched to from, if that may be an OS thread's own; or
 * NULL. */
void cuda_on_cpu_context_arrived(cuda_on_cpu_context *self, cuda_on_cpu_context *from);

/* Leave `from`, go on in `to`; returns when somebody switches back. With `forget`, `from` is never continued. */
void cuda_on_cpu_context_switch(cuda_on_cpu_context *from, cuda_on_cpu_context *to, bool forget);

#endif
