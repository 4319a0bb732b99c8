/* Checks of whole checkpoints: each damaged file is reported by itself; a damaged checkpoint is moved
 * aside without loss; and the disk space that a run's saves need is computed right. */
#include "tests/files/test_checkpoint.h"
#include "tests/support/assert_ok.h"

#include "src/checkpoint/check.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/free_space.h"
#include "tests/support/fake_memory.h"

#include <errno.h>

static fake_files *disk_with(uint64_t steps)
{
    fake_files *disk = fake_files_new();
    for (uint64_t step = 1; step <= steps; step++)
        assert_int_equal(save_small(fake_files_table(disk), "ckpt", step, 0, NULL), TIDE_OK);
    return disk;
}

static void flip(fake_files *disk, const char *path)
{
    size_t bytes;
    fake_files_bytes(disk, path, &bytes)[bytes - 1] ^= 1;
}

static tide_checkpoint_check look(const tide_files *files, const char *path, bool quick)
{
    tide_checkpoint_check check;
    assert_int_equal(tide_checkpoint_check_run(files, path,
                                               quick ? TIDE_CHECKPOINT_SIZES : TIDE_CHECKPOINT_BYTES, NULL,
                                               NULL, &check),
                     TIDE_OK);
    return check;
}

static void a_sound_checkpoint_is_told_whole(void **unused)
{
    fake_files *disk = fake_files_new();
    tide_checkpoint_saved saved;
    assert_int_equal(save_small(fake_files_table(disk), "ckpt", 3, 0, &saved), TIDE_OK);
    const tide_checkpoint_check check = look(fake_files_table(disk), saved.path, false);
    assert_true(check.sound && !check.damaged && check.has_state);
    assert_int_equal(check.state.step, 3);
    assert_int_equal(check.params, SMALL_ELEMENTS);
    assert_int_equal(check.bytes, saved.bytes);
    assert_int_equal(check.file_count, 1 + TIDE_CHECKPOINT_FILES);
    assert_null(tide_checkpoint_check_first(&check));
    fake_files_free(disk);
}

static void every_damaged_file_is_told_of(void **unused)
{
    fake_files *disk = disk_with(1);
    const tide_files *files = fake_files_table(disk);
    flip(disk, "ckpt/step-1/model.safetensors");
    flip(disk, "ckpt/step-1/variance.safetensors");
    assert_true(look(files, "ckpt/step-1", true).sound);
    const tide_checkpoint_check check = look(files, "ckpt/step-1", false);
    assert_true(check.damaged && !check.sound && check.has_state);
    assert_non_null(strstr(check.files[1].message, "model.safetensors: damaged, its checksum"));
    assert_string_equal(check.files[2].message, "");
    assert_non_null(strstr(check.files[3].message, "variance.safetensors: damaged, its checksum"));
    assert_ptr_equal(tide_checkpoint_check_first(&check), &check.files[1]);
    fake_files_free(disk);
}

static void a_file_that_is_missing_is_damage_and_so_is_another_ones_manifest(void **unused)
{
    fake_files *disk = disk_with(2);
    const tide_files *files = fake_files_table(disk);
    assert_int_equal(files->remove_file(files->context, "ckpt/step-1/momentum.safetensors"), 0);
    assert_true(look(files, "ckpt/step-1", true).damaged);
    assert_int_equal(files->rename(files->context, "ckpt/step-2", "ckpt/step-9"), 0);
    const tide_checkpoint_check renamed = look(files, "ckpt/step-9", true);
    assert_non_null(strstr(renamed.files[0].message, "that of step 2"));
    assert_int_equal(files->remove_file(files->context, "ckpt/step-9/manifest.json"), 0);
    const tide_checkpoint_check bare = look(files, "ckpt/step-9", true);
    assert_true(bare.damaged && !bare.has_state && bare.file_count == 1);
    fake_files_free(disk);
}

