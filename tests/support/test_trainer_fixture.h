/* What the trainer's tests share: data files, small runs, and all that a run leaves behind, for comparison to
 * the last bit. Failures fail the test. */
#ifndef TIDE_TESTS_TEST_TRAINER_FIXTURE_H
#define TIDE_TESTS_TEST_TRAINER_FIXTURE_H

#include "src/model/params.h"
#include "src/train/trainer.h"

void ok(tide_status status);

/* A group's fresh folder and in it a text of 40,000 bytes with a structure that can be learnt: words drawn from
 * a small dictionary. Tearing down removes the folder with everything in it. */
extern char folder[64], text[96];
int fixture_set_up(void **state);
int fixture_tear_down(void **state);
/* A shard in llm.c's format. */
void shard_write(const char *path, const int32_t *tokens, uint32_t count);

/* A run of the test's small model on `data`: 6 layers of width 96, context 64, 8 sequences of 32 tokens in
 * micro-batches of 2, fast warm-up. Chunks of 256 KiB, hazard check and guard on; two threads, so that needs
 * for memory are those of every machine. */
tide_trainer_options small_options(const char *data, tide_dtype dtype);

/* --- a run's mechanics: none may matter --- */

typedef enum budget { ALL = 0, LEAST, HALF, QUARTER } budget;

typedef struct variant {
    budget memory;
    uint32_t chunk_kib;
    bool prefetch;
    tide_recompute recompute;
    tide_placement placement;
    uint64_t delays; /* their seed; 0: none */
} variant;

/* The least budget, of the device or the host, that the refusal of a budget of one byte names. */
uint64_t least_budget(const tide_trainer_options *options, bool device);
void variant_describe(const variant *v, char what[160]);
/* Options with them. Both budgets at their least for LEAST; otherwise the device's is a share of the model data. */
void variant_apply(const variant *v, tide_trainer_options *options);

/* --- what must be the same to the last bit --- */

enum { TRACK_STEPS_MAX = 16 };
typedef struct track {
    uint32_t steps;
    double losses[TRACK_STEPS_MAX];
    double norms[TRACK_STEPS_MAX];
    uint64_t elements;
    /* [4 x elements]: params as rounded, masters, momenta, variances, tensor after tensor; zeros of what a
     * frozen param has not */
    float *values;
} track;

/* Train up to step `until` and note loss and norm of each step. */
void track_steps(tide_trainer *trainer, uint64_t until, track *made);
/* Note all values. */
void track_values(tide_trainer *trainer, track *made);
void track_free(track *made);
/* `what` names the run in the failure's message. */
void track_compare(const track *truth, const track *other, const char *what);

/* Peaks are within the budgets in force. */
void check_budgets(tide_trainer *trainer, const char *what);

/* The number after `words` in this thread's message; 0 if they are not in it. */
uint64_t number_in_message(const char *words);

#endif
