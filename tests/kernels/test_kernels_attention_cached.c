/* Attention of new tokens to a cache of keys and values, compared with float64. The tokens of one launch
 * or of several, in whatever pieces, give the same bits and the same cache. */
#include "tests/kernels/test_kernels.h"

typedef struct shape {
    size_t first, rows, heads, kv_heads, head_width;
    size_t gap;   /* elements behind each row, poisoned */
    bool v_apart; /* v lies in a matrix of its own */
} shape;

/* The first token, a token after many, whole prompts; positions at and beside the borders of 64; heads that
 * are multiples of a vector, narrow and wide ones; a group for each head of keys. */
static const shape shapes[] = {
    {0, 1, 1, 1, 2, 0, false},   {0, 9, 3, 3, 6, 1, false},     {1, 1, 2, 2, 64, 0, true},
    {62, 3, 4, 2, 16, 0, false}, {63, 1, 2, 1, 24, 8, true},    {64, 1, 4, 1, 64, 0, false},
    {65, 2, 3, 3, 10, 0, false}, {130, 1, 2, 2, 128, 0, false}, {0, 70, 4, 2, 32, 0, false},
    {5, 66, 2, 1, 12, 3, true},  {200, 1, 9, 3, 64, 0, false},  {31, 4, 8, 2, 80, 0, false},
    {7, 2, 2, 1, 256, 0, false}, {300, 2, 1, 1, 48, 0, false},  {3, 1, 6, 2, 254, 2, true},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Tokens behind the last one for which the cache has space: they stay poisoned. */
enum { SPARE_ROWS = 3 };

typedef struct cached_case {
    shape shape;
    size_t qk_row, v_row, kv_width, total; /* total: first + rows */
    buffer qk, v, keys, values, out;
    double *q_values, *k_values, *v_values; /* of all positions in float64; queries only of the new ones */
} cached_case;

static bool is_gap(size_t index, size_t row, size_t gap)
{
    return index % row >= row - gap;
}

static buffer some_rows(size_t rows, size_t row, size_t gap, double size, tide_dtype dtype)
{
    buffer made = buffer_of(rows * row, dtype);
    for (size_t i = 0; i < rows * row; i++)
        if (!is_gap(i, row, gap))
            buffer_set(made, i, size * random_value());
    return made;
}

static cached_case case_make(shape s, tide_dtype dtype)
{
    const size_t query = s.heads * s.head_width, kv = s.kv_heads * s.head_width, total = s.first + s.rows;
    cached_case made = {.shape = s, .kv_width = kv, .total = total};
    made.qk_row = query + kv + (s.v_apart ? 0 : kv) + s.gap;
    made.v_row = s.v_apart ? kv + s.gap : made.qk_row;
    made.qk = some_rows(s.rows, made.qk_row, s.gap, 2.0, dtype);
    made.v = s.v_apart ? some_rows(s.rows, made.v_row, s.gap, 2.0, dtype) : made.qk;
    made.keys = buffer_of((total + SPARE_ROWS) * kv, dtype);
    made.values = buffer_of((total + SPARE_ROWS) * kv, dtype);
    made.out = buffer_of(s.rows * query, dtype);
    made.q_values = doubles(s.rows * query);
    made.k_values = doubles(total * kv);
    made.v_values = doubles(total * kv);
    for (size_t i = 0; i < s.first * kv; i++) {
        buffer_set(made.keys, i, 2.0 * random_value());
        buffer_set(made.values, i, 2.0 * random_value());
    }
    for (size_t i = 0; i < s.rows * query; i++)
        made.q_values[i] = buffer_get(made.qk, i / query * made.qk_row + i % query);
    for (size_t i = 0; i < total * kv; i++) {
        const bool cached = i < s.first * kv;
        const size_t row = i / kv - s.first, column = i % kv, v_first = s.v_apart ? 0 : query + kv;
        made.k_values[i] =
            cached ? buffer_get(made.keys, i) : buffer_get(made.qk, row * made.qk_row + query + column);
        made.v_values[i] =
            cached ? buffer_get(made.values, i) : buffer_get(made.v, row * made.v_row + v_first + column);
    }
    return made;
}

static void case_free(cached_case *freed)
{
    buffers_free(freed->qk, freed->keys, freed->values, freed->out);
    if (freed->shape.v_apart)
        buffer_free(freed->v);
    free(freed->q_values);
    free(freed->k_values);
    free(freed->v_values);
}

static char *at(buffer matrix, size_t index)
{
    return (char *)matrix.data + index * tide_dtype_bytes(matrix.dtype);
}

/* Runs the kernel for `rows` of the new tokens, from the `skip`-th on. */
static void attend(const tide_kernels *kernels, const cached_case *c, size_t skip, size_t rows)
{
    const shape s = c->shape;
    const size_t query = s.heads * s.head_width, v_first = s.v_apart ? 0 : query + c->kv_width;
    tide_attention_cached_args args = {.q = at(c->qk, skip * c->qk_row),
                                       .k = at(c->qk, skip * c->qk_row + query),
                                       .v = at(c->v, skip * c->v_row + v_first),
                                       .keys = c->keys.data,
                                       .values = c->values.data,
                                       .out = at(c->out, skip * query),
                                       .rows = rows,
                                       .first = s.first + skip,
                                       .heads = s.heads,
                                       .kv_heads = s.kv_heads,
                                       .head_width = s.head_width,
                                       .qk_row = c->qk_row,
                                       .v_row = c->v_row,
                                       .dtype = c->qk.dtype};
    buffer workspace = buffer_bytes(kernels->attention_cached_workspace_bytes(&args));
    args.workspace = workspace.data;
    args.workspace_bytes = workspace.bytes;
    run_kernel(kernels->attention_cached, &args);
    buffer_free(workspace);
}

/* Sets the expected output of one head of a new token. */
static void reference(const cached_case *c, size_t row, size_t head, double *out)
{
    const size_t d = c->shape.head_width, keys = c->shape.first + row + 1;
    const size_t column = head / (c->shape.heads / c->shape.kv_heads) * d;
    const double *q = c->q_values + (row * c->shape.heads + head) * d;
    double *scores = doubles(keys), most = -INFINITY, sum = 0.0;
    for (size_t key = 0; key < keys; key++) {
        for (size_t i = 0; i < d; i++)
            scores[key] += q[i] * c->k_values[key * c->kv_width + column + i] / sqrt((double)d);
        most = fmax(most, scores[key]);
    }
    for (size_t key = 0; key < keys; key++)
        sum += exp(scores[key] - most);
    for (size_t i = 0; i < d; i++) {
        out[i] = 0.0;
        for (size_t key = 0; key < keys; key++)
            out[i] += exp(scores[key] - most) / sum * c->v_values[key * c->kv_width + column + i];
    }
    free(scores);
}

/* The cache has the keys and values of all tokens, and behind them what it had before. */
static void check_cache(buffer cache, const double *expected, size_t used, size_t elements)
{
    for (size_t i = 0; i < used; i++)
        assert_true(buffer_get(cache, i) == expected[i]);
    for (size_t i = used * tide_dtype_bytes(cache.dtype); i < elements * tide_dtype_bytes(cache.dtype); i++)
        assert_int_equal(((const unsigned char *)cache.data)[i], POISON);
}

static void new_tokens_attend_to_the_cache_as_in_float64(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t number = 0; number < SHAPES; number++) {
        if (!case_is_taken(number, dtype))
            continue;
        cached_case c = case_make(shapes[number], dtype);
        const size_t heads = c.shape.heads, d = c.shape.head_width;
        double *expected = doubles(c.shape.rows * heads * d);
        attend(kernels, &c, 0, c.shape.rows);
        for (size_t i = 0; i < c.shape.rows * heads; i++)
            reference(&c, i / heads, i % heads, expected + i * d);
        assert_close(c.out, expected, c.shape.rows * heads * d, 1e-5);
        check_cache(c.keys, c.k_values, c.total * c.kv_width, (c.total + SPARE_ROWS) * c.kv_width);
        check_cache(c.values, c.v_values, c.total * c.kv_width, (c.total + SPARE_ROWS) * c.kv_width);
        free(expected);
        case_free(&c);
    }
}

