/* A generating pass: the same ops as an evaluation's, on one residual in the region. */
#include "src/model/decoder_cached.h"

#include "src/model/decoder_internal.h"

uint64_t tide_decoder_cache_bytes(const tide_decoder_options *options)
{
    return 2 * options->config.layers * tide_decoder_cache_layer_bytes(options);
}

static char *region_at(const tide_decoder *model, uint64_t offset)
{
    return (char *)tide_region(model->pool) + offset;
}

tide_status tide_decoder_cached_pass(tide_decoder *model, const int32_t *tokens, uint32_t count,
                                     uint32_t first, float *logits)
{
    const tide_decoder_options *options = &model->options;
    const tide_op_builder shape = {.sequences = count, .first = first, .position = count - 1};
    assert(tide_decoder_generates(options));
    assert((count == 1 || count == options->micro_batch_sequences) && first <= options->cache_tokens - count);
    tide_status status = tide_decoder_write_rope(model);
    if (status == TIDE_OK)
        status = tide_write(model->pool, region_at(model, model->region.inputs_offset), tokens,
                            count * sizeof *tokens);
    for (uint32_t op = 0; status == TIDE_OK && op < model->order.count; op++)
        status = tide_decoder_run_one(model, op, &shape);
    if (status != TIDE_OK || logits == NULL)
        return status;
    return tide_read(model->pool, logits, region_at(model, model->region.logits_offset),
                     options->config.vocab_size * sizeof *logits);
}
