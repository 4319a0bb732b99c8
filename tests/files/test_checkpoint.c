/* Checkpoints: a load returns the saved values; a damaged or foreign checkpoint is refused before any
 * value is loaded; every failing file operation or memory request gives a clear status, and nothing is
 * lost or leaked. */
#include "tests/files/test_checkpoint.h"
#include "tests/support/assert_ok.h"

#include "base/crc32c.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/manifest.h"
#include "src/checkpoint/tensors.h"
#include "src/data/random.h"
#include "tests/files/scratch.h"
#include "tests/support/fake_memory.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static fake_files *disk_with_two(void)
{
    fake_files *disk = fake_files_new();
    assert_int_equal(save_small(fake_files_table(disk), "ckpt", 1, 0, NULL), TIDE_OK);
    assert_int_equal(save_small(fake_files_table(disk), "ckpt", 2, 0, NULL), TIDE_OK);
    return disk;
}

/* ---- saving and loading ---- */

static void what_is_saved_comes_back(void **state)
{
    const scratch *at = *state;
    tide_checkpoint_saved saved;
    tide_checkpoint_found found;
    assert_int_equal(save_small(tide_files_posix(), at->path, 7, 2, &saved), TIDE_OK);
    assert_string_equal(saved.warning, "");
    assert_int_equal(tide_checkpoint_newest(tide_files_posix(), at->path, &found), TIDE_OK);
    assert_true(found.exists);
    assert_int_equal(found.step, 7);
    assert_string_equal(found.path, saved.path);
    assert_true(loads_as(tide_files_posix(), found.path, 7));
}

static void a_tensor_larger_than_the_buffer_comes_back(void **state)
{
    const scratch *at = *state;
    tide_checkpoint_tensor tensor = {"big", 2, {5, (1 << 20) / 5 + 7}, false};
    tide_checkpoint_tensors model = {&tensor, 1};
    uint64_t step = 3;
    tide_train_state saved_state = state_at(step), loaded;
    tide_checkpoint_saved saved;
    value_sink sink = {.step = step};
    assert_int_equal(tide_checkpoint_save(tide_files_posix(), at->path, &saved_state, &model, 0, pull_values,
                                          &step, &saved),
                     TIDE_OK);
    assert_int_equal(tide_checkpoint_load(tide_files_posix(), saved.path, NULL, &model, push_values, NULL,
                                          &sink, &loaded, NULL),
                     TIDE_OK);
    assert_int_equal(sink.wrong, 0);
    assert_int_equal(sink.pushed, TIDE_CHECKPOINT_FILES * tide_checkpoint_tensor_elements(&tensor));
}

/* Checks the order in which a save or load asks for values: range by range, and in each range all kinds of
 * values. */
typedef struct asked_range {
    size_t tensor;
    uint64_t first;
    tide_value next;
    unsigned ranges, wrong;
} asked_range;

static void ask(asked_range *asked, size_t tensor, tide_value value, uint64_t first)
{
    const bool same = asked->tensor == tensor && asked->first == first;
    const bool later = tensor > asked->tensor || (tensor == asked->tensor && first > asked->first);
    const bool begins = asked->next == TIDE_VALUE_MASTER;
    asked->wrong += value != asked->next || (begins ? !later && asked->ranges > 0 : !same);
    asked->ranges += begins;
    asked->tensor = tensor;
    asked->first = first;
    asked->next = value + 1 < TIDE_VALUE_COUNT ? (tide_value)(value + 1) : TIDE_VALUE_MASTER;
}

static tide_status pull_in_order(void *context, size_t tensor, tide_value value, uint64_t first,
                                 uint64_t count, float *values)
{
    memset(values, 0, count * sizeof *values);
    ask(context, tensor, value, first);
    return TIDE_OK;
}

static tide_status push_in_order(void *context, size_t tensor, tide_value value, uint64_t first,
                                 uint64_t count, const float *values)
{
    (void)count, (void)values;
    ask(context, tensor, value, first);
    return TIDE_OK;
}

static void all_values_of_a_range_are_asked_for_together(void **state)
{
    const scratch *at = *state;
    const tide_checkpoint_tensor tensors[] = {{"big", 2, {5, (1 << 20) / 5 + 7}, false},
                                              {"small", 1, {3}, false}};
    const tide_checkpoint_tensors model = {tensors, 2};
    asked_range saved_order = {.next = TIDE_VALUE_MASTER}, loaded_order = saved_order;
    tide_train_state saved_state = state_at(3), loaded;
    tide_checkpoint_saved saved;
    assert_int_equal(tide_checkpoint_save(tide_files_posix(), at->path, &saved_state, &model, 0,
                                          pull_in_order, &saved_order, &saved),
                     TIDE_OK);
    assert_int_equal(tide_checkpoint_load(tide_files_posix(), saved.path, NULL, &model, push_in_order, NULL,
                                          &loaded_order, &loaded, NULL),
                     TIDE_OK);
    assert_int_equal(saved_order.ranges, 3);
    assert_int_equal(loaded_order.ranges, 3);
    assert_int_equal(saved_order.wrong + loaded_order.wrong, 0);
}

