/* The files that a run reads and writes. */
#ifndef TIDE_TOOLS_TRAIN_FILES_H
#define TIDE_TOOLS_TRAIN_FILES_H

#include "tools/train/train_options.h"

/* Before anything is opened for writing: no output is an input or another output. ARGUMENT names both; IO, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_train_files_check(const tide_train_settings *settings);

#endif
