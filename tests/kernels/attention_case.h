/* One attention problem: its buffers as a kernel gets them, its inputs in float64, and the expected
 * results computed from these in float64.
 *
 * q and k lie in one matrix, v in the same matrix or in one of its own; dq, dk and dv share another
 * matrix:
 *
 *     a row of x:   | q: heads | k: kv_heads | v: kv_heads | gap |  or  | q | k | gap |    | v | gap | gap |
 *     a row of dx:  | dq | dk | dv | gap |                          or  | dv | dq | dk | gap |
 *
 * The gaps are poisoned: a kernel that reads a gap computes a NaN, and case_check_gaps() finds each write
 * to one. Every test program runs forward and backward by the same two functions, which give the kernels a
 * poisoned workspace between guard bytes. */
#ifndef TIDEPOOL_TESTS_ATTENTION_CASE_H
#define TIDEPOOL_TESTS_ATTENTION_CASE_H

#include "tests/kernels/test_kernels.h"

enum { Q, K, V, TENSORS };

typedef struct attention_shape {
    size_t batch, length, heads, kv_heads, head_width;
    /* elements behind each row */
    size_t gap;
    bool v_apart;
    /* The tokens at which the documents of the first sequence begin, ascending, ended by 0. The first
     * document, which begins at token 0, is not listed. In each further sequence every document begins one
     * token later than in the sequence before. NULL: the kernels get no list of starts. */
    const size_t *documents;
} attention_shape;

/* Where a tensor lies within its matrix. */
typedef struct attention_part {
    /* `first`: element at which the tensor begins; `row`: elements from one row of the matrix to the next;
     * `width`: elements of a row that are the tensor's */
    size_t first, row, width;
} attention_part;

typedef struct attention_case {
    attention_shape shape;
    /* width: heads x head_width, a row of out */
    size_t rows, width;
    attention_part x[TENSORS], dx[TENSORS];
    /* v is the same buffer as qk unless v_apart */
    buffer qk, v;
    buffer starts;
    buffer out, logsumexp, dout, dqkv;
    double *values[TENSORS]; /* q, k, v in float64: [rows, width of the part] */
    double *g;               /* dout in float64 */
    double *y, *l;           /* out and logsumexp as case_reference() computed them */
} attention_case;

/* `tolerance` plus an allowance for the GPU's tensor cores, which take the weights and, in backward, the
 * scores' gradients rounded to the operands' type. Each rounding errs by at most half a unit of 1/256
 * (bf16) or 1/2048 (fp16), and the weights sum to one; `times` such roundings enter a result. */
static inline double tolerance_with(double tolerance, tide_dtype dtype, double times)
{
    const double units[TEST_DTYPES] = {0.0, ldexp(1.0, -9), ldexp(1.0, -12)};
    return tolerance + (TEST_ON_CPU ? 0.0 : times * units[dtype]);
}

/* ---- indices ---- */

static inline size_t case_kv_head(const attention_case *c, size_t head)
{
    return head / (c->shape.heads / c->shape.kv_heads);
}

/* Token `token`'s values of the head that query head `head` uses: its own of Q, its group's of K and V. */
static inline double *case_values(const attention_case *c, int tensor, size_t b, size_t head, size_t token)
{
    const size_t own = tensor == Q ? head : case_kv_head(c, head);
    return c->values[tensor] + (b * c->shape.length + token) * c->x[tensor].width + own * c->shape.head_width;
}

static inline size_t case_index_in_out(const attention_case *c, size_t b, size_t head, size_t token)
{
    return (b * c->shape.length + token) * c->width + head * c->shape.head_width;
}

static inline size_t case_index_in_logsumexp(const attention_case *c, size_t b, size_t head, size_t token)
{
    return (b * c->shape.heads + head) * c->shape.length + token;
}

/* The index in its matrix of element i of a tensor. */
static inline size_t part_index(attention_part part, size_t i)
{
    return part.first + i / part.width * part.row + i % part.width;
}