static void every_field_of_the_state_comes_back_exactly(void **state)
{
    const scratch *at = *state;
    tide_checkpoint_saved saved;
    tide_train_state wanted = state_at(5), found;
    assert_int_equal(save_small(tide_files_posix(), at->path, 5, 0, &saved), TIDE_OK);
    assert_int_equal(tide_checkpoint_peek(tide_files_posix(), saved.path, &found), TIDE_OK);
    memset(wanted.model.name, 0, sizeof wanted.model.name);
    memset(found.model.name, 0, sizeof found.model.name);
    assert_int_equal(found.seed, wanted.seed);
    assert_int_equal(found.data_fingerprint, wanted.data_fingerprint);
    assert_true(found.hyper.schedule.lr == wanted.hyper.schedule.lr &&
                found.hyper.schedule.lr_min == wanted.hyper.schedule.lr_min &&
                found.hyper.epsilon == wanted.hyper.epsilon);
    tide_train_changes changes;
    assert_int_equal(tide_train_state_compare(&found, &wanted, "x", &changes), TIDE_OK);
    assert_int_equal(changes.count, 0);
    assert_int_equal(found.step, 5);
    assert_int_equal(found.tokens, wanted.tokens);
    assert_int_equal(found.adam_step, wanted.adam_step);
    assert_int_equal(found.skipped, wanted.skipped);
}

/* Reads a file by the description of the format alone: length, JSON, contiguous fp32. */
static void tensor_files_are_valid_safetensors(void **unused)
{
    fake_files *disk = disk_with_two();
    size_t bytes;
    const unsigned char *file = fake_files_bytes(disk, "ckpt/step-2/momentum.safetensors", &bytes);
    uint64_t header_bytes;
    memcpy(&header_bytes, file, sizeof header_bytes);
    assert_int_equal(header_bytes % 8, 0);
    assert_int_equal(bytes, 8 + header_bytes + SMALL_ELEMENTS * sizeof(float));
    const char *start =
        "{\"__metadata__\":{\"format\":\"pt\"},\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[5,3],\"data_"
        "offsets\":[0,60]},\"h.0.ln_1.bias\":{\"dtype\":\"F32\",\"shape\":[7],\"data_offsets\":[60,88]}";
    assert_memory_equal(file + 8, start, strlen(start));
    float value;
    memcpy(&value, file + 8 + header_bytes + 60 + 6 * sizeof value, sizeof value);
    assert_true(value == expected_value(2, TIDE_VALUE_MOMENTUM, 1, 6));
    fake_files_free(disk);
}

static void keep_removes_the_oldest(void **state)
{
    const scratch *at = *state;
    tide_checkpoint_saved saved;
    char path[256];
    for (uint64_t step = 10; step <= 50; step += 10)
        assert_int_equal(save_small(tide_files_posix(), at->path, step, 2, &saved), TIDE_OK);
    assert_int_equal(saved.removed, 1);
    for (unsigned step = 10; step <= 50; step += 10) {
        snprintf(path, sizeof path, "%s/step-%u", at->path, step);
        assert_int_equal(access(path, F_OK) == 0, step >= 40);
    }
}

static void another_process_tmp_folder_is_left_alone_and_a_dead_ones_removed(void **state)
{
    const scratch *at = *state;
    char alive[256], dead[256], own[256];
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    int child_status;
    assert_int_equal(waitpid(child, &child_status, 0), child);
    assert_int_equal(child_status, 0);
    snprintf(alive, sizeof alive, "%s/.tmp-4-%d", at->path, getppid());
    snprintf(dead, sizeof dead, "%s/.tmp-4-%d", at->path, child);
    snprintf(own, sizeof own, "%s/.tmp-4-%d", at->path, getpid());
    assert_int_equal(mkdir(at->path, 0777) | mkdir(alive, 0777) | mkdir(dead, 0777) | mkdir(own, 0777), 0);
    assert_int_equal(save_small(tide_files_posix(), at->path, 5, 0, NULL), TIDE_OK);
    assert_int_equal(access(alive, F_OK), 0);
    assert_int_equal(access(dead, F_OK), -1);
    assert_int_equal(access(own, F_OK), -1);
}

