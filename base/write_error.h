/* Text for a write's errno. */
#ifndef TIDE_BASE_WRITE_ERROR_H
#define TIDE_BASE_WRITE_ERROR_H

/* strerror's text; but if EFBIG comes from this process's file-size limit, which the shell's ulimit -f sets,
 * a text that says so. The string is static or strerror's own. */
const char *tide_write_error(int error);

#endif