/* The tokens of one launch, one by one, and in pieces that end beside the borders of 64. */
static void pieces_of_any_size_give_the_same_bits(const tide_kernels *kernels, tide_dtype dtype)
{
    static const shape whole = {60, 12, 4, 2, 24, 0, false};
    static const size_t pieces[][6] = {{1, 1, 1, 1, 1, 7}, {4, 1, 7}, {3, 9}, {5, 7}};
    cached_case c = case_make(whole, dtype);
    attend(kernels, &c, 0, whole.rows);
    const buffer out = buffer_copy(c.out), keys = buffer_copy(c.keys), values = buffer_copy(c.values);
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        const size_t cached_bytes = whole.first * c.kv_width * tide_dtype_bytes(dtype);
        memset(c.out.data, POISON, c.out.bytes);
        memset((char *)c.keys.data + cached_bytes, POISON, c.keys.bytes - cached_bytes);
        memset((char *)c.values.data + cached_bytes, POISON, c.values.bytes - cached_bytes);
        for (size_t skip = 0, piece = 0; skip < whole.rows; skip += pieces[i][piece++])
            attend(kernels, &c, skip, pieces[i][piece]);
        assert_same_bits(c.out, out);
        assert_same_bits(c.keys, keys);
        assert_same_bits(c.values, values);
    }
    buffers_free(out, keys, values);
    case_free(&c);
}

