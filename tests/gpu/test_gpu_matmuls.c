/* Matmuls whose operands end, or begin, where nothing is mapped. A tensor may end with the last mapped
 * chunk. A product that reads past an operand faults here, while memory of cudaMalloc would hide the
 * error.
 *
 *     | not mapped |   A | not mapped |   B | not mapped | bias| ...
 *
 * In the first run each operand ends where its chunk ends, as drawn; in the second it begins where its
 * chunk begins.
 *
 * The test makes every kind of product that a model uses, in the shape of each layer. All numbers are 0:
 * the kernels' own tests check results. */
#include "tests/gpu/test_gpu_cases.h"
#include "tests/gpu/test_gpu_fixture.h"

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/matmul_plan.h"

#ifdef TEST_CUDA_ON_CPU
#include "tests/gpu/fake_cublaslt.h"
#endif

enum { A, B, BIAS, C, GELU_IN, WORKSPACE, OPERANDS };

typedef struct layer {
    size_t rows, in, out;
} layer;

#ifdef TEST_CUDA_ON_CPU
enum { OPERAND_BYTES = CHUNK_BYTES };
static const layer layers[] = {{24, 64, 256}, {40, 136, 72}, {17, 33, 57}, {130, 8, 264}};
#else
enum { OPERAND_BYTES = 512 << 20 };
/* Small and odd shapes; four of gpt2, four of gpt2-xl, four of llama-3.1-8b. Few enough tokens for a
 * sanitizer. */
static const layer layers[] = {
    {24, 64, 256},       {40, 136, 72},       {17, 33, 57},       {1000, 200, 328},   {1023, 1001, 999},
    {8192, 768, 2304},   {8192, 768, 768},    {8192, 768, 3072},  {8192, 3072, 768},  {4096, 1600, 4800},
    {4096, 1600, 1600},  {4096, 1600, 6400},  {4096, 6400, 1600}, {2048, 4096, 6144}, {2048, 4096, 4096},
    {2048, 4096, 28672}, {2048, 14336, 4096},
};
#endif
enum { LAYERS = sizeof layers / sizeof layers[0], LARGE_ROWS = 2048 };

typedef struct place {
    tide_device *device;
    tide_event event;
    char *range;
} place;

static place place_open(void)
{
    const tide_device_options options = {
        .device_memory_bytes = (uint64_t)OPERANDS * OPERAND_BYTES,
        .host_memory_bytes = OPERAND_BYTES,
        .chunk_bytes = OPERAND_BYTES,
        .threads = 2,
    };
    place it;
    void *range;
    assert_ok(tide_device_cuda_open(&options, 0, &it.device));
    assert_ok(it.device->ops->slots_create(it.device, TIDE_TIER_DEVICE, OPERANDS));
    assert_ok(it.device->ops->reserve(it.device, (2 * OPERANDS + 1) * (uint64_t)OPERAND_BYTES, &range));
    assert_ok(it.device->ops->event_create(it.device, &it.event));
    it.range = range;
    return it;
}

/* The operand's chunk, between two chunks' places where nothing is mapped. */
static char *chunk_of(const place *it, int operand)
{
    return it->range + (2 * (size_t)operand + 1) * OPERAND_BYTES;
}

static tide_status finished(place *it)
{
    const tide_status status = it->device->ops->event_record(it->device, it->event, TIDE_STREAM_COMPUTE);
    return status == TIDE_OK ? it->device->ops->event_wait(it->device, it->event, SITE) : status;
}

static tide_status launched(place *it, tide_kernel kernel, const void *arguments, size_t bytes)
{
    const tide_work work = {.label = "product"};
    const tide_status status =
        it->device->ops->launch(it->device, TIDE_STREAM_COMPUTE, &work, kernel, arguments, bytes);
    return status == TIDE_OK ? finished(it) : status;
}

static void chunks_map(place *it)
{
    for (int operand = 0; operand < OPERANDS; operand++) {
        const tide_zero_args zero = {.data = chunk_of(it, operand), .bytes = OPERAND_BYTES};
        assert_ok(it->device->ops->map(it->device, (uint32_t)operand, chunk_of(it, operand)));
        assert_ok(launched(it, tide_kernels_cuda()->zero, &zero, sizeof zero));
    }
}

static void place_close(place *it)
{
    assert_ok(it->device->ops->failure(it->device));
    it->device->ops->close(it->device);
}

/* --- matmuls --- */

/* An address so that `bytes` bytes end at the chunk's end, up to `alignment`, or begin at its beginning. */
static void *flush(const place *it, int operand, size_t bytes, size_t alignment, bool at_end)
{
    assert_in_range(bytes, 0, OPERAND_BYTES);
    return chunk_of(it, operand) + (at_end ? (OPERAND_BYTES - bytes) / alignment * alignment : 0);
}

static void *flush_matrix(const place *it, int operand, size_t rows, size_t ld, tide_dtype dtype, bool at_end)
{
    return flush(it, operand, rows * ld * tide_dtype_bytes(dtype), tide_cuda_matmul_row_alignment(ld, dtype),
                 at_end);
}

