#include "tools/plan/plan_print.h"

#include "tools/plan/model_text.h"
#include "tools/train/train_report.h"
#include "tools/units.h"

#include <string.h>

/* ---- seconds ---- */

enum { SECONDS_TEXT_BYTES = 24 };

/* "18.6 s", "93.2 ms", "0 s": three significant digits. */
static const char *seconds_format(double seconds, char text[SECONDS_TEXT_BYTES])
{
    if (seconds <= 0)
        snprintf(text, SECONDS_TEXT_BYTES, "0 s");
    else if (seconds < 0.9995)
        snprintf(text, SECONDS_TEXT_BYTES, "%.*f ms",
                 seconds < 0.00995  ? 2
                 : seconds < 0.0995 ? 1
                                    : 0,
                 seconds * 1e3);
    else
        snprintf(text, SECONDS_TEXT_BYTES, "%.*f s", seconds < 9.995 ? 2 : seconds < 99.95 ? 1 : 0, seconds);
    return text;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

/* ---- memory ---- */

static void head_print(const tide_plan *plan, FILE *out)
{
    const tide_machine_profile *profile = plan->profile;
    const tide_model_config *model = &plan->options->model;
    char text[TIDE_MODEL_TEXT_BYTES], memory[TIDE_UNITS_TEXT_BYTES], host[TIDE_UNITS_TEXT_BYTES];
    fprintf(out, "%s: %s\n", model->name, tide_model_text(model, text));
    tide_model_notes(model, out);
    fprintf(out, "machine: %s", profile->name);
    if (plan->device[0] != '\0')
        fprintf(out, ", device %s", plan->device);
    if (profile->gpu_bytes != 0)
        fprintf(out, ", %s of device memory to use", tide_size_format(profile->gpu_bytes, memory));
    if (plan->options->pool.free_memory_bytes != 0)
        fprintf(out, ", %s of host memory", tide_size_format(plan->options->pool.free_memory_bytes, host));
    fprintf(out, "; %s\n", profile->source);
}

tide_status tide_plan_print_memory(const tide_plan *plan, FILE *out)
{
    const tide_trainer_plan *trainer = &plan->performance.plan;
    char tokens[TIDE_UNITS_TEXT_BYTES], sequences[TIDE_UNITS_TEXT_BYTES], parts[TIDE_UNITS_TEXT_BYTES];
    tide_trainer_plan named = *trainer;
    head_print(plan, out);
    fprintf(out, "%s; a step is %s: %s of %u in %s", tide_dtype_name(plan->options->dtype),
            tide_count_noun(trainer->global_batch_tokens, "token", tokens),
            tide_count_noun(trainer->global_batch_sequences, "sequence", sequences), trainer->seq_len,
            tide_count_noun(trainer->micro_batches, "micro-batch", parts));
    if (trainer->ranks > 1)
        fprintf(out, " on each of %u ranks", trainer->ranks);
    tide_report_sums(trainer, out);
    fprintf(out, "\n");
    named.pool.largest_op = plan->performance.largest_op;
    return tide_report_plan(&named, out);
}

void tide_plan_print_ranks(const tide_plan *plan, FILE *out)
{
    const tide_pool_plan *pool = &plan->performance.plan.pool;
    const tide_ranks_options *ranks = &plan->options->pool.ranks;
    char gathered[TIDE_UNITS_TEXT_BYTES], reduced[TIDE_UNITS_TEXT_BYTES], chunk[TIDE_UNITS_TEXT_BYTES];
    fprintf(out, "\nZeRO stage %u%s on %u ranks: each ", ranks->zero_stage,
            ranks->zero_stage == 1 ? ", run as 2 (gradients use the params' memory)," : "", ranks->count);
    fprintf(out,
            ranks->zero_stage == 0 ? "has all params and their state\n"
                                   : "owns a chunk of every group of %u\n",
            ranks->count);
    if (ranks->zero_stage > 0)
        fprintf(out, "gathers run %s; %u of %u groups have a frame\n",
                pool->gathers_ahead ? "beside the op before" : "when an op begins, for want of memory",
                pool->frames, pool->chunks[TIDE_SPACE_PARAM]);
    if (plan->options->pool.chunk_bytes == 0 && ranks->zero_stage > 0)
        fprintf(out, "chunks of %s: the largest up to 64MiB with which %s\n",
                tide_size_format_exact(pool->chunk_bytes, chunk),
                pool->gathers_ahead ? "gathers run ahead" : "the run fits");
    fprintf(out, "a step brings each rank %s of params and %s of gradients\n",
            tide_size_format(pool->gathered_bytes, gathered), tide_size_format(pool->reduced_bytes, reduced));
    fprintf(out, "times of several ranks are not predicted yet\n");
}

/* ---- time ---- */

static void resource_print(const tide_performance *performance, tide_resource resource, const char *note,
                           FILE *out)
{
    char seconds[SECONDS_TEXT_BYTES];
    const double busy = performance->busy_seconds[resource];
    fprintf(out, "  %-26s%10s %4.0f%%%s%s\n", tide_resource_name(resource), seconds_format(busy, seconds),
            percent(busy, performance->step.seconds), *note != '\0' ? "   " : "", note);
}

static void stall_print(const tide_pool_counters *step, FILE *out)
{
    char seconds[SECONDS_TEXT_BYTES];
    const char *between = "   (";
    fprintf(out, "  %-26s%10s %4.0f%%", "compute stands still", seconds_format(step->stall_seconds, seconds),
            percent(step->stall_seconds, step->seconds));
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++) {
        const double part = percent(step->stall_seconds_by[cause], step->seconds);
        if (part < 0.05)
            continue;
        fprintf(out, "%s%s %.1f%%", between, tide_stall_cause_name((tide_stall_cause)cause), part);
        between = ", ";
    }
    fprintf(out, "%s\n", *between == ',' ? ")" : "");
}