static void what_is_set_aside_is_no_checkpoint_any_more(void **unused)
{
    fake_files *disk = disk_with(2);
    const tide_files *files = fake_files_table(disk);
    char aside[TIDE_CHECKPOINT_PATH_BYTES];
    tide_checkpoint_found found;
    assert_int_equal(tide_checkpoint_set_aside(files, "ckpt/step-2", aside), TIDE_OK);
    assert_string_equal(aside, "ckpt/step-2.damaged");
    assert_int_equal(tide_checkpoint_newest(files, "ckpt", &found), TIDE_OK);
    assert_int_equal(found.step, 1);
    assert_int_equal(save_small(files, "ckpt", 2, 1, NULL), TIDE_OK);
    assert_int_equal(tide_checkpoint_set_aside(files, "ckpt/step-2", aside), TIDE_OK);
    assert_string_equal(aside, "ckpt/step-2.damaged-2");
    assert_true(look(files, "ckpt/step-2.damaged", false).sound);
    assert_true(look(files, "ckpt/step-2.damaged-2", false).sound);
    fake_files_free(disk);
}

/* The expected values are the largest growth of the disk, with `keep` checkpoints kept and three present. */
static void the_room_that_is_needed_is_what_saves_take(void **unused)
{
    enum { ONE = 1000 };
    fake_files *disk = disk_with(3);
    const tide_files *files = fake_files_table(disk);
    const uint64_t there = look(files, "ckpt/step-1", true).bytes;
    const struct {
        uint64_t bytes, count;
        unsigned keep;
        uint64_t expected;
    } cases[] = {
        {ONE, 0, 2, 0},
        {ONE, 1, 2, ONE},
        {there, 5, 2, there},     /* two of the three are removed before the second save */
        {there, 5, 5, 3 * there}, /* the folder fills up to five, and one more during a save */
        {there, 2, 5, 2 * there},
        {ONE, 7, 0, 7 * ONE},               /* none is removed */
        {UINT64_MAX / 2, 7, 0, UINT64_MAX}, /* the sum saturates */
        {UINT64_MAX / 2, 7, 4, UINT64_MAX - there * 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const tide_checkpoint_saves saves = {
            .bytes = cases[i].bytes, .count = cases[i].count, .keep = cases[i].keep, .from_step = 3};
        uint64_t bytes = 77;
        assert_int_equal(tide_checkpoint_space_needed(files, "ckpt", &saves, &bytes), TIDE_OK);
        if (i + 1 < sizeof cases / sizeof cases[0])
            assert_int_equal(bytes, cases[i].expected);
        else
            assert_true(bytes >= cases[i].expected);
    }
    fake_files_free(disk);
}

static void another_runs_later_checkpoints_make_no_room_and_half_written_ones_do(void **unused)
{
    fake_files *disk = disk_with(2);
    const tide_files *files = fake_files_table(disk);
    const uint64_t there = look(files, "ckpt/step-1", true).bytes;
    tide_checkpoint_saves saves = {.bytes = there, .count = 9, .keep = 1, .from_step = 0};
    uint64_t bytes = 0;
    assert_int_equal(tide_checkpoint_space_needed(files, "ckpt", &saves, &bytes), TIDE_OK);
    assert_int_equal(bytes, 2 * there);
    saves.from_step = 2;
    assert_int_equal(tide_checkpoint_space_needed(files, "ckpt", &saves, &bytes), TIDE_OK);
    assert_int_equal(bytes, there);
    assert_int_equal(files->rename(files->context, "ckpt/step-2", "ckpt/.tmp-2-1"), 0);
    assert_int_equal(tide_checkpoint_space_needed(files, "ckpt", &saves, &bytes), TIDE_OK);
    assert_int_equal(bytes, 0);
    assert_int_equal(tide_checkpoint_space_needed(files, "none", &saves, &bytes), TIDE_OK);
    assert_int_equal(bytes, 2 * there);
    fake_files_free(disk);
}

static void a_checkpoint_takes_no_more_than_is_said(void **unused)
{
    fake_files *disk = fake_files_new();
    tide_checkpoint_saved saved;
    uint64_t bytes = 0;
    assert_int_equal(tide_checkpoint_bytes(&small_model, false, &bytes), TIDE_OK);
    assert_int_equal(save_small(fake_files_table(disk), "ckpt", 3, 0, &saved), TIDE_OK);
    assert_in_range(bytes, saved.bytes, saved.bytes + 4096);
    fake_files_free(disk);
}

/* Expects MASTER as saved and zeros for all other values. */
typedef struct weights_sink {
    uint64_t step;
    uint64_t masters, moments, wrong;
} weights_sink;

static tide_status push_weights(void *context, size_t tensor, tide_value value, uint64_t first,
                                uint64_t count, const float *values)
{
    weights_sink *sink = context;
    const bool is_master = value == TIDE_VALUE_MASTER;
    *(is_master ? &sink->masters : &sink->moments) += count;
    for (uint64_t i = 0; i < count; i++)
        sink->wrong += values[i] != (is_master ? expected_value(sink->step, value, tensor, first + i) : 0.0f);
    return TIDE_OK;
}

static void weights_alone_come_back_with_an_optimizer_that_begins_anew(void **unused)
{
    fake_files *disk = fake_files_new();
    const tide_files *files = fake_files_table(disk);
    uint64_t step = 5, bytes = 0;
    const tide_train_state before = state_at(step);
    tide_train_state after;
    tide_checkpoint_saved saved;
    tide_checkpoint_found found;
    tide_train_changes changes = {0};
    weights_sink sink = {.step = step};
    assert_int_equal(
        tide_checkpoint_save_weights(files, "ckpt", &before, &small_model, 0, pull_values, &step, &saved),
        TIDE_OK);
    assert_int_equal(tide_checkpoint_newest(files, "ckpt", &found), TIDE_OK);
    assert_true(found.weights_only);
    assert_int_equal(tide_checkpoint_load(files, found.path, &before, &small_model, push_weights, NULL, &sink,
                                          &after, &changes),
                     TIDE_OK);
    assert_int_equal(sink.wrong, 0);
    assert_int_equal(sink.masters, SMALL_ELEMENTS);
    assert_int_equal(sink.moments, 2 * SMALL_ELEMENTS);
    assert_int_equal(after.step, step);
    assert_int_equal(after.adam_step, 0);
    assert_int_equal(changes.count, 1);
    assert_non_null(strstr(changes.lines[0], "zero moments"));
    const tide_checkpoint_check check = look(files, found.path, false);
    assert_true(check.sound && check.weights_only && check.file_count == 2);
    assert_int_equal(tide_checkpoint_bytes(&small_model, true, &bytes), TIDE_OK);
    assert_in_range(bytes, saved.bytes, saved.bytes + 4096);
    flip(disk, "ckpt/step-5/model.safetensors");
    assert_int_equal(
        tide_checkpoint_load(files, found.path, NULL, &small_model, push_weights, NULL, &sink, &after, NULL),
        TIDE_ERROR_CORRUPT);
    fake_files_free(disk);
}

static void memory_that_runs_out_is_no_damage(void **unused)
{
    fake_files *disk = disk_with(1);
    const tide_files *files = fake_files_table(disk);
    tide_checkpoint_check check;
    bool met = true;
    for (unsigned request = 1; met; request++) {
        fake_memory_fail(request);
        const tide_status status =
            tide_checkpoint_check_run(files, "ckpt/step-1", TIDE_CHECKPOINT_BYTES, NULL, NULL, &check);
        met = fake_memory_failed();
        const bool in_parser = fake_memory_failed_in_jansson();
        fake_memory_clear();
        if (met && !in_parser)
            assert_int_equal(status, TIDE_ERROR_NO_MEMORY);
        assert_true(met || status == TIDE_OK);
    }
    assert_true(check.sound);
    fake_files_free(disk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_checkpoint_is_told_whole),
        cmocka_unit_test(every_damaged_file_is_told_of),
        cmocka_unit_test(a_file_that_is_missing_is_damage_and_so_is_another_ones_manifest),
        cmocka_unit_test(what_is_set_aside_is_no_checkpoint_any_more),
        cmocka_unit_test(the_room_that_is_needed_is_what_saves_take),
        cmocka_unit_test(another_runs_later_checkpoints_make_no_room_and_half_written_ones_do),
        cmocka_unit_test(a_checkpoint_takes_no_more_than_is_said),
        cmocka_unit_test(weights_alone_come_back_with_an_optimizer_that_begins_anew),
        cmocka_unit_test(memory_that_runs_out_is_no_damage),
    };
    fake_memory_take_jansson();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
