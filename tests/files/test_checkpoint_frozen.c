/* Checkpoints of frozen tensors: which files hold which tensors, and which moments a load gives where the
 * set of frozen tensors has changed. Such a change is reported by name; any other missing moment is
 * damage. */
#include "tests/files/test_checkpoint.h"
#include "tests/support/assert_ok.h"

#include "base/crc32c.h"
#include "src/checkpoint/manifest.h"
#include "tests/support/fake_memory.h"

/* small_model with some of its tensors frozen. */
typedef struct model {
    tide_checkpoint_tensor array[3];
    tide_checkpoint_tensors tensors;
} model;

static void freeze(model *made, bool wte, bool ln, bool attn)
{
    memcpy(made->array, small_tensors, sizeof made->array);
    made->array[0].frozen = wte;
    made->array[1].frozen = ln;
    made->array[2].frozen = attn;
    made->tensors = (tide_checkpoint_tensors){made->array, 3};
}

static tide_status save_frozen(const tide_files *files, uint64_t step, const model *of)
{
    const tide_train_state state = state_at(step);
    return tide_checkpoint_save(files, "ckpt", &state, &of->tensors, 0, pull_values, &step, NULL);
}

/* Counts the pushed values that are as saved, and the zeros, by tensor and kind. */
typedef struct pushed {
    uint64_t step; /* the step whose values are expected */
    uint64_t values[3][TIDE_VALUE_COUNT], zeros[3][TIDE_VALUE_COUNT], told, total;
} pushed;

static tide_status push(void *context, size_t tensor, tide_value value, uint64_t first, uint64_t count,
                        const float *values)
{
    pushed *to = context;
    for (uint64_t i = 0; i < count; i++) {
        to->values[tensor][value] += values[i] == expected_value(to->step, value, tensor, first + i);
        to->zeros[tensor][value] += values[i] == 0;
    }
    return TIDE_OK;
}

static void told(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    pushed *to = context;
    assert_true(done_bytes >= to->told && done_bytes <= total_bytes);
    to->told = done_bytes;
    to->total = total_bytes;
}

static tide_status load_frozen(const tide_files *files, const char *path, const model *of, pushed *to,
                               tide_train_changes *changes)
{
    tide_train_state state;
    return tide_checkpoint_load(files, path, NULL, &of->tensors, push, told, to, &state, changes);
}

static const uint64_t elements[] = {15, 7, 8};

/* Checks that all of a tensor's MASTER was pushed, and of each moment the saved values, zeros or nothing. */
static void assert_pushed(const pushed *to, size_t tensor, bool moments, bool zeros)
{
    assert_int_equal(to->values[tensor][TIDE_VALUE_MASTER], elements[tensor]);
    for (tide_value value = TIDE_VALUE_MOMENTUM; value <= TIDE_VALUE_VARIANCE; value++) {
        assert_int_equal(to->values[tensor][value], moments ? elements[tensor] : 0);
        assert_int_equal(to->zeros[tensor][value], zeros ? elements[tensor] : 0);
    }
}

static const char manifest_path[] = "ckpt/step-2/manifest.json";

/* ---- what is in the files ---- */

static void frozen_tensors_are_in_the_models_file_alone(void **unused)
{
    static const char all[] = "\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[5,3],\"data_offsets\":[0,60]},"
                              "\"h.0.ln_1.bias\":{\"dtype\":\"F32\",\"shape\":[7],\"data_offsets\":[60,88]},",
                      one[] = "{\"__metadata__\":{\"format\":\"pt\"},\"h.0.ln_1.bias\":{\"dtype\":\"F32\","
                              "\"shape\":[7],\"data_offsets\":[0,28]}}";
    static const char *const moments[] = {"ckpt/step-2/momentum.safetensors",
                                          "ckpt/step-2/variance.safetensors"};
    fake_files *disk = fake_files_new();
    size_t bytes;
    uint64_t header_bytes;
    model of;
    freeze(&of, true, false, true);
    assert_int_equal(save_frozen(fake_files_table(disk), 2, &of), TIDE_OK);
    const unsigned char *file = fake_files_bytes(disk, "ckpt/step-2/model.safetensors", &bytes);
    memcpy(&header_bytes, file, sizeof header_bytes);
    assert_int_equal(bytes, 8 + header_bytes + SMALL_ELEMENTS * sizeof(float));
    assert_non_null(memmem(file, bytes, all, strlen(all)));
    for (size_t i = 0; i < 2; i++) {
        float value;
        file = fake_files_bytes(disk, moments[i], &bytes);
        memcpy(&header_bytes, file, sizeof header_bytes);
        assert_int_equal(bytes, 8 + header_bytes + 7 * sizeof value);
        assert_memory_equal(file + 8, one, strlen(one));
        memcpy(&value, file + 8 + header_bytes + 6 * sizeof value, sizeof value);
        assert_true(value == expected_value(2, TIDE_VALUE_MOMENTUM + (tide_value)i, 1, 6));
    }
    fake_files_free(disk);
}