/* The child's main function: saves one step after another, from the newest one on, and keeps two. */
static void save_for_ever(const char *dir)
{
    tide_checkpoint_found found;
    if (tide_checkpoint_newest(tide_files_posix(), dir, &found) != TIDE_OK)
        _exit(1);
    for (uint64_t step = found.step + 1;; step++) {
        if (save_small(tide_files_posix(), dir, step, 2, NULL) != TIDE_OK)
            _exit(1);
    }
}

/* Waits until the child has saved a step later than `newest`, however long that takes on this machine. */
static void wait_for_a_later_one(pid_t child, const char *dir, uint64_t newest)
{
    tide_checkpoint_found found = {0};
    int status;
    while (tide_checkpoint_newest(tide_files_posix(), dir, &found) != TIDE_OK || found.step <= newest) {
        assert_int_equal(waitpid(child, &status, WNOHANG), 0);
        usleep(1000);
    }
}

static void a_killed_process_leaves_a_newest_checkpoint_that_loads(void **state)
{
    const scratch *at = *state;
    uint64_t newest = 0;
    for (uint64_t round = 0; round < 10; round++) {
        tide_checkpoint_found found;
        int status;
        pid_t child = fork();
        if (child == 0)
            save_for_ever(at->path);
        wait_for_a_later_one(child, at->path, newest);
        usleep((useconds_t)(tide_random_uniform(round, TIDE_RANDOM_USE_TEST, 2, 0) * 30000));
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        /* The kill has ended the child, which had not failed before. */
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_int_equal(tide_checkpoint_newest(tide_files_posix(), at->path, &found), TIDE_OK);
        assert_true(found.step > newest);
        newest = found.step;
        assert_true(loads_as(tide_files_posix(), found.path, newest));
    }
}

/* ---- refusals of a save ---- */

static void a_step_that_is_not_later_is_refused(void **unused)
{
    fake_files *disk = disk_with_two();
    assert_int_equal(save_small(fake_files_table(disk), "ckpt", 2, 2, NULL), TIDE_ERROR_STATE);
    assert_message_has("step-2");
    assert_int_equal(save_small(fake_files_table(disk), "ckpt", 1, 2, NULL), TIDE_ERROR_STATE);
    assert_true(loads_as(fake_files_table(disk), "ckpt/step-2", 2));
    fake_files_free(disk);
}

static void a_folder_that_cannot_be_written_is_refused(void **state)
{
    const scratch *at = *state;
    char path[256];
    snprintf(path, sizeof path, "%s/missing/ckpt", at->root);
    assert_int_equal(save_small(tide_files_posix(), path, 1, 2, NULL), TIDE_ERROR_IO);
    assert_message_has("can't be created: No such file or directory");
    snprintf(path, sizeof path, "%s/file", at->root);
    close(open(path, O_CREAT | O_WRONLY, 0666));
    assert_int_equal(save_small(tide_files_posix(), path, 1, 2, NULL), TIDE_ERROR_IO);
    assert_message_has("Not a directory");
    assert_int_equal(save_small(tide_files_posix(), "/proc/tidepool", 1, 2, NULL), TIDE_ERROR_IO);
}

static tide_status pull_fails(void *context, size_t tensor, tide_value value, uint64_t first, uint64_t count,
                              float *values)
{
    if (value == TIDE_VALUE_VARIANCE && tensor == 1)
        return tide_fail(TIDE_ERROR_DEVICE, "the device is gone");
    return pull_values(context, tensor, value, first, count, values);
}

static void a_callbacks_failure_is_passed_on_and_leaves_no_trace(void **unused)
{
    fake_files *disk = disk_with_two();
    uint64_t step = 3;
    tide_train_state train = state_at(step);
    assert_int_equal(tide_checkpoint_save(fake_files_table(disk), "ckpt", &train, &small_model, 1, pull_fails,
                                          &step, NULL),
                     TIDE_ERROR_DEVICE);
    assert_string_equal(tide_message(), "the device is gone");
    assert_false(fake_files_exists(disk, "ckpt/.tmp-3-1000"));
    assert_true(fake_files_exists(disk, "ckpt/step-1"));
    fake_files_free(disk);
}

static void what_cannot_be_read_back_is_not_written(void **unused)
{
    fake_files *disk = fake_files_new();
    uint64_t step = 3;
    tide_train_state train = state_at(step);
    train.hyper.schedule.lr = (double)NAN;
    assert_int_equal(tide_checkpoint_save(fake_files_table(disk), "ckpt", &train, &small_model, 1,
                                          pull_values, &step, NULL),
                     TIDE_ERROR_ARGUMENT);
    tide_checkpoint_tensor twice[] = {{"a", 1, {2}, false}, {"a", 1, {2}, false}};
    tide_checkpoint_tensor empty[] = {{"a", 2, {2, 0}, false}};
    train.hyper.schedule.lr = 1;
    assert_int_equal(tide_checkpoint_save(fake_files_table(disk), "ckpt", &train,
                                          &(tide_checkpoint_tensors){twice, 2}, 1, pull_values, &step, NULL),
                     TIDE_ERROR_ARGUMENT);
    assert_message_has("taken twice");
    assert_int_equal(tide_checkpoint_save(fake_files_table(disk), "ckpt", &train,
                                          &(tide_checkpoint_tensors){empty, 1}, 1, pull_values, &step, NULL),
                     TIDE_ERROR_ARGUMENT);
    fake_files_free(disk);
}

