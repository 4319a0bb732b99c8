/* AdamW's update and restore. The update is compared with a float64 reference; its bits must not depend on
 * the instruction set, the number of threads or how the params are cut into segments. */
#include "kernels/kernels.h"
#include "tests/kernels/test_kernels.h"

/* Consecutive params and their optimizer state. */
typedef struct adam_state {
    buffer param, master, momentum, variance;
    size_t elements;
} adam_state;

static adam_state state_random(size_t elements, tide_dtype dtype)
{
    adam_state made = {.elements = elements,
                       .param = buffer_random(elements, dtype, 0.01),
                       .master = buffer_random(elements, TIDE_DTYPE_FP32, 1.0),
                       .momentum = buffer_random(elements, TIDE_DTYPE_FP32, 0.01),
                       .variance = buffer_random(elements, TIDE_DTYPE_FP32, 1e-4)};
    for (size_t i = 0; i < elements; i++)
        buffer_set(made.variance, i, fabs(buffer_get(made.variance, i)));
    return made;
}

static adam_state state_copy(const adam_state *from)
{
    return (adam_state){buffer_copy(from->param), buffer_copy(from->master), buffer_copy(from->momentum),
                        buffer_copy(from->variance), from->elements};
}

static void state_free(adam_state *freed)
{
    buffers_free(freed->param, freed->master, freed->momentum, freed->variance);
}

static void assert_states_same_bits(const adam_state *a, const adam_state *b)
{
    assert_same_bits(a->param, b->param);
    assert_same_bits(a->master, b->master);
    assert_same_bits(a->momentum, b->momentum);
    assert_same_bits(a->variance, b->variance);
}

static tide_adamw_segment segment_of(const adam_state *state, size_t begin, size_t end, bool decays)
{
    return (tide_adamw_segment){.param =
                                    (char *)state->param.data + begin * tide_dtype_bytes(state->param.dtype),
                                .master = (float *)state->master.data + begin,
                                .momentum = (float *)state->momentum.data + begin,
                                .variance = (float *)state->variance.data + begin,
                                .elements = end - begin,
                                .decays = decays};
}

static const double lr = 6e-4, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, decay = 0.1, scale = 0.37;

static tide_adam_factors factors_at(uint64_t step)
{
    return tide_adam_factors_make(lr, beta1, beta2, epsilon, decay, step, scale);
}

/* Passes the segments as a table, since the launcher reads them on the host. */
static void run_adamw(const tide_kernels *kernels, const tide_adamw_segment *segments, size_t count,
                      uint64_t step, tide_dtype dtype)
{
    const tide_adamw_args args = {segments, count, factors_at(step), dtype};
    run_kernel_with(kernels->adamw, &args, sizeof args, segments, count * sizeof *segments);
}

static void run_restore(const tide_kernels *kernels, const tide_adamw_segment *segments, size_t count,
                        tide_dtype dtype)
{
    const tide_restore_args args = {segments, count, dtype};
    run_kernel_with(kernels->restore, &args, sizeof args, segments, count * sizeof *segments);
}

static void update(const tide_kernels *kernels, const adam_state *state, bool decays, uint64_t step)
{
    const tide_adamw_segment segment = segment_of(state, 0, state->elements, decays);
    run_adamw(kernels, &segment, 1, step, state->param.dtype);
}

/* AdamW by the textbook in float64 on one element; returns the new weight. */
static double model_update(double gradient, double weight, double *m, double *v, bool decays, uint64_t step)
{
    const double g = gradient * scale;
    *m = beta1 * *m + (1 - beta1) * g;
    *v = beta2 * *v + (1 - beta2) * g * g;
    const double m_hat = *m / (1 - pow(beta1, (double)step)), v_hat = *v / (1 - pow(beta2, (double)step));
    return weight * (1 - (decays ? lr * decay : 0.0)) - lr * m_hat / (sqrt(v_hat) + epsilon);
}

/* The tolerances: each fp32 operation errs by 2^-24, relatively. A moment takes four operations, the step,
 * which is as large as lr, about eight, and the weight's own rounding adds two. */
