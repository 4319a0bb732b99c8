#include "tools/plan/accounting.h"

static const double state_bytes = 12; /* fp32 master, momentum and variance */

bool tide_accounting_at(tide_accounting of, double params, uint64_t ranks, tide_dtype dtype, uint32_t index,
                        tide_accounting_line *line)
{
    static const char *const stages[] = {"stage 0, nothing is divided", "stage 1, optimizer state is",
                                         "stage 2, gradients too", "stage 3, parameters too"};
    static const char *const chunks[] = {"nothing is divided", "chunks are divided"};
    const double value = dtype == TIDE_DTYPE_FP32 ? 4 : 2, share = 1 / (double)ranks;
    if (of == TIDE_ACCOUNTING_ZERO && index < 4) {
        const double kept = (index < 3 ? value : 0) + (index < 2 ? value : 0) + (index < 1 ? state_bytes : 0);
        *line =
            (tide_accounting_line){stages[index], params * (kept + (2 * value + state_bytes - kept) * share)};
        return true;
    }
    if ((of == TIDE_ACCOUNTING_TIDEPOOL || of == TIDE_ACCOUNTING_PATRICKSTAR) && index < 2) {
        const double bytes = (of == TIDE_ACCOUNTING_TIDEPOOL ? value : 2) + state_bytes;
        *line = (tide_accounting_line){chunks[index], params * bytes * (index == 0 ? 1 : share)};
        return true;
    }
    return false;
}
