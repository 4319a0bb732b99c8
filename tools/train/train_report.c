/* The table of bytes is a tree of sums. Every line with parts is checked to be exactly their sum, so that a
 * byte which the plan forgets or counts twice ends the run before step 1. */
#include "tools/train/train_report.h"

#include "base/clock.h"
#include "chunk/layout.h"
#include "offload/module.h"
#include "tools/units.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* shorter waits are not printed: they are the time of the checks alone */
static const double waited_seconds_least = 0.1;

/* ---- where every byte goes ---- */

static void plan_line(FILE *out, int indent, const char *name, uint64_t bytes, const char *note)
{
    char human[TIDE_UNITS_TEXT_BYTES], exact[TIDE_UNITS_TEXT_BYTES];
    fprintf(out, "%*s%-*s%18s B %12s%s%s\n", indent, "", 34 - indent, name, tide_count_format(bytes, exact),
            tide_size_format(bytes, human), *note != '\0' ? "   " : "", note);
}

/* INTERNAL if the whole is not exactly the sum of its parts. */
static tide_status sum_check(const char *whole_name, uint64_t whole, const uint64_t *parts, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += parts[i];
    if (sum != whole)
        return tide_fail(TIDE_ERROR_INTERNAL,
                         "the plan does not add up: %s is %llu bytes, its parts are %llu", whole_name,
                         (unsigned long long)whole, (unsigned long long)sum);
    return TIDE_OK;
}

static tide_status model_print(const tide_trainer_plan *plan, FILE *out)
{
    const tide_pool_plan *pool = &plan->pool;
    const uint64_t trained = plan->params - plan->frozen_params;
    const uint64_t parts[] = {trained * plan->element_bytes, plan->frozen_params * plan->frozen_element_bytes,
                              plan->padding_bytes};
    char params[TIDE_UNITS_TEXT_BYTES], padding[TIDE_UNITS_TEXT_BYTES], note[128];
    uint64_t used = 0;
    for (int space = 0; space < TIDE_SPACE_ACTIVATION; space++)
        used += pool->space_bytes[space];
    int length = snprintf(note, sizeof note, "%s params x %u bytes", tide_count_format(trained, params),
                          plan->element_bytes);
    if (plan->frozen_params != 0)
        length += snprintf(note + length, sizeof note - (size_t)length, " + %s frozen x %u bytes",
                           tide_count_format(plan->frozen_params, params), plan->frozen_element_bytes);
    if (plan->padding_bytes != 0)
        snprintf(note + length, sizeof note - (size_t)length, " + %s of padded vocabulary",
                 tide_size_format(plan->padding_bytes, padding));
    plan_line(out, 2, "model data", pool->model_bytes, note);
    const tide_status status = sum_check("model data", pool->model_bytes, parts, 3);
    if (plan->ranks > 1) {
        snprintf(note, sizeof note, "of rank 0; no other of the %u has more", plan->ranks);
        plan_line(out, 2, "on a rank", used, note);
        return status;
    }
    if (status != TIDE_OK)
        return status;
    if (used < pool->model_bytes)
        return tide_fail(TIDE_ERROR_INTERNAL,
                         "the plan does not add up: model data is %llu bytes, its spaces hold %llu",
                         (unsigned long long)pool->model_bytes, (unsigned long long)used);
    return TIDE_OK;
}

/* Prints the two parts of the PARAM space if some params are frozen. */
static tide_status params_print(const tide_trainer_plan *plan, FILE *out)
{
    const uint64_t parts[] = {plan->trained_bytes, plan->frozen_bytes};
    char note[96], tensors[TIDE_UNITS_TEXT_BYTES];
    if (plan->frozen_tensors != 0 && plan->ranks <= 1) {
        snprintf(note, sizeof note, "%s without gradient and state",
                 tide_count_noun(plan->frozen_tensors, "tensor", tensors));
        plan_line(out, 6, "trained", plan->trained_bytes, "");
        plan_line(out, 6, "frozen", plan->frozen_bytes, note);
    }
    return plan->ranks > 1 ? TIDE_OK
                           : sum_check("space param", plan->pool.space_bytes[TIDE_SPACE_PARAM], parts, 2);
}

/* Prints the two parts of the ACTIVATION space: each block's input, and the saved activations of blocks that
 * are not recomputed. */
