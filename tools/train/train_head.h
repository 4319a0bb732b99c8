/* What `tidepool train` says before its first step: device, model, how and on what it trains, what it goes on from. */
#ifndef TIDE_TOOLS_TRAIN_HEAD_H
#define TIDE_TOOLS_TRAIN_HEAD_H

#include "offload/module.h"
#include "tools/train/train_options.h"

typedef struct tide_train_head {
    const tide_train_settings *settings;
    const tide_trainer_options *options;
    tide_trainer *trainer;
    const char *device; /* the one that --device names or "auto" took */
    const char *no_gpu; /* why "auto" took the host; "" otherwise */
    const char *freeze; /* --freeze's patterns, blanks between them */
} tide_train_head;

void tide_train_head_print(const tide_train_head *head, FILE *out);

/* Whether `device` is a GPU; then what it is. */
bool tide_train_gpu_find(const char *device, tide_gpu *gpu);

#endif
