/* Numbers as people read and write them: sizes, rates, counts. */
#ifndef TIDE_TOOLS_UNITS_H
#define TIDE_TOOLS_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parse "64MiB", "8GiB", "500MB", "1.5GiB" or "4096": a number and B, kB, MB, GB, TB (powers of 1000) or KiB,
 * MiB, GiB, TiB (powers of 1024), in upper or lower case; without a unit, bytes. Returns false, and leaves
 * *bytes, for any other text, for a fraction of a byte and for 2^63 or more. */
bool tide_size_parse(const char *text, uint64_t *bytes);

/* Parse a size with an optional "/s". */
bool tide_rate_parse(const char *text, double *bytes_per_second);

enum { TIDE_UNITS_TEXT_BYTES = 32 };

/* Write "65.5 MiB" or "512 B": at most one digit after the point. Returns `text`. */
const char *tide_size_format(uint64_t bytes, char text[TIDE_UNITS_TEXT_BYTES]);

/* Write the shortest exact form that tide_size_parse reads: "64MiB", "1048577". Returns `text`. */
const char *tide_size_format_exact(uint64_t bytes, char text[TIDE_UNITS_TEXT_BYTES]);

/* Write "1 step", "12 steps", "2 micro-batches": the count and a short noun. Returns `text`. */
const char *tide_count_noun(uint64_t count, const char *noun, char text[TIDE_UNITS_TEXT_BYTES]);

/* Write "4,902,144". Returns `text`. */
const char *tide_count_format(uint64_t count, char text[TIDE_UNITS_TEXT_BYTES]);

#endif
