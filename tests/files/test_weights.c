/* Folders of weights: valid ones are read to the bit, and every damage, fault and lack of memory ends in a
 * status. */
#include "tests/files/test_weights.h"
#include "base/fp16.h"
#include "base/team.h"
#include "src/data/random.h"
#include "tests/support/fake_files.h"
#include "tests/support/fake_memory.h"

/* ---- values ---- */

static void mixed_dtypes_in_one_file_are_read_to_the_bit(void **state)
{
    const scratch *at = *state;
    tide_weights *weights;
    put_single(at->root, SMALL, &small_values, SMALL_BYTES);
    assert_ok(tide_weights_open(at->root, &small, &weights));
    assert_small(weights);
    assert_int_equal(tide_weights_bytes(weights), SMALL_BYTES);
    assert_int_equal(tide_weights_most_dtype(weights), TIDE_WEIGHTS_F32);
    assert_int_equal(tide_weights_tensor_dtype(weights, 1), TIDE_WEIGHTS_BF16);
    assert_int_equal(tide_weights_tensor_dtype(weights, 2), TIDE_WEIGHTS_F16);
    tide_weights_close(weights);
    tide_weights_close(NULL);
}

static void shards_are_read_as_the_index_says(void **state)
{
    const scratch *at = *state;
    tide_weights *weights;
    put_shards(tide_files_posix(), at->root);
    assert_ok(tide_weights_open(at->root, &small, &weights));
    assert_small(weights);
    assert_int_equal(tide_weights_bytes(weights), SMALL_BYTES);
    tide_weights_close(weights);
}

static void one_file_counts_where_an_index_is_there_too(void **state)
{
    const scratch *at = *state;
    tide_weights *weights;
    put_text(at->root, INDEX, "no JSON at all");
    put_single(at->root, SMALL, &small_values, SMALL_BYTES);
    assert_ok(tide_weights_open(at->root, &small, &weights));
    assert_small(weights);
    tide_weights_close(weights);
}

static void every_value_of_16_bits_is_widened(void **state)
{
    const scratch *at = *state;
    static const tide_weights_tensor tensors[] = {{"b", 2, {256, 256}}, {"h", 1, {65536}}};
    const tide_weights_names names = {.tensors = tensors, .count = 2};
    static uint16_t data[2][65536];
    static uint32_t bits[65536];
    tide_weights *weights;
    for (int i = 0; i < 65536; i++)
        data[0][i] = data[1][i] = (uint16_t)i;
    put_single(at->root,
               "{\"b\":{\"dtype\":\"BF16\",\"shape\":[256,256],\"data_offsets\":[0,131072]},\"h\":{\"dtype\":"
               "\"F16\",\"shape\":[65536],\"data_offsets\":[131072,262144]}}",
               data, sizeof data);
    assert_ok(tide_weights_open(at->root, &names, &weights));
    assert_int_equal(tide_weights_most_dtype(weights), TIDE_WEIGHTS_BF16);
    get_bits(weights, 0, 0, 65536, bits);
    for (uint32_t i = 0; i < 65536; i++)
        assert_int_equal(bits[i], i << 16);
    get_bits(weights, 1, 0, 65536, bits);
    for (uint32_t i = 0; i < 65536; i++) {
        const float value = tide_fp16_to_float((tide_fp16)i);
        assert_memory_equal(&bits[i], &value, 4);
    }
    tide_weights_close(weights);
}

enum { LARGE = 5000007 }; /* 39 slices of src/weights/values.c, the last one short */

static uint64_t draw(uint64_t round, uint64_t what, uint64_t sides)
{
    return (uint64_t)(tide_random_uniform(round, TIDE_RANDOM_USE_TEST, 1, what) * (double)sides);
}