static tide_status activations_print(const tide_trainer_plan *plan, FILE *out)
{
    const uint64_t parts[] = {plan->residual_bytes, plan->saved_bytes};
    char note[96], blocks[TIDE_UNITS_TEXT_BYTES];
    snprintf(note, sizeof note, "recomputed in %u of %s", plan->recomputed_blocks,
             tide_count_noun(plan->blocks, "block", blocks));
    plan_line(out, 6, "residual inputs", plan->residual_bytes, "");
    plan_line(out, 6, "saved activations", plan->saved_bytes, note);
    return sum_check("space activation", plan->pool.space_bytes[TIDE_SPACE_ACTIVATION], parts, 2);
}

static tide_status space_parts_print(const tide_trainer_plan *plan, tide_space space, FILE *out)
{
    if (space == TIDE_SPACE_PARAM)
        return params_print(plan, out);
    return space == TIDE_SPACE_ACTIVATION ? activations_print(plan, out) : TIDE_OK;
}

static tide_status spaces_print(const tide_trainer_plan *plan, FILE *out)
{
    const tide_pool_plan *pool = &plan->pool;
    uint64_t total = 0;
    uint32_t chunks = 0;
    char note[96], counted[TIDE_UNITS_TEXT_BYTES];
    for (int space = 0; space < TIDE_SPACE_COUNT; space++) {
        uint64_t bytes = pool->chunks[space] * pool->chunk_bytes;
        char unused[TIDE_UNITS_TEXT_BYTES], count[TIDE_UNITS_TEXT_BYTES];
        if (bytes < pool->space_bytes[space])
            return tide_fail(TIDE_ERROR_INTERNAL,
                             "the plan does not add up: space %s has more bytes than its chunks",
                             tide_space_name((tide_space)space));
        snprintf(note, sizeof note, "%s, %s unused at the end",
                 tide_count_noun(pool->chunks[space], "chunk", count),
                 tide_size_format(bytes - pool->space_bytes[space], unused));
        plan_line(out, 4, tide_space_name((tide_space)space), pool->space_bytes[space], note);
        const tide_status status = space_parts_print(plan, (tide_space)space, out);
        if (status != TIDE_OK)
            return status;
        total += pool->space_bytes[space];
        chunks += pool->chunks[space];
    }
    snprintf(note, sizeof note, "%s, tensors on 256-byte boundaries",
             tide_count_noun(chunks, "chunk", counted));
    plan_line(out, 2, "all spaces", total, note);
    return TIDE_OK;
}

static tide_status region_print(const tide_trainer_plan *plan, FILE *out)
{
    const tide_pool_plan *pool = &plan->pool;
    uint64_t nonmodel[] = {plan->token_bytes, plan->loss_bytes, plan->logits_bytes, plan->rope_bytes};
    uint64_t region[] = {pool->nonmodel_bytes, pool->workspace_bytes, pool->shared_accumulator_bytes,
                         pool->scalar_bytes, pool->ring_bytes};
    tide_status status = sum_check("the trainer's part of the region", pool->nonmodel_bytes, nonmodel, 4);
    if (status == TIDE_OK)
        status = sum_check("the region", pool->region_bytes, region, 5);
    plan_line(out, 4, "region", pool->region_bytes, "");
    plan_line(out, 6, "tokens", plan->token_bytes, "inputs and targets of a batch");
    plan_line(out, 6, "losses", plan->loss_bytes, "");
    plan_line(out, 6, "logits for sampling", plan->logits_bytes, "");
    if (plan->rope_bytes != 0)
        plan_line(out, 6, "rotary positions", plan->rope_bytes, "");
    plan_line(out, 6, "workspace and accumulators", pool->workspace_bytes, "of the op that needs most");
    plan_line(out, 6, "shared accumulators", pool->shared_accumulator_bytes,
              "of gradients that several ops make");
    plan_line(out, 6, "norm and scalars", pool->scalar_bytes, "");
    if (pool->ring_bytes != 0)
        plan_line(out, 6, "ring", pool->ring_bytes, "of gradients that arrive from other ranks");
    return status;
}

