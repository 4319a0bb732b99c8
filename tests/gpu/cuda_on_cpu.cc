/* The emulation behind cuda_on_cpu.h: fibers, the order in which they run, and the checks.
 *
 * Each OS thread makes a machine at its first launch. A block's threads run on fibers from a pool. A fiber
 * whose thread has returned begins the next thread on the same stack, by a plain call, so a kernel without
 * barriers needs only two switches a block. When a thread has to wait, its fiber stops and the OS thread
 * continues with the next thread of the queue:
 *
 *     queue      the threads that can run, in this epoch's order. It is filled at the block's beginning
 *                and at each barrier that all threads have reached, and gets a warp's lanes when the last
 *                of them comes to an exchange
 *     empty      if all threads have returned, the block is done; if all are at one barrier, the next
 *                epoch begins; anything else is a divergence error
 *
 * At an error the machine leaves every fiber where it is, switches back to the caller and resets the
 * fibers: kernels own nothing that needs unwinding. */
#include "tests/gpu/cuda_on_cpu_machine.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <utility>

using namespace cuda_on_cpu;

__thread cuda_on_cpu_here cuda_on_cpu_now;

int (*cuda_on_cpu_enqueue)(void *stream, const char *label, void (*run)(void *closure), void *closure);
void (*cuda_on_cpu_failed)(void *stream, const char *message);
unsigned cuda_on_cpu_seed;

__thread machine *cuda_on_cpu::this_machine;

/* CUDA's limits. */
enum { BLOCK_MAX_THREADS = 1024, BLOCK_MAX_Z = 64, GRID_MAX_YZ = 65535 };
enum { STACK_COLOURS = 8 };

/* ---- the machine ---- */

machine::machine()
    : launch(), threads(), queue_first(), queued(), at_barrier(), returned(), first_at_barrier(), running(),
      caller(), blocks(), launches(), shared_bytes(), random(), arrays(), failed(), message()
{
    cuda_on_cpu_context_of_caller(&caller);
}

machine::~machine()
{
    for (fiber *f : fibers) {
        cuda_on_cpu_context_free(&f->at);
        delete f;
    }
    arrays_free(this);
}

