/* The machine: the state of the emulation on one OS thread, shared by cuda_on_cpu.cc (threads, barriers,
 * launches) and cuda_on_cpu_shared.cc (shared arrays). Only its OS thread accesses it. */
#ifndef TIDEPOOL_TESTS_CUDA_ON_CPU_MACHINE_H
#define TIDEPOOL_TESTS_CUDA_ON_CPU_MACHINE_H

#include "tests/gpu/cuda_on_cpu.h"
#include "tests/gpu/cuda_on_cpu_context.h"

#include <vector>

namespace cuda_on_cpu
{

enum { LANES = 32 };

struct fiber {
    cuda_on_cpu_context at;
    size_t colour;
    uint32_t thread; /* thread to run when the fiber is taken from the pool */
};

enum thread_state : uint8_t { NOT_BEGUN, CAN_RUN, AT_BARRIER, AT_EXCHANGE, RETURNED };

struct thread_record {
    fiber *on; /* the fiber on whose stack the thread waits */
    uint3 index;
    thread_state state;
    const char *what; /* name of the barrier or collective where it waits */
    cuda_on_cpu_site site;
};

struct warp_record {
    uint32_t arrived, exchanges, epoch;
    size_t bytes;
    uint32_t first; /* lane that came first */
    alignas(16) char gifts[2][LANES * CUDA_ON_CPU_EXCHANGE_MAX_BYTES];
};

struct machine {
    const cuda_on_cpu_launch *launch;
    uint32_t threads; /* threads of a block */
    std::vector<thread_record> thread;
    std::vector<warp_record> warp;
    std::vector<uint32_t> queue; /* ring buffer of `threads` entries */
    uint32_t queue_first, queued;
    uint32_t at_barrier, returned;
    uint32_t first_at_barrier;
    fiber *running;
    std::vector<fiber *> fibers, spare;
    cuda_on_cpu_context caller;
    /* numbers of blocks and launches begun so far */
    uint64_t blocks, launches;
    /* bytes of the running block's arrays */
    size_t shared_bytes;
    uint32_t random;
    cuda_on_cpu_array *arrays;
    bool failed;
    char message[512];

    machine();
    ~machine();
};

/* The machine of the calling OS thread; NULL before its first launch. A plain pointer, since access to a
 * thread-local object with a constructor would cost more. */
extern __thread machine *this_machine;

/* Called when the machine ends. */
void arrays_free(machine *m);

} // namespace cuda_on_cpu

#endif
