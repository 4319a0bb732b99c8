/* The trainer: a model, its data, its pool and its schedule, one step at a time.
 *
 *     tide_trainer_options_default            sets every option to a value that can be read and printed
 *     tide_trainer_draft_make                 plans a run without making it
 *     tide_trainer_create                     opens data, builds model and pool, sets initial or saved values
 *     tide_trainer_plan_get                   tells how the run uses memory, before step 1
 *     tide_trainer_step                       makes one training step
 *     tide_trainer_evaluate, _sample, _save   between steps, in any order; none changes a bit of training
 *     tide_trainer_destroy
 *
 * Arithmetic. The loss is the mean cross entropy over the learned tokens of the global batch, in nats: of all
 * tokens, unless the data says which (data.h). The optimizer
 * is AdamW with betas 0.9 and 0.95, epsilon 1e-8 and decoupled weight decay 0.1 on matrices and embeddings
 * (none on biases and norms), the usual choice since GPT-3. Gradients are clipped to a global norm of 1.0.
 * The learning rate warms up linearly, then falls along a cosine (or another shape, lr_schedule.h) to a
 * tenth. In fp16 the gradients carry a loss scale (loss_scale.h), which the optimizer divides out exactly.
 * None of this depends on budgets, chunk size, recompute or placement.
 *
 * The null device computes nothing: a trainer on it has no loss and no norm, and can't evaluate, sample or
 * save.
 *
 * The trainer prints nothing. One thread makes all calls. */
#ifndef TIDE_TRAIN_TRAINER_H
#define TIDE_TRAIN_TRAINER_H

#include "src/checkpoint/checkpoint.h"
#include "src/data/data.h"
#include "src/export/export.h"
#include "src/model/decoder.h"
#include "tidepool/pool.h"

typedef struct tide_trainer tide_trainer;

/* Whether a block keeps its activations for backward or computes them again. The choice changes no bit of the
 * results. */
typedef enum tide_recompute {
    /* the last blocks keep theirs: as many blocks as fit in the device budget beside all else */
    TIDE_RECOMPUTE_AUTO = 0,
    TIDE_RECOMPUTE_NONE,
    TIDE_RECOMPUTE_ALL,
} tide_recompute;

/* The type to which each sum group's sum of a gradient is rounded (tidepool/pool.h, section 5). */
typedef enum tide_reduce {
    TIDE_REDUCE_AUTO = 0, /* that of the checkpoint from which the run resumes, else fp32 */
    TIDE_REDUCE_FP32,
    TIDE_REDUCE_BF16,
} tide_reduce;

/* A warm-up of a tenth of the run, at most 100 steps. */
#define TIDE_TRAINER_WARMUP_DEFAULT UINT64_MAX
/* A tenth of the learning rate; for a constant schedule the whole learning rate. */
#define TIDE_TRAINER_LR_MIN_DEFAULT (-1.0)

typedef struct tide_trainer_options {
    tide_model_config model;
    tide_dtype dtype; /* of params, gradients and activations */
    const char *data; /* path; NULL is allowed on the null device */
    /* 0, or how many whole epochs of the data the run has: tide_trainer_adopt_epochs sets the schedule's
     * steps */
    uint64_t epochs;
    const char *eval_data;            /* path; NULL: the files named val in data, or a part of it: data.h */
    tide_data_encoding data_encoding; /* of data and eval_data */
    tide_data_packing packing;        /* of documents into sequences: data.h */
    bool drops_long;    /* packed: leave out documents longer than a sequence, do not cut them */
    bool any_tokenizer; /* take shards that another tokenizer than that of `weights` made */
    /* 0: 8 sequences; with several ranks the fewest of at least 8 that they can share evenly */
    uint64_t global_batch_tokens;
    uint32_t seq_len; /* 0: the model's context, or its window if smaller; at most 4096 with weights */
    /* 0: the largest number that divides a sum group's sequences and makes at most 512 tokens, or 1 */
    uint32_t micro_batch_sequences;
    /* in how many sum groups gradients are summed (tidepool/pool.h, section 5), which divides the
     * micro-batches. 0: as in the checkpoint from which the run resumes, else one a rank */
    uint32_t sum_groups;
    tide_reduce reduce;
    /* With a rate of 0 no param changes; without clipping updates run during backward. The schedule's values
     * may be defaults: warmup_steps TIDE_TRAINER_WARMUP_DEFAULT, lr_min TIDE_TRAINER_LR_MIN_DEFAULT (which a
     * constant schedule needs), and for wsd decay_steps 0, a tenth of the run but at least 1. */
    tide_hyperparameters hyper;
    uint64_t seed; /* of initial values, data order and samples */
    tide_recompute recompute;
    /* [freeze_count] patterns (fnmatch); a tensor whose name in files matches one is not trained */
    const char *const *freeze;
    uint32_t freeze_count;
    uint32_t eval_batches; /* batches of an evaluation, each as large as a training batch */
    /* A budget of 0 means the default (see tide_trainer_plan), which is a share of pool.free_memory_bytes;
     * if that is 0, the trainer asks the system how much memory is free. The trainer sets pool.sum_groups and
     * pool.reduce_dtype. */
    tide_pool_options pool;
    /* On the null device: choose default budgets as the imitated device would; 0 in pool.free_memory_bytes
     * then means no limit. */
    bool imitates;
    bool makes_up_tokens;   /* a device that computes runs without data too, to measure a step's time */
    const char *resume_dir; /* NULL: initial values; else resume from its newest checkpoint, if it has one */
    /* NULL, or the checkpoint (DIR/step-N) to resume from; resume_dir is then not read */
    const char *resume_from;
    /* resume params, moments and step number, but train on other data, from its first batch on */
    bool new_data;
    /* NULL: initial values; else a folder of Hugging Face weights of this model, used unless the run resumes
     * from a checkpoint. The null device does not read them. */
    const char *weights;
    bool save_weights_only;  /* tide_trainer_save writes no moments */
    const tide_files *files; /* file system for checkpoints; NULL: POSIX */
} tide_trainer_options;

