/* Trainers of several ranks, in threads of this process, at ZeRO stage 0: losses, norms, evaluations, samples
 * and the files of checkpoints are those of one rank with as many sum groups, to the last byte. */
#include "src/train/trainer_internal.h"
#include "tests/support/small_model.h"
#include "tests/support/test_thin.h"
#include "tests/support/test_trainer_fixture.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MOST = 8, STEPS_MOST = 8, SAMPLE_TOKENS = 6 };

#if defined(__SANITIZE_THREAD__) /* which does not know OpenMP's barriers */
enum { THREADS = 1 };
#else
enum { THREADS = 2 };
#endif

typedef struct run_course {
    tide_trainer_options options;
    uint32_t ranks;
    uint64_t until;         /* the step at which it saves and ends */
    const char *save;       /* the folder of the checkpoint; NULL: none */
    const char *other_data; /* of the last rank; NULL: the same */
    bool varies;            /* chunk sizes, budgets and placements differ by rank */
    bool is_broken;         /* a param is infinite from the start */
    bool last_is_slow;      /* the last rank's streams wait before each command */
} run_course;

typedef struct rank {
    const run_course *course;
    tide_comm *comm;
    tide_status status;
    char message[1024];
    double losses[STEPS_MOST], norms[STEPS_MOST], evaluation;
    double own_seconds, seconds; /* sums over all steps but the first */
    char sample[SAMPLE_TOKENS * TIDE_DATA_SHOWN_BYTES + 1];
} rank;

static tide_status run_steps(rank *at, tide_trainer *trainer)
{
    tide_status status = TIDE_OK;
    uint64_t began_ns = 0;
    while (status == TIDE_OK && tide_trainer_state(trainer)->step < at->course->until) {
        tide_trainer_report report;
        status = tide_trainer_step(trainer, &report);
        if (status == TIDE_OK && report.step <= STEPS_MOST) {
            at->losses[report.step - 1] = report.loss;
            at->norms[report.step - 1] = report.gradient_norm;
        }
        if (status == TIDE_OK && report.step == 1)
            began_ns = tide_pool_now_ns(tide_trainer_pool(trainer));
        else if (status == TIDE_OK)
            at->own_seconds += report.own_seconds;
    }
    at->seconds = (double)(tide_pool_now_ns(tide_trainer_pool(trainer)) - began_ns) * 1e-9;
    return status;
}

static tide_status show(rank *at, tide_trainer *trainer)
{
    tide_sample_options options;
    char *made = NULL;
    tide_status status = tide_trainer_evaluate(trainer, &at->evaluation);
    tide_sample_options_default(&options);
    options.tokens = SAMPLE_TOKENS;
    if (status == TIDE_OK)
        status = tide_trainer_sample(trainer, &options, &made);
    if (status == TIDE_OK)
        snprintf(at->sample, sizeof at->sample, "%s", made);
    free(made);
    return status;
}

static tide_trainer_options options_of(const rank *at)
{
    const uint32_t number = tide_comm_rank(at->comm);
    tide_trainer_options options = at->course->options;
    options.pool.ranks = (tide_ranks_options){.comm = at->comm, .zero_stage = 0};
    if (at->course->other_data != NULL && number + 1 == at->course->ranks)
        options.data = at->course->other_data;
    if (at->course->last_is_slow && number + 1 == at->course->ranks) {
        options.pool.checks.delay_seed = 1;
        options.pool.checks.delay_max_us = 2000;
    }
    if (!at->course->varies)
        return options;
    options.pool.chunk_bytes <<= number % 3;
    options.pool.placement = (tide_placement)(number % 3);
    options.pool.prefetch = number % 2 == 0;
    options.pool.checks.delay_seed = number;
    options.pool.checks.delay_max_us = 20;
    tide_trainer_draft draft;
    if (number % 2 == 1 && tide_trainer_draft_make(&options, NULL, NULL, &draft) == TIDE_OK) {
        options.pool.device_memory_bytes = draft.plan.pool.least_device_bytes;
        tide_trainer_draft_destroy(&draft);
    }
    return options;
}

