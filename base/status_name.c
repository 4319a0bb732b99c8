/* Names of statuses. They are in a file of their own, since the CUDA module contains this file but not
 * status.c: it passes its messages to the process that opened it. */
#include "tidepool/status.h"

static const char *const status_names[] = {
    [TIDE_OK] = "ok",
    [TIDE_ERROR_ARGUMENT] = "argument",
    [TIDE_ERROR_STATE] = "state",
    [TIDE_ERROR_NO_MEMORY] = "no memory",
    [TIDE_ERROR_BUDGET] = "budget",
    [TIDE_ERROR_UNSUPPORTED] = "unsupported",
    [TIDE_ERROR_DEVICE] = "device",
    [TIDE_ERROR_HAZARD] = "hazard",
    [TIDE_ERROR_NONFINITE] = "nonfinite",
    [TIDE_ERROR_IO] = "io",
    [TIDE_ERROR_CORRUPT] = "corrupt",
    [TIDE_ERROR_MISMATCH] = "mismatch",
    [TIDE_ERROR_PEER] = "peer",
    [TIDE_ERROR_INTERNAL] = "internal",
};

const char *tide_status_name(tide_status status)
{
    if ((unsigned)status >= sizeof status_names / sizeof status_names[0])
        return "unknown";
    return status_names[status];
}
