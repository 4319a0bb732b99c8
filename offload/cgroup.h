/* How much memory this process's control groups still let it have. A container's limit is one of theirs; /proc/meminfo
 * tells of the machine alone, and who believes it meets the out-of-memory killer instead of a message.
 */
#ifndef TIDE_OFFLOAD_CGROUP_H
#define TIDE_OFFLOAD_CGROUP_H

#include <stdint.h>

/* The least that any group of this process has left, in bytes; UINT64_MAX without a limit, or where none can be read.
 * `root` stands before /proc and /sys: "" but in tests. Allocates nothing. */
uint64_t tide_cgroup_available_bytes(const char *root);

#endif
