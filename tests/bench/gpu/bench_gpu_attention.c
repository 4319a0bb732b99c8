/* Attention, forward and backward: short and long sequences, heads of both widths, against the large product. */
#include "tests/bench/gpu/bench_gpu.h"

#include <stdio.h>

static size_t fitting(const bench_gpu_rig *rig, size_t workspace_bytes)
{
    if (workspace_bytes > rig->sizes.part_bytes)
        bench_die("attention needs a workspace of %zu bytes, more than there is", workspace_bytes);
    return workspace_bytes;
}

static void forward_measure(const bench_gpu_rig *rig, const char *name, size_t length, size_t heads,
                            size_t width)
{
    const char *qkv = bench_gpu_part(rig, 0);
    const size_t model_width = heads * width, tensor_bytes = model_width * tide_dtype_bytes(TIDE_DTYPE_BF16);
    tide_attention_args args = {.q = qkv,
                                .k = qkv + tensor_bytes,
                                .v = qkv + 2 * tensor_bytes,
                                .out = bench_gpu_part(rig, 1),
                                .logsumexp = bench_gpu_part(rig, 2),
                                .workspace = bench_gpu_part(rig, 4),
                                .batch = rig->sizes.rows / length,
                                .sequence_length = length,
                                .heads = heads,
                                .kv_heads = heads,
                                .head_width = width,
                                .qk_row = 3 * model_width,
                                .v_row = 3 * model_width,
                                .dtype = TIDE_DTYPE_BF16};
    args.workspace_bytes = fitting(rig, rig->kernels->attention_workspace_bytes(&args));
    bench_gpu_flops_figure(rig, name, rig->kernels->attention, &args, tide_attention_flops(&args));
}

/* Behind forward, whose out and logsumexp it reads. */
static void backward_measure(const bench_gpu_rig *rig, const char *name, size_t length, size_t heads,
                             size_t width)
{
    const char *qkv = bench_gpu_part(rig, 0);
    char *dqkv = bench_gpu_part(rig, 5);
    const size_t model_width = heads * width, tensor_bytes = model_width * tide_dtype_bytes(TIDE_DTYPE_BF16);
    tide_attention_backward_args args = {.q = qkv,
                                         .k = qkv + tensor_bytes,
                                         .v = qkv + 2 * tensor_bytes,
                                         .out = bench_gpu_part(rig, 1),
                                         .dout = bench_gpu_part(rig, 3),
                                         .logsumexp = bench_gpu_part(rig, 2),
                                         .dq = dqkv,
                                         .dk = dqkv + tensor_bytes,
                                         .dv = dqkv + 2 * tensor_bytes,
                                         .workspace = bench_gpu_part(rig, 4),
                                         .batch = rig->sizes.rows / length,
                                         .sequence_length = length,
                                         .heads = heads,
                                         .kv_heads = heads,
                                         .head_width = width,
                                         .qk_row = 3 * model_width,
                                         .v_row = 3 * model_width,
                                         .dqkv_row = 3 * model_width,
                                         .dtype = TIDE_DTYPE_BF16};
    args.workspace_bytes = fitting(rig, rig->kernels->attention_backward_workspace_bytes(&args));
    bench_gpu_flops_figure(rig, name, rig->kernels->attention_backward, &args,
                           tide_attention_backward_flops(&args));
}

void bench_gpu_attention(const bench_gpu_rig *rig)
{
    const size_t lengths[] = {rig->sizes.length, rig->sizes.long_length};
    const size_t heads[] = {rig->sizes.heads, rig->sizes.wide_heads}, widths[] = {64, 128};
    for (int i = 0; i < 4; i++) {
        char name[96];
        (void)snprintf(name, sizeof name, "attention, T = %zu, heads of %zu", lengths[i / 2], widths[i % 2]);
        forward_measure(rig, name, lengths[i / 2], heads[i % 2], widths[i % 2]);
        (void)snprintf(name, sizeof name, "attention backward, T = %zu, heads of %zu", lengths[i / 2],
                       widths[i % 2]);
        backward_measure(rig, name, lengths[i / 2], heads[i % 2], widths[i % 2]);
    }
}
