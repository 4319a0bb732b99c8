/* The thread's last message: one fixed buffer per thread, so that reporting "no memory" needs none. */
#include "tidepool/status.h"

#include <stdarg.h>
#include <stdio.h>

enum { MESSAGE_BYTES = 1024 };

static _Thread_local char message[MESSAGE_BYTES];

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
    [TIDE_ERROR_INTERNAL] = "internal",
};

const char *tide_status_name(tide_status status)
{
    if ((unsigned)status >= sizeof status_names / sizeof status_names[0])
        return "unknown";
    return status_names[status];
}

const char *tide_message(void)
{
    return message;
}

tide_status tide_fail(tide_status status, const char *format, ...)
{
    /* The new text may quote the old one (a message that is passed on with more context), so build it apart. */
    char text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)snprintf(message, sizeof message, "%s", text);
    return status;
}
