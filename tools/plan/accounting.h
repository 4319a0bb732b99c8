/* Bytes of model data on each rank, by the closed formulas of papers. Activations and buffers are not
 * included. */
#ifndef TIDE_TOOLS_ACCOUNTING_H
#define TIDE_TOOLS_ACCOUNTING_H

#include "tidepool/types.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum tide_accounting {
    TIDE_ACCOUNTING_NONE = 0,
    TIDE_ACCOUNTING_ZERO, /* Rajbhandari et al. 2020, figure 1: 2 + 2 + 12 bytes a param, stages 0 to 3 */
    /* gradients reuse the params' memory: 2 + 12 bytes a param (fp32: 4 + 12), on every rank or divided among
     * ranks */
    TIDE_ACCOUNTING_TIDEPOOL,
    /* Fang et al. 2022: 2 (param, then gradient) + 12 bytes a param, on every rank or divided among ranks */
    TIDE_ACCOUNTING_PATRICKSTAR,
} tide_accounting;

/* One line of a table: which data are divided among the ranks, and the bytes on each rank. */
typedef struct tide_accounting_line {
    const char *what;
    double bytes;
} tide_accounting_line;

bool tide_accounting_at(tide_accounting of, double params, uint64_t ranks, tide_dtype dtype, uint32_t index,
                        tide_accounting_line *line);

#endif
