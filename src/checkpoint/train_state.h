/* The training state: everything of a run besides its tensors, namely progress, identity and hyperparameters.
 * A table of its fields drives writing to JSON, reading from it and the comparison at a resume. 64-bit
 * integers and doubles are exact.
 */
#ifndef TIDE_CHECKPOINT_TRAIN_STATE_H
#define TIDE_CHECKPOINT_TRAIN_STATE_H

#include "src/checkpoint/lr_schedule.h"
#include "src/model/config.h"
#include "tidepool/types.h"

#include <stddef.h>
#include <stdint.h>

/* How a run trains. A resume takes the run's values and reports those that differ from the checkpoint's. */
typedef struct tide_hyperparameters {
    /* of the whole run. In a training state lr_min is lr for a constant schedule, decay_steps 0 unless it is
     * wsd */
    tide_lr_schedule schedule;
    double weight_decay; /* of matrices and embeddings */
    double clip;         /* bound of the global gradient norm; 0: no clipping */
    double beta1, beta2, epsilon;
    double loss_scale_fixed; /* fp16 only: a power of two from 1 to 2^24; 0: dynamic (loss_scale.h) */
} tide_hyperparameters;

/* How the data's documents are packed into sequences (src/data/data.h): not at all, with long ones cut, or
 * with long ones left out. */
typedef enum tide_train_packing {
    TIDE_TRAIN_PACKING_OFF = 0,
    TIDE_TRAIN_PACKING_CUT,
    TIDE_TRAIN_PACKING_DROP,
    TIDE_TRAIN_PACKINGS,
} tide_train_packing;

typedef struct tide_train_state {
    /* Progress: a resume takes the checkpoint's values and compares none. */
    uint64_t step; /* steps done; the next batch is the data's batch number step - data_first_step */
    /* the step whose batch is the data's first: 0, or where a resume took new data */
    uint64_t data_first_step;
    uint64_t tokens;    /* tokens trained on */
    uint64_t adam_step; /* updates done, i.e. steps that were not skipped; exponent of the bias correction */
    uint64_t skipped;   /* steps skipped because the norm was not finite */
    double loss_scale;  /* for the next step; fp16 only, otherwise 0 */
    uint64_t epoch;     /* epochs of the data that are over */
    uint64_t best_step; /* of the checkpoint with the least validation loss, which saves keep; 0: none is */
    double best_loss;   /* its validation loss; 0 without one */
    uint64_t validation_fingerprint; /* of the data that best_loss is of (src/data/data.h) */
    uint64_t loss_scale_good_steps;  /* steps since loss_scale changed or a step was skipped; fp16 only */

    /* Identity: a resume refuses a checkpoint with another value. model.name is not stored. */
    tide_model_config model;
    uint64_t seed;
    uint64_t data_fingerprint;
    tide_train_packing packing;
    bool whole_epochs; /* each epoch begins with a batch */
    uint64_t seq_len;
    uint64_t global_batch_tokens;
    uint64_t micro_batch_sequences; /* it determines the order in which gradients are added */
    tide_dtype dtype;

    tide_hyperparameters hyper;
    /* How gradients are summed (tidepool/pool.h, section 5); a resume treats them as hyperparameters. */
    uint32_t sum_groups;     /* at least 1 */
    tide_dtype reduce_dtype; /* FP32 or BF16 */
} tide_train_state;

/* The hyperparameters that differ at a resume, a line each: "lr 0.0003 -> 0.0001". There is room for every
 * hyperparameter and one line more. */
enum { TIDE_TRAIN_CHANGES_MAX = 18, TIDE_TRAIN_CHANGE_BYTES = 320 };
typedef struct tide_train_changes {
    unsigned count;
    char lines[TIDE_TRAIN_CHANGES_MAX][TIDE_TRAIN_CHANGE_BYTES];
} tide_train_changes;

/* Compare the checkpoint's state, `saved`, with that of the run that resumes from it, `current`; `where`
 * names the checkpoint.
 *   MISMATCH  an identity field differs: the message names it and both values; *changes is unchanged
 * On success *changes lists the hyperparameters that differ. */
TIDE_NODISCARD tide_status tide_train_state_compare(const tide_train_state *saved,
                                                    const tide_train_state *current, const char *where,
                                                    tide_train_changes *changes);

/* Write field number `i` of the state as text, "-" if the state lacks it, and return the field's name; NULL:
 * there are no more than `i` fields. */
enum { TIDE_TRAIN_FIELD_TEXT_BYTES = 32 };
const char *tide_train_state_field(const tide_train_state *state, size_t i,
                                   char text[TIDE_TRAIN_FIELD_TEXT_BYTES]);

/* Can the state be written and read back? Doubles must be finite, the model and dtype valid, and a loss scale
 * must keep the rules of loss_scale.h; only fp16 may have one. */
bool tide_train_state_is_valid(const tide_train_state *state);

#endif
