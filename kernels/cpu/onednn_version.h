/* Wrappers for the calls that differ between oneDNN's versions 2 and 3: they describe a matrix, a product and
 * its scratch memory. */
#ifndef TIDEPOOL_KERNELS_CPU_ONEDNN_VERSION_H
#define TIDEPOOL_KERNELS_CPU_ONEDNN_VERSION_H

#include <stddef.h>

#include <oneapi/dnnl/dnnl.h>

typedef dnnl_memory_desc_t matrix_description;

#if DNNL_VERSION_MAJOR >= 3
static inline dnnl_status_t describe(matrix_description *description, const dnnl_dims_t dims,
                                     const dnnl_dims_t strides, dnnl_data_type_t type)
{
    return dnnl_memory_desc_create_with_strides(description, 2, dims, type, strides);
}

static inline void describe_undo(matrix_description *description)
{
    if (*description)
        dnnl_memory_desc_destroy(*description);
}

static inline dnnl_status_t matrix_create(dnnl_memory_t *memory, dnnl_engine_t engine,
                                          const matrix_description *description)
{
    return dnnl_memory_create(memory, *description, engine, DNNL_MEMORY_NONE);
}

static inline dnnl_status_t product_describe(dnnl_primitive_desc_t *product, dnnl_engine_t engine,
                                             const matrix_description *a, const matrix_description *b,
                                             const matrix_description *bias, const matrix_description *c,
                                             const_dnnl_primitive_attr_t attributes)
{
    return dnnl_matmul_primitive_desc_create(product, engine, *a, *b, bias ? *bias : NULL, *c, attributes);
}

static inline dnnl_status_t append_sum(dnnl_post_ops_t operations)
{
    return dnnl_post_ops_append_sum(operations, 1.0f, 0, dnnl_data_type_undef);
}

static inline dnnl_status_t scratch_create(dnnl_memory_t *scratch, dnnl_engine_t engine,
                                           const_dnnl_primitive_desc_t product, size_t *bytes)
{
    const const_dnnl_memory_desc_t description =
        dnnl_primitive_desc_query_md(product, dnnl_query_scratchpad_md, 0);
    *bytes = dnnl_memory_desc_get_size(description);
    return dnnl_memory_create(scratch, description, engine, DNNL_MEMORY_NONE);
}
#else
static inline dnnl_status_t describe(matrix_description *description, const dnnl_dims_t dims,
                                     const dnnl_dims_t strides, dnnl_data_type_t type)
{
    return dnnl_memory_desc_init_by_strides(description, 2, dims, type, strides);
}

static inline void describe_undo(matrix_description *description)
{
    (void)description;
}

static inline dnnl_status_t matrix_create(dnnl_memory_t *memory, dnnl_engine_t engine,
                                          const matrix_description *description)
{
    return dnnl_memory_create(memory, description, engine, DNNL_MEMORY_NONE);
}

static inline dnnl_status_t product_describe(dnnl_primitive_desc_t *product, dnnl_engine_t engine,
                                             const matrix_description *a, const matrix_description *b,
                                             const matrix_description *bias, const matrix_description *c,
                                             const_dnnl_primitive_attr_t attributes)
{
    dnnl_matmul_desc_t operation;
    const dnnl_status_t status = dnnl_matmul_desc_init(&operation, a, b, bias, c);
    return status == dnnl_success ? dnnl_primitive_desc_create(product, &operation, attributes, engine, NULL)
                                  : status;
}

static inline dnnl_status_t append_sum(dnnl_post_ops_t operations)
{
    return dnnl_post_ops_append_sum(operations, 1.0f);
}

static inline dnnl_status_t scratch_create(dnnl_memory_t *scratch, dnnl_engine_t engine,
                                           const_dnnl_primitive_desc_t product, size_t *bytes)
{
    const dnnl_memory_desc_t *description =
        dnnl_primitive_desc_query_md(product, dnnl_query_scratchpad_md, 0);
    *bytes = dnnl_memory_desc_get_size(description);
    return dnnl_memory_create(scratch, description, engine, DNNL_MEMORY_NONE);
}
#endif

#endif
