/* `tidepool train`'s command line: what a user may say, and what it means to the trainer. */
#ifndef TIDE_TOOLS_TRAIN_OPTIONS_H
#define TIDE_TOOLS_TRAIN_OPTIONS_H

#include "src/pool/device_factory.h"
#include "src/train/trainer.h"
#include "tools/options.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct tide_train_settings {
    const char *model;
    bool from_weights; /* --model names a folder: the run begins with its weights */
    const char *data;
    const char *eval_data; /* NULL: not given */
    int data_format;       /* auto, u16, u32 */
    uint64_t steps;
    uint64_t batch_tokens;
    uint64_t micro_batch;
    uint64_t seq_len;
    int schedule; /* tide_lr_shape */
    double lr;
    double lr_min;
    bool lr_min_given;
    uint64_t decay_steps; /* 0: not given */
    double weight_decay;
    double beta1, beta2, epsilon;
    double clip;
    uint64_t warmup;
    bool warmup_given;
    uint64_t seed;
    int dtype;              /* bf16, fp16, fp32 */
    const char *loss_scale; /* NULL: not given */
    uint64_t vocab_size;
    tide_option_texts freeze; /* globs */
    int recompute;            /* auto, none, all */

    const char *device;
    uint64_t device_memory_bytes;
    uint64_t host_memory_bytes;
    uint64_t chunk_bytes;
    bool prefetch;
    int placement; /* auto, host, device */
    double link_bytes_per_second;
    uint64_t threads;
    bool automatic; /* choose what is not given of chunk size, recompute, placement and prefetch */
    bool chunk_given, recompute_given, placement_given, prefetch_given;

    const char *metrics;
    const char *trace;
    const char *trace_steps; /* "all" or a number */
    const char *checkpoint;
    uint64_t save_every;
    uint64_t keep;
    uint64_t save_patience; /* seconds */
    int save;               /* all, weights */
    bool resume;
    const char *resume_from; /* NULL: not given */
    bool new_data;
    const char *export; /* NULL: not given */
    uint64_t eval_every;
    uint64_t sample;

    const char *machine; /* that the null device plays on: "this", a file, a preset */
    uint64_t ram_bytes;  /* 0: not given */

    bool checks;
    uint64_t delays;
} tide_train_settings;

extern const tide_option_table tide_train_table;

/* Steps that --trace keeps, 0: all. */
uint64_t tide_train_settings_trace_steps(const tide_train_settings *settings);

/* Read the command line, then check what one option says against another. ARGUMENT: the message is complete.
 */
TIDE_NODISCARD tide_status tide_train_settings_parse(int count, char *const *arguments,
                                                     tide_train_settings *settings);

/* Of another command's run, which says what changes memory and time and a device: all else as `tidepool train` has it. The model's
 * folder is looked at. ARGUMENT. */
TIDE_NODISCARD tide_status tide_train_settings_complete(tide_train_settings *settings);

/* What such a command says of device, link and chunks. ARGUMENT: the message is complete, and names the command. */
TIDE_NODISCARD tide_status tide_train_settings_plan_check(const tide_train_settings *settings,
                                                          const char *command);

/* The device meant: of "auto" the one that can do what is asked for, with the reason if that is no GPU (else ""). */
void tide_train_settings_device(const tide_train_settings *settings,
                                char name[TIDE_DEVICE_FACTORY_NAME_BYTES],
                                char reason[TIDE_DEVICE_FACTORY_REASON_BYTES]);

/* Open the model and fill in the trainer's options, for that device. `settings` and `device` must outlive them. IO,
 * CORRUPT, UNSUPPORTED, ARGUMENT. */
TIDE_NODISCARD tide_status tide_train_settings_apply(const tide_train_settings *settings, const char *device,
                                                     tide_trainer_options *options);

bool tide_train_settings_predict(const tide_train_settings *settings); /* the device is null */

void tide_train_help(FILE *out);

#endif
