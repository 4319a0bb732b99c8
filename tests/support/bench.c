#include "tests/support/bench.h"

#include <ftw.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NS_PER_SECOND = 1000000000, TEXT_BYTES = 1 << 17, OPEN_FOLDERS = 8 };

static bool first_figure;
/* NULL before bench_section: figures are members of one object */
static const char *lines_bench, *lines_section;
static char also[512];

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

/* Prints the text as a JSON string. */
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

void bench_section(const char *bench, const char *section)
{
    lines_bench = bench;
    lines_section = section;
}

const char *bench_name(const char *format, ...)
{
    static char name[224];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    return name;
}

void bench_also(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(also, sizeof also, format, arguments);
    va_end(arguments);
}

/* Prints the begin of a figure's object, up to the name of "value". */
static void figure_begin(const char *name)
{
    if (lines_bench)
        printf("{\"bench\": \"%s\", \"section\": \"%s\", ", lines_bench, lines_section);
    else
        printf("%s\n  {", first_figure ? "" : ",");
    printf("\"name\": \"%s\", \"value\": ", name);
    first_figure = false;
}

/* Prints the rest of the figure's object, from bench_also's members and the note on. */
static void figure_end(const char *note, va_list arguments)
{
    char text[512];
    vsnprintf(text, sizeof text, note, arguments);
    if (also[0])
        printf(", %s", also);
    also[0] = '\0';
    printf(", \"note\": ");
    print_string(text);
    printf(lines_bench ? "}\n" : "}");
    fflush(stdout);
}

void bench_figure(const char *name, double value, const char *unit, bench_bound bound, double limit,
                  const char *note, ...)
{
    va_list arguments;
    if (!isfinite(value))
        bench_die("figure %s is not a number", name);
    figure_begin(name);
    printf("%.6g, \"unit\": \"%s\"", value, unit);
    if (bound != BENCH_NO_BOUND)
        printf(", \"%s\": %.6g", bound == BENCH_AT_LEAST ? "at_least" : "at_most", limit);
    va_start(arguments, note);
    figure_end(note, arguments);
    va_end(arguments);
}

void bench_missing(const char *name, const char *unit, const char *note, ...)
{
    va_list arguments;
    figure_begin(name);
    printf("null, \"unit\": \"%s\"", unit);
    va_start(arguments, note);
    figure_end(note, arguments);
    va_end(arguments);
}

static double clock_seconds(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now); /* can't fail for these clocks */
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

void bench_check(tide_status status, const char *what)
{
    if (status != TIDE_OK)
        bench_die("%s: %s", what, tide_message());
}

static char folder[] = "/tmp/tide-bench-XXXXXX";

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)about, (void)kind, (void)place;
    return remove(path);
}

static void remove_folder(void)
{
    (void)nftw(folder, remove_one, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
}

void bench_path(const char *name, char path[BENCH_PATH_BYTES])
{
    static bool made;
    if (!made && mkdtemp(folder) == NULL)
        bench_die("no folder %s", folder);
    if (!made)
        (void)atexit(remove_folder);
    made = true;
    snprintf(path, BENCH_PATH_BYTES, "%s/%s", folder, name);
}

void bench_data(char path[BENCH_PATH_BYTES])
{
    bench_path("data", path);
    FILE *file = fopen(path, "w");
    for (uint32_t i = 0, random = 1; file != NULL && i < TEXT_BYTES;
         i++, random = random * 1664525 + 1013904223)
        fputc(' ' + (int)((random >> 24) % 95), file);
    if (file == NULL || fclose(file) != 0)
        bench_die("no file %s", path);
}
