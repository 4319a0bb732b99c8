/* AdamW and restore, each in one pass over all segments, with the same bits as on the CPU (adam_math.h;
 * contraction is off for this file).
 *
 * A thread updates one run of 8 params; a block of 256 threads updates 2048 and belongs to one segment. The
 * segments are described in host memory: the launcher packs up to SEGMENTS of them, without the empty ones,
 * and the number of blocks before each into the kernel's parameter, which CUDA copies at the launch. A block
 * finds its segment by bisection, seven steps on constant memory. More segments take several launches; the
 * bits do not depend on this, since no param's update depends on another's.
 *
 *     segment      ......|oooooooo|oooooooo|oooooooo|ooo.....
 *     runs          0        1        2        3      4
 *
 * Run 0 begins at the last multiple of 16 bytes at or before `param`: its first `lead` elements do not belong
 * to the segment.
 *
 * A thread accesses 16 bytes at once in a run that is full and in which all four arrays begin at multiples
 * of 16 bytes. These are all runs but a tensor's last, since tensors are aligned to 256 bytes and cut at
 * multiples of 64 elements. Other runs are accessed element by element.
 *
 * Speed. The kernel reads and writes 28 bytes per bf16 param (32 in fp32), each once, and is bound by memory:
 * at 4.8 TB/s it updates 170 params per nanosecond, the 32 Mi params of a 64 MiB chunk in 0.2 ms. At this
 * speed an SM can execute some 170 instructions per param; the update takes about 80, IEEE division and root
 * included. A thread has seven loads of 16 bytes in flight: 100 KB per SM and more at half occupancy. */
#include "kernels/cuda/launch.h"

enum {
    THREADS = 256,
    RUN = 8, /* params of one thread */
    BLOCK_ELEMENTS = THREADS * RUN,
    SEGMENTS = 72,              /* segments of one launch */
    PARAMETER_BYTES_MAX = 4096, /* of a kernel's parameters */
};

/* One segment, as the launcher packs it for the kernel. */
struct packed_segment {
    void *param;
    float *master, *momentum, *variance;
    uint64_t elements;
    unsigned first_block; /* the segment's first block in the launch */
    unsigned lead;        /* elements of run 0 that are before the segment */
    float decay;
};

struct packed_segments {
    packed_segment segment[SEGMENTS];
    unsigned count;
    tide_adam_factors factors;
};
static_assert(sizeof(packed_segments) <= PARAMETER_BYTES_MAX, "the parameter of a kernel");