static void *run_rank(void *of)
{
    rank *at = of;
    tide_trainer *trainer = NULL;
    const tide_trainer_options options = options_of(at);
    at->status = tide_trainer_create(&options, &trainer);
    const float infinite = INFINITY;
    if (at->status == TIDE_OK && at->course->is_broken)
        at->status =
            tide_decoder_values_set(trainer->model, tide_model_tensor_count(&at->course->options.model) - 1,
                                    TIDE_VALUE_MASTER, 0, 1, &infinite);
    if (at->status == TIDE_OK)
        at->status = run_steps(at, trainer);
    if (at->status == TIDE_OK)
        at->status = show(at, trainer);
    if (at->status == TIDE_OK && at->course->save != NULL)
        at->status = tide_trainer_save(trainer, at->course->save, 0, NULL);
    snprintf(at->message, sizeof at->message, "%s", tide_message());
    tide_trainer_destroy(trainer);
    return NULL;
}

static void run(const run_course *course, rank *ranks)
{
    tide_comm *comms[RANKS_MOST];
    pthread_t threads[RANKS_MOST];
    assert_ok(tide_comm_loop_create(course->ranks, comms));
    tide_kernels_cpu_configure(THREADS); /* all ranks ask for as many */
    for (uint32_t r = 0; r < course->ranks; r++) {
        ranks[r] = (rank){.course = course, .comm = comms[r]};
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < course->ranks; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
    for (uint32_t r = 0; r < course->ranks; r++)
        tide_comm_destroy(comms[r]);
}

/* --- comparisons --- */

static void assert_ran(const rank *ranks, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++)
        if (ranks[r].status != TIDE_OK)
            fail_msg("rank %u of %u: %s", r, count, ranks[r].message);
}

static void assert_same_results(const rank *one, const rank *other, uint32_t number)
{
    const uint32_t ranks = other->course->ranks;
    if (memcmp(one->losses, other->losses, sizeof one->losses) != 0 ||
        memcmp(one->norms, other->norms, sizeof one->norms) != 0)
        fail_msg("rank %u of %u: losses %.17g %.17g, norms %.17g %.17g; one rank's %.17g %.17g, %.17g %.17g",
                 number, ranks, other->losses[0], other->losses[1], other->norms[0], other->norms[1],
                 one->losses[0], one->losses[1], one->norms[0], one->norms[1]);
    if (memcmp(&one->evaluation, &other->evaluation, sizeof one->evaluation) != 0 ||
        strcmp(one->sample, other->sample) != 0)
        fail_msg("rank %u of %u: evaluation %.17g, sample \"%s\"; one rank's %.17g, \"%s\"", number, ranks,
                 other->evaluation, other->sample, one->evaluation, one->sample);
}

static char *read_whole(const char *path, long *bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *bytes = ftell(file);
    rewind(file);
    char *content = malloc((size_t)*bytes + 1);
    assert_non_null(content);
    assert_int_equal(fread(content, 1, (size_t)*bytes, file), *bytes);
    fclose(file);
    return content;
}

/* Every file of the one folder is byte for byte in the other. */
static void assert_same_files(const char *one, const char *other)
{
    DIR *folder_one = opendir(one);
    uint32_t files = 0;
    assert_non_null(folder_one);
    for (struct dirent *entry = readdir(folder_one); entry != NULL; entry = readdir(folder_one)) {
        char paths[2][600];
        long bytes[2];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(paths[0], sizeof paths[0], "%s/%s", one, entry->d_name);
        snprintf(paths[1], sizeof paths[1], "%s/%s", other, entry->d_name);
        char *contents[2] = {read_whole(paths[0], &bytes[0]), read_whole(paths[1], &bytes[1])};
        if (bytes[0] != bytes[1] || memcmp(contents[0], contents[1], (size_t)bytes[0]) != 0)
            fail_msg("%s and %s differ", paths[0], paths[1]);
        free(contents[0]);
        free(contents[1]);
        files++;
    }
    closedir(folder_one);
    assert_true(files >= 2);
}

static void name_folder(char path[128], uint32_t test, uint32_t ranks)
{
    snprintf(path, 128, "%s/%u-%u", folder, test, ranks);
}

static tide_trainer_options base_options(const char *family, tide_dtype dtype, uint32_t groups)
{
    tide_trainer_options options = small_options(text, dtype);
    options.model = model_of_family(family, 3, 64, 4, 64, 257);
    options.hyper.schedule.steps = STEPS_MOST;
    options.pool.checks.guard = false;
    options.pool.threads = THREADS;
    options.sum_groups = groups;
    options.micro_batch_sequences = 1;
    options.global_batch_tokens = (uint64_t)groups * options.seq_len;
    options.eval_batches = 1;
    return options;
}