/* ---- the newest one ---- */

static void a_folder_that_is_missing_empty_or_full_of_other_things_holds_none(void **state)
{
    const scratch *at = *state;
    char notes[256];
    snprintf(notes, sizeof notes, "%s/notes", at->path);
    for (int made = 0; made < 3; made++) {
        tide_checkpoint_found found = {.exists = true};
        if (made > 0)
            assert_int_equal(mkdir(made == 1 ? at->path : notes, 0777), 0);
        assert_int_equal(tide_checkpoint_newest(tide_files_posix(), at->path, &found), TIDE_OK);
        assert_false(found.exists);
    }
}

static void steps_are_compared_as_numbers(void **unused)
{
    fake_files *disk = fake_files_new();
    tide_checkpoint_found found;
    for (uint64_t step = 9; step <= 1000; step = step * 3 + 1)
        assert_int_equal(save_small(fake_files_table(disk), "ckpt", step, 0, NULL), TIDE_OK);
    assert_int_equal(tide_checkpoint_newest(fake_files_table(disk), "ckpt", &found), TIDE_OK);
    assert_int_equal(found.step, 769);
    fake_files_free(disk);
}

static void a_folder_without_a_manifest_is_passed_over_and_may_be_replaced(void **unused)
{
    fake_files *disk = disk_with_two();
    const tide_files *files = fake_files_table(disk);
    tide_checkpoint_found found;
    assert_int_equal(save_small(files, "ckpt", 3, 0, NULL), TIDE_OK);
    assert_int_equal(files->remove_file(files->context, "ckpt/step-3/manifest.json"), 0);
    assert_int_equal(tide_checkpoint_newest(files, "ckpt", &found), TIDE_OK);
    assert_int_equal(found.step, 2);
    assert_int_equal(found.passed_over, 1);
    assert_int_equal(save_small(files, "ckpt", 3, 2, NULL), TIDE_OK);
    assert_true(loads_as(files, "ckpt/step-3", 3));
    assert_true(loads_as(files, "ckpt/step-2", 2));
    assert_false(fake_files_exists(disk, "ckpt/step-1"));
    fake_files_free(disk);
}

static void damage_to_the_newest_is_named_not_passed_over(void **unused)
{
    fake_files *disk = disk_with_two();
    const tide_files *files = fake_files_table(disk);
    tide_checkpoint_found found = {.step = 77};
    assert_int_equal(files->remove_file(files->context, "ckpt/step-2/momentum.safetensors"), 0);
    assert_int_equal(tide_checkpoint_newest(files, "ckpt", &found), TIDE_ERROR_CORRUPT);
    assert_message_has("ckpt/step-2/momentum.safetensors: the file is missing");
    assert_int_equal(found.step, 77);
    fake_files_free(disk);
}

/* ---- damage ---- */

static void assert_refused_before_any_push(const tide_files *files, tide_status wanted)
{
    value_sink sink = {.step = 2};
    tide_status status = load_small(files, "ckpt/step-2", &sink);
    if (status != wanted)
        fail_msg("status %s (%s) instead of %s", tide_status_name(status), tide_message(),
                 tide_status_name(wanted));
    assert_int_equal(sink.pushed, 0);
    assert_message_has("ckpt/step-2/");
}

static const char *const all_files[] = {"model.safetensors", "momentum.safetensors", "variance.safetensors",
                                        "manifest.json"};

