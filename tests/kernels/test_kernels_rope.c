/* Rotary positions: the kernel rotates every head of a row by the angles of its position, in place. The
 * rows hold other elements as well, which it must not touch. Results are compared with float64. */
#include "tests/kernels/test_kernels.h"
#include "tests/support/test_thin.h"

typedef struct shape {
    size_t rows, sequence_length, heads, head_width;
    /* elements of a row before the first head and behind the last one */
    size_t before, behind;
} shape;

/* One sequence, several, and several of which the last is incomplete; heads that are multiples of a
 * vector, heads whose halves are not, heads of a single pair. The last has more rows than the GPU's grid. */
static const shape shapes[] = {{1, 1, 1, 2, 0, 0},    {5, 5, 3, 2, 0, 0},     {21, 7, 5, 6, 0, 3},
                               {12, 4, 3, 64, 0, 0},  {30, 9, 2, 64, 64, 64}, {7, 7, 1, 128, 8, 16},
                               {10, 5, 7, 10, 10, 1}, {9, 3, 1, 48, 24, 0},   {64, 32, 1, 16, 0, 40},
                               {6, 3, 3, 254, 0, 0},  {8, 8, 4, 80, 0, 1},    {66001, 5, 1, 2, 0, 0}};
enum { SHAPES = sizeof shapes / sizeof shapes[0], SMALL_SHAPES = SHAPES - 1 };

typedef struct rope_case {
    shape shape;
    size_t row;
    buffer data, table, starts; /* starts: without data, each sequence is one document */
    double *x, *t;
} rope_case;

/* The angles are those of models: position x 10000^(-2 i / width). The elements beside the heads are
 * poisoned. */
static rope_case case_make(shape s, bool documents, tide_dtype dtype)
{
    rope_case made = {.shape = s, .row = s.before + s.heads * s.head_width + s.behind};
    if (documents)
        made.starts = some_starts(s.rows, s.sequence_length);
    made.data = buffer_of(s.rows * made.row, dtype);
    made.table = buffer_of(s.sequence_length * s.head_width, TIDE_DTYPE_FP32);
    for (size_t i = 0; i < s.rows * made.row; i++)
        if (i % made.row >= s.before && i % made.row < made.row - s.behind)
            buffer_set(made.data, i, 3.0 * random_value());
    for (size_t i = 0; i < s.sequence_length * s.head_width; i++) {
        const size_t half = s.head_width / 2, column = i % s.head_width;
        const double angle = (double)(i / s.head_width) * pow(1e4, -(double)(column % half) / (double)half);
        buffer_set(made.table, i, column < half ? cos(angle) : sin(angle));
    }
    made.x = buffer_values(made.data);
    made.t = buffer_values(made.table);
    return made;
}

static void case_free(rope_case *freed)
{
    buffers_free(freed->data, freed->table, freed->starts);
    free(freed->x);
    free(freed->t);
}

static void turn(const tide_kernels *kernels, const rope_case *c, bool backward)
{
    run_kernel(kernels->rope, &(tide_rope_args){.data = (char *)c->data.data +
                                                        c->shape.before * tide_dtype_bytes(c->data.dtype),
                                                .table = c->table.data,
                                                .starts = c->starts.data,
                                                .rows = c->shape.rows,
                                                .sequence_length = c->shape.sequence_length,
                                                .heads = c->shape.heads,
                                                .head_width = c->shape.head_width,
                                                .row = c->row,
                                                .backward = backward,
                                                .dtype = c->data.dtype});
}

/* The index in the matrix of element i of the heads, counted over all heads of all rows. */
static size_t element(const rope_case *c, size_t i)
{
    const size_t used = c->shape.heads * c->shape.head_width;
    return i / used * c->row + c->shape.before + i % used;
}

static size_t elements(const rope_case *c)
{
    return c->shape.rows * c->shape.heads * c->shape.head_width;
}

/* The expected value of element i of the heads after the rotation. */
static double rotated(const rope_case *c, size_t i, bool backward)
{
    const size_t width = c->shape.head_width, half = width / 2, column = i % width;
    const size_t position =
        tide_row_position(c->starts.data, element(c, i) / c->row, c->shape.sequence_length);
    const double cosine = c->t[position * width + column % half];
    const double sine = (backward ? -1.0 : 1.0) * c->t[position * width + half + column % half];
    const double x = c->x[element(c, i)];
    return column < half ? x * cosine - c->x[element(c, i + half)] * sine
                         : x * cosine + c->x[element(c, i - half)] * sine;
}

/* Checks that the elements beside the heads are still poisoned. */
static void assert_rest_untouched(const rope_case *c)
{
    const size_t element_bytes = tide_dtype_bytes(c->data.dtype);
    for (size_t i = 0; i < c->shape.rows * c->row; i++)
        for (size_t byte = 0; byte < element_bytes; byte++)
            if (i % c->row < c->shape.before || i % c->row >= c->row - c->shape.behind)
                assert_int_equal(((const unsigned char *)c->data.data)[i * element_bytes + byte], POISON);
}

static void rope_turns_every_head_as_in_float64_and_back(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < 4 * (test_large() ? SHAPES : SMALL_SHAPES); s++) {
        const bool backward = s % 2 == 1;
        rope_case c = case_make(shapes[s / 4], s / 2 % 2 == 1, dtype);
        turn(kernels, &c, backward);
        for (size_t i = 0; i < elements(&c); i++)
            assert_near(c.data, element(&c, i), rotated(&c, i, backward), 1e-6);
        assert_rest_untouched(&c);
        case_free(&c);
    }
}

#if TEST_ON_CPU

typedef struct threads_case {
    rope_case rope;
    buffer before;
} threads_case;

static void turn_copy(const void *of)
{
    const threads_case *c = of;
    memcpy(c->rope.data.data, c->before.data, c->before.bytes);
    turn(tide_kernels_cpu(), &c->rope, false);
}

static void rope_keeps_its_bits_for_any_thread_count(void **state)
{
    threads_case c = {.rope = case_make((shape){301, 100, 5, 42, 0, 7}, true, TIDE_DTYPE_BF16)};
    c.before = buffer_copy(c.rope.data);
    check_thread_counts(turn_copy, &c, &c.rope.data, 1);
    buffer_free(c.before);
    case_free(&c.rope);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        each_configuration(rope_turns_every_head_as_in_float64_and_back),
#if TEST_ON_CPU
        cmocka_unit_test(rope_keeps_its_bits_for_any_thread_count),
#endif
    };
    return RUN_KERNEL_TESTS(tests);
}
