/* Why a write failed, in words. */
#ifndef TIDE_BASE_WRITE_ERROR_H
#define TIDE_BASE_WRITE_ERROR_H

/* strerror's text; of EFBIG, where this process has a file-size limit, that limit, which is what the shell's
 * ulimit -f sets. Of static storage or strerror's. */
const char *tide_write_error(int error);

#endif
