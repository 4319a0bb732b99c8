/* Writing folders of weights: they can be read again, they have the bytes that safetensors and
 * transformers write, and every fault ends in a status. */
#include "base/fp16.h"
#include "base/team.h"
#include "src/data/random.h"
#include "src/weights/convert.h"
#include "src/weights/reader.h"
#include "src/weights/writer.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_files.h"
#include "tests/support/fake_memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a model whose values depend on tensor and element ---- */

static const tide_weights_tensor small_tensors[] = {
    {"wte.weight", 2, {3, 4}}, {"h.10.bias", 1, {5}}, {"h.2.weight", 2, {2, 6}}, {"ln_f.bias", 1, {3}}};
enum { SMALL_COUNT = 4, SMALL_ELEMENTS = 32 };
static const tide_weights_names small_names = {.tensors = small_tensors, .count = SMALL_COUNT};

/* The first values are special ones, such as infinities and numbers between two of 16 bits; the others are
 * random. */
static uint32_t value_bits(size_t tensor, uint64_t element)
{
    static const uint32_t special[] = {0x00000001, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
                                       0x3f800000, 0x33000001, 0x387fe000, 0x477fefff};
    if (element < sizeof special / sizeof special[0])
        return special[(element + tensor) % (sizeof special / sizeof special[0])];
    const double value = tide_random_uniform(element, TIDE_RANDOM_USE_TEST, (uint32_t)tensor, 0) - 0.5;
    const float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return bits;
}

static uint32_t rounded_bits(tide_weights_dtype dtype, uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    if (dtype == TIDE_WEIGHTS_BF16)
        value = tide_bf16_to_float(tide_bf16_from_float(value));
    if (dtype == TIDE_WEIGHTS_F16)
        value = tide_fp16_to_float(tide_fp16_from_float(value));
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The range that the writer has asked for last, and the faults that `get` makes. */
typedef struct asked {
    size_t tensor;
    uint64_t next;
    unsigned asks;
    bool fails;
    uint64_t huge; /* element of tensor 0 that is too large for fp16; UINT64_MAX: none */
} asked;

static tide_status get(void *context, size_t tensor, uint64_t first, uint64_t count, float *values)
{
    asked *it = context;
    assert_true(first == 0 || (tensor == it->tensor && first == it->next));
    assert_true(count > 0 && count <= 1 << 20);
    it->tensor = tensor;
    it->next = first + count;
    it->asks++;
    if (it->fails)
        return tide_fail(TIDE_ERROR_STATE, "no values");
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t bits = value_bits(tensor, first + i);
        memcpy(&values[i], &bits, sizeof bits);
        if (tensor == 0 && first + i == it->huge)
            values[i] = -65520.0f;
    }
    return TIDE_OK;
}

static asked values = {.huge = UINT64_MAX};

static tide_weights_output small_output(tide_weights_dtype dtype, uint64_t max_shard_bytes)
{
    return (tide_weights_output){.tensors = small_tensors,
                                 .count = SMALL_COUNT,
                                 .dtype = dtype,
                                 .max_shard_bytes = max_shard_bytes,
                                 .get = get,
                                 .context = &values};
}

/* ---- a disk with a folder ---- */

static fake_files *disk_new(void)
{
    fake_files *disk = fake_files_new();
    const tide_files *files = fake_files_table(disk);
    assert_int_equal(files->make_folder(files->context, "w"), 0);
    assert_int_equal(files->sync_folder(files->context, ""), 0);
    return disk;
}

static bool reads_as_written(fake_files *disk, tide_weights_dtype dtype)
{
    tide_weights *weights;
    bool same = tide_weights_open_on(fake_files_table(disk), "w", &small_names, &weights) == TIDE_OK;
    if (!same)
        return false;
    for (size_t tensor = 0; tensor < SMALL_COUNT; tensor++) {
        uint32_t bits[12];
        const uint64_t count = small_tensors[tensor].shape[0] *
                               (small_tensors[tensor].rank == 2 ? small_tensors[tensor].shape[1] : 1);
        assert_ok(tide_weights_read(weights, tensor, 0, count, (float *)(void *)bits));
        for (uint64_t i = 0; i < count; i++)
            same = same && bits[i] == rounded_bits(dtype, value_bits(tensor, i));
        same = same && tide_weights_tensor_dtype(weights, tensor) == dtype;
    }
    tide_weights_close(weights);
    return same;
}

