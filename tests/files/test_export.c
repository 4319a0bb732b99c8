/* Exports of a model to a Hugging Face folder: the exact bytes of its files, sidecar files, refusals.
 * Whatever fails, the folder is there complete or not at all, and nothing else is left behind. */
#include "base/fp16.h"
#include "base/whole.h"
#include "kernels/kernels.h"
#include "src/checkpoint/check.h"
#include "src/export/config_text.h"
#include "src/export/export.h"
#include "src/export/weight_list.h"
#include "src/weights/reader.h"
#include "tests/files/test_checkpoint.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"
#include "tests/support/small_model.h"
#include "tests/support/test_thin.h"

#include <errno.h>

enum { STEP = 3, SEEDS = 12, PROOF_SEEDS = 64, NEVER = 100000 };

/* ---- a disk with a run's checkpoint and the source folder that the run began with ---- */

static tide_model_config model(void)
{
    return gpt2_of(1, 8, 2, 4, 11);
}

static void put(fake_files *disk, const char *path, const char *text)
{
    assert_int_equal(tide_files_write_whole(fake_files_table(disk), path, text, strlen(text)), 0);
}

static void make_folder(fake_files *disk, const char *path)
{
    const tide_files *files = fake_files_table(disk);
    assert_int_equal(files->make_folder(files->context, path), 0);
}

static void sync_folder(fake_files *disk, const char *path)
{
    const tide_files *files = fake_files_table(disk);
    assert_int_equal(files->sync_folder(files->context, path), 0);
}

static void assert_text(fake_files *disk, const char *path, const char *expected)
{
    size_t bytes = 0;
    const unsigned char *text = fake_files_bytes(disk, path, &bytes);
    if (text == NULL)
        fail_msg("%s is missing", path);
    if (bytes != strlen(expected) || memcmp(text, expected, bytes) != 0)
        fail_msg("%s:\n%.*s\nnot\n%s", path, (int)bytes, (const char *)text, expected);
}

/* Writes a checkpoint of the model after step 3 into run/; its values are expected_value's. */
static void put_checkpoint(fake_files *disk, const tide_model_config *of)
{
    tide_checkpoint_tensor tensors[32];
    tide_weight_list list;
    uint64_t step = STEP;
    tide_train_state state = state_at(step);
    assert_ok(tide_weight_list_make(of, &list));
    assert_true(list.count <= 32);
    for (size_t i = 0; i < list.count; i++) {
        tensors[i] = (tide_checkpoint_tensor){.name = list.tensors[i].name, .rank = list.tensors[i].rank};
        memcpy(tensors[i].shape, list.tensors[i].shape, list.tensors[i].rank * sizeof tensors[i].shape[0]);
    }
    const tide_checkpoint_tensors all = {tensors, list.count};
    state.model = *of;
    state.seq_len = of->context;
    state.global_batch_tokens = 2 * (uint64_t)of->context;
    state.micro_batch_sequences = 1;
    assert_ok(tide_checkpoint_save(fake_files_table(disk), "run", &state, &all, 0, pull_values, &step, NULL));
    tide_weight_list_free(&list);
}

#define SIZES_OF(layers, epsilon)                                                                            \
    "\"model_type\": \"gpt2\", \"n_layer\": " layers ", \"n_embd\": 8, \"n_head\": 2, \"n_positions\": 4, "  \
    "\"vocab_size\": 11, \"layer_norm_epsilon\": " epsilon
#define SIZES SIZES_OF("1", "1e-05")

static const char *const sidecars[][2] = {
    {"tokenizer.json", "{\"a\": 1}"},
    {"tokenizer_config.json", "{}"},
    {"merges.txt", "a b\n"},
    {"vocab.json", "{\"x\":0}"},
    {"generation_config.json", "{ }"},
    {"chat_template.jinja", "{{}}"},
    {"LICENSE", "free"},
};
static const char *const left[] = {"pytorch_model.bin", "README.md", ".tokenizer.json.swp",
                                   "model.safetensors", "my_merges.txt"};

enum { SIDECARS = sizeof sidecars / sizeof sidecars[0], LEFT = sizeof left / sizeof left[0] };

/* Makes a Hugging Face folder with config.json, sidecar files, and other files that an export leaves out. */
static void put_source(fake_files *disk, const char *path, const char *config)
{
    char name[TIDE_CHECKPOINT_PATH_BYTES + 64];
    make_folder(disk, path);
    snprintf(name, sizeof name, "%s/config.json", path);
    put(disk, name, config);
    for (size_t i = 0; i < SIDECARS; i++) {
        snprintf(name, sizeof name, "%s/%s", path, sidecars[i][0]);
        put(disk, name, sidecars[i][1]);
    }
    for (size_t i = 0; i < LEFT; i++) {
        snprintf(name, sizeof name, "%s/%s", path, left[i]);
        put(disk, name, "not this");
    }
    snprintf(name, sizeof name, "%s/tokenizer_parts", path);
    make_folder(disk, name);
    strcat(name, "/tokenizer.json");
    put(disk, name, "not this");
}

static fake_files *disk_new(bool source)
{
    const tide_model_config of = model();
    fake_files *disk = fake_files_new();
    put_checkpoint(disk, &of);
    if (source) {
        put_source(disk, "hf", "{" SIZES ", \"torch_dtype\": \"float32\"}\n");
        assert_ok(tide_export_keep_source(fake_files_table(disk), "run", "hf"));
    }
    sync_folder(disk, "");
    return disk;
}

static int disk_make(void **state)
{
    *state = disk_new(true);
    return 0;
}

static int disk_remove(void **state)
{
    fake_files_free(*state);
    return 0;
}

#define on_disk(test) cmocka_unit_test_setup_teardown(test, disk_make, disk_remove)

static tide_export export_to(const fake_files *disk, const char *out, tide_weights_dtype dtype)
{
    return (tide_export){.files = fake_files_table(disk), .out = out, .dtype = dtype};
}

/* The export of a model in memory, with its source folder. */
static tide_export export_of(const fake_files *disk)
{
    static tide_model_config of;
    of = model();
    tide_export to = export_to(disk, "out", TIDE_WEIGHTS_BF16);
    to.model = &of;
    to.source = "hf";
    return to;
}

static tide_status export_run(const fake_files *disk)
{
    const tide_export to = export_to(disk, "out", TIDE_WEIGHTS_BF16);
    return tide_export_checkpoint(&to, "run/step-3");
}

/* ---- folders, compared ---- */

typedef struct names {
    char items[24][64];
    size_t count;
} names;

static int name_add(void *visitor, const char *name)
{
    names *list = visitor;
    snprintf(list->items[list->count++], sizeof list->items[0], "%s", name);
    return 0;
}

static bool names_in(const fake_files *disk, const char *path, names *list)
{
    const tide_files *files = fake_files_table(disk);
    list->count = 0;
    return files->list(files->context, path, name_add, list) == 0;
}

static size_t count_in(const fake_files *disk, const char *path)
{
    names list;
    return names_in(disk, path, &list) ? list.count : 0;
}

/* Whether both folders have the same files with the same bytes. */
static bool is_same(fake_files *disk, const char *path, fake_files *truth, const char *true_path)
{
    names list;
    if (!names_in(truth, true_path, &list) || count_in(disk, path) != list.count)
        return false;
    for (size_t i = 0; i < list.count; i++) {
        char name[160], true_name[160];
        size_t bytes = 0, true_bytes = 0;
        snprintf(name, sizeof name, "%s/%s", path, list.items[i]);
        snprintf(true_name, sizeof true_name, "%s/%s", true_path, list.items[i]);
        const unsigned char *is = fake_files_bytes(disk, name, &bytes),
                            *right = fake_files_bytes(truth, true_name, &true_bytes);
        if (is == NULL && (bytes = 0, !fake_files_exists(disk, name)))
            return false;
        if (bytes != true_bytes || (bytes > 0 && memcmp(is, right, bytes) != 0))
            return false;
    }
    return true;
}

