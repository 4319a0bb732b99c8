/* CUDA's execution model on the CPU, so that the tests run the same sources that nvcc compiles.
 *
 * The build compiles a .cu file of kernels/cuda with `g++ -std=c++17 -x c++ -Wno-unknown-pragmas -include
 * tests/gpu/cuda_on_cpu.h`. This header implements CUDA's keywords and functions, and the macros that
 * kernels/cuda/launch.h leaves to its environment: TIDE_CUDA_LAUNCH, TIDE_CUDA_SHARED, TIDE_CUDA_BARRIER,
 * tide_cuda_shared. C files include it for the hooks at its end.
 *
 *     grid       blocks run one after the other, forwards in one launch and backwards in the next
 *     thread     a fiber; it runs until it meets a barrier, a shuffle or a vote, so a kernel without these
 *                never switches between fibers
 *     order      the threads of a block run forwards, backwards or shuffled; the order changes with every
 *                block and every barrier, so that a kernel whose results depend on it gives different ones
 *     barrier    ends the launch with an error if the threads of a block do not all come to the same
 *                barrier
 *     shuffle    ends the launch with an error if the 32 lanes of a warp do not all come to it; takes the
 *                full mask only
 *     shared     an array whose accesses are checked: the index against the length, and the access against
 *                those of other threads since the last barrier. If two threads use an element, at least
 *                one of them writes it, and no barrier (or, within a warp, no __syncwarp) lies between,
 *                that is a race and ends the launch with an error, in whichever order they ran. Each block
 *                begins with all bits of the array set, a NaN in every float type
 *     atomics    on integers only; the kernels use none on floats
 *
 * An error makes the launch return TIDE_ERROR_DEVICE, with a message that names kernel, block, thread and
 * line.
 *
 * It does not detect races in global memory, nor accesses beyond a global array. The kernels' tests detect
 * such accesses by the memory that they give to kernels (tests/kernels/test_mirrors.h). */
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
/* Not forced: compiling all copies would take longer than running calls. */
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

typedef struct CUstream_st *cudaStream_t;
constexpr int warpSize = 32;

/* ---- vectors ---- */

struct uint3 {
    unsigned x, y, z;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* ---- thread indices ---- */

/* The CUDA thread that the OS thread runs at present. */
struct cuda_on_cpu_here {
    uint3 thread, block;
    uint3 block_dim, grid_dim;
    uint32_t index;      /* the thread's number in its block */
    uint32_t epoch;      /* barriers passed, counted over all blocks, so that no two blocks share an epoch */
    uint32_t warp_epoch; /* calls of __syncwarp that the thread's warp passed, counted over all blocks */
};
extern __thread cuda_on_cpu_here cuda_on_cpu_now;

#define threadIdx (cuda_on_cpu_now.thread)
#define blockIdx  (cuda_on_cpu_now.block)
#define blockDim  (cuda_on_cpu_now.block_dim)
#define gridDim   (cuda_on_cpu_now.grid_dim)

/* A source location; as a default argument it is the caller's. */
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

/* Ends the launch with an error that names the current thread and `site`. */
[[noreturn]] void cuda_on_cpu_fail(cuda_on_cpu_site site, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* ---- barriers and exchanges ---- */

void cuda_on_cpu_barrier(cuda_on_cpu_site site);

/* The basis of every collective of a warp: each lane passes `bytes` bytes (at most 256), waits until all
 * 32 lanes have done so, and gets the 32 values in the order of the lanes. They stay valid until the
 * lane's exchange after the next one. `what` names the collective in messages. All lanes must pass the
 * same bytes, site and `what`. */
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

/* The values that all lanes pass, for kernels/cuda/tile.h. */
template <typename T>
inline const T *tide_cuda_gather(const T &mine, const char *what, cuda_on_cpu_site site = CUDA_ON_CPU_SITE)
{
    return cuda_on_cpu_gather(mine, what, site);
}

/* The instruction mma.m16n8k16 in fp32, one fmaf after another in the order of k. `given` holds the lane's
 * pairs of A (the first four) and of B, c its part of C, all as kernels/cuda/tile.h draws them. */
void tide_cuda_mma(float (&c)[4], const float (&given)[6][2], cuda_on_cpu_site site = CUDA_ON_CPU_SITE);

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

/* The lane that a shuffle reads: `source`, or the calling lane if `source` lies outside its segment. */
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

/* The last use of an element. `epoch` 0 means no use yet, since the first epoch is 1. */
struct cuda_on_cpu_use {
    uint32_t epoch, warp_epoch;
    uint32_t thread; /* the thread's number in its block, or one of the values below */
};
enum {
    /* CUDA_ON_CPU_LANES + warp: several lanes of that warp */
    CUDA_ON_CPU_LANES = 1 << 16,
    /* threads of several warps */
    CUDA_ON_CPU_WARPS = 1 << 17
};
struct cuda_on_cpu_uses {
    cuda_on_cpu_use write, read;
};

/* One TIDE_CUDA_SHARED of the running block. */
struct cuda_on_cpu_array {
    const char *name;
    char *data; /* aligned to 16 bytes */
    cuda_on_cpu_uses *uses;
    size_t count, element_bytes;
    uint64_t block; /* the block for which it was last poisoned */
    cuda_on_cpu_array *next;
};

/* Returns the array for the running block. Makes it when the OS thread first uses `*place`, and poisons it
 * when the block first does. */
cuda_on_cpu_array *cuda_on_cpu_array_enter(cuda_on_cpu_array **place, const char *name, size_t count,
                                           size_t element_bytes, cuda_on_cpu_site site);
[[noreturn]] void cuda_on_cpu_array_fail(const cuda_on_cpu_array *array, ptrdiff_t index,
                                         const char *problem);
[[noreturn]] void cuda_on_cpu_race(const cuda_on_cpu_array *array, ptrdiff_t index,
                                   const cuda_on_cpu_use *other, bool writes, bool other_wrote);

/* Whether the last use of an element is ordered before the current thread's access. */
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

/* Checks an access to the element, records it and returns the element's address. */
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
        /* An atomic counts as a read: atomics need no order among themselves, but they do against plain
         * writes. */
        cuda_on_cpu_note_read(uses.read);
    }
    return array->data + (size_t)index * array->element_bytes;
}

