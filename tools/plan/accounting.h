/* Bytes of model data a rank, in closed form: what papers count with. Activations and buffers are not in it. */
#ifndef TIDE_TOOLS_ACCOUNTING_H
#define TIDE_TOOLS_ACCOUNTING_H

#include "tidepool/types.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum tide_accounting {
    TIDE_ACCOUNTING_NONE = 0,
    TIDE_ACCOUNTING_ZERO,     /* Rajbhandari et al. 2020, figure 1: 2 + 2 + 12 bytes a param, stages 0 to 3 */
    TIDE_ACCOUNTING_TIDEPOOL, /* gradients reuse params: 2 + 12 (fp32: 4 + 12); on every rank, or divided */
    TIDE_ACCOUNTING_PATRICKSTAR, /* Fang et al. 2022: 2 (param, then gradient) + 12; likewise */
} tide_accounting;

/* The n-th line of a table: what is divided, and the bytes that a rank then holds. False past the last. */
typedef struct tide_accounting_line {
    const char *what;
    double bytes;
} tide_accounting_line;

bool tide_accounting_at(tide_accounting of, double params, uint64_t ranks, tide_dtype dtype, uint32_t index,
                        tide_accounting_line *line);

#endif
