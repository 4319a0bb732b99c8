/* Copies values into slots (tide_place_args in cpu.h). An ordinary store to a cache line that is in no cache
 * first reads the line from memory, which would cost as much as the writing itself. A streaming store does
 * not read the line but is fast only if it fills whole lines. The code therefore writes the two outputs one
 * after the other, a run of elements at a time: the run's input stays in the first-level cache.
 */
#include "base/align.h"
#include "base/team.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/variant.h"

#include <stdbool.h>

enum { RUN_ELEMENTS = 4096 };

#if defined(__AVX512F__)
LANES_INLINE void lanes_stream(void *base, size_t index, lanes value, tide_dtype dtype)
{
    if (dtype == TIDE_DTYPE_FP32)
        _mm512_stream_ps((float *)base + index, (__m512)value);
    else
        _mm256_stream_si256((__m256i *)(void *)((uint16_t *)base + index),
                            (__m256i)(dtype == TIDE_DTYPE_BF16 ? lanes_round(value) : lanes_to_fp16(value)));
}
#elif defined(__AVX2__)
LANES_INLINE void lanes_stream(void *base, size_t index, lanes value, tide_dtype dtype)
{
    if (dtype == TIDE_DTYPE_FP32)
        _mm256_stream_ps((float *)base + index, (__m256)value);
    else
        _mm_stream_si128((__m128i *)(void *)((uint16_t *)base + index),
                         (__m128i)(dtype == TIDE_DTYPE_BF16 ? lanes_round(value) : lanes_to_fp16(value)));
}
#else
LANES_INLINE void lanes_stream(void *base, size_t index, lanes value, tide_dtype dtype)
{
    lanes_store(base, index, value, dtype);
}
#endif

/* Make this thread's streaming stores visible before its later stores. */
static void stream_end(void)
{
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

LANES_INLINE void place_run(const void *in, void *out, size_t begin, size_t end, tide_dtype in_dtype,
                            tide_dtype out_dtype)
{
    const size_t element_bytes = out_dtype == TIDE_DTYPE_FP32 ? 4 : 2, vector_bytes = LANES * element_bytes;
    size_t i = begin;
    if ((uintptr_t)out % vector_bytes == 0)
        for (; i + LANES <= end; i += LANES)
            lanes_stream(out, i, lanes_load(in, i, in_dtype), out_dtype);
    for (; i < end; i += LANES)
        lanes_store_until(out, i, end, lanes_load_until(in, i, end, in_dtype), out_dtype);
}

LANES_INLINE void place_to(const void *in, void *out, size_t begin, size_t end, tide_dtype in_dtype,
                           tide_dtype out_dtype)
{
    if (in_dtype == TIDE_DTYPE_BF16)
        place_run(in, out, begin, end, TIDE_DTYPE_BF16, out_dtype);
    else if (in_dtype == TIDE_DTYPE_FP16)
        place_run(in, out, begin, end, TIDE_DTYPE_FP16, out_dtype);
    else
        place_run(in, out, begin, end, TIDE_DTYPE_FP32, out_dtype);
}

static void place_task(const void *arguments, size_t run)
{
    const tide_place_args *args = arguments;
    const size_t begin = run * RUN_ELEMENTS, left = args->elements - begin,
                 end = begin + (left < RUN_ELEMENTS ? left : RUN_ELEMENTS);
    for (int i = 0; i < 2 && args->out[i] != NULL; i++)
        BY_DTYPE(args->out_dtype[i], place_to, args->in, args->out[i], begin, end, args->in_dtype);
    stream_end();
}

void VARIANT(place)(const tide_place_args *args)
{
    assert(args->elements == 0 || (args->in && args->out[0]));
    tide_team_run(tide_ceil_div(args->elements, RUN_ELEMENTS), args->elements, place_task, args);
}
