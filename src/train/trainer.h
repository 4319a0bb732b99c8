/* The trainer: a model, its data, its pool and its schedule, one step at a time.
 *
 *     tide_trainer_options_default    every choice has a value that can be read and printed
 *     tide_trainer_create             data, model, budgets, pool, then initial values or a checkpoint's
 *     tide_trainer_plan_get           where every byte goes, before step 1
 *     tide_trainer_step ...           one training step each
 *     tide_trainer_evaluate, _sample, _save   between steps, in any order; none changes a bit of training
 *     tide_trainer_destroy
 *
 * Arithmetic. Loss is the mean cross entropy over all tokens of the batch, in nats. AdamW with betas 0.9 and
 * 0.95, epsilon 1e-8 and decoupled weight decay 0.1 on matrices and embeddings (none on biases and norms),
 * the usual choice since GPT-3; global-norm clipping at 1.0; linear warm-up, then a cosine (or another shape,
 * lr_schedule.h) down to a tenth of the learning rate. In fp16 the gradients carry a loss scale
 * (loss_scale.h), which the optimizer takes out exactly. Nothing of this depends on budgets, chunk size,
 * recompute or placement.
 *
 * On the null device nothing is computed: there is no loss, no norm, nothing to evaluate, sample or save.
 *
 * Nothing is printed. One thread drives a trainer.
 */
#ifndef TIDE_TRAIN_TRAINER_H
#define TIDE_TRAIN_TRAINER_H

#include "src/checkpoint/checkpoint.h"
#include "src/data/data.h"
#include "src/export/export.h"
#include "src/model/config.h"
#include "tidepool/pool.h"

typedef struct tide_trainer tide_trainer;

/* Whether a block keeps its activations for backward or computes them again. Never changes a bit. */
typedef enum tide_recompute {
    /* keeps those of the last blocks, as many as the device budget holds beside all else */
    TIDE_RECOMPUTE_AUTO = 0,
    TIDE_RECOMPUTE_NONE,
    TIDE_RECOMPUTE_ALL,
} tide_recompute;

/* Warm-up of a tenth of the run, at most 100 steps. */
#define TIDE_TRAINER_WARMUP_DEFAULT UINT64_MAX
/* A tenth of the learning rate; of a constant schedule all of it. */
#define TIDE_TRAINER_LR_MIN_DEFAULT (-1.0)

typedef struct tide_trainer_options {
    tide_model_config model;
    const char *data;                 /* path; NULL is allowed on the null device */
    const char *eval_data;            /* path; NULL: files named val, or part of data is held out: data.h */
    tide_data_encoding data_encoding; /* of both */
    uint64_t steps;                   /* where the run and its schedule end */
    uint64_t batch_tokens;            /* of the global batch; 0: 8 sequences */
    uint32_t seq_len; /* 0: the model's context, at most its window; with weights at most 4096 */
    uint32_t micro_batch_sequences; /* 0: the most that divide the batch and hold at most 512 tokens, at
                                       least 1 */
    tide_lr_shape schedule;
    double lr;     /* at the end of warm-up; 0: nothing is learnt */
    double lr_min; /* at the last step, or TIDE_TRAINER_LR_MIN_DEFAULT; a constant schedule has none */
    double weight_decay;
    double clip; /* global gradient norm; 0: no clipping, updates run during backward */
    double beta1, beta2, epsilon;
    double loss_scale; /* fp16 only: a power of two from 1 to 2^24 that stays; 0: dynamic (loss_scale.h) */
    uint64_t warmup_steps; /* or TIDE_TRAINER_WARMUP_DEFAULT */
    uint64_t decay_steps;  /* of the schedule wsd; 0: a tenth of the run, at least 1 */
    uint64_t seed;         /* of initial values, data order and samples */
    tide_recompute recompute;
    const char *const
        *freeze; /* [freeze_count] patterns (fnmatch) of the files' names of tensors that are not trained */
    uint32_t freeze_count;
    uint32_t eval_batches; /* validation batches (of the training batch's size) in an evaluation */
    /* Device, dtype, chunk size, placement, prefetch, predict, threads, link, trace, checks. nonmodel_bytes is
     * the trainer's own. Budgets 0: see tide_trainer_plan. */
    tide_pool_options pool;
    uint64_t free_memory_bytes; /* what default budgets are shares of; 0: what the system says */
    /* null device: default budgets are those of the device that it stands for (src/pool/device_factory.h); of
     * the host's memory free_memory_bytes, 0: as much as the run needs */
    bool imitates;
    bool makes_up_tokens;    /* a device that computes needs no data: to find out how long a step takes */
    const char *resume_dir;  /* NULL: initial values; else the newest checkpoint in it, if there is one */
    const char *resume_from; /* NULL; or this very checkpoint (DIR/step-N), whatever resume_dir has */
    bool new_data; /* resume_from's params, moments and step go on with other data, from its first batch on */
    /* NULL: initial values; else a folder of Hugging Face weights of this model, where no checkpoint is
     * resumed; the null device reads nothing */
    const char *weights;
    bool save_weights_only;  /* tide_trainer_save saves no moments */
    const tide_files *files; /* of checkpoints; NULL: POSIX */
} tide_trainer_options;

