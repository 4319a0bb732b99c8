/* Where data lies, when it moves and what happens between steps never changes a bit of any result: one test
 * for all of it.
 *
 * A row has a level of every factor of the table below. The levels of the case (family, dtype, frozen
 * tensors, clipping, micro-batch) change results; those of the setting (device, budgets, chunks, threads)
 * must not. Each row is a run of a few steps. Its losses, norms, params, optimizer state, last validation
 * loss and sample must equal those of the reference in all bits: the same case with level 0 of every other
 * factor, which is everything in memory, without checks, in one go.
 *
 * The rows are chosen so that any two levels of any two factors meet in some row (with TIDE_TEST_ALL any
 * three of three). can_combine says which levels can't meet. Every run stays within its budgets, by the
 * device's own high-water marks, and allocates nothing after its second step. The hazard checker and the
 * guard are on where the device has them.
 *
 *   usage: test_trainer_matrix [cuda] [product] [PART/PARTS]
 *
 *   product      all combinations of device, budgets, chunks, placement, prefetch and recompute, for each
 *                family and dtype (an hour and more)
 *   cuda         on the CUDA module in TIDEPOOL_MODULES, with the first levels of each factor
 *   PART/PARTS   one of so many parts, from 1 on
 */
#include "src/data/random.h"
#include "src/train/trainer_internal.h"
#include "tests/support/small_model.h"
#include "tests/support/test_thin.h"
#include "tests/support/test_trainer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

/* Step 1 is recorded, step 2 is the first with a plan, and step 3 the first after a planned step. */
enum { STEPS = 4, HALF_WAY = 2, SEQUENCES = 4, SEQ_LEN = 32, KIB = 1024 };
/* On the CUDA module, since the tests' module emulates a GPU, which is slow. */
enum { CUDA_STEPS = 3, CUDA_SEQUENCES = 1, CUDA_SEQ_LEN = 16, CUDA_LAYERS = 2, CUDA_WIDTH = 192 };

/* ---- factors and levels ---- */

typedef enum factor {
    FAMILY = 0, /* of the case, up to MICRO_BATCH */
    DTYPE,
    FROZEN,
    CLIP,
    MICRO_BATCH,
    DEVICE, /* of the setting; up to RECOMPUTE these are of the product */
    BUDGET,
    HOST_BUDGET,
    CHUNK,
    PLACEMENT,
    PREFETCH,
    RECOMPUTE,
    THREADS,
    DELAYS,
    COURSE,
    FACTORS,
} factor;

enum { CASE_FACTORS = MICRO_BATCH + 1, LEVELS_MAX = 8, NONE = 255 };

enum { ALL_TRAINED = 0 };                                              /* of FROZEN: frozen_patterns */
enum { ON_HOST = 0, ON_MODULE };                                       /* of DEVICE */
enum { ALL_IN_MEMORY = 0, LEAST_BUDGET, QUARTER_BUDGET, HALF_BUDGET }; /* of BUDGET */
enum { NO_DELAYS = 0, DELAYED, SLOW_LINK };                            /* of DELAYS */
/* Of COURSE: in one go; with an evaluation and a sample in between; saved half-way, to go on as the
 * reference; resumed from the reference half-way; begun with the reference's initial values, exported. */
enum { STRAIGHT = 0, EVALUATED, SAVED, RESUMED, IMPORTED };

static const tide_dtype dtypes[] = {TIDE_DTYPE_BF16, TIDE_DTYPE_FP32, TIDE_DTYPE_FP16};
static const double clips[] = {0.5, 0};
static const uint32_t micro_batches[] = {1, 2, 4};
static const uint32_t chunk_kib[] = {2048, 256, 512, 1024, 4096};
static const tide_placement placements[] = {TIDE_PLACEMENT_AUTO, TIDE_PLACEMENT_HOST, TIDE_PLACEMENT_DEVICE};
static const tide_recompute recomputes[] = {TIDE_RECOMPUTE_NONE, TIDE_RECOMPUTE_ALL, TIDE_RECOMPUTE_AUTO};
static const uint32_t threads[] = {2, 1, 3};