void tide_report_sums(const tide_trainer_plan *plan, FILE *out)
{
    char size[TIDE_UNITS_TEXT_BYTES];
    if (plan->sum_groups > 1)
        fprintf(out, ", gradients summed in %u groups", plan->sum_groups);
    if (plan->sum_groups > plan->ranks)
        fprintf(out, " (%s of region)", tide_size_format(plan->pool.sum_group_bytes, size));
    if (plan->reduce_dtype != TIDE_DTYPE_FP32)
        fprintf(out, ", each sum rounded to %s", tide_dtype_name(plan->reduce_dtype));
}

/* Prints the first lines of a budget. The caller then prints the lines of the budget's other part (`other`
 * bytes), and budget_end prints the rest. */
static tide_status budget_begin(const char *tier, uint64_t budget, bool by_default, uint32_t slots,
                                uint64_t chunk_bytes, uint64_t other, FILE *out)
{
    char name[64], note[64];
    uint64_t slot_bytes = slots * chunk_bytes;
    snprintf(name, sizeof name, "%s budget", tier);
    if (slot_bytes > budget || other > budget - slot_bytes)
        return tide_fail(TIDE_ERROR_INTERNAL,
                         "the plan does not add up: %s of %llu bytes, %u slots and %llu bytes", name,
                         (unsigned long long)budget, slots, (unsigned long long)other);
    plan_line(out, 2, name, budget, by_default ? "default" : "");
    snprintf(note, sizeof note, "%u x chunk", slots);
    plan_line(out, 4, "slots", slot_bytes, note);
    return TIDE_OK;
}

static void budget_end(uint64_t budget, uint32_t slots, uint64_t chunk_bytes, uint64_t other, FILE *out)
{
    plan_line(out, 4, "unused", budget - slots * chunk_bytes - other, "");
}

static tide_status device_print(const tide_trainer_plan *plan, FILE *out)
{
    const tide_pool_plan *pool = &plan->pool;
    char note[96], reserve[TIDE_UNITS_TEXT_BYTES];
    const uint64_t other = pool->frame_bytes + pool->region_bytes;
    tide_status status = budget_begin("device", pool->device_memory_bytes, plan->default_device_budget,
                                      pool->device_slots, pool->chunk_bytes, other, out);
    if (status == TIDE_OK && pool->frames != 0) {
        snprintf(note, sizeof note, "%u x %u chunks of other ranks", pool->frames, plan->ranks - 1);
        plan_line(out, 4, "frames", pool->frame_bytes, note);
    }
    if (status == TIDE_OK)
        status = region_print(plan, out);
    if (status == TIDE_OK)
        budget_end(pool->device_memory_bytes, pool->device_slots, pool->chunk_bytes, other, out);
    if (status == TIDE_OK && plan->device_available_bytes != 0) {
        snprintf(note, sizeof note, "before the run, less %s kept back",
                 tide_size_format(TIDE_MODULE_RESERVE_BYTES, reserve));
        plan_line(out, 2, "free on the GPU", plan->device_available_bytes, note);
    }
    return status;
}

static tide_status host_print(const tide_trainer_plan *plan, FILE *out)
{
    const tide_pool_plan *pool = &plan->pool;
    tide_status status = budget_begin("host", pool->host_memory_bytes, plan->default_host_budget,
                                      pool->host_slots, pool->chunk_bytes, pool->buffer_bytes, out);
    if (status != TIDE_OK)
        return status;
    plan_line(out, 4, "buffers", pool->buffer_bytes, "staging and scalars");
    budget_end(pool->host_memory_bytes, pool->host_slots, pool->chunk_bytes, pool->buffer_bytes, out);
    return TIDE_OK;
}

tide_status tide_report_plan(const tide_trainer_plan *plan, FILE *out)
{
    const tide_pool_plan *pool = &plan->pool;
    char chunk[TIDE_UNITS_TEXT_BYTES], least[TIDE_UNITS_TEXT_BYTES], full[TIDE_UNITS_TEXT_BYTES];
    fprintf(out, "where every byte goes (chunks of %s)\n", tide_size_format_exact(pool->chunk_bytes, chunk));
    tide_status status = model_print(plan, out);
    if (status == TIDE_OK)
        status = spaces_print(plan, out);
    if (status == TIDE_OK)
        status = device_print(plan, out);
    if (status == TIDE_OK)
        status = host_print(plan, out);
    if (status != TIDE_OK)
        return status;
    fprintf(out, "  least device budget %s (op %s decides), everything resident with %s\n",
            tide_size_format(pool->least_device_bytes, least), pool->largest_op,
            tide_size_format(pool->full_device_bytes, full));
    return TIDE_OK;
}