static void compare(uint32_t test, const tide_trainer_options *options, const uint32_t *counts)
{
    char paths[2][128], steps[2][160];
    rank one[1], ranks[RANKS_MOST];
    name_folder(paths[0], test, 1);
    run_course course = {.options = *options, .ranks = 1, .until = 3, .save = paths[0]};
    run(&course, one);
    assert_ran(one, 1);
    for (; *counts > 0; counts++) {
        run_course shared = course;
        name_folder(paths[1], test, *counts);
        shared.ranks = *counts;
        shared.save = paths[1];
        shared.varies = true;
        run(&shared, ranks);
        assert_ran(ranks, shared.ranks);
        for (uint32_t r = 0; r < shared.ranks; r++)
            assert_same_results(one, &ranks[r], r);
        for (int i = 0; i < 2; i++)
            snprintf(steps[i], sizeof steps[i], "%.120s/step-3", paths[i]);
        assert_same_files(steps[0], steps[1]);
    }
}

/* --- tests --- */

static void ranks_train_as_one_does(void **state)
{
    static const struct {
        const char *family;
        tide_dtype dtype;
        uint32_t groups, counts[3];
        tide_recompute recompute;
        double clip;
        tide_reduce reduce;
        const char *freeze;
        uint32_t micro_batches; /* in a sum group */
    } ways[] = {
        {"gpt2", TIDE_DTYPE_BF16, 8, {2, 8}, TIDE_RECOMPUTE_ALL, 1, TIDE_REDUCE_FP32, NULL, 1},
        {"llama", TIDE_DTYPE_FP32, 8, {4}, TIDE_RECOMPUTE_NONE, 0, TIDE_REDUCE_BF16, NULL, 1},
        {"qwen3", TIDE_DTYPE_FP16, 8, {2}, TIDE_RECOMPUTE_AUTO, 0.5, TIDE_REDUCE_FP32, NULL, 1},
        {"gpt2", TIDE_DTYPE_FP32, 12, {3, 6}, TIDE_RECOMPUTE_ALL, 0, TIDE_REDUCE_FP32, "wte.weight", 1},
        {"llama", TIDE_DTYPE_BF16, 24, {6}, TIDE_RECOMPUTE_AUTO, 1, TIDE_REDUCE_BF16, "*.0.mlp*", 1},
        {"gpt2", TIDE_DTYPE_FP16, 2, {2}, TIDE_RECOMPUTE_NONE, 1, TIDE_REDUCE_BF16, NULL, 3},
        {"mistral", TIDE_DTYPE_BF16, 5, {5}, TIDE_RECOMPUTE_ALL, 0, TIDE_REDUCE_FP32, NULL, 2},
    };
    for (uint32_t i = 0; i < sizeof ways / sizeof ways[0]; i += test_every(1, 3)) {
        tide_trainer_options options = base_options(ways[i].family, ways[i].dtype, ways[i].groups);
        options.recompute = ways[i].recompute;
        options.hyper.clip = ways[i].clip;
        options.reduce = ways[i].reduce;
        options.freeze = &ways[i].freeze;
        options.freeze_count = ways[i].freeze != NULL;
        options.global_batch_tokens *= ways[i].micro_batches;
        compare(i, &options, ways[i].counts);
    }
}

/* 4 ranks, then 2, 1 and 8, each for two steps from the checkpoint of those before. */
static void a_run_goes_on_with_other_numbers_of_ranks(void **state)
{
    static const uint32_t counts[] = {4, 2, 1, 8};
    char straight[128], chain[128], paths[2][160];
    rank ranks[RANKS_MOST];
    name_folder(straight, 100, 1);
    name_folder(chain, 100, 4);
    run_course course = {
        .options = base_options("gpt2", TIDE_DTYPE_BF16, 8), .ranks = 1, .until = 8, .save = straight};
    run(&course, ranks);
    assert_ran(ranks, 1);
    course.save = chain;
    course.varies = true;
    for (uint32_t i = 0; i < 4; i++) {
        course.ranks = counts[i];
        course.until = 2 * (i + 1);
        course.options.resume_dir = i > 0 ? chain : NULL;
        course.options.sum_groups = i > 0 ? 0 : 8; /* those of the checkpoint */
        run(&course, ranks);
        assert_ran(ranks, counts[i]);
    }
    snprintf(paths[0], sizeof paths[0], "%.120s/step-8", straight);
    snprintf(paths[1], sizeof paths[1], "%.120s/step-8", chain);
    assert_same_files(paths[0], paths[1]);
}