/* `cuda`: how many levels take part on the CUDA module. */
static const struct {
    const char *name;
    unsigned count, cuda;
    const char *levels[LEVELS_MAX];
} factors[FACTORS] = {
    [FAMILY] = {"family", 5, 2, {"gpt2", "qwen3", "llama", "mistral", "qwen2"}},
    [DTYPE] = {"dtype", 3, 2, {"bf16", "fp32", "fp16"}},
    [FROZEN] = {"frozen", 8, 1, {"0", "1", "2", "3", "4", "5", "6", "7"}},
    [CLIP] = {"clip", 2, 1, {"0.5", "off"}},
    [MICRO_BATCH] = {"micro-batch", 3, 1, {"1", "2", "4"}},
    [DEVICE] = {"device", 2, 1, {"host", "module"}},
    [BUDGET] = {"budget", 4, 2, {"all", "least", "quarter", "half"}},
    [HOST_BUDGET] = {"host budget", 2, 2, {"default", "least"}},
    [CHUNK] = {"chunk", 5, 1, {"2 MiB", "256 KiB", "512 KiB", "1 MiB", "4 MiB"}},
    [PLACEMENT] = {"placement", 3, 3, {"auto", "host", "device"}},
    [PREFETCH] = {"prefetch", 2, 2, {"on", "off"}},
    [RECOMPUTE] = {"recompute", 3, 3, {"none", "all", "auto"}},
    [THREADS] = {"threads", 3, 1, {"2", "1", "3"}},
    [DELAYS] = {"delays", 3, 1, {"none", "random", "random, slow link"}},
    [COURSE] = {"course", 5, 1, {"straight", "evaluated", "saved", "resumed", "imported"}},
};

/* Frozen tensors by their names in files, for GPT-2 and for the other families: nothing, all but the last
 * block, the embedding, all but the last norm, a matrix of each block, blocks at both ends, norms and some
 * matrices, all but the embedding. */
enum { PATTERNS_MAX = 4 };
static const char *const frozen_patterns[LEVELS_MAX][2][PATTERNS_MAX] = {
    {{NULL}, {NULL}},
    {{"w?e.weight", "h.[0-4].*", "ln_f.*"}, {"model.embed*", "model.layers.[0-4].*", "model.norm.*"}},
    {{"wte.weight"}, {"model.embed_tokens.weight"}},
    {{"w*", "h.*"}, {"model.embed*", "model.layers.*"}},
    {{"*.mlp.c_fc.weight"}, {"*.o_proj.weight"}},
    {{"wpe.*", "h.0.*", "h.1.*", "h.5.*"}, {"model.layers.0.*", "model.layers.1.*", "model.layers.5.*"}},
    {{"*.bias", "*ln_*", "h.2.mlp.c_fc.weight"},
     {"*norm.weight", "*.2.mlp.[gu]*_proj.weight", "*.3.self_attn.[qkv]_proj.*"}},
    {{"wpe*", "h.*", "ln_f.*"}, {"model.layers.*", "model.norm.weight"}},
};

typedef struct row {
    uint8_t level[FACTORS]; /* NONE: not chosen yet */
} row;

static bool on_cuda; /* the command line's `cuda` */

static unsigned levels(factor f)
{
    return on_cuda ? factors[f].cuda : factors[f].count;
}

/* Whether these levels can meet in a row. The module's device has the chunks of a GPU, of at least 2 MiB, and
 * neither delays nor a slow link. */
static bool can_combine(const row *r)
{
    const uint8_t *at = r->level;
    return at[DEVICE] != ON_MODULE || ((at[CHUNK] == NONE || chunk_kib[at[CHUNK]] >= 2048) &&
                                       (at[DELAYS] == NONE || at[DELAYS] == NO_DELAYS));
}