static void the_manifest_names_them_if_there_are_any(void **unused)
{
    static const char list[] = "\"frozen\": [\n  \"wte.weight\",\n  \"h.0.attn.c_attn.weight\"\n ],";
    for (int frozen = 0; frozen < 2; frozen++) {
        fake_files *disk = fake_files_new();
        size_t bytes;
        model of;
        freeze(&of, frozen, false, frozen);
        assert_int_equal(save_frozen(fake_files_table(disk), 2, &of), TIDE_OK);
        const unsigned char *text = fake_files_bytes(disk, manifest_path, &bytes);
        assert_int_equal(memmem(text, bytes, list, strlen(list)) != NULL, frozen);
        assert_int_equal(memmem(text, bytes, "frozen", strlen("frozen")) != NULL, frozen);
        fake_files_free(disk);
    }
}

/* ---- the same set, and others ---- */

static void every_set_loads_into_every_other_and_is_told_to_the_end(void **unused)
{
    for (unsigned saved = 0; saved < 8; saved++) {
        fake_files *disk = fake_files_new();
        model before, now;
        freeze(&before, saved & 1, saved & 2, saved & 4);
        assert_int_equal(save_frozen(fake_files_table(disk), 2, &before), TIDE_OK);
        for (unsigned loaded = 0; loaded < 8; loaded++) {
            pushed to = {.step = 2};
            tide_train_changes changes;
            freeze(&now, loaded & 1, loaded & 2, loaded & 4);
            assert_int_equal(load_frozen(fake_files_table(disk), "ckpt/step-2", &now, &to, &changes),
                             TIDE_OK);
            assert_int_equal(changes.count, saved != loaded);
            for (size_t i = 0; i < 3; i++) {
                const bool was_frozen = saved >> i & 1, is_frozen = loaded >> i & 1;
                assert_pushed(&to, i, !was_frozen && !is_frozen, was_frozen && !is_frozen);
            }
            assert_true(to.total > 0);
            assert_int_equal(to.told, to.total);
        }
        fake_files_free(disk);
    }
}

static void assert_change(fake_files *disk, const model *now, const char *line)
{
    pushed to = {.step = 2};
    tide_train_changes changes;
    assert_int_equal(load_frozen(fake_files_table(disk), "ckpt/step-2", now, &to, &changes), TIDE_OK);
    assert_int_equal(changes.count, 1);
    assert_string_equal(changes.lines[0], line);
}

static void another_set_is_named_in_one_line(void **unused)
{
    fake_files *disk = fake_files_new();
    model of;
    freeze(&of, true, true, false);
    assert_int_equal(save_frozen(fake_files_table(disk), 2, &of), TIDE_OK);
    freeze(&of, false, true, false);
    assert_change(disk, &of, "frozen -> trained, with zero moments: 1 param (wte.weight)");
    freeze(&of, true, true, true);
    assert_change(disk, &of, "trained -> frozen, moments ignored: 1 param (h.0.attn.c_attn.weight)");
    freeze(&of, false, false, true);
    assert_change(disk, &of,
                  "frozen -> trained, with zero moments: 2 params (wte.weight, h.0.ln_1.bias); trained -> "
                  "frozen, moments ignored: 1 param (h.0.attn.c_attn.weight)");
    fake_files_free(disk);
    disk = fake_files_new();
    freeze(&of, false, false, false);
    assert_int_equal(save_frozen(fake_files_table(disk), 2, &of), TIDE_OK);
    freeze(&of, true, true, true);
    assert_change(disk, &of, "trained -> frozen, moments ignored: 3 params (wte.weight, h.0.ln_1.bias, ...)");
    fake_files_free(disk);
}

/* The lines about hyperparameters come first. A load without a run to compare with reports only the line
 * about frozen tensors. */
