/* The team: the threads that run a kernel, or convert weights. Only this file and team.c use OpenMP's
 * functions.
 *
 * Work is cut into tasks that write to different places, so that it does not matter which thread runs
 * which task. A team of one runs a plain loop instead of a parallel region, since libgomp allocates at each
 * region of one thread, and nothing may be allocated in steady state.
 *
 * Every stream's thread has a team of its own, which its first kernel makes. The team's threads inherit the
 * affinity of the stream's thread: code that binds that thread to processors before its first kernel also
 * binds the team, unless OMP_PROC_BIND is set. A team is never larger than the thread number set in the
 * stream's thread (omp_set_num_threads), however many threads are configured.
 *
 * Threads that spin at the end of a region do not slow other teams. libgomp spins long only while all teams
 * together have no more threads than there are processors; with a second team it spins for some microseconds.
 * Two teams of 2 threads took turns on 2 processors of a quiet machine; medians of 300 turns: a kernel like a
 * matrix product 3.24 ms, an update of 1 Mi parameters 0.97 ms; with OMP_WAIT_POLICY=passive 3.24 and 1.02
 * ms. A thread pool of our own would gain nothing.
 */
#ifndef TIDE_BASE_TEAM_H
#define TIDE_BASE_TEAM_H

#include <stddef.h>

/* How many threads a team gets that is configured for so many: a build without OpenMP has one. */
int tide_team_threads_of(int threads);
/* Set the number of threads of each team, 1 or more (a build without OpenMP uses one), while no team runs.
 * Before the first call the number is 1. The trainer calls tide_kernels_cpu_configure, which calls this. */
void tide_team_configure(int threads);

/* The configured number. */
int tide_team_threads(void);

/* Run task `index`. */
typedef void (*tide_team_task)(const void *arguments, size_t index);

/* Run task `index` in thread `member` of the team, 0 to tide_team_threads() - 1; each
 * thread uses its own part of the workspace. */
typedef void (*tide_team_member_task)(const void *arguments, size_t index, size_t member);

/* Run tasks 0 to count - 1, which take equally long: each thread gets the same number in advance. `elements`
 * is the work of all tasks together; if it is small, the calling thread runs them alone, since waking the
 * team would take longer. */
void tide_team_run(size_t count, size_t elements, tide_team_task task, const void *arguments);

/* Run tasks 0 to count - 1, which are long and may take different times: each thread that becomes free takes
 * the next. */
void tide_team_run_uneven(size_t count, tide_team_member_task task, const void *arguments);

#endif