static char running[512]; /* the row that runs now; "" between tests */

static void row_describe(const row *r)
{
    int at = 0;
    for (factor f = 0; f < FACTORS; f++)
        at += snprintf(running + at, sizeof running - (size_t)at, "%s%s %s", f > 0 ? ", " : "",
                       factors[f].name, factors[f].levels[r->level[f]]);
}

static row row_of_none(void)
{
    row r;
    memset(&r, NONE, sizeof r);
    return r;
}

/* ---- the choice of rows ---- */

enum { ROWS_MAX = 1000, CANDIDATES = 20, PLACES = FACTORS * LEVELS_MAX };

static row rows[ROWS_MAX];
static size_t row_count;
static unsigned strength; /* how many levels must meet, 2 or 3 */

/* met[x][y][z]: the levels at these places, x < y < z, have met in a row; in pairs z is y. */
static bool met[PLACES][PLACES][PLACES];

static uint64_t draws;

static unsigned draw(unsigned below)
{
    return (unsigned)(tide_random_uniform(1, TIDE_RANDOM_USE_TEST, 1, draws++) * below);
}

/* Counts the sets of `strength` chosen levels of the row that have not met; unless `with` is FACTORS only
 * those that have a level of that factor. With `meet` they have met afterwards. */
static unsigned sets_new(const row *r, factor with, bool meet)
{
    unsigned place[FACTORS], count = 0;
    for (factor f = 0; f < FACTORS; f++)
        place[f] = r->level[f] == NONE ? PLACES : f * LEVELS_MAX + r->level[f];
    for (factor a = 0; a < FACTORS; a++)
        for (factor b = a + 1; b < FACTORS; b++)
            for (factor c = strength == 2 ? b : b + 1; c < (strength == 2 ? b + 1 : FACTORS); c++) {
                if (place[a] == PLACES || place[b] == PLACES || place[c] == PLACES ||
                    (with != FACTORS && with != a && with != b && with != c))
                    continue;
                bool *is_met = &met[place[a]][place[b]][place[c]];
                count += !*is_met;
                *is_met |= meet;
            }
    return count;
}

/* A place stands for a level of a factor. */
static bool place_exists(unsigned place)
{
    return place % LEVELS_MAX < levels((factor)(place / LEVELS_MAX));
}

/* Finds the first set of levels that can meet and have not, as a row of these levels only. Returns false if
 * there is none; *possible is then the number of all sets that can meet. */
static bool find_unmet(row *unmet, unsigned *possible)
{
    *possible = 0;
    for (unsigned x = 0; x < PLACES; x++)
        for (unsigned y = (x / LEVELS_MAX + 1) * LEVELS_MAX; y < PLACES; y++) {
            const unsigned first = strength == 2 ? y : (y / LEVELS_MAX + 1) * LEVELS_MAX;
            for (unsigned z = first; z < (strength == 2 ? y + 1 : PLACES); z++) {
                if (!place_exists(x) || !place_exists(y) || !place_exists(z))
                    continue;
                row r = row_of_none();
                r.level[x / LEVELS_MAX] = x % LEVELS_MAX;
                r.level[y / LEVELS_MAX] = y % LEVELS_MAX;
                r.level[z / LEVELS_MAX] = z % LEVELS_MAX;
                *possible += can_combine(&r);
                if (can_combine(&r) && !met[x][y][z]) {
                    *unmet = r;
                    return true;
                }
            }
        }
    return false;
}

/* Chooses the other levels, factor after factor in random order, each so that most sets meet for the first
 * time. */
