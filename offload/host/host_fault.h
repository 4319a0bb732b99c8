/* Faults (SIGSEGV, SIGBUS) at addresses of a host device: one line that says what lies there, then the
 * process ends as it would have. Addresses that belong to no device are passed on without a word.
 *
 * One handler for the process, installed with the first device that wants it and taken away with the last;
 * whatever handler was there before is called afterwards.
 */
#ifndef TIDE_OFFLOAD_HOST_FAULT_H
#define TIDE_OFFLOAD_HOST_FAULT_H

#include "tidepool/types.h"

#include <stdbool.h>

/* If `address` is `context`'s, write what is there into `text`. Runs in the signal handler: it may read and
 * format. */
typedef bool (*tide_host_fault_locate)(void *context, const void *address, char *text, size_t text_bytes);

/* STATE when 16 contexts are registered already, UNSUPPORTED if the system refuses the handler. */
tide_status tide_host_fault_register(tide_host_fault_locate locate, void *context);
void tide_host_fault_unregister(void *context);

#endif
