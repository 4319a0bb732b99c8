/* The plan of a run of the trainer, for benchmarks whose budgets are shares of it. */
#ifndef TIDE_TESTS_BENCH_PLAN_H
#define TIDE_TESTS_BENCH_PLAN_H

#include "src/train/trainer.h"
#include "tests/support/bench.h"

static inline tide_pool_plan bench_plan(const tide_trainer_options *options)
{
    tide_trainer_draft draft;
    bench_check(tide_trainer_draft_make(options, NULL, NULL, &draft), options->model.name);
    tide_pool_plan plan = draft.plan.pool;
    plan.largest_op = NULL; /* it points to a string of the model */
    tide_trainer_draft_destroy(&draft);
    return plan;
}

#endif
