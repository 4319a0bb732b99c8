/* Memory that runs out at the N-th request. Link with the flags in tests/meson.build (fake_memory_link_args), which send the
 * code's malloc, calloc, realloc, strdup and tsearch here. */
#ifndef TIDE_TESTS_FAKE_MEMORY_H
#define TIDE_TESTS_FAKE_MEMORY_H

#include <stdbool.h>

/* Request `request` (from 0) from now on fails; whether it came to that. */
void fake_memory_fail(unsigned request);
bool fake_memory_failed(void);

/* Whether the request that failed was jansson's: its parser reports some of those as a fault of the text, or as a member
 * that is not there, and its caller can't tell. */
bool fake_memory_failed_in_jansson(void);

/* No failures any more. Requests since the last fake_memory_fail or _clear. */
unsigned fake_memory_clear(void);

/* Send jansson's requests here too. */
void fake_memory_take_jansson(void);

#endif