/* Scores of hundreds overflow no exponential: the largest one's value is the result. */
static void large_scores_give_the_value_of_the_largest(const tide_kernels *kernels, tide_dtype dtype)
{
    cached_case c = case_make((shape){80, 1, 1, 1, 16, 0, false}, dtype);
    for (size_t i = 0; i < 16; i++) {
        buffer_set(c.qk, i, 64.0);
        for (size_t key = 0; key < 80; key++)
            buffer_set(c.keys, key * 16 + i, key == 37 ? 8.0 : -8.0);
        buffer_set(c.qk, 16 + i, -8.0);
    }
    attend(kernels, &c, 0, 1);
    for (size_t i = 0; i < 16; i++)
        assert_true(buffer_get(c.out, i) == c.v_values[37 * 16 + i]);
    case_free(&c);
}

#if TEST_ON_CPU

static void attend_all(const void *of)
{
    const cached_case *c = of;
    attend(tide_kernels_cpu(), c, 0, c->shape.rows);
}

static void any_thread_count_gives_the_same_bits(void **state)
{
    cached_case c = case_make((shape){40, 30, 6, 2, 40, 0, false}, TIDE_DTYPE_BF16);
    (void)state;
    check_thread_counts(attend_all, &c, &c.out, 1);
    case_free(&c);
}

#else

static void heads_wider_than_256_are_refused(void **state)
{
    const tide_attention_cached_args args = {.q = &args,
                                             .k = &args,
                                             .v = &args,
                                             .keys = (void *)1,
                                             .values = (void *)1,
                                             .out = (void *)1,
                                             .rows = 1,
                                             .heads = 1,
                                             .kv_heads = 1,
                                             .head_width = 257,
                                             .qk_row = 771,
                                             .v_row = 771};
    (void)state;
    assert_int_equal(test_table()->attention_cached(NULL, &args), TIDE_ERROR_ARGUMENT);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        each_configuration(new_tokens_attend_to_the_cache_as_in_float64),
        each_configuration(pieces_of_any_size_give_the_same_bits),
        each_configuration(large_scores_give_the_value_of_the_largest),
#if TEST_ON_CPU
        cmocka_unit_test(any_thread_count_gives_the_same_bits),
#else
        cmocka_unit_test(heads_wider_than_256_are_refused),
#endif
    };
    return RUN_KERNEL_TESTS(tests);
}