static void every_flipped_bit_is_refused(void **unused)
{
    fake_files *disk = disk_with_two();
    for (size_t i = 0; i < 4; i++) {
        char path[64];
        size_t bytes;
        snprintf(path, sizeof path, "ckpt/step-2/%s", all_files[i]);
        unsigned char *content = fake_files_bytes(disk, path, &bytes);
        for (size_t bit = 0; bit < 8 * bytes; bit++) {
            content[bit / 8] ^= (unsigned char)(1u << bit % 8);
            assert_refused_before_any_push(fake_files_table(disk), TIDE_ERROR_CORRUPT);
            content[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
    }
    assert_true(loads_as(fake_files_table(disk), "ckpt/step-2", 2));
    fake_files_free(disk);
}

static void every_truncation_is_refused(void **unused)
{
    fake_files *whole = disk_with_two();
    for (size_t i = 0; i < 4; i++) {
        char path[64];
        size_t bytes, cut;
        snprintf(path, sizeof path, "ckpt/step-2/%s", all_files[i]);
        fake_files_bytes(whole, path, &bytes);
        fake_files *disk = fake_files_clone(whole);
        for (cut = bytes; cut-- > 0;) {
            tide_checkpoint_found found;
            fake_files_truncate(disk, path, cut);
            assert_refused_before_any_push(fake_files_table(disk), TIDE_ERROR_CORRUPT);
            assert_int_equal(tide_checkpoint_newest(fake_files_table(disk), "ckpt", &found),
                             TIDE_ERROR_CORRUPT);
        }
        fake_files_free(disk);
    }
    fake_files_free(whole);
}

static void a_file_that_grew_or_is_another_ones_is_refused(void **state)
{
    const scratch *at = *state;
    tide_checkpoint_saved saved;
    char path[TIDE_CHECKPOINT_PATH_BYTES + 64], other[TIDE_CHECKPOINT_PATH_BYTES + 64];
    value_sink sink = {.step = 7};
    assert_int_equal(save_small(tide_files_posix(), at->path, 7, 0, &saved), TIDE_OK);
    snprintf(path, sizeof path, "%s/variance.safetensors", saved.path);
    FILE *file = fopen(path, "ab");
    assert_non_null(file);
    fputc(0, file);
    fclose(file);
    assert_int_equal(load_small(tide_files_posix(), saved.path, &sink), TIDE_ERROR_CORRUPT);
    assert_message_has("too long");
    snprintf(other, sizeof other, "%s/momentum.safetensors", saved.path);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(symlink("variance.safetensors", other), 0);
    assert_int_equal(load_small(tide_files_posix(), saved.path, &sink), TIDE_ERROR_CORRUPT);
    assert_message_has("checksum");
    assert_int_equal(sink.pushed, 0);
}

/* ---- another run's ---- */

static tide_status load_as_run(const tide_files *files, const tide_train_state *current, value_sink *sink,
                               tide_train_changes *changes)
{
    tide_train_state state;
    return tide_checkpoint_load(files, "ckpt/step-2", current, &small_model, push_values, NULL, sink, &state,
                                changes);
}

/* test_train_state.c has every field. */
static void another_run_is_refused_before_any_value(void **unused)
{
    fake_files *disk = disk_with_two();
    tide_train_state run = state_at(2);
    value_sink sink = {.step = 2};
    tide_train_changes changes;
    run.seed = 1;
    assert_int_equal(load_as_run(fake_files_table(disk), &run, &sink, &changes), TIDE_ERROR_MISMATCH);
    assert_message_has("seed 0xfffffffffffffff1, this run has 0x0000000000000001");
    assert_int_equal(sink.pushed, 0);
    fake_files_free(disk);
}

static void changed_hyperparameters_are_taken_and_named(void **unused)
{
    fake_files *disk = disk_with_two();
    tide_train_state run = state_at(0);
    value_sink sink = {.step = 2};
    tide_train_changes changes;
    run.hyper.schedule.lr = 0.0001;
    run.hyper.clip = 0;
    run.hyper.schedule.steps = 2000;
    assert_int_equal(load_as_run(fake_files_table(disk), &run, &sink, &changes), TIDE_OK);
    assert_int_equal(changes.count, 3);
    assert_string_equal(changes.lines[0], "steps 1000 -> 2000");
    assert_string_equal(changes.lines[1], "lr 0.30000000000000004 -> 0.0001");
    assert_string_equal(changes.lines[2], "clip 1 -> 0");
    assert_int_equal(sink.wrong, 0);
    fake_files_free(disk);
}

/* ---- the loss scale, which only fp16 has ---- */

static tide_train_state fp16_state(uint64_t step)
{
    tide_train_state state = state_at(step);
    state.dtype = TIDE_DTYPE_FP16;
    state.loss_scale = 2048;
    state.loss_scale_good_steps = 1999;
    return state;
}

static void a_loss_scale_comes_back_and_a_fixed_one_is_named(void **state)
{
    const scratch *at = *state;
    const tide_train_state wanted = fp16_state(5);
    tide_train_state run = wanted, found;
    tide_checkpoint_saved saved;
    value_sink sink = {.step = 5};
    tide_train_changes changes;
    uint64_t step = 5;
    assert_int_equal(tide_checkpoint_save(tide_files_posix(), at->path, &wanted, &small_model, 0, pull_values,
                                          &step, &saved),
                     TIDE_OK);
    run.loss_scale = 1, run.loss_scale_good_steps = 0;
    run.hyper.loss_scale_fixed = 1024;
    assert_int_equal(tide_checkpoint_load(tide_files_posix(), saved.path, &run, &small_model, push_values,
                                          NULL, &sink, &found, &changes),
                     TIDE_OK);
    assert_true(found.dtype == TIDE_DTYPE_FP16 && found.loss_scale == 2048 &&
                found.hyper.loss_scale_fixed == 0);
    assert_int_equal(found.loss_scale_good_steps, 1999);
    assert_int_equal(changes.count, 1);
    assert_string_equal(changes.lines[0], "loss_scale_fixed 0 -> 1024");
}

static void a_loss_scale_is_valid_with_fp16_alone(void **unused)
{
    tide_train_state state = fp16_state(5);
    assert_true(tide_train_state_is_valid(&state));
    state.loss_scale = 3;
    assert_false(tide_train_state_is_valid(&state));
    state = fp16_state(5);
    state.loss_scale_good_steps = 2000;
    assert_false(tide_train_state_is_valid(&state));
    state = fp16_state(5);
    state.hyper.loss_scale_fixed = 0.5;
    assert_false(tide_train_state_is_valid(&state));
    state = state_at(5);
    assert_true(tide_train_state_is_valid(&state));
    state.loss_scale = 2048;
    assert_false(tide_train_state_is_valid(&state));
}

static void other_tensors_are_refused(void **unused)
{
    tide_checkpoint_tensor transposed[3], renamed[3];
    memcpy(transposed, small_tensors, sizeof transposed);
    memcpy(renamed, small_tensors, sizeof renamed);
    transposed[0] = (tide_checkpoint_tensor){"wte.weight", 2, {3, 5}, false};
    renamed[0] = (tide_checkpoint_tensor){"wpe.weight", 2, {5, 3}, false};
    const struct {
        tide_checkpoint_tensors model;
        const char *message;
    } cases[] = {{{transposed, 3}, "wte.weight has shape [5, 3], it must be [3, 5]"},
                 {{renamed, 3}, "wpe.weight is missing"},
                 {{small_tensors, 2}, "3 tensors, the model has 2"}};
    fake_files *disk = disk_with_two();
    for (size_t i = 0; i < 3; i++) {
        tide_train_state state;
        value_sink sink = {.step = 2};
        assert_int_equal(tide_checkpoint_load(fake_files_table(disk), "ckpt/step-2", NULL, &cases[i].model,
                                              push_values, NULL, &sink, &state, NULL),
                         TIDE_ERROR_MISMATCH);
        assert_message_has(cases[i].message);
        assert_int_equal(sink.pushed, 0);
    }
    fake_files_free(disk);
}

/* ---- headers of other writers ---- */

static tide_status header_status(const char *text, uint64_t data_bytes, uint64_t *offsets)
{
    static const tide_checkpoint_tensor two[] = {{"a", 1, {2}, false}, {"b", 2, {1, 3}, false}};
    const tide_checkpoint_tensors model = {two, 2};
    const tide_file file = {.noun = "checkpoint", .path = "file", .bytes = 8 + strlen(text) + data_bytes};
    tide_safetensors_header header;
    tide_status status = tide_safetensors_parse(&file, text, strlen(text), &header);
    if (status != TIDE_OK)
        return status;
    status = tide_checkpoint_header_check(&file, &header, &model, TIDE_VALUE_MASTER, offsets);
    tide_safetensors_free(&header);
    return status;
}

#define HEADER(dtype, end_of_b, a)                                                                           \
    "{\"b\":{\"dtype\":\"" dtype "\",\"shape\":[1,3],\"data_offsets\":[0," end_of_b "]},"                    \
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" a "]}}"