/* Reads random ranges of tensor 0 as fp32 (`expected`) and as stored in the file (`raw`). */
static void assert_ranges(const tide_weights *weights, const uint32_t *expected, const char *raw,
                          size_t element_bytes, uint32_t *bits)
{
    for (uint64_t round = 0; round < 60; round++) {
        const uint64_t first = round == 0 ? 0 : draw(round, 0, LARGE);
        const uint64_t left = LARGE - first, most = round % 2 == 0 || left < 5000 ? left : 5000;
        const uint64_t count = round == 0 ? LARGE : draw(round, 1, most);
        bits[count] = 0xdeadbeef;
        get_bits(weights, 0, first, count, bits);
        assert_memory_equal(bits, expected + first, count * 4);
        assert_int_equal(bits[count], 0xdeadbeef);
        memset(bits, 0xff, (count + 1) * 4);
        assert_ok(tide_weights_read_raw(weights, 0, first, count, bits));
        assert_memory_equal(bits, raw + first * element_bytes, count * element_bytes);
        assert_int_equal(((unsigned char *)bits)[count * element_bytes], 0xff);
    }
}

static void ranges_of_a_large_tensor_are_read(const char *dir, const char *dtype, size_t element_bytes)
{
    const tide_weights_tensor tensor = {"w", 1, {LARGE}};
    const tide_weights_names names = {.tensors = &tensor, .count = 1};
    uint32_t *expected = malloc((LARGE + 1) * 4), *bits = malloc((LARGE + 1) * 4);
    uint16_t *halves = malloc(LARGE * 2);
    char header[128];
    tide_weights *weights;
    for (uint32_t i = 0; i < LARGE; i++) {
        halves[i] = (uint16_t)((i * 2654435761u) >> 17);
        expected[i] = element_bytes == 4 ? i * 2654435761u : (uint32_t)halves[i] << 16;
    }
    snprintf(header, sizeof header, "{\"w\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[0,%zu]}}",
             dtype, LARGE, LARGE * element_bytes);
    put_single(dir, header, element_bytes == 4 ? (void *)expected : halves, LARGE * element_bytes);
    assert_ok(tide_weights_open(dir, &names, &weights));
    for (int threads = 1; threads <= 3; threads += 2) {
        tide_team_configure(threads);
        assert_ranges(weights, expected, element_bytes == 4 ? (void *)expected : halves, element_bytes, bits);
    }
    tide_weights_close(weights);
    free(halves);
    free(bits);
    free(expected);
}

static void ranges_at_odd_places_are_read_with_one_thread_and_with_several(void **state)
{
    const scratch *at = *state;
    ranges_of_a_large_tensor_are_read(at->root, "BF16", 2);
    ranges_of_a_large_tensor_are_read(at->root, "F32", 4);
}

static void a_range_outside_its_tensor_is_refused(void **state)
{
    const scratch *at = *state;
    float values[6];
    tide_weights *weights;
    put_single(at->root, SMALL, &small_values, SMALL_BYTES);
    assert_ok(tide_weights_open(at->root, &small, &weights));
    assert_ok(tide_weights_read(weights, 1, 4, 0, NULL));
    assert_int_equal(tide_weights_read(weights, 1, 2, 3, values), TIDE_ERROR_ARGUMENT);
    assert_string_equal(tide_message(), "weights: tensor norm.bias has 4 elements, not 3 from 2 on");
    assert_int_equal(tide_weights_read(weights, 1, UINT64_MAX, 2, values), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_weights_read(weights, 3, 0, 1, values), TIDE_ERROR_ARGUMENT);
    assert_string_equal(tide_message(), "weights: there is no tensor 3 of 3");
    tide_weights_close(weights);
}

static void a_file_cut_short_while_it_is_open_is_an_error(void **state)
{
    const scratch *at = *state;
    char path[128], line[256];
    float values[6];
    tide_weights *weights;
    put_single(at->root, SMALL, &small_values, SMALL_BYTES);
    assert_ok(tide_weights_open(at->root, &small, &weights));
    snprintf(path, sizeof path, "%s/model.safetensors", at->root);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(tide_weights_read(weights, 0, 0, 6, values), TIDE_ERROR_CORRUPT);
    snprintf(line, sizeof line, "weights %s: it has become shorter while it was read", path);
    assert_string_equal(tide_message(), line);
    tide_weights_close(weights);
}

/* ---- names ---- */

