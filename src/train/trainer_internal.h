/* What the trainer's files share.
 *
 *   trainer.c         create, destroy; calls options, plan and state
 *   trainer_options.c defaults and refusals
 *   trainer_plan.c    recompute and budgets chosen, the pool and the model built
 *   trainer_state.c   save and resume; calls step
 *   trainer_weights.c weights of Hugging Face in and out
 *   trainer_sample.c  text from the model; calls step
 *   trainer_step.c    step, evaluate, and what all that runs the model needs: is there anything to run, and to give up
 */
#ifndef TIDE_TRAIN_TRAINER_INTERNAL_H
#define TIDE_TRAIN_TRAINER_INTERNAL_H

#include "src/model/decoder.h"
#include "src/train/trainer.h"

/* An open folder of weights, and its model's tensors. */
typedef struct tide_trainer_weights tide_trainer_weights;

struct tide_trainer {
    tide_data *data; /* NULL: the null device without data */
    tide_pool *pool;
    tide_decoder *model;
    const tide_files *files;
    tide_trainer_plan plan;
    tide_train_state state;
    tide_trainer_resumed resumed;
    uint32_t eval_batches;
    bool computes;
    bool save_weights_only;
    bool new_data;
    bool predicts;                   /* its reports tell what the pool predicts */
    tide_progress_callback progress; /* the pool's; or NULL */
    void *progress_context;
    int32_t *inputs, *targets; /* [batch_tokens] each: the batch on its way to the region */
};

/* Fill in defaults and refuse what can't be: ARGUMENT as tide_trainer_create says. Reads no data. */
TIDE_NODISCARD tide_status tide_trainer_resolve(const tide_trainer_options *options,
                                                tide_trainer_options *resolved);

/* Which tensors are frozen, [tide_model_tensor_count], NULL if none is; the caller frees it. ARGUMENT: a pattern that matches
 * nothing, a part of a param, or all are frozen. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trainer_frozen(const tide_trainer_options *options, bool **frozen);

/* Choose recompute and budgets for resolved options, build pool and model, and seal. Sets *pool, *model and
 * *plan on success. */
TIDE_NODISCARD tide_status tide_trainer_build(const tide_trainer_options *resolved, tide_pool **pool,
                                              tide_decoder **model, tide_trainer_plan *plan);

/* Find the checkpoint that the options name, resume_from or the newest in resume_dir: sets trainer->resumed.from. */
TIDE_NODISCARD tide_status tide_trainer_find(tide_trainer *trainer, const tide_trainer_options *options);
/* Load it, which is there, into the params and trainer->state; sets trainer->resumed. */
TIDE_NODISCARD tide_status tide_trainer_load(tide_trainer *trainer);

/* Open and check the folder options->weights. Statuses of tide_weights_open. Close it also after a failure of import. */
TIDE_NODISCARD tide_status tide_trainer_weights_open(const tide_trainer_options *options,
                                                     tide_trainer_weights **weights);
/* Have its tensors the family's other names (config.h: names_otherwise)? */
bool tide_trainer_weights_named_otherwise(const tide_trainer_weights *weights);
void tide_trainer_weights_close(tide_trainer_weights *weights); /* NULL: nothing */
/* Its values into the params; moments stay zero. */
TIDE_NODISCARD tide_status tide_trainer_import(tide_trainer *trainer, const tide_trainer_weights *weights);

/* Give up the open step after `status`, whose message stays. Returns `status`. */
tide_status tide_trainer_abort(tide_trainer *trainer, tide_status status);

/* STATE where nothing is computed; `what` can't be done there. */
TIDE_NODISCARD tide_status tide_trainer_check_computes(const tide_trainer *trainer, const char *what);

#endif