static row complete(row r)
{
    factor order[FACTORS];
    for (unsigned i = 0; i < FACTORS; i++) {
        const unsigned at = draw(i + 1);
        order[i] = order[at];
        order[at] = (factor)i;
    }
    for (unsigned i = 0; i < FACTORS; i++) {
        const factor f = order[i];
        if (r.level[f] != NONE)
            continue;
        uint8_t best = NONE;
        unsigned most = 0;
        const unsigned first = draw(levels(f));
        for (unsigned n = 0; n < levels(f); n++) {
            r.level[f] = (uint8_t)((first + n) % levels(f));
            if (!can_combine(&r))
                continue;
            const unsigned gained = sets_new(&r, f, false);
            if (best == NONE || gained > most) {
                best = r.level[f];
                most = gained;
            }
        }
        assert_int_not_equal(best, NONE);
        r.level[f] = best;
    }
    return r;
}

static int compare_rows(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(row));
}

static void rows_choose(void)
{
    row unmet;
    unsigned possible = 0;
    while (find_unmet(&unmet, &possible)) {
        row best = row_of_none();
        unsigned most = 0;
        for (int i = 0; i < CANDIDATES; i++) {
            const row candidate = complete(unmet);
            const unsigned gained = sets_new(&candidate, FACTORS, false);
            if (gained > most) {
                best = candidate;
                most = gained;
            }
        }
        assert_true(row_count < ROWS_MAX);
        rows[row_count++] = best;
        (void)sets_new(&best, FACTORS, true);
    }
    /* Rows of one case follow each other, so that they share a reference. */
    qsort(rows, row_count, sizeof rows[0], compare_rows);
}

/* ---- runs ---- */

typedef struct outcome {
    track steps;
    double loss; /* of the validation after the last step */
    char *sample;
    uint64_t model_bytes, moved_bytes, evictions;
} outcome;

static void outcome_free(outcome *of)
{
    track_free(&of->steps);
    free(of->sample);
}

static void case_apply(const row *r, tide_trainer_options *options)
{
    const char *family = factors[FAMILY].levels[r->level[FAMILY]];
    options->model =
        model_of_family(family, on_cuda ? CUDA_LAYERS : 6, on_cuda ? CUDA_WIDTH : 96, 4, 64, 257);
    options->hyper.clip = clips[r->level[CLIP]];
    options->seq_len = on_cuda ? CUDA_SEQ_LEN : SEQ_LEN;
    options->global_batch_tokens = options->seq_len * (on_cuda ? CUDA_SEQUENCES : SEQUENCES);
    options->eval_batches = 1;
    options->micro_batch_sequences = micro_batches[r->level[MICRO_BATCH]];
    options->freeze = frozen_patterns[r->level[FROZEN]][strcmp(family, "gpt2") != 0];
    while (options->freeze_count < PATTERNS_MAX && options->freeze[options->freeze_count])
        options->freeze_count++;
}

/* Sets budgets, which come last, since the least ones depend on the other options. A share of the model data
 * that is below the least budget is raised to it. */
static void budgets_apply(const row *r, const outcome *reference, tide_trainer_options *options)
{
    const unsigned of_device = r->level[BUDGET];
    if (of_device != ALL_IN_MEMORY) {
        const uint64_t least = least_budget(options, true),
                       share = of_device == LEAST_BUDGET
                                   ? 0
                                   : reference->model_bytes / (of_device == HALF_BUDGET ? 2 : 4);
        options->pool.device_memory_bytes = share > least ? share : least;
    }
    if (r->level[HOST_BUDGET] == 1)
        options->pool.host_memory_bytes = least_budget(options, false);
}

