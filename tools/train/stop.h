/* Signals that ask a command to end or to save. The handlers only set flags, which the command reads.
 *
 *   INT, TERM     end. A second one ends the process at once, if it comes at least a second after the first:
 *                 programs such as timeout send a signal to the process and to its group, so that it arrives
 *                 twice
 *   HUP, XCPU     end (a terminal was closed; the processor time is used up). These never end the process at
 *                 once, because the system sends them repeatedly. A HUP that was ignored at start (nohup)
 *                 stays ignored
 *   USR1, USR2    save now and go on: batch systems send them some time before they kill
 *   PIPE          ignored, so that the write fails with an error. main ignores XFSZ in every command, for the
 *                 same reason
 */
#ifndef TIDE_TOOLS_STOP_H
#define TIDE_TOOLS_STOP_H

#include <stdbool.h>

/* Install the handlers of the signals that ask for the end. */
void tide_stop_install(void);

bool tide_stop_wanted(void);
bool tide_stop_not_wanted(void *unused);       /* a `go_on` of predictions */
int tide_stop_number(void);                    /* the first signal that asked for the end; 0: none has */
const char *tide_stop_signal_name(int number); /* "SIGINT" */
const char *tide_stop_name(void); /* name of the first signal that asked for the end, "SIGINT", if one did */
unsigned tide_stop_count(void);   /* signals so far that asked for the end */

/* Install those handlers and the ones that ask for a save, and ignore SIGPIPE. */
void tide_stop_install_run(void);

/* Returns the latest signal that has asked for a save since the last call; 0: none has. */
int tide_stop_save_take(void);

#endif
