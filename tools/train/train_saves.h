/* The saves of a run, and the handling of one that fails, so that no run is lost to a full disk.
 *
 *   during the run   a message on standard error reports a failed save; the checkpoint before it stays, and
 *                    the run goes on to its next save
 *   at the end       a failed save is tried again until --save-patience is over; each minute a line says how
 *                    much space is missing
 *
 * At the end, a save that no pause can help (the folder holds another run's checkpoints, say) is not tried
 * again. If the pool has failed, the run ends at once.
 */
#ifndef TIDE_TOOLS_TRAIN_SAVES_H
#define TIDE_TOOLS_TRAIN_SAVES_H

#include "tools/train/train_options.h"
#include "tools/train/train_report.h"

#define TIDE_TRAIN_UNSAVED UINT64_MAX

typedef struct tide_train_saves {
    const tide_train_settings *settings;
    tide_trainer *trainer;
    tide_progress *progress;
    uint64_t bytes; /* size of a checkpoint */
    /* step of the newest checkpoint that the run saved or resumed from; or TIDE_TRAIN_UNSAVED */
    uint64_t saved_step;
    bool given_up;          /* the last save has failed finally */
    bool found_best;        /* --keep-best: the present step has the least validation loss so far */
    double validation_loss; /* of that step */
    char kept[TIDE_CHECKPOINT_PATH_BYTES]; /* path of that newest checkpoint; "": there is none */
} tide_train_saves;

/* Call it when the trainer is created. Settings, trainer and progress must outlive `saves`. ARGUMENT,
 * NO_MEMORY, UNSUPPORTED. */
TIDE_NODISCARD tide_status tide_train_saves_begin(tide_train_saves *saves,
                                                  const tide_train_settings *settings,
                                                  const tide_trainer_options *options, tide_trainer *trainer,
                                                  tide_progress *progress);

/* Whether the run has a checkpoint folder and a finished step that its newest checkpoint does not include. */
bool tide_train_saves_pending(const tide_train_saves *saves);

/* Note the validation loss of the present step. With --keep-best, and where the step is not saved yet: is it
 * the least so far? Then the next save, which must be of this step, is the best checkpoint. */
bool tide_train_saves_validated(tide_train_saves *saves, double loss);

/* Is the best checkpoint so far still to be saved? */
bool tide_train_saves_best_pending(const tide_train_saves *saves);

/* Save during the run. Returns OK also if the save failed and a later one may succeed. */
TIDE_NODISCARD tide_status tide_train_save(tide_train_saves *saves);

/* Save at the end of the run, with --save-patience; a signal ends the patience. The error message names the
 * checkpoint that is kept. */
TIDE_NODISCARD tide_status tide_train_save_last(tide_train_saves *saves);

#endif
