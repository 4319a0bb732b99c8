/* `tidepool train`'s command line: the settings that a user gives, and the trainer's options made from
 * them. */
#ifndef TIDE_TOOLS_TRAIN_OPTIONS_H
#define TIDE_TOOLS_TRAIN_OPTIONS_H

#include "src/perf/tune.h"
#include "src/pool/device_factory.h"
#include "src/train/trainer.h"
#include "tools/options.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define TIDE_TRAIN_EVAL_EPOCHS UINT64_MAX

typedef struct tide_train_settings {
    const char *model;
    bool from_weights; /* --model names a folder with weights, with which the run begins */
    /* Options that the trainer or the pool takes as they are. tide_train_settings_apply alone sets model,
     * dtype, drops_long, freeze, weights, resume_dir, save_weights_only, the loss scale, and the pool's
     * device, predict and checks. */
    tide_trainer_options trainer;
    int dtype;              /* bf16, fp16, fp32 */
    int long_documents;     /* cut, drop */
    const char *loss_scale; /* NULL: not given */
    uint32_t vocab_size;
    tide_option_texts freeze; /* glob patterns */
    const char *device;       /* auto, or a device's name */
    bool automatic; /* --auto: choose chunk size, recompute, placement and prefetch, except those given */
    tide_choice_kept given; /* which of these options the user gave */

    const char *metrics;
    const char *trace;
    const char *trace_steps; /* "all" or a number */
    const char *checkpoint;
    uint64_t save_every;
    uint64_t keep;
    uint64_t save_patience; /* seconds */
    int save;               /* all, weights */
    bool resume;
    const char *export; /* NULL: not given */
    bool keep_best;
    uint64_t eval_every; /* TIDE_TRAIN_EVAL_EPOCHS: at the end of each epoch */
    uint32_t sample;

    uint32_t ranks;                  /* processes to start */
    const char *master;              /* NULL: not given */
    uint32_t port;                   /* 0: not given */
    const char *log_folder;          /* NULL: not given */
    double network_bytes_per_second; /* 0: no limit */
    uint32_t collective_timeout_seconds;

    const char *machine; /* the one that the null device imitates: "this", a file, a preset */
    uint64_t ram_bytes;  /* 0: not given */

    bool checks;
    uint64_t delays;
} tide_train_settings;

extern const tide_option_table tide_train_table;

/* The number of steps that --trace keeps; 0: all. */
uint64_t tide_train_settings_trace_steps(const tide_train_settings *settings);

/* Read the command line, then check each option against the others. ARGUMENT: the message is complete. */
TIDE_NODISCARD tide_status tide_train_settings_parse(int count, char *const *arguments,
                                                     tide_train_settings *settings);

/* Set all members to the defaults of `tidepool train`, with which plan and tune begin, too. */
void tide_train_settings_default(tide_train_settings *settings);

/* Which options of a choice were given on the command line of train or tune. */
tide_choice_kept tide_train_settings_given(const tide_option_table *of, const bool *given);

/* Find out whether --model names a folder with weights. IO. */
TIDE_NODISCARD tide_status tide_train_settings_find_weights(tide_train_settings *settings);

/* Check device, link and chunk size as `command` ("tidepool plan") was given them. ARGUMENT: the message is
 * complete and names the command. */
TIDE_NODISCARD tide_status tide_train_settings_plan_check(const tide_train_settings *settings,
                                                          const char *command);

/* Sets `name` to the device to use. For --device auto that is one that supports the other options; if it is
 * no GPU, sets `reason` to why (else ""). */
void tide_train_settings_device(const tide_train_settings *settings,
                                char name[TIDE_DEVICE_FACTORY_NAME_BYTES],
                                char reason[TIDE_DEVICE_FACTORY_REASON_BYTES]);

/* Open the model and fill in the trainer's options for this device. `settings` and `device` must outlive
 * them. IO, CORRUPT, UNSUPPORTED, ARGUMENT. */
TIDE_NODISCARD tide_status tide_train_settings_apply(const tide_train_settings *settings, const char *device,
                                                     tide_trainer_options *options);

/* whether the device is null, which predicts a run */
bool tide_train_settings_predict(const tide_train_settings *settings);

void tide_train_help(FILE *out);

#endif
