/* CUDA's execution model on the CPU, so that the tests run the very sources that nvcc compiles.
 *
 * A .cu file of kernels/cuda is compiled with `g++ -std=c++17 -x c++ -Wno-unknown-pragmas -include tests/gpu/cuda_on_cpu.h`.
 * This header gives CUDA's words a meaning, and defines what kernels/cuda/launch.h leaves to its environment: TIDE_CUDA_LAUNCH,
 * TIDE_CUDA_SHARED, TIDE_CUDA_BARRIER, tide_cuda_shared. C files include it for the hooks at its end.
 *
 *   grid       blocks run one after the other, forwards in one launch and backwards in the next
 *   thread     a fiber. It runs until it meets a barrier, a shuffle or a vote; a kernel without those never switches
 *   order      the threads of a block run in an order that changes with every block and every barrier (forwards, backwards,
 *              shuffled), so that what depends on the order gives other results
 *   barrier    ends the launch with an error where not every thread of the block comes to the same one
 *   shuffle    likewise among the 32 lanes of a warp; every one takes the full mask
 *   shared     an array whose elements are checked at each access: the index against the length, and the access against
 *              those of other threads since the last barrier. An element that two threads used without a barrier (or, in one
 *              warp, a __syncwarp) between them, at least one of them writing, is a race: an error, whatever the order
 *              was. It begins a block as all ones bits, a NaN in every type
 *   atomics    those on integers; on floats there are none, here as in the kernels
 *
 * An error makes the launch TIDE_ERROR_DEVICE, with a message that names kernel, block, thread and line.
 *
 * What it does not see: races in global memory, and addresses beyond a global array (the kernels' tests do: tests/kernels/test_mirrors.h).
 */
#ifndef TIDEPOOL_TESTS_CUDA_ON_CPU_H
#define TIDEPOOL_TESTS_CUDA_ON_CPU_H

#ifdef __cplusplus

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <new>
#include <stddef.h>
#include <tuple>
#include <type_traits>

extern "C" {
#include "tidepool/status.h"
}

#define __global__
#define __device__
#define __host__
#define __constant__    const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

typedef struct CUstream_st *cudaStream_t;
constexpr int warpSize = 32;

/* ---- vectors ---- */

#define CUDA_ON_CPU_VECTOR_1(name, type, bytes)                                                              \
    struct alignas(bytes) name##1                                                                            \
    {                                                                                                        \
        type x;                                                                                              \
    };                                                                                                       \
    inline name##1 make_##name##1(type x)                                                                    \
    {                                                                                                        \
        return {x};                                                                                          \
    }
#define CUDA_ON_CPU_VECTOR_2(name, type, bytes)                                                              \
    struct alignas(bytes) name##2                                                                            \
    {                                                                                                        \
        type x, y;                                                                                           \
    };                                                                                                       \
    inline name##2 make_##name##2(type x, type y)                                                            \
    {                                                                                                        \
        return {x, y};                                                                                       \
    }
#define CUDA_ON_CPU_VECTOR_3(name, type)                                                                     \
    struct name##3                                                                                           \
    {                                                                                                        \
        type x, y, z;                                                                                        \
    };                                                                                                       \
    inline name##3 make_##name##3(type x, type y, type z)                                                    \
    {                                                                                                        \
        return {x, y, z};                                                                                    \
    }
#define CUDA_ON_CPU_VECTOR_4(name, type, bytes)                                                              \
    struct alignas(bytes) name##4                                                                            \
    {                                                                                                        \
        type x, y, z, w;                                                                                     \
    };                                                                                                       \
    inline name##4 make_##name##4(type x, type y, type z, type w)                                            \
    {                                                                                                        \
        return {x, y, z, w};                                                                                 \
    }
#define CUDA_ON_CPU_VECTORS(name, type, bytes)                                                               \
    CUDA_ON_CPU_VECTOR_1(name, type, bytes)                                                                  \
    CUDA_ON_CPU_VECTOR_2(name, type, 2 * bytes)                                                              \
    CUDA_ON_CPU_VECTOR_3(name, type)                                                                         \
    CUDA_ON_CPU_VECTOR_4(name, type, (4 * bytes > 16 ? 16 : 4 * bytes))