static uint64_t bytes_of(fake_files *disk, const char *name)
{
    char path[128];
    size_t bytes = 0;
    snprintf(path, sizeof path, "w/%s", name);
    return fake_files_bytes(disk, path, &bytes) != NULL ? bytes : 0;
}

static bool is_there(const fake_files *disk, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "w/%s", name);
    return fake_files_exists(disk, path);
}

static void assert_header(fake_files *disk, const char *name, const char *text)
{
    char path[128];
    size_t bytes;
    snprintf(path, sizeof path, "w/%s", name);
    const unsigned char *file = fake_files_bytes(disk, path, &bytes);
    assert_non_null(file);
    const size_t padded = (strlen(text) + 7) / 8 * 8;
    assert_true(bytes > 8 + padded);
    assert_int_equal(file[0] | file[1] << 8, padded);
    for (int i = 2; i < 8; i++)
        assert_int_equal(file[i], 0);
    assert_memory_equal(file + 8, text, strlen(text));
    for (size_t i = strlen(text); i < padded; i++)
        assert_int_equal(file[8 + i], ' ');
}

/* ---- files ---- */

static void what_is_written_is_read_again(void **unused)
{
    for (int dtype = 0; dtype < TIDE_WEIGHTS_DTYPES; dtype++) {
        for (uint64_t limit = 0; limit < 200; limit = limit * 2 + 1) {
            fake_files *disk = disk_new();
            const tide_weights_output output = small_output((tide_weights_dtype)dtype, limit);
            assert_ok(tide_weights_write(fake_files_table(disk), "w", &output));
            assert_true(reads_as_written(disk, (tide_weights_dtype)dtype));
            assert_int_equal(fake_files_open_count(disk), 0);
            fake_files_free(disk);
        }
    }
}

static void one_file_is_as_safetensors_writes_it(void **unused)
{
    fake_files *disk = disk_new();
    const tide_weights_output output = small_output(TIDE_WEIGHTS_BF16, 2 * SMALL_ELEMENTS);
    assert_ok(tide_weights_write(fake_files_table(disk), "w", &output));
    assert_header(disk, "model.safetensors",
                  "{\"__metadata__\":{\"format\":\"pt\"},\"h.10.bias\":{\"dtype\":\"BF16\",\"shape\":[5],"
                  "\"data_offsets\":[0,10]},\"h.2.weight\":{\"dtype\":\"BF16\",\"shape\":[2,6],\"data_"
                  "offsets\":[10,34]},\"ln_f.bias\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[34,"
                  "40]},\"wte.weight\":{\"dtype\":\"BF16\",\"shape\":[3,4],\"data_offsets\":[40,64]}}");
    assert_false(is_there(disk, "model.safetensors.index.json"));
    fake_files_free(disk);
}

/* In the model's order the tensors have 24, 10, 24 and 6 bytes: the first and the third exceed the limit
 * of 20. */
