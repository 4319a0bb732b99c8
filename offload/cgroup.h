/* How much memory this process's control groups still let it use. The limit of a container is set on such a
 * group; /proc/meminfo reports only the machine's memory, so a process that trusts it is killed by the
 * out-of-memory killer instead of failing with a message.
 */
#ifndef TIDE_OFFLOAD_CGROUP_H
#define TIDE_OFFLOAD_CGROUP_H

#include <stdint.h>

/* How many bytes this process's control groups have left, the smallest of all groups' figures; UINT64_MAX if
 * no limit is set or can be read. `root` is put before /proc and /sys; it is "" except in tests. Allocates
 * nothing. */
uint64_t tide_cgroup_available_bytes(const char *root);

#endif