static void assert_nothing_left(const fake_files *disk, size_t root_names)
{
    names list;
    assert_true(names_in(disk, "", &list));
    if (list.count != root_names)
        fail_msg("%zu names, the last %s: not %zu", list.count, list.items[list.count - 1], root_names);
    assert_int_equal(fake_files_open_count(disk), 0);
}

/* ---- config.json ---- */

static void a_config_is_made_where_there_was_none(void **unused)
{
    fake_files *disk = disk_new(false);
    assert_ok(export_run(disk));
    assert_text(disk, "out/config.json",
                "{\n  \"architectures\": [\n    \"GPT2LMHeadModel\"\n  ],\n  \"model_type\": \"gpt2\",\n"
                "  \"activation_function\": \"gelu_new\",\n  \"tie_word_embeddings\": true,\n  "
                "\"scale_attn_weights\": true,\n"
                "  \"scale_attn_by_inverse_layer_idx\": false,\n  \"reorder_and_upcast_attn\": false,\n"
                "  \"add_cross_attention\": false,\n  \"n_layer\": 1,\n  \"n_embd\": 8,\n  \"n_head\": 2,\n"
                "  \"n_positions\": 4,\n  \"n_ctx\": 4,\n  \"vocab_size\": 11,\n  \"n_inner\": 32,\n  "
                "\"layer_norm_epsilon\": 1e-5,\n  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n"
                "  \"resid_pdrop\": 0.0,\n"
                "  \"torch_dtype\": \"bfloat16\"\n}\n");
    assert_int_equal(count_in(disk, "out"), 2);
    fake_files_free(disk);
}

/* Numbers that need all 17 digits are written and read back to the bit. */
static void a_made_config_gives_its_numbers_back(void **unused)
{
    tide_model_config of = model_of_family("llama", 1, 8, 2, 4, 11), back;
    of.norm_epsilon = 0.1 + 0.2;
    of.rope.theta = 500000.1;
    fake_files *disk = fake_files_new();
    size_t bytes;
    put_checkpoint(disk, &of);
    assert_ok(export_run(disk));
    const char *text = (const char *)fake_files_bytes(disk, "out/config.json", &bytes);
    assert_ok(tide_model_config_parse(text, bytes, "out", &back));
    assert_true(back.norm_epsilon == of.norm_epsilon && back.rope.theta == of.rope.theta);
    fake_files_free(disk);
}

