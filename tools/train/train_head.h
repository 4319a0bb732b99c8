/* The lines that `tidepool train` prints before its first step: device, model, settings, data, and the
 * checkpoint that the run resumes from. */
#ifndef TIDE_TOOLS_TRAIN_HEAD_H
#define TIDE_TOOLS_TRAIN_HEAD_H

#include "offload/module.h"
#include "tools/train/train_options.h"
#include "tools/train/train_ranks.h"

typedef struct tide_train_head {
    const tide_train_settings *settings;
    const tide_trainer_options *options;
    tide_trainer *trainer;
    const char *device;             /* named by --device, or chosen by "auto" */
    bool threads_differ;            /* of several ranks */
    const tide_narrow_rank *narrow; /* rank */
    const char *no_gpu;             /* why --device auto chose the host; "" otherwise */
    const char *freeze;             /* --freeze's patterns, separated by blanks */
} tide_train_head;

void tide_train_head_print(const tide_train_head *head, FILE *out);

/* Whether `device` is a GPU that works; if so, sets *gpu to its properties. */
bool tide_train_gpu_find(const char *device, tide_gpu *gpu);

#endif