static void headers_in_any_order_are_read_and_gaps_refused(void **unused)
{
    static const char backwards[] = HEADER("F32", "12", "12,20");
    const uint64_t data_start = 8 + strlen(backwards);
    uint64_t offsets[2];
    assert_int_equal(header_status(backwards, 20, offsets), TIDE_OK);
    assert_int_equal(offsets[0], data_start + 12);
    assert_int_equal(offsets[1], data_start);
    assert_int_equal(header_status(HEADER("F32", "12", "16,24"), 24, offsets), TIDE_ERROR_CORRUPT);
    assert_message_has("checkpoint file: a gap of 4 bytes before tensor a at byte 16 of its data");
    assert_int_equal(header_status(HEADER("F32", "12", "8,16"), 16, offsets), TIDE_ERROR_CORRUPT);
    assert_int_equal(header_status(HEADER("BF16", "6", "6,14"), 14, offsets), TIDE_ERROR_UNSUPPORTED);
}

/* ---- checksums ---- */

static void crc32c_matches_its_published_vectors(void **unused)
{
    unsigned char bytes[4096 + 7];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 131 + i / 256);
    assert_int_equal(tide_crc32c(0, "123456789", 9), 0xE3069283u);
    assert_int_equal(tide_crc32c_portable(0, "123456789", 9), 0xE3069283u);
    uint32_t whole = tide_crc32c_portable(0, bytes, sizeof bytes);
    for (size_t cut = 0; cut <= sizeof bytes; cut += 37) {
        uint32_t parts = tide_crc32c(tide_crc32c(0, bytes, cut), bytes + cut, sizeof bytes - cut);
        assert_int_equal(parts, whole);
    }
}