/* Makes the options of the row's reference if `reference` is NULL. */
static tide_trainer_options options_of(const row *r, const outcome *reference)
{
    tide_trainer_options options = small_options(text, dtypes[r->level[DTYPE]]);
    case_apply(r, &options);
    options.recompute = TIDE_RECOMPUTE_NONE;
    options.pool.chunk_bytes = chunk_kib[0] * KIB;
    options.pool.checks = (tide_checks){0};
    options.pool.device = on_cuda ? "cuda:0" : "host";
    if (reference == NULL)
        return options;
    const bool on_module = on_cuda || r->level[DEVICE] == ON_MODULE;
    options.recompute = recomputes[r->level[RECOMPUTE]];
    options.pool.device = on_module ? "cuda:0" : "host";
    options.pool.chunk_bytes = (uint64_t)chunk_kib[r->level[CHUNK]] * KIB;
    options.pool.placement = placements[r->level[PLACEMENT]];
    options.pool.prefetch = r->level[PREFETCH] == 0;
    options.pool.threads = threads[r->level[THREADS]];
    options.pool.checks.hazard_check = options.pool.checks.guard = !on_module;
    options.pool.checks.delay_seed = r->level[DELAYS] == NO_DELAYS ? 0 : draw(1000) + 1;
    options.pool.checks.delay_max_us = r->level[DELAYS] == NO_DELAYS ? 0 : 100;
    options.pool.link_bytes_per_second = r->level[DELAYS] == SLOW_LINK ? 2e9 : 0;
    budgets_apply(r, reference, &options);
    return options;
}

static void path_make(const char *kind, char path[96])
{
    static int number;
    snprintf(path, 96, "%s/%s-%d", folder, kind, number++);
}

/* Saves the run and resumes it with other options. */
static tide_trainer *move(tide_trainer *trainer, const tide_trainer_options *to)
{
    char path[96];
    path_make("save", path);
    assert_int_equal(mkdir(path, 0777), 0);
    ok(tide_trainer_save(trainer, path, 0, NULL));
    tide_trainer_destroy(trainer);
    tide_trainer_options resumed = *to;
    resumed.resume_dir = path;
    trainer = trainer_open(&resumed);
    const tide_trainer_resumed *from = tide_trainer_resumed_get(trainer);
    assert_true(from->resumed);
    assert_int_equal(from->from.step, HALF_WAY);
    assert_int_equal(from->changes.count, 0);
    return trainer;
}

/* Writes the reference's initial values as a folder of weights. */
static void export_initial_values(const tide_trainer_options *options, const char *path)
{
    tide_trainer *trainer = trainer_open(options);
    const tide_export to = {
        .files = tide_files_posix(), .out = path, .dtype = TIDE_WEIGHTS_F32, .model = &options->model};
    tide_export_place place;
    ok(tide_export_begin(&to, &place));
    ok(tide_trainer_export(trainer, &to, &place));
    tide_trainer_destroy(trainer);
}

static void look_in_between(tide_trainer *trainer, double *loss, char **sampled)
{
    tide_sample_options sample;
    tide_sample_options_default(&sample);
    sample.tokens = on_cuda ? 1 : 3;
    ok(tide_trainer_evaluate(trainer, loss));
    ok(tide_trainer_sample(trainer, &sample, sampled));
}

static tide_pool_counters counters_of(tide_trainer *trainer)
{
    tide_pool_counters counters;
    ok(tide_pool_counters_get(tide_trainer_pool(trainer), &counters));
    return counters;
}

/* Makes the steps that are left and records the outcome. A resumed run may allocate in its first step. */
static void finish(tide_trainer *trainer, outcome *made)
{
    const tide_pool_counters before = counters_of(trainer);
    track_steps(trainer, on_cuda ? CUDA_STEPS : STEPS, &made->steps);
    ok(tide_pool_drain(tide_trainer_pool(trainer)));
    const tide_pool_counters after = counters_of(trainer);
    if (!tide_trainer_resumed_get(trainer)->resumed &&
        (after.device_allocations != before.device_allocations ||
         after.host_allocations != before.host_allocations))
        fail_msg("allocations after the second step");
    made->moved_bytes = after.h2d_bytes + after.d2h_bytes;
    made->evictions = after.evictions;
    track_values(trainer, &made->steps);
    look_in_between(trainer, &made->loss, &made->sample);
    check_budgets(trainer, running);
}