static void a_sources_config_is_kept_but_for_its_dtype(void **unused)
{
    static const char *const cases[][2] = {
        {"{" SIZES ", \"torch_dtype\": \"float32\"}\n", "{" SIZES ", \"torch_dtype\": \"bfloat16\"}\n"},
        {"{\n  \"dtype\": \"float16\",\n  " SIZES "\n}", "{\n  \"dtype\": \"bfloat16\",\n  " SIZES "\n}"},
        {"{\"torch_dtype\":null,\"dtype\" : \"x\\\"}\" , " SIZES "}",
         "{\"torch_dtype\":\"bfloat16\",\"dtype\" : \"bfloat16\" , " SIZES "}"},
        {"{" SIZES ", \"dtype\": {\"a\": [\"]\", 1]}  }", "{" SIZES ", \"dtype\": \"bfloat16\"  }"},
        {"{\n\t" SIZES "\n}\n", "{\n\t" SIZES ",\n  \"torch_dtype\": \"bfloat16\"\n}\n"},
        {"{" SIZES "}", "{" SIZES ", \"torch_dtype\": \"bfloat16\"}"},
        {"{\"a\": [\"dtype\", {\"dtype\": \"float32\"}], \"b\\\\\": \"torch_dtype\",\r\n" SIZES
         ",\r\n\"c\": [0.30000000000000004, 1e-05, 1E+2, -0.0], \"torch_dtype\"\t:\t\"float32\"\r\n}\r\n",
         "{\"a\": [\"dtype\", {\"dtype\": \"float32\"}], \"b\\\\\": \"torch_dtype\",\r\n" SIZES
         ",\r\n\"c\": [0.30000000000000004, 1e-05, 1E+2, -0.0], \"torch_dtype\"\t:\t\"bfloat16\"\r\n}\r\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake_files *disk = disk_new(false);
        tide_export to = export_to(disk, "out", TIDE_WEIGHTS_BF16);
        put_source(disk, "hf", cases[i][0]);
        to.source = "hf";
        assert_ok(tide_export_checkpoint(&to, "run/step-3"));
        assert_text(disk, "out/config.json", cases[i][1]);
        fake_files_free(disk);
    }
}

static void a_source_that_cant_be_kept_is_refused(void **unused)
{
    static const struct {
        const char *config;
        tide_status status;
        const char *part;
    } cases[] = {
        {"{" SIZES ", \"d\\u0074ype\": \"float32\"}", TIDE_ERROR_UNSUPPORTED,
         "hf/config.json spells its dtype with escapes"},
        {"{" SIZES ", \"t\\u006frch_dtype\": \"bfloat16\"}", TIDE_ERROR_UNSUPPORTED,
         "hf/config.json spells its dtype with escapes"},
        {"{\"n_inner\": 16, " SIZES "}", TIDE_ERROR_UNSUPPORTED, "n_inner"},
        {"{" SIZES, TIDE_ERROR_CORRUPT, "hf/config.json"},
        {"{" SIZES_OF("2", "1e-05") "}", TIDE_ERROR_MISMATCH, "hf/config.json is of another model"},
        {"{" SIZES_OF("1", "1.0000000000000002e-05") "}", TIDE_ERROR_MISMATCH,
         "hf/config.json is of another model"},
        {NULL, TIDE_ERROR_IO, "hf/config.json can't be read"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake_files *disk = disk_new(false);
        const tide_files *files = fake_files_table(disk);
        tide_export to = export_to(disk, "out", TIDE_WEIGHTS_BF16);
        to.source = "hf";
        put_source(disk, "hf", cases[i].config != NULL ? cases[i].config : "");
        if (cases[i].config == NULL)
            assert_int_equal(files->remove_file(files->context, "hf/config.json"), 0);
        assert_int_equal(tide_export_checkpoint(&to, "run/step-3"), cases[i].status);
        assert_message_has(cases[i].part);
        assert_nothing_left(disk, 2);
        fake_files_free(disk);
    }
}

/* ---- sidecar files ---- */

static void assert_sidecars(fake_files *disk, const char *path, size_t others)
{
    char name[TIDE_CHECKPOINT_PATH_BYTES + 64];
    for (size_t i = 0; i < SIDECARS; i++) {
        snprintf(name, sizeof name, "%s/%s", path, sidecars[i][0]);
        assert_text(disk, name, sidecars[i][1]);
    }
    assert_int_equal(count_in(disk, path), SIDECARS + others);
}

static void the_tokenizers_files_are_sidecars_and_no_others(void **state)
{
    fake_files *disk = *state;
    assert_sidecars(disk, "run/tidepool-origin", 1);
    assert_text(disk, "run/tidepool-origin/config.json", "{" SIZES ", \"torch_dtype\": \"float32\"}\n");
    assert_ok(export_run(disk));
    assert_sidecars(disk, "out", 2);
    assert_text(disk, "out/config.json", "{" SIZES ", \"torch_dtype\": \"bfloat16\"}\n");
    assert_nothing_left(disk, 3);
}

static void a_given_source_counts_before_the_kept_one(void **state)
{
    fake_files *disk = *state;
    tide_export to = export_to(disk, "out", TIDE_WEIGHTS_F16);
    make_folder(disk, "mine");
    put(disk, "mine/config.json", "{\"dtype\": 1, " SIZES "}");
    to.source = "mine";
    assert_ok(tide_export_checkpoint(&to, "run/step-3"));
    assert_text(disk, "out/config.json", "{\"dtype\": \"float16\", " SIZES "}");
    assert_int_equal(count_in(disk, "out"), 2);
}

/* ---- values ---- */

static float rounded(tide_weights_dtype dtype, float value)
{
    if (dtype == TIDE_WEIGHTS_BF16)
        return tide_bf16_to_float(tide_bf16_from_float(value));
    return dtype == TIDE_WEIGHTS_F16 ? tide_fp16_to_float(tide_fp16_from_float(value)) : value;
}

static void assert_values(fake_files *disk, const char *path, tide_weights_dtype dtype)
{
    const tide_model_config of = model();
    tide_weight_list list;
    tide_weights *weights;
    assert_ok(tide_weight_list_make(&of, &list));
    const tide_weights_names all = tide_weight_list_names(&of, &list);
    assert_ok(tide_weights_open_on(fake_files_table(disk), path, &all, &weights));
    for (size_t tensor = 0; tensor < list.count; tensor++) {
        float values[512];
        const uint64_t count = list.described[tensor].elements;
        assert_true(count <= 512);
        assert_int_equal(tide_weights_tensor_dtype(weights, tensor), dtype);
        assert_ok(tide_weights_read(weights, tensor, 0, count, values));
        for (uint64_t i = 0; i < count; i++)
            assert_true(values[i] == rounded(dtype, expected_value(STEP, TIDE_VALUE_MASTER, tensor, i)));
    }
    tide_weights_close(weights);
    tide_weight_list_free(&list);
}

/* A checkpoint has the family's usual names and notes whether the source folder had the other form of
 * names. The export writes the folder's form. */
static void a_folders_names_come_out_again(void **unused)
{
    static const char *const cases[][4] = {
        {"gpt2", "\"transformer.wte.weight\"", "\"transformer.h.0.ln_1.bias\"", "\"h.0.ln_1.bias\""},
        {"llama", "\"embed_tokens.weight\"", "\"layers.0.mlp.up_proj.weight\"", "\"model.norm.weight\""}};
    for (size_t i = 0; i < 2; i++) {
        tide_model_config of = model_of_family(cases[i][0], 1, 8, 2, 4, 11);
        char header[4096];
        size_t bytes;
        fake_files *disk = fake_files_new();
        of.names_otherwise = true;
        put_checkpoint(disk, &of);
        assert_ok(export_run(disk));
        const unsigned char *file = fake_files_bytes(disk, "out/model.safetensors", &bytes);
        snprintf(header, sizeof header, "%.*s", (int)(bytes - 8), file + 8);
        assert_non_null(strstr(header, cases[i][1]));
        assert_non_null(strstr(header, cases[i][2]));
        assert_null(strstr(header, cases[i][3]));
        assert_true(i == 0 || of.tied || strstr(header, "\"lm_head.weight\"") != NULL);
        fake_files_free(disk);
    }
}

static void masters_are_rounded_once(void **state)
{
    fake_files *disk = *state;
    static const char *const outs[] = {"bf16", "f16", "f32"};
    for (tide_weights_dtype dtype = TIDE_WEIGHTS_BF16; dtype < TIDE_WEIGHTS_DTYPES; dtype++) {
        const tide_export to = export_to(disk, outs[dtype], dtype);
        assert_ok(tide_export_checkpoint(&to, "run/step-3"));
        assert_values(disk, outs[dtype], dtype);
    }
    assert_nothing_left(disk, 5);
}

static void shards_have_an_index(void **unused)
{
    fake_files *disk = disk_new(false);
    tide_export to = export_to(disk, "out", TIDE_WEIGHTS_F32);
    to.max_shard_bytes = 1200;
    assert_ok(tide_export_checkpoint(&to, "run/step-3"));
    assert_true(fake_files_exists(disk, "out/model.safetensors.index.json"));
    assert_false(fake_files_exists(disk, "out/model.safetensors"));
    assert_true(count_in(disk, "out") > 4);
    assert_values(disk, "out", TIDE_WEIGHTS_F32);
    fake_files_free(disk);
}

static tide_status huge(void *context, size_t tensor, uint64_t first, uint64_t count, float *values)
{
    const float most = *(const float *)context;
    for (uint64_t i = 0; i < count; i++)
        values[i] = tensor == 4 && first + i == 5 ? most : 1;
    return TIDE_OK;
}

static void values_beyond_fp16_are_refused_and_leave_nothing(void **state)
{
    const tide_model_config of = model();
    fake_files *disk = *state;
    tide_export to = export_to(disk, "out", TIDE_WEIGHTS_F16);
    to.model = &of;
    to.source = "hf";
    float most = 65520;
    assert_int_equal(tide_export_write(&to, huge, &most), TIDE_ERROR_ARGUMENT);
    assert_message_has("h.0.attn.c_attn.weight");
    assert_nothing_left(disk, 2);
    most = 65519;
    assert_ok(tide_export_write(&to, huge, &most));
}

typedef struct told {
    unsigned checksums, weights;
    uint64_t last;
} told;

static void tell(void *context, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    told *it = context;
    const bool of_weights = strcmp(what, "weights") == 0;
    assert_true(of_weights || strcmp(what, "checksum") == 0);
    assert_true(done_bytes <= total_bytes && total_bytes > 0);
    it->checksums += !of_weights;
    it->weights += of_weights;
    it->last = total_bytes - done_bytes;
}

static void progress_is_told_to_the_end(void **state)
{
    fake_files *disk = *state;
    told it = {.last = 1};
    tide_export to = export_to(disk, "out", TIDE_WEIGHTS_BF16);
    to.progress = tell;
    to.progress_context = &it;
    assert_ok(tide_export_checkpoint(&to, "run/step-3"));
    assert_true(it.checksums > 0 && it.weights > 0 && it.last == 0);
}

/* ---- refusals ---- */

static void a_name_that_is_taken_is_refused(void **state)
{
    fake_files *disk = *state;
    const tide_model_config of = model();
    make_folder(disk, "empty");
    put(disk, "file", "x");
    static const char *const outs[] = {"empty", "file", "run", "hf/"};
    for (size_t i = 0; i < sizeof outs / sizeof outs[0]; i++) {
        tide_export to = export_to(disk, outs[i], TIDE_WEIGHTS_BF16);
        assert_int_equal(tide_export_checkpoint(&to, "run/step-3"), TIDE_ERROR_ARGUMENT);
        assert_message_has("it is there already");
        to.model = &of;
        float most = 1;
        tide_export_place place;
        assert_int_equal(tide_export_begin(&to, &place), TIDE_ERROR_ARGUMENT);
        assert_string_equal(place.path, "");
        assert_int_equal(tide_export_write(&to, huge, &most), TIDE_ERROR_ARGUMENT);
    }
    assert_text(disk, "file", "x");
    assert_nothing_left(disk, 4);
}

/* Later runs remove these names, or the checkpoint folder in which they lie. */
static void names_that_runs_take_away_are_refused(void **unused)
{
    static const char *const refused[] = {"run/step-9", "run/step-3/x", "run/.tmp-3-7", "run/.tmp-x/",
                                          "run/tidepool-origin//"};
    static const char *const taken[] = {"run/model", "run/step-", "run/step-x", "step-9",
                                        "run/tidepool-sources"};
    enum { COUNT = sizeof refused / sizeof refused[0] };
    fake_files *disk = disk_new(false);
    for (size_t i = 0; i < COUNT; i++) {
        const tide_export to = export_to(disk, refused[i], TIDE_WEIGHTS_BF16);
        assert_int_equal(tide_export_checkpoint(&to, "run/step-3"), TIDE_ERROR_ARGUMENT);
        assert_message_has(i == 1 ? "it would go with the checkpoint" : "is a run's own");
    }
    assert_int_equal(count_in(disk, "run"), 1);
    for (size_t i = 0; i < COUNT; i++) {
        const tide_export to = export_to(disk, taken[i], TIDE_WEIGHTS_BF16);
        assert_ok(tide_export_checkpoint(&to, "run/step-3"));
    }
    fake_files_free(disk);
}

/* ---- the begin and the end of a run's export ---- */

static fake_files *reference(bool source)
{
    fake_files *disk = disk_new(source);
    assert_ok(export_run(disk));
    return disk;
}

/* A lock that could not be removed may stay alone, which does no harm. This removes it. */
static void remove_lone_lock(fake_files *disk)
{
    const tide_files *files = fake_files_table(disk);
    if (fake_files_exists(disk, "out.tmp-1000.lock") && !fake_files_exists(disk, "out.tmp-1000"))
        assert_int_equal(files->remove_file(files->context, "out.tmp-1000.lock"), 0);
}

/* Checks that only the run, its source folder, the temporary folder and its lock are there. */
static void assert_nothing_left_but(const fake_files *disk, const char *temporary)
{
    char lock[64];
    names list;
    snprintf(lock, sizeof lock, "%.50s.lock", temporary);
    assert_true(names_in(disk, "", &list));
    assert_int_equal(list.count, 4);
    assert_true(fake_files_exists(disk, temporary) && fake_files_exists(disk, lock));
}

/* A folder without a lock beside it may be a person's, so it stays. */
static void others_folders_of_like_names_stay(void **state)
{
    static const char *const others[] = {"out.tmp-1000", "out.tmp-1000-1", "out.tmp-7"};
    fake_files *disk = *state;
    for (size_t i = 0; i < 3; i++) {
        char inside[64];
        snprintf(inside, sizeof inside, "%s/precious", others[i]);
        make_folder(disk, others[i]);
        put(disk, inside, "x");
    }
    assert_ok(export_run(disk));
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(count_in(disk, others[i]), 1);
    assert_nothing_left(disk, 6);
}

/* However often a run is killed, only its last temporary folder is left, and the next begin removes that. */
static void what_dead_processes_left_goes_at_the_next_begin(void **unused)
{
    fake_files *disk = disk_new(true);
    tide_export_place place;
    for (unsigned kill = 0; kill < 6; kill++) {
        const tide_export to = export_of(disk);
        assert_ok(tide_export_begin(&to, &place));
        assert_nothing_left_but(disk, place.path);
        fake_files *after = fake_files_after_kill(disk);
        fake_files_free(disk);
        disk = after;
    }
    assert_true(fake_files_exists(disk, "out.tmp-1005/config.json"));
    assert_ok(export_run(disk));
    assert_nothing_left(disk, 3);
    fake_files_free(disk);
}

/* A kill before any operation of an export leaves only files that the next export removes. */
static void what_a_kill_at_any_instant_left_goes(void **unused)
{
    fake_files *before = disk_new(true), *truth = reference(true);
    const unsigned operations = fake_files_operations(truth) - fake_files_operations(before);
    for (unsigned kill = 0; kill < operations; kill++) {
        fake_files *disk = fake_files_clone(before);
        fake_files_stop(disk, kill);
        (void)export_run(disk);
        fake_files *after = fake_files_after_kill(disk);
        if (!fake_files_exists(after, "out"))
            assert_ok(export_run(after));
        /* The kill came after the folder got its name and before the lock was removed. */
        remove_lone_lock(after);
        assert_true(is_same(after, "out", truth, "out"));
        assert_nothing_left(after, 3);
        fake_files_free(after);
        fake_files_free(disk);
    }
    fake_files_free(before);
    fake_files_free(truth);
}

/* On a shared disk a process number means nothing. A lock that is held shows that its owner lives; a lock
 * that is free shows that it is gone, even if a living process has its number now. */
static void a_lock_tells_the_living_from_the_dead(void **state)
{
    fake_files *disk = *state;
    const tide_files *files = fake_files_table(disk);
    int held, dead, another;
    assert_int_equal(files->lock(files->context, "out.tmp-7.lock", true, &held), 0);
    assert_int_equal(files->lock(files->context, "out.tmp-5000.lock", true, &dead), 0);
    assert_int_equal(files->lock(files->context, "out.tmp-5001.lock", true, &another), 0);
    assert_int_equal(files->close(files->context, dead), 0);
    assert_int_equal(files->close(files->context, another), 0);
    assert_false(files->process_is_alive(files->context, 7));
    assert_true(files->process_is_alive(files->context, 5000));
    make_folder(disk, "out.tmp-7");
    make_folder(disk, "out.tmp-5000");
    make_folder(disk, "out.tmp-5001");
    put(disk, "out.tmp-5000/config.json", "{}");
    assert_ok(export_run(disk));
    assert_true(fake_files_exists(disk, "out.tmp-7") && fake_files_exists(disk, "out.tmp-7.lock"));
    assert_false(fake_files_exists(disk, "out.tmp-5000") || fake_files_exists(disk, "out.tmp-5000.lock"));
    assert_false(fake_files_exists(disk, "out.tmp-5001") || fake_files_exists(disk, "out.tmp-5001.lock"));
    assert_int_equal(files->close(files->context, held), 0);
}

static int no_locks(void *context, const char *path, bool create, int *handle)
{
    const tide_files *files = fake_files_table(context);
    return create ? files->create(context, path, handle) : ENOLCK;
}

/* On a file system without locks the process number decides. */
static void without_locks_the_number_decides(void **state)
{
    fake_files *disk = *state;
    const tide_files *files = fake_files_table(disk);
    tide_files lockless = *files;
    static const char *const names_of[] = {"out.tmp-7", "out.tmp-5000"};
    lockless.lock = no_locks;
    for (size_t i = 0; i < 2; i++) {
        char lock[32];
        snprintf(lock, sizeof lock, "%s.lock", names_of[i]);
        make_folder(disk, names_of[i]);
        put(disk, lock, "");
    }
    assert_false(files->process_is_alive(files->context, 7));
    assert_true(files->process_is_alive(files->context, 5000));
    tide_export to = export_to(disk, "out", TIDE_WEIGHTS_BF16);
    to.files = &lockless;
    assert_ok(tide_export_checkpoint(&to, "run/step-3"));
    assert_false(fake_files_exists(disk, "out.tmp-7") || fake_files_exists(disk, "out.tmp-7.lock"));
    assert_true(fake_files_exists(disk, "out.tmp-5000") && fake_files_exists(disk, "out.tmp-5000.lock"));
    assert_nothing_left(disk, 5);
}

static tide_status get_ones(void *context, size_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)context, (void)tensor, (void)first;
    for (uint64_t i = 0; i < count; i++)
        values[i] = 1;
    return TIDE_OK;
}

/* The sidecar files are copied before training, since the source folder may be gone at its end. */
static void sidecar_files_are_there_before_the_run(void **state)
{
    fake_files *disk = *state, *truth = disk_new(true);
    const tide_export to = export_of(disk), whole = export_of(truth);
    tide_export_place place;
    assert_ok(tide_export_write(&whole, get_ones, NULL));
    assert_ok(tide_export_begin(&to, &place));
    assert_string_equal(place.path, "out.tmp-1000");
    assert_sidecars(disk, place.path, 1);
    assert_int_equal(to.files->rename(to.files->context, "hf", "elsewhere"), 0);
    assert_ok(tide_export_finish(&to, &place, get_ones, NULL));
    assert_string_equal(place.path, "");
    assert_true(is_same(disk, "out", truth, "out"));
    fake_files_free(truth);
}

/* ---- a restart of a run that is done ---- */

static tide_status get_twos(void *context, size_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)context;
    for (uint64_t i = 0; i < count; i++)
        values[i] = tensor == 3 && first + i == 1 ? 1.0078125F : 1;
    return TIDE_OK;
}

