/* SIGINT and SIGTERM, as the user's wish that the command come to an end. The first one is noted here; a second one ends the
 * process at once. */
#ifndef TIDE_TOOLS_STOP_H
#define TIDE_TOOLS_STOP_H

#include <stdbool.h>

/* Note them from here on. A file that may not grow (SIGXFSZ) is told by who writes it. */
void tide_stop_install(void);

bool tide_stop_wanted(void);
const char *tide_stop_name(void); /* "SIGINT" or "SIGTERM", where it is wanted */

#endif