static void another_set_is_named_behind_the_hyperparameters(void **unused)
{
    fake_files *disk = fake_files_new();
    tide_train_state run = state_at(2), state;
    tide_train_changes changes;
    pushed to = {.step = 2};
    model of;
    freeze(&of, true, false, false);
    assert_int_equal(save_frozen(fake_files_table(disk), 2, &of), TIDE_OK);
    freeze(&of, false, false, false);
    run.hyper.clip = 0;
    assert_int_equal(tide_checkpoint_load(fake_files_table(disk), "ckpt/step-2", &run, &of.tensors, push,
                                          NULL, &to, &state, &changes),
                     TIDE_OK);
    assert_int_equal(changes.count, 2);
    assert_string_equal(changes.lines[0], "clip 1 -> 0");
    assert_string_equal(changes.lines[1], "frozen -> trained, with zero moments: 1 param (wte.weight)");
    fake_files_free(disk);
}

/* ---- damage ---- */

static void put_manifest(fake_files *disk, const char *text, size_t bytes)
{
    const tide_files *files = fake_files_table(disk);
    size_t done;
    int handle;
    assert_int_equal(files->remove_file(files->context, manifest_path), 0);
    assert_int_equal(files->create(files->context, manifest_path, &handle), 0);
    assert_int_equal(files->write(files->context, handle, text, bytes, &done), 0);
    assert_int_equal(done, bytes);
    assert_int_equal(files->close(files->context, handle), 0);
}

/* Replaces the manifest by a valid one with another list of frozen tensors. */
static void rewrite_manifest(fake_files *disk, const char **frozen, size_t count)
{
    tide_manifest manifest;
    char *text;
    size_t bytes;
    unsigned char *old = fake_files_bytes(disk, manifest_path, &bytes);
    assert_int_equal(tide_manifest_parse((const char *)old, bytes, manifest_path, &manifest), TIDE_OK);
    free(manifest.frozen);
    manifest.frozen = frozen;
    manifest.frozen_count = count;
    assert_int_equal(tide_manifest_make(&manifest, &text, &bytes), TIDE_OK);
    put_manifest(disk, text, bytes);
    free(text);
}

/* The checkpoint with this list is refused, whatever tensors the loading run has frozen. */
static void assert_refused(const fake_files *whole, const char **frozen, size_t count, tide_status wanted,
                           const char *message)
{
    fake_files *disk = fake_files_clone(whole);
    rewrite_manifest(disk, frozen, count);
    for (unsigned loaded = 0; loaded < 8; loaded++) {
        const pushed nothing = {.step = 2};
        pushed to = nothing;
        model now;
        freeze(&now, loaded & 1, loaded & 2, loaded & 4);
        assert_int_equal(load_frozen(fake_files_table(disk), "ckpt/step-2", &now, &to, NULL), wanted);
        assert_message_has(message);
        assert_memory_equal(to.values, nothing.values, sizeof to.values);
        assert_memory_equal(to.zeros, nothing.zeros, sizeof to.zeros);
        assert_int_equal(fake_files_open_count(disk), 0);
    }
    fake_files_free(disk);
}

static void a_moment_that_is_missing_for_another_reason_is_damage(void **unused)
{
    const char *both[] = {"wte.weight", "h.0.ln_1.bias"}, *twice[] = {"wte.weight", "wte.weight"},
               *other[] = {"wpe.weight"};
    fake_files *disk = fake_files_new();
    model of;
    freeze(&of, true, false, false);
    assert_int_equal(save_frozen(fake_files_table(disk), 2, &of), TIDE_OK);
    assert_refused(disk, NULL, 0, TIDE_ERROR_CORRUPT,
                   "momentum.safetensors: tensor wte.weight is missing, which its manifest does not say");
    assert_refused(disk, &both[1], 1, TIDE_ERROR_CORRUPT, "tensor wte.weight is missing");
    assert_refused(disk, both, 2, TIDE_ERROR_CORRUPT,
                   "momentum.safetensors: 2 tensors, the model trained 1, which its manifest does not say");
    assert_refused(disk, twice, 2, TIDE_ERROR_CORRUPT, "says twice that wte.weight is frozen");
    assert_refused(disk, other, 1, TIDE_ERROR_MISMATCH,
                   "its frozen tensor wpe.weight is none of the model's");
    fake_files_free(disk);
}

