/* See bench.h. */
#include "tests/bench/bench.h"

#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NS_PER_SECOND = 1000000000 };

static bool first_figure;

bool bench_options(int argc, char **argv)
{
    const bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    if (argc > 1 + quick) {
        fprintf(stderr, "%s: no option %s (--quick is the only one)\n", argv[0], argv[1 + quick]);
        exit(2);
    }
    return quick;
}

void bench_begin(const char *name)
{
    printf("{\"bench\": \"%s\", \"figures\": [", name);
    first_figure = true;
}

void bench_end(void)
{
    printf("\n]}\n");
}

/* A note's text as a JSON string. */
static void print_string(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar((unsigned char)*text < ' ' ? ' ' : *text);
    }
    putchar('"');
}

void bench_figure(const char *name, double value, const char *unit, bench_bound bound, double limit,
                  const char *note, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, note);
    vsnprintf(text, sizeof text, note, arguments);
    va_end(arguments);
    if (!isfinite(value))
        bench_die("figure %s is not a number", name);
    printf("%s\n  {\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"", first_figure ? "" : ",", name, value,
           unit);
    if (bound != BENCH_NO_BOUND)
        printf(", \"%s\": %.6g", bound == BENCH_AT_LEAST ? "at_least" : "at_most", limit);
    printf(", \"note\": ");
    print_string(text);
    putchar('}');
    fflush(stdout);
    first_figure = false;
}

static double clock_seconds(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now); /* cannot fail for these clocks */
    return (double)now.tv_sec + (double)now.tv_nsec / NS_PER_SECOND;
}

double bench_seconds(void)
{
    return clock_seconds(CLOCK_MONOTONIC);
}

double bench_cpu_seconds(void)
{
    return clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
}

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double bench_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

uint32_t bench_threads(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    return (uint32_t)CPU_COUNT(&set);
}

void bench_die(const char *what, ...)
{
    va_list arguments;
    va_start(arguments, what);
    vfprintf(stderr, what, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}
