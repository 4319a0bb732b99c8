/* Hashes the manager's command stream: each field of every command that it hands out in this process.
 *
 * Programs that drive managers from one thread at a time link this with -Wl,--wrap=tide_manager_next. Two
 * builds with the same policy print the same hash for the same work.
 */
#ifndef TIDE_TESTS_STREAM_HASH_H
#define TIDE_TESTS_STREAM_HASH_H

#include <stdint.h>

/* Returns the FNV-1a hash of all commands so far; *commands is their number. */
uint64_t stream_hash(uint64_t *commands);

#endif