/* The manifest may list the names in any order. */
static void names_in_any_order_are_read(void **unused)
{
    const char *backwards[] = {"h.0.attn.c_attn.weight", "wte.weight"};
    fake_files *disk = fake_files_new();
    pushed to = {.step = 2};
    tide_train_changes changes;
    model of;
    freeze(&of, true, false, true);
    assert_int_equal(save_frozen(fake_files_table(disk), 2, &of), TIDE_OK);
    rewrite_manifest(disk, backwards, 2);
    assert_int_equal(load_frozen(fake_files_table(disk), "ckpt/step-2", &of, &to, &changes), TIDE_OK);
    assert_int_equal(changes.count, 0);
    fake_files_free(disk);
}

enum { TEXT_BYTES = 4096 };

/* Copies a manifest's text with `others` in place of `words`, and gives the copy the right checksum. */
static void change_manifest(const char *text, const char *words, const char *others, char changed[TEXT_BYTES])
{
    enum { SEAL_BYTES = 21 };
    char head[SEAL_BYTES + 1], *body = changed + SEAL_BYTES;
    const char *at = strstr(text, words), *from = text + SEAL_BYTES;
    assert_non_null(at);
    snprintf(body, TEXT_BYTES - SEAL_BYTES, "%.*s%s%s", (int)(at - from), from, others, at + strlen(words));
    snprintf(head, sizeof head, "{\"crc32c\":\"%08x\",", tide_crc32c(0, body, strlen(body)));
    memcpy(changed, head, SEAL_BYTES);
}

static tide_status parse_with(const char *text, const char *words, const char *others)
{
    char changed[TEXT_BYTES];
    tide_manifest manifest = {.state.step = 77};
    change_manifest(text, words, others, changed);
    const tide_status status = tide_manifest_parse(changed, strlen(changed), "x", &manifest);
    if (status == TIDE_OK)
        free(manifest.frozen);
    else
        assert_int_equal(manifest.state.step, 77);
    return status;
}

static void a_manifest_with_another_list_member_or_version_is_refused(void **unused)
{
    const char *frozen[] = {"wte.weight"}, list[] = "\"frozen\": [\n  \"wte.weight\"\n ],\n ";
    const tide_manifest manifest = {.files = {{0}, {1000, 1}, {1000, 2}, {1000, 3}},
                                    .frozen = frozen,
                                    .frozen_count = 1,
                                    .state = state_at(9)};
    char *text;
    size_t bytes;
    assert_int_equal(tide_manifest_make(&manifest, &text, &bytes), TIDE_OK);
    assert_int_equal(parse_with(text, list, list), TIDE_OK);
    static const char *const lists[] = {"[]",        "[\"\"]",         "[\"a\",\"\"]", "[\"a\",7]",
                                        "{\"a\":1}", "\"wte.weight\"", "null"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        assert_int_equal(parse_with(text, "[\n  \"wte.weight\"\n ]", lists[i]), TIDE_ERROR_CORRUPT);
        assert_message_has("its list of frozen tensors is malformed");
    }
    assert_int_equal(parse_with(text, list, "\"weights_only\": true,"), TIDE_ERROR_CORRUPT);
    assert_message_has("it must list 1 files");
    assert_int_equal(parse_with(text, list, "\"weights_only\": \"yes\","), TIDE_ERROR_CORRUPT);
    assert_message_has("\"weights_only\" is true or not there");
    assert_int_equal(parse_with(text, "\"files\"", "\"weights_only\": true, \"files\""), TIDE_ERROR_CORRUPT);
    assert_message_has("it has weights alone, and \"frozen\"");
    assert_int_equal(parse_with(text, list, "\"sum_groups\": [],"), TIDE_ERROR_UNSUPPORTED);
    assert_message_has("x: it has \"sum_groups\", which this tidepool does not know; a newer one wrote it");
    assert_int_equal(parse_with(text, "\"version\": 4", "\"version\": 5"), TIDE_ERROR_UNSUPPORTED);
    assert_message_has("format version 5, this tidepool knows versions 1 to 4");
    free(text);
}

/* ---- manifests of earlier versions ---- */

/* Version 1 has neither member, version 2 has "frozen", version 3 has the weights alone and no member that
 * says so. */
