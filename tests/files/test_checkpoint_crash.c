/* Crashes of a save: it stops before each of its operations in turn, and the disk keeps any subset of the
 * changes that were not synced.
 *
 * After a stop at any instant:
 *   - the newest checkpoint loads, bit for bit; it is the old or the new one, and if the save had returned,
 *     the new one
 *   - every folder called step-N loads
 *
 * To prove that every sync is needed, the test lets the disk ignore sync k; for every k some stop must
 * then break one of these promises.
 */
#include "tests/files/test_checkpoint.h"
#include "tests/support/assert_ok.h"

enum { SEEDS = 16, PROOF_SEEDS = 64, STEPS_MAX = 6, NEVER = 100000 };

typedef struct schedule {
    const fake_files *before; /* the disk that the save finds */
    uint64_t step;            /* the step that is saved */
    unsigned keep;
    uint64_t oldest; /* after a crash the newest step is at least this; 0: there may be none */
} schedule;

/* ---- the promise ---- */

static bool newest_is_right(const fake_files *disk, const schedule *plan, bool returned)
{
    tide_checkpoint_found found;
    if (tide_checkpoint_newest(fake_files_table(disk), "ckpt", &found) != TIDE_OK)
        return false;
    if (!found.exists)
        return plan->oldest == 0 && !returned;
    if (returned && found.step != plan->step)
        return false;
    return found.step >= plan->oldest && found.step <= plan->step &&
           loads_as(fake_files_table(disk), found.path, found.step);
}

static bool every_named_one_loads(const fake_files *disk)
{
    for (unsigned step = 0; step <= STEPS_MAX; step++) {
        char path[32];
        snprintf(path, sizeof path, "ckpt/step-%u", step);
        if (fake_files_exists(disk, path) && !loads_as(fake_files_table(disk), path, step))
            return false;
    }
    return true;
}

static bool promise_holds(const fake_files *disk, const schedule *plan, bool returned)
{
    return newest_is_right(disk, plan, returned) && every_named_one_loads(disk);
}

/* --- stopping --- */

/* Saves up to operation `cut`; *returned is whether the save returned success. */
static fake_files *save_until(const schedule *plan, unsigned cut, unsigned ignored_sync, bool *returned)
{
    fake_files *disk = fake_files_clone(plan->before);
    fake_files_stop(disk, cut);
    fake_files_ignore_sync(disk, ignored_sync);
    *returned = save_small(fake_files_table(disk), "ckpt", plan->step, plan->keep, NULL) == TIDE_OK;
    return disk;
}

static unsigned save_operations(const schedule *plan, unsigned *syncs)
{
    bool returned;
    fake_files *disk = save_until(plan, NEVER, NEVER, &returned);
    unsigned operations = fake_files_operations(disk);
    assert_true(returned);
    *syncs = fake_files_syncs(disk);
    fake_files_free(disk);
    return operations;
}

/* Returns how many of `seeds` power cuts before operation `cut` break the promises. */
static unsigned broken_at(const schedule *plan, unsigned cut, unsigned ignored_sync, unsigned seeds)
{
    unsigned broken = 0;
    bool returned;
    fake_files *disk = save_until(plan, cut, ignored_sync, &returned);
    for (unsigned seed = 0; seed < seeds; seed++) {
        fake_files *after = fake_files_after_power_cut(disk, seed);
        broken += !promise_holds(after, plan, returned);
        fake_files_free(after);
    }
    fake_files_free(disk);
    return broken;
}

static void assert_no_cut_breaks(const schedule *plan)
{
    unsigned syncs;
    unsigned operations = save_operations(plan, &syncs);
    for (unsigned cut = 0; cut <= operations; cut++) {
        if (broken_at(plan, cut, NEVER, SEEDS) > 0)
            fail_msg("the cut before operation %u of %u breaks the promise: %s", cut, operations,
                     tide_message());
    }
}

/* Checks that, for each sync that the disk ignores, some power cut breaks the promises. */
static void assert_every_sync_is_needed(const schedule *plan, unsigned expected_syncs)
{
    unsigned syncs;
    unsigned operations = save_operations(plan, &syncs);
    assert_int_equal(syncs, expected_syncs);
    for (unsigned ignored = 0; ignored < syncs; ignored++) {
        unsigned broken = 0;
        for (unsigned cut = 0; cut <= operations && broken == 0; cut++)
            broken = broken_at(plan, operations - cut, ignored, PROOF_SEEDS);
        if (broken == 0)
            fail_msg("sync %u of %u is not needed: no cut of the save breaks without it", ignored, syncs);
    }
}

