/* Matrix products through oneDNN, versions 2 and 3, on machines with AVX-512 or AMX; bf16 products only if
 * the machine has instructions for bf16.
 *
 * oneDNN generates code for a shape once and runs it many times. tide_onednn_prepare makes a plan for a
 * shape; a launch finds the plan by its shape. A plan owns oneDNN's primitive and memory objects; a launch
 * only sets the addresses in these objects. Scratch memory is the caller's workspace. A launch thus allocates
 * nothing in our code, but dnnl_primitive_execute makes and frees its map of operands at each call: six or
 * seven allocations of together 300 bytes (2.6, both dtypes).
 *
 * Some products are declined: their plan is empty, and the built-in product (blocked.c) makes them, which
 * converts bf16 to fp32 in the workspace. The choice depends on shape and machine alone and is made by
 * tide_onednn_prepare. Declined are
 *
 * - all products if oneDNN may not use AVX-512: version 2 then multiplies bf16 in a reference loop, and its
 *   fp32 product allocates up to 4 MiB at each call, which no budget counts, and is at best a sixth faster
 *   than ours;
 * - bf16 products on a machine with AVX-512 but without bf16 instructions: version 2 emulates these,
 *   allocates in each thread at each call, and reached 22 GFLOP/s where the built-in product reaches 94 to
 *   116 (a Xeon of 2019's kind, two cores);
 * - fp16 products: version 2 has none, and version 3 only with AVX512-FP16;
 * - products that oneDNN does not have.
 *
 * Products of one row never come here (row_matmul.c).
 *
 * oneDNN splits work by the thread count of the calling thread's OpenMP runtime, which the code sets
 * before each run. Even a build without OpenMP can set it, since oneDNN links the runtime.
 *
 * One lock guards the list of plans. A launch holds it while the plan runs, since the plan's memory objects
 * serve one run at a time. */
#include "kernels/cpu/matmul_onednn.h"
#include "base/team.h"
#include "kernels/cpu/onednn_version.h"
#include "kernels/matmul_shape.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* Weak: absent if oneDNN was built with another threading runtime than OpenMP. */
extern void omp_set_num_threads(int threads) __attribute__((weak));

typedef struct matmul_plan {
    struct matmul_plan *next;
    tide_matmul_args shape; /* pointers and workspace_bytes not used */
    bool declined;          /* the members below are not set */
    size_t workspace_bytes;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, bias, c, scratch; /* bias: NULL if the product has none */
} matmul_plan;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static matmul_plan *plans;   /* guarded by lock */
static dnnl_engine_t engine; /* guarded by lock; made at the first prepare, kept */
static dnnl_stream_t stream; /* guarded by lock; made at the first prepare, kept */

/* ---- the library ---- */

static bool isa_has(dnnl_cpu_isa_t isa)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)isa) == (unsigned)isa;
}

tide_cpu_isa tide_onednn_most_isa(void)
{
    if (isa_has(dnnl_cpu_isa_avx512_core))
        return TIDE_CPU_ISA_AVX512;
    return isa_has(dnnl_cpu_isa_avx2) ? TIDE_CPU_ISA_AVX2 : TIDE_CPU_ISA_PORTABLE;
}

/* Does the machine have the instructions without which the code declines oneDNN? See the top of this file. */
static bool library_wanted(tide_dtype in_dtype)
{
    if (in_dtype == TIDE_DTYPE_FP16)
        return false;
    return isa_has(in_dtype == TIDE_DTYPE_BF16 ? dnnl_cpu_isa_avx512_core_bf16 : dnnl_cpu_isa_avx512_core);
}

static tide_status library_fail(const tide_matmul_args *shape, dnnl_status_t status, const char *doing)
{
    const tide_status code = status == dnnl_out_of_memory ? TIDE_ERROR_NO_MEMORY : TIDE_ERROR_DEVICE;
    return tide_fail(code, "matmul of %zu x %zu x %zu: oneDNN failed %s it (status %d)", shape->m, shape->n,
                     shape->k, doing, (int)status);
}

static void use_threads(void)
{
    if (omp_set_num_threads)
        omp_set_num_threads(tide_team_threads());
}

static dnnl_status_t library_open(void)
{
    dnnl_status_t status = dnnl_success;
    if (!engine)
        status = dnnl_engine_create(&engine, dnnl_cpu, 0);
    if (status == dnnl_success && !stream)
        status = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    return status;
}

/* ---- plans ---- */

/* For a gradient of a weight that is not accumulated (A^T B in fp32) the code zeroes C and then adds the
 * product. Without accumulation oneDNN splits the sum in other places and keeps partial sums in C, which
 * gives other bits than accumulating. */
static bool adds_to_zeros(const tide_matmul_args *args)
{
    return args->transpose_a && args->out_dtype == TIDE_DTYPE_FP32 && !args->has_bias && !args->accumulate &&
           args->ldc == args->n;
}

/* The shape of the product that oneDNN makes for these arguments. */
static tide_matmul_args library_shape(const tide_matmul_args *args)
{
    tide_matmul_args shape = *args;
    shape.accumulate = args->accumulate || adds_to_zeros(args);
    return shape;
}