static inline size_t case_start(const attention_case *c, size_t b, size_t token)
{
    const int32_t *starts = c->starts.data;
    return starts ? (size_t)starts[b * c->shape.length + token] : 0;
}

/* ---- the case ---- */

static inline void case_lay_out(attention_case *c)
{
    const attention_shape s = c->shape;
    const size_t q = s.heads * s.head_width, kv = s.kv_heads * s.head_width;
    const size_t qk_row = q + (s.v_apart ? kv : 2 * kv) + s.gap, v_row = s.v_apart ? kv + 2 * s.gap : qk_row;
    const size_t dqkv_row = q + 2 * kv + s.gap, moved = s.v_apart ? kv : 0;
    c->x[Q] = (attention_part){0, qk_row, q};
    c->x[K] = (attention_part){q, qk_row, kv};
    c->x[V] = (attention_part){s.v_apart ? 0 : q + kv, v_row, kv};
    c->dx[Q] = (attention_part){moved, dqkv_row, q};
    c->dx[K] = (attention_part){moved + q, dqkv_row, kv};
    c->dx[V] = (attention_part){s.v_apart ? 0 : q + kv, dqkv_row, kv};
}

static inline void case_begin_documents(attention_case *c)
{
    c->starts = buffer_bytes(c->rows * sizeof(int32_t));
    for (size_t row = 0; row < c->rows; row++) {
        const size_t b = row / c->shape.length, token = row % c->shape.length;
        size_t start = 0;
        for (const size_t *next = c->shape.documents; *next && *next + b <= token; next++)
            start = *next + b;
        ((int32_t *)c->starts.data)[row] = (int32_t)start;
    }
}

static inline buffer case_matrix(const attention_case *c, int tensor)
{
    return tensor == V ? c->v : c->qk;
}

/* q, k and v are random up to `size`, dout up to 1. */
static inline attention_case case_make(attention_shape s, tide_dtype dtype, double size)
{
    attention_case made = {.shape = s, .rows = s.batch * s.length, .width = s.heads * s.head_width};
    case_lay_out(&made);
    made.qk = buffer_of(made.rows * made.x[Q].row, dtype);
    made.v = s.v_apart ? buffer_of(made.rows * made.x[V].row, dtype) : made.qk;
    for (int tensor = Q; tensor < TENSORS; tensor++) {
        const size_t elements = made.rows * made.x[tensor].width;
        const buffer matrix = case_matrix(&made, tensor);
        made.values[tensor] = malloc(elements * sizeof(double));
        assert_non_null(made.values[tensor]);
        for (size_t i = 0; i < elements; i++) {
            buffer_set(matrix, part_index(made.x[tensor], i), size * random_value());
            made.values[tensor][i] = buffer_get(matrix, part_index(made.x[tensor], i));
        }
    }
    if (s.documents)
        case_begin_documents(&made);
    made.out = buffer_of(made.rows * made.width, dtype);
    made.logsumexp = buffer_of(made.rows * s.heads, TIDE_DTYPE_FP32);
    made.dout = buffer_random(made.rows * made.width, dtype, 1.0);
    made.dqkv = buffer_of(made.rows * made.dx[Q].row, dtype);
    made.g = buffer_values(made.dout);
    return made;
}

