/* Helpers of the trainer's tests: data files, small runs, and records of all results of a run, to be
 * compared to the last bit. Errors fail the test. */
#ifndef TIDE_TESTS_TEST_TRAINER_FIXTURE_H
#define TIDE_TESTS_TEST_TRAINER_FIXTURE_H

#include "src/model/params.h"
#include "src/train/trainer.h"
#include "tests/support/assert_ok.h"

void ok(tide_status status);

/* The group's folder, which fixture_set_up makes and fixture_tear_down removes with all its files, and a
 * text of 40,000 bytes in it: words from a small dictionary, which a model can learn. */
extern char folder[64], text[96];
int fixture_set_up(void **state);
int fixture_tear_down(void **state);
/* Writes a shard in llm.c's format. */
void shard_write(const char *path, const int32_t *tokens, uint32_t count);

/* Options of a run of the small model on `data`: 6 layers of width 96, context 64, 8 sequences of 32
 * tokens in micro-batches of 2, a short warm-up, chunks of 256 KiB, hazard checker and guard on. Two
 * threads on every machine, since needs for memory depend on them. */
tide_trainer_options small_options(const char *data, tide_dtype dtype);

/* Returns a new trainer. */
tide_trainer *trainer_open(const tide_trainer_options *options);

/* --- settings that must not change results --- */

typedef enum budget { ALL = 0, LEAST } budget;

typedef struct variant {
    budget memory;
    uint32_t chunk_kib;
    bool prefetch;
    tide_recompute recompute;
    tide_placement placement;
    uint64_t delays; /* seed; 0: no delays */
} variant;

/* Returns the least budget of the device or the host, which the refusal of a budget of one byte names. */
uint64_t least_budget(const tide_trainer_options *options, bool device);
void variant_describe(const variant *v, char what[160]);
/* Sets the variant's options. LEAST sets both budgets to their least. */
void variant_apply(const variant *v, tide_trainer_options *options);

/* --- results that must be the same to the last bit --- */

enum { TRACK_STEPS_MAX = 16 };
typedef struct track {
    uint32_t steps;
    double losses[TRACK_STEPS_MAX];
    double norms[TRACK_STEPS_MAX];
    uint64_t elements;
    /* [4 x elements]: rounded params, masters, momenta, variances, each tensor after tensor. Values that a
     * frozen param lacks are zeros. */
    float *values;
} track;

/* Trains up to step `until` and records loss and norm of each step. */
void track_steps(tide_trainer *trainer, uint64_t until, track *made);
/* Records all values. */
void track_values(tide_trainer *trainer, track *made);
void track_free(track *made);
/* `what` names the run in a failure's message. */
void track_compare(const track *truth, const track *other, const char *what);

/* Checks that the peaks are within the budgets. */
void check_budgets(tide_trainer *trainer, const char *what);

/* Returns the number behind `words` in this thread's message; 0 if they are not in it. */
uint64_t number_in_message(const char *words);

#endif