static void remove_file(fake_files *disk, const char *path)
{
    const tide_files *files = fake_files_table(disk);
    assert_int_equal(files->remove_file(files->context, path), 0);
}

/* Appends a zero byte to the file. */
static void put_longer(fake_files *disk, const char *path)
{
    size_t bytes = 0;
    const unsigned char *content = fake_files_bytes(disk, path, &bytes);
    const tide_files *files = fake_files_table(disk);
    char *longer = calloc(1, bytes + 1);
    memcpy(longer, content, bytes);
    remove_file(disk, path);
    assert_int_equal(tide_files_write_whole(files, path, longer, bytes + 1), 0);
    free(longer);
}

/* Exports with `out` permitted to exist already. */
static tide_status export_again(const fake_files *disk, tide_export *to, tide_weights_get get)
{
    tide_export_place place;
    to->files = fake_files_table(disk);
    to->may_be_there = true;
    const tide_status status = tide_export_begin(to, &place);
    return status == TIDE_OK ? tide_export_finish(to, &place, get, NULL) : status;
}

static void a_folder_that_is_the_same_is_taken_as_done(void **unused)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        fake_files *disk = disk_new(true);
        tide_export to = export_of(disk);
        to.max_shard_bytes = sharded ? 1200 : 0;
        assert_ok(tide_export_write(&to, get_ones, NULL));
        put(disk, "out/README.md", "mine"); /* files that an export does not write don't matter */
        fake_files *truth = fake_files_clone(disk);
        assert_ok(export_again(disk, &to, get_ones));
        assert_true(is_same(disk, "out", truth, "out"));
        assert_nothing_left(disk, 3);
        to.may_be_there = false;
        assert_int_equal(tide_export_write(&to, get_ones, NULL), TIDE_ERROR_ARGUMENT);
        fake_files_free(truth);
        fake_files_free(disk);
    }
}

