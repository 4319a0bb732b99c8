/* The metrics of a run that goes on from a checkpoint. */
#ifndef TIDE_TRAIN_METRICS_TRIM_H
#define TIDE_TRAIN_METRICS_TRIM_H

#include "src/files/output_file.h"

#include <stdint.h>

/* Cut the lines of steps behind `step`, which the run takes again, and a last line without its newline; lines
 * that are no step's stay. A kill or a power cut leaves the old lines or the new ones. The descriptor stands
 * at the end afterwards; where lines in the middle went it is that of a new file, of the same name and mode,
 * and a link still leads to it. A file that is not regular, or is standard output or error, is left alone.
 * IO, NO_MEMORY: the lines are as before, and the descriptor stands at their end. */
TIDE_NODISCARD tide_status tide_metrics_trim(tide_output_file *file, uint64_t step);

#endif
