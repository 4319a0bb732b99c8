/* Trims the metrics file of a run that resumes from a checkpoint. */
#ifndef TIDE_TRAIN_METRICS_TRIM_H
#define TIDE_TRAIN_METRICS_TRIM_H

#include "base/output_file.h"

#include <stdint.h>

/* Cut the lines of the steps after `step`, which the resumed run repeats, and a last line without a
 * newline. Lines that belong to no step stay. After a crash or a power cut the file has either all old
 * lines or the new ones. On return the descriptor's offset is the file's end. If lines in the middle were
 * cut, the descriptor is that of a new file with the old name and mode; a symbolic link still leads to it.
 * A file that is not regular, or is standard output or standard error, is not changed. IO, NO_MEMORY: the
 * lines are unchanged, and the descriptor's offset is their end. */
TIDE_NODISCARD tide_status tide_metrics_trim(tide_output_file *file, uint64_t step);

#endif
