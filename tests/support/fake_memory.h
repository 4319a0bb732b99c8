/* Makes the N-th request for memory fail. The link arguments fake_memory_link_args of tests/meson.build
 * send the code's calls of malloc, calloc, realloc, strdup and tsearch here. */
#ifndef TIDE_TESTS_FAKE_MEMORY_H
#define TIDE_TESTS_FAKE_MEMORY_H

#include <stdbool.h>

/* Makes request number `request` (from 0, counted from now) fail. fake_memory_failed returns whether that
 * has happened. */
void fake_memory_fail(unsigned request);
bool fake_memory_failed(void);

/* Whether the failed request was one of jansson. For some of these its parser reports a fault of the text,
 * or a missing member, and the code under test can't see that memory was the reason. */
bool fake_memory_failed_in_jansson(void);

/* Stops failures. Returns the number of requests since the last fake_memory_fail or fake_memory_clear. */
unsigned fake_memory_clear(void);

/* Makes jansson call these functions too. */
void fake_memory_take_jansson(void);

#endif
