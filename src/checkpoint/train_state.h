/* What a training run is besides its tensors: progress, identity and hyperparameters, as one flat struct that
 * a table of fields carries to JSON, back, and through the comparison at a resume. Exact for 64-bit integers
 * and doubles.
 */
#ifndef TIDE_CHECKPOINT_TRAIN_STATE_H
#define TIDE_CHECKPOINT_TRAIN_STATE_H

#include "src/checkpoint/lr_schedule.h"
#include "src/model/config.h"
#include "tidepool/types.h"

#include <stdint.h>

typedef struct tide_train_state {
    /* Progress: restored from the checkpoint, never compared. */
    uint64_t step;            /* steps done; the next batch is the data's batch(step - data_first_step) */
    uint64_t data_first_step; /* step whose batch is the data's first: 0, or where a run took new data */
    uint64_t tokens;          /* tokens trained on */
    uint64_t adam_step; /* updates done: steps without the skipped ones; the bias correction's exponent */
    uint64_t skipped;   /* steps skipped for a non-finite norm */
    double loss_scale;  /* of the next step; fp16 only, else 0, as the next two */
    uint64_t loss_scale_good_steps; /* since it changed or a step was skipped */

    /* Identity: another value is refused. model.name is not stored. */
    tide_model_config model;
    uint64_t seed;
    uint64_t data_fingerprint;
    uint64_t seq_len;
    uint64_t batch_tokens;          /* of the global batch */
    uint64_t micro_batch_sequences; /* the order of the gradient's sums */
    tide_dtype dtype;

    /* Hyperparameters: another value is taken, and named. */
    uint64_t steps; /* where the run and its schedule end */
    tide_lr_shape schedule;
    uint64_t warmup_steps;
    uint64_t decay_steps; /* of the schedule wsd; else 0 */
    double lr;            /* at the end of warm-up */
    double lr_min;        /* at the run's last step; of a constant schedule: lr */
    double weight_decay;
    double clip; /* 0: no clipping */
    double beta1;
    double beta2;
    double epsilon;          /* Adam's */
    double loss_scale_fixed; /* 0: it is found as training goes */
} tide_train_state;

/* What differs and is taken, a line each: "lr 0.0003 -> 0.0001". Room for every hyperparameter there is, and one more. */
enum { TIDE_TRAIN_CHANGES_MAX = 16, TIDE_TRAIN_CHANGE_BYTES = 320 };
typedef struct tide_train_changes {
    unsigned count;
    char lines[TIDE_TRAIN_CHANGES_MAX][TIDE_TRAIN_CHANGE_BYTES];
} tide_train_changes;

/* `saved` is the checkpoint's, `current` the run's that wants to continue it; `where` names the checkpoint.
 *   MISMATCH  an identity field differs: names it and both values; *changes is unchanged
 * On success *changes lists the hyperparameters that differ. */
TIDE_NODISCARD tide_status tide_train_state_compare(const tide_train_state *saved,
                                                    const tide_train_state *current, const char *where,
                                                    tide_train_changes *changes);

/* Doubles are finite, the model is valid, dtype is one of the enum, a loss scale keeps its rules (loss_scale.h) and
 * only fp16 has one: what can be written and read back. */
bool tide_train_state_is_valid(const tide_train_state *state);

#endif