/* The noun for packed documents and parts, for tide_count_noun. */
static const char *piece_noun(const tide_data_counts *counts)
{
    const bool cuts =
        !counts->drops_long &&
        counts->training_documents.long_documents + counts->validation_documents.long_documents > 0;
    return cuts ? "piece" : "document";
}

/* One split's documents: how well they fill their sequences, and what is left out. */
static void documents_print(const tide_data_counts *counts, const tide_data_documents *of, uint64_t sequences,
                            const char *split, FILE *out)
{
    char pieces[TIDE_UNITS_TEXT_BYTES], in[TIDE_UNITS_TEXT_BYTES];
    const double positions = (double)of->positions, places = (double)sequences * (double)counts->seq_len;
    fprintf(out, "%s: %s in %s, %.1f%% padding; of the others %.1f%% are learned", split,
            tide_count_noun(of->pieces, piece_noun(counts), pieces),
            tide_count_noun(sequences, "sequence", in), 100 - 100 * positions / places,
            100 * (double)of->learned / positions);
    if (of->long_documents > 0)
        fprintf(out, "; %llu longer than a sequence: %s", (unsigned long long)of->long_documents,
                counts->drops_long ? "left out" : "cut");
    if (of->unlearned > 0)
        fprintf(out, "; %llu with nothing to learn: left out", (unsigned long long)of->unlearned);
    fprintf(out, "\n");
}

static void packing_print(const tide_data_counts *counts, FILE *out)
{
    if (!counts->packed)
        return;
    documents_print(counts, &counts->training_documents, counts->training_sequences, "packed for training",
                    out);
    documents_print(counts, &counts->validation_documents, counts->validation_sequences,
                    "packed for validation", out);
}

static void split_print(const tide_data_counts *counts, const char *data, const char *eval_data, FILE *out)
{
    char trained[TIDE_UNITS_TEXT_BYTES], validated[TIDE_UNITS_TEXT_BYTES], all[TIDE_UNITS_TEXT_BYTES],
        files[TIDE_UNITS_TEXT_BYTES], validation_files[TIDE_UNITS_TEXT_BYTES];
    const uint64_t training = counts->packed ? counts->training_documents.pieces : counts->training_sequences,
                   validation =
                       counts->packed ? counts->validation_documents.pieces : counts->validation_sequences;
    const char *noun = counts->packed ? piece_noun(counts) : "sequence";
    tide_count_noun(training, noun, trained);
    tide_count_noun(validation, noun, validated);
    switch (counts->split) {
    case TIDE_DATA_SPLIT_HELD_OUT:
        fprintf(out, "held out for validation: %llu of %s, the last %s\n", (unsigned long long)validation,
                tide_count_noun(training + validation, noun, all),
                training + validation < 100 / TIDE_DATA_VALIDATION_PERCENT ? "one" : "5%");
        return;
    case TIDE_DATA_SPLIT_NAMED:
        fprintf(out, "validation: %s in %s named val; training: %s in %s named train\n", validated,
                tide_count_noun(counts->validation_shards, "file", validation_files), trained,
                tide_count_noun(counts->shards, "file", files));
        return;
    case TIDE_DATA_SPLIT_GIVEN:
        fprintf(out, "validation: %s in %s; training: %s in %s, none held out\n", validated, eval_data,
                trained, data);
        return;
    }
}

void tide_report_data(const tide_data_counts *counts, const char *data, const char *eval_data, FILE *out)
{
    split_print(counts, data, eval_data, out);
    packing_print(counts, out);
}

/* ---- how the run trains ---- */

static void schedule_print(const tide_lr_schedule *schedule, FILE *out)
{
    char warmup[TIDE_UNITS_TEXT_BYTES], decay[TIDE_UNITS_TEXT_BYTES];
    const char *shape = tide_lr_shape_name(schedule->shape);
    if (schedule->warmup_steps == 0)
        fprintf(out, "lr %g without warm-up", schedule->lr);
    else
        fprintf(out, "lr %g after %s of warm-up", schedule->lr,
                tide_count_noun(schedule->warmup_steps, "step", warmup));
    if (schedule->shape == TIDE_LR_CONSTANT)
        fprintf(out, ", then %s", shape);
    else if (schedule->shape == TIDE_LR_WSD)
        fprintf(out, ", then %s: constant, down to %g in the last %s", shape, schedule->lr_min,
                tide_count_noun(schedule->decay_steps, "step", decay));
    else
        fprintf(out, ", then %s to %g", shape, schedule->lr_min);
}

