/* Attention where several heads of queries share a head of keys and values, and where q, k and v lie in
 * separate matrices or in rows with gaps. */
#include "kernels/gpu_sizes.h"
#include "tests/kernels/attention_case.h"
#include "tests/support/assert_ok.h"

/* One, two, three, seven and eight heads of queries for each head of keys; heads of every width that tiles
 * are padded to, whole vectors or not. With a gap of whole vectors each row still begins on a vector; with
 * any other gap it does not, although the head's width would allow it. A GPU's backward splits every group
 * of two heads or more, except in the shape with 256 sequences. */
static const attention_shape shapes[] = {
    {1, 5, 3, 3, 1, 0, false, NULL},    {1, 70, 2, 1, 64, 0, false, NULL},
    {2, 33, 4, 2, 80, 0, true, NULL},   {1, 40, 8, 1, 16, 0, false, NULL},
    {2, 40, 16, 2, 8, 3, true, NULL},   {1, 66, 6, 2, 96, 8, false, NULL},
    {1, 66, 2, 2, 128, 3, true, NULL},  {1, 66, 6, 2, 128, 0, false, NULL},
    {1, 70, 3, 1, 256, 0, true, NULL},  {1, 33, 4, 2, 14, 1, false, NULL},
    {1, 65, 4, 4, 50, 8, true, NULL},   {1, 20, 2, 1, 33, 0, false, NULL},
    {1, 130, 9, 3, 40, 0, false, NULL}, {1, 30, 2, 1, 64, 1, false, NULL},
    {1, 30, 2, 1, 255, 16, true, NULL}, {1, 70, 7, 1, 24, 0, false, NULL},
    {256, 2, 4, 2, 8, 0, false, NULL},
#if TEST_ON_CPU
    {1, 70, 2, 1, 320, 0, false, NULL}, {1, 66, 4, 2, 257, 5, true, NULL},
#endif
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void heads_that_share_keys_match_float64_forward_and_backward(const tide_kernels *kernels,
                                                                     tide_dtype dtype)
{
    for (size_t s = 0; s < SHAPES; s++)
        if (case_is_taken(s, dtype))
            case_check_shape(kernels, shapes[s], dtype);
}

static void gradients_of_shared_keys_match_finite_differences(const tide_kernels *kernels, tide_dtype dtype)
{
    case_check_slopes(kernels, (attention_shape){2, 11, 6, 2, 6, 2, true, NULL}, dtype);
}

/* Copies the values of q, k and v to the places that `to`'s layout gives them. */
static void lay_values(const attention_case *from, const attention_case *to)
{
    for (int tensor = Q; tensor < TENSORS; tensor++)
        for (size_t i = 0; i < from->rows * from->x[tensor].width; i++)
            buffer_set(case_matrix(to, tensor), part_index(to->x[tensor], i), from->values[tensor][i]);
    memcpy(to->dout.data, from->dout.data, from->dout.bytes);
}

static void assert_same_part(const attention_case *a, const attention_case *b, int tensor)
{
    for (size_t i = 0; i < a->rows * a->x[tensor].width; i++) {
        const double in_a = buffer_get(a->dqkv, part_index(a->dx[tensor], i));
        const double in_b = buffer_get(b->dqkv, part_index(b->dx[tensor], i));
        if (!(in_a == in_b))
            fail_msg("tensor %d, element %zu: %g in one layout, %g in the other", tensor, i, in_a, in_b);
    }
}

/* Compares the bits of dense tensors with those of the same values in rows with gaps, which begin at any
 * element. */
static void results_do_not_depend_on_where_tensors_lie(const tide_kernels *kernels, tide_dtype dtype)
{
    const attention_shape elsewhere[] = {{2, 70, 4, 2, 64, 8, true, NULL}, {2, 70, 4, 2, 64, 1, false, NULL}};
    if (!case_is_taken(0, dtype) && !case_is_taken(1, dtype))
        return;
    attention_case dense = case_make((attention_shape){2, 70, 4, 2, 64, 0, false, NULL}, dtype, 1.0);
    run_both(kernels, &dense);
    for (size_t s = 0; s < sizeof elsewhere / sizeof elsewhere[0]; s++) {
        if (!case_is_taken(s, dtype))
            continue;
        attention_case c = case_make(elsewhere[s], dtype, 1.0);
        lay_values(&dense, &c);
        run_both(kernels, &c);
        assert_same_bits(c.out, dense.out);
        assert_same_bits(c.logsumexp, dense.logsumexp);
        for (int tensor = Q; tensor < TENSORS; tensor++)
            assert_same_part(&c, &dense, tensor);
        case_free(&c);
    }
    case_free(&dense);
}

#if !TEST_ON_CPU

static size_t splits(size_t batch, size_t length, size_t heads, size_t kv_heads)
{
    return tide_gpu_attention_splits(&(tide_attention_backward_args){
        .batch = batch, .sequence_length = length, .heads = heads, .kv_heads = kv_heads});
}

static void groups_are_split_where_heads_of_keys_are_few(void **state)
{
    assert_int_equal(splits(1, 4096, 32, 8), 1);
    assert_int_equal(splits(1, 2048, 32, 8), 2);
    assert_int_equal(splits(2, 2048, 32, 8), 1);
    assert_int_equal(splits(1, 1024, 32, 8), 4);
    assert_int_equal(splits(1, 128, 32, 4), 4); /* at most 4 splits */
    assert_int_equal(splits(1, 128, 24, 8), 2); /* at most as many splits as a group has heads */
    assert_int_equal(splits(1, 128, 16, 16), 1);
}

static void heads_wider_than_256_are_refused_on_a_gpu(void **state)
{
    attention_case c = case_make((attention_shape){1, 3, 2, 1, 257, 0, false, NULL}, TIDE_DTYPE_BF16, 1.0);
    const tide_attention_args forward = case_forward_args(&c);
    const tide_attention_backward_args backward = case_backward_args(&c);
    assert_int_equal(test_table()->attention(NULL, &forward), TIDE_ERROR_ARGUMENT);
    assert_int_equal(test_table()->attention_backward(NULL, &backward), TIDE_ERROR_ARGUMENT);
    case_free(&c);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        each_configuration(heads_that_share_keys_match_float64_forward_and_backward),
        each_configuration(gradients_of_shared_keys_match_finite_differences),
        each_configuration(results_do_not_depend_on_where_tensors_lie),
#if !TEST_ON_CPU
        cmocka_unit_test(groups_are_split_where_heads_of_keys_are_few),
        cmocka_unit_test(heads_wider_than_256_are_refused_on_a_gpu),
#endif
    };
    return RUN_KERNEL_TESTS(tests);
}