/* The folder differs by one value of a tensor, by any byte of a file, or by a missing or short file. It is
 * refused and stays unchanged. */
static void a_folder_that_differs_is_refused_and_stays(void **unused)
{
    static const char *const files_of[] = {"out/config.json", "out/tokenizer.json", "out/model.safetensors"};
    fake_files *before = disk_new(true);
    tide_export to = export_of(before);
    assert_ok(tide_export_write(&to, get_ones, NULL));
    fake_files *disk = fake_files_clone(before);
    assert_int_equal(export_again(disk, &to, get_twos), TIDE_ERROR_ARGUMENT);
    assert_message_has(
        "export out: it is there already, and this run would not write out/model.safetensors so");
    assert_true(is_same(disk, "out", before, "out"));
    fake_files_free(disk);
    for (size_t i = 0; i < 3; i++) {
        size_t bytes = 0;
        fake_files_bytes(before, files_of[i], &bytes);
        for (size_t at = 0; at < bytes + 2; at += 1 + (at < bytes ? bytes / 40 : 0)) {
            disk = fake_files_clone(before);
            if (at < bytes)
                fake_files_bytes(disk, files_of[i], &bytes)[at] ^= 1;
            else if (at == bytes)
                fake_files_truncate(disk, files_of[i], bytes - 1);
            else
                remove_file(disk, files_of[i]);
            fake_files *damaged = fake_files_clone(disk);
            assert_int_equal(export_again(disk, &to, get_ones), TIDE_ERROR_ARGUMENT);
            assert_message_has("it is there already");
            assert_true(is_same(disk, "out", damaged, "out"));
            assert_nothing_left(disk, 3);
            fake_files_free(damaged);
            fake_files_free(disk);
        }
    }
    disk = fake_files_clone(before);
    put_longer(disk, "out/model.safetensors");
    assert_int_equal(export_again(disk, &to, get_ones), TIDE_ERROR_ARGUMENT);
    fake_files_free(disk);
    fake_files_free(before);
}

/* A comparison that fails must not count as equal; nothing changes. */
static void every_fault_of_a_comparison_fails_and_changes_nothing(void **unused)
{
    fake_files *before = disk_new(true);
    tide_export to = export_of(before);
    unsigned failed = 0;
    bool met = true;
    assert_ok(tide_export_write(&to, get_ones, NULL));
    for (unsigned operation = 0; met; operation++) {
        fake_files *disk = fake_files_clone(before);
        fake_files_fault(disk, FAKE_FAULT_EIO, operation);
        const tide_status status = export_again(disk, &to, get_ones);
        met = fake_files_fault_met(disk);
        fake_files_clear_fault(disk);
        failed += status != TIDE_OK;
        assert_true(status == TIDE_OK || status == TIDE_ERROR_IO);
        assert_true(is_same(disk, "out", before, "out"));
        assert_nothing_left(disk, 3);
        fake_files_free(disk);
    }
    assert_true(failed > 20);
    fake_files_free(before);
}

/* While the run trains, somebody may remove the source folder, the temporary folder, or both. Without a
 * source folder config.json is made from the model. */
static void what_went_meanwhile_is_made_again(void **unused)
{
    for (int gone = 0; gone < 4; gone++) {
        fake_files *disk = disk_new(true), *truth = disk_new(true);
        const tide_export to = export_of(disk);
        tide_export whole = export_of(truth);
        tide_export_place place;
        if (gone & 1)
            whole.source = NULL;
        assert_ok(tide_export_write(&whole, get_ones, NULL));
        assert_ok(tide_export_begin(&to, &place));
        if (gone & 1)
            assert_int_equal(to.files->rename(to.files->context, "hf", "elsewhere"), 0);
        if (gone & 2)
            assert_int_equal(tide_files_remove_folder(to.files, place.path), 0);
        else
            assert_int_equal(to.files->remove_file(to.files->context, "out.tmp-1000/config.json"), 0);
        assert_ok(tide_export_finish(&to, &place, get_ones, NULL));
        assert_true(is_same(disk, "out", truth, "out"));
        assert_nothing_left(disk, 3);
        fake_files_free(disk);
        fake_files_free(truth);
    }
}

static int size_of_all(void *context, int handle, uint64_t *bytes)
{
    (void)context, (void)handle;
    *bytes = UINT64_C(65) << 20;
    return 0;
}

static void unreadable_sidecar_files_are_refused_before_the_run(void **state)
{
    fake_files *disk = *state;
    tide_files huge_files = *fake_files_table(disk);
    huge_files.size = size_of_all;
    tide_export to = export_of(disk);
    tide_export_place place;
    to.files = &huge_files;
    assert_int_equal(tide_export_begin(&to, &place), TIDE_ERROR_IO);
    assert_message_has("has more than");
    to.files = fake_files_table(disk);
    to.source = "none";
    assert_int_equal(tide_export_begin(&to, &place), TIDE_ERROR_IO);
    assert_message_has("none/config.json");
    assert_string_equal(place.path, "");
    assert_nothing_left(disk, 2);
}

static void an_export_given_up_leaves_nothing(void **state)
{
    fake_files *disk = *state;
    const tide_export to = export_of(disk);
    tide_export_place place;
    assert_ok(tide_export_begin(&to, &place));
    tide_export_abandon(to.files, &place);
    assert_string_equal(place.path, "");
    tide_export_abandon(to.files, &place);
    assert_nothing_left(disk, 2);
}

static void a_name_taken_meanwhile_costs_no_weights(void **state)
{
    fake_files *disk = *state, *truth = disk_new(true);
    const tide_export to = export_of(disk), whole = export_of(truth);
    tide_export_place place;
    assert_ok(tide_export_write(&whole, get_ones, NULL));
    assert_ok(tide_export_begin(&to, &place));
    make_folder(disk, "out");
    assert_int_equal(tide_export_finish(&to, &place, get_ones, NULL), TIDE_ERROR_STATE);
    assert_message_has("the model is whole in out.tmp-1000: export out: it is there already");
    assert_true(is_same(disk, "out.tmp-1000", truth, "out"));
    assert_int_equal(count_in(disk, "out"), 0);
    fake_files_free(truth);
}

static int no_free_space(void *context, const char *path, uint64_t *bytes)
{
    (void)context;
    assert_string_equal(path, ".");
    *bytes = 100;
    return 0;
}