/* A run for which everything stays where it is used evicts nothing, unless it sets values from files. */
static void check_evictions(const row *r, uint64_t evictions)
{
    if (r->level[BUDGET] == ALL_IN_MEMORY && r->level[FROZEN] == ALL_TRAINED &&
        r->level[COURSE] <= EVALUATED && placements[r->level[PLACEMENT]] != TIDE_PLACEMENT_HOST)
        assert_int_equal(evictions, 0);
}

static void run(const row *r, const outcome *reference, outcome *made)
{
    char path[96];
    const tide_trainer_options options = options_of(r, reference), reference_options = options_of(r, NULL);
    const unsigned course = reference ? r->level[COURSE] : STRAIGHT;
    tide_trainer_options first = course == RESUMED ? reference_options : options;
    *made = (outcome){0};
    if (course == IMPORTED) {
        path_make("weights", path);
        export_initial_values(&reference_options, path);
        first.weights = path;
    }
    tide_trainer *trainer = trainer_open(&first);
    made->model_bytes = tide_trainer_plan_get(trainer)->pool.model_bytes;
    for (uint64_t step = 1; step <= HALF_WAY; step++) {
        track_steps(trainer, step, &made->steps);
        if (course == EVALUATED) {
            look_in_between(trainer, &made->loss, &made->sample);
            free(made->sample);
        }
    }
    if (course == SAVED || course == RESUMED)
        trainer = move(trainer, course == SAVED ? &reference_options : &options);
    finish(trainer, made);
    tide_trainer_destroy(trainer);
}

static void compare(const outcome *reference, const outcome *made)
{
    track_compare(&reference->steps, &made->steps, running);
    if (memcmp(&reference->loss, &made->loss, sizeof reference->loss) != 0)
        fail_msg("validation loss %.17g, not %.17g", made->loss, reference->loss);
    if (strcmp(reference->sample, made->sample) != 0)
        fail_msg("another sample");
}

/* The reference of the last row's case. */
static row reference_row;
static outcome reference_outcome;

/* Bytes that all runs with the least budget moved, and those that the references of the same cases moved. */
static uint64_t least_moved_bytes, reference_moved_bytes;

static void check_row(const row *r)
{
    outcome made;
    row_describe(r);
    if (reference_outcome.sample == NULL || memcmp(r->level, reference_row.level, CASE_FACTORS) != 0) {
        outcome_free(&reference_outcome);
        run(r, NULL, &reference_outcome);
        reference_row = *r;
    }
    run(r, &reference_outcome, &made);
    compare(&reference_outcome, &made);
    check_evictions(r, made.evictions);
    if (r->level[BUDGET] == LEAST_BUDGET && r->level[FROZEN] == ALL_TRAINED) {
        least_moved_bytes += made.moved_bytes;
        reference_moved_bytes += reference_outcome.moved_bytes;
    }
    outcome_free(&made);
    running[0] = '\0';
}

/* ---- tests ---- */

static unsigned part = 1, parts = 1;

static void any_levels_that_can_meet_do(void **state)
{
    row unmet;
    unsigned possible;
    strength = getenv("TIDE_TEST_ALL") && !on_cuda ? 3 : 2;
    rows_choose();
    memset(met, 0, sizeof met);
    for (size_t i = 0; i < row_count; i++) {
        assert_true(can_combine(&rows[i]));
        (void)sets_new(&rows[i], FACTORS, true);
    }
    assert_false(find_unmet(&unmet, &possible));
    unsigned pairs = 0;
    for (factor a = 0; a < FACTORS; a++)
        for (factor b = a + 1; b < FACTORS; b++)
            pairs += levels(a) * levels(b);
    /* The module lacks three sizes of chunks and two kinds of delays. */
    assert_true(strength == 3 || pairs - possible == (on_cuda ? 0 : 5));
    print_message("%zu rows, in which %u sets of %u levels meet\n", row_count, possible, strength);
}