static matmul_plan *plan_find(const tide_matmul_args *shape)
{
    for (matmul_plan *plan = plans; plan; plan = plan->next)
        if (tide_matmul_shapes_equal(&plan->shape, shape))
            return plan;
    return NULL;
}

static void memory_destroy(dnnl_memory_t memory)
{
    if (memory)
        dnnl_memory_destroy(memory);
}

static void plan_destroy(matmul_plan *plan)
{
    memory_destroy(plan->scratch);
    memory_destroy(plan->c);
    memory_destroy(plan->bias);
    memory_destroy(plan->b);
    memory_destroy(plan->a);
    if (plan->primitive)
        dnnl_primitive_destroy(plan->primitive);
    free(plan);
}

static dnnl_data_type_t type_of(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* The matrices of a product as oneDNN describes them. */
typedef struct product_matrices {
    matrix_description a, b, bias, c;
} product_matrices;

/* Describe op(M)[rows, columns]; M is stored with leading dimension ld, with `transposed` as [columns,
 * rows]. */
static dnnl_status_t describe_operand(matrix_description *description, size_t rows, size_t columns, size_t ld,
                                      bool transposed, tide_dtype dtype)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
    const dnnl_dims_t row_major = {(dnnl_dim_t)ld, 1}, column_major = {1, (dnnl_dim_t)ld};
    return describe(description, dims, transposed ? column_major : row_major, type_of(dtype));
}

static dnnl_status_t describe_matrices(product_matrices *matrices, const tide_matmul_args *shape)
{
    dnnl_status_t status =
        describe_operand(&matrices->a, shape->m, shape->k, shape->lda, shape->transpose_a, shape->in_dtype);
    if (status == dnnl_success)
        status = describe_operand(&matrices->b, shape->k, shape->n, shape->ldb, shape->transpose_b,
                                  shape->in_dtype);
    if (status == dnnl_success && shape->has_bias)
        status = describe_operand(&matrices->bias, 1, shape->n, shape->n, false, shape->in_dtype);
    if (status == dnnl_success)
        status = describe_operand(&matrices->c, shape->m, shape->n, shape->ldc, false, shape->out_dtype);
    return status;
}

static void describe_matrices_undo(product_matrices *matrices)
{
    describe_undo(&matrices->a);
    describe_undo(&matrices->b);
    describe_undo(&matrices->bias);
    describe_undo(&matrices->c);
}

/* Attributes of a product: the caller passes scratch memory; with `accumulate` the product is added to C. */
static dnnl_status_t attributes_create(dnnl_primitive_attr_t *attributes, bool accumulate)
{
    dnnl_post_ops_t operations = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attributes);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(*attributes, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || !accumulate)
        return status;
    status = dnnl_post_ops_create(&operations);
    if (status == dnnl_success)
        status = append_sum(operations);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(*attributes, operations);
    if (operations)
        dnnl_post_ops_destroy(operations);
    return status;
}

static dnnl_status_t plan_fill(matmul_plan *plan, const product_matrices *matrices,
                               const_dnnl_primitive_desc_t product)
{
    dnnl_status_t status = dnnl_primitive_create(&plan->primitive, product);
    if (status == dnnl_success)
        status = matrix_create(&plan->a, engine, &matrices->a);
    if (status == dnnl_success)
        status = matrix_create(&plan->b, engine, &matrices->b);
    if (status == dnnl_success && plan->shape.has_bias)
        status = matrix_create(&plan->bias, engine, &matrices->bias);
    if (status == dnnl_success)
        status = matrix_create(&plan->c, engine, &matrices->c);
    if (status == dnnl_success)
        status = scratch_create(&plan->scratch, engine, product, &plan->workspace_bytes);
    return status;
}

/* Make oneDNN's objects of a plan; dnnl_unimplemented if oneDNN has no such product. */
static dnnl_status_t plan_build(matmul_plan *plan)
{
    product_matrices matrices = {0};
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t product = NULL;
    dnnl_status_t status = describe_matrices(&matrices, &plan->shape);
    if (status == dnnl_success)
        status = attributes_create(&attributes, plan->shape.accumulate);
    if (status == dnnl_success)
        status = product_describe(&product, engine, &matrices.a, &matrices.b,
                                  plan->shape.has_bias ? &matrices.bias : NULL, &matrices.c, attributes);
    if (status == dnnl_success)
        status = plan_fill(plan, &matrices, product);
    if (product)
        dnnl_primitive_desc_destroy(product);
    if (attributes)
        dnnl_primitive_attr_destroy(attributes);
    describe_matrices_undo(&matrices);
    return status;
}

static tide_status plan_create(const tide_matmul_args *shape, matmul_plan **result)
{
    matmul_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "matmul of %zu x %zu x %zu: no memory for its plan", shape->m,
                         shape->n, shape->k);
    plan->shape = *shape;
    dnnl_status_t status = library_open();
    if (status == dnnl_success)
        status = library_wanted(shape->in_dtype) ? plan_build(plan) : dnnl_unimplemented;
    plan->declined = status == dnnl_unimplemented;
    if (status != dnnl_success && !plan->declined) {
        plan_destroy(plan);
        return library_fail(shape, status, "preparing");
    }
    *result = plan;
    return TIDE_OK;
}