/* gpt2-nano, 1000 steps, batch, sequence and micro-batch 0, cosine, lr 6e-4 and default floor, weight decay
 * 0.1, clip 1, default warm-up, seed 1, recompute auto, 16 evaluation batches, tide_pool_options_default.
 * data is NULL. */
void tide_trainer_options_default(tide_trainer_options *options);

/* Where every byte goes, fixed at create.
 *
 * Default budgets. Host device (one memory serves both): device = what the run needs to keep all resident, at
 * most a quarter of free memory, but raised to the least that works where a quarter is below it; host = what it
 * needs beside the device budget in force (chosen or given), at most 80% of the free memory which that leaves,
 * and never raised: where even that is too little, create refuses. A GPU: device = what the run needs, at most
 * pool.device_available_bytes, never raised; host = what the run needs beside it, at most 80% of free memory. Null device:
 * what the run needs, both; where it imitates, as the device that it stands for.
 *
 * Free memory is what is available (offload/topology.h); for a GPU, whose host slots are touched as the machine grows, with
 * what the machine has and does not use yet (tide_free_memory_most_bytes).
 *
 * Equations: pool.space_bytes[ACTIVATION] = residual_bytes + saved_bytes; pool.nonmodel_bytes = token_bytes +
 * loss_bytes + logits_bytes + rope_bytes; pool.space_bytes[PARAM] = trained_bytes + frozen_bytes; pool.model_bytes = (params -
 * frozen_params) x element_bytes + frozen_params x frozen_element_bytes + padding_bytes. */
typedef struct tide_trainer_plan {
    tide_pool_plan pool;     /* its params count the vocabulary's padded rows */
    uint64_t params;         /* elements of the model's params, as files hold them; */
    uint64_t frozen_params;  /* of them, those that are not trained, */
    uint32_t frozen_tensors; /* in so many tensors of the files */
    uint32_t element_bytes,
        frozen_element_bytes;             /* of pool.model_bytes: a trained element's, and a frozen one's; */
    uint64_t padding_bytes;               /* and the padded rows' (src/model/params.h) */
    uint64_t trained_bytes, frozen_bytes; /* of the PARAM space */
    uint64_t batch_tokens;                /* the options in force, defaults resolved */
    uint64_t warmup_steps;
    uint64_t free_memory_bytes; /* of the host; 0 if no default budget needed it */
    /* of a GPU, when its context and libraries existed, less the reserve; else 0 */
    uint64_t device_available_bytes;
    uint32_t seq_len;
    uint32_t batch_sequences;
    uint32_t micro_batch_sequences;
    uint32_t micro_batches;     /* batch_sequences / micro_batch_sequences */
    uint32_t blocks;            /* that backward reaches: the last ones */
    uint32_t recomputed_blocks; /* the first of them; the others keep their activations */
    uint64_t residual_bytes;    /* ACTIVATION space: blocks + 1 residual inputs of the whole batch */
    uint64_t saved_bytes;       /* ACTIVATION space: saved activations of blocks that do not recompute */
    uint64_t saved_block_bytes; /* of that, one block's */
    uint64_t token_bytes;       /* non-model region: inputs and targets of the batch */
    uint64_t loss_bytes;        /* non-model region: losses of a micro-batch and their sum */
    uint64_t logits_bytes;      /* non-model region: logits of one position, for sampling */
    uint64_t rope_bytes;        /* non-model region: the table of rotary positions; 0: the model has none */
    double step_flops;          /* of a training step, recompute included */
    bool default_device_budget; /* options.pool.device_memory_bytes was 0 */
    bool default_host_budget;
} tide_trainer_plan;

/* Everything that can be refused is refused here, before anything is trained.
 *   ARGUMENT     an option: which, its value, what would be right (a batch that does not divide by sequence
 *                or micro-batch, a sequence longer than the context, a pattern to freeze that no param has or
 *                that leaves none to train, ...)
 *   IO, CORRUPT  the data (a token outside the vocabulary, too short, ...), the weights, or the checkpoint to resume from
 *   MISMATCH     the checkpoint is of another model, data set (but with new_data), seed or batch, or the weights are
 *                of another model
 *   BUDGET       as tide_pool_seal says; where the batch's activations are the reason it also names the
 *                largest batch that fits
 *   NO_MEMORY, UNSUPPORTED, DEVICE
 * On failure *trainer is unchanged and nothing is left behind. */
TIDE_NODISCARD tide_status tide_trainer_create(const tide_trainer_options *options, tide_trainer **trainer);

