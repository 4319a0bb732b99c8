/* Writes the metrics file, one line a step: see metrics.h. */
#include "src/train/metrics.h"

#include "base/json_line.h"
#include "base/output_file.h"
#include "src/train/metrics_trim.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tide_metrics {
    tide_output_file file;
    uint64_t lost;    /* how many lines could not be written */
    bool reader_left; /* the first of these lines was lost because the pipe's reader had closed the pipe */
    char line[TIDE_METRICS_LINE_BYTES];
};

tide_status tide_metrics_open(const char *path, tide_metrics **metrics)
{
    tide_metrics *made = calloc(1, sizeof *made);
    if (made == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "metrics file %s: no memory for %zu bytes", path,
                         sizeof *made);
    tide_status status = tide_output_file_open("metrics file", path, O_RDWR, &made->file);
    if (status != TIDE_OK) {
        free(made);
        return status;
    }
    *metrics = made;
    return TIDE_OK;
}

tide_status tide_metrics_begin(tide_metrics *metrics, bool append, uint64_t step)
{
    tide_status status = tide_output_file_begin(&metrics->file, append);
    return status == TIDE_OK && append ? tide_metrics_trim(&metrics->file, step) : status;
}

static void stalls_add(tide_json_line *line, const tide_pool_counters *counters)
{
    char name[32];
    tide_json_real(line, "stall_seconds", counters->stall_seconds);
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++) {
        snprintf(name, sizeof name, "stall_%s_seconds", tide_stall_cause_name((tide_stall_cause)cause));
        tide_json_real(line, name, counters->stall_seconds_by[cause]);
    }
}

bool tide_metrics_line(const tide_trainer_report *report, const tide_slowest_rank *slowest, uint64_t tokens,
                       const tide_pool_counters *counters, char text[TIDE_METRICS_LINE_BYTES], size_t *bytes)
{
    tide_json_line line;
    tide_json_begin(&line, text, TIDE_METRICS_LINE_BYTES);
    tide_json_open(&line, NULL, '{');
    tide_json_count(&line, "step", report->step);
    tide_json_count(&line, "version", TIDE_METRICS_VERSION);
    tide_json_real(&line, "loss", report->loss);
    tide_json_real(&line, "grad_norm", report->gradient_norm);
    tide_json_real(&line, "lr", report->lr);
    tide_json_real(&line, "loss_scale", report->loss_scale);
    tide_json_count(&line, "tokens", tokens);
    tide_json_count(&line, "learned_tokens", report->learned_tokens);
    tide_json_real(&line, "step_seconds", counters->seconds);
    tide_json_real(&line, "tokens_per_second",
                   counters->seconds > 0 ? (double)tokens / counters->seconds : 0);
    tide_json_real(&line, "compute_seconds", counters->compute_seconds);
    stalls_add(&line, counters);
    tide_json_real(&line, "predicted_step_seconds", report->predicted_step_seconds);
    tide_json_real(&line, "predicted_stall_seconds", report->predicted_stall_seconds);
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
    if (slowest != NULL) {
        tide_json_count(&line, "slowest_rank", slowest->rank);
        tide_json_real(&line, "slowest_step_seconds", slowest->seconds);
    }
    tide_json_close(&line, '}');
    bool complete = tide_json_end(&line);
    *bytes = line.length;
    return complete;
}

/* Writes all bytes; returns 0 or an errno. *wrote: how many bytes were written. */
static int bytes_write(int descriptor, const char *text, size_t bytes, size_t *wrote)
{
    *wrote = 0;
    while (*wrote < bytes) {
        const ssize_t done = write(descriptor, text + *wrote, bytes - *wrote);
        if (done < 0 && errno == EAGAIN) /* a pipe that does not block, with a slow reader: wait for room */
            (void)poll(&(struct pollfd){.fd = descriptor, .events = POLLOUT}, 1, -1);
        else if (done < 0 && errno != EINTR)
            return errno;
        *wrote += done > 0 ? (size_t)done : 0;
    }
    return 0;
}

/* Cuts a partly written line off a regular file again. */
static void part_remove(int descriptor, size_t wrote)
{
    const off_t end = lseek(descriptor, 0, SEEK_CUR);
    if (wrote > 0 && end >= (off_t)wrote && ftruncate(descriptor, end - (off_t)wrote) == 0)
        /* the position is within the file, so this can't fail */
        (void)lseek(descriptor, end - (off_t)wrote, SEEK_SET);
}

tide_status tide_metrics_step(tide_metrics *metrics, const tide_trainer_report *report,
                              const tide_slowest_rank *slowest, uint64_t tokens,
                              const tide_pool_counters *counters)
{
    size_t bytes = 0, wrote = 0;
    assert(metrics->file.begun);
    bool complete = tide_metrics_line(report, slowest, tokens, counters, metrics->line, &bytes);
    assert(complete && "33 numbers of at most 24 characters and their names fit");
    (void)complete;
    const int error = bytes_write(metrics->file.descriptor, metrics->line, bytes, &wrote);
    if (error == 0)
        return TIDE_OK;
    part_remove(metrics->file.descriptor, wrote);
    metrics->reader_left = metrics->lost == 0 ? error == EPIPE : metrics->reader_left;
    metrics->lost++;
    return tide_output_file_failed(&metrics->file, "can't be written", error);
}

uint64_t tide_metrics_lost(const tide_metrics *metrics, bool *reader_left)
{
    *reader_left = metrics->reader_left;
    return metrics->lost;
}

tide_status tide_metrics_close(tide_metrics *metrics)
{
    if (metrics == NULL)
        return TIDE_OK;
    tide_status status = tide_output_file_close(&metrics->file);
    free(metrics);
    return status;
}