CUDA_ON_CPU_VECTORS(uchar, unsigned char, 1)
CUDA_ON_CPU_VECTORS(short, short, 2)
CUDA_ON_CPU_VECTORS(ushort, unsigned short, 2)
CUDA_ON_CPU_VECTORS(int, int, 4)
CUDA_ON_CPU_VECTORS(uint, unsigned, 4)
CUDA_ON_CPU_VECTORS(float, float, 4)
CUDA_ON_CPU_VECTORS(double, double, 8)
CUDA_ON_CPU_VECTORS(ulonglong, unsigned long long, 8)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* ---- where a thread is ---- */

/* The CUDA thread that this OS thread runs now. */
struct cuda_on_cpu_here {
    uint3 thread, block;
    uint3 block_dim, grid_dim;
    uint32_t index;      /* of the thread in its block */
    uint32_t epoch;      /* barriers passed, over all blocks: never the same in two blocks */
    uint32_t warp_epoch; /* __syncwarps that its warp passed, likewise */
};
extern __thread cuda_on_cpu_here cuda_on_cpu_now;

#define threadIdx (cuda_on_cpu_now.thread)
#define blockIdx  (cuda_on_cpu_now.block)
#define blockDim  (cuda_on_cpu_now.block_dim)
#define gridDim   (cuda_on_cpu_now.grid_dim)

/* A place in the source; as a default argument it is the caller's. */
struct cuda_on_cpu_site {
    const char *file;
    int line;
};
constexpr cuda_on_cpu_site cuda_on_cpu_site_here(const char *file = __builtin_FILE(),
                                                 int line = __builtin_LINE())
{
    return {file, line};
}
#define CUDA_ON_CPU_SITE cuda_on_cpu_site_here()

/* End the launch with an error that names the current thread and `site`. */
[[noreturn]] void cuda_on_cpu_fail(cuda_on_cpu_site site, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* ---- barriers and exchanges ---- */

void cuda_on_cpu_barrier(cuda_on_cpu_site site);

/* What every collective of a warp is made of: each lane gives `bytes` bytes (at most 256), waits until all 32 have, and gets
 * the 32 gifts, lane after lane. They stay until the lane's next exchange but one. `what` names it in messages; all lanes
 * must come with the same site, what and bytes. */
enum { CUDA_ON_CPU_EXCHANGE_MAX_BYTES = 256 };
const void *cuda_on_cpu_exchange(const void *mine, size_t bytes, const char *what, cuda_on_cpu_site site);
void cuda_on_cpu_warp_barrier(cuda_on_cpu_site site);
void cuda_on_cpu_check_mask(unsigned mask, const char *what, cuda_on_cpu_site site);

template <typename T>
inline const T *cuda_on_cpu_gather(const T &mine, const char *what, cuda_on_cpu_site site)
{
    static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= CUDA_ON_CPU_EXCHANGE_MAX_BYTES,
                  "bytes move");
    return static_cast<const T *>(cuda_on_cpu_exchange(&mine, sizeof mine, what, site));
}

#define TIDE_CUDA_BARRIER() cuda_on_cpu_barrier(CUDA_ON_CPU_SITE)

inline void __syncthreads(cuda_on_cpu_site site = CUDA_ON_CPU_SITE)
{
    cuda_on_cpu_barrier(site);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, cuda_on_cpu_site site = CUDA_ON_CPU_SITE)
{
    cuda_on_cpu_check_mask(mask, "__syncwarp", site);
    cuda_on_cpu_warp_barrier(site);
}

inline int cuda_on_cpu_lane()
{
    return (int)(cuda_on_cpu_now.index % 32u);
}

