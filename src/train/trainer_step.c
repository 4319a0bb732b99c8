/* A training step: reads the batch of the step's number, runs the model's ops, reads the optimizer's
 * result.
 *
 * The number of steps done is the run's only position: batch, learning rate and random numbers are functions
 * of it. So a step that failed and was aborted can be repeated, and a resumed run continues as if it had
 * never stopped. Two exceptions: after a resume with new data, batches are counted from that step; and in
 * fp16 the loss scale has a position of its own, which changes after a completed step, never after a failed
 * one.
 *
 * The trainer reads the loss after it has queued the step's end: the kernels of the norm and, without
 * clipping, the updates are then queued already, so that the read waits for compute alone. */
#include "src/train/trainer_internal.h"

#include "base/align.h"
#include "src/checkpoint/loss_scale.h"

#include <math.h>
#include <stdio.h>

enum { MESSAGE_BYTES = 1024 };

tide_status tide_trainer_check_computes(const tide_trainer *trainer, const char *what)
{
    if (trainer->computes)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_STATE, "the null device computes nothing: there is nothing to %s", what);
}

tide_status tide_trainer_abort(tide_trainer *trainer, tide_status status)
{
    char message[MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", tide_message());
    const tide_status aborted = tide_step_abort(trainer->pool);
    if (aborted == TIDE_ERROR_PEER) /* a pool of several ranks fails for good, which its message says */
        return tide_fail(status, "%s", message);
    if (aborted == TIDE_OK || (aborted == TIDE_ERROR_STATE && status == TIDE_ERROR_NONFINITE))
        return tide_fail(status, "%s",
                         message); /* the message of NONFINITE says already that the pool is poisoned */
    if (aborted == TIDE_ERROR_STATE)
        return tide_fail(status, "%s (updates had begun: params are undefined until a checkpoint is loaded)",
                         message);
    return tide_fail(status, "%s (and the step could not be given up: %s)", message,
                     tide_status_name(aborted));
}

/* --- a step --- */

static double learning_rate(const tide_train_state *state)
{
    return tide_lr_schedule_at(&state->hyper.schedule, state->step);
}

/* The factor on the loss' gradient; 1 without a loss scale. */
static float loss_scale(const tide_train_state *state)
{
    return state->loss_scale > 0 ? (float)state->loss_scale : 1;
}

static void loss_scale_step(tide_train_state *state, bool skipped)
{
    if (state->dtype != TIDE_DTYPE_FP16 || state->hyper.loss_scale_fixed != 0)
        return;
    const tide_loss_scale now = {.scale = state->loss_scale, .good_steps = state->loss_scale_good_steps};
    const tide_loss_scale next = tide_loss_scale_after(now, skipped);
    state->loss_scale = next.scale;
    state->loss_scale_good_steps = next.good_steps;
}

static tide_step_options step_options(const tide_train_state *state)
{
    return (tide_step_options){
        .training = true,
        .learning_rate = (float)learning_rate(state),
        .beta1 = (float)state->hyper.beta1,
        .beta2 = (float)state->hyper.beta2,
        .epsilon = (float)state->hyper.epsilon,
        .weight_decay = (float)state->hyper.weight_decay,
        .clip_norm = (float)state->hyper.clip,
        .loss_scale = loss_scale(state),
    };
}

void tide_trainer_doing(const tide_trainer *trainer, tide_comm_phase phase, const char *verb, uint64_t step)
{
    char words[64];
    if (trainer->comm == NULL)
        return;
    snprintf(words, sizeof words, "%s step %llu", verb, (unsigned long long)step);
    tide_comm_doing(trainer->comm, phase, words);
}

static tide_status next_batch(tide_trainer *trainer)
{
    if (!trainer->data)
        return TIDE_OK;
    const uint64_t begin_ns = tide_pool_now_ns(trainer->pool);
    tide_trainer_doing(trainer, TIDE_PHASE_READING, "reads the batch of", trainer->state.step + 1);
    const tide_status status =
        tide_data_batch(trainer->data, trainer->state.step - trainer->state.data_first_step,
                        trainer->plan.global_batch_sequences, &trainer->batch);
    tide_trainer_doing(trainer, TIDE_PHASE_COMPUTING, "begins", trainer->state.step + 1);
    tide_pool_trace_work(trainer->pool, "data", begin_ns);
    return status;
}

tide_status tide_trainer_upload(tide_trainer *trainer)
{
    const bool packed = trainer->data && tide_data_count(trainer->data).packed;
    const uint64_t first =
        trainer->plan.global_batch_tokens / trainer->plan.ranks * tide_comm_rank(trainer->comm);
    const tide_decoder_batch batch = {.inputs = trainer->batch.inputs + first,
                                      .targets = trainer->batch.targets + first,
                                      .starts = packed ? trainer->batch.starts + first : NULL,
                                      .learned = trainer->batch.learned};
    return tide_decoder_upload(trainer->model, &batch);
}

/* Runs everything between begin and end of a training step. */
static tide_status run_step(tide_trainer *trainer)
{
    tide_status status = tide_trainer_upload(trainer);
    if (status == TIDE_OK)
        status = tide_decoder_train(trainer->model, loss_scale(&trainer->state));
    return status == TIDE_OK ? tide_step_end(trainer->pool) : status;
}

/* Predict how long the step that has just begun will take. If that fails, the report has no prediction and
 * training goes on. */
static void predict_step(tide_trainer *trainer, tide_trainer_report *report)
{
    tide_pool_prediction prediction;
    if (!trainer->predicts || tide_pool_predict(trainer->pool, &prediction) != TIDE_OK)
        return;
    report->predicted_step_seconds = prediction.step_seconds;
    report->predicted_stall_seconds = prediction.stall_seconds;
}

/* The time so far in which this rank did not wait for other ranks. NAN with one rank, and if nothing is
 * computed. */
static tide_status read_own_seconds(const tide_trainer *trainer, double *seconds)
{
    tide_pool_counters counters;
    *seconds = NAN;
    if (tide_comm_ranks(trainer->comm) == 1 || !trainer->computes)
        return TIDE_OK;
    const tide_status status = tide_pool_counters_get(trainer->pool, &counters);
    if (status == TIDE_OK)
        *seconds = counters.seconds - counters.stall_seconds_by[TIDE_STALL_PEER];
    return status;
}

/* `began_seconds`: read_own_seconds at the step's begin. */
static tide_status measure_step(tide_trainer *trainer, double began_seconds, tide_trainer_report *report,
                                tide_step_result *result)
{
    if (!trainer->computes)
        return TIDE_OK;
    tide_status status = tide_decoder_read_losses(trainer->model);
    const bool nonfinite = status == TIDE_ERROR_NONFINITE;
    if (status == TIDE_OK)
        status = read_own_seconds(trainer, &report->own_seconds);
    /* All ranks find a norm that is not finite, some of them later: those wait here. */
    if (status == TIDE_OK || nonfinite)
        status = tide_decoder_exchange_losses(trainer->model, &report->loss);
    report->own_seconds -= began_seconds;
    /* If updates had begun when a gradient was not finite, every call fails with NONFINITE; the message of
     * tide_step_result_get names the param. */
    if (status == TIDE_OK || status == TIDE_ERROR_NONFINITE)
        return tide_step_result_get(trainer->pool, result);
    return status;
}

static void finish_step(tide_trainer *trainer, const tide_step_result *result, tide_trainer_report *report)
{
    tide_train_state *state = &trainer->state;
    report->lr = learning_rate(state);
    report->loss_scale = (double)loss_scale(state);
    loss_scale_step(state, result->skipped);
    state->step++;
    state->tokens += state->global_batch_tokens;
    state->adam_step = tide_update_count(trainer->pool);
    state->skipped += result->skipped;
    if (trainer->data)
        state->epoch = tide_data_epochs_done(trainer->data, state->step - state->data_first_step,
                                             trainer->plan.global_batch_sequences);
    report->step = state->step;
    report->tokens = state->tokens;
    report->learned_tokens = trainer->batch.learned;
    report->skipped = result->skipped;
    report->skipped_in_row = result->skipped_in_row;
    report->gradient_scale = result->gradient_scale;
    if (trainer->computes)
        report->gradient_norm = result->gradient_norm;
}

/* After a step that failed was aborted with this status and message: has it taken place all the same, because
 * all its updates were done? Then it counts, without a loss. */
static tide_status count_if_done(tide_trainer *trainer, tide_status failure, tide_trainer_report *made)
{
    char message[MESSAGE_BYTES];
    tide_step_result result;
    if (!trainer->computes || tide_update_count(trainer->pool) == trainer->state.adam_step)
        return failure;
    snprintf(message, sizeof message, "%s", tide_message());
    const bool done = tide_step_result_get(trainer->pool, &result) == TIDE_OK; /* else the pool is poisoned */
    if (done)
        finish_step(trainer, &result, made);
    return tide_fail(failure, "%s%s", message, done ? " (the step has taken place)" : "");
}

tide_status tide_trainer_step(tide_trainer *trainer, tide_trainer_report *report)
{
    tide_status status = next_batch(trainer);
    if (status != TIDE_OK)
        return status;
    tide_trainer_report made = {.loss = NAN,
                                .gradient_norm = NAN,
                                .predicted_step_seconds = NAN,
                                .predicted_stall_seconds = NAN,
                                .own_seconds = NAN};
    double began_seconds = NAN;
    tide_step_result result = {.gradient_scale = 1};
    const tide_step_options options = step_options(&trainer->state);
    status = tide_step_begin(trainer->pool, &options);
    if (status == TIDE_OK)
        status = read_own_seconds(trainer, &began_seconds);
    if (status == TIDE_OK)
        predict_step(trainer, &made);
    if (status == TIDE_OK)
        status = run_step(trainer);
    if (status == TIDE_OK)
        status = measure_step(trainer, began_seconds, &made, &result);
    if (status != TIDE_OK)
        return count_if_done(trainer, tide_trainer_abort(trainer, status), &made);
    finish_step(trainer, &result, &made);
    if (report)
        *report = made;
    return TIDE_OK;
}

/* --- evaluation --- */

static tide_status evaluate_batch(tide_trainer *trainer, uint64_t index, double *loss)
{
    tide_trainer_doing(trainer, TIDE_PHASE_READING, "reads a validation batch after", trainer->state.step);
    tide_status status = tide_data_validation_batch(trainer->data, index,
                                                    trainer->plan.global_batch_sequences, &trainer->batch);
    tide_trainer_doing(trainer, TIDE_PHASE_COMPUTING, "evaluates after", trainer->state.step);
    if (status != TIDE_OK)
        return status;
    status = tide_step_begin(trainer->pool, &(tide_step_options){.training = false});
    if (status == TIDE_OK)
        status = tide_trainer_upload(trainer);
    if (status == TIDE_OK)
        status = tide_decoder_evaluate(trainer->model);
    if (status == TIDE_OK)
        status = tide_decoder_loss(trainer->model, loss);
    if (status == TIDE_OK)
        status = tide_step_end(trainer->pool);
    return status == TIDE_OK ? TIDE_OK : tide_trainer_abort(trainer, status);
}

/* How many batches an evaluation has: at most as many as the split fills. The last one may wrap around to the
 * split's begin, but no batch comes twice as a whole. */
static uint64_t evaluation_batches(const tide_trainer *trainer)
{
    const uint64_t sequences = tide_data_count(trainer->data).validation_sequences;
    const uint64_t filled = tide_ceil_div(sequences, trainer->plan.global_batch_sequences);
    return filled < trainer->eval_batches ? filled : trainer->eval_batches;
}

tide_status tide_trainer_evaluate(tide_trainer *trainer, double *loss)
{
    tide_status status = tide_trainer_check_computes(trainer, "evaluate");
    if (status != TIDE_OK)
        return status;
    const uint64_t batches = evaluation_batches(trainer);
    double sum = 0, learned = 0;
    for (uint64_t i = 0; i < batches; i++) {
        double of_batch = 0;
        status = evaluate_batch(trainer, i, &of_batch);
        if (status != TIDE_OK)
            return status;
        sum += of_batch * (double)trainer->batch.learned;
        learned += (double)trainer->batch.learned;
    }
    *loss = learned > 0 ? sum / learned : (double)NAN;
    return TIDE_OK;
}