/* ---- disks to begin with ---- */

static fake_files *disk_with(unsigned first_step, unsigned last_step)
{
    fake_files *disk = fake_files_new();
    for (unsigned step = first_step; step <= last_step; step++)
        assert_int_equal(save_small(fake_files_table(disk), "ckpt", step, 0, NULL), TIDE_OK);
    return disk;
}

/* ---- tests ---- */

static void the_first_save_survives_every_cut_or_never_was(void **unused)
{
    fake_files *disk = fake_files_new();
    schedule plan = {.before = disk, .step = 1, .keep = 2, .oldest = 0};
    assert_no_cut_breaks(&plan);
    /* The syncs of three tensor files, the manifest, the .tmp folder, DIR, and DIR's parent. */
    assert_every_sync_is_needed(&plan, 7);
    fake_files_free(disk);
}

static void a_later_save_leaves_the_earlier_one_or_itself(void **unused)
{
    fake_files *disk = disk_with(1, 2);
    schedule plan = {.before = disk, .step = 3, .keep = 2, .oldest = 2};
    assert_no_cut_breaks(&plan);
    /* The syncs of three tensor files, the manifest, the .tmp folder, DIR, and DIR once more before
     * step-1's files are removed. */
    assert_every_sync_is_needed(&plan, 7);
    fake_files_free(disk);
}

static void keeping_one_never_leaves_none(void **unused)
{
    fake_files *disk = disk_with(1, 1);
    schedule plan = {.before = disk, .step = 2, .keep = 1, .oldest = 1};
    assert_no_cut_breaks(&plan);
    fake_files_free(disk);
}

/* The first process is killed, the second one saves, and then the power is cut. */
static void a_kill_and_then_a_cut_keep_the_promise(void **unused)
{
    fake_files *disk = disk_with(1, 2);
    schedule first = {.before = disk, .step = 3, .keep = 2, .oldest = 2};
    unsigned syncs;
    unsigned first_operations = save_operations(&first, &syncs);
    for (unsigned kill = 0; kill <= first_operations; kill++) {
        bool returned;
        fake_files *killed = save_until(&first, kill, NEVER, &returned);
        fake_files *found = fake_files_after_kill(killed);
        schedule second = {.before = found, .step = 4, .keep = 2, .oldest = 2};
        unsigned operations = save_operations(&second, &syncs);
        for (unsigned cut = kill % 2; cut <= operations; cut += 2) {
            if (broken_at(&second, cut, NEVER, 3) > 0)
                fail_msg("a kill before operation %u, then a cut before %u: %s", kill, cut, tide_message());
        }
        fake_files_free(found);
        fake_files_free(killed);
    }
    fake_files_free(disk);
}

/* The kill comes after step-1 was renamed for its removal and before the sync behind that. Then only the
 * sync before the removal of a stale folder keeps a power cut from leaving a step-1 without some of its
 * files. */
static void the_sync_before_a_stale_removal_is_needed(void **unused)
{
    fake_files *disk = disk_with(1, 2);
    schedule first = {.before = disk, .step = 3, .keep = 2, .oldest = 2};
    unsigned syncs, proven = 0;
    unsigned first_operations = save_operations(&first, &syncs);
    for (unsigned kill = 0; kill <= first_operations && proven == 0; kill++) {
        bool returned;
        fake_files *killed = save_until(&first, kill, NEVER, &returned);
        fake_files *found = fake_files_after_kill(killed);
        schedule second = {.before = found, .step = 4, .keep = 2, .oldest = 2};
        bool stale_was_named = fake_files_exists(found, "ckpt/.tmp-1-1000");
        unsigned operations = stale_was_named ? save_operations(&second, &syncs) : 0;
        for (unsigned cut = 0; cut < operations && proven == 0; cut++)
            /* Sync 0 is the one before the removal of the stale folder. */
            proven = broken_at(&second, cut, 0, PROOF_SEEDS);
        fake_files_free(found);
        fake_files_free(killed);
    }
    assert_true(proven > 0);
    fake_files_free(disk);
}