/* The lane that a shuffle within segments of `width` lanes reads: its own where `source` leaves the segment. */
inline int cuda_on_cpu_source(int source, int lowest, int highest)
{
    return source < lowest || source > highest ? cuda_on_cpu_lane() : source;
}

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32,
                     cuda_on_cpu_site site = CUDA_ON_CPU_SITE)
{
    cuda_on_cpu_check_mask(mask, "__shfl_sync", site);
    return cuda_on_cpu_gather(value, "__shfl_sync",
                              site)[(cuda_on_cpu_lane() & ~(width - 1)) + (source & (width - 1))];
}

template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                         cuda_on_cpu_site site = CUDA_ON_CPU_SITE)
{
    cuda_on_cpu_check_mask(mask, "__shfl_xor_sync", site);
    const int highest = (cuda_on_cpu_lane() & ~(width - 1)) + width - 1;
    return cuda_on_cpu_gather(value, "__shfl_xor_sync",
                              site)[cuda_on_cpu_source(cuda_on_cpu_lane() ^ lanes, 0, highest)];
}

template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                        cuda_on_cpu_site site = CUDA_ON_CPU_SITE)
{
    cuda_on_cpu_check_mask(mask, "__shfl_up_sync", site);
    const int lowest = cuda_on_cpu_lane() & ~(width - 1);
    return cuda_on_cpu_gather(value, "__shfl_up_sync",
                              site)[cuda_on_cpu_source(cuda_on_cpu_lane() - (int)delta, lowest, 31)];
}

template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                          cuda_on_cpu_site site = CUDA_ON_CPU_SITE)
{
    cuda_on_cpu_check_mask(mask, "__shfl_down_sync", site);
    const int highest = (cuda_on_cpu_lane() & ~(width - 1)) + width - 1;
    return cuda_on_cpu_gather(value, "__shfl_down_sync",
                              site)[cuda_on_cpu_source(cuda_on_cpu_lane() + (int)delta, 0, highest)];
}

inline unsigned __ballot_sync(unsigned mask, int predicate, cuda_on_cpu_site site = CUDA_ON_CPU_SITE)
{
    cuda_on_cpu_check_mask(mask, "vote", site);
    const int *all = cuda_on_cpu_gather(predicate, "vote", site);
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++)
        votes |= (unsigned)(all[lane] != 0) << lane;
    return votes;
}

inline int __any_sync(unsigned mask, int predicate, cuda_on_cpu_site site = CUDA_ON_CPU_SITE)
{
    return __ballot_sync(mask, predicate, site) != 0;
}

inline int __all_sync(unsigned mask, int predicate, cuda_on_cpu_site site = CUDA_ON_CPU_SITE)
{
    return __ballot_sync(mask, predicate, site) == 0xffffffffu;
}

/* ---- shared memory ---- */

/* Who used an element last. `epoch` 0 is nobody: the first epoch is 1. */
struct cuda_on_cpu_use {
    uint32_t epoch, warp_epoch;
    uint32_t thread; /* or one of the two below */
};
enum {
    CUDA_ON_CPU_LANES = 1 << 16,
    /* + warp: more than one lane of it */ CUDA_ON_CPU_WARPS = 1 << 17 /* more than one warp */
};
struct cuda_on_cpu_uses {
    cuda_on_cpu_use write, read;
};

/* One TIDE_CUDA_SHARED of the block that runs. */
struct cuda_on_cpu_array {
    const char *name;
    char *data; /* aligned to 16 bytes */
    cuda_on_cpu_uses *uses;
    size_t count, element_bytes;
    uint64_t block; /* for which it was poisoned last */
    cuda_on_cpu_array *next;
};

/* The array of the block that runs; makes it at the OS thread's first use of `*place`, poisons it at the block's first. */
cuda_on_cpu_array *cuda_on_cpu_array_enter(cuda_on_cpu_array **place, const char *name, size_t count,
                                           size_t element_bytes, cuda_on_cpu_site site);
[[noreturn]] void cuda_on_cpu_array_fail(const cuda_on_cpu_array *array, ptrdiff_t index,
                                         const char *problem);
