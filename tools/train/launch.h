/* Starts the ranks of a run as processes on this machine: the program again, once a rank, with the same
 * command line and these variables, of which a rank takes the token out of its environment:
 *
 *     TIDEPOOL_RANK      its number
 *     TIDEPOOL_RANKS     how many there are
 *     TIDEPOOL_PORT      where rank 0 listens, on 127.0.0.1
 *     TIDEPOOL_LISTENER  rank 0's descriptor of the socket that listens there already
 *     TIDEPOOL_TOKEN     a secret of the run
 *     TIDEPOOL_GIVE_UP   a descriptor of a pipe whose other side closes when the launcher or a rank ends
 */
#ifndef TIDE_TOOLS_LAUNCH_H
#define TIDE_TOOLS_LAUNCH_H

#include "tidepool/comm.h"

#include <stdbool.h>

/* Was this process started as a rank? */
bool tide_launch_is_rank(void);

/* In a rank: let signals come. Ranks start with those blocked that end a run or make it save, since one rank
 * that such a signal ends before it has handlers would leave the others waiting for it. */
void tide_launch_take_signals(void);

/* Set what the launcher told this rank. The token's text is static. ARGUMENT: a variable is missing or
 * wrong. */
TIDE_NODISCARD tide_status tide_launch_read(tide_comm_socket_options *options);

/* Start `ranks` ranks with this command line (the words behind "tidepool train"), pass signals on to them,
 * and return when all have ended: TIDE_EXIT_USAGE if a rank did with that, else the exit status of the first
 * rank that failed, by number, 0 if none did. If a rank was killed, prints a line. If others still run 75
 * seconds after one has failed, tells them to end, and kills them after 10 minutes more; those that have not
 * met all others yet end at once. SIGINT and SIGTERM also wake ranks that are stopped. When this process
 * dies, the ranks get SIGTERM. */
int tide_launch_ranks(uint32_t ranks, int count, char *const *arguments);

#endif