static void an_update_matches_the_float64_model(const tide_kernels *kernels, tide_dtype dtype)
{
    enum { COUNT = 1001 };
    const double unit = ldexp(1.0, -24);
    for (uint64_t step = 1; step <= 1000; step = step * 10) {
        adam_state state = state_random(COUNT, dtype), before = state_copy(&state);
        const bool decays = step != 10;
        update(kernels, &state, decays, step);
        for (size_t i = 0; i < COUNT; i++) {
            double m = buffer_get(before.momentum, i), v = buffer_get(before.variance, i);
            const double m_size = fabs(m) + fabs(buffer_get(before.param, i));
            const double w =
                model_update(buffer_get(before.param, i), buffer_get(before.master, i), &m, &v, decays, step);
            const double step_size = lr / (1 - pow(beta1, (double)step)) * m_size / (sqrt(v) + epsilon);
            assert_true(fabs(buffer_get(state.momentum, i) - m) <= 4 * unit * m_size);
            assert_true(fabs(buffer_get(state.variance, i) - v) <= 5 * unit * v);
            assert_true(fabs(buffer_get(state.master, i) - w) <= unit * (3 * fabs(w) + 16 * step_size));
        }
        state_free(&state);
        state_free(&before);
    }
}

static void the_new_param_is_the_rounded_master_and_restore_makes_it_again(const tide_kernels *kernels,
                                                                           tide_dtype dtype)
{
    adam_state state = state_random(777, dtype);
    update(kernels, &state, true, 3);
    for (size_t i = 0; i < state.elements; i++) {
        buffer expected = buffer_of(1, dtype);
        buffer_set(expected, 0, buffer_get(state.master, i));
        assert_true(buffer_get(state.param, i) == buffer_get(expected, 0));
        buffer_free(expected);
    }
    const adam_state before = state_copy(&state);
    memset(state.param.data, POISON, state.param.bytes);
    const tide_adamw_segment segment = segment_of(&state, 0, state.elements, true);
    run_restore(kernels, &segment, 1, dtype);
    assert_states_same_bits(&state, &before);
    state_free(&state);
    adam_state freed = before;
    state_free(&freed);
}

/* Inserts values that instruction sets might treat differently: denormals as inputs and as results,
 * infinities, NaN, zeros, extremes. */
static void make_difficult(adam_state *state)
{
    const double values[] = {1e-40, -1e-42,           1.4e-45,     1e-38, 0.0,
                             -0.0,  (double)INFINITY, (double)NAN, 3e38,  1e-20};
    enum { VALUES = sizeof values / sizeof values[0] };
    for (size_t i = 0; i + 3 < state->elements; i += 5) {
        buffer_set(state->param, i, values[i / 5 % VALUES]);
        buffer_set(state->momentum, i + 1, values[i / 5 % VALUES]);
        buffer_set(state->variance, i + 2, fabs(values[(i / 5 + 3) % VALUES]));
        buffer_set(state->master, i + 3, values[(i / 7) % VALUES]);
    }
}

/* Makes all NaNs equal, since instruction sets may give them different signs and payloads. */
static void unify_nans(buffer values)
{
    for (size_t i = 0; i < values.bytes / tide_dtype_bytes(values.dtype); i++)
        if (isnan(buffer_get(values, i)))
            buffer_set(values, i, (double)NAN);
}

static void unify_state(adam_state *state)
{
    unify_nans(state->param);
    unify_nans(state->master);
    unify_nans(state->momentum);
    unify_nans(state->variance);
}

static void check_same_bits_as(const adam_state *begin, const adam_state *expected,
                               const tide_kernels *kernels, int threads)
{
    adam_state state = state_copy(begin);
    use_threads(threads);
    update(kernels, &state, true, 7);
    unify_state(&state);
    assert_states_same_bits(&state, expected);
    state_free(&state);
}

static void check_all_same_bits(size_t elements, tide_dtype dtype, bool difficult)
{
    adam_state begin = state_random(elements, dtype);
    if (difficult)
        make_difficult(&begin);
    adam_state expected = state_copy(&begin);
    const tide_adamw_segment segment = segment_of(&expected, 0, elements, true);
    use_threads(1);
    run_on_cpu(tide_cpu_variant_get(TIDE_CPU_ISA_PORTABLE)->kernels.adamw,
               &(tide_adamw_args){&segment, 1, factors_at(7), dtype});
    unify_state(&expected);
#if TEST_ON_CPU
    for (tide_cpu_isa isa = TIDE_CPU_ISA_PORTABLE; isa < TIDE_CPU_ISA_COUNT; isa++)
        for (int threads = 1; tide_cpu_variant_get(isa) && threads <= 3; threads++)
            check_same_bits_as(&begin, &expected, &tide_cpu_variant_get(isa)->kernels, threads);
#else
    check_same_bits_as(&begin, &expected, test_table(), 1);
#endif
    state_free(&begin);
    state_free(&expected);
}