static void names_may_have_the_prefix_and_ignored_ones_are_passed_over(void **state)
{
    const scratch *at = *state;
    static const char *const ignored[] = {"*.rotary.inv_freq", "h.*.mask"};
    const tide_weights_names names = {.tensors = small_tensors,
                                      .count = 3,
                                      .optional_prefix = "transformer.",
                                      .ignored = ignored,
                                      .ignored_count = 2};
    tide_weights *weights;
    put_single(at->root,
               "{\"transformer.embed.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
               "\"transformer.norm.bias\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},"
               "\"transformer.head.weight\":{\"dtype\":\"F16\",\"shape\":[3,1],\"data_offsets\":[32,38]},\"a."
               "rotary.inv_freq\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[38,46]},\"h.0.mask\":{"
               "\"dtype\":\"BOOL\",\"shape\":[1,1,2,1,1],\"data_offsets\":[46,48]},\"transformer.h.1.mask\":{"
               "\"dtype\":\"F4\",\"shape\":[0],\"data_offsets\":[48,48]}}",
               &(struct {
                   small_data data;
                   char rest[10];
               }){small_values, ""},
               48);
    assert_ok(tide_weights_open(at->root, &names, &weights));
    assert_small(weights);
    assert_int_equal(tide_weights_bytes(weights), SMALL_BYTES);
    assert_true(tide_weights_named_otherwise(weights));
    tide_weights_close(weights);
    assert_refused(at->root, &small, TIDE_ERROR_MISMATCH,
                   "/model.safetensors: tensor a.rotary.inv_freq is none of the model's 3");
}

/* A file may leave out the prefix of all tensors that have one; the head's name never has it. transformers
 * loads both kinds of file into the same classes (core_model_loading.py, rename_source_key). */
static void names_may_lack_the_prefix(void **state)
{
    const scratch *at = *state;
    static const tide_weights_tensor tensors[] = {
        {"model.embed.weight", 2, {2, 3}}, {"model.norm.bias", 1, {4}}, {"head.weight", 2, {3, 1}}};
    static const char *const texts[] = {
        "{" EMBED "," NORM "," HEAD "}",
        "{\"model.embed.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"model.norm."
        "bias\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}," HEAD "}"};
    const tide_weights_names names = {.tensors = tensors, .count = 3, .optional_prefix = "model."};
    for (int with = 0; with < 2; with++) {
        tide_weights *weights;
        put_single(at->root, texts[with], &small_values, SMALL_BYTES);
        assert_ok(tide_weights_open(at->root, &names, &weights));
        assert_small(weights);
        assert_int_equal(tide_weights_named_otherwise(weights), !with);
        tide_weights_close(weights);
    }
}

static void names_with_the_prefix_among_such_without_are_refused(void **state)
{
    const scratch *at = *state;
    tide_weights_names names = small;
    names.optional_prefix = "transformer.";
    put_single(at->root,
               "{" EMBED "," HEAD
               ",\"transformer.norm.bias\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}}",
               NULL, SMALL_BYTES);
    assert_refused(at->root, &names, TIDE_ERROR_CORRUPT,
                   "/model.safetensors: tensor transformer.norm.bias has transformer. in front and others "
                   "have none; all must have it or none");
    names.optional_prefix = "a.";
    put_single(at->root,
               "{\"a.embed.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}," HEAD
               "," NORM "}",
               NULL, SMALL_BYTES);
    assert_refused(at->root, &names, TIDE_ERROR_CORRUPT,
                   "/model.safetensors: tensor head.weight has no a. in front and others have it; all must "
                   "have it or none");
}

static void a_tensor_with_and_without_its_prefix_is_refused(void **state)
{
    const scratch *at = *state;
    tide_weights_names names = small;
    names.optional_prefix = "transformer.";
    put_single(at->root,
               "{" EMBED "," NORM "," HEAD
               ",\"transformer.norm.bias\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[38,46]}}",
               NULL, 46);
    assert_refused(
        at->root, &names, TIDE_ERROR_CORRUPT,
        "/model.safetensors: tensor norm.bias is there twice, with and without transformer. in front");
}

/* The tensor has several slices and its duplicate another dtype; only the last value differs. A file that
 * somebody truncates meanwhile gives an error. */