/* Waits for running work. NULL is allowed. */
void tide_trainer_destroy(tide_trainer *trainer);

const tide_trainer_plan *tide_trainer_plan_get(const tide_trainer *trainer);

/* For counters, traces and names. It belongs to the trainer, which alone steps it. */
tide_pool *tide_trainer_pool(tide_trainer *trainer);

/* Progress, identity and hyperparameters: what a checkpoint holds. `step` is the number of steps done. */
const tide_train_state *tide_trainer_state(const tide_trainer *trainer);

/* False on the null device: no loss, nothing to evaluate, sample or save. */
bool tide_trainer_computes(const tide_trainer *trainer);

/* What its tokens come from; SHARDS without data. */
tide_data_format tide_trainer_data_format(const tide_trainer *trainer);

/* The trainer's data, which the caller may read between two calls of the trainer; NULL without data. */
tide_data *tide_trainer_data(tide_trainer *trainer);

/* What create found to resume from. */
typedef struct tide_trainer_resumed {
    /* false: none to resume from was named, or resume_dir has none; training starts at step 0 */
    bool resumed;
    tide_checkpoint_found from; /* step and path */
    tide_train_changes changes; /* hyperparameters and frozen params that differ from the checkpoint's */
} tide_trainer_resumed;

const tide_trainer_resumed *tide_trainer_resumed_get(const tide_trainer *trainer);

typedef struct tide_trainer_report {
    uint64_t step;         /* counts from 1: of a run that starts anew, and goes on after a resume */
    double loss;           /* mean over the batch, nats a token; NAN if nothing is computed */
    double gradient_norm;  /* before clipping, without the loss scale; NAN if nothing is computed */
    double gradient_scale; /* clip factor over loss scale */
    double loss_scale;     /* 1: none */
    double lr;
    uint64_t tokens; /* trained on so far, this step included */
    bool skipped;    /* the norm was not finite: weights unchanged */
    uint32_t skipped_in_row;
    /* Of this step, predicted when it began (tide_pool_predict). NAN without pool.predict, where the prediction failed,
     * in a trainer's first step, and in its second unless the first's updates were over. */
    double predicted_step_seconds;
    double predicted_stall_seconds;
} tide_trainer_report;

/* One training step; updates may still run when it returns. The step's share of the counters comes from
 * tide_pool_step_counters_take: the pool counts its training steps from 1 since create.
 *   NONFINITE  as tide_step_result_get: training can't go on
 *   CORRUPT    a token of the data, or a data file that was changed; nothing is poisoned
 *   IO         a data file can't be read; nothing is poisoned
 *   others     the step was aborted: it can be repeated, with the same bits, unless the pool is poisoned
 * *report is set on success only. `report` may be NULL. */
TIDE_NODISCARD tide_status tide_trainer_step(tide_trainer *trainer, tide_trainer_report *report);

/* Mean loss over the first eval_batches batches of the validation split, forward only. CORRUPT and IO of the
 * data, as a step. STATE on the null device. */
TIDE_NODISCARD tide_status tide_trainer_evaluate(tide_trainer *trainer, double *loss);

typedef struct tide_sample_options {
    uint32_t tokens;    /* to make */
    double temperature; /* 0: the likeliest token always */
    uint32_t top_k;     /* 0: all tokens */
    const char *prompt; /* NULL or "": a newline (text), token 0 (shards) */
    uint32_t sample;    /* which of many; with the seed it fixes the random numbers */
} tide_sample_options;

/* 200 tokens, temperature 0.8, top-k 40, no prompt, sample 0. */
void tide_sample_options_default(tide_sample_options *options);

/* Text made by the model, prompt not included, as tide_data_show shows it: zero-terminated, the caller frees
 * it. Every token costs one forward pass over the last seq_len tokens. ARGUMENT (a prompt where the data is
 * no text, a temperature below 0), STATE on the null device, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trainer_sample(tide_trainer *trainer, const tide_sample_options *options,
                                               char **text);

/* Bytes of a checkpoint of a run with these options, before there is a trainer. ARGUMENT (a pattern to freeze), NO_MEMORY,
 * UNSUPPORTED. */
TIDE_NODISCARD tide_status tide_trainer_save_bytes(const tide_trainer_options *options, uint64_t *bytes);

/* Finish an export that was begun, with the params as they are now (tide_export_finish: statuses); export->model is not read. Waits
 * for running updates. STATE on the null device. */
TIDE_NODISCARD tide_status tide_trainer_export(tide_trainer *trainer, const tide_export *export,
                                               tide_export_place *place);

/* Save as dir/step-N (tide_checkpoint_save: statuses, `keep`, `saved`). Waits for running updates. STATE on
 * the null device. */
TIDE_NODISCARD tide_status tide_trainer_save(tide_trainer *trainer, const char *dir, unsigned keep,
                                             tide_checkpoint_saved *saved);

#endif
