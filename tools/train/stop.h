/* Signals that ask something of a command: to come to an end, or to save.
 *
 *   INT, TERM        end; one that comes a second or more after the first ends the process at once. Not sooner: who passes a signal
 *                    on (timeout) sends it to the process and to its group, so that it comes twice
 *   HUP, XCPU        end, too: a terminal that closed, processor time that is used up. Neither ever ends the process at once:
 *                    both are sent again and again. A HUP that was ignored at start (nohup) stays ignored
 *   USR1, USR2       save now and go on: what batch systems send some time before they kill
 *   PIPE             whoever writes gets the error, as of XFSZ, which main ignores in every command
 */
#ifndef TIDE_TOOLS_STOP_H
#define TIDE_TOOLS_STOP_H

#include <stdbool.h>

/* Note the signals that ask for the end from here on. */
void tide_stop_install(void);

bool tide_stop_wanted(void);
const char *tide_stop_name(void); /* of the first one, "SIGINT", where it is wanted */
unsigned tide_stop_count(void);   /* signals so far that ask for the end */

/* Note also the signals that ask for a save, and survive a reader that left. */
void tide_stop_install_run(void);

/* The name of a signal that has asked for a save since the last call, "SIGUSR1"; NULL: none has. */
const char *tide_stop_save_take(void);

#endif
