/* The saves of a run, and what becomes of one that fails: no run is lost to a full disk.
 *
 *   at its turn    a failed save is told on standard error; the checkpoint before it stands, the run goes on and saves at the
 *                  next turn
 *   at the end     a failed save is tried again until --save-patience is over; each minute a line says what lacks
 *
 * At the end nothing is waited for that a pause can't mend, as another run's checkpoints in the folder. A pool that failed ends the
 * run at once.
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
    uint64_t bytes;      /* of a checkpoint */
    uint64_t saved_step; /* of the newest one that the run made or went on from; or TIDE_TRAIN_UNSAVED */
    bool given_up;       /* the last save has failed for good */
    char kept[TIDE_CHECKPOINT_PATH_BYTES]; /* the path of that newest one; "": there is none */
} tide_train_saves;

/* The trainer is created. ARGUMENT, NO_MEMORY, UNSUPPORTED. Settings, trainer and progress outlive it. */
TIDE_NODISCARD tide_status tide_train_saves_begin(tide_train_saves *saves,
                                                  const tide_train_settings *settings,
                                                  const tide_trainer_options *options, tide_trainer *trainer,
                                                  tide_progress *progress);

/* Whether there is a folder to save to, and a step that is done and not in its newest checkpoint. */
bool tide_train_saves_pending(const tide_train_saves *saves);

/* Save at a turn of the run. OK also where it failed and may succeed later. */
TIDE_NODISCARD tide_status tide_train_save(tide_train_saves *saves);

/* Save at the end of the run. A signal ends the patience. The message says what is kept. */
TIDE_NODISCARD tide_status tide_train_save_last(tide_train_saves *saves);

#endif