/* ---- faults ---- */

/* After a fault the earlier checkpoints load, no file is open, and the same save succeeds. */
static void assert_as_before(fake_files *disk, unsigned operation)
{
    const tide_files *files = fake_files_table(disk);
    fake_files_clear_fault(disk);
    assert_int_equal(fake_files_open_count(disk), 0);
    if (!loads_as(files, "ckpt/step-1", 1) || !loads_as(files, "ckpt/step-2", 2))
        fail_msg("after a fault at operation %u an earlier checkpoint does not load: %s", operation,
                 tide_message());
    if (save_small(files, "ckpt", 3, 0, NULL) != TIDE_OK)
        fail_msg("after a fault at operation %u the same save fails: %s", operation, tide_message());
    assert_true(loads_as(files, "ckpt/step-3", 3));
    assert_false(fake_files_exists(disk, "ckpt/.tmp-3-1000"));
}

/* Makes every operation of a save fail in turn; returns how many of these saves failed. */
static unsigned fail_every_operation(fake_fault fault, const char *reason)
{
    fake_files *before = disk_with_two();
    unsigned refused = 0;
    bool met = true;
    for (unsigned operation = 0; met; operation++) {
        fake_files *disk = fake_files_clone(before);
        fake_files_fault(disk, fault, operation);
        tide_status status = save_small(fake_files_table(disk), "ckpt", 3, 0, NULL);
        met = fake_files_fault_met(disk);
        if (status == TIDE_OK) {
            fake_files_clear_fault(disk);
            assert_true(loads_as(fake_files_table(disk), "ckpt/step-3", 3));
            assert_int_equal(fake_files_open_count(disk), 0);
        } else {
            refused++;
            assert_int_equal(status, TIDE_ERROR_IO);
            assert_message_has(reason);
            assert_message_has("ckpt");
            assert_as_before(disk, operation);
        }
        fake_files_free(disk);
    }
    fake_files_free(before);
    return refused;
}

static void every_failing_operation_of_a_save_and_a_full_disk_are_survived(void **unused)
{
    /* A save creates, writes, syncs and closes four files; makes, syncs and renames a folder; syncs
     * another folder and lists one. */
    assert_true(fail_every_operation(FAKE_FAULT_EIO, "Input/output error") >= 20);
    assert_true(fail_every_operation(FAKE_FAULT_NO_SPACE, "No space left on device") >= 16);
}

static void short_transfers_are_continued(void **unused)
{
    assert_int_equal(fail_every_operation(FAKE_FAULT_SHORT_WRITE, ""), 0);
    fake_files *disk = disk_with_two();
    fake_files_fault(disk, FAKE_FAULT_SHORT_WRITE, 0);
    assert_true(loads_as(fake_files_table(disk), "ckpt/step-2", 2));
    fake_files_free(disk);
}

static void tidying_up_that_fails_is_a_warning_only(void **unused)
{
    fake_files *before = disk_with_two();
    unsigned warnings = 0;
    bool met = true;
    for (unsigned operation = 0; met; operation++) {
        fake_files *disk = fake_files_clone(before);
        tide_checkpoint_saved saved = {.removed = 0};
        fake_files_fault(disk, FAKE_FAULT_EIO, operation);
        tide_status status = save_small(fake_files_table(disk), "ckpt", 3, 2, &saved);
        met = fake_files_fault_met(disk);
        fake_files_clear_fault(disk);
        warnings += status == TIDE_OK && saved.warning[0] != '\0';
        if (status == TIDE_OK)
            assert_true(loads_as(fake_files_table(disk), "ckpt/step-3", 3));
        assert_true(loads_as(fake_files_table(disk), "ckpt/step-2", 2));
        fake_files_free(disk);
    }
    /* These fail only with a warning: the rename of step-1, the sync behind it, the listing, the removal
     * of four files and of the folder. */
    assert_int_equal(warnings, 8);
    fake_files_free(before);
}