static void shards_are_as_transformers_deals_them(void **unused)
{
    fake_files *disk = disk_new();
    const tide_weights_output output = small_output(TIDE_WEIGHTS_F16, 20);
    static const char wanted[] = "{\n"
                                 "  \"metadata\": {\n"
                                 "    \"total_size\": 64\n"
                                 "  },\n"
                                 "  \"weight_map\": {\n"
                                 "    \"h.10.bias\": \"model-00003-of-00003.safetensors\",\n"
                                 "    \"h.2.weight\": \"model-00002-of-00003.safetensors\",\n"
                                 "    \"ln_f.bias\": \"model-00003-of-00003.safetensors\",\n"
                                 "    \"wte.weight\": \"model-00001-of-00003.safetensors\"\n"
                                 "  }\n"
                                 "}\n";
    size_t bytes;
    assert_ok(tide_weights_write(fake_files_table(disk), "w", &output));
    const unsigned char *index = fake_files_bytes(disk, "w/model.safetensors.index.json", &bytes);
    assert_non_null(index);
    assert_int_equal(bytes, sizeof wanted - 1);
    assert_memory_equal(index, wanted, bytes);
    assert_header(
        disk, "model-00003-of-00003.safetensors",
        "{\"__metadata__\":{\"format\":\"pt\"},\"h.10.bias\":{\"dtype\":\"F16\",\"shape\":[5],\"data_"
        "offsets\":[0,10]},\"ln_f.bias\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[10,16]}}");
    assert_false(is_there(disk, "model.safetensors"));
    fake_files_free(disk);
}