static void operands_place(const place *it, tide_matmul_args *args, bool at_end)
{
    const size_t a_rows = args->transpose_a ? args->k : args->m,
                 b_rows = args->transpose_b ? args->n : args->k;
    args->a = flush_matrix(it, A, a_rows, args->lda, args->in_dtype, at_end);
    args->b = flush_matrix(it, B, b_rows, args->ldb, args->in_dtype, at_end);
    args->c = flush_matrix(it, C, args->m, args->ldc, args->out_dtype, at_end);
    if (args->has_bias)
        args->bias =
            flush(it, BIAS, args->n * tide_dtype_bytes(args->in_dtype), TIDE_ALIGNMENT_BYTES, at_end);
    if (args->gelu != TIDE_MATMUL_GELU_NONE)
        args->gelu_in = flush_matrix(it, GELU_IN, args->m, args->ldc, args->out_dtype, at_end);
    args->workspace = flush(it, WORKSPACE, args->workspace_bytes, TIDE_ALIGNMENT_BYTES, at_end);
}

/* Runs a product with the given m, n, k, dtypes and flags and dense matrices. */
static void product_run(place *it, const tide_matmul_args *of)
{
    tide_matmul_args args = *of;
    args.lda = of->transpose_a ? of->m : of->k;
    args.ldb = of->transpose_b ? of->k : of->n;
    args.ldc = of->n;
    /* with A transposed it is a weight's gradient */
    args.out_dtype = of->transpose_a ? TIDE_DTYPE_FP32 : of->in_dtype;
    assert_ok(tide_cuda_matmul_prepare(&args, &args.workspace_bytes));
    for (int at_end = 1; at_end >= 0; at_end--) {
        operands_place(it, &args, at_end);
        if (launched(it, tide_cuda_matmul, &args, sizeof args) != TIDE_OK)
            fail_msg("%zu x %zu x %zu, %zu bytes a number%s%s%s%s%s, at the %s of its chunks: %s", args.m,
                     args.n, args.k, tide_dtype_bytes(args.in_dtype), args.transpose_a ? ", A^T" : "",
                     args.transpose_b ? ", B^T" : "", args.has_bias ? ", bias" : "",
                     args.accumulate ? ", added to C" : "",
                     args.gelu != TIDE_MATMUL_GELU_NONE ? ", GELU" : "", at_end ? "end" : "beginning",
                     tide_message());
    }
}

/* The products that src/model/ makes for a layer, with weights stored [in, out] and [out, in]; the logits
 * use the last four too. */
static void layer_run(place *it, const layer *of, tide_dtype dtype)
{
    const size_t rows = of->rows, in = of->in, out = of->out;
    const tide_matmul_args kinds[] = {
        {.m = rows, .n = out, .k = in, .has_bias = true},
        {.m = rows, .n = out, .k = in, .has_bias = true, .gelu = TIDE_MATMUL_GELU_FORWARD},
        {.m = rows, .n = out, .k = in, .gelu = TIDE_MATMUL_GELU_FORWARD},
        {.m = rows, .n = in, .k = out, .transpose_b = true, .gelu = TIDE_MATMUL_GELU_BACKWARD},
        {.m = in, .n = out, .k = rows, .transpose_a = true, .accumulate = true},
        {.m = in, .n = out, .k = rows, .transpose_a = true},
        {.m = rows, .n = out, .k = in, .transpose_b = true, .has_bias = true},
        {.m = rows, .n = out, .k = in, .transpose_b = true},
        {.m = rows, .n = in, .k = out},
        {.m = out, .n = in, .k = rows, .transpose_a = true, .accumulate = true},
        {.m = out, .n = in, .k = rows, .transpose_a = true},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        tide_matmul_args kind = kinds[i];
        kind.in_dtype = dtype;
        product_run(it, &kind);
    }
}

void matmuls_stay_within_their_operands(void **state)
{
#ifdef TEST_CUDA_ON_CPU
    fake_cublaslt_start();
    fake_cublaslt_enqueue = fake_cudart_enqueue;
#endif
    assert_ok(tide_cuda_matmul_open());
    place it = place_open();
    chunks_map(&it);
    for (int i = 0; i < LAYERS; i++) {
        layer_run(&it, &layers[i], TIDE_DTYPE_BF16);
        for (tide_dtype dtype = TIDE_DTYPE_FP32; dtype <= TIDE_DTYPE_FP16 && layers[i].rows < LARGE_ROWS;
             dtype++)
            if (dtype != TIDE_DTYPE_BF16)
                layer_run(&it, &layers[i], dtype);
    }
    place_close(&it);
    tide_cuda_matmul_close();
#ifdef TEST_CUDA_ON_CPU
    char text[256];
    if (fake_cublaslt_misuse(text, sizeof text) > 0 || fake_cudart_misuse(text, sizeof text) > 0)
        fail_msg("misused: %s", text);
#endif
}