/* The others wait for the slow rank, which their own times leave out. */
static void the_slowest_rank_is_known_by_its_own_time(void **state)
{
    rank ranks[3];
    const run_course course = {.options = base_options("gpt2", TIDE_DTYPE_BF16, 3),
                               .ranks = 3,
                               .until = STEPS_MOST,
                               .last_is_slow = true};
    run(&course, ranks);
    assert_ran(ranks, 3);
    const rank *slow = &ranks[2];
    for (uint32_t r = 0; r < 2; r++)
        if (!(ranks[r].own_seconds > 0 && ranks[r].own_seconds < 0.7 * slow->own_seconds))
            fail_msg("rank %u: %g of %g s are its own; of rank 2: %g of %g s", r, ranks[r].own_seconds,
                     ranks[r].seconds, slow->own_seconds, slow->seconds);
    assert_true(slow->own_seconds > 0.4 * slow->seconds && slow->own_seconds < slow->seconds);
}

static void one_rank_has_no_own_time(void **state)
{
    rank alone;
    const run_course course = {.options = base_options("gpt2", TIDE_DTYPE_BF16, 1), .ranks = 1, .until = 2};
    run(&course, &alone);
    assert_ran(&alone, 1);
    assert_true(isnan(alone.own_seconds));
}

static void a_refusal_on_one_rank_is_told_to_all(void **state)
{
    rank ranks[3];
    run_course course = {.options = base_options("gpt2", TIDE_DTYPE_BF16, 3),
                         .ranks = 3,
                         .until = 1,
                         .other_data = "/no/such/file"};
    run(&course, ranks);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].status, r == 2 ? TIDE_ERROR_IO : TIDE_ERROR_PEER);
        if (strstr(ranks[r].message, "/no/such/file") == NULL ||
            (r < 2 && strncmp(ranks[r].message, "rank 2: ", 8) != 0))
            fail_msg("rank %u: %s", r, ranks[r].message);
    }
    char other[128];
    snprintf(other, sizeof other, "%s/other", folder);
    FILE *file = fopen(other, "wb");
    assert_non_null(file);
    for (int i = 0; i < 4000; i++)
        fputs("tides and\n", file);
    fclose(file);
    course.other_data = other;
    run(&course, ranks);
    for (uint32_t r = 0; r < 3; r++)
        if (ranks[r].status != TIDE_ERROR_PEER ||
            strstr(ranks[r].message, "rank 2 has data_fingerprint 0x") == NULL)
            fail_msg("rank %u: %s", r, ranks[r].message);
}

static void a_save_that_fails_fails_on_all(void **state)
{
    rank ranks[2];
    const run_course course = {.options = base_options("gpt2", TIDE_DTYPE_BF16, 2),
                               .ranks = 2,
                               .until = 1,
                               .save = "/no/such/folder/checkpoints"};
    run(&course, ranks);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(ranks[r].status, TIDE_ERROR_IO);
        assert_string_equal(ranks[r].message, ranks[0].message);
        assert_non_null(strstr(ranks[r].message, "/no/such/folder"));
    }
}

static void a_norm_that_is_not_finite_is_told_by_all(void **state)
{
    rank ranks[3];
    run_course course = {
        .options = base_options("gpt2", TIDE_DTYPE_BF16, 3), .ranks = 3, .until = 3, .is_broken = true};
    course.options.hyper.clip = 0;
    run(&course, ranks);
    for (uint32_t r = 0; r < 3; r++)
        if (ranks[r].status != TIDE_ERROR_NONFINITE ||
            strstr(ranks[r].message, "the gradient of param ") == NULL)
            fail_msg("rank %u: %s: %s", r, tide_status_name(ranks[r].status), ranks[r].message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_train_as_one_does),
        cmocka_unit_test(a_run_goes_on_with_other_numbers_of_ranks),
        cmocka_unit_test(the_slowest_rank_is_known_by_its_own_time),
        cmocka_unit_test(one_rank_has_no_own_time),
        cmocka_unit_test(a_refusal_on_one_rank_is_told_to_all),
        cmocka_unit_test(a_save_that_fails_fails_on_all),
        cmocka_unit_test(a_norm_that_is_not_finite_is_told_by_all),
    };
    return cmocka_run_group_tests(tests, fixture_set_up, fixture_tear_down);
}
