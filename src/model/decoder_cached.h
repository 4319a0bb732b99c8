/* The passes of a decoder that generates (tide_decoder_options.cache_tokens). A pass takes some tokens of one
 * sequence and gives the logits of the last one's successor:
 *
 *     region    | inputs | logits | rope | residual | keys of layer 0, 1, ... | values of layer 0, 1, ... |
 *
 * The cache has a row of keys and one of values for each position and layer. A pass writes those of its own
 * tokens and reads those of all positions before them, so the cost of a token is a pass of one row, whatever
 * stands before it. Every pass runs the same ops in the same order: from the second one on the pool knows
 * which chunks come next.
 *
 * A pass takes one token or micro_batch_sequences of them, since matmuls are prepared for these two shapes.
 * Matmuls of other shapes may give other bits; attention does not. */
#ifndef TIDE_MODEL_DECODER_CACHED_H
#define TIDE_MODEL_DECODER_CACHED_H

#include "src/model/decoder.h"

/* Bytes of the cached keys and values of all layers together. */
uint64_t tide_decoder_cache_bytes(const tide_decoder_options *options);

/* Run a pass over the tokens at positions first .. first + count - 1, whose predecessors have passed before,
 * and read logits[vocab_size] of the next token. `count` is 1 or micro_batch_sequences; first + count is at
 * most cache_tokens; every token is below vocab_size. Positions may pass again: the last pass counts, and
 * later positions must then pass again, too. logits NULL: not read. Call it inside a forward-only step. */
TIDE_NODISCARD tide_status tide_decoder_cached_pass(tide_decoder *model, const int32_t *tokens,
                                                    uint32_t count, uint32_t first, float *logits);

#endif