static void a_shard_is_filled_to_its_limit(void **unused)
{
    static const struct {
        uint64_t limit;
        const char *last;
    } cases[] = {{64, "model.safetensors"},
                 {63, "model-00002-of-00002.safetensors"}, /* 24 + 10 + 24, 6 */
                 {58, "model-00002-of-00002.safetensors"},
                 {57, "model-00002-of-00002.safetensors"}, /* 24 + 10, 24 + 6 */
                 {33, "model-00003-of-00003.safetensors"}, /* 24, 10, 24 + 6, since 24 + 10 is too much */
                 {24, "model-00004-of-00004.safetensors"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake_files *disk = disk_new();
        const tide_weights_output output = small_output(TIDE_WEIGHTS_BF16, cases[i].limit);
        assert_ok(tide_weights_write(fake_files_table(disk), "w", &output));
        if (!is_there(disk, cases[i].last))
            fail_msg("limit %llu: no %s", (unsigned long long)cases[i].limit, cases[i].last);
        fake_files_free(disk);
    }
}

static void names_of_any_letters_are_escaped_and_read_again(void **unused)
{
    char unprintable[256];
    memset(unprintable, 1, 255);
    unprintable[255] = '\0';
    const tide_weights_tensor tensors[] = {{"na\xc3\xafve \"w\"\n\xf0\x9f\x8c\x8a", 1, {4}},
                                           {unprintable, 1, {4}}};
    const tide_weights_names names = {.tensors = tensors, .count = 2};
    fake_files *disk = disk_new();
    const tide_weights_output output = {.tensors = tensors,
                                        .count = 2,
                                        .dtype = TIDE_WEIGHTS_F32,
                                        .max_shard_bytes = 16,
                                        .get = get,
                                        .context = &values};
    tide_weights *weights;
    size_t bytes;
    assert_ok(tide_weights_write(fake_files_table(disk), "w", &output));
    assert_ok(tide_weights_open_on(fake_files_table(disk), "w", &names, &weights));
    tide_weights_close(weights);
    const unsigned char *index = fake_files_bytes(disk, "w/model.safetensors.index.json", &bytes);
    for (size_t i = 0; i < bytes; i++)
        assert_true(index[i] < 0x80);
    assert_true(bytes_of(disk, "model-00001-of-00002.safetensors") +
                    bytes_of(disk, "model-00002-of-00002.safetensors") + bytes <=
                tide_weights_output_bytes(&output));
    fake_files_free(disk);
}

static void a_large_tensor_goes_through_a_small_buffer(void **unused)
{
    enum { LARGE = 1500000 };
    static const tide_weights_tensor tensors[] = {{"w", 2, {LARGE / 100, 100}}, {"b", 1, {7}}};
    const tide_weights_names names = {.tensors = tensors, .count = 2};
    uint32_t *bits = malloc(LARGE * 4);
    for (int dtype = 0; dtype < TIDE_WEIGHTS_DTYPES; dtype++) {
        fake_files *disk = disk_new();
        asked large = {.huge = UINT64_MAX};
        const tide_weights_output output = {.tensors = tensors,
                                            .count = 2,
                                            .dtype = (tide_weights_dtype)dtype,
                                            .get = get,
                                            .context = &large};
        tide_weights *weights;
        tide_team_configure(1 + dtype);
        assert_ok(tide_weights_write(fake_files_table(disk), "w", &output));
        assert_int_equal(large.asks, dtype == TIDE_WEIGHTS_F32 ? 3 : 4);
        tide_team_configure(1); /* the simulated disk supports one thread */
        assert_ok(tide_weights_open_on(fake_files_table(disk), "w", &names, &weights));
        assert_ok(tide_weights_read(weights, 0, 0, LARGE, (float *)(void *)bits));
        for (uint64_t i = 0; i < LARGE; i++)
            assert_int_equal(bits[i], rounded_bits((tide_weights_dtype)dtype, value_bits(0, i)));
        tide_weights_close(weights);
        fake_files_free(disk);
    }
    free(bits);
}

typedef struct told {
    uint64_t done_bytes;
    unsigned times;
} told;

static void tell(void *context, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    told *it = context;
    assert_string_equal(what, "weights");
    assert_true(done_bytes > it->done_bytes);
    assert_int_equal(total_bytes, 4 * SMALL_ELEMENTS);
    it->done_bytes = done_bytes;
    it->times++;
}

static void progress_is_told(void **unused)
{
    fake_files *disk = disk_new();
    told it = {0};
    tide_weights_output output = small_output(TIDE_WEIGHTS_F32, 50);
    output.progress = tell;
    output.progress_context = &it;
    assert_ok(tide_weights_write(fake_files_table(disk), "w", &output));
    assert_int_equal(it.done_bytes, 4 * SMALL_ELEMENTS);
    assert_int_equal(it.times, SMALL_COUNT);
    fake_files_free(disk);
}

static void the_bytes_foretold_are_enough_and_hardly_more(void **unused)
{
    static const char *const shards[] = {"model.safetensors",
                                         "model.safetensors.index.json",
                                         "model-00001-of-00004.safetensors",
                                         "model-00002-of-00004.safetensors",
                                         "model-00003-of-00004.safetensors",
                                         "model-00004-of-00004.safetensors"};
    static const uint64_t limits[] = {0, 24};
    for (int i = 0; i < 2; i++) {
        fake_files *disk = disk_new();
        const tide_weights_output output = small_output(TIDE_WEIGHTS_BF16, limits[i]);
        const uint64_t foretold = tide_weights_output_bytes(&output);
        uint64_t written = 0;
        assert_ok(tide_weights_write(fake_files_table(disk), "w", &output));
        for (size_t k = 0; k < sizeof shards / sizeof shards[0]; k++)
            written += bytes_of(disk, shards[k]);
        assert_true(written > 2 * SMALL_ELEMENTS && written <= foretold &&
                    foretold < written + 1000 * SMALL_COUNT);
        fake_files_free(disk);
    }
}

/* ---- rounding ---- */

static void rounding_is_that_of_the_kernels(void **unused)
{
    enum { STEP = 10007, BATCH = 4096 };
    float from[BATCH];
    uint16_t bf16[BATCH], f16[BATCH];
    for (uint64_t first = 0; first < 1ull << 32; first += (uint64_t)STEP * BATCH) {
        for (uint32_t i = 0; i < BATCH; i++) {
            const uint32_t bits = (uint32_t)(first + (uint64_t)i * STEP);
            memcpy(&from[i], &bits, sizeof bits);
        }
        tide_weights_narrow(TIDE_WEIGHTS_BF16, from, bf16, BATCH);
        tide_weights_narrow(TIDE_WEIGHTS_F16, from, f16, BATCH);
        for (uint32_t i = 0; i < BATCH; i++) {
            assert_int_equal(bf16[i], tide_bf16_from_float(from[i]));
            assert_int_equal(f16[i], tide_fp16_from_float(from[i]));
        }
    }
}

/* Every fp16 number, the ties between neighbours, and the neighbours of both in fp32. */
static void rounding_is_that_of_the_kernels_around_every_fp16_number(void **unused)
{
    for (uint32_t number = 0; number < 65536; number++) {
        const float value = tide_fp16_to_float((tide_fp16)number);
        const float next = tide_fp16_to_float((tide_fp16)(number + 1));
        const float tie = (value + next) / 2;
        const float from[6] = {nextafterf(value, -1e30f), value,
                               nextafterf(value, 1e30f),  nextafterf(tie, -1e30f),
                               isnan(tie) ? 1 : tie,      nextafterf(tie, 1e30f)};
        uint16_t to[6];
        tide_weights_narrow(TIDE_WEIGHTS_F16, from, to, 6);
        for (int i = 0; i < 6; i++)
            assert_int_equal(to[i], tide_fp16_from_float(from[i]));
    }
}

static void values_beyond_fp16_are_refused(void **unused)
{
    fake_files *disk = disk_new();
    asked huge = {.huge = 7};
    tide_weights_output output = small_output(TIDE_WEIGHTS_F16, 0);
    output.context = &huge;
    assert_int_equal(tide_weights_write(fake_files_table(disk), "w", &output), TIDE_ERROR_ARGUMENT);
    assert_string_equal(
        tide_message(),
        "weights: element 7 of tensor wte.weight is -65520, fp16 ends at 65504: use bf16 or fp32");
    assert_int_equal(fake_files_open_count(disk), 0);
    fake_files_free(disk);
    disk = disk_new();
    output.dtype = TIDE_WEIGHTS_BF16;
    assert_ok(tide_weights_write(fake_files_table(disk), "w", &output));
    fake_files_free(disk);
    static const tide_weights_tensor large = {"w", 1, {1500000}};
    huge.huge = 1000003; /* in the second part of the tensor */
    output.tensors = &large;
    output.count = 1;
    output.dtype = TIDE_WEIGHTS_F16;
    disk = disk_new();
    assert_int_equal(tide_weights_write(fake_files_table(disk), "w", &output), TIDE_ERROR_ARGUMENT);
    assert_string_equal(
        tide_message(),
        "weights: element 1000003 of tensor w is -65520, fp16 ends at 65504: use bf16 or fp32");
    fake_files_free(disk);
    const float edge[4] = {INFINITY, 65519.996f, NAN, 65504.0f}, over[3] = {1, 65520.0f, 1e38f};
    assert_int_equal(tide_weights_f16_overflow(edge, 4), 4);
    assert_int_equal(tide_weights_f16_overflow(over, 3), 1);
}

/* ---- refusals, faults and memory ---- */

static void what_cant_be_written_is_refused(void **unused)
{
    fake_files *disk = disk_new();
    asked failing = {.fails = true, .huge = UINT64_MAX};
    tide_weights_output output = small_output(TIDE_WEIGHTS_F32, 0);
    output.context = &failing;
    assert_int_equal(tide_weights_write(fake_files_table(disk), "w", &output), TIDE_ERROR_STATE);
    assert_string_equal(tide_message(), "no values");
    output.context = &values;
    assert_int_equal(tide_weights_write(fake_files_table(disk), "w", &output), TIDE_ERROR_IO);
    assert_string_equal(tide_message(), "weights w/model.safetensors: can't be created: File exists");
    assert_int_equal(tide_weights_write(fake_files_table(disk), "x", &output), TIDE_ERROR_IO);
    assert_string_equal(tide_message(),
                        "weights x/model.safetensors: can't be created: No such file or directory");
    output.dtype = TIDE_WEIGHTS_DTYPES;
    assert_int_equal(tide_weights_write(fake_files_table(disk), "w", &output), TIDE_ERROR_ARGUMENT);
    output.dtype = TIDE_WEIGHTS_F32;
    output.count = 0;
    assert_int_equal(tide_weights_write(fake_files_table(disk), "w", &output), TIDE_ERROR_ARGUMENT);
    assert_string_equal(tide_message(), "weights: no tensors");
    assert_int_equal(fake_files_open_count(disk), 0);
    fake_files_free(disk);
}

static void every_fault_of_a_file_operation_ends_in_a_status(void **unused)
{
    for (int kind = 0; kind < 3; kind++) {
        const fake_fault fault = (fake_fault)kind;
        unsigned refused = 0;
        bool met = true;
        for (unsigned operation = 0; met; operation++) {
            fake_files *disk = disk_new();
            const tide_weights_output output = small_output(TIDE_WEIGHTS_BF16, 40);
            fake_files_fault(disk, fault, fake_files_operations(disk) + operation);
            const tide_status status = tide_weights_write(fake_files_table(disk), "w", &output);
            met = fake_files_fault_met(disk);
            refused += status != TIDE_OK;
            if (fault == FAKE_FAULT_EIO)
                assert_int_equal(status, met ? TIDE_ERROR_IO : TIDE_OK);
            else if (fault == FAKE_FAULT_SHORT_WRITE || status != TIDE_ERROR_IO)
                assert_int_equal(status, TIDE_OK); /* the disk became full after the last write */
            assert_int_equal(fake_files_open_count(disk), 0);
            fake_files_clear_fault(disk);
            if (status == TIDE_OK)
                assert_true(reads_as_written(disk, TIDE_WEIGHTS_BF16));
            fake_files_free(disk);
        }
        assert_true(fault == FAKE_FAULT_SHORT_WRITE ? refused == 0 : refused >= 12);
    }
}

/* Two shards, the index and the folder need four syncs. */
static void what_is_written_survives_a_power_cut_and_needs_every_sync(void **unused)
{
    for (unsigned ignored = 0; ignored <= 4; ignored++) {
        fake_files *disk = disk_new();
        const tide_weights_output output = small_output(TIDE_WEIGHTS_F32, 100);
        fake_files_ignore_sync(disk, fake_files_syncs(disk) + ignored);
        const unsigned before = fake_files_syncs(disk);
        assert_ok(tide_weights_write(fake_files_table(disk), "w", &output));
        assert_int_equal(fake_files_syncs(disk) - before, 4);
        fake_files *after = fake_files_after_power_cut(disk, 0);
        assert_int_equal(reads_as_written(after, TIDE_WEIGHTS_F32), ignored == 4);
        fake_files_free(after);
        fake_files_free(disk);
    }
}

static void every_lack_of_memory_ends_in_its_status(void **unused)
{
    unsigned request = 0;
    bool met = true;
    for (; met; request++) {
        fake_files *disk = disk_new();
        const tide_weights_output output = small_output(TIDE_WEIGHTS_BF16, 40);
        fake_memory_fail(request);
        const tide_status status = tide_weights_write(fake_files_table(disk), "w", &output);
        met = fake_memory_failed();
        fake_memory_clear();
        assert_int_equal(status, met ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
        assert_int_equal(fake_files_open_count(disk), 0);
        if (!met)
            assert_true(reads_as_written(disk, TIDE_WEIGHTS_BF16));
        fake_files_free(disk);
    }
    assert_true(request > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(one_file_is_as_safetensors_writes_it),
        cmocka_unit_test(shards_are_as_transformers_deals_them),
        cmocka_unit_test(a_shard_is_filled_to_its_limit),
        cmocka_unit_test(names_of_any_letters_are_escaped_and_read_again),
        cmocka_unit_test(a_large_tensor_goes_through_a_small_buffer),
        cmocka_unit_test(progress_is_told),
        cmocka_unit_test(the_bytes_foretold_are_enough_and_hardly_more),
        cmocka_unit_test(rounding_is_that_of_the_kernels),
        cmocka_unit_test(rounding_is_that_of_the_kernels_around_every_fp16_number),
        cmocka_unit_test(values_beyond_fp16_are_refused),
        cmocka_unit_test(what_cant_be_written_is_refused),
        cmocka_unit_test(every_fault_of_a_file_operation_ends_in_a_status),
        cmocka_unit_test(what_is_written_survives_a_power_cut_and_needs_every_sync),
        cmocka_unit_test(every_lack_of_memory_ends_in_its_status),
    };
    fake_memory_take_jansson();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
