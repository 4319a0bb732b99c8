/* tide_fail and tide_message of the module: they format a message here and store it in the process that
 * opened the module. A message is formatted in a buffer of its own, since it may quote the stored one. */
#include "kernels/cuda/module_status.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

enum { MESSAGE_BYTES = 1024 };

static const tide_module_host *host; /* written once, before any other call into the module */

void tide_module_status_begin(const tide_module_host *given)
{
    assert(given != NULL && given->fail != NULL && given->message != NULL);
    host = given;
}

const char *tide_message(void)
{
    return host->message();
}

tide_status tide_fail(tide_status status, const char *format, ...)
{
    char text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return host->fail(status, text);
}