/* gpt2-nano, 1000 steps, batch, sequence and micro-batch 0, cosine, lr 6e-4 and default lr_min, weight decay
 * 0.1, clip 1, default warm-up, seed 1, bf16, recompute auto, 16 evaluation batches,
 * tide_pool_options_default. data is NULL. */
void tide_trainer_options_default(tide_trainer_options *options);

/* Set sum_groups and reduce, where the options leave them open, to those of the checkpoint that the options
 * name, or to 1 and fp32. Plans and trainers do this themselves; call it before options are passed on without
 * their checkpoint. IO, CORRUPT, NO_MEMORY: the checkpoint. */
TIDE_NODISCARD tide_status tide_trainer_adopt_sums(tide_trainer_options *options);

/* With epochs, set the schedule's steps to those of all epochs, behind the steps that a run that resumes with
 * new data has done before, and *epoch_steps: opens the data, and closes it again. Call it before the options
 * are used. ARGUMENT: there is no data, or too many steps; other statuses as tide_trainer_create for options,
 * data and checkpoint. */
TIDE_NODISCARD tide_status tide_trainer_adopt_epochs(tide_trainer_options *options, uint64_t *epoch_steps);

/* How a run uses memory, byte by byte. tide_trainer_create computes it, and it never changes.
 *
 * Default budgets.
 *
 *   host device   One memory serves both tiers. Device: the bytes that keep everything resident, at most 1/4
 *                 of free memory, but at least the smallest budget that works. Host: the bytes that the run
 *                 needs besides the device budget in force (default or given), at most 80% of the free memory
 *                 that this leaves. If these are too few, create refuses the run.
 *   GPU           Device: the bytes that the run needs, at most pool.device_available_bytes, even if that is
 *                 too little. Host: the bytes that the run needs besides, at most 80% of free memory.
 *   null device   Both: the bytes that the run needs. With `imitates`, as on the imitated device.
 *
 * Free memory is the memory available now (offload/topology.h). For a GPU it also includes memory that the
 * machine can add later (tide_free_memory_most_bytes), since the run touches the host slots one by one while
 * the machine grows.
 *
 * Equations:
 *
 *   pool.space_bytes[ACTIVATION] = residual_bytes + saved_bytes
 *   pool.space_bytes[PARAM]      = trained_bytes + frozen_bytes
 *   pool.nonmodel_bytes          = token_bytes + loss_bytes + logits_bytes + rope_bytes
 *   pool.model_bytes             = (params - frozen_params) x element_bytes
 *                                  + frozen_params x frozen_element_bytes + padding_bytes */