void tide_report_optimizer(const tide_train_state *state, FILE *out)
{
    const tide_hyperparameters *hyper = &state->hyper;
    tide_trainer_options usual;
    tide_trainer_options_default(&usual);
    schedule_print(&hyper->schedule, out);
    fprintf(out, ", weight decay %g", hyper->weight_decay);
    if (hyper->beta1 != usual.hyper.beta1 || hyper->beta2 != usual.hyper.beta2)
        fprintf(out, ", betas %g and %g", hyper->beta1, hyper->beta2);
    if (hyper->epsilon != usual.hyper.epsilon)
        fprintf(out, ", epsilon %g", hyper->epsilon);
    fprintf(out, ", clip %g", hyper->clip);
    if (state->dtype == TIDE_DTYPE_FP16)
        fprintf(out, ", loss scale %g%s", state->loss_scale,
                hyper->loss_scale_fixed == 0 ? " (dynamic)" : "");
    fputc('\n', out);
}

/* The rate of all threads together, from the sum of their times. */
static const char *rate_format(const tide_pinning_times *times, uint64_t sum_ns,
                               char text[TIDE_UNITS_TEXT_BYTES])
{
    const double seconds = (double)(sum_ns > 0 ? sum_ns : 1) * 1e-9 / times->threads;
    return tide_size_format((uint64_t)((double)times->bytes / seconds), text);
}

void tide_report_pinning(const tide_pinning_times *times, FILE *out)
{
    char bytes[TIDE_UNITS_TEXT_BYTES], threads[TIDE_UNITS_TEXT_BYTES], touched[TIDE_UNITS_TEXT_BYTES],
        registered[TIDE_UNITS_TEXT_BYTES];
    if (times->bytes == 0)
        return;
    const double waited = (double)times->wait_ns * 1e-9 / times->threads;
    fprintf(out, "pinned %s of host memory in %.2f s with %s (touched at %s/s, registered at %s/s",
            tide_size_format(times->bytes, bytes), (double)times->wall_ns * 1e-9,
            tide_count_noun(times->threads, "thread", threads), rate_format(times, times->touch_ns, touched),
            rate_format(times, times->register_ns, registered));
    if (waited >= waited_seconds_least)
        fprintf(out, ", waited %.2f s", waited);
    fputs(")\n", out);
}

/* ---- lines ---- */

static const char progress_command[] = "tidepool train";