static void places_that_cant_take_it_are_refused(void **state)
{
    fake_files *disk = *state;
    tide_files small = *fake_files_table(disk);
    tide_export to = export_to(disk, "nowhere/out", TIDE_WEIGHTS_BF16);
    assert_int_equal(tide_export_checkpoint(&to, "run/step-3"), TIDE_ERROR_IO);
    assert_message_has("nowhere");
    put(disk, "file", "x");
    to.out = "file/out";
    assert_int_equal(tide_export_checkpoint(&to, "run/step-3"), TIDE_ERROR_IO);
    assert_message_has("file/out");
    char *path = calloc(1, TIDE_CHECKPOINT_PATH_BYTES + 8);
    memset(path, 'x', TIDE_CHECKPOINT_PATH_BYTES);
    to.out = path;
    assert_int_equal(tide_export_checkpoint(&to, "run/step-3"), TIDE_ERROR_ARGUMENT);
    assert_message_has("too long");
    free(path);
    small.free_space = no_free_space;
    to.out = "out";
    to.files = &small;
    assert_int_equal(tide_export_checkpoint(&to, "run/step-3"), TIDE_ERROR_IO);
    assert_message_has("100 are free there");
    assert_nothing_left(disk, 3);
}

static void a_damaged_checkpoint_is_refused(void **unused)
{
    static const char *const files[] = {"run/step-3/model.safetensors", "run/step-3/manifest.json"};
    fake_files *sound = disk_new(true);
    for (size_t i = 0; i < 2; i++) {
        size_t bytes;
        fake_files_bytes(sound, files[i], &bytes);
        for (size_t at = 0; at < bytes; at += 1 + bytes / 24) {
            fake_files *disk = fake_files_clone(sound);
            size_t same;
            fake_files_bytes(disk, files[i], &same)[at] ^= 2;
            const tide_status status = export_run(disk);
            if (status != TIDE_ERROR_CORRUPT && status != TIDE_ERROR_UNSUPPORTED)
                fail_msg("%s, byte %zu: %s: %s", files[i], at, tide_status_name(status), tide_message());
            assert_message_has(strrchr(files[i], '/'));
            assert_nothing_left(disk, 2);
            fake_files_truncate(disk, files[i], at);
            assert_int_not_equal(export_run(disk), TIDE_OK);
            assert_nothing_left(disk, 2);
            fake_files_free(disk);
        }
    }
    assert_int_equal(export_run(sound), TIDE_OK);
    const tide_export to = export_to(sound, "other", TIDE_WEIGHTS_BF16);
    assert_int_equal(tide_export_checkpoint(&to, "run/step-4"), TIDE_ERROR_CORRUPT);
    fake_files_free(sound);
}

/* An export does not read the moments' values, but it checks that their files have the right sizes. */
static void depths_see_as_far_as_they_say(void **unused)
{
    static const char *const names_of[] = {"run/step-3/model.safetensors", "run/step-3/momentum.safetensors"};
    for (size_t i = 0; i < 2; i++)
        for (tide_checkpoint_depth depth = TIDE_CHECKPOINT_SIZES; depth <= TIDE_CHECKPOINT_BYTES; depth++) {
            fake_files *disk = disk_new(false);
            size_t bytes;
            tide_checkpoint_check check;
            unsigned char *damaged = fake_files_bytes(disk, names_of[i], &bytes);
            damaged[bytes / 2] ^= 1;
            assert_ok(
                tide_checkpoint_check_run(fake_files_table(disk), "run/step-3", depth, NULL, NULL, &check));
            assert_int_equal(check.sound, depth < (i == 0 ? TIDE_CHECKPOINT_PARAMS : TIDE_CHECKPOINT_BYTES));
            fake_files_free(disk);
        }
    fake_files *disk = disk_new(false);
    fake_files_truncate(disk, names_of[1], 100);
    assert_int_equal(export_run(disk), TIDE_ERROR_CORRUPT);
    fake_files_free(disk);
}

/* ---- faults ---- */

/* A failed export leaves nothing. Only if its weights were complete it keeps the folder, and the message
 * names it. */
static void assert_nothing_lost(fake_files *disk, fake_files *truth)
{
    const char *whole = strstr(tide_message(), "the model is whole in ");
    if (whole == NULL) {
        assert_nothing_left(disk, 2);
        return;
    }
    char name[64];
    whole += strlen("the model is whole in ");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(whole, ":"), whole);
    assert_nothing_left(disk, 3);
    assert_true(is_same(disk, name, truth, "out"));
    assert_int_equal(tide_files_remove_folder(fake_files_table(disk), name), 0);
}

static void every_fault_of_an_operation_leaves_all_or_nothing(void **unused)
{
    fake_files *truth = reference(true), *before = disk_new(true);
    static const fake_fault faults[] = {FAKE_FAULT_EIO, FAKE_FAULT_NO_SPACE, FAKE_FAULT_SHORT_WRITE};
    for (size_t kind = 0; kind < 3; kind++) {
        unsigned failed = 0;
        bool met = true;
        for (unsigned operation = 0; met; operation += faults[kind] == FAKE_FAULT_SHORT_WRITE ? 37 : 1) {
            fake_files *disk = fake_files_clone(before);
            fake_files_fault(disk, faults[kind], operation);
            const tide_status status = export_run(disk);
            met = fake_files_fault_met(disk);
            fake_files_clear_fault(disk);
            failed += status != TIDE_OK;
            assert_true(met || status == TIDE_OK);
            remove_lone_lock(disk);
            if (status == TIDE_OK && !is_same(disk, "out", truth, "out"))
                fail_msg("operation %u: success without the folder", operation);
            if (status == TIDE_OK)
                assert_nothing_left(disk, 3);
            else
                assert_nothing_lost(disk, truth);
            if (status != TIDE_OK)
                assert_ok(export_run(disk));
            assert_true(is_same(disk, "out", truth, "out"));
            fake_files_free(disk);
        }
        assert_true(faults[kind] == FAKE_FAULT_SHORT_WRITE ? failed == 0 : failed > 30);
    }
    fake_files_free(before);
    fake_files_free(truth);
}

static void every_lack_of_memory_leaves_nothing(void **unused)
{
    fake_files *truth = reference(true), *before = disk_new(true);
    unsigned failed = 0;
    bool met = true;
    for (unsigned request = 0; met; request++) {
        fake_files *disk = fake_files_clone(before);
        fake_memory_fail(request);
        const tide_status status = export_run(disk);
        met = fake_memory_failed();
        const bool in_parser = fake_memory_failed_in_jansson();
        fake_memory_clear();
        failed += status != TIDE_OK;
        if (met && status != TIDE_ERROR_NO_MEMORY && !in_parser)
            fail_msg("request %u: %s: %s", request, tide_status_name(status), tide_message());
        assert_true(met || status == TIDE_OK);
        assert_nothing_left(disk, status == TIDE_OK ? 3 : 2);
        if (status != TIDE_OK)
            assert_ok(export_run(disk));
        assert_true(is_same(disk, "out", truth, "out"));
        fake_files_free(disk);
    }
    assert_true(failed > 100);
    fake_files_free(before);
    fake_files_free(truth);
}

/* ---- power cuts ---- */

/* A sequence of operations on a disk, and the check of the disk after a power cut during it. */
typedef struct scenario {
    fake_files *before;
    tide_status (*act)(const fake_files *disk);
    bool (*is_right)(fake_files *after, bool returned);
} scenario;

static fake_files *act_until(const scenario *of, unsigned cut, unsigned ignored_sync, bool *returned)
{
    fake_files *disk = fake_files_clone(of->before);
    fake_files_stop(disk, cut);
    fake_files_ignore_sync(disk, ignored_sync);
    *returned = of->act(disk) == TIDE_OK;
    return disk;
}