[[noreturn]] void cuda_on_cpu_race(const cuda_on_cpu_array *array, ptrdiff_t index,
                                   const cuda_on_cpu_use *other, bool writes, bool other_wrote);

/* Is the last use ordered before what this thread does now? */
inline bool cuda_on_cpu_is_ordered(const cuda_on_cpu_use &use)
{
    const cuda_on_cpu_here &here = cuda_on_cpu_now;
    if (use.epoch != here.epoch || use.thread == here.index)
        return true;
    const uint32_t warp = use.thread & CUDA_ON_CPU_LANES ? use.thread & 0xffffu : use.thread / 32;
    return use.thread < CUDA_ON_CPU_WARPS && warp == here.index / 32 && use.warp_epoch != here.warp_epoch;
}

inline void cuda_on_cpu_note_read(cuda_on_cpu_use &read)
{
    const cuda_on_cpu_here &here = cuda_on_cpu_now;
    if (cuda_on_cpu_is_ordered(read))
        read = {here.epoch, here.warp_epoch, here.index};
    else if (read.thread < CUDA_ON_CPU_LANES && read.thread / 32 == here.index / 32)
        read.thread = CUDA_ON_CPU_LANES + here.index / 32;
    else if (read.thread != CUDA_ON_CPU_LANES + here.index / 32)
        read.thread = CUDA_ON_CPU_WARPS;
}

enum cuda_on_cpu_access { CUDA_ON_CPU_READ, CUDA_ON_CPU_WRITE, CUDA_ON_CPU_ATOMIC };

/* Check `access` to the element and note it. Returns its address. */
inline char *cuda_on_cpu_element_use(cuda_on_cpu_array *array, ptrdiff_t index, cuda_on_cpu_access access)
{
    if ((size_t)index >= array->count)
        cuda_on_cpu_array_fail(array, index, "is out of range");
    cuda_on_cpu_uses &uses = array->uses[index];
    if (!cuda_on_cpu_is_ordered(uses.write))
        cuda_on_cpu_race(array, index, &uses.write, access == CUDA_ON_CPU_WRITE, true);
    if (access == CUDA_ON_CPU_WRITE) {
        if (!cuda_on_cpu_is_ordered(uses.read))
            cuda_on_cpu_race(array, index, &uses.read, true, false);
        uses.write = {cuda_on_cpu_now.epoch, cuda_on_cpu_now.warp_epoch, cuda_on_cpu_now.index};
    } else {
        cuda_on_cpu_note_read(uses.read); /* an atomic, too: ordered among its like, not with plain writes */
    }
    return array->data + (size_t)index * array->element_bytes;
}

template <typename T> struct cuda_on_cpu_shared;

/* What `shared[i]` is: reads and writes of it are checked. */
template <typename T> struct cuda_on_cpu_element {
    typedef typename std::remove_const<T>::type value;
    cuda_on_cpu_array *array;
    ptrdiff_t index;

    cuda_on_cpu_element(cuda_on_cpu_array *array_, ptrdiff_t index_) : array(array_), index(index_) {}
    cuda_on_cpu_element(const cuda_on_cpu_element &) = default;
    value get() const
    {
        value v;
        memcpy((void *)&v, cuda_on_cpu_element_use(array, index, CUDA_ON_CPU_READ), sizeof v);
        return v;
    }
    const cuda_on_cpu_element &set(const value &v) const
    {
        static_assert(!std::is_const<T>::value, "the array is const here");
        memcpy(cuda_on_cpu_element_use(array, index, CUDA_ON_CPU_WRITE), (const void *)&v, sizeof v);
        return *this;
    }
    operator value() const
    {
        return get();
    }
    const cuda_on_cpu_element &operator=(const value &v) const
    {
        return set(v);
    }
    const cuda_on_cpu_element &operator=(const cuda_on_cpu_element &other) const
    {
        return set(other.get());
    }
    template <typename V> const cuda_on_cpu_element &operator+=(V v) const
    {
        return set((value)(get() + v));
    }
    template <typename V> const cuda_on_cpu_element &operator-=(V v) const
    {
        return set((value)(get() - v));
    }
    template <typename V> const cuda_on_cpu_element &operator*=(V v) const
    {
        return set((value)(get() * v));
    }
    template <typename V> const cuda_on_cpu_element &operator/=(V v) const
    {
        return set((value)(get() / v));
    }
    template <typename V> const cuda_on_cpu_element &operator|=(V v) const
    {
        return set((value)(get() | v));
    }
    template <typename V> const cuda_on_cpu_element &operator&=(V v) const
    {
        return set((value)(get() & v));
    }
    cuda_on_cpu_shared<T> operator&() const
    {
        return {array, index};
    }
};