static void a_tied_duplicate_must_have_its_tensors_values(void **state)
{
    const scratch *at = *state;
    enum { COUNT = 150000 };
    static const tide_weights_tensor tensors[] = {{"a", 1, {COUNT}}};
    const tide_weights_names names = {
        .tensors = tensors, .count = 1, .optional_prefix = "t.", .duplicate = "b"};
    static struct {
        uint32_t a[COUNT];
        uint16_t b[COUNT];
    } data;
    for (uint32_t i = 0; i < COUNT; i++) {
        data.b[i] = (uint16_t)(i * 7 % 0x7f80);
        data.a[i] = (uint32_t)data.b[i] << 16;
    }
    for (int differs = 0; differs < 2; differs++) {
        tide_weights *weights;
        data.b[COUNT - 1] ^= (uint16_t)differs;
        put_single(at->root,
                   "{\"a\":{\"dtype\":\"F32\",\"shape\":[150000],\"data_offsets\":[0,600000]},\"t.b\":{"
                   "\"dtype\":\"BF16\",\"shape\":[150000],\"data_offsets\":[600000,900000]}}",
                   &data, sizeof data);
        assert_ok(tide_weights_open(at->root, &names, &weights));
        assert_int_equal(tide_weights_check_duplicate(weights), differs ? TIDE_ERROR_MISMATCH : TIDE_OK);
        if (differs)
            assert_non_null(strstr(tide_message(), "tensor b has other values than a"));
        char path[256];
        snprintf(path, sizeof path, "%s/model.safetensors", at->root);
        assert_int_equal(truncate(path, 700000), 0);
        assert_int_equal(tide_weights_check_duplicate(weights), TIDE_ERROR_CORRUPT);
        tide_weights_close(weights);
    }
}

/* safetensors' save_model stores only one of two names of the same tensor. */
static void a_tied_duplicate_may_be_there_instead_of_its_tensor(void **state)
{
    const scratch *at = *state;
    tide_weights_names names = small;
    tide_weights *weights;
    names.duplicate = "a.duplicate";
    put_single(at->root,
               "{\"a.duplicate\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}," NORM "," HEAD
               "}",
               &small_values, SMALL_BYTES);
    assert_ok(tide_weights_open(at->root, &names, &weights));
    assert_small(weights);
    assert_ok(tide_weights_check_duplicate(weights));
    tide_weights_close(weights);
    put_single(at->root,
               "{" NORM "," HEAD ",\"c\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]}}",
               &small_values, SMALL_BYTES);
    assert_refused(at->root, &names, TIDE_ERROR_MISMATCH,
                   "/model.safetensors: tensor c is none of the model's 3");
}

static void an_index_need_not_name_what_is_ignored(void **state)
{
    const scratch *at = *state;
    static const char *const ignored[] = {"*.inv_freq"};
    const tide_weights_names names = {
        .tensors = small_tensors, .count = 3, .ignored = ignored, .ignored_count = 1};
    tide_weights *weights;
    put_shards(tide_files_posix(), at->root);
    put_tensors(tide_files_posix(), at->root, SHARD_TWO,
                "{\"head.weight\":{\"dtype\":\"F16\",\"shape\":[3,1],\"data_offsets\":[0,6]},\"a.inv_freq\":{"
                "\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[6,8]}}",
                &(uint16_t[4]){0x0001, 0x7c00, 0xbc00, 0}, 8);
    assert_ok(tide_weights_open(at->root, &names, &weights));
    assert_small(weights);
    tide_weights_close(weights);
}