/* The last segment whose first block is at or before this one. */
static __device__ __forceinline__ unsigned find_segment(const packed_segments &all)
{
    unsigned low = 0, high = all.count; /* the segment is in [low, high) */
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        if (all.segment[middle].first_block <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The elements [begin, end) of the segment that this thread's run covers; none if end <= begin. */
struct run_range {
    int64_t begin, end;
};
static __device__ __forceinline__ run_range find_run(const packed_segment &segment)
{
    const uint64_t run = (uint64_t)(blockIdx.x - segment.first_block) * THREADS + threadIdx.x;
    const int64_t first = (int64_t)(run * RUN) - segment.lead, elements = (int64_t)segment.elements;
    return {first < 0 ? 0 : first, first + RUN < elements ? first + RUN : elements};
}

static __device__ __forceinline__ bool is_aligned(const void *address)
{
    return (uintptr_t)address % 16 == 0;
}

/* ---- a run moved by 16 bytes ---- */

static __device__ __forceinline__ void floats_load(float *values, const float *from)
{
    for (unsigned part = 0; part < RUN; part += tide_cuda_fp32::per_16_bytes) {
        const tide_cuda_vector<tide_cuda_fp32> vector =
            *(const tide_cuda_vector<tide_cuda_fp32> *)(from + part);
        for (unsigned e = 0; e < tide_cuda_fp32::per_16_bytes; e++)
            values[part + e] = vector.element[e];
    }
}

static __device__ __forceinline__ void floats_store(float *to, const float *values)
{
    for (unsigned part = 0; part < RUN; part += tide_cuda_fp32::per_16_bytes) {
        tide_cuda_vector<tide_cuda_fp32> vector;
        for (unsigned e = 0; e < tide_cuda_fp32::per_16_bytes; e++)
            vector.element[e] = values[part + e];
        *(tide_cuda_vector<tide_cuda_fp32> *)(to + part) = vector;
    }
}

template <typename T>
static __device__ __forceinline__ void params_load(float *values, const typename T::stored *from)
{
    for (unsigned part = 0; part < RUN; part += T::per_16_bytes) {
        const tide_cuda_vector<T> vector = *(const tide_cuda_vector<T> *)(from + part);
        for (unsigned e = 0; e < T::per_16_bytes; e++)
            values[part + e] = T::load(vector.element[e]);
    }
}

template <typename T>
static __device__ __forceinline__ void params_store(typename T::stored *to, const float *values)
{
    for (unsigned part = 0; part < RUN; part += T::per_16_bytes) {
        tide_cuda_vector<T> vector;
        for (unsigned e = 0; e < T::per_16_bytes; e++)
            vector.element[e] = T::store(values[part + e]);
        *(tide_cuda_vector<T> *)(to + part) = vector;
    }
}

/* ---- AdamW ---- */

template <typename T>
static __device__ __forceinline__ void update_run(typename T::stored *param, float *master, float *momentum,
                                                  float *variance, const tide_adam_factors &factors,
                                                  float decay)
{
    float g[RUN], w[RUN], m[RUN], v[RUN];
    params_load<T>(g, param);
    floats_load(w, master);
    floats_load(m, momentum);
    floats_load(v, variance);
    for (unsigned e = 0; e < RUN; e++)
        w[e] = tide_adam_update(&factors, decay, g[e], w[e], &m[e], &v[e]);
    floats_store(master, w);
    floats_store(momentum, m);
    floats_store(variance, v);
    params_store<T>(param, w);
}

template <typename T>
static __device__ __forceinline__ void update_one(typename T::stored *param, float *master, float *momentum,
                                                  float *variance, const tide_adam_factors &factors,
                                                  float decay)
{
    float m = *momentum, v = *variance;
    const float w = tide_adam_update(&factors, decay, T::load(*param), *master, &m, &v);
    *master = w;
    *momentum = m;
    *variance = v;
    *param = T::store(w);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) adamw_segments(const packed_segments all)
{
    const packed_segment &segment = all.segment[find_segment(all)];
    const run_range run = find_run(segment);
    typename T::stored *param = (typename T::stored *)segment.param + run.begin;
    float *master = segment.master + run.begin, *momentum = segment.momentum + run.begin;
    float *variance = segment.variance + run.begin;
    /* `param` is aligned in a full run, since run 0 begins at a multiple of 16 bytes. */
    const bool aligned = is_aligned(master) && is_aligned(momentum) && is_aligned(variance);
    if (run.end - run.begin == RUN && aligned)
        update_run<T>(param, master, momentum, variance, all.factors, segment.decay);
    else
        for (int64_t i = 0; i < run.end - run.begin; i++)
            update_one<T>(param + i, master + i, momentum + i, variance + i, all.factors, segment.decay);
}

/* ---- restore ---- */

template <typename T>
static __global__ void __launch_bounds__(THREADS) restore_segments(const packed_segments all)
{
    const packed_segment &segment = all.segment[find_segment(all)];
    const run_range run = find_run(segment);
    typename T::stored *param = (typename T::stored *)segment.param + run.begin;
    const float *master = segment.master + run.begin;
    if (run.end - run.begin == RUN && is_aligned(master)) {
        float w[RUN];
        floats_load(w, master);
        params_store<T>(param, w);
    } else {
        for (int64_t i = 0; i < run.end - run.begin; i++)
            param[i] = T::store(master[i]);
    }
}

/* ---- launches ---- */

static unsigned segment_blocks(const packed_segment *segment)
{
    return (unsigned)((segment->lead + segment->elements + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS);
}

/* Pack segments from *next on, as many as fit, and advance *next behind them. `factors` is NULL for restore,
 * which uses no decay. Returns the number of blocks; 0 if the segments have no elements. */
template <typename T>
static unsigned pack_segments(packed_segments *packed, const tide_adamw_segment *segments,
                              size_t segment_count, const tide_adam_factors *factors, size_t *next)
{
    unsigned blocks = 0;
    packed->count = 0;
    for (; *next < segment_count && packed->count < SEGMENTS; ++*next) {
        const tide_adamw_segment *from = &segments[*next];
        if (from->elements == 0)
            continue;
        packed_segment *to = &packed->segment[packed->count++];
        to->param = from->param;
        to->master = from->master;
        to->momentum = from->momentum;
        to->variance = from->variance;
        to->elements = from->elements;
        to->first_block = blocks;
        to->lead = (unsigned)((uintptr_t)from->param % 16 / sizeof(typename T::stored));
        to->decay = factors && from->decays ? factors->decay : 1.0f;
        blocks += segment_blocks(to);
    }
    return blocks;
}

template <typename T> static tide_status adamw(void *stream, const tide_adamw_args *args)
{
    packed_segments packed = {};
    packed.factors = args->factors;
    for (size_t next = 0; next < args->segment_count;) {
        const unsigned blocks =
            pack_segments<T>(&packed, args->segments, args->segment_count, &args->factors, &next);
        if (blocks == 0)
            break;
        const tide_status status =
            TIDE_CUDA_LAUNCH("adamw", (adamw_segments<T>), blocks, THREADS, stream, packed);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

tide_status tide_cuda_adamw(void *stream, const void *arguments)
{
    const tide_adamw_args *args = (const tide_adamw_args *)arguments;
    assert(args->segment_count == 0 || args->segments);
    return TIDE_CUDA_BY_DTYPE(args->dtype, adamw, stream, args);
}

template <typename T> static tide_status restore(void *stream, const tide_restore_args *args)
{
    packed_segments packed = {};
    for (size_t next = 0; next < args->segment_count;) {
        const unsigned blocks = pack_segments<T>(&packed, args->segments, args->segment_count, NULL, &next);
        if (blocks == 0)
            break;
        const tide_status status =
            TIDE_CUDA_LAUNCH("restore", (restore_segments<T>), blocks, THREADS, stream, packed);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

tide_status tide_cuda_restore(void *stream, const void *arguments)
{
    const tide_restore_args *args = (const tide_restore_args *)arguments;
    assert(args->segment_count == 0 || args->segments);
    return TIDE_CUDA_BY_DTYPE(args->dtype, restore, stream, args);
}
