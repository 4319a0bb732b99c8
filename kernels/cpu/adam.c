/* AdamW and restore: one pass over segments.
 *
 * The loop is plain C over adam_math.h, which the compiler turns into the variant's vectors: every operation
 * in it is an IEEE operation rounded once, so 16 lanes, 4 lanes and one give the same bits. It is bound by
 * memory, 28 bytes a bf16 parameter.
 *
 * The work is cut into runs of RUN_ELEMENTS, counted from each segment's start, and dealt to the threads
 * round by round, so that many small segments (biases) and one large one both spread. A parameter's update
 * depends on nothing beside it: any cut gives the same bits.
 */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/variant.h"

enum { RUN_ELEMENTS = 16384 };

typedef void (*segment_run)(const tide_adamw_segment *segment, size_t begin, size_t end, tide_dtype dtype,
                            const tide_adam_factors *factors);

static void adamw_run_bf16(const tide_adamw_segment *segment, size_t begin, size_t end,
                           const tide_adam_factors *factors)
{
    tide_bf16 *restrict param = segment->param;
    float *restrict master = segment->master;
    float *restrict momentum = segment->momentum;
    float *restrict variance = segment->variance;
    const tide_adam_factors local = *factors;
    const float decay = segment->decays ? local.decay : 1.0f;
#pragma omp simd
    for (size_t i = begin; i < end; i++) {
        float m = momentum[i], v = variance[i];
        const float weight = tide_adam_update(&local, decay, tide_bf16_to_float(param[i]), master[i], &m, &v);
        master[i] = weight;
        momentum[i] = m;
        variance[i] = v;
        param[i] = tide_bf16_from_float(weight);
    }
}

static void adamw_run_fp32(const tide_adamw_segment *segment, size_t begin, size_t end,
                           const tide_adam_factors *factors)
{
    float *restrict param = segment->param;
    float *restrict master = segment->master;
    float *restrict momentum = segment->momentum;
    float *restrict variance = segment->variance;
    const tide_adam_factors local = *factors;
    const float decay = segment->decays ? local.decay : 1.0f;
#pragma omp simd
    for (size_t i = begin; i < end; i++) {
        float m = momentum[i], v = variance[i];
        const float weight = tide_adam_update(&local, decay, param[i], master[i], &m, &v);
        master[i] = weight;
        momentum[i] = m;
        variance[i] = v;
        param[i] = weight;
    }
}

static void adamw_run(const tide_adamw_segment *segment, size_t begin, size_t end, tide_dtype dtype,
                      const tide_adam_factors *factors)
{
    if (dtype == TIDE_DTYPE_BF16)
        adamw_run_bf16(segment, begin, end, factors);
    else
        adamw_run_fp32(segment, begin, end, factors);
}

LANES_INLINE void restore_lanes(const tide_adamw_segment *segment, size_t begin, size_t end, tide_dtype dtype)
{
    for (size_t i = begin; i < end; i += LANES)
        lanes_store_until(segment->param, i, end, lanes_load_until(segment->master, i, end, TIDE_DTYPE_FP32),
                          dtype);
}

static void restore_run(const tide_adamw_segment *segment, size_t begin, size_t end, tide_dtype dtype,
                        const tide_adam_factors *factors)
{
    (void)factors;
    BY_DTYPE(dtype, restore_lanes, segment, begin, end);
}

/* A pass over segments, as its tasks see it. */
typedef struct segments_pass {
    const tide_adamw_args *args;
    segment_run run;
    size_t shares;
} segments_pass;

/* One share of a pass: of all the segments' runs, counted through, every shares-th. */
static void share_task(const void *arguments, size_t share)
{
    const segments_pass *pass = arguments;
    const tide_adamw_args *args = pass->args;
    size_t turn = 0;
    for (size_t s = 0; s < args->segment_count; s++) {
        const size_t elements = args->segments[s].elements;
        for (size_t begin = 0; begin < elements; begin += RUN_ELEMENTS, turn++) {
            const size_t end = elements - begin > RUN_ELEMENTS ? begin + RUN_ELEMENTS : elements;
            if (turn % pass->shares == share)
                pass->run(&args->segments[s], begin, end, args->dtype, &args->factors);
        }
    }
}

static void run_segments(const tide_adamw_args *args, segment_run run)
{
    const segments_pass pass = {.args = args, .run = run, .shares = (size_t)tide_kernels_cpu_threads()};
    assert(args->segment_count == 0 || args->segments);
    tide_team_run(pass.shares, (size_t)tide_adamw_segments_elements(args->segments, args->segment_count),
                  share_task, &pass);
}

tide_status VARIANT(adamw)(void *stream, const void *arguments)
{
    (void)stream;
    run_segments(arguments, adamw_run);
    return TIDE_OK;
}

tide_status VARIANT(restore)(void *stream, const void *arguments)
{
    const tide_restore_args *args = arguments;
    (void)stream;
    const tide_adamw_args all = {
        .segments = args->segments, .segment_count = args->segment_count, .dtype = args->dtype};
    run_segments(&all, restore_run);
    return TIDE_OK;
}
