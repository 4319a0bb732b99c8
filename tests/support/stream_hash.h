/* The manager's command stream as one number: a hash of every command that it hands out in this process, field by field.
 *
 * Linked with -Wl,--wrap=tide_manager_next into what drives managers from one thread at a time. Two builds whose policy is
 * meant to be the same print the same number for the same work.
 */
#ifndef TIDE_TESTS_STREAM_HASH_H
#define TIDE_TESTS_STREAM_HASH_H

#include <stdint.h>

/* FNV-1a of all commands so far, and how many there were. */
uint64_t stream_hash(uint64_t *commands);

#endif