/* What a TIDE_CUDA_SHARED is, and a pointer into it. */
template <typename T> struct cuda_on_cpu_shared {
    cuda_on_cpu_array *array;
    ptrdiff_t offset;

    cuda_on_cpu_shared(cuda_on_cpu_array *array_, ptrdiff_t offset_) : array(array_), offset(offset_) {}
    operator cuda_on_cpu_shared<const T>() const
    {
        return {array, offset};
    }
    template <typename I> cuda_on_cpu_element<T> operator[](I i) const
    {
        return {array, offset + (ptrdiff_t)i};
    }
    template <typename I> cuda_on_cpu_shared operator+(I i) const
    {
        return {array, offset + (ptrdiff_t)i};
    }
    template <typename I> cuda_on_cpu_shared operator-(I i) const
    {
        return {array, offset - (ptrdiff_t)i};
    }
    template <typename I> cuda_on_cpu_shared &operator+=(I i)
    {
        return offset += (ptrdiff_t)i, *this;
    }
    cuda_on_cpu_element<T> operator*() const
    {
        return {array, offset};
    }
};

template <typename T> using tide_cuda_shared = cuda_on_cpu_shared<T>;

#define TIDE_CUDA_SHARED(type, name, count)                                                                  \
    static __thread cuda_on_cpu_array *name##_place;                                                         \
    const cuda_on_cpu_shared<type> name(                                                                     \
        cuda_on_cpu_array_enter(&name##_place, #name, count, sizeof(type), CUDA_ON_CPU_SITE), 0)

/* The array that the launch asked for. */
size_t cuda_on_cpu_asked_bytes(void);
#define TIDE_CUDA_SHARED_ASKED(type, name)                                                                   \
    static __thread cuda_on_cpu_array *name##_place;                                                         \
    const cuda_on_cpu_shared<type> name(cuda_on_cpu_array_enter(&name##_place, #name,                        \
                                                                cuda_on_cpu_asked_bytes() / sizeof(type),    \
                                                                sizeof(type), CUDA_ON_CPU_SITE),             \
                                        0)
/* As an H100 has it. */
template <typename Kernel> inline bool tide_cuda_may_ask(Kernel *, size_t bytes)
{
    return bytes <= 226 << 10;
}

/* The elements that a vector access at `index` covers, each checked; and the alignment. Returns the address. */
template <typename V, typename T>
inline char *cuda_on_cpu_vector_use(cuda_on_cpu_shared<T> from, size_t index, cuda_on_cpu_access access)
{
    static_assert(sizeof(V) % sizeof(T) == 0, "whole elements");
    const ptrdiff_t first = from.offset + (ptrdiff_t)index;
    if ((first * (ptrdiff_t)sizeof(T)) % (ptrdiff_t)sizeof(V))
        cuda_on_cpu_array_fail(from.array, first, "begins a vector access but is not aligned to it");
    for (ptrdiff_t i = sizeof(V) / sizeof(T); i-- > 0;)
        cuda_on_cpu_element_use(from.array, first + i, access);
    return from.array->data + (size_t)first * sizeof(T);
}

template <typename V, typename T> inline V tide_cuda_shared_load(cuda_on_cpu_shared<T> from, size_t index)
{
    V v;
    memcpy((void *)&v, cuda_on_cpu_vector_use<V>(from, index, CUDA_ON_CPU_READ), sizeof v);
    return v;
}

template <typename V, typename T>
inline void tide_cuda_shared_store(cuda_on_cpu_shared<T> to, size_t index, const V &v)
{
    static_assert(!std::is_const<T>::value, "the array is const here");
    memcpy(cuda_on_cpu_vector_use<V>(to, index, CUDA_ON_CPU_WRITE), (const void *)&v, sizeof v);
}

/* ---- launches ---- */

/* One launch, ready to run: the kernel with its arguments. */
struct cuda_on_cpu_launch {
    const char *label;
    dim3 grid, block;
    size_t asked_bytes; /* of shared memory, beside 48 KB of arrays */
    void *stream;
    void (*thread)(const cuda_on_cpu_launch *launch); /* one CUDA thread, from beginning to end */
    void (*destroy)(cuda_on_cpu_launch *launch);
};

/* Check the shape, then run the launch now, or hand it to cuda_on_cpu_enqueue; it is destroyed when it has run. */
tide_status cuda_on_cpu_start(cuda_on_cpu_launch *launch);

template <typename... P> struct cuda_on_cpu_call : cuda_on_cpu_launch {
    void (*kernel)(P...);
    std::tuple<typename std::remove_const<P>::type...> arguments;

    template <typename... A>
    cuda_on_cpu_call(const cuda_on_cpu_launch &launch, void (*kernel_)(P...), const A &...given)
        : cuda_on_cpu_launch(launch), kernel(kernel_), arguments(static_cast<P>(given)...)
    {
    }
    static void run_thread(const cuda_on_cpu_launch *launch)
    {
        const cuda_on_cpu_call *call = static_cast<const cuda_on_cpu_call *>(launch);
        std::apply(call->kernel, call->arguments);
    }
    static void destroy_call(cuda_on_cpu_launch *launch)
    {
        delete static_cast<cuda_on_cpu_call *>(launch);
    }
};

template <typename... P, typename... A>
tide_status cuda_on_cpu_begin(const char *label, void (*kernel)(P...), dim3 grid, dim3 block,
                              size_t asked_bytes, void *stream, const A &...arguments)
{
    typedef cuda_on_cpu_call<P...> call;
    const cuda_on_cpu_launch launch = {
        label, grid, block, asked_bytes, stream, call::run_thread, call::destroy_call};
    return cuda_on_cpu_start(new call(launch, kernel, arguments...));
}

#define TIDE_CUDA_LAUNCH(label, kernel, grid, block, stream, ...)                                            \
    TIDE_CUDA_LAUNCH_ASKING(label, kernel, grid, block, 0, stream, __VA_ARGS__)
#define TIDE_CUDA_LAUNCH_ASKING(label, kernel, grid, block, bytes, stream, ...)                              \
    cuda_on_cpu_begin(label, TIDE_CUDA_UNPACK kernel, grid, block, bytes, (void *)(stream), __VA_ARGS__)
#define TIDE_CUDA_UNPACK(...) __VA_ARGS__

#include "tests/gpu/cuda_on_cpu_words.h"

#endif /* __cplusplus */

/* ---- hooks, for tests and for the fake runtime ---- */

#ifdef __cplusplus
extern "C" {
#endif

/* NULL: a launch runs at once, in its caller. Otherwise it is handed over, and `run(closure)` runs it, on any thread, once:
 * launches on different threads may run at the same time. Returns 0, or the cudaError_t that the launch ends with. */
extern int (*cuda_on_cpu_enqueue)(void *stream, const char *label, void (*run)(void *closure), void *closure);

/* Told when a launch that was handed over ends with an error, on the thread that ran it. NULL: the process aborts. */
extern void (*cuda_on_cpu_failed)(void *stream, const char *message);

/* Chooses the orders in which threads run. Any value; a test may try several. */
extern unsigned cuda_on_cpu_seed;

#ifdef __cplusplus
}
#endif

#endif
