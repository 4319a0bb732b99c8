/* The message for an errno of a failed write. */
#ifndef TIDE_BASE_WRITE_ERROR_H
#define TIDE_BASE_WRITE_ERROR_H

/* strerror's text, except for EFBIG because of this process's file-size limit (ulimit -f in a shell): then a
 * text that says so. The string is static or strerror's buffer. */
const char *tide_write_error(int error);

#endif
