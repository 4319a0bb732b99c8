/* The thread's last message is in a fixed buffer per thread, so that reporting "no memory" allocates
 * nothing. */
#include "tidepool/status.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

enum { MESSAGE_BYTES = 1024 };

static _Thread_local char message[MESSAGE_BYTES];

const char *tide_message(void)
{
    return message;
}

tide_status tide_fail(tide_status status, const char *format, ...)
{
    /* Format into another buffer, since the arguments may include the old message, to which the caller adds
     * context. */
    char text[MESSAGE_BYTES] = "";
    va_list arguments;
    va_start(arguments, format);
    if (format != NULL)
        (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tide_text_make_printable(text); /* a message may quote a file's content or a path */
    (void)snprintf(message, sizeof message, "%s", text);
    return status;
}