static void checkpoints_of_versions_1_to_3_load(void **unused)
{
    static const char *const members[] = {"\"version\": 4", "\"version\": 4", "\"weights_only\": true,\n "};
    for (int version = 1; version <= 3; version++) {
        fake_files *disk = fake_files_new();
        const tide_files *files = fake_files_table(disk);
        const tide_train_state state = state_at(2);
        uint64_t step = 2;
        size_t bytes;
        char text[TEXT_BYTES] = "", changed[TEXT_BYTES], number[] = "\"version\": N";
        pushed to = {.step = 2};
        tide_train_changes changes;
        model of;
        freeze(&of, version == 2, false, false);
        if (version == 3)
            assert_int_equal(
                tide_checkpoint_save_weights(files, "ckpt", &state, &of.tensors, 0, pull_values, &step, NULL),
                TIDE_OK);
        else
            assert_int_equal(save_frozen(files, 2, &of), TIDE_OK);
        const unsigned char *now = fake_files_bytes(disk, manifest_path, &bytes);
        memcpy(text, now, bytes);
        number[strlen(number) - 1] = (char)('0' + version);
        change_manifest(text, members[version - 1], version == 3 ? "" : number, changed);
        if (version == 3)
            change_manifest(strcpy(text, changed), "\"version\": 4", number, changed);
        put_manifest(disk, changed, strlen(changed));
        assert_int_equal(load_frozen(files, "ckpt/step-2", &of, &to, &changes), TIDE_OK);
        assert_int_equal(changes.count, version == 3);
        for (size_t i = 0; i < 3; i++)
            assert_pushed(&to, i, version < 3 && !(version == 2 && i == 0), version == 3);
        fake_files_free(disk);
    }
}

static void a_list_too_long_to_be_read_back_is_not_written(void **unused)
{
    enum { NAMES = 5000 };
    static const char *names[NAMES];
    static char name[250];
    tide_manifest manifest = {
        .files = {{0}, {1000, 1}, {1000, 2}, {1000, 3}}, .frozen = names, .state = state_at(9)};
    char *text = NULL;
    size_t bytes;
    memset(name, 'a', sizeof name - 1);
    for (size_t i = 0; i < NAMES; i++)
        names[i] = name;
    manifest.frozen_count = NAMES;
    assert_int_equal(tide_manifest_make(&manifest, &text, &bytes), TIDE_ERROR_ARGUMENT);
    assert_message_has("5000 names of frozen tensors");
    assert_null(text);
}

/* ---- faults ---- */

static void every_failing_memory_request_is_reported(void **unused)
{
    unsigned refused = 0;
    bool met = true;
    model before, now;
    freeze(&before, true, true, false);
    freeze(&now, false, true, true);
    for (unsigned request = 0; met; request++) {
        fake_files *disk = fake_files_new();
        pushed to = {.step = 3};
        tide_checkpoint_found found = {.exists = false};
        tide_train_state state;
        fake_memory_fail(request);
        tide_status save_status = save_frozen(fake_files_table(disk), 3, &before), status = save_status;
        if (status == TIDE_OK)
            status = tide_checkpoint_newest(fake_files_table(disk), "ckpt", &found);
        if (status == TIDE_OK)
            status = tide_checkpoint_peek(fake_files_table(disk), found.path, &state);
        if (status == TIDE_OK)
            status = load_frozen(fake_files_table(disk), found.path, &now, &to, NULL);
        met = fake_memory_failed();
        const bool in_parser = fake_memory_failed_in_jansson() && save_status == TIDE_OK;
        fake_memory_clear();
        refused += status != TIDE_OK;
        assert_int_equal(status != TIDE_OK, met);
        if (met && status != TIDE_ERROR_NO_MEMORY && !in_parser)
            fail_msg("request %u: status %s: %s", request, tide_status_name(status), tide_message());
        assert_int_equal(to.values[0][TIDE_VALUE_MASTER], met ? 0 : elements[0]);
        assert_int_equal(fake_files_open_count(disk), 0);
        fake_files_free(disk);
    }
    assert_true(refused > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frozen_tensors_are_in_the_models_file_alone),
        cmocka_unit_test(the_manifest_names_them_if_there_are_any),
        cmocka_unit_test(every_set_loads_into_every_other_and_is_told_to_the_end),
        cmocka_unit_test(another_set_is_named_in_one_line),
        cmocka_unit_test(another_set_is_named_behind_the_hyperparameters),
        cmocka_unit_test(a_moment_that_is_missing_for_another_reason_is_damage),
        cmocka_unit_test(names_in_any_order_are_read),
        cmocka_unit_test(a_manifest_with_another_list_member_or_version_is_refused),
        cmocka_unit_test(checkpoints_of_versions_1_to_3_load),
        cmocka_unit_test(a_list_too_long_to_be_read_back_is_not_written),
        cmocka_unit_test(every_failing_memory_request_is_reported),
    };
    fake_memory_take_jansson();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