static unsigned broken_at(const scenario *of, unsigned cut, unsigned ignored_sync, unsigned seeds)
{
    unsigned broken = 0;
    bool returned;
    fake_files *disk = act_until(of, cut, ignored_sync, &returned);
    for (unsigned seed = 0; seed < seeds; seed++) {
        fake_files *after = fake_files_after_power_cut(disk, seed);
        broken += !of->is_right(after, returned);
        fake_files_free(after);
    }
    fake_files_free(disk);
    return broken;
}

static void assert_no_cut_breaks(const scenario *of, unsigned *operations, unsigned *syncs)
{
    bool returned;
    fake_files *disk = act_until(of, NEVER, NEVER, &returned);
    assert_true(returned);
    *operations = fake_files_operations(disk);
    *syncs = fake_files_syncs(disk);
    fake_files_free(disk);
    for (unsigned cut = 0; cut <= *operations; cut++)
        if (broken_at(of, cut, NEVER, SEEDS / test_thin(3)) > 0)
            fail_msg("the cut before operation %u of %u breaks the promise", cut, *operations);
}

/* Counts the syncs that are needed: if the disk ignores them, some power cut breaks the promise. */
static unsigned syncs_needed(const scenario *of, unsigned operations, unsigned syncs)
{
    unsigned needed = 0;
    for (unsigned ignored = 0; ignored < syncs; ignored++) {
        unsigned broken = 0;
        for (unsigned cut = 0; cut <= operations && broken == 0; cut++)
            broken = broken_at(of, operations - cut, ignored, PROOF_SEEDS);
        needed += broken > 0;
    }
    return needed;
}

static fake_files *cut_truth;

static bool out_is_whole_or_absent(fake_files *after, bool returned)
{
    return fake_files_exists(after, "out") ? is_same(after, "out", cut_truth, "out") : !returned;
}

static void a_power_cut_leaves_the_folder_whole_or_absent(void **unused)
{
    cut_truth = reference(true);
    const scenario of = {.before = disk_new(true), .act = export_run, .is_right = out_is_whole_or_absent};
    unsigned operations, syncs;
    assert_no_cut_breaks(&of, &operations, &syncs);
    /* One sync for each file, two for the folder (by the writer of the weights and at the end), one for its
     * parent. */
    assert_int_equal(syncs, SIDECARS + 2 + 3);
    assert_int_equal(syncs_needed(&of, operations, syncs), syncs - 2);
    fake_files_free(of.before);
    fake_files_free(cut_truth);
}

/* The last operations give the folder its name. If one fails, the export undoes them, and a power cut
 * during that must do no harm. */
static void a_fault_at_the_end_and_then_a_cut_leave_it_whole_or_absent(void **unused)
{
    cut_truth = reference(true);
    fake_files *before = disk_new(true);
    const unsigned operations = fake_files_operations(cut_truth) - fake_files_operations(before);
    /* Each of the three operations before the last three fails in turn. The last three are the lock's removal
     * and close, and the checkpoint's close. */
    for (unsigned fault = operations - 6; fault < operations - 3; fault++)
        for (unsigned cut = fault + 1; cut < operations + 20; cut++) {
            fake_files *disk = fake_files_clone(before);
            fake_files_fault(disk, FAKE_FAULT_EIO, fault);
            fake_files_stop(disk, cut);
            assert_int_not_equal(export_run(disk), TIDE_OK);
            for (unsigned seed = 0; seed < PROOF_SEEDS; seed++) {
                fake_files *after = fake_files_after_power_cut(disk, seed);
                if (!out_is_whole_or_absent(after, false))
                    fail_msg("operation %u of %u fails, then a cut before %u", fault, operations, cut);
                fake_files_free(after);
            }
            fake_files_free(disk);
        }
    fake_files_free(before);
    fake_files_free(cut_truth);
}

/* ---- the source folder kept beside the checkpoints ---- */

static tide_status keep_new(const fake_files *disk)
{
    return tide_export_keep_source(fake_files_table(disk), "run", "new");
}

static tide_status keep_none(const fake_files *disk)
{
    return tide_export_keep_source(fake_files_table(disk), "run", NULL);
}

/* Makes a disk on which run/tidepool-origin was copied from hf/; new/ is another source folder. */
static fake_files *disk_to_replace(void)
{
    fake_files *disk = disk_new(true);
    make_folder(disk, "new");
    put(disk, "new/config.json", "{\"new\": 1}");
    put(disk, "new/tokenizer.json", "{\"new\": 2}");
    put(disk, "new/README.md", "new");
    sync_folder(disk, "new");
    sync_folder(disk, "");
    return disk;
}

static bool is_kept_old(fake_files *disk)
{
    return is_same(disk, "run/tidepool-origin", cut_truth, "run/tidepool-origin");
}

static bool is_kept_new(fake_files *disk)
{
    size_t bytes;
    return count_in(disk, "run/tidepool-origin") == 2 &&
           fake_files_bytes(disk, "run/tidepool-origin/config.json", &bytes) != NULL && bytes == 10 &&
           fake_files_bytes(disk, "run/tidepool-origin/tokenizer.json", &bytes) != NULL && bytes == 10 &&
           memcmp(fake_files_bytes(disk, "run/tidepool-origin/tokenizer.json", &bytes), "{\"new\": 2}", 10) ==
               0;
}

static bool none_is_kept(fake_files *disk)
{
    return !fake_files_exists(disk, "run/tidepool-origin");
}

static void another_run_replaces_what_is_kept_and_one_without_a_folder_takes_it_away(void **unused)
{
    char source[TIDE_CHECKPOINT_PATH_BYTES];
    bool kept = false;
    fake_files *disk = disk_to_replace();
    assert_ok(keep_new(disk));
    assert_true(is_kept_new(disk));
    assert_int_equal(count_in(disk, "run"), 2);
    assert_ok(tide_export_source_kept(fake_files_table(disk), "run", source, &kept));
    assert_true(kept);
    assert_string_equal(source, "run/tidepool-origin");
    for (int i = 0; i < 2; i++) {
        assert_ok(keep_none(disk));
        assert_int_equal(count_in(disk, "run"), 1);
    }
    assert_ok(tide_export_source_kept(fake_files_table(disk), "run", source, &kept));
    assert_false(kept);
    assert_ok(keep_new(disk));
    assert_true(is_kept_new(disk));
    fake_files_free(disk);
}

/* A folder of that name that somebody else has made or changed stays, whatever the run wants. */
static void what_no_run_has_kept_is_not_replaced(void **unused)
{
    fake_files *disk = disk_to_replace();
    put(disk, "run/tidepool-origin/model.safetensors", "weights");
    tide_status (*const keeps[])(const fake_files *) = {keep_new, keep_none};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(keeps[i](disk), TIDE_ERROR_STATE);
        assert_string_equal(
            tide_message(),
            "run/tidepool-origin holds model.safetensors, which no run has kept there: move it away");
        assert_text(disk, "run/tidepool-origin/model.safetensors", "weights");
        assert_text(disk, "run/tidepool-origin/tokenizer.json", sidecars[0][1]);
        assert_int_equal(count_in(disk, "run"), 2);
    }
    fake_files_free(disk);
}

static void every_fault_leaves_the_old_one_the_new_one_or_none(void **unused)
{
    fake_files *before = disk_to_replace();
    cut_truth = before;
    for (int none = 0; none < 2; none++) {
        tide_status (*keep)(const fake_files *) = none ? keep_none : keep_new;
        unsigned failed[2] = {0};
        for (int memory = 0; memory < 2; memory++) {
            bool met = true;
            for (unsigned at = 0; met; at++) {
                fake_files *disk = fake_files_clone(before);
                if (memory)
                    fake_memory_fail(at);
                else
                    fake_files_fault(disk, at % 2 ? FAKE_FAULT_EIO : FAKE_FAULT_NO_SPACE, at / 2);
                const tide_status status = keep(disk);
                met = memory ? fake_memory_failed() : fake_files_fault_met(disk);
                fake_memory_clear();
                fake_files_clear_fault(disk);
                failed[memory] += status != TIDE_OK;
                const bool is_new = none ? none_is_kept(disk) : is_kept_new(disk);
                if (!is_new && (status == TIDE_OK || (!is_kept_old(disk) && !none_is_kept(disk))))
                    fail_msg("%s %d: %s, and something else is kept", memory ? "request" : "operation", at,
                             tide_status_name(status));
                assert_int_equal(fake_files_open_count(disk), 0);
                assert_ok(keep(disk));
                assert_true(none ? none_is_kept(disk) : is_kept_new(disk));
                assert_int_equal(count_in(disk, "run"), none ? 1 : 2);
                fake_files_free(disk);
            }
        }
        assert_true(failed[0] > 5 && failed[1] > 0);
    }
    fake_files_free(before);
}