void tide_plan_print_time(const tide_plan *plan, FILE *out)
{
    const tide_performance *performance = &plan->performance;
    const tide_pool_counters *step = &performance->step;
    char seconds[SECONDS_TEXT_BYTES], in[TIDE_UNITS_TEXT_BYTES], to[TIDE_UNITS_TEXT_BYTES];
    fprintf(out, "\na step takes about %s, %.0f tokens/s; what bounds it: %s\n",
            seconds_format(step->seconds, seconds), performance->tokens_per_second,
            tide_resource_name(performance->bound));
    resource_print(performance, TIDE_RESOURCE_COMPUTE, "", out);
    resource_print(performance, TIDE_RESOURCE_LINK_IN, tide_size_format(step->h2d_bytes, in), out);
    resource_print(performance, TIDE_RESOURCE_LINK_OUT, tide_size_format(step->d2h_bytes, to), out);
    resource_print(performance, TIDE_RESOURCE_HOST_ADAM, "", out);
    resource_print(performance, TIDE_RESOURCE_DEVICE_ADAM, "", out);
    stall_print(step, out);
    if (plan->profile->measured && performance->measured_part < 0.995)
        fprintf(out, "  %.0f%% of compute is inferred from kernels of other shapes, or from rates\n",
                100 * (1 - performance->measured_part));
}

/* ---- advice ---- */

void tide_plan_print_advice(const tide_plan *plan, FILE *out)
{
    char seconds[SECONDS_TEXT_BYTES], tokens[TIDE_UNITS_TEXT_BYTES];
    char what[TIDE_PROPOSAL_TEXT_BYTES], option[TIDE_PROPOSAL_OPTION_BYTES];
    const char *const mark = "   (changes numerics)";
    if (plan->has_free_batch && plan->free_batch != 0)
        fprintf(out,
                "offloading costs nothing (2%% of a step at most) from %s tokens a step on, in micro-batches "
                "of %u\n",
                tide_count_format(plan->free_batch, tokens), plan->performance.plan.micro_batch_sequences);
    else if (plan->has_free_batch)
        fprintf(out, "offloading costs something in every batch that fits, up to 16 times this one\n");
    if (plan->proposal_count == 0) {
        fprintf(out, "nothing that was tried would help by a hundredth\n");
        return;
    }
    fprintf(out, "what would help most:\n");
    for (uint32_t i = 0; i < plan->proposal_count; i++) {
        const tide_proposal *proposal = &plan->proposals[i];
        tide_proposal_what(proposal, &plan->options->model, what);
        tide_proposal_option(proposal, &plan->options->model, option);
        fprintf(out, "  %+5.0f%% tokens/s  %s%s%s: %s a step, %.0f tokens/s%s\n", 100 * proposal->gain, what,
                option[0] != '\0' ? ", " : "", option, seconds_format(proposal->step_seconds, seconds),
                proposal->tokens_per_second, tide_proposal_changes_numerics(proposal) ? mark : "");
    }
}

void tide_plan_print_refusal(const tide_plan *plan, FILE *out)
{
    static const char *const heads[] = {
        "no way out was found",
        "a way out:", "two ways out, each enough by itself:", "three ways out, each enough by itself:"};
    head_print(plan, out);
    fprintf(out, "it does not fit: %s\n", plan->refusal);
    fprintf(out, "%s\n", heads[plan->proposal_count]);
    for (uint32_t i = 0; i < plan->proposal_count; i++) {
        char what[TIDE_PROPOSAL_TEXT_BYTES], option[TIDE_PROPOSAL_OPTION_BYTES];
        const tide_proposal *way = &plan->proposals[i];
        tide_proposal_what(way, &plan->options->model, what);
        tide_proposal_option(way, &plan->options->model, option);
        fprintf(out, "  %s%s%s%s\n", what, option[0] != '\0' ? ": " : "", option,
                tide_proposal_changes_numerics(way) ? "   (changes numerics)" : "");
    }
}

/* ---- rows ---- */

void tide_plan_print_row_head(FILE *out)
{
    fprintf(out, "%-22s %11s %11s %10s %10s %7s %11s %11s  %s\n", "", "device", "host", "step", "tokens/s",
            "stall", "to device", "to host", "bound by");
}

void tide_plan_print_row(const char *name, const tide_performance *performance, const char *refusal,
                         FILE *out)
{
    char device[TIDE_UNITS_TEXT_BYTES], host[TIDE_UNITS_TEXT_BYTES], in[TIDE_UNITS_TEXT_BYTES],
        to[TIDE_UNITS_TEXT_BYTES], seconds[SECONDS_TEXT_BYTES];
    if (refusal != NULL) {
        fprintf(out, "%-22s does not fit: %s\n", name, refusal);
        return;
    }
    const tide_pool_plan *pool = &performance->plan.pool;
    const tide_pool_counters *step = &performance->step;
    fprintf(out, "%-22s %11s %11s %10s %10.0f %6.1f%% %11s %11s  %s\n", name,
            tide_size_format(pool->device_memory_bytes, device),
            tide_size_format(pool->host_memory_bytes, host), seconds_format(step->seconds, seconds),
            performance->tokens_per_second, percent(step->stall_seconds, step->seconds),
            tide_size_format(step->h2d_bytes, in), tide_size_format(step->d2h_bytes, to),
            tide_resource_name(performance->bound));
}