tide_status tide_onednn_prepare(const tide_matmul_args *args, size_t *workspace_bytes)
{
    tide_status status = TIDE_OK;
    assert(!tide_matmul_shape_fault(args) && args->gelu == TIDE_MATMUL_GELU_NONE);
    const tide_matmul_args shape = library_shape(args);
    pthread_mutex_lock(&lock);
    matmul_plan *plan = plan_find(&shape);
    if (!plan) {
        use_threads();
        status = plan_create(&shape, &plan);
        if (status == TIDE_OK) {
            plan->next = plans;
            plans = plan;
        }
    }
    if (status == TIDE_OK && !plan->declined)
        *workspace_bytes = plan->workspace_bytes;
    pthread_mutex_unlock(&lock);
    return status;
}

void tide_onednn_forget(void)
{
    pthread_mutex_lock(&lock);
    while (plans) {
        matmul_plan *plan = plans;
        plans = plan->next;
        plan_destroy(plan);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- running ---- */

/* oneDNN takes the addresses of inputs without const, too, but does not write to them. */
static dnnl_status_t point_at(dnnl_memory_t memory, const void *address)
{
    return dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)address);
}

static dnnl_status_t plan_point(const matmul_plan *plan, const tide_matmul_args *args)
{
    dnnl_status_t status = point_at(plan->a, args->a);
    if (status == dnnl_success)
        status = point_at(plan->b, args->b);
    if (status == dnnl_success && plan->bias)
        status = point_at(plan->bias, args->bias);
    if (status == dnnl_success)
        status = point_at(plan->c, args->c);
    if (status == dnnl_success)
        status = point_at(plan->scratch, args->workspace);
    return status;
}

static tide_status plan_run(const matmul_plan *plan, const tide_matmul_args *args, tide_kernel zero)
{
    const dnnl_exec_arg_t operands[] = {
        {DNNL_ARG_SRC, plan->a},     {DNNL_ARG_WEIGHTS, plan->b},
        {DNNL_ARG_DST, plan->c},     {DNNL_ARG_SCRATCHPAD, plan->scratch},
        {DNNL_ARG_BIAS, plan->bias}, /* last: left out without a bias */
    };
    dnnl_status_t status = plan_point(plan, args);
    if (status == dnnl_success && adds_to_zeros(args)) {
        const tide_zero_args whole = {.data = args->c, .bytes = args->m * args->n * sizeof(float)};
        const tide_status zeroed = zero(NULL, &whole);
        if (zeroed != TIDE_OK)
            return zeroed;
    }
    use_threads();
    if (status == dnnl_success)
        status = dnnl_primitive_execute(plan->primitive, stream, plan->bias ? 5 : 4, operands);
    if (status == dnnl_success)
        status = dnnl_stream_wait(stream);
    return status == dnnl_success ? TIDE_OK : library_fail(args, status, "running");
}

tide_status tide_onednn_matmul(const tide_matmul_args *args, tide_kernel zero, bool *declined)
{
    tide_status status = TIDE_OK;
    assert(args->a && args->b && args->c && !args->has_bias == !args->bias);
    const tide_matmul_args shape = library_shape(args);
    pthread_mutex_lock(&lock);
    const matmul_plan *plan = plan_find(&shape);
    if (!plan)
        status = tide_fail(TIDE_ERROR_STATE, "matmul of %zu x %zu x %zu was not prepared", args->m, args->n,
                           args->k);
    else if (args->workspace_bytes < plan->workspace_bytes)
        status = tide_fail(TIDE_ERROR_ARGUMENT,
                           "matmul of %zu x %zu x %zu: a workspace of %zu bytes, it needs %zu", args->m,
                           args->n, args->k, args->workspace_bytes, plan->workspace_bytes);
    else if (!plan->declined)
        status = plan_run(plan, args, zero);
    *declined = plan && plan->declined;
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- info ---- */

static const char *isa_name(void)
{
    if (isa_has(dnnl_cpu_isa_avx512_core_amx))
        return "amx";
    return isa_has(dnnl_cpu_isa_avx512_core_bf16) ? "avx512_bf16" : "avx512";
}

void tide_onednn_describe(tide_cpu_info *info)
{
    static _Thread_local char name[64];
    const dnnl_version_t *version = dnnl_version();
    if (!library_wanted(TIDE_DTYPE_FP32))
        return;
    info->bf16_native = info->bf16_matmuls = library_wanted(TIDE_DTYPE_BF16);
    snprintf(name, sizeof name, "oneDNN %d.%d.%d%s", version->major, version->minor, version->patch,
             info->bf16_native ? " (bf16, fp32), built-in (fp16)" : " (fp32), built-in (bf16, fp16)");
    info->matmul = name;
    info->matmul_isa = isa_name();
}