static void names_that_no_model_has_are_refused(void **state)
{
    const scratch *at = *state;
    const struct {
        tide_weights_tensor tensors[2];
        size_t count;
        const char *line;
    } cases[] = {
        {{{0}}, 0, "weights: no tensors"},
        {{{"a", 1, {1}}, {NULL, 1, {1}}}, 2, "weights: tensor 1 (NULL) has no valid name or shape"},
        {{{"", 1, {1}}}, 1, "weights: tensor 0 () has no valid name or shape"},
        {{{"a", 0, {1}}}, 1, "weights: tensor 0 (a) has no valid name or shape"},
        {{{"a", 3, {1}}}, 1, "weights: tensor 0 (a) has no valid name or shape"},
        {{{"a", 2, {1, 0}}}, 1, "weights: tensor 0 (a) has no valid name or shape"},
        {{{"a", 2, {1ull << 40, 1ull << 40}}}, 1, "weights: tensor 0 (a) has no valid name or shape"},
        {{{"a", 1, {1}}, {"a", 1, {2}}}, 2, "weights: tensors 0 and 1 are both called a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const tide_weights_names names = {.tensors = cases[i].tensors, .count = cases[i].count};
        tide_weights *weights;
        assert_int_equal(tide_weights_open(at->root, &names, &weights), TIDE_ERROR_ARGUMENT);
        assert_string_equal(tide_message(), cases[i].line);
    }
}

/* ---- damage, faults and memory ---- */

static bool status_is_of_damage(tide_status status)
{
    return status == TIDE_ERROR_CORRUPT || status == TIDE_ERROR_MISMATCH || status == TIDE_ERROR_UNSUPPORTED;
}

static void a_file_truncated_at_any_byte_is_refused(void **state)
{
    const scratch *at = *state;
    char path[128];
    tide_weights *weights;
    put_single(at->root, SMALL, &small_values, SMALL_BYTES);
    snprintf(path, sizeof path, "%s/model.safetensors", at->root);
    for (off_t bytes = 8 + (off_t)strlen(SMALL) + SMALL_BYTES; bytes-- > 0;) {
        assert_int_equal(truncate(path, bytes), 0);
        assert_int_equal(tide_weights_open(at->root, &small, &weights), TIDE_ERROR_CORRUPT);
        assert_non_null(strstr(tide_message(), "truncated"));
    }
}

static void flipped_bytes_are_refused_or_harmless(void **state)
{
    const scratch *at = *state;
    unsigned char bytes[8 + sizeof SMALL - 1 + SMALL_BYTES];
    const uint64_t header_bytes = sizeof SMALL - 1;
    unsigned taken = 0, refused = 0;
    for (uint64_t round = 0; round < 3000; round++) {
        tide_weights *weights;
        memset(bytes, 0, sizeof bytes);
        memcpy(bytes, &header_bytes, 8);
        memcpy(bytes + 8, SMALL, header_bytes);
        for (uint64_t flip = 0; flip <= round % 3; flip++) {
            bytes[draw(round, 2 * flip, 8 + header_bytes)] = (unsigned char)draw(round, 2 * flip + 1, 256);
        }
        put(tide_files_posix(), at->root, "model.safetensors", bytes, sizeof bytes);
        const tide_status status = tide_weights_open(at->root, &small, &weights);
        taken += status == TIDE_OK;
        refused += status != TIDE_OK;
        if (status != TIDE_OK) {
            assert_true(status_is_of_damage(status));
            assert_null(strchr(tide_message(), '\n'));
            continue;
        }
        for (size_t i = 0; i < 3; i++) {
            float values[6];
            assert_ok(tide_weights_read(weights, i, 0, small_tensors[i].shape[0], values));
        }
        tide_weights_close(weights);
    }
    assert_true(taken > 0 && refused > 1000);
}

static tide_status open_and_read(const tide_files *files, const char *dir)
{
    tide_weights *weights;
    tide_status status = tide_weights_open_on(files, dir, &small, &weights);
    if (status != TIDE_OK)
        return status;
    uint32_t bits[6];
    for (size_t i = 0; i < 3 && status == TIDE_OK; i++)
        status = tide_weights_read(weights, i, 0, small_tensors[i].shape[0], (float *)(void *)bits);
    tide_weights_close(weights);
    return status;
}

static void every_fault_of_a_file_operation_ends_in_a_status(void **unused)
{
    for (int shards = 0; shards < 2; shards++) {
        unsigned refused = 0;
        bool met = true;
        for (unsigned operation = 0; met; operation++) {
            fake_files *disk = fake_files_new();
            const tide_files *files = fake_files_table(disk);
            assert_int_equal(files->make_folder(files->context, "w"), 0);
            if (shards)
                put_shards(files, "w");
            else
                put_tensors(files, "w", "model.safetensors", SMALL, &small_values, SMALL_BYTES);
            const unsigned before = fake_files_operations(disk);
            fake_files_fault(disk, FAKE_FAULT_EIO, before + operation);
            const tide_status status = open_and_read(files, "w");
            met = fake_files_fault_met(disk);
            refused += status != TIDE_OK;
            if (status != TIDE_OK) {
                assert_int_equal(status, TIDE_ERROR_IO);
                assert_non_null(strstr(tide_message(), "Input/output error"));
            }
            assert_int_equal(fake_files_open_count(disk), 0);
            fake_files_clear_fault(disk);
            assert_ok(open_and_read(files, "w"));
            fake_files_fault(disk, FAKE_FAULT_SHORT_WRITE, fake_files_operations(disk));
            assert_ok(open_and_read(files, "w")); /* each read returns a few bytes */
            fake_files_free(disk);
        }
        assert_true(refused >= (shards ? 14 : 7));
    }
}

static void every_lack_of_memory_ends_in_its_status(void **state)
{
    const scratch *at = *state;
    for (int shards = 0; shards < 2; shards++) {
        unsigned request = 0;
        bool met = true;
        if (shards) {
            char path[128];
            snprintf(path, sizeof path, "%s/model.safetensors", at->root);
            assert_int_equal(unlink(path), 0);
            put_shards(tide_files_posix(), at->root);
        } else {
            put_single(at->root, SMALL, &small_values, SMALL_BYTES);
        }
        for (; met; request++) {
            fake_memory_fail(request);
            const tide_status status = open_and_read(tide_files_posix(), at->root);
            met = fake_memory_failed();
            const bool in_parser = fake_memory_failed_in_jansson();
            fake_memory_clear();
            /* For some failed requests jansson reports a fault of the text, or cuts keys short. */
            if (!in_parser)
                assert_int_equal(status, met ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
            else
                assert_true(status == TIDE_ERROR_NO_MEMORY || status_is_of_damage(status));
        }
        assert_true(request > 20);
    }
}

static void reading_needs_no_memory(void **state)
{
    const scratch *at = *state;
    float values[6];
    tide_weights *weights;
    put_single(at->root, SMALL, &small_values, SMALL_BYTES);
    assert_ok(tide_weights_open(at->root, &small, &weights));
    fake_memory_fail(0);
    for (size_t i = 0; i < 3; i++)
        assert_ok(tide_weights_read(weights, i, 0, small_tensors[i].shape[0], values));
    assert_false(fake_memory_failed());
    fake_memory_clear();
    tide_weights_close(weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scratch(mixed_dtypes_in_one_file_are_read_to_the_bit),
        in_scratch(shards_are_read_as_the_index_says),
        in_scratch(one_file_counts_where_an_index_is_there_too),
        in_scratch(every_value_of_16_bits_is_widened),
        in_scratch(ranges_at_odd_places_are_read_with_one_thread_and_with_several),
        in_scratch(a_range_outside_its_tensor_is_refused),
        in_scratch(a_file_cut_short_while_it_is_open_is_an_error),
        in_scratch(names_may_have_the_prefix_and_ignored_ones_are_passed_over),
        in_scratch(names_may_lack_the_prefix),
        in_scratch(names_with_the_prefix_among_such_without_are_refused),
        in_scratch(a_tensor_with_and_without_its_prefix_is_refused),
        in_scratch(a_tied_duplicate_must_have_its_tensors_values),
        in_scratch(a_tied_duplicate_may_be_there_instead_of_its_tensor),
        in_scratch(an_index_need_not_name_what_is_ignored),
        in_scratch(names_that_no_model_has_are_refused),
        in_scratch(a_file_truncated_at_any_byte_is_refused),
        in_scratch(flipped_bytes_are_refused_or_harmless),
        cmocka_unit_test(every_fault_of_a_file_operation_ends_in_a_status),
        in_scratch(every_lack_of_memory_ends_in_its_status),
        in_scratch(reading_needs_no_memory),
    };
    fake_memory_take_jansson();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
