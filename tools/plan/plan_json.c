#include "base/json_line.h"
#include "chunk/layout.h"
#include "tools/plan/plan_print.h"

enum { JSON_BYTES = 32768 };

static void memory_json(tide_json_line *line, const tide_performance *performance)
{
    const tide_trainer_plan *plan = &performance->plan;
    const tide_pool_plan *pool = &plan->pool;
    tide_json_open(line, "memory", '{');
    tide_json_count(line, "params", plan->params);
    tide_json_count(line, "model_bytes", pool->model_bytes);
    tide_json_count(line, "chunk_bytes", pool->chunk_bytes);
    tide_json_open(line, "spaces", '[');
    for (int space = 0; space < TIDE_SPACE_COUNT; space++) {
        tide_json_open(line, NULL, '{');
        tide_json_text(line, "space", tide_space_name((tide_space)space));
        tide_json_count(line, "chunks", pool->chunks[space]);
        tide_json_count(line, "bytes", pool->space_bytes[space]);
        tide_json_close(line, '}');
    }
    tide_json_close(line, ']');
    tide_json_count(line, "residual_bytes", plan->residual_bytes);
    tide_json_count(line, "saved_bytes", plan->saved_bytes);
    tide_json_count(line, "recomputed_blocks", plan->recomputed_blocks);
    tide_json_count(line, "region_bytes", pool->region_bytes);
    tide_json_count(line, "workspace_bytes", pool->workspace_bytes);
    tide_json_count(line, "sum_group_bytes", pool->sum_group_bytes);
    tide_json_count(line, "buffer_bytes", pool->buffer_bytes);
    tide_json_count(line, "device_memory_bytes", pool->device_memory_bytes);
    tide_json_count(line, "device_slots", pool->device_slots);
    tide_json_count(line, "host_memory_bytes", pool->host_memory_bytes);
    tide_json_count(line, "host_slots", pool->host_slots);
    tide_json_count(line, "least_device_bytes", pool->least_device_bytes);
    tide_json_count(line, "least_host_bytes", pool->least_host_bytes);
    tide_json_count(line, "full_device_bytes", pool->full_device_bytes);
    tide_json_count(line, "full_host_bytes", pool->full_host_bytes);
    if (plan->ranks > 1)
        return tide_json_close(line, '}');
    tide_json_count(line, "device_bytes_peak", performance->step.device_bytes_peak);
    tide_json_count(line, "host_bytes_peak", performance->step.host_bytes_peak);
    tide_json_close(line, '}');
}

static void ranks_json(tide_json_line *line, const tide_plan *of)
{
    const tide_trainer_plan *plan = &of->performance.plan;
    const tide_ranks_options *ranks = &of->options->pool.ranks;
    static const char *const reshards[] = {"auto", "on", "off"};
    tide_json_open(line, "ranks", '{');
    tide_json_count(line, "count", ranks->count);
    tide_json_count(line, "zero_stage", ranks->zero_stage);
    tide_json_text(line, "reshard_after_forward", reshards[ranks->reshard]);
    tide_json_count(line, "tokens", plan->global_batch_tokens);
    tide_json_count(line, "seq_len", plan->seq_len);
    tide_json_count(line, "micro_batches", plan->micro_batches);
    tide_json_count(line, "sum_groups", plan->sum_groups);
    tide_json_text(line, "reduce_dtype", tide_dtype_name(plan->reduce_dtype));
    tide_json_count(line, "frames", plan->pool.frames);
    tide_json_count(line, "frame_bytes", plan->pool.frame_bytes);
    tide_json_bool(line, "gathers_ahead", plan->pool.gathers_ahead);
    tide_json_count(line, "ring_bytes", plan->pool.ring_bytes);
    tide_json_count(line, "gathered_bytes", plan->pool.gathered_bytes);
    tide_json_count(line, "reduced_bytes", plan->pool.reduced_bytes);
    tide_json_close(line, '}');
}