static inline void case_free(attention_case *freed)
{
    buffers_free(freed->qk, freed->out, freed->logsumexp, freed->dout, freed->dqkv);
    if (freed->shape.v_apart)
        buffer_free(freed->v);
    buffer_free(freed->starts);
    double *all[] = {freed->values[Q], freed->values[K], freed->values[V], freed->g, freed->y, freed->l};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* ---- running the kernels ---- */

static inline void *part_pointer(buffer matrix, attention_part part)
{
    return (char *)matrix.data + part.first * tide_dtype_bytes(matrix.dtype);
}

static inline tide_attention_args case_forward_args(const attention_case *c)
{
    return (tide_attention_args){.q = part_pointer(c->qk, c->x[Q]),
                                 .k = part_pointer(c->qk, c->x[K]),
                                 .v = part_pointer(c->v, c->x[V]),
                                 .starts = c->starts.data,
                                 .out = c->out.data,
                                 .logsumexp = c->logsumexp.data,
                                 .batch = c->shape.batch,
                                 .sequence_length = c->shape.length,
                                 .heads = c->shape.heads,
                                 .kv_heads = c->shape.kv_heads,
                                 .head_width = c->shape.head_width,
                                 .qk_row = c->x[Q].row,
                                 .v_row = c->x[V].row,
                                 .dtype = c->qk.dtype};
}

static inline tide_attention_backward_args case_backward_args(const attention_case *c)
{
    return (tide_attention_backward_args){.q = part_pointer(c->qk, c->x[Q]),
                                          .k = part_pointer(c->qk, c->x[K]),
                                          .v = part_pointer(c->v, c->x[V]),
                                          .out = c->out.data,
                                          .dout = c->dout.data,
                                          .starts = c->starts.data,
                                          .logsumexp = c->logsumexp.data,
                                          .dq = part_pointer(c->dqkv, c->dx[Q]),
                                          .dk = part_pointer(c->dqkv, c->dx[K]),
                                          .dv = part_pointer(c->dqkv, c->dx[V]),
                                          .batch = c->shape.batch,
                                          .sequence_length = c->shape.length,
                                          .heads = c->shape.heads,
                                          .kv_heads = c->shape.kv_heads,
                                          .head_width = c->shape.head_width,
                                          .qk_row = c->x[Q].row,
                                          .v_row = c->x[V].row,
                                          .dqkv_row = c->dx[Q].row,
                                          .dtype = c->qk.dtype};
}

static inline void run_forward(const tide_kernels *kernels, const attention_case *c)
{
    tide_attention_args args = case_forward_args(c);
    buffer workspace = buffer_bytes(kernels->attention_workspace_bytes(&args));
    args.workspace = workspace.data;
    args.workspace_bytes = workspace.bytes;
    run_kernel(kernels->attention, &args);
    buffer_free(workspace);
}

/* Call run_forward() first: backward reads its out and logsumexp. */
static inline void run_backward(const tide_kernels *kernels, const attention_case *c)
{
    tide_attention_backward_args args = case_backward_args(c);
    buffer workspace = buffer_bytes(kernels->attention_backward_workspace_bytes(&args));
    args.workspace = workspace.data;
    args.workspace_bytes = workspace.bytes;
    run_kernel(kernels->attention_backward, &args);
    buffer_free(workspace);
}

static inline void run_both(const tide_kernels *kernels, const attention_case *c)
{
    run_forward(kernels, c);
    run_backward(kernels, c);
}

/* Poisons the results as they were before any kernel ran. */
static inline void case_forget_results(const attention_case *c)
{
    buffer results[] = {c->out, c->logsumexp, c->dqkv};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        memset(results[i].data, POISON, results[i].bytes);
}

/* ---- expected results ---- */

static inline double score(const attention_case *c, size_t b, size_t head, size_t query, size_t key)
{
    const double *q = case_values(c, Q, b, head, query), *k = case_values(c, K, b, head, key);
    double sum = 0.0;
    for (size_t i = 0; i < c->shape.head_width; i++)
        sum += q[i] * k[i];
    return sum / sqrt((double)c->shape.head_width);
}

/* The reference for one query of one head: sets its row of y and its l, by the formula in the plainest
 * order. */
static inline void attend_reference(const attention_case *c, size_t b, size_t head, size_t query, double *y,
                                    double *l)
{
    const size_t d = c->shape.head_width;
    double sum = 0.0;
    for (size_t i = 0; i < d; i++)
        y[i] = 0.0;
    for (size_t key = case_start(c, b, query); key <= query; key++) {
        const double weight = exp(score(c, b, head, query, key)), *v = case_values(c, V, b, head, key);
        sum += weight;
        for (size_t i = 0; i < d; i++)
            y[i] += weight * v[i];
    }
    for (size_t i = 0; i < d; i++)
        y[i] /= sum;
    *l = log(sum);
}

static inline void case_reference(attention_case *c)
{
    const attention_shape s = c->shape;
    c->y = malloc(c->rows * c->width * sizeof(double));
    c->l = malloc(c->rows * s.heads * sizeof(double));
    assert_true(c->y && c->l);
    for (size_t b = 0; b < s.batch; b++)
        for (size_t head = 0; head < s.heads; head++)
            for (size_t t = 0; t < s.length; t++)
                attend_reference(c, b, head, t, c->y + case_index_in_out(c, b, head, t),
                                 c->l + case_index_in_logsumexp(c, b, head, t));
}

/* Adds to dx the contributions of one query of one head, with all keys that it sees, to the three
 * gradients. `y` is forward's out. */
static inline void attend_backward_reference(const attention_case *c, size_t b, size_t head, size_t query,
                                             const double *y, double *dx[TENSORS])
{
    const size_t d = c->shape.head_width;
    const double *g = c->g + case_index_in_out(c, b, head, query), *q = case_values(c, Q, b, head, query);
    const double l = c->l[case_index_in_logsumexp(c, b, head, query)], scale = 1.0 / sqrt((double)d);
    double *dq = dx[Q] + (q - c->values[Q]);
    y += case_index_in_out(c, b, head, query);
    for (size_t key = case_start(c, b, query); key <= query; key++) {
        const double *k = case_values(c, K, b, head, key), *v = case_values(c, V, b, head, key);
        double *dk = dx[K] + (k - c->values[K]), *dv = dx[V] + (v - c->values[V]);
        const double weight = exp(score(c, b, head, query, key) - l);
        double difference = 0.0;
        for (size_t i = 0; i < d; i++)
            difference += g[i] * (v[i] - y[i]);
        for (size_t i = 0; i < d; i++) {
            dq[i] += scale * weight * difference * k[i];
            dk[i] += scale * weight * difference * q[i];
            dv[i] += weight * g[i];
        }
    }
}

/* Compares dq, dk and dv with float64 gradients computed from forward's rounded out. Allowed for each
 * tensor: `tolerance` times its largest element, plus the fp32 rounding of the largest element of all
 * three. */
static inline void case_check_gradients(const attention_case *c, double tolerance)
{
    const attention_shape s = c->shape;
    double *dx[TENSORS], *y = buffer_values(c->out), largest[TENSORS] = {0.0}, largest_of_all = 0.0;
    for (int tensor = Q; tensor < TENSORS; tensor++) {
        dx[tensor] = calloc(c->rows * c->x[tensor].width, sizeof(double));
        assert_non_null(dx[tensor]);
    }
    for (size_t b = 0; b < s.batch; b++)
        for (size_t head = 0; head < s.heads; head++)
            for (size_t t = 0; t < s.length; t++)
                attend_backward_reference(c, b, head, t, y, dx);
    for (int tensor = Q; tensor < TENSORS; tensor++) {
        for (size_t i = 0; i < c->rows * c->x[tensor].width; i++)
            largest[tensor] = fmax(largest[tensor], fabs(dx[tensor][i]));
        largest_of_all = fmax(largest_of_all, largest[tensor]);
    }
    for (int tensor = Q; tensor < TENSORS; tensor++) {
        for (size_t i = 0; i < c->rows * c->x[tensor].width; i++)
            assert_near(c->dqkv, part_index(c->dx[tensor], i), dx[tensor][i],
                        tolerance * largest[tensor] + 1e-6 * largest_of_all);
        free(dx[tensor]);
    }
    free(y);
}

/* Checks that no kernel has written to the gaps between the rows of dqkv. */
static inline void case_check_gaps(const attention_case *c)
{
    const size_t row = c->dx[Q].row, used = row - c->shape.gap,
                 element_bytes = tide_dtype_bytes(c->dqkv.dtype);
    for (size_t r = 0; r < c->rows; r++)
        for (size_t i = (r * row + used) * element_bytes; i < (r + 1) * row * element_bytes; i++)
            assert_int_equal(((const unsigned char *)c->dqkv.data)[i], POISON);
}

/* Runs forward and backward and compares all results with float64. */
static inline void case_check_shape(const tide_kernels *kernels, attention_shape s, tide_dtype dtype)
{
    attention_case c = case_make(s, dtype, 1.0);
    case_reference(&c);
    run_both(kernels, &c);
    assert_close(c.out, c.y, c.rows * c.width, tolerance_with(3e-6, dtype, 1.0));
    assert_close(c.logsumexp, c.l, c.rows * c.shape.heads, 3e-6);
    case_check_gradients(&c, tolerance_with(1e-5, dtype, 4.0));
    case_check_gaps(&c);
    case_free(&c);
}

/* ---- bits ---- */

/* A copy of a case's results. */
typedef struct attention_results {
    buffer out, logsumexp, dqkv;
} attention_results;

static inline attention_results results_copy(const attention_case *c)
{
    return (attention_results){buffer_copy(c->out), buffer_copy(c->logsumexp), buffer_copy(c->dqkv)};
}

static inline void results_free(const attention_results *freed)
{
    buffers_free(freed->out, freed->logsumexp, freed->dqkv);
}

/* Runs the case again and checks that it has these results to the last bit. */
static inline void case_check_again(const tide_kernels *kernels, const attention_case *c,
                                    const attention_results *expected)
{
    case_forget_results(c);
    run_both(kernels, c);
    assert_same_bits(c->out, expected->out);
    assert_same_bits(c->logsumexp, expected->logsumexp);
    assert_same_bits(c->dqkv, expected->dqkv);
}

/* Whether a test spoils the element at `row` and `column` of a tensor that has columns for each head of
 * queries or, otherwise, for each head of keys. */
typedef bool case_is_spoilt(const attention_case *c, bool of_queries, size_t row, size_t column);

static inline void case_spoil(const attention_case *c, buffer matrix, attention_part part, bool of_queries,
                              case_is_spoilt *is_spoilt, double with)
{
    for (size_t i = 0; i < c->rows * part.width; i++)
        if (is_spoilt(c, of_queries, i / part.width, i % part.width))
            buffer_set(matrix, part_index(part, i), with * ((double)(i * 7 % 3) - 1.0));
}

static inline void case_check_others(const attention_case *c, buffer after, buffer before,
                                     attention_part part, bool of_queries, case_is_spoilt *is_spoilt)
{
    for (size_t i = 0; i < c->rows * part.width; i++) {
        const size_t at = part_index(part, i);
        if (!is_spoilt(c, of_queries, i / part.width, i % part.width) &&
            !(buffer_get(after, at) == buffer_get(before, at)))
            fail_msg("head width %zu, row %zu, column %zu: %g, was %g", c->shape.head_width, i / part.width,
                     i % part.width, buffer_get(after, at), buffer_get(before, at));
    }
}

/* Overwrites the spoilt elements of all inputs with 0, `with` and -`with`, and checks that every result
 * that is not spoilt keeps its bits. */
static inline void case_check_spoilt(const tide_kernels *kernels, attention_shape s, tide_dtype dtype,
                                     case_is_spoilt *is_spoilt, double with)
{
    attention_case c = case_make(s, dtype, 1.0);
    const attention_part dense = {0, c.width, c.width};
    run_both(kernels, &c);
    const attention_results before = results_copy(&c);
    for (int tensor = Q; tensor < TENSORS; tensor++)
        case_spoil(&c, case_matrix(&c, tensor), c.x[tensor], tensor == Q, is_spoilt, with);
    case_spoil(&c, c.dout, dense, true, is_spoilt, with);
    case_forget_results(&c);
    run_both(kernels, &c);
    case_check_others(&c, c.out, before.out, dense, true, is_spoilt);
    for (int tensor = Q; tensor < TENSORS; tensor++)
        case_check_others(&c, c.dqkv, before.dqkv, c.dx[tensor], tensor == Q, is_spoilt);
    for (size_t i = 0; i < c.rows * s.heads; i++) {
        const size_t row = i / s.heads, head = i % s.heads;
        const size_t at = case_index_in_logsumexp(&c, row / s.length, head, row % s.length);
        if (!is_spoilt(&c, true, row, head * s.head_width))
            assert_true(buffer_get(c.logsumexp, at) == buffer_get(before.logsumexp, at));
    }
    results_free(&before);
    case_free(&c);
}

/* ---- finite differences ---- */

/* sum(dout x out) over query heads `first` to `last` - 1 and the rows of sequence b from token `from` on:
 * a value of token `from` affects no other rows. */
static inline double case_objective(const attention_case *c, size_t b, size_t first, size_t last, size_t from)
{
    const size_t d = c->shape.head_width;
    double *y = malloc(d * sizeof *y), l, sum = 0.0;
    assert_non_null(y);
    for (size_t head = first; head < last; head++)
        for (size_t t = from; t < c->shape.length; t++) {
            attend_reference(c, b, head, t, y, &l);
            for (size_t i = 0; i < d; i++)
                sum += c->g[case_index_in_out(c, b, head, t) + i] * y[i];
        }
    free(y);
    return sum;
}

/* The slope of the objective along element `at` of a tensor. */
static inline double case_slope(const attention_case *c, int tensor, size_t at)
{
    const size_t row = at / c->x[tensor].width, head = at % c->x[tensor].width / c->shape.head_width;
    const size_t b = row / c->shape.length, token = row % c->shape.length;
    const size_t group = tensor == Q ? 1 : c->shape.heads / c->shape.kv_heads;
    const double step = 1e-4, kept = c->values[tensor][at];
    c->values[tensor][at] = kept + step;
    const double above = case_objective(c, b, head * group, (head + 1) * group, token);
    c->values[tensor][at] = kept - step;
    const double below = case_objective(c, b, head * group, (head + 1) * group, token);
    c->values[tensor][at] = kept;
    return (above - below) / (2 * step);
}

/* Compares every element of the gradients of q, k and v with finite differences. Forward rounds the saved
 * output, from which backward computes the softmax's mean, to bf16, by up to half of 1/256, or to fp16, by
 * half of 1/2048. */
static inline void case_check_slopes(const tide_kernels *kernels, attention_shape s, tide_dtype dtype)
{
    const double tolerances[TEST_DTYPES] = {1e-5, 4e-3, 5e-4};
    attention_case c = case_make(s, dtype, 1.0);
    run_both(kernels, &c);
    const size_t elements = c.rows * (c.x[Q].width + 2 * c.x[K].width);
    double *expected = doubles(elements);
    buffer actual = buffer_of(elements, dtype);
    for (size_t tensor = Q, n = 0; tensor < TENSORS; tensor++)
        for (size_t i = 0; i < c.rows * c.x[tensor].width; i++, n++) {
            expected[n] = case_slope(&c, (int)tensor, i);
            buffer_set(actual, n, buffer_get(c.dqkv, part_index(c.dx[tensor], i)));
        }
    assert_close(actual, expected, elements, tolerance_with(tolerances[dtype], dtype, 4.0));
    buffer_free(actual);
    free(expected);
    case_free(&c);
}

#endif
