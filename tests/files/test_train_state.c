/* The training state of every family, written as JSON and read back; the differences for which another
 * model is refused; and GPT-2's state as the first checkpoints have it. */
#include "src/checkpoint/manifest.h"
#include "src/checkpoint/train_state_json.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"
#include "tests/support/same_config.h"
#include "tests/support/small_model.h"

#include <jansson.h>
#include <stdio.h>

static const char *const families[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3"};
static const tide_rope ropes[TIDE_ROPE_KINDS + 1] = {
    {.theta = 12345.678901234567},
    {.theta = 1e4, .kind = TIDE_ROPE_LINEAR, .factor = 2.1},
    {.theta = 5e5,
     .kind = TIDE_ROPE_LLAMA3,
     .factor = 8,
     .low_factor = 0.9,
     .high_factor = 4.3,
     .original_context = 8192},
    {.theta = 1e6,
     .kind = TIDE_ROPE_YARN,
     .factor = 3,
     .original_context = 32768,
     .attention_factor = 0.1 + 1,
     .beta_fast = 32.1,
     .beta_slow = 1.1},
    YARN(.theta = 1e6, .factor = 3, .original_context = 32768, .attention_factor = 0.7, .exact = true),
};

enum { FAMILIES = sizeof families / sizeof families[0], ROPES = sizeof ropes / sizeof ropes[0] };

static tide_train_state state_of(const char *family, const tide_rope *rope)
{
    tide_train_state state = {.step = 9,
                              .tokens = 36864,
                              .adam_step = 8,
                              .skipped = 1,
                              .model = model_of_family(family, 3, 64, 8, 128, 1001),
                              .seed = 0xFFFFFFFFFFFFFFF1u,
                              .data_fingerprint = 0x8123456789abcdefu,
                              .seq_len = 64,
                              .global_batch_tokens = 4096,
                              .micro_batch_sequences = 4,
                              .dtype = TIDE_DTYPE_BF16,
                              .hyper.schedule.steps = 1000,
                              .hyper.schedule.warmup_steps = 20,
                              .hyper.schedule.lr = 0.1 + 0.2,
                              .hyper.schedule.lr_min = 1e-310,
                              .hyper.weight_decay = 0.1,
                              .hyper.clip = 1.0,
                              .hyper.beta1 = 0.9,
                              .hyper.beta2 = 0.95,
                              .hyper.epsilon = 1e-8,
                              .sum_groups = 1};
    state.model.norm_epsilon = 1e-5 + 1e-12;
    if (strcmp(family, "gpt2") != 0) {
        state.model.rope = *rope;
        state.model.head_width = 10;
        state.model.kv_heads = 2;
    }
    assert_true(tide_train_state_is_valid(&state));
    return state;
}

/* Converts the state to JSON through text, as a manifest does. */
static json_t *to_json(const tide_train_state *state)
{
    json_t *object = tide_train_state_to_json(state);
    assert_non_null(object);
    char *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    assert_non_null(text);
    object = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(object);
    free(text);
    return object;
}

static void assert_comes_back(const tide_train_state *state, const char *what)
{
    tide_train_state found;
    tide_train_changes changes;
    json_t *object = to_json(state);
    if (tide_train_state_from_json(object, "test", &found) != TIDE_OK)
        fail_msg("%s: %s", what, tide_message());
    assert_same_config(&found.model, &state->model, what);
    assert_int_equal(tide_train_state_compare(&found, state, "test", &changes), TIDE_OK);
    assert_int_equal(changes.count, 0);
    assert_int_equal(found.step, state->step);
    assert_int_equal(found.adam_step, state->adam_step);
    json_t *again = to_json(&found);
    assert_true(json_equal(object, again));
    json_decref(again);
    json_decref(object);
}

static void the_state_of_every_family_comes_back_with_the_same_bits(void **unused)
{
    for (size_t f = 0; f < FAMILIES; f++)
        for (size_t r = 0; r < ROPES; r++) {
            tide_train_state state = state_of(families[f], &ropes[r]);
            assert_comes_back(&state, families[f]);
            if (strcmp(families[f], "llama") != 0)
                continue;
            state.model.attention_bias = state.model.output_bias = state.model.mlp_bias = true;
            state.model.tied = false;
            assert_comes_back(&state, "llama with biases and a head");
        }
    for (size_t i = 0; tide_model_preset_name(i); i++) {
        tide_train_state state = state_of("gpt2", NULL);
        assert_int_equal(tide_model_config_open(tide_model_preset_name(i), &state.model), TIDE_OK);
        assert_comes_back(&state, tide_model_preset_name(i));
    }
}

/* Checks all keys in their order. */
static void assert_keys(const tide_train_state *state, const char *expected)
{
    char keys[2048] = "";
    const char *key;
    json_t *value, *object = to_json(state);
    json_object_foreach(object, key, value)
    {
        assert_non_null(value);
        snprintf(keys + strlen(keys), sizeof keys - strlen(keys), "%s ", key);
    }
    json_decref(object);
    assert_string_equal(keys, expected);
}

#define PROGRESS_KEYS "step tokens adam_step skipped "
#define SHAPE_KEYS    "model.layers model.width model.heads model.context model.vocab_size "
#define RUN_KEYS                                                                                             \
    "seed data_fingerprint seq_len batch_tokens micro_batch_sequences dtype steps warmup_steps lr lr_min "   \
    "weight_decay clip beta1 beta2 epsilon "
#define OTHER_KEYS                                                                                           \
    "model.kv_heads model.head_width model.mlp_width model.norm_epsilon model.tied model.attention_bias "    \
    "model.mlp_bias model.rope_theta model.rope_type "

/* The manifest of a GPT-2, written by a tidepool that knew no other family and padded no rows. */
static const char first_manifest[] =
    "{\"crc32c\":\"1c96743c\",\n \"format\": \"tidepool-checkpoint\",\n \"version\": 1,\n \"files\": [\n"
    "  {\n   \"name\": \"model.safetensors\",\n   \"bytes\": 5072,\n   \"crc32c\": \"d7f68ca4\"\n  },\n"
    "  {\n   \"name\": \"momentum.safetensors\",\n   \"bytes\": 5072,\n   \"crc32c\": \"df68291f\"\n"
    "  },\n  {\n   \"name\": \"variance.safetensors\",\n   \"bytes\": 5072,\n"
    "   \"crc32c\": \"4cb2042c\"\n  }\n ],\n \"state\": {\n  \"step\": 2,\n  \"tokens\": 32,\n"
    "  \"adam_step\": 2,\n  \"skipped\": 0,\n  \"model.layers\": 1,\n  \"model.width\": 8,\n"
    "  \"model.heads\": 1,\n  \"model.context\": 4,\n  \"model.vocab_size\": 5,\n"
    "  \"model.layer_norm_epsilon\": 1.0000000000000001e-5,\n  \"seed\": \"0x0000000000000001\",\n"
    "  \"data_fingerprint\": \"0x356580dd3629594f\",\n  \"seq_len\": 4,\n  \"batch_tokens\": 16,\n"
    "  \"micro_batch_sequences\": 4,\n  \"dtype\": \"bf16\",\n  \"steps\": 2,\n  \"warmup_steps\": 0,\n"
    "  \"lr\": 0.00059999999999999995,\n  \"lr_min\": 5.9999999999999995e-5,\n"
    "  \"weight_decay\": 0.10000000000000001,\n  \"clip\": 1.0,\n  \"beta1\": 0.90000000000000002,\n"
    "  \"beta2\": 0.94999999999999996,\n  \"epsilon\": 1e-8\n }\n}\n";

/* The manifest that is written today differs from the first in its version, and so in its checksum. */
static void a_manifest_of_the_first_checkpoints_is_read_and_written_again(void **unused)
{
    enum { SEAL_BYTES = 21 };
    tide_manifest manifest;
    char *text, expected[sizeof first_manifest];
    size_t bytes;
    assert_int_equal(tide_manifest_parse(first_manifest, sizeof first_manifest - 1, "test", &manifest),
                     TIDE_OK);
    assert_string_equal(tide_model_family_name(manifest.state.model.family), "gpt2");
    assert_int_equal(tide_manifest_make(&manifest, &text, &bytes), TIDE_OK);
    memcpy(expected, first_manifest, sizeof expected);
    memcpy(strstr(expected, "\"version\": 1"), "\"version\": 4", strlen("\"version\": 4"));
    assert_int_equal(bytes, sizeof first_manifest - 1);
    assert_memory_equal(text + SEAL_BYTES, expected + SEAL_BYTES, bytes - SEAL_BYTES);
    free(text);
}

/* A state stores the padding token and the form of the tensors' names only if they are set, so that a state
 * without them has the same keys as in older checkpoints. */
static void what_was_not_in_older_checkpoints_is_there_where_it_is_set(void **unused)
{
    static const char *const of_families[] = {"gpt2", "llama"};
    static const uint32_t rows[] = {1, 3, 999};
    for (size_t f = 0; f < 2; f++) {
        tide_train_state state = state_of(of_families[f], &ropes[TIDE_ROPE_DEFAULT]);
        state.model.names_otherwise = true;
        for (size_t i = 0; i < 3; i++) {
            state.model.padding_row = rows[i];
            assert_comes_back(&state, of_families[f]);
        }
        json_t *object = to_json(&state);
        assert_int_equal(json_integer_value(json_object_get(object, "model.pad_token_id")), 998);
        assert_true(json_is_true(json_object_get(object, "model.names_otherwise")));
        json_decref(object);
    }
}

/* Another padding token is no other model: the run goes on and reports it. */
static void another_padding_token_is_taken_and_named(void **unused)
{
    static const struct {
        uint32_t saved, current;
        const char *line;
    } cases[] = {{0, 3, "model.pad_token_id none -> 2"},
                 {1, 0, "model.pad_token_id 0 -> none"},
                 {1, 3, "model.pad_token_id 0 -> 2"}};
    for (size_t i = 0; i < 3; i++) {
        tide_train_state saved = state_of("llama", &ropes[TIDE_ROPE_DEFAULT]), current = saved;
        tide_train_changes changes;
        saved.model.padding_row = cases[i].saved;
        current.model.padding_row = cases[i].current;
        saved.model.names_otherwise = true; /* a run does not know this before it has looked at the files */
        assert_int_equal(tide_train_state_compare(&saved, &current, "there", &changes), TIDE_OK);
        assert_int_equal(changes.count, 1);
        assert_string_equal(changes.lines[0], cases[i].line);
    }
}

static void other_families_add_what_makes_their_model(void **unused)
{
    static const char *const of_kind[TIDE_ROPE_KINDS] = {
        "", "model.rope_factor ",
        "model.rope_factor model.rope_low_freq_factor model.rope_high_freq_factor "
        "model.rope_original_context ",
        "model.rope_factor model.rope_original_context model.rope_attention_factor model.rope_beta_fast "
        "model.rope_beta_slow model.rope_exact "};
    for (int kind = 0; kind < TIDE_ROPE_KINDS; kind++) {
        char expected[2048];
        const tide_train_state state = state_of("qwen3", &ropes[kind]);
        snprintf(expected, sizeof expected, "%s%s%s", PROGRESS_KEYS "model.family " SHAPE_KEYS OTHER_KEYS,
                 of_kind[kind], RUN_KEYS);
        assert_keys(&state, expected);
    }
}

/* Other sums are no other run: it goes on and says that they are others. */
static void other_sums_are_taken_and_named(void **unused)
{
    const tide_train_state one = state_of("gpt2", NULL);
    tide_train_state other = one;
    tide_train_changes changes;
    other.sum_groups = 4;
    other.reduce_dtype = TIDE_DTYPE_BF16;
    assert_int_equal(tide_train_state_compare(&other, &one, "there", &changes), TIDE_OK);
    assert_int_equal(changes.count, 2);
    assert_string_equal(changes.lines[0], "sum_groups 4 -> 1: gradients are summed otherwise from here on");
    assert_string_equal(changes.lines[1],
                        "reduce_dtype bf16 -> fp32: gradients are summed otherwise from here on");
}

/* ---- refusals ---- */

static void assert_mismatch(const tide_train_state *saved, const tide_train_state *current, const char *what)
{
    char line[512];
    tide_train_changes changes = {.count = 7};
    assert_int_equal(tide_train_state_compare(saved, current, "there", &changes), TIDE_ERROR_MISMATCH);
    snprintf(line, sizeof line, "checkpoint there: it was made with %s; they must be equal", what);
    assert_string_equal(tide_message(), line);
    assert_int_equal(changes.count, 7);
}

static void another_model_is_refused_by_its_field(void **unused)
{
    const tide_train_state gpt2 = state_of("gpt2", NULL),
                           llama = state_of("llama", &ropes[TIDE_ROPE_DEFAULT]);
    tide_train_state linear = state_of("llama", &ropes[TIDE_ROPE_LINEAR]),
                     llama3 = state_of("llama", &ropes[TIDE_ROPE_LLAMA3]),
                     yarn = state_of("llama", &ropes[TIDE_ROPE_YARN]);
    linear.model.rope.theta = llama3.model.rope.theta = yarn.model.rope.theta = llama.model.rope.theta;
    assert_mismatch(&gpt2, &llama, "model.family gpt2, this run has llama");
    assert_mismatch(&llama, &gpt2, "model.family llama, this run has gpt2");
    const tide_train_state qwen = state_of("qwen3", &ropes[TIDE_ROPE_DEFAULT]);
    assert_mismatch(&llama, &qwen, "model.family llama, this run has qwen3");
    assert_mismatch(&llama, &linear, "model.rope_type default, this run has linear");
    assert_mismatch(&yarn, &llama3, "model.rope_type yarn, this run has llama3");

    const struct {
        const tide_train_state *saved;
        const char *key, *other; /* the value of the run, in JSON */
        const char *line;        /* the message after the key */
    } cases[] = {
        {&gpt2, "model.layers", "4", "3, this run has 4"},
        {&gpt2, "model.layer_norm_epsilon", "1e-6", "1.0000001e-05, this run has 1e-06"},
        {&gpt2, "seed", "\"0x0000000000000001\"", "0xfffffffffffffff1, this run has 0x0000000000000001"},
        {&gpt2, "data_fingerprint", "\"0x8123456789abcdf0\"",
         "0x8123456789abcdef, this run has 0x8123456789abcdf0"},
        {&gpt2, "batch_tokens", "8192", "4096, this run has 8192"},
        {&gpt2, "dtype", "\"fp32\"", "bf16, this run has fp32"},
        {&llama, "model.kv_heads", "4", "2, this run has 4"},
        {&llama, "model.head_width", "12", "10, this run has 12"},
        {&llama, "model.mlp_width", "171", "170, this run has 171"},
        {&llama, "model.tied", "false", "true, this run has false"},
        {&llama, "model.attention_bias", "true", "false, this run has true"},
        {&llama, "model.mlp_bias", "true", "false, this run has true"},
        {&llama, "model.norm_epsilon", "1e-6", "1.0000001e-05, this run has 1e-06"},
        {&llama, "model.rope_theta", "1e4", "12345.678901234567, this run has 10000"},
        {&linear, "model.rope_factor", "4.0", "2.1, this run has 4"},
        {&llama3, "model.rope_low_freq_factor", "1.0", "0.9, this run has 1"},
        {&llama3, "model.rope_high_freq_factor", "4.0", "4.3, this run has 4"},
        {&llama3, "model.rope_original_context", "4096.0", "8192, this run has 4096"},
        {&yarn, "model.rope_attention_factor", "1.0", "1.1, this run has 1"},
        {&yarn, "model.rope_beta_fast", "32.0", "32.1, this run has 32"},
        {&yarn, "model.rope_beta_slow", "1.0", "1.1, this run has 1"},
        {&yarn, "model.rope_exact", "true", "false, this run has true"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[256];
        tide_train_state other;
        json_t *object = to_json(cases[i].saved);
        json_t *value = json_loads(cases[i].other, JSON_DECODE_ANY, NULL);
        assert_non_null(value);
        assert_int_equal(json_object_set_new(object, cases[i].key, value), 0);
        assert_ok(tide_train_state_from_json(object, "other", &other));
        snprintf(line, sizeof line, "%s %s", cases[i].key, cases[i].line);
        assert_mismatch(cases[i].saved, &other, line);
        json_decref(object);
    }
}

/* Reads the state with `key` set to `value`, or (NULL) without it, and expects this failure. */
static void assert_refused(const tide_train_state *state, const char *key, json_t *value, tide_status status,
                           const char *what)
{
    tide_train_state found = {.step = 77};
    char line[512];
    json_t *object = to_json(state);
    assert_int_equal(value ? json_object_set_new(object, key, value) : json_object_del(object, key), 0);
    assert_int_equal(tide_train_state_from_json(object, "there", &found), status);
    snprintf(line, sizeof line, "checkpoint there: %s", what);
    assert_string_equal(tide_message(), line);
    assert_int_equal(found.step, 77);
    json_decref(object);
}

static void assert_malformed(const tide_train_state *state, const char *key, json_t *value)
{
    char line[256];
    snprintf(line, sizeof line, "training state field \"%s\" is malformed", key);
    assert_refused(state, key, value, TIDE_ERROR_CORRUPT, line);
}

static void assert_no_model(const tide_train_state *state, const char *key, json_t *value)
{
    assert_refused(state, key, value, TIDE_ERROR_CORRUPT, "the training state describes no valid model");
}

static void assert_unknown(const tide_train_state *state, const char *key, json_t *value)
{
    char line[256];
    snprintf(line, sizeof line,
             "this tidepool does not know training state field \"%s\"; a later one may have written it", key);
    assert_refused(state, key, value, TIDE_ERROR_UNSUPPORTED, line);
}

/* Each key is missing once, and has another type once. */
static void every_key_must_be_there_and_well_formed(void **unused)
{
    for (size_t r = 0; r < ROPES; r++) {
        const tide_train_state state = state_of("qwen2", &ropes[r]);
        const char *key;
        json_t *value, *object = to_json(&state);
        json_object_foreach(object, key, value)
        {
            char line[256];
            assert_non_null(value);
            assert_malformed(&state, key, json_array());
            if (strcmp(key, "model.family") == 0) /* without a family the state is a GPT-2's */
                snprintf(line, sizeof line, "training state field \"model.layer_norm_epsilon\" is missing");
            else
                snprintf(line, sizeof line, "training state field \"%s\" is missing", key);
            assert_refused(&state, key, NULL, TIDE_ERROR_CORRUPT, line);
        }
        json_decref(object);
    }
}

static void what_makes_no_model_is_refused(void **unused)
{
    const tide_train_state llama = state_of("llama", &ropes[0]),
                           scaled = state_of("llama", &ropes[TIDE_ROPE_LLAMA3]);
    assert_malformed(&llama, "model.family", json_string("bert"));
    assert_malformed(&llama, "model.rope_type", json_string("dynamic"));
    assert_no_model(&llama, "model.kv_heads", json_integer(3));
    assert_no_model(&llama, "model.head_width", json_integer(9));
    assert_no_model(&llama, "model.rope_theta", json_real(0));
    assert_no_model(&scaled, "model.rope_factor", json_real(0));
    assert_no_model(&scaled, "model.rope_low_freq_factor", json_real(4.3));
    assert_no_model(&scaled, "model.rope_original_context", json_real(-1));
    assert_malformed(&llama, "model.pad_token_id", json_integer(-1));
    assert_malformed(&llama, "model.names_otherwise", json_integer(1));
}

static void a_field_that_is_not_known_is_refused_by_its_name(void **unused)
{
    const tide_train_state llama = state_of("llama", &ropes[0]), gpt2 = state_of("gpt2", NULL);
    assert_unknown(&llama, "model.rope_factor", json_real(2)); /* this model has no such field */
    assert_unknown(&gpt2, "model.kv_heads", json_integer(8));
    assert_unknown(&gpt2, "lr_max", json_real(1));
    assert_unknown(&gpt2, "", json_null());
    assert_refused(
        &gpt2, "\x1b[2J\n", json_true(), TIDE_ERROR_UNSUPPORTED,
        "this tidepool does not know training state field \"?[2J?\"; a later one may have written it");
}

/* ---- fields that earlier checkpoints lack ---- */

#define LATER_KEYS "data_first_step schedule decay_steps sum_groups reduce_dtype "

static tide_train_state state_with_all(void)
{
    tide_train_state state = state_of("gpt2", NULL);
    state.data_first_step = 7;
    state.hyper.schedule.shape = TIDE_LR_WSD;
    state.hyper.schedule.decay_steps = 100;
    state.sum_groups = 6;
    state.reduce_dtype = TIDE_DTYPE_BF16;
    return state;
}

static void a_later_field_is_written_where_it_is_not_the_default(void **unused)
{
    const tide_train_state state = state_with_all();
    tide_train_state one = state_of("gpt2", NULL);
    assert_keys(&state, PROGRESS_KEYS SHAPE_KEYS "model.layer_norm_epsilon " RUN_KEYS LATER_KEYS);
    assert_comes_back(&state, "all later fields");
    one.hyper.schedule.shape = TIDE_LR_CONSTANT;
    assert_keys(&one, PROGRESS_KEYS SHAPE_KEYS "model.layer_norm_epsilon " RUN_KEYS "schedule ");
    for (int shape = 0; shape < TIDE_LR_SHAPES; shape++) {
        one.hyper.schedule.shape = (tide_lr_shape)shape;
        assert_comes_back(&one, tide_lr_shape_name(one.hyper.schedule.shape));
    }
}

static void a_later_field_that_is_absent_has_its_default(void **unused)
{
    const tide_train_state state = state_with_all();
    static const char *const keys[] = {"data_first_step", "schedule", "decay_steps"};
    for (size_t i = 0; i < 3; i++) {
        tide_train_state found = {.step = 77};
        json_t *object = to_json(&state);
        assert_int_equal(json_object_del(object, keys[i]), 0);
        assert_int_equal(tide_train_state_from_json(object, "there", &found), TIDE_OK);
        assert_int_equal(found.data_first_step, i == 0 ? 0 : 7);
        assert_int_equal(found.hyper.schedule.shape, i == 1 ? TIDE_LR_COSINE : TIDE_LR_WSD);
        assert_int_equal(found.hyper.schedule.decay_steps, i == 2 ? 0 : 100);
        json_decref(object);
    }
}

static void a_later_field_must_be_well_formed(void **unused)
{
    const tide_train_state state = state_with_all();
    assert_malformed(&state, "schedule", json_string("step"));
    assert_malformed(&state, "schedule", json_integer(1));
    assert_malformed(&state, "decay_steps", json_real(1));
    assert_malformed(&state, "data_first_step", json_integer(-1));
    assert_malformed(&state, "sum_groups", json_real(2));
    assert_malformed(&state, "reduce_dtype", json_string("nccl"));
    assert_no_model(&state, "sum_groups", json_integer(0));
    assert_no_model(&state, "reduce_dtype", json_string("fp16"));
    assert_no_model(&state, "data_first_step", json_integer(10)); /* later than the steps done */
}

static void another_schedule_is_taken_and_named(void **unused)
{
    const tide_train_state cosine = state_of("gpt2", NULL);
    tide_train_state wsd = cosine;
    tide_train_changes changes;
    wsd.hyper.schedule.shape = TIDE_LR_WSD;
    wsd.hyper.schedule.decay_steps = 100;
    assert_int_equal(tide_train_state_compare(&cosine, &wsd, "there", &changes), TIDE_OK);
    assert_int_equal(changes.count, 2);
    assert_string_equal(changes.lines[0], "schedule cosine -> wsd");
    assert_string_equal(changes.lines[1], "decay_steps 0 -> 100");
}

static void a_state_is_written_whole_or_not_at_all(void **unused)
{
    const tide_train_state state = state_of("qwen3", &ropes[TIDE_ROPE_YARN]);
    bool met = true;
    unsigned request = 0;
    for (; met; request++) {
        fake_memory_fail(request);
        json_t *object = tide_train_state_to_json(&state);
        met = fake_memory_failed();
        fake_memory_clear();
        assert_true(met == (object == NULL));
        json_decref(object);
    }
    assert_true(request > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_state_of_every_family_comes_back_with_the_same_bits),
        cmocka_unit_test(a_manifest_of_the_first_checkpoints_is_read_and_written_again),
        cmocka_unit_test(what_was_not_in_older_checkpoints_is_there_where_it_is_set),
        cmocka_unit_test(other_sums_are_taken_and_named),
        cmocka_unit_test(another_padding_token_is_taken_and_named),
        cmocka_unit_test(other_families_add_what_makes_their_model),
        cmocka_unit_test(another_model_is_refused_by_its_field),
        cmocka_unit_test(every_key_must_be_there_and_well_formed),
        cmocka_unit_test(what_makes_no_model_is_refused),
        cmocka_unit_test(a_field_that_is_not_known_is_refused_by_its_name),
        cmocka_unit_test(a_later_field_is_written_where_it_is_not_the_default),
        cmocka_unit_test(a_later_field_that_is_absent_has_its_default),
        cmocka_unit_test(a_later_field_must_be_well_formed),
        cmocka_unit_test(another_schedule_is_taken_and_named),
        cmocka_unit_test(a_state_is_written_whole_or_not_at_all),
    };
    fake_memory_take_jansson();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