static void a_killed_saves_folder_is_cleaned_by_the_next_save(void **unused)
{
    fake_files *disk = disk_with(1, 1);
    schedule plan = {.before = disk, .step = 2, .keep = 0, .oldest = 1};
    bool returned;
    fake_files *killed = save_until(&plan, 12, NEVER, &returned);
    fake_files *found = fake_files_after_kill(killed);
    assert_false(returned);
    assert_true(fake_files_exists(found, "ckpt/.tmp-2-1000"));
    assert_int_equal(save_small(fake_files_table(found), "ckpt", 3, 0, NULL), TIDE_OK);
    assert_false(fake_files_exists(found, "ckpt/.tmp-2-1000"));
    fake_files_free(found);
    fake_files_free(killed);
    fake_files_free(disk);
}

static int temporary_visit(void *visitor, const char *name)
{
    *(unsigned *)visitor += strncmp(name, ".tmp-", 5) == 0;
    return 0;
}

/* Counts the names of temporary folders and their locks. */
static unsigned temporary_names(const fake_files *disk)
{
    const tide_files *files = fake_files_table(disk);
    unsigned count = 0;
    assert_int_equal(files->list(files->context, "ckpt", temporary_visit, &count), 0);
    return count;
}

static void what_a_kill_at_any_instant_left_goes_with_the_next_save(void **unused)
{
    fake_files *disk = disk_with(1, 2);
    schedule plan = {.before = disk, .step = 3, .keep = 2, .oldest = 1};
    unsigned syncs, left = 0;
    const unsigned operations = save_operations(&plan, &syncs);
    for (unsigned kill = 0; kill <= operations; kill++) {
        bool returned;
        fake_files *killed = save_until(&plan, kill, NEVER, &returned);
        fake_files *found = fake_files_after_kill(killed);
        left += temporary_names(found) > 0;
        assert_int_equal(save_small(fake_files_table(found), "ckpt", 4, 2, NULL), TIDE_OK);
        assert_int_equal(temporary_names(found), 0);
        fake_files_free(found);
        fake_files_free(killed);
    }
    assert_true(left > 10);
    fake_files_free(disk);
}

/* Between machines that share a disk, process numbers mean nothing. A lock shows whether the save's
 * process lives. */
static void a_lock_tells_a_living_save_from_a_dead_one(void **unused)
{
    fake_files *disk = disk_with(1, 1);
    const tide_files *files = fake_files_table(disk);
    int held, dead;
    assert_int_equal(files->lock(files->context, "ckpt/.tmp-9-7.lock", true, &held), 0);
    assert_int_equal(files->make_folder(files->context, "ckpt/.tmp-9-7"), 0);
    assert_int_equal(files->lock(files->context, "ckpt/.tmp-9-5000.lock", true, &dead), 0);
    assert_int_equal(files->make_folder(files->context, "ckpt/.tmp-9-5000"), 0);
    assert_int_equal(files->make_folder(files->context, "ckpt/.tmp-8-5000"),
                     0); /* without a lock the process number decides */
    assert_int_equal(files->close(files->context, dead), 0);
    assert_false(files->process_is_alive(files->context, 7));
    assert_true(files->process_is_alive(files->context, 5000));
    assert_int_equal(save_small(files, "ckpt", 2, 0, NULL), TIDE_OK);
    assert_true(fake_files_exists(disk, "ckpt/.tmp-9-7") && fake_files_exists(disk, "ckpt/.tmp-9-7.lock"));
    assert_true(fake_files_exists(disk, "ckpt/.tmp-8-5000"));
    assert_int_equal(temporary_names(disk), 3);
    assert_int_equal(files->close(files->context, held), 0);
    assert_int_equal(save_small(files, "ckpt", 3, 0, NULL), TIDE_OK);
    assert_int_equal(temporary_names(disk), 1);
    fake_files_free(disk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_save_survives_every_cut_or_never_was),
        cmocka_unit_test(a_later_save_leaves_the_earlier_one_or_itself),
        cmocka_unit_test(keeping_one_never_leaves_none),
        cmocka_unit_test(a_kill_and_then_a_cut_keep_the_promise),
        cmocka_unit_test(the_sync_before_a_stale_removal_is_needed),
        cmocka_unit_test(a_killed_saves_folder_is_cleaned_by_the_next_save),
        cmocka_unit_test(what_a_kill_at_any_instant_left_goes_with_the_next_save),
        cmocka_unit_test(a_lock_tells_a_living_save_from_a_dead_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