static void cpu_and_gpu_and_every_instruction_set_and_thread_count_give_the_same_bits(void **state)
{
    const size_t sizes[] = {1, 2, 15, 16, 17, 33, 63, 16384, 16385, 70001};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int difficult = 0; difficult <= 1; difficult++) {
            check_all_same_bits(sizes[s], TIDE_DTYPE_BF16, difficult);
            check_all_same_bits(sizes[s], TIDE_DTYPE_FP32, difficult);
            check_all_same_bits(sizes[s], TIDE_DTYPE_FP16, difficult);
        }
}

/* Checks that elements begin to end - 1 equal those of `updated` and all others those of `before`. */
static void assert_updated_between(buffer actual, buffer before, buffer updated, size_t begin, size_t end)
{
    const size_t element_bytes = tide_dtype_bytes(actual.dtype), from = begin * element_bytes,
                 to = end * element_bytes;
    const char *a = actual.data, *b = before.data, *u = updated.data;
    assert_int_equal(memcmp(a, b, from), 0);
    assert_int_equal(memcmp(a + from, u + from, to - from), 0);
    assert_int_equal(memcmp(a + to, b + to, actual.bytes - to), 0);
}

static void check_range(const tide_kernels *kernels, const adam_state *before, const adam_state *updated,
                        size_t begin, size_t end)
{
    adam_state state = state_copy(before);
    const tide_adamw_segment segment = segment_of(&state, begin, end, true);
    run_adamw(kernels, &segment, 1, 2, state.param.dtype);
    assert_updated_between(state.param, before->param, updated->param, begin, end);
    assert_updated_between(state.master, before->master, updated->master, begin, end);
    assert_updated_between(state.momentum, before->momentum, updated->momentum, begin, end);
    assert_updated_between(state.variance, before->variance, updated->variance, begin, end);
    state_free(&state);
}

static void an_update_of_any_range_changes_that_range_and_nothing_beside_it(const tide_kernels *kernels,
                                                                            tide_dtype dtype)
{
    enum { COUNT = 230 };
    const size_t lengths[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 150};
    adam_state before = state_random(COUNT, dtype), updated = state_copy(&before);
    update(kernels, &updated, true, 2);
    for (size_t begin = 0; begin < 70; begin += begin < 20 ? 1 : 7)
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
            check_range(kernels, &before, &updated, begin, begin + lengths[l]);
    state_free(&before);
    state_free(&updated);
}

/* Cuts the params into more segments than a launch of the GPU's kernels takes, of 0 to SIZES - 1 elements and
 * some of LONG, at any alignment. An update in segments has the bits of one in a single piece, and restore
 * makes all its params again. */
static void
any_cut_into_many_segments_gives_the_same_bits_with_any_number_of_threads(const tide_kernels *kernels,
                                                                          tide_dtype dtype)
{
    enum { SEGMENTS = 400, SIZES = 211, LONG = 20011, COUNT = SEGMENTS * SIZES + 3 * LONG };
    static tide_adamw_segment segments[SEGMENTS];
    adam_state whole = state_random(COUNT, dtype), begin = state_copy(&whole);
    update(kernels, &whole, true, 2);
    for (int threads = 1; threads <= (TEST_ON_CPU ? 7 : 1); threads += 2) {
        adam_state cut = state_copy(&begin);
        size_t covered = 0;
        for (size_t s = 0; s < SEGMENTS; s++) {
            const size_t usual = s % 150 == 50 ? LONG : s * 89 % SIZES,
                         elements = s + 1 < SEGMENTS ? usual : COUNT - covered;
            segments[s] = segment_of(&cut, covered, covered + elements, true);
            covered += elements;
        }
        use_threads(threads);
        run_adamw(kernels, segments, SEGMENTS, 2, dtype);
        assert_states_same_bits(&cut, &whole);
        memset(cut.param.data, POISON, cut.param.bytes);
        run_restore(kernels, segments, SEGMENTS, dtype);
        assert_states_same_bits(&cut, &whole);
        state_free(&cut);
    }
    state_free(&whole);
    state_free(&begin);
}

/* A copy of the buffer's bytes that begins `elements` elements into a larger buffer and ends with it. */
static buffer buffer_shifted(buffer from, size_t elements)
{
    const size_t shift = elements * tide_dtype_bytes(from.dtype);
    buffer made = buffer_bytes(from.bytes + shift);
    made.dtype = from.dtype;
    memcpy((char *)made.data + shift, from.data, from.bytes);
    return made;
}

static void assert_shifted(buffer shifted, buffer expected)
{
    const size_t shift = shifted.bytes - expected.bytes;
    for (size_t i = 0; i < shift; i++)
        assert_int_equal(((unsigned char *)shifted.data)[i], POISON);
    assert_memory_equal((char *)shifted.data + shift, expected.data, expected.bytes);
}