typedef struct tide_trainer_plan {
    tide_pool_plan pool;     /* its params include the padding rows of the vocabulary */
    uint64_t params;         /* elements of the model's params, as in files */
    uint64_t frozen_params;  /* those of `params` that are not trained */
    uint32_t frozen_tensors; /* tensors (of the files) that hold the frozen params */
    /* in pool.model_bytes, of a trained element and of a frozen one */
    uint32_t element_bytes, frozen_element_bytes;
    uint64_t padding_bytes;               /* in pool.model_bytes, of the padding rows (src/model/params.h) */
    uint64_t trained_bytes, frozen_bytes; /* of the PARAM space */
    /* this and the following options have the values in force, defaults resolved */
    uint64_t global_batch_tokens;
    uint64_t warmup_steps;
    uint64_t free_memory_bytes; /* of the host; 0 if no default budget needed it */
    /* free memory of a GPU once its context and libraries exist, less the reserve; else 0 */
    uint64_t device_available_bytes;
    uint32_t seq_len;
    uint32_t global_batch_sequences;
    uint32_t micro_batch_sequences;
    uint32_t ranks;
    uint32_t micro_batches; /* of this rank, an even share of the global batch */
    uint32_t sum_groups;
    tide_dtype reduce_dtype;
    uint32_t blocks;            /* blocks that backward reaches: the last ones of the model */
    uint32_t recomputed_blocks; /* the first ones of `blocks`; the others keep their activations */
    uint64_t residual_bytes;    /* ACTIVATION space: residuals of the local batch, model.layers + 1 */
    uint64_t saved_bytes;       /* ACTIVATION space: saved activations of blocks that do not recompute */
    uint64_t saved_block_bytes; /* one block's part of saved_bytes */
    uint64_t token_bytes;       /* non-model region: inputs and targets of the local batch */
    uint64_t loss_bytes;        /* non-model region: losses of a micro-batch; sums of all */
    uint64_t logits_bytes;      /* non-model region: logits of one position, for sampling */
    uint64_t rope_bytes;        /* non-model region: the table of rotary positions; 0: the model has none */
    double step_flops;          /* floating-point operations of a training step, with recomputed ones */
    bool default_device_budget; /* options.pool.device_memory_bytes was 0 */
    bool default_host_budget;
} tide_trainer_plan;

/* A run that is planned, but not made: its described model without a pool or data. */
typedef struct tide_trainer_draft {
    tide_trainer_options options; /* those in force, with which the pool would be made */
    tide_trainer_plan plan;       /* pool.device_updates is 0, since a pool knows it */
    tide_decoder *model;          /* owned; has no pool */
} tide_trainer_draft;

/* Plan a run without making it. Sets the CPU kernels' thread count. `seen` may be NULL (decoder.h). Statuses
 * and messages of tide_trainer_create without data. On failure nothing is left to destroy. */
TIDE_NODISCARD tide_status tide_trainer_draft_make(const tide_trainer_options *options,
                                                   tide_decoder_seen seen, void *seen_context,
                                                   tide_trainer_draft *draft);
void tide_trainer_draft_destroy(tide_trainer_draft *draft);

/* Create a trainer. Everything that can be refused is refused here, before any training.
 *   ARGUMENT     an option: the message names it, its value and a right one (a batch that does not divide
 *                by sequence or micro-batch, a sequence longer than the context, a pattern to freeze that
 *                matches no param or leaves none to train, ...)
 *   IO, CORRUPT  the data (a token outside the vocabulary, too short, ...), the weights, or the checkpoint
 *   MISMATCH     the checkpoint has another model, data set (unless new_data), seed or batch, or the weights
 *                are of another model
 *   BUDGET       as tide_pool_create says; if the batch's activations are the reason, the message also names
 *                the largest batch that fits
 *   NO_MEMORY, UNSUPPORTED, DEVICE
 * On failure *trainer is unchanged and nothing is left behind. */
TIDE_NODISCARD tide_status tide_trainer_create(const tide_trainer_options *options, tide_trainer **trainer);

/* Waits for running updates and copies, then frees the trainer. NULL is allowed. */
void tide_trainer_destroy(tide_trainer *trainer);

const tide_trainer_plan *tide_trainer_plan_get(const tide_trainer *trainer);

/* The trainer's pool, to read its counters, traces and names. The trainer owns it, and only the trainer may
 * begin its steps. */
tide_pool *tide_trainer_pool(tide_trainer *trainer);

/* The communicator of the ranks that train together (pool.ranks.comm); NULL: one rank. */
tide_comm *tide_trainer_comm(const tide_trainer *trainer);

/* Note that the checkpoint of this step, with this validation loss, is the best so far: saves keep it,
 * whatever their number to keep. Step 0: none is. */
void tide_trainer_best_set(tide_trainer *trainer, uint64_t step, double loss);

/* The training state as checkpoints save it: progress, identity and hyperparameters. `step` counts the steps
 * done. */
const tide_train_state *tide_trainer_state(const tide_trainer *trainer);

/* False on the null device, which has no loss and can't evaluate, sample or save. */
bool tide_trainer_computes(const tide_trainer *trainer);

/* The format of the trainer's data; SHARDS if it has none. */
tide_data_format tide_trainer_data_format(const tide_trainer *trainer);

/* The trainer's data, which the caller may read between two calls of the trainer; NULL without data. */
tide_data *tide_trainer_data(tide_trainer *trainer);

