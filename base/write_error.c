#include "base/write_error.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

const char *tide_write_error(int error)
{
    struct rlimit limit;
    if (error == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        return "File too large for this process's file-size limit (ulimit -f)";
    return strerror(error);
}