static void check_shift(const tide_kernels *kernels, const adam_state *before, const adam_state *updated,
                        const size_t shift[4])
{
    const tide_dtype dtype = before->param.dtype;
    adam_state state = {buffer_shifted(before->param, shift[0]), buffer_shifted(before->master, shift[1]),
                        buffer_shifted(before->momentum, shift[2]),
                        buffer_shifted(before->variance, shift[3]), before->elements};
    const tide_adamw_segment segment = {.param =
                                            (char *)state.param.data + shift[0] * tide_dtype_bytes(dtype),
                                        .master = (float *)state.master.data + shift[1],
                                        .momentum = (float *)state.momentum.data + shift[2],
                                        .variance = (float *)state.variance.data + shift[3],
                                        .elements = before->elements,
                                        .decays = true};
    run_adamw(kernels, &segment, 1, 2, dtype);
    assert_shifted(state.param, updated->param);
    assert_shifted(state.master, updated->master);
    assert_shifted(state.momentum, updated->momentum);
    assert_shifted(state.variance, updated->variance);
    memset(segment.param, 0, updated->param.bytes);
    run_restore(kernels, &segment, 1, dtype);
    assert_shifted(state.param, updated->param);
    state_free(&state);
}

/* The arrays of a segment are each shifted by a number of elements of its own: the kernel may assume no
 * alignment beyond an element's. */
static void arrays_that_are_not_aligned_alike_give_the_same_bits(const tide_kernels *kernels,
                                                                 tide_dtype dtype)
{
    /* two blocks of the GPU's kernel, or three, depending on the address of the param */
    enum { COUNT = 4094 };
    const size_t shifts[][4] = {{0, 0, 0, 1}, {0, 0, 2, 0}, {0, 3, 0, 0}, {1, 0, 0, 0},
                                {3, 3, 3, 3}, {8, 4, 0, 4}, {7, 2, 6, 1}, {5, 1, 1, 1}};
    adam_state before = state_random(COUNT, dtype), updated = state_copy(&before);
    update(kernels, &updated, true, 2);
    for (size_t s = 0; s < sizeof shifts / sizeof shifts[0]; s++)
        check_shift(kernels, &before, &updated, shifts[s]);
    state_free(&before);
    state_free(&updated);
}

static void weight_decay_is_chosen_per_segment(const tide_kernels *kernels, tide_dtype dtype)
{
    adam_state both = state_random(200, dtype), decayed = state_copy(&both), undecayed = state_copy(&both);
    update(kernels, &decayed, true, 2);
    update(kernels, &undecayed, false, 2);
    const tide_adamw_segment segments[] = {segment_of(&both, 0, 100, true),
                                           segment_of(&both, 100, 200, false)};
    run_adamw(kernels, segments, 2, 2, dtype);
    const float *mixed = both.master.data, *with = decayed.master.data, *without = undecayed.master.data;
    assert_memory_equal(mixed, with, 100 * sizeof(float));
    assert_memory_equal(mixed + 100, without + 100, 100 * sizeof(float));
    assert_memory_not_equal(with, without, 100 * sizeof(float));
    state_free(&both);
    state_free(&decayed);
    state_free(&undecayed);
}

static void no_segments_is_no_work(void **state)
{
    run_adamw(test_table(), NULL, 0, 1, TIDE_DTYPE_BF16);
}

static void an_update_moves_28_bytes_a_bf16_parameter(void **state)
{
    const tide_adamw_segment segments[] = {{.elements = 10}, {.elements = 7}};
    const tide_adamw_args half = {segments, 2, factors_at(1), TIDE_DTYPE_BF16},
                          full = {segments, 2, factors_at(1), TIDE_DTYPE_FP32};
    assert_int_equal(tide_adamw_bytes(&half), 17 * 28);
    assert_int_equal(tide_adamw_bytes(&full), 17 * 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        each_configuration(an_update_matches_the_float64_model),
        each_configuration(the_new_param_is_the_rounded_master_and_restore_makes_it_again),
        cmocka_unit_test(cpu_and_gpu_and_every_instruction_set_and_thread_count_give_the_same_bits),
        each_configuration(an_update_of_any_range_changes_that_range_and_nothing_beside_it),
        each_configuration(any_cut_into_many_segments_gives_the_same_bits_with_any_number_of_threads),
        each_configuration(arrays_that_are_not_aligned_alike_give_the_same_bits),
        each_configuration(weight_decay_is_chosen_per_segment),
        cmocka_unit_test(no_segments_is_no_work),
        cmocka_unit_test(an_update_moves_28_bytes_a_bf16_parameter),
    };
    return RUN_KERNEL_TESTS(tests);
}
