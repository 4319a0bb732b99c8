/* The threads inside a kernel: the only place that knows OpenMP.
 *
 * A kernel is cut into tasks that write disjoint places, so it does not matter which thread takes which. A team of one
 * is a plain loop, not a parallel region: libgomp allocates at each region of one thread, and a steady state should not.
 */
#ifndef TIDEPOOL_KERNELS_CPU_TEAM_H
#define TIDEPOOL_KERNELS_CPU_TEAM_H

#include <stddef.h>

/* Work on task `index` of the kernel's. */
typedef void (*tide_team_task)(const void *arguments, size_t index);

/* The same by thread `member` of the team, 0 to tide_kernels_cpu_threads() - 1, which has its own workspace. */
typedef void (*tide_team_member_task)(const void *arguments, size_t index, size_t member);

/* Run tasks 0 to count - 1, each alike, dealt out evenly beforehand. `elements` is the work of all of them together:
 * where it is small, waking the team would cost more than it saves and the caller's thread does it alone. */
void tide_team_run(size_t count, size_t elements, tide_team_task task, const void *arguments);

/* Run tasks 0 to count - 1, large and unlike, each taken by the next member that is free. */
void tide_team_run_uneven(size_t count, tide_team_member_task task, const void *arguments);

#endif
