/* Helpers of all benchmarks: output as one JSON object, clocks, medians, the number of threads.
 *
 *   {"bench": "copy", "figures": [
 *     {"name": "in", "value": 0.97, "unit": "ratio", "at_least": 0.95, "note": "4 MiB chunks"}, ...]}
 *
 * A figure is a ratio to a limit that the same run has measured, or a count; absolute times stand in
 * notes. `at_least` and `at_most` are the project's requirements; a figure without them only informs.
 * tools/bench.sh joins the objects of all benchmarks into a file and prints a table. A benchmark ends with
 * status 0 if it could measure, even where a requirement is not met.
 */
#ifndef TIDE_TESTS_BENCH_H
#define TIDE_TESTS_BENCH_H

#include "tidepool/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the command line, whose only option is --quick (fewer rounds), and returns whether it was given.
 * On any other argument it prints one line and ends the program with status 2. */
bool bench_options(int argc, char **argv);

/* Print the begin and the end of the object. `name` has no quotes or backslashes. */
void bench_begin(const char *name);
void bench_end(void);

typedef enum bench_bound { BENCH_NO_BOUND = 0, BENCH_AT_LEAST, BENCH_AT_MOST } bench_bound;

/* Prints one figure; `note` is a format of printf. */
void bench_figure(const char *name, double value, const char *unit, bench_bound bound, double limit,
                  const char *note, ...) __attribute__((format(printf, 6, 7)));

/* Replaces bench_begin and bench_end in benchmarks that may be cut short. From now on each figure is an
 * object on a line of its own, flushed at once, with the names of the benchmark and the section:
 *
 *   {"bench": "gpu", "section": "copies", "name": "chunks in", "value": 0.97, ...}
 */
void bench_section(const char *bench, const char *section);

/* Formats the name of a figure. The text is valid until the next call. */
const char *bench_name(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Adds members in JSON to the next figure, formatted as by printf: "\"splits\": %d, \"taken\": true". */
void bench_also(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints a figure that could not be measured: its value is null, and `note` gives the reason. */
void bench_missing(const char *name, const char *unit, const char *note, ...)
    __attribute__((format(printf, 3, 4)));

double bench_seconds(void);                        /* of a monotonic clock */
double bench_cpu_seconds(void);                    /* processor time of all threads of this process */
double bench_median(double *values, size_t count); /* sorts them; count > 0 */
uint32_t bench_threads(void);                      /* number of processors that this process may use */

/* Prints the error to standard error and ends the program with status 1. */
void bench_die(const char *what, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Ends the program with the thread's message unless `status` is TIDE_OK. */
void bench_check(tide_status status, const char *what);

enum { BENCH_PATH_BYTES = 64 };
/* Sets `path` to a name in a folder in /tmp, which the first call makes. The program's end removes the folder
 * with everything in it. */
void bench_path(const char *name, char path[BENCH_PATH_BYTES]);
/* Sets `path` to a file of printable text to train on, in the same folder. */
void bench_data(char path[BENCH_PATH_BYTES]);

#endif
