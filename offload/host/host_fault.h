/* Reports faults (SIGSEGV, SIGBUS) at addresses of a host device: prints a line that says what is at the
 * address, then lets the process end as it would without this handler. A fault at any other address is passed
 * on without a message.
 *
 * The process has one such handler, installed for the first device that wants it and removed with the last.
 * It ends with a call of the handler that was installed before.
 */
#ifndef TIDE_OFFLOAD_HOST_FAULT_H
#define TIDE_OFFLOAD_HOST_FAULT_H

#include "tidepool/types.h"

#include <stdbool.h>

/* If `address` belongs to `context`, the device that registered this function, write into `text` what lies
 * there. Runs in the signal handler, so it may only read and format. */
typedef bool (*tide_host_fault_locate)(void *context, const void *address, char *text, size_t text_bytes);

/* STATE: 16 contexts are registered already. UNSUPPORTED: the system refuses the handler. */
tide_status tide_host_fault_register(tide_host_fault_locate locate, void *context);
void tide_host_fault_unregister(void *context);

#endif
