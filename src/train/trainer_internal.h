/* Declarations that the trainer's files share.
 *
 *   trainer.c         create, destroy; calls options, plan, state and weights
 *   trainer_options.c default options, and refusing wrong ones
 *   trainer_plan.c    chooses recompute and budgets, builds pool and model
 *   trainer_state.c   save and resume
 *   trainer_weights.c export of Hugging Face weights
 *   trainer_sample.c  text from the model; calls step
 *   trainer_step.c    step, evaluate; check_computes and abort, which the others use
 */
#ifndef TIDE_TRAIN_TRAINER_INTERNAL_H
#define TIDE_TRAIN_TRAINER_INTERNAL_H

#include "src/train/trainer.h"

struct tide_trainer {
    tide_data *data; /* NULL: the trainer has no data */
    tide_pool *pool;
    tide_decoder *model;
    tide_comm *comm; /* NULL: one rank */
    const tide_files *files;
    tide_trainer_plan plan;
    tide_train_state state;
    tide_trainer_resumed resumed;
    uint32_t eval_batches;
    bool computes;
    bool save_weights_only;
    bool new_data;
    bool predicts;                   /* reports contain the pool's predictions */
    tide_progress_callback progress; /* the callback of the pool's options, or NULL */
    void *progress_context;
    tide_token_batch batch; /* of global_batch_tokens, of which this rank uploads its part to the region */
};

/* Resolve default options and refuse wrong ones: ARGUMENT as tide_trainer_create says. Reads no data, but the
 * checkpoint that the options name, if the sums of gradients are to be as there: IO, CORRUPT. */
TIDE_NODISCARD tide_status tide_trainer_resolve(const tide_trainer_options *options,
                                                tide_trainer_options *resolved);

/* Tell the other ranks, if there are any, this one's phase and "<verb> step <step>". */
void tide_trainer_doing(const tide_trainer *trainer, tide_comm_phase phase, const char *verb, uint64_t step);

/* How many ranks share a batch, at least 1. */
uint32_t tide_trainer_ranks(const tide_trainer_options *options);

/* *frozen: for each of the model's tensors (tide_model_tensor_count) whether it is frozen; NULL if none is.
 * The caller frees it. ARGUMENT: a pattern matches nothing, only a part of a param would be frozen, or all
 * tensors would. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trainer_frozen(const tide_trainer_options *options, bool **frozen);

/* Choose recompute and budgets for resolved options, describe the model and make its pool. Sets *pool,
 * *model and *plan on success. */
TIDE_NODISCARD tide_status tide_trainer_build(const tide_trainer_options *resolved, tide_pool **pool,
                                              tide_decoder **model, tide_trainer_plan *plan);

/* Find the checkpoint that the options name, resume_from or the newest in resume_dir. If they name none,
 * or the folder has none, from->exists is false. */
TIDE_NODISCARD tide_status tide_trainer_find(const tide_trainer_options *options,
                                             tide_checkpoint_found *from);

/* Load the checkpoint trainer->resumed.from, which must exist, into the params and trainer->state; sets
 * trainer->resumed. */
TIDE_NODISCARD tide_status tide_trainer_load(tide_trainer *trainer);

/* Upload this rank's part of the trainer's batch into the open step. */
TIDE_NODISCARD tide_status tide_trainer_upload(tide_trainer *trainer);

/* Give up the open step, which failed with `status`. Keeps the failure's message and returns `status`. */
tide_status tide_trainer_abort(tide_trainer *trainer, tide_status status);

/* STATE on the null device, with the message that there is nothing to do `what`, a verb such as
 * "evaluate". */
TIDE_NODISCARD tide_status tide_trainer_check_computes(const tide_trainer *trainer, const char *what);

#endif