static void no_setting_changes_a_bit(void **state)
{
    for (size_t i = row_count * (part - 1) / parts; i < row_count * part / parts; i += test_thin(3))
        check_row(&rows[i]);
    /* else no budget here made the pool move anything */
    assert_true(least_moved_bytes > 2 * reference_moved_bytes || test_thin(3) > 1);
}

/* Calls check_row for all combinations of the levels of the factors from `f` to the last of the product. */
static void check_product(row *r, factor f)
{
    for (r->level[f] = 0; r->level[f] < levels(f); r->level[f]++)
        if (f < RECOMPUTE)
            check_product(r, f + 1);
        else if (can_combine(r)) {
            const row whole = complete(*r);
            check_row(&whole);
        }
    r->level[f] = NONE;
}

static void no_setting_of_the_product_changes_a_bit(void **state)
{
    unsigned cases = 0;
    for (unsigned family = 0; family < levels(FAMILY); family++)
        for (unsigned dtype = 0; dtype < levels(DTYPE); dtype++) {
            row r = row_of_none();
            r.level[FAMILY] = (uint8_t)family;
            r.level[DTYPE] = (uint8_t)dtype;
            for (factor f = FROZEN; f <= MICRO_BATCH; f++)
                r.level[f] = (uint8_t)draw(levels(f));
            if (cases++ % parts == part - 1)
                check_product(&r, DEVICE);
        }
}

/* Checks the comparison itself: it must notice another seed. */
static void another_seed_gives_other_bits(void **state)
{
    const row r = {{0}};
    tide_trainer_options options = options_of(&r, NULL);
    outcome made[2] = {0};
    for (int i = 0; i < 2; i++, options.seed++) {
        tide_trainer *trainer = trainer_open(&options);
        track_steps(trainer, HALF_WAY, &made[i].steps);
        finish(trainer, &made[i]);
        tide_trainer_destroy(trainer);
    }
    const track *one = &made[0].steps, *other = &made[1].steps;
    assert_memory_not_equal(one->losses, other->losses, STEPS * sizeof one->losses[0]);
    assert_memory_not_equal(one->values, other->values, one->elements * sizeof one->values[0]);
    assert_true(made[0].loss != made[1].loss);
    outcome_free(&made[0]);
    outcome_free(&made[1]);
}

/* Tells in which row a test failed. */
static int tell_row(void **state)
{
    if (running[0] != '\0')
        print_error("in this row: %s\n", running);
    return 0;
}

static int free_reference(void **state)
{
    outcome_free(&reference_outcome);
    return fixture_tear_down(state);
}

int main(int count, char **arguments)
{
    bool product = false;
    for (int i = 1; i < count; i++)
        if (strcmp(arguments[i], "cuda") == 0)
            on_cuda = true;
        else if (strcmp(arguments[i], "product") == 0)
            product = true;
        else if (sscanf(arguments[i], "%u/%u", &part, &parts) != 2 || part < 1 || part > parts)
            return 2;
    if (!on_cuda && (setenv("TIDEPOOL_MODULES", TIDE_FAKE_GPU_FOLDER, 1) != 0 ||
                     setenv("TIDE_FAKE_GPU", "strict", 1) != 0))
        return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_levels_that_can_meet_do),
        cmocka_unit_test_teardown(no_setting_changes_a_bit, tell_row),
        cmocka_unit_test(another_seed_gives_other_bits),
    };
    const struct CMUnitTest tests_on_cuda[] = {
        cmocka_unit_test(any_levels_that_can_meet_do),
        cmocka_unit_test_teardown(no_setting_changes_a_bit, tell_row),
    };
    const struct CMUnitTest tests_of_product[] = {
        cmocka_unit_test_teardown(no_setting_of_the_product_changes_a_bit, tell_row),
    };
    return product   ? cmocka_run_group_tests(tests_of_product, fixture_set_up, free_reference)
           : on_cuda ? cmocka_run_group_tests(tests_on_cuda, fixture_set_up, free_reference)
                     : cmocka_run_group_tests(tests, fixture_set_up, free_reference);
}