static void step_json(tide_json_line *line, const tide_performance *performance)
{
    static const char *const resources[] = {"compute_seconds", "link_in_seconds", "link_out_seconds",
                                            "host_adam_seconds", "device_adam_seconds"};
    const tide_pool_counters *step = &performance->step;
    tide_json_open(line, "step", '{');
    tide_json_count(line, "tokens", performance->plan.global_batch_tokens);
    tide_json_count(line, "seq_len", performance->plan.seq_len);
    tide_json_count(line, "micro_batches", performance->plan.micro_batches);
    tide_json_count(line, "sum_groups", performance->plan.sum_groups);
    tide_json_text(line, "reduce_dtype", tide_dtype_name(performance->plan.reduce_dtype));
    tide_json_real(line, "seconds", step->seconds);
    tide_json_real(line, "tokens_per_second", performance->tokens_per_second);
    tide_json_real(line, "flops", performance->plan.step_flops);
    tide_json_count(line, "h2d_bytes", step->h2d_bytes);
    tide_json_count(line, "d2h_bytes", step->d2h_bytes);
    tide_json_text(line, "bound", tide_resource_name(performance->bound));
    for (int resource = 0; resource < TIDE_RESOURCE_COUNT; resource++)
        tide_json_real(line, resources[resource], performance->busy_seconds[resource]);
    tide_json_real(line, "stall_seconds", step->stall_seconds);
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++) {
        char name[48];
        snprintf(name, sizeof name, "stall_%s_seconds", tide_stall_cause_name((tide_stall_cause)cause));
        tide_json_real(line, name, step->stall_seconds_by[cause]);
    }
    tide_json_real(line, "measured_part", performance->measured_part);
    tide_json_close(line, '}');
}

static void proposals_json(tide_json_line *line, const tide_plan *plan)
{
    tide_json_open(line, plan->fits ? "changes" : "ways_out", '[');
    for (uint32_t i = 0; i < plan->proposal_count; i++) {
        const tide_proposal *proposal = &plan->proposals[i];
        char what[TIDE_PROPOSAL_TEXT_BYTES], option[TIDE_PROPOSAL_OPTION_BYTES];
        tide_proposal_what(proposal, &plan->options->model, what);
        tide_proposal_option(proposal, &plan->options->model, option);
        tide_json_open(line, NULL, '{');
        tide_json_text(line, "what", what);
        tide_json_text(line, "option", option);
        tide_json_bool(line, "changes_bits", tide_proposal_changes_numerics(proposal));
        if (plan->fits) {
            tide_json_real(line, "step_seconds", proposal->step_seconds);
            tide_json_real(line, "tokens_per_second", proposal->tokens_per_second);
            tide_json_real(line, "gain", proposal->gain);
        }
        tide_json_close(line, '}');
    }
    tide_json_close(line, ']');
}

tide_status tide_plan_print_json(const tide_plan *plan, FILE *out)
{
    static char text[JSON_BYTES];
    tide_json_line line;
    tide_json_begin(&line, text, sizeof text);
    tide_json_open(&line, NULL, '{');
    tide_json_text(&line, "model", plan->options->model.name);
    tide_json_text(&line, "machine", plan->profile->name);
    tide_json_text(&line, "source", plan->profile->source);
    tide_json_bool(&line, "measured", plan->profile->measured);
    tide_json_text(&line, "device", plan->device);
    tide_json_text(&line, "no_gpu", plan->no_gpu);
    tide_json_bool(&line, "fits", plan->fits);
    if (plan->fits) {
        memory_json(&line, &plan->performance);
        if (plan->performance.plan.ranks > 1)
            ranks_json(&line, plan);
        else
            step_json(&line, &plan->performance);
        if (plan->has_free_batch)
            tide_json_count(&line, "free_batch_tokens", plan->free_batch);
    } else {
        tide_json_text(&line, "refusal", plan->refusal);
    }
    if (plan->has_free_batch || !plan->fits) /* otherwise no change was tried */
        proposals_json(&line, plan);
    tide_json_close(&line, '}');
    if (!tide_json_end(&line))
        return tide_fail(TIDE_ERROR_INTERNAL, "%d bytes are too few for a plan", JSON_BYTES);
    fputs(text, out);
    return TIDE_OK;
}
