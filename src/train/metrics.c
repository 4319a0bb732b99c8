/* A ring of reports that wait for their counters, and a line a step: see metrics.h. */
#include "src/train/metrics.h"

#include "src/train/json_line.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_BYTES = 2048, TAIL_BYTES = LINE_BYTES };

typedef struct waiting_step {
    tide_trainer_report report;
    uint64_t tokens;
} waiting_step;

struct tide_metrics {
    int descriptor;
    char path[512]; /* for messages */
    waiting_step waiting[TIDE_METRICS_WAITING_MAX];
    uint64_t reported; /* waiting[n % MAX] for n in [written, reported) */
    uint64_t written;
    char line[LINE_BYTES];
};

static tide_status file_failed(const tide_metrics *metrics, const char *what)
{
    return tide_fail(TIDE_ERROR_IO, "metrics file %s: %s: %s", metrics->path, what, strerror(errno));
}

/* Cut off what follows the last newline: the half line of a run that was killed. */
static tide_status tail_repair(tide_metrics *metrics)
{
    char tail[TAIL_BYTES];
    struct stat about;
    if (fstat(metrics->descriptor, &about) != 0)
        return file_failed(metrics, "can't be examined");
    if (!S_ISREG(about.st_mode) || about.st_size == 0)
        return TIDE_OK;
    off_t start = about.st_size > TAIL_BYTES ? about.st_size - TAIL_BYTES : 0;
    ssize_t got = pread(metrics->descriptor, tail, (size_t)(about.st_size - start), start);
    if (got < 0)
        return file_failed(metrics, "can't be read");
    while (got > 0 && tail[got - 1] != '\n')
        got--;
    if (start + got < about.st_size && ftruncate(metrics->descriptor, start + got) != 0)
        return file_failed(metrics, "its cut-off last line can't be removed");
    return TIDE_OK;
}

tide_status tide_metrics_open(const char *path, bool append, tide_metrics **metrics)
{
    tide_metrics *made = calloc(1, sizeof *made);
    if (made == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "metrics file %s: no memory for %zu bytes", path,
                         sizeof *made);
    strncpy(made->path, path, sizeof made->path - 1);
    tide_status status = TIDE_OK;
    made->descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC), 0666);
    if (made->descriptor < 0) {
        status = file_failed(made, "can't be written");
        goto free_metrics;
    }
    if (append)
        status = tail_repair(made);
    if (status != TIDE_OK)
        goto close_file;
    *metrics = made;
    return TIDE_OK;

close_file:
    close(made->descriptor);
free_metrics:
    free(made);
    return status;
}

tide_status tide_metrics_report(tide_metrics *metrics, const tide_trainer_report *report, uint64_t tokens)
{
    if (metrics->reported - metrics->written == TIDE_METRICS_WAITING_MAX)
        return tide_fail(TIDE_ERROR_STATE, "metrics file %s: %d steps wait for their counters", metrics->path,
                         TIDE_METRICS_WAITING_MAX);
    metrics->waiting[metrics->reported++ % TIDE_METRICS_WAITING_MAX] = (waiting_step){*report, tokens};
    return TIDE_OK;
}

static bool line_build(tide_metrics *metrics, const waiting_step *step, const tide_pool_counters *counters,
                       size_t *bytes)
{
    const tide_trainer_report *report = &step->report;
    tide_json_line line;
    tide_json_begin(&line, metrics->line, sizeof metrics->line);
    tide_json_open(&line, NULL, '{');
    tide_json_count(&line, "step", report->step);
    tide_json_real(&line, "loss", report->loss);
    tide_json_real(&line, "grad_norm", report->gradient_norm);
    tide_json_real(&line, "lr", report->lr);
    tide_json_real(&line, "loss_scale", 1.0); /* bf16 and fp32 need none */
    tide_json_count(&line, "tokens", step->tokens);
    tide_json_real(&line, "step_seconds", counters->seconds);
    tide_json_real(&line, "tokens_per_second",
                   counters->seconds > 0 ? (double)step->tokens / counters->seconds : 0);
    tide_json_real(&line, "compute_seconds", counters->compute_seconds);
    tide_json_real(&line, "stall_seconds", counters->stall_seconds);
    tide_json_count(&line, "h2d_bytes", counters->h2d_bytes);
    tide_json_count(&line, "d2h_bytes", counters->d2h_bytes);
    tide_json_count(&line, "collective_bytes", counters->collective_bytes);
    tide_json_count(&line, "evictions", counters->evictions);
    tide_json_count(&line, "demand_fetches", counters->demand_fetches);
    tide_json_count(&line, "prefetches", counters->prefetches);
    tide_json_real(&line, "adam_host_seconds", counters->adam_host_seconds);
    tide_json_real(&line, "adam_device_seconds", counters->adam_device_seconds);
    tide_json_count(&line, "device_bytes_peak", counters->device_bytes_peak);
    tide_json_count(&line, "host_bytes_peak", counters->host_bytes_peak);
    tide_json_count(&line, "skipped", report->skipped);
    tide_json_close(&line, '}');
    bool complete = tide_json_end(&line);
    *bytes = line.length;
    return complete;
}

static tide_status bytes_write(tide_metrics *metrics, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t wrote = write(metrics->descriptor, text, bytes);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return file_failed(metrics, "can't be written");
        text += wrote;
        bytes -= (size_t)wrote;
    }
    return TIDE_OK;
}

tide_status tide_metrics_counters(tide_metrics *metrics, const tide_pool_counters *counters)
{
    if (metrics->written == metrics->reported)
        return tide_fail(TIDE_ERROR_STATE, "metrics file %s: counters of a step that nobody reported",
                         metrics->path);
    const waiting_step *step = &metrics->waiting[metrics->written % TIDE_METRICS_WAITING_MAX];
    size_t bytes = 0;
    bool complete = line_build(metrics, step, counters, &bytes);
    assert(complete && "21 numbers of at most 24 characters and their names fit");
    (void)complete;
    metrics->written++;
    return bytes_write(metrics, metrics->line, bytes);
}

tide_status tide_metrics_close(tide_metrics *metrics)
{
    tide_status status = TIDE_OK;
    if (metrics == NULL)
        return TIDE_OK;
    if (close(metrics->descriptor) != 0)
        status = file_failed(metrics, "can't be closed");
    free(metrics);
    return status;
}