/* Whether the output is a pipe, socket or terminal whose other end is closed. */
static bool reader_left(int descriptor)
{
    struct pollfd output = {.fd = descriptor, .events = POLLOUT};
    return poll(&output, 1, 0) == 1 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

/* Flushes a line. If it can't be written, drops it from stdio's buffer, so that it does not come out later as
 * a part of another line. */
static void line_end(tide_progress *progress)
{
    const bool failed_before = ferror(progress->out) != 0;
    struct pollfd output = {.fd = fileno(progress->out), .events = POLLOUT};
    while (output.fd >= 0 && poll(&output, 1, -1) < 0 && errno == EINTR)
        continue; /* waits while a non-blocking pipe is full: stdio would drop the rest */
    const int error = fflush(progress->out) == 0 ? 0 : errno;
    if (error == 0 && !failed_before)
        return;
    __fpurge(progress->out);
    clearerr(progress->out);
    if (progress->lost++ > 0)
        return;
    progress->reader_left = reader_left(fileno(progress->out));
    fprintf(stderr, "%s: standard output can't be written%s%s; the run goes on without it\n",
            progress_command, error != 0 ? ": " : "", error != 0 ? strerror(error) : "");
}

enum { BAR_CELLS = 40 };

static void bar_clear(tide_progress *progress)
{
    if (progress->bar_shown)
        fputs("\r\033[K", progress->out);
    progress->bar_shown = false;
}

static void bar_draw(tide_progress *progress, uint64_t step, double step_seconds)
{
    char cells[BAR_CELLS + 1];
    if (!progress->terminal || step >= progress->steps)
        return;
    size_t full = (size_t)(BAR_CELLS * step / progress->steps);
    memset(cells, '#', full);
    memset(cells + full, '.', BAR_CELLS - full);
    cells[BAR_CELLS] = '\0';
    fprintf(progress->out, "[%s] %llu/%llu, about %.0f s left", cells, (unsigned long long)step,
            (unsigned long long)progress->steps, step_seconds * (double)(progress->steps - step));
    progress->bar_shown = true;
}

void tide_progress_begin(tide_progress *progress, FILE *out, const tide_trainer *trainer)
{
    *progress = (tide_progress){.out = out,
                                .terminal = isatty(fileno(out)) != 0,
                                .computes = tide_trainer_computes(trainer),
                                .scales = tide_trainer_state(trainer)->dtype == TIDE_DTYPE_FP16,
                                .steps = tide_trainer_state(trainer)->hyper.schedule.steps,
                                .step_tokens = tide_trainer_plan_get(trainer)->global_batch_tokens};
    line_end(progress); /* flush the lines that were printed before the first step */
}

enum { STALL_TEXT_BYTES = 128 };

static int largest(const double seconds[TIDE_STALL_CAUSE_COUNT])
{
    int found = 0;
    for (int cause = 1; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        found = seconds[cause] > seconds[found] ? cause : found;
    return found;
}

/* "12% (update 11, norm 1)": the time that compute stood still, and each cause of at least half a percent,
 * the largest first. */
static const char *stall_format(const tide_pool_counters *of, int digits, char text[STALL_TEXT_BYTES])
{
    const double percent = of->seconds > 0 ? 100 / of->seconds : 0;
    double left[TIDE_STALL_CAUSE_COUNT];
    memcpy(left, of->stall_seconds_by, sizeof left);
    int length = snprintf(text, STALL_TEXT_BYTES, "%.*f%%", digits, percent * of->stall_seconds), named = 0;
    for (int cause = largest(left); percent * left[cause] >= 0.5; cause = largest(left)) {
        length += snprintf(text + length, STALL_TEXT_BYTES - (size_t)length, "%s%s %.*f",
                           named++ == 0 ? " (" : ", ", tide_stall_cause_name((tide_stall_cause)cause), digits,
                           percent * left[cause]);
        left[cause] = 0;
    }
    if (named > 0)
        snprintf(text + length, STALL_TEXT_BYTES - (size_t)length, ")");
    return text;
}

static void step_print(const tide_progress *progress, const tide_trainer_report *report,
                       const tide_pool_counters *counters)
{
    FILE *out = progress->out;
    char moved[TIDE_UNITS_TEXT_BYTES], stall[STALL_TEXT_BYTES];
    double seconds = counters->seconds;
    fprintf(out, "step %llu/%llu", (unsigned long long)report->step, (unsigned long long)progress->steps);
    if (progress->computes)
        fprintf(out, "  loss %.4f  norm %.4f", report->loss, report->gradient_norm);
    if (progress->scales)
        fprintf(out, "  scale %g", report->loss_scale);
    fprintf(out, "  lr %.3g  %.0f tokens/s  stall %s  moved %s%s\n", report->lr,
            seconds > 0 ? (double)progress->step_tokens / seconds : 0, stall_format(counters, 0, stall),
            tide_size_format(counters->h2d_bytes + counters->d2h_bytes, moved),
            report->skipped ? "  SKIPPED: the norm is not finite" : "");
}

static void sum_add(tide_progress *progress, const tide_pool_counters *counters)
{
    tide_pool_counters *sum = &progress->sum;
    progress->lines++;
    sum->seconds += counters->seconds;
    sum->stall_seconds += counters->stall_seconds;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        sum->stall_seconds_by[cause] += counters->stall_seconds_by[cause];
    sum->h2d_bytes += counters->h2d_bytes;
    sum->d2h_bytes += counters->d2h_bytes;
    sum->device_bytes_peak = counters->device_bytes_peak; /* these peaks are of the whole run so far */
    sum->host_bytes_peak = counters->host_bytes_peak;
}

void tide_progress_step(tide_progress *progress, const tide_trainer_report *report,
                        const tide_pool_counters *counters)
{
    bar_clear(progress);
    sum_add(progress, counters);
    step_print(progress, report, counters);
    bar_draw(progress, report->step, progress->sum.seconds / (double)progress->lines);
    line_end(progress);
}

void tide_progress_line(tide_progress *progress, const char *format, ...)
{
    va_list arguments;
    bar_clear(progress);
    va_start(arguments, format);
    vfprintf(progress->out, format, arguments);
    va_end(arguments);
    fputc('\n', progress->out);
    line_end(progress);
}

void tide_progress_warn(tide_progress *progress, const char *format, ...)
{
    va_list arguments;
    if (progress->quiet)
        return;
    bar_clear(progress);
    if (progress->out != NULL)
        fflush(progress->out);
    fprintf(stderr, "%s: ", progress_command);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void tide_progress_end(tide_progress *progress, const tide_pool_plan *plan)
{
    char h2d[TIDE_UNITS_TEXT_BYTES], d2h[TIDE_UNITS_TEXT_BYTES], device[TIDE_UNITS_TEXT_BYTES],
        device_budget[TIDE_UNITS_TEXT_BYTES], host[TIDE_UNITS_TEXT_BYTES], host_budget[TIDE_UNITS_TEXT_BYTES],
        steps[TIDE_UNITS_TEXT_BYTES], stall[STALL_TEXT_BYTES];
    const tide_pool_counters *sum = &progress->sum;
    double tokens = (double)(progress->lines * progress->step_tokens);
    if (progress->lines == 0)
        return;
    tide_progress_line(
        progress, "%s%s in %.2f s, %.0f tokens/s, stall %s; to the device %s, to the host %s",
        progress->computes ? "" : "predicted: ", tide_count_noun(progress->lines, "step", steps),
        sum->seconds, sum->seconds > 0 ? tokens / sum->seconds : 0, stall_format(sum, 1, stall),
        tide_size_format(sum->h2d_bytes, h2d), tide_size_format(sum->d2h_bytes, d2h));
    tide_progress_line(
        progress, "peaks: device %s of %s, host %s of %s", tide_size_format(sum->device_bytes_peak, device),
        tide_size_format(plan->device_memory_bytes, device_budget),
        tide_size_format(sum->host_bytes_peak, host), tide_size_format(plan->host_memory_bytes, host_budget));
}

void tide_progress_close(tide_progress *progress)
{
    if (progress->bar_shown) {
        fputc('\n', progress->out);
        line_end(progress);
    }
    progress->bar_shown = false;
}

bool tide_progress_arrived(const tide_progress *progress)
{
    if (progress->lost == 0 || progress->reader_left)
        return true;
    fprintf(stderr, "%s: standard output could not be written whole\n", progress_command);
    return false;
}

/* ---- tasks that take seconds at start ---- */

static const double silent_seconds = 1, redraw_seconds = 0.1;

void tide_making_begin(tide_making *making, FILE *out)
{
    *making = (tide_making){.out = out, .terminal = isatty(fileno(out)) != 0};
}

void tide_making_show(void *context, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    tide_making *making = context;
    char done[TIDE_UNITS_TEXT_BYTES], total[TIDE_UNITS_TEXT_BYTES];
    const double now = tide_clock_seconds();
    if (making->what == NULL || strcmp(making->what, what) != 0) {
        tide_making_end(making);
        making->what = what;
        making->begin_s = now;
    }
    making->last_s = now;
    making->bytes = done_bytes;
    if (!making->terminal || now - making->begin_s < silent_seconds || now - making->drawn_s < redraw_seconds)
        return;
    fprintf(making->out, "\r\033[Kmaking %s: %s of %s", what, tide_size_format(done_bytes, done),
            tide_size_format(total_bytes, total));
    fflush(making->out);
    making->drawn_s = now;
}

void tide_making_end(tide_making *making)
{
    char bytes[TIDE_UNITS_TEXT_BYTES];
    const double seconds = making->last_s - making->begin_s;
    if (making->drawn_s != 0)
        fputs("\r\033[K", making->out);
    else if (making->what != NULL && seconds >= silent_seconds)
        fprintf(making->out, "made %s of %s in %.1f s\n", tide_size_format(making->bytes, bytes),
                making->what, seconds);
    making->drawn_s = 0;
    making->what = NULL;
}