static bool kept_is_whole(fake_files *after, bool returned)
{
    return is_kept_new(after) || (!returned && (is_kept_old(after) || none_is_kept(after)));
}

static bool kept_is_whole_or_gone(fake_files *after, bool returned)
{
    return none_is_kept(after) || (!returned && is_kept_old(after));
}

static void a_power_cut_keeps_the_old_one_the_new_one_or_none(void **unused)
{
    unsigned operations, syncs;
    scenario of = {.before = disk_to_replace(), .act = keep_new, .is_right = kept_is_whole};
    cut_truth = of.before;
    assert_no_cut_breaks(&of, &operations, &syncs);
    of.act = keep_none;
    of.is_right = kept_is_whole_or_gone;
    assert_no_cut_breaks(&of, &operations, &syncs);
    fake_files_free(of.before);
}

/* A save after a kill removes the leftovers, and a power cut during it does no harm. */
static void a_kill_and_then_a_cut_keep_a_whole_one(void **unused)
{
    fake_files *disk = disk_to_replace();
    scenario first = {.before = disk, .act = keep_new, .is_right = kept_is_whole};
    unsigned operations, syncs;
    cut_truth = disk;
    assert_no_cut_breaks(&first, &operations, &syncs);
    for (unsigned kill = 0; kill <= operations; kill++) {
        bool returned;
        fake_files *killed = act_until(&first, kill, NEVER, &returned);
        const scenario second = {
            .before = fake_files_after_kill(killed), .act = keep_new, .is_right = kept_is_whole};
        fake_files *again = act_until(&second, NEVER, NEVER, &returned);
        assert_true(returned && is_kept_new(again));
        assert_int_equal(count_in(again, "run"), 2);
        for (unsigned cut = 0; cut <= fake_files_operations(again); cut++)
            if (broken_at(&second, cut, NEVER, 4) > 0)
                fail_msg("a kill before operation %u, then a cut before %u", kill, cut);
        fake_files_free(again);
        fake_files_free(second.before);
        fake_files_free(killed);
    }
    fake_files_free(disk);
}

/* ---- reading and writing small files ---- */

static void files_are_read_and_written_whole(void **unused)
{
    fake_files *disk = fake_files_new();
    const tide_files *files = fake_files_table(disk);
    char *text = NULL;
    size_t bytes = 0;
    fake_files_fault(disk, FAKE_FAULT_SHORT_WRITE, 0);
    put(disk, "f", "twelve bytes");
    assert_int_equal(tide_files_read_whole(files, "f", 11, &text, &bytes), EFBIG);
    assert_int_equal(tide_files_read_whole(files, "none", 11, &text, &bytes), ENOENT);
    assert_null(text);
    assert_int_equal(tide_files_read_whole(files, "f", 12, &text, &bytes), 0);
    assert_int_equal(bytes, 12);
    assert_string_equal(text, "twelve bytes");
    free(text);
    assert_int_equal(tide_files_write_whole(files, "f", "x", 1), EEXIST);
    assert_text(disk, "f", "twelve bytes");
    make_folder(disk, "d");
    make_folder(disk, "d/inner");
    put(disk, "d/file", "");
    assert_int_not_equal(tide_files_remove_folder(files, "d"), 0);
    assert_true(fake_files_exists(disk, "d/inner"));
    assert_int_equal(tide_files_remove_folder(files, "d/inner"), 0);
    assert_int_equal(tide_files_remove_folder(files, "d"), 0);
    assert_int_equal(tide_files_remove_folder(files, "d"), ENOENT);
    assert_nothing_left(disk, 1);
    fake_files_free(disk);
}

/* A file that could not be written completely is removed. */
static void a_file_that_fails_is_taken_back(void **unused)
{
    bool met = true;
    for (unsigned at = 0; met; at++) {
        fake_files *disk = fake_files_new();
        fake_files_fault(disk, at % 2 ? FAKE_FAULT_EIO : FAKE_FAULT_NO_SPACE, at / 2);
        const int error = tide_files_write_whole(fake_files_table(disk), "f", "text", 4);
        met = fake_files_fault_met(disk);
        assert_int_equal(fake_files_exists(disk, "f"), error == 0);
        assert_int_equal(fake_files_open_count(disk), 0);
        fake_files_free(disk);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_config_is_made_where_there_was_none),
        cmocka_unit_test(a_made_config_gives_its_numbers_back),
        cmocka_unit_test(a_sources_config_is_kept_but_for_its_dtype),
        cmocka_unit_test(a_source_that_cant_be_kept_is_refused),
        on_disk(the_tokenizers_files_are_sidecars_and_no_others),
        on_disk(a_given_source_counts_before_the_kept_one),
        cmocka_unit_test(a_folders_names_come_out_again),
        on_disk(masters_are_rounded_once),
        cmocka_unit_test(shards_have_an_index),
        on_disk(values_beyond_fp16_are_refused_and_leave_nothing),
        on_disk(progress_is_told_to_the_end),
        on_disk(a_name_that_is_taken_is_refused),
        on_disk(places_that_cant_take_it_are_refused),
        cmocka_unit_test(a_damaged_checkpoint_is_refused),
        cmocka_unit_test(depths_see_as_far_as_they_say),
        cmocka_unit_test(every_fault_of_an_operation_leaves_all_or_nothing),
        cmocka_unit_test(every_lack_of_memory_leaves_nothing),
        cmocka_unit_test(a_power_cut_leaves_the_folder_whole_or_absent),
        on_disk(others_folders_of_like_names_stay),
        cmocka_unit_test(what_dead_processes_left_goes_at_the_next_begin),
        cmocka_unit_test(what_a_kill_at_any_instant_left_goes),
        on_disk(a_lock_tells_the_living_from_the_dead),
        on_disk(without_locks_the_number_decides),
        cmocka_unit_test(a_folder_that_is_the_same_is_taken_as_done),
        cmocka_unit_test(a_folder_that_differs_is_refused_and_stays),
        cmocka_unit_test(every_fault_of_a_comparison_fails_and_changes_nothing),
        on_disk(sidecar_files_are_there_before_the_run),
        cmocka_unit_test(what_went_meanwhile_is_made_again),
        on_disk(unreadable_sidecar_files_are_refused_before_the_run),
        on_disk(an_export_given_up_leaves_nothing),
        on_disk(a_name_taken_meanwhile_costs_no_weights),
        cmocka_unit_test(names_that_runs_take_away_are_refused),
        cmocka_unit_test(a_fault_at_the_end_and_then_a_cut_leave_it_whole_or_absent),
        cmocka_unit_test(another_run_replaces_what_is_kept_and_one_without_a_folder_takes_it_away),
        cmocka_unit_test(what_no_run_has_kept_is_not_replaced),
        cmocka_unit_test(every_fault_leaves_the_old_one_the_new_one_or_none),
        cmocka_unit_test(a_power_cut_keeps_the_old_one_the_new_one_or_none),
        cmocka_unit_test(a_kill_and_then_a_cut_keep_a_whole_one),
        cmocka_unit_test(files_are_read_and_written_whole),
        cmocka_unit_test(a_file_that_fails_is_taken_back),
    };
    fake_memory_take_jansson();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