namespace
{

machine *machine_of_thread()
{
    static thread_local machine made;
    this_machine = &made;
    return &made;
}

/* xorshift; never returns 0. */
uint32_t machine_random(machine *m)
{
    m->random ^= m->random << 13;
    m->random ^= m->random >> 17;
    m->random ^= m->random << 5;
    return m->random;
}

void queue_push(machine *m, uint32_t thread)
{
    assert(m->queued < m->threads);
    const uint32_t at = m->queue_first + m->queued++;
    m->queue[at < m->threads ? at : at - m->threads] = thread;
}

uint32_t queue_pop(machine *m)
{
    assert(m->queued > 0);
    const uint32_t thread = m->queue[m->queue_first];
    m->queue_first = m->queue_first + 1 < m->threads ? m->queue_first + 1 : 0;
    m->queued--;
    return thread;
}

/* Queues every thread of the block: forwards, backwards or shuffled. */
void queue_fill(machine *m)
{
    assert(m->queued == 0);
    const uint32_t order = machine_random(m) / 7 % 3;
    m->queue_first = 0;
    m->queued = m->threads;
    for (uint32_t i = 0; i < m->threads; i++)
        m->queue[i] = order == 1 ? m->threads - 1 - i : i;
    for (uint32_t i = m->threads - 1; order == 2 && i > 0; i--)
        std::swap(m->queue[i], m->queue[machine_random(m) % (i + 1)]);
}

/* ---- running threads ---- */

void next_thread(machine *m);

void begin_epoch(machine *m)
{
    if (++cuda_on_cpu_now.epoch == 0)
        cuda_on_cpu_now.epoch = 1;
    m->at_barrier = 0;
    queue_fill(m);
}

void thread_is_now(const machine *m, uint32_t thread)
{
    cuda_on_cpu_now.thread = m->thread[thread].index;
    cuda_on_cpu_now.index = thread;
    cuda_on_cpu_now.warp_epoch = m->warp[thread / LANES].epoch;
}

/* The main function of a fiber: runs the thread for which it was taken, then, on the same stack, threads
 * of the queue that have not begun. */
void fiber_main()
{
    machine *const m = this_machine;
    fiber *const self = m->running;
    cuda_on_cpu_context_arrived(&self->at, &m->caller);
    for (;;) {
        const uint32_t thread = self->thread;
        thread_is_now(m, thread);
        m->launch->thread(m->launch);
        m->thread[thread].state = RETURNED;
        m->returned++;
        next_thread(m);
    }
}

fiber *fiber_make(machine *m)
{
    fiber *made = new fiber();
    made->colour = m->fibers.size() % 64 * 64 + m->fibers.size() / 64 % STACK_COLOURS * 4096;
    cuda_on_cpu_context_make(&made->at, fiber_main, made->colour);
    m->fibers.push_back(made);
    return made;
}

fiber *fiber_take(machine *m)
{
    if (m->spare.empty())
        return fiber_make(m);
    fiber *taken = m->spare.back();
    m->spare.pop_back();
    return taken;
}

void caller_resume(machine *m)
{
    cuda_on_cpu_context_switch(&m->running->at, &m->caller, false);
}

/* The texts are literals, and nearly always the same one. */
bool is_same_text(const char *a, const char *b)
{
    return a == b || strcmp(a, b) == 0;
}

bool waits_elsewhere(const thread_record *a, const thread_record *b)
{
    return a->state != b->state || a->site.line != b->site.line;
}

/* The queue is empty, but the threads have neither all returned nor all come to one barrier: some wait for
 * others that never come. The message reports lanes of a warp that miss each other rather than the block's
 * barrier, since that says more. */
[[noreturn]] void fail_divergence(const machine *m)
{
    uint32_t waits = 0;
    while (waits < m->threads && m->thread[waits].state != AT_EXCHANGE)
        waits++;
    const bool in_warp = waits < m->threads;
    for (waits = in_warp ? waits : 0; m->thread[waits].state == RETURNED;)
        waits++;
    const uint32_t begin = in_warp ? waits / LANES * LANES : 0;
    const uint32_t end = in_warp && begin + LANES < m->threads ? begin + LANES : m->threads;
    const thread_record *first = &m->thread[waits];
    uint32_t other = begin;
    while (other < end && !waits_elsewhere(&m->thread[other], first))
        other++;
    thread_is_now(m, waits);
    if (in_warp && begin + LANES > m->threads)
        cuda_on_cpu_fail(first->site, "waits at %s in a warp of %u threads, which needs 32", first->what,
                         end - begin);
    assert(other < end);
    const thread_record *second = &m->thread[other];
    if (second->state == RETURNED)
        cuda_on_cpu_fail(first->site, "waits at %s but thread (%u, %u, %u) has returned", first->what,
                         second->index.x, second->index.y, second->index.z);
    cuda_on_cpu_fail(first->site, "waits at %s but thread (%u, %u, %u) waits at %s in line %d", first->what,
                     second->index.x, second->index.y, second->index.z, second->what, second->site.line);
}

/* Runs another thread, since the current one waits or has returned. Returns when the current fiber has a
 * thread to run: the one that waited on it or, if that had returned, the new self->thread. */
void next_thread(machine *m)
{
    fiber *const self = m->running;
    const uint32_t left = cuda_on_cpu_now.index;
    const bool is_free = m->thread[left].state == RETURNED;
    if (m->queued == 0 && m->at_barrier == m->threads)
        begin_epoch(m);
    if (m->queued == 0) {
        if (m->returned < m->threads)
            fail_divergence(m);
        m->spare.push_back(self);
        /* The block is done; when the fiber is taken from the pool again, self->thread is set. */
        caller_resume(m);
        return;
    }
    const uint32_t thread = queue_pop(m);
    thread_record *next = &m->thread[thread];
    if (next->state == NOT_BEGUN && is_free) {
        next->state = CAN_RUN;
        self->thread = thread;
        return;
    }
    if (is_free)
        m->spare.push_back(self);
    fiber *to = next->on;
    if (next->state == NOT_BEGUN) {
        to = fiber_take(m);
        to->thread = thread;
    }
    next->state = CAN_RUN;
    m->running = to;
    if (to != self)
        cuda_on_cpu_context_switch(&self->at, &to->at, false);
    m->running = self;
}

/* Stops the current thread until it is taken from the queue again. */
void thread_wait(machine *m, thread_state state, const char *what, cuda_on_cpu_site site)
{
    const uint32_t thread = cuda_on_cpu_now.index;
    thread_record *record = &m->thread[thread];
    record->on = m->running;
    record->state = state;
    record->what = what;
    record->site = site;
    next_thread(m);
    thread_is_now(m, thread);
}

/* ---- blocks and launches ---- */

void block_run(machine *m, uint3 block)
{
    cuda_on_cpu_now.block = block;
    m->blocks++;
    m->random = (uint32_t)(m->blocks * 2654435761u) ^ (cuda_on_cpu_seed * 40503u) ^ 0x5bd1e995u;
    m->random += m->random == 0;
    m->returned = 0;
    m->shared_bytes = 0;
    for (uint32_t t = 0; t < m->threads; t++)
        m->thread[t].state = NOT_BEGUN;
    for (warp_record &warp : m->warp)
        warp.arrived = 0;
    begin_epoch(m);
    m->running = fiber_take(m);
    m->running->thread = queue_pop(m);
    m->thread[m->running->thread].state = CAN_RUN;
    cuda_on_cpu_context_switch(&m->caller, &m->running->at, false);
}

/* Resets every fiber after an error. */
void fibers_forget(machine *m)
{
    m->spare.clear();
    for (fiber *f : m->fibers) {
        cuda_on_cpu_context_begin_at(&f->at, fiber_main, f->colour);
        m->spare.push_back(f);
    }
    m->queued = 0;
}

void machine_shape(machine *m, const cuda_on_cpu_launch *launch)
{
    const dim3 block = launch->block;
    m->launch = launch;
    m->failed = false;
    m->launches++;
    m->threads = block.x * block.y * block.z;
    m->queue.resize(m->threads);
    m->thread.resize(m->threads);
    m->warp.resize((m->threads + LANES - 1) / LANES);
    for (uint32_t t = 0; t < m->threads; t++)
        m->thread[t].index = {t % block.x, t / block.x % block.y, t / block.x / block.y};
    cuda_on_cpu_now.block_dim = {block.x, block.y, block.z};
    cuda_on_cpu_now.grid_dim = {launch->grid.x, launch->grid.y, launch->grid.z};
}

/* Runs every block. Returns NULL, or the message of an error. */
const char *launch_run(const cuda_on_cpu_launch *launch)
{
    machine *m = machine_of_thread();
    const uint64_t blocks = (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z;
    machine_shape(m, launch);
    const bool backwards = (m->launches ^ cuda_on_cpu_seed) & 1;
    for (uint64_t i = 0; i < blocks && !m->failed; i++) {
        const uint64_t b = backwards ? blocks - 1 - i : i;
        block_run(m, {(unsigned)(b % launch->grid.x), (unsigned)(b / launch->grid.x % launch->grid.y),
                      (unsigned)(b / launch->grid.x / launch->grid.y)});
    }
    if (m->failed)
        fibers_forget(m);
    return m->failed ? m->message : nullptr;
}

void launch_run_queued(void *closure)
{
    cuda_on_cpu_launch *launch = (cuda_on_cpu_launch *)closure;
    const char *message = launch_run(launch);
    if (message && !cuda_on_cpu_failed) {
        fprintf(stderr, "%s\n", message);
        abort();
    }
    if (message)
        cuda_on_cpu_failed(launch->stream, message);
    launch->destroy(launch);
}

bool shape_is_valid(dim3 grid, dim3 block)
{
    return grid.x && grid.y && grid.z && block.x && block.y && block.z && grid.x <= 0x7fffffffu &&
           grid.y <= GRID_MAX_YZ && grid.z <= GRID_MAX_YZ && block.x <= BLOCK_MAX_THREADS &&
           block.y <= BLOCK_MAX_THREADS && block.z <= BLOCK_MAX_Z &&
           (uint64_t)block.x * block.y * block.z <= BLOCK_MAX_THREADS;
}

/* Ends the launch because of the current thread's error; all threads stop where they are. */
[[noreturn]] void machine_abandon(machine *m)
{
    m->failed = true;
    cuda_on_cpu_context_switch(&m->running->at, &m->caller, true);
    /* The caller never switches back. */
    abort();
}

} // namespace

/* For builds without the CUDA runtime and without its fake, which define this function with messages of
 * their own. */
extern "C" __attribute__((weak)) tide_status tide_cuda_launched(const char *label, int error)
{
    return error == 0 ? TIDE_OK : tide_fail(TIDE_ERROR_DEVICE, "%s: CUDA error %d", label, error);
}

tide_status cuda_on_cpu_start(cuda_on_cpu_launch *launch)
{
    tide_status status = TIDE_OK;
    if (!shape_is_valid(launch->grid, launch->block)) {
        status =
            tide_fail(TIDE_ERROR_DEVICE, "%s: invalid configuration: grid (%u, %u, %u), block (%u, %u, %u)",
                      launch->label, launch->grid.x, launch->grid.y, launch->grid.z, launch->block.x,
                      launch->block.y, launch->block.z);
    } else if (cuda_on_cpu_enqueue) {
        /* A copy, since the launch may have ended and been destroyed before the call returns. */
        const char *label = launch->label;
        return tide_cuda_launched(label,
                                  cuda_on_cpu_enqueue(launch->stream, label, launch_run_queued, launch));
    } else {
        const char *message = launch_run(launch);
        if (message)
            status = tide_fail(TIDE_ERROR_DEVICE, "%s", message);
    }
    launch->destroy(launch);
    return status;
}

void cuda_on_cpu_fail(cuda_on_cpu_site site, const char *format, ...)
{
    machine *m = this_machine;
    const cuda_on_cpu_here *here = &cuda_on_cpu_now;
    const char *slash = site.file ? strrchr(site.file, '/') : nullptr;
    int length = snprintf(m->message, sizeof m->message, "%s: block (%u, %u, %u), thread (%u, %u, %u)",
                          m->launch->label, here->block.x, here->block.y, here->block.z, here->thread.x,
                          here->thread.y, here->thread.z);
    if (site.file)
        length += snprintf(m->message + length, sizeof m->message - (size_t)length, ", %s:%d",
                           slash ? slash + 1 : site.file, site.line);
    length += snprintf(m->message + length, sizeof m->message - (size_t)length, ": ");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(m->message + length, sizeof m->message - (size_t)length, format, arguments);
    va_end(arguments);
    machine_abandon(m);
}

void cuda_on_cpu_barrier(cuda_on_cpu_site site)
{
    machine *m = this_machine;
    const thread_record *first = m->at_barrier > 0 ? &m->thread[m->first_at_barrier] : NULL;
    if (!first)
        m->first_at_barrier = cuda_on_cpu_now.index;
    else if (first->site.line != site.line || !is_same_text(first->site.file, site.file))
        cuda_on_cpu_fail(site, "comes to this barrier but thread (%u, %u, %u) waits at the one in line %d",
                         first->index.x, first->index.y, first->index.z, first->site.line);
    m->at_barrier++;
    thread_wait(m, AT_BARRIER, "barrier", site);
}

void cuda_on_cpu_check_mask(unsigned mask, const char *what, cuda_on_cpu_site site)
{
    if (mask != 0xffffffffu)
        cuda_on_cpu_fail(site, "%s with mask %08x: only the full mask is meant to be used", what, mask);
}

const void *cuda_on_cpu_exchange(const void *mine, size_t bytes, const char *what, cuda_on_cpu_site site)
{
    machine *m = this_machine;
    const uint32_t thread = cuda_on_cpu_now.index, warp_index = thread / LANES;
    warp_record *warp = &m->warp[warp_index];
    assert(bytes <= CUDA_ON_CPU_EXCHANGE_MAX_BYTES);
    const thread_record *first = warp->arrived > 0 ? &m->thread[warp->first] : NULL;
    if (first && (first->site.line != site.line || warp->bytes != bytes || !is_same_text(first->what, what)))
        cuda_on_cpu_fail(site, "comes to %s but thread (%u, %u, %u) of its warp waits at %s in line %d", what,
                         first->index.x, first->index.y, first->index.z, first->what, first->site.line);
    if (!first) {
        warp->first = thread;
        warp->bytes = bytes;
    }
    char *gifts = warp->gifts[warp->exchanges % 2];
    if (bytes == sizeof(float)) /* nearly always; the compiler then copies without a call */
        memcpy(gifts + thread % LANES * sizeof(float), mine, sizeof(float));
    else if (bytes)
        memcpy(gifts + thread % LANES * bytes, mine, bytes);
    if (++warp->arrived < LANES) {
        thread_wait(m, AT_EXCHANGE, what, site);
        return gifts;
    }
    warp->arrived = 0;
    warp->exchanges++;
    /* The other lanes continue in an order that begins at any lane and goes up or down. */
    const uint32_t turn = machine_random(m) >> 8 & (LANES - 1);
    for (uint32_t i = 0; i < LANES; i++) {
        const uint32_t lane = warp_index * LANES + (i ^ turn);
        if (lane != thread)
            queue_push(m, lane);
    }
    return gifts;
}

void cuda_on_cpu_warp_barrier(cuda_on_cpu_site site)
{
    machine *m = this_machine;
    warp_record *warp = &m->warp[cuda_on_cpu_now.index / LANES];
    const uint32_t before = cuda_on_cpu_now.warp_epoch;
    cuda_on_cpu_exchange(nullptr, 0, "__syncwarp", site);
    if (warp->epoch == before)
        warp->epoch++;
    cuda_on_cpu_now.warp_epoch = warp->epoch;
}

/* ---- mma ---- */

typedef float pairs[6][2]; /* a lane's pairs of A and of B */

/* c += A B for the rows of A that a quad holds in `rows` and the columns of B that eight lanes hold in
 * `columns`. */
static inline __attribute__((always_inline)) void multiply(float (&c)[4], const pairs *rows,
                                                           const pairs *columns)
{
    for (int half = 0; half < 2; half++)
        for (int holder = 0; holder < 4; holder++)
            for (int i = 0; i < 2; i++) {
                const float top = rows[holder][2 * half][i], bottom = rows[holder][2 * half + 1][i];
                const float left = columns[holder][4 + half][i], right = columns[holder + 4][4 + half][i];
                c[0] = __builtin_fmaf(top, left, c[0]);
                c[1] = __builtin_fmaf(top, right, c[1]);
                c[2] = __builtin_fmaf(bottom, left, c[2]);
                c[3] = __builtin_fmaf(bottom, right, c[3]);
            }
}

#if defined(__x86_64__)
/* multiply() with the processor's own instruction. The baseline of x86-64 has none: there fmaf is a call. */
static __attribute__((target("fma"))) void multiply_fused(float (&c)[4], const pairs *rows,
                                                          const pairs *columns)
{
    multiply(c, rows, columns);
}
#endif

void tide_cuda_mma(float (&c)[4], const pairs &given, cuda_on_cpu_site site)
{
    const pairs *all = (const pairs *)cuda_on_cpu_exchange(given, sizeof given, "mma", site);
    const uint32_t lane = cuda_on_cpu_now.index % LANES;
    const pairs *rows = all + (lane & ~3u), *columns = all + 8 * (lane & 3);
#if defined(__x86_64__)
    static const bool fused = __builtin_cpu_supports("fma");
    if (fused) {
        multiply_fused(c, rows, columns);
        return;
    }
#endif
    multiply(c, rows, columns);
}
