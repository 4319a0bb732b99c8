/* What the benchmarks share: one JSON object on standard output, clocks, medians, the machine's own limits.
 *
 *   {"bench": "copy", "figures": [
 *     {"name": "in", "value": 0.97, "unit": "ratio", "at_least": 0.95, "note": "4 MiB chunks, 19.1 GB/s plain"}, ...]}
 *
 * A figure is a ratio to a limit measured in the same run (or a count); bare times go into notes. `at_least` or
 * `at_most` is what the project requires; figures without either are for the reader. tools/bench.sh puts the objects of
 * all benchmarks into one file and prints a table; a benchmark itself ends with status 0 whether its figures are good
 * enough or not, and with another if it could not measure.
 */
#ifndef TIDE_TESTS_BENCH_H
#define TIDE_TESTS_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The only option there is: --quick, fewer rounds. Returns whether it was given; anything else ends the program with one
 * line and status 2. */
bool bench_options(int argc, char **argv);

/* Begin and end the object. `name` without quotes or backslashes. */
void bench_begin(const char *name);
void bench_end(void);

typedef enum bench_bound { BENCH_NO_BOUND = 0, BENCH_AT_LEAST, BENCH_AT_MOST } bench_bound;

/* One figure; `note` is printf's. */
void bench_figure(const char *name, double value, const char *unit, bench_bound bound, double limit,
                  const char *note, ...) __attribute__((format(printf, 6, 7)));

/* In place of begin and end, where what was measured has to outlive a benchmark that is cut short: each figure from now on is an
 * object of its own, on a line of its own that is flushed at once, and says which section of which benchmark it is of:
 *
 *   {"bench": "gpu", "section": "copies", "name": "chunks in", "value": 0.97, ...}
 */
void bench_section(const char *bench, const char *section);

/* Members that the next figure has too, in JSON, printf's: "\"splits\": %d, \"taken\": true". */
void bench_also(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A figure that could not be measured: its value is null, `note` says why. */
void bench_missing(const char *name, const char *unit, const char *note, ...)
    __attribute__((format(printf, 3, 4)));

double bench_seconds(void);                        /* monotonic */
double bench_cpu_seconds(void);                    /* of all threads of this process */
double bench_median(double *values, size_t count); /* sorts them; count > 0 */
uint32_t bench_threads(void);                      /* cores this process may use */

/* Say what went wrong on standard error and exit with status 1 (benchmarks are programs, not the library). */
void bench_die(const char *what, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
