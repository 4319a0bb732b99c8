#include "tools/tune/tune_confirm.h"

#include "tools/train/stop.h"

#include <stdlib.h>

enum { UNCOUNTED_STEPS = 2, STEPS_MOST = 1000 };

typedef struct timed {
    double seconds, stall_seconds;
} timed;

static int compare(const void *a, const void *b)
{
    const double x = ((const timed *)a)->seconds, y = ((const timed *)b)->seconds;
    return (x > y) - (x < y);
}

/* Takes the times of the steps whose updates have ended. */
static void take(tide_pool *pool, timed *list, uint32_t *count)
{
    uint64_t step;
    tide_pool_counters counters;
    while (tide_pool_step_counters_take(pool, &step, &counters))
        if (step > UNCOUNTED_STEPS && *count < STEPS_MOST)
            list[(*count)++] = (timed){counters.seconds, counters.stall_seconds};
}

static tide_status steps_run(tide_trainer *trainer, uint32_t steps, timed *list, uint32_t *count)
{
    tide_pool *pool = tide_trainer_pool(trainer);
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < UNCOUNTED_STEPS + steps && status == TIDE_OK && !tide_stop_wanted(); i++) {
        status = tide_trainer_step(trainer, NULL);
        take(pool, list, count);
    }
    if (status == TIDE_OK)
        status = tide_pool_drain(pool);
    take(pool, list, count);
    return status;
}

tide_status tide_tune_confirm(const tide_trainer_options *options, const tide_choice *choice, uint32_t steps,
                              tide_confirmed *confirmed)
{
    static timed list[STEPS_MOST];
    uint32_t count = 0;
    tide_trainer_options run = *options;
    tide_trainer *trainer = NULL;
    tide_choice_apply(choice, &run);
    run.makes_up_tokens = run.data == NULL;
    run.weights = run.resume_dir = run.resume_from = NULL;
    tide_status status = tide_trainer_create(&run, &trainer);
    if (status == TIDE_OK)
        status = steps_run(trainer, steps, list, &count);
    tide_trainer_destroy(trainer);
    if (status != TIDE_OK)
        return status;
    *confirmed = (tide_confirmed){.steps = count};
    if (count == 0)
        return TIDE_OK;
    qsort(list, count, sizeof list[0], compare);
    confirmed->step_seconds = list[count / 2].seconds;
    confirmed->stall_seconds = list[count / 2].stall_seconds;
    return TIDE_OK;
}