template <typename T> struct cuda_on_cpu_shared;

/* The type of `shared[i]`, which checks reads and writes of the element. */
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
    cuda_on_cpu_shared<T> operator&() const
    {
        return {array, index};
    }
};

/* The type of a TIDE_CUDA_SHARED and of a pointer into it. */
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

/* Bytes of the array whose size the launch gave (dynamic shared memory). */
size_t cuda_on_cpu_asked_bytes(void);
#define TIDE_CUDA_SHARED_ASKED(type, name)                                                                   \
    static __thread cuda_on_cpu_array *name##_place;                                                         \
    const cuda_on_cpu_shared<type> name(cuda_on_cpu_array_enter(&name##_place, #name,                        \
                                                                cuda_on_cpu_asked_bytes() / sizeof(type),    \
                                                                sizeof(type), CUDA_ON_CPU_SITE),             \
                                        0)
/* The limit of an H100. */
template <typename Kernel> inline bool tide_cuda_may_ask(Kernel *, size_t bytes)
{
    return bytes <= 226 << 10;
}

/* Checks every element that a vector access at `index` covers, and the alignment. Returns the address. */
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

/* A launch ready to run: the kernel with its arguments. */
struct cuda_on_cpu_launch {
    const char *label;
    dim3 grid, block;
    size_t asked_bytes; /* dynamic shared memory, in addition to 48 KB of arrays */
    void *stream;
    void (*thread)(const cuda_on_cpu_launch *launch); /* runs one CUDA thread from beginning to end */
    void (*destroy)(cuda_on_cpu_launch *launch);
};

/* Checks the shape, then runs the launch or passes it to cuda_on_cpu_enqueue. The launch is destroyed when
 * it has run. */
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

/* If NULL, a launch runs at once in its caller. Otherwise this function gets the launch and must call
 * `run(closure)` once, later, on any thread; launches on different threads may run at the same time.
 * Returns 0, or the cudaError_t with which the launch fails. */
extern int (*cuda_on_cpu_enqueue)(void *stream, const char *label, void (*run)(void *closure), void *closure);

/* Called, on the thread that ran it, when a launch passed to cuda_on_cpu_enqueue ends with an error. If
 * NULL, the process aborts. */
extern void (*cuda_on_cpu_failed)(void *stream, const char *message);

/* Chooses the orders in which threads run. Any value is valid; a test may try several. */
extern unsigned cuda_on_cpu_seed;

#ifdef __cplusplus
}
#endif

#endif
