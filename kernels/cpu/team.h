/* The threads inside a kernel: the only place that knows OpenMP.
 *
 * A kernel is cut into tasks that write disjoint places, so it does not matter which thread takes which. A team of one
 * is a plain loop, not a parallel region: libgomp allocates at each region of one thread, and a steady state should not.
 *
 * Every stream's thread has a team of its own, made by its first kernel. Its threads inherit the processors of the thread
 * that makes it, so who binds a stream's thread before that binds its team; and it is never larger than what that thread
 * was given (omp_set_num_threads), however many threads the kernels are configured for. OpenMP's own OMP_PROC_BIND
 * overrides the first.
 *
 * Teams do not get in each other's way by spinning at their ends. libgomp spins long only while all teams together have
 * no more threads than there are processors; as soon as a second team exists it spins some microseconds. Two teams of 2
 * threads in turn on 2 processors, medians of 300 turns, quiet machine: a product-like kernel 3.24 ms and an update of
 * 1 Mi parameters 0.97 ms; with OMP_WAIT_POLICY=passive 3.24 and 1.02 ms. So there is no pool of our own.
 */
#ifndef TIDEPOOL_KERNELS_CPU_TEAM_H
#define TIDEPOOL_KERNELS_CPU_TEAM_H

#include <stddef.h>

/* The number that tide_kernels_cpu_threads tells, under the same conditions as tide_kernels_cpu_configure, which calls it. */
void tide_team_configure(int threads);

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