static void every_failing_operation_of_a_load_is_reported(void **unused)
{
    fake_files *disk = disk_with_two();
    const tide_files *files = fake_files_table(disk);
    unsigned refused = 0;
    bool met = true;
    for (unsigned operation = 0; met; operation++) {
        value_sink sink = {.step = 2};
        fake_files_fault(disk, FAKE_FAULT_EIO, fake_files_operations(disk) + operation);
        tide_status status = load_small(files, "ckpt/step-2", &sink);
        met = fake_files_fault_met(disk);
        fake_files_clear_fault(disk);
        assert_int_equal(fake_files_open_count(disk), 0);
        refused += status != TIDE_OK;
        if (status != TIDE_OK)
            assert_int_equal(status, TIDE_ERROR_IO);
        assert_true(loads_as(files, "ckpt/step-2", 2));
    }
    /* All operations but the closes fail the load: 4 opens and 4 sizes, 1 read of the manifest, 3 reads of
     * each tensor file before the first push, and 9 reads of tensors. */
    assert_int_equal(refused, 8 + 1 + 3 * 3 + 9);
    fake_files_free(disk);
}

static void every_failing_memory_request_is_reported(void **unused)
{
    fake_files *before = disk_with_two();
    unsigned refused = 0;
    bool met = true;
    for (unsigned request = 0; met; request++) {
        fake_files *disk = fake_files_clone(before);
        value_sink sink = {.step = 3};
        tide_train_state state;
        fake_memory_fail(request);
        tide_status save_status = save_small(fake_files_table(disk), "ckpt", 3, 0, NULL);
        tide_status load_status = save_status;
        if (save_status == TIDE_OK)
            load_status = tide_checkpoint_load(fake_files_table(disk), "ckpt/step-3", NULL, &small_model,
                                               push_values, NULL, &sink, &state, NULL);
        met = fake_memory_failed();
        bool in_parser = fake_memory_failed_in_jansson() && save_status == TIDE_OK;
        fake_memory_clear();
        refused += load_status != TIDE_OK;
        assert_int_equal(load_status != TIDE_OK, met);
        if (met && load_status != TIDE_ERROR_NO_MEMORY && !in_parser)
            fail_msg("request %u: status %s: %s", request, tide_status_name(load_status), tide_message());
        assert_int_equal(sink.pushed, met ? 0 : SMALL_ELEMENTS * TIDE_CHECKPOINT_FILES);
        assert_int_equal(fake_files_open_count(disk), 0);
        assert_true(loads_as(fake_files_table(disk), "ckpt/step-2", 2));
        fake_files_free(disk);
    }
    assert_true(refused > 50);
    fake_files_free(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scratch(what_is_saved_comes_back),
        in_scratch(a_tensor_larger_than_the_buffer_comes_back),
        in_scratch(all_values_of_a_range_are_asked_for_together),
        in_scratch(every_field_of_the_state_comes_back_exactly),
        cmocka_unit_test(tensor_files_are_valid_safetensors),
        in_scratch(keep_removes_the_oldest),
        in_scratch(another_process_tmp_folder_is_left_alone_and_a_dead_ones_removed),
        in_scratch(a_killed_process_leaves_a_newest_checkpoint_that_loads),
        cmocka_unit_test(a_step_that_is_not_later_is_refused),
        in_scratch(a_folder_that_cannot_be_written_is_refused),
        cmocka_unit_test(a_callbacks_failure_is_passed_on_and_leaves_no_trace),
        cmocka_unit_test(what_cannot_be_read_back_is_not_written),
        in_scratch(a_folder_that_is_missing_empty_or_full_of_other_things_holds_none),
        cmocka_unit_test(steps_are_compared_as_numbers),
        cmocka_unit_test(a_folder_without_a_manifest_is_passed_over_and_may_be_replaced),
        cmocka_unit_test(damage_to_the_newest_is_named_not_passed_over),
        cmocka_unit_test(every_flipped_bit_is_refused),
        cmocka_unit_test(every_truncation_is_refused),
        in_scratch(a_file_that_grew_or_is_another_ones_is_refused),
        cmocka_unit_test(another_run_is_refused_before_any_value),
        cmocka_unit_test(changed_hyperparameters_are_taken_and_named),
        in_scratch(a_loss_scale_comes_back_and_a_fixed_one_is_named),
        cmocka_unit_test(a_loss_scale_is_valid_with_fp16_alone),
        cmocka_unit_test(other_tensors_are_refused),
        cmocka_unit_test(headers_in_any_order_are_read_and_gaps_refused),
        cmocka_unit_test(crc32c_matches_its_published_vectors),
        cmocka_unit_test(every_failing_operation_of_a_save_and_a_full_disk_are_survived),
        cmocka_unit_test(short_transfers_are_continued),
        cmocka_unit_test(tidying_up_that_fails_is_a_warning_only),
        cmocka_unit_test(every_failing_operation_of_a_load_is_reported),
        cmocka_unit_test(every_failing_memory_request_is_reported),
    };
    fake_memory_take_jansson();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