/* Which checkpoint tide_trainer_create resumed from. */
typedef struct tide_trainer_resumed {
    /* false: the options name no checkpoint, or resume_dir has none; training starts at step 0 */
    bool resumed;
    tide_checkpoint_found from; /* step and path */
    tide_train_changes changes; /* hyperparameters and frozen params that differ from the checkpoint's */
} tide_trainer_resumed;

const tide_trainer_resumed *tide_trainer_resumed_get(const tide_trainer *trainer);

typedef struct tide_trainer_report {
    uint64_t step;         /* the number of this step, from 1 on; a resumed run goes on counting */
    double loss;           /* mean over the batch, nats a learned token; NAN if nothing is computed */
    double gradient_norm;  /* before clipping, without the loss scale; NAN if nothing is computed */
    double gradient_scale; /* clip factor divided by loss scale */
    double loss_scale;     /* 1: none */
    double lr;
    uint64_t tokens;         /* tokens trained on so far, with this step's and with padding */
    uint64_t learned_tokens; /* this step's targets that were learned */
    bool skipped;            /* the gradient norm was not finite, so the step changed no weight */
    uint32_t skipped_in_row;
    /* Predictions for this step, made when it began (tide_pool_predict). NAN if pool.predict is off or the
     * prediction failed, in a trainer's first step, and in its second if the first's updates were still
     * running. */
    double predicted_step_seconds;
    double predicted_stall_seconds;
    /* With several ranks, this rank's own time for the step, in seconds: from the step's begin, at which the
     * ranks wait for each other, until its kernels have ended, without the time in which its compute stream
     * waited for other ranks (TIDE_STALL_PEER). NAN with one rank, and if nothing is computed. */
    double own_seconds;
} tide_trainer_report;

/* Make one training step; its updates may still run on return. The step's share of the counters comes from
 * tide_pool_step_counters_take; the pool numbers its training steps from 1 since create.
 *   NONFINITE  as tide_step_result_get: training can't go on
 *   CORRUPT    a token of the data is not valid, or a data file was changed; the pool is not poisoned
 *   IO         a data file can't be read; the pool is not poisoned
 *   others     the step was aborted; unless the pool is poisoned the next call repeats it with the same
 *              bits. If its updates were all done by then, it counts (tide_trainer_state), and the next call
 *              makes the next step
 * *report is set on success only. `report` may be NULL. */
TIDE_NODISCARD tide_status tide_trainer_step(tide_trainer *trainer, tide_trainer_report *report);

/* Mean loss over the learned tokens of the first eval_batches batches of the validation split; NAN if none is
 * learned. Runs the forward pass only. CORRUPT and IO for the data, as in a step. STATE on the null
 * device. */
TIDE_NODISCARD tide_status tide_trainer_evaluate(tide_trainer *trainer, double *loss);

typedef struct tide_sample_options {
    uint32_t tokens;    /* how many to make */
    double temperature; /* 0: always the likeliest token */
    uint32_t top_k;     /* 0: all tokens */
    const char *prompt; /* NULL or "": the prompt is a newline (text data) or token 0 (shards) */
    uint32_t sample;    /* number of the sample; together with the seed it fixes the random numbers */
} tide_sample_options;

/* 200 tokens, temperature 0.8, top-k 40, no prompt, sample 0. */
void tide_sample_options_default(tide_sample_options *options);

/* Let the model write text. *text, without the prompt, has the form of tide_data_show and a zero at its end;
 * the caller frees it. Each token costs one forward pass over the last seq_len tokens. ARGUMENT (a prompt
 * although the data is not text, a temperature below 0), STATE on the null device, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trainer_sample(tide_trainer *trainer, const tide_sample_options *options,
                                               char **text);

/* How many bytes a checkpoint of a run with these options has; needs no trainer. ARGUMENT (a pattern to
 * freeze), NO_MEMORY, UNSUPPORTED. */
TIDE_NODISCARD tide_status tide_trainer_save_bytes(const tide_trainer_options *options, uint64_t *bytes);

/* Wait for running updates, then finish an export that the caller began, with the params' present values
 * (statuses: tide_export_finish). Does not read export->model. STATE on the null device. */
TIDE_NODISCARD tide_status tide_trainer_export(tide_trainer *trainer, const tide_export *export,
                                               tide_export_place *place);

/* Wait for running updates, then save to dir/step-N (statuses, `keep` and `saved`: tide_checkpoint_save).
 * STATE on the null device. */
TIDE_NODISCARD tide_status tide_trainer_save(tide_trainer *trainer, const char *dir, unsigned keep,
                                             tide_checkpoint_saved *saved);

#endif
