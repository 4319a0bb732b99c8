/* A small deterministic fuzzer for everything that parses files: config.json, the manifest, the
 * safetensors headers of checkpoints and weights, the index of weights, folders of weights, shard headers,
 * shards with documents.
 * It mutates valid input by a seed a few thousand times; the suite also runs it under AddressSanitizer and
 * UBSan.
 *
 * The parser must return a documented status with a message of one line; on failure its outputs must be
 * unchanged, on success valid. FUZZ_ROUNDS=1000000 sets more rounds. */
#include "base/crc32c.h"
#include "src/checkpoint/manifest.h"
#include "src/checkpoint/tensors.h"
#include "src/data/data.h"
#include "src/export/config_text.h"
#include "src/model/family.h"
#include "src/model/rope.h"
#include "src/weights/index.h"
#include "src/weights/reader.h"
#include "tests/files/test_checkpoint.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fuzz_text.h"

#include <jansson.h>
#include <unistd.h>

enum { ROUNDS = 20000, SHARD_ROUNDS = 2000, DOCUMENT_ROUNDS = 4000 };

static void assert_refusal(tide_status status)
{
    bool known =
        status == TIDE_ERROR_CORRUPT || status == TIDE_ERROR_UNSUPPORTED || status == TIDE_ERROR_MISMATCH;
    if (!known || tide_message()[0] == '\0')
        fail_msg("status %s: %s", tide_status_name(status), tide_message());
}

/* Configs of every family, with both JSON forms and all kinds of rotary positions. */
static const char *const sound_configs[] = {
    "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":64,\"n_head\":4,\"n_positions\":128,\"n_ctx\":128,"
    "\"vocab_size\":1000,\"n_inner\":null,\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-05,"
    "\"tie_word_embeddings\":true}",
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":172,\"num_hidden_layers\":2,\"num_"
    "attention_heads\":8,\"num_key_value_heads\":2,\"max_position_embeddings\":128,\"vocab_size\":1000,"
    "\"hidden_act\":\"silu\",\"mlp_bias\":true,\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":"
    "\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_"
    "embeddings\":64}}",
    "{\"model_type\":\"mistral\",\"hidden_size\":64,\"intermediate_size\":172,\"num_hidden_layers\":2,\"num_"
    "attention_heads\":8,\"max_position_embeddings\":128,\"vocab_size\":1000,\"sliding_window\":null,\"head_"
    "dim\":16,\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}",
    "{\"model_type\":\"qwen2\",\"hidden_size\":64,\"intermediate_size\":172,\"num_hidden_layers\":2,\"num_"
    "attention_heads\":8,\"num_key_value_heads\":4,\"max_position_embeddings\":128,\"vocab_size\":1000,\"use_"
    "sliding_window\":false,\"rope_parameters\":{\"rope_theta\":1000000,\"rope_type\":\"yarn\",\"factor\":4."
    "0,\"beta_fast\":32,\"beta_slow\":1.5,\"mscale\":1,\"mscale_all_dim\":0.5,\"truncate\":false,\"original_"
    "max_position_embeddings\":64}}",
    "{\"model_type\":\"qwen3\",\"hidden_size\":64,\"intermediate_size\":172,\"num_hidden_layers\":2,\"num_"
    "attention_heads\":8,\"num_key_value_heads\":1,\"head_dim\":16,\"max_position_embeddings\":128,\"vocab_"
    "size\":1000,\"attention_bias\":true,\"layer_types\":[\"full_attention\",\"full_attention\"],\"tie_word_"
    "embeddings\":true,\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"default\",\"partial_rotary_"
    "factor\":1.0}}",
};

enum { SOUND_CONFIGS = sizeof sound_configs / sizeof sound_configs[0] };

/* An accepted config is valid, and its rotary frequencies are between 0 and 1. */
static void assert_config(const tide_model_config *config)
{
    assert_true(tide_model_config_is_valid(config));
    if (!config->family->rotary)
        return;
    float frequencies[2048];
    tide_rope_frequencies(config, frequencies);
    for (uint32_t i = 0; i < config->head_width / 2; i++)
        assert_true(frequencies[i] >= 0 && frequencies[i] <= 1);
}

static void configs(void **unused)
{
    fuzz run;
    unsigned accepted[SOUND_CONFIGS] = {0}, refused[SOUND_CONFIGS] = {0}, in_positions = 0;
    for (uint64_t round = 0; round < fuzz_rounds(ROUNDS); round++) {
        tide_model_config config = {.layers = 77};
        const size_t seed = round % SOUND_CONFIGS;
        fuzz_mutate(&run, round, sound_configs[seed], strlen(sound_configs[seed]));
        char *text = fuzz_exact_copy(&run);
        tide_status status = tide_model_config_parse(text, run.bytes, "fuzz", &config);
        free(text);
        accepted[seed] += status == TIDE_OK;
        refused[seed] += status != TIDE_OK;
        if (status == TIDE_OK) {
            assert_config(&config);
        } else {
            assert_refusal(status);
            assert_int_equal(config.layers, 77);
            in_positions += strstr(tide_message(), "\"rope_") != NULL;
        }
    }
    for (size_t i = 0; i < SOUND_CONFIGS; i++)
        assert_true(accepted[i] > 0 && refused[i] > 0);
    assert_true(in_positions > 10);
}

/* Gives half of the rounds a correct checksum, so that the parser reads on behind it. */
static void reseal(fuzz *run)
{
    char crc[9];
    if (run->round % 2 == 0 || run->bytes <= 21)
        return;
    snprintf(crc, sizeof crc, "%08x", tide_crc32c(0, run->text + 21, run->bytes - 21));
    memcpy(run->text, "{\"crc32c\":\"", 11);
    memcpy(run->text + 11, crc, 8);
    memcpy(run->text + 19, "\",", 2);
}

static void fuzz_manifest(size_t frozen_count)
{
    const char *frozen[] = {"wte.weight", "h.0.ln_1.bias"};
    tide_manifest manifest = {.frozen = frozen, .frozen_count = frozen_count, .state = state_at(9)};
    char *sound;
    size_t sound_bytes;
    fuzz run;
    unsigned accepted = 0, refused = 0;
    for (int i = 0; i < TIDE_VALUE_COUNT; i++)
        manifest.files[i] = (tide_manifest_file){.bytes = 1000, .crc32c = 0xabcdef01};
    assert_int_equal(tide_manifest_make(&manifest, &sound, &sound_bytes), TIDE_OK);
    for (uint64_t round = 0; round < fuzz_rounds(ROUNDS); round++) {
        tide_manifest parsed = {.state.step = 77};
        fuzz_mutate(&run, round, sound, sound_bytes);
        reseal(&run);
        char *text = fuzz_exact_copy(&run);
        tide_status status = tide_manifest_parse(text, run.bytes, "fuzz", &parsed);
        free(text);
        accepted += status == TIDE_OK;
        refused += status != TIDE_OK;
        if (status == TIDE_OK) {
            assert_true(tide_train_state_is_valid(&parsed.state));
            for (size_t i = 0; i < parsed.frozen_count; i++)
                assert_true(parsed.frozen[i][0] != '\0');
            free(parsed.frozen);
        } else {
            assert_refusal(status);
            assert_int_equal(parsed.state.step, 77);
        }
    }
    free(sound);
    assert_true(accepted > 0 && refused > 0);
}

static void manifests(void **unused)
{
    fuzz_manifest(0);
}

static void manifests_with_frozen_tensors(void **unused)
{
    fuzz_manifest(2);
}

/* Checks that a header's tensors cover the data. */
static void assert_covers(const tide_safetensors_header *header, uint64_t data_bytes)
{
    uint64_t covered = 0;
    for (size_t i = 0; i < header->count; i++) {
        const tide_safetensors_entry *entry = &header->entries[i];
        assert_true(entry->begin <= entry->end && entry->end <= data_bytes);
        covered += entry->end - entry->begin;
        assert_string_equal(tide_safetensors_find(header, entry->name)->name, entry->name);
    }
    assert_int_equal(covered, data_bytes);
}

/* Parses mutated headers. Counts those that are sound in accepted[0], and those among them that fit the small
 * model in accepted[1]. */
static void fuzz_headers(const char *sound, size_t sound_bytes, uint64_t data_bytes, unsigned accepted[2])
{
    fuzz run;
    unsigned refused = 0;
    for (uint64_t round = 0; round < fuzz_rounds(ROUNDS); round++) {
        tide_safetensors_header header = {.count = 77};
        uint64_t offsets[3] = {0};
        fuzz_mutate(&run, round, sound, sound_bytes);
        const uint64_t data_start = 8 + run.bytes;
        const tide_file file = {.noun = "weights", .path = "fuzz", .bytes = data_start + data_bytes};
        char *text = fuzz_exact_copy(&run);
        tide_status status = tide_safetensors_parse(&file, text, run.bytes, &header);
        free(text);
        accepted[0] += status == TIDE_OK;
        refused += status != TIDE_OK;
        if (status != TIDE_OK) {
            assert_refusal(status);
            assert_null(strchr(tide_message(), '\n'));
            assert_int_equal(header.count, 77);
            continue;
        }
        assert_covers(&header, data_bytes);
        status = tide_checkpoint_header_check(&file, &header, &small_model, TIDE_VALUE_MASTER, offsets);
        accepted[1] += status == TIDE_OK;
        if (status != TIDE_OK)
            assert_refusal(status);
        for (int i = 0; i < 3 && status == TIDE_OK; i++)
            assert_true(offsets[i] >= data_start &&
                        offsets[i] + 4 * tide_checkpoint_tensor_elements(&small_tensors[i]) <= file.bytes);
        tide_safetensors_free(&header);
    }
    assert_true(accepted[0] > 0 && refused > 0);
}

static void checkpoint_headers(void **unused)
{
    char *sound;
    size_t sound_bytes;
    unsigned accepted[2] = {0};
    assert_int_equal(tide_checkpoint_header_make(&small_model, TIDE_VALUE_MASTER, &sound, &sound_bytes),
                     TIDE_OK);
    fuzz_headers(sound + 8, sound_bytes - 8, SMALL_ELEMENTS * sizeof(float), accepted);
    free(sound);
    assert_true(accepted[1] > 0 && accepted[1] < accepted[0]);
}

static void weights_headers(void **unused)
{
    static const char sound[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[2,4],\"data_"
        "offsets\":[0,16]},\"b\":{\"dtype\":\"F8_E4M3\",\"shape\":[8],\"data_offsets\":[16,24]},\"c\":{"
        "\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[24,28]}}   ";
    fuzz_headers(sound, sizeof sound - 1, 28, (unsigned[2]){0});
}

static void weights_indices(void **unused)
{
    static const char sound[] = "{\"metadata\":{\"total_size\":28},\"weight_map\":{\"a.weight\":\"m-1."
                                "safetensors\",\"b\":\"m-2.safetensors\",\"c\":\"m-1.safetensors\"}}\n";
    fuzz run;
    unsigned accepted = 0, refused = 0;
    for (uint64_t round = 0; round < fuzz_rounds(ROUNDS); round++) {
        tide_weights_index index = {.file_count = 77};
        fuzz_mutate(&run, round, sound, sizeof sound - 1);
        char *text = fuzz_exact_copy(&run);
        tide_status status = tide_weights_index_parse(text, run.bytes, "fuzz", &index);
        free(text);
        accepted += status == TIDE_OK;
        refused += status != TIDE_OK;
        if (status != TIDE_OK) {
            assert_refusal(status);
            assert_null(strchr(tide_message(), '\n'));
            assert_int_equal(index.file_count, 77);
            continue;
        }
        assert_true(index.file_count > 0);
        for (size_t i = 0; i < index.file_count; i++) {
            assert_null(strchr(index.files[i], '/'));
            assert_true(i == 0 || strcmp(index.files[i - 1], index.files[i]) < 0);
        }
        tide_weights_index_free(&index);
    }
    assert_true(accepted > 0 && refused > 0);
}

/* A whole file in its folder, with false lengths and offsets: every tensor of an accepted file can be
 * read. */
static void weights_folders(void **unused)
{
    static const char header[] = "{\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[2,4],\"data_offsets\":[0,16]},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[16,28]}}";
    static const tide_weights_tensor tensors[] = {{"a.weight", 2, {2, 4}}, {"b", 1, {3}}};
    static const char *const ignored[] = {"*c"};
    const tide_weights_names names = {
        .tensors = tensors, .count = 2, .optional_prefix = "m.", .ignored = ignored, .ignored_count = 1};
    char folder[] = "/tmp/tidepool-fuzz-XXXXXX", path[64], sound[8 + sizeof header - 1 + 28] = {0};
    const uint64_t header_bytes = sizeof header - 1;
    unsigned accepted = 0, refused = 0;
    fuzz run;
    memcpy(sound, &header_bytes, 8);
    memcpy(sound + 8, header, header_bytes);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (uint64_t round = 0; round < fuzz_rounds(SHARD_ROUNDS); round++) {
        tide_weights *weights = NULL;
        float values[8];
        fuzz_mutate(&run, round, sound, sizeof sound);
        assert_int_equal(ftruncate(fileno(file), 0), 0);
        assert_int_equal(pwrite(fileno(file), run.text, run.bytes, 0), run.bytes);
        const tide_status status = tide_weights_open(folder, &names, &weights);
        accepted += status == TIDE_OK;
        refused += status != TIDE_OK;
        if (status != TIDE_OK) {
            assert_refusal(status);
            assert_null(strchr(tide_message(), '\n'));
            assert_null(weights);
            continue;
        }
        for (size_t i = 0; i < 2; i++)
            assert_int_equal(tide_weights_read(weights, i, 0, tide_weights_elements(&tensors[i]), values),
                             TIDE_OK);
        tide_weights_close(weights);
    }
    fclose(file);
    unlink(path);
    rmdir(folder);
    assert_true(accepted > 0 && refused > 0);
}

/* Whatever the mutated text contains, only the dtypes are replaced. */
static void config_texts(void **unused)
{
    static const char sound[] = "{\n \"a\": [1e-05, {\"dtype\": \"x\\\"\"}], \"dtype\" : {\"b\": [\"}\"]} ,\n"
                                " \"torch_dtype\": \"float32\", \"c\": \"dtype\"\n}\n";
    fuzz run;
    unsigned edited = 0, has[3] = {0};
    for (uint64_t round = 0; round < fuzz_rounds(ROUNDS); round++) {
        static const char *const keys[] = {"dtype", "torch_dtype"};
        fuzz_mutate(&run, round, sound, sizeof sound - 1);
        json_t *was = json_loadb(run.text, run.bytes, JSON_REJECT_DUPLICATES, NULL);
        /* With \u escapes keys can't be compared as text. */
        if (!json_is_object(was) || memmem(run.text, run.bytes, "\\u", 2) != NULL) {
            json_decref(was);
            continue;
        }
        char *exact = fuzz_exact_copy(&run);
        char *text = tide_config_text_with_dtype(exact, run.bytes, "bfloat16");
        json_t *is = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(is);
        unsigned found = 0;
        for (int i = 0; i < 2; i++) {
            const char *const word = json_string_value(json_object_get(is, keys[i]));
            found += json_object_get(was, keys[i]) != NULL;
            if (json_object_get(was, keys[i]) != NULL)
                assert_string_equal(word, "bfloat16");
        }
        if (found == 0)
            assert_string_equal(json_string_value(json_object_get(is, "torch_dtype")), "bfloat16");
        for (int i = 0; i < 2; i++) {
            json_object_del(was, keys[i]);
            json_object_del(is, keys[i]);
        }
        assert_true(json_equal(was, is));
        has[found]++;
        edited++;
        json_decref(was);
        json_decref(is);
        free(text);
        free(exact);
    }
    assert_true(fuzz_rounds(ROUNDS) < ROUNDS || (edited > 100 && has[0] > 0 && has[1] > 0 && has[2] > 0));
}

static void shards(void **unused)
{
    char path[] = "/tmp/tidepool-fuzz-XXXXXX";
    enum { NARROW, WIDE, HEADERLESS, KINDS };
    /* A shard of uint16 tokens, a shard of uint32 tokens, uint32 tokens without a header. */
    char sound[KINDS][TIDE_DATA_SHARD_HEADER_BYTES + 4 * 40] = {{0}};
    static const size_t sound_bytes[KINDS] = {TIDE_DATA_SHARD_HEADER_BYTES + 2 * 40,
                                              TIDE_DATA_SHARD_HEADER_BYTES + 4 * 40, 4 * 40};
    const uint32_t headers[2][3] = {{TIDE_DATA_SHARD_MAGIC, TIDE_DATA_SHARD_VERSION, 40},
                                    {TIDE_DATA_WIDE_SHARD_MAGIC, TIDE_DATA_WIDE_SHARD_VERSION, 40}};
    fuzz run;
    unsigned accepted[KINDS] = {0}, refused = 0;
    for (int wide = 0; wide < 2; wide++)
        memcpy(sound[wide], headers[wide], sizeof headers[wide]);
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    for (uint64_t round = 0; round < fuzz_rounds(SHARD_ROUNDS); round++) {
        tide_data_options options = {.path = path, .vocab_size = 256, .seq_len = 4};
        tide_data *data = NULL;
        int32_t inputs[16], targets[16];
        const uint64_t kind = round / 4 % KINDS;
        fuzz_mutate(&run, round, sound[kind], sound_bytes[kind]);
        if (kind == HEADERLESS)
            options.encoding = fuzz_draw(&run, 2) == 0 ? TIDE_DATA_ENCODING_U16 : TIDE_DATA_ENCODING_U32;
        if (round % 4 == 1) /* changes a byte of the header's fields */
            run.text[fuzz_draw(&run, 12)] = (char)fuzz_draw(&run, 256);
        assert_int_equal(ftruncate(descriptor, 0), 0);
        assert_int_equal(pwrite(descriptor, run.text, run.bytes, 0), run.bytes);
        tide_status status = tide_data_open(&options, &data);
        accepted[kind] += status == TIDE_OK;
        refused += status != TIDE_OK;
        if (status != TIDE_OK) {
            assert_refusal(status);
            assert_null(data);
            continue;
        }
        assert_int_equal(
            tide_data_batch(data, round, 4, &(tide_token_batch){.inputs = inputs, .targets = targets}),
            TIDE_OK);
        for (int i = 0; i < 16; i++)
            assert_in_range(inputs[i], 0, 255);
        tide_data_close(data);
    }
    close(descriptor);
    unlink(path);
    assert_true(accepted[NARROW] > 0 && accepted[WIDE] > 0 && accepted[HEADERLESS] > 0 && refused > 0);
}

/* ---- shards with documents ---- */

enum {
    DOCUMENT_TOKENS = 61, /* no multiple of 4 or 8: each section has padding */
    DOCUMENTS = 9,
    DOCUMENTS_SEQ_LEN = 6,
    DOCUMENTS_SEQUENCES = 3,
    DOCUMENTS_BATCH = DOCUMENTS_SEQ_LEN * DOCUMENTS_SEQUENCES,
    DOCUMENTS_MAX_BYTES = 64 + 4 * (DOCUMENT_TOKENS + 1) + 8 + 8 * DOCUMENTS + 4,
};

/* Encodes a sound shard; returns its size. */
static size_t documents_make(uint32_t token_bytes, char *shard)
{
    static const uint64_t starts[DOCUMENTS] = {0, 1, 8, 11, 31, 38, 44, 51, 54};
    const uint32_t version[2] = {1, token_bytes};
    const uint64_t counts[2] = {DOCUMENT_TOKENS, DOCUMENTS};
    const size_t mask = 64 + (token_bytes * DOCUMENT_TOKENS + 7) / 8 * 8, end = mask + 8 + sizeof starts;
    memset(shard, 0, DOCUMENTS_MAX_BYTES);
    memcpy(shard, "TIDETOK1", 8);
    memcpy(shard + 8, version, sizeof version);
    memcpy(shard + 16, counts, sizeof counts);
    for (size_t i = 0; i < DOCUMENT_TOKENS; i++)
        shard[64 + token_bytes * i] = (char)(i + 100);
    memset(shard + mask, 0xdb, 7);
    memcpy(shard + mask + 8, starts, sizeof starts);
    const uint32_t crc = tide_crc32c(0, shard, end);
    memcpy(shard + end, &crc, sizeof crc);
    return end + sizeof crc;
}

/* Changes a field of the header or a start, by a little or to anything; or the lowest byte of an id; or the
 * mask. */
static void change_field(fuzz *run, uint32_t token_bytes)
{
    const size_t starts = run->bytes - 4 - sizeof(uint64_t) * DOCUMENTS,
                 places[4] = {8 + 4 * fuzz_draw(run, 8), starts + 8 * fuzz_draw(run, DOCUMENTS),
                              64 + token_bytes * fuzz_draw(run, DOCUMENT_TOKENS), starts - 8},
                 sizes[4] = {4, 8, 1, 8}, which = fuzz_draw(run, 4);
    uint64_t value = 0;
    memcpy(&value, run->text + places[which], sizes[which]);
    if (which < 2 && fuzz_draw(run, 2) == 0)
        value += fuzz_draw(run, 9) - 4;
    else
        value ^= UINT64_C(1) << fuzz_draw(run, 8 * sizes[which]);
    memcpy(run->text + places[which], &value, sizes[which]);
}

static void mend_checksum(fuzz *run)
{
    if (run->bytes < 4)
        return;
    const uint32_t crc = tide_crc32c(0, run->text, run->bytes - 4);
    memcpy(run->text + run->bytes - 4, &crc, sizeof crc);
}

/* Whether the shard keeps the rules of token_documents.c, of its ids apart. */
static bool is_sound(const fuzz *run)
{
    uint32_t fields[8]; /* from byte 8 on: version, bytes of a token, 2 x tokens, 2 x documents, -, flags */
    uint64_t tokens, documents, start, before = 0;
    if (run->bytes < 68 || memcmp(run->text, "TIDETOK1", 8) != 0)
        return false;
    memcpy(fields, run->text + 8, sizeof fields);
    memcpy(&tokens, run->text + 16, 8);
    memcpy(&documents, run->text + 24, 8);
    if (fields[0] != 1 || (fields[1] != 2 && fields[1] != 4) || fields[7] != 0 || tokens == 0 ||
        tokens > run->bytes || documents > tokens)
        return false;
    const uint64_t mask = 64 + (fields[1] * tokens + 7) / 8 * 8, starts = mask + (tokens + 63) / 64 * 8,
                   end = starts + 8 * documents;
    if (end + 4 != run->bytes)
        return false;
    const uint32_t crc = tide_crc32c(0, run->text, end);
    for (uint64_t i = 0; i < documents; i++, before = start) {
        memcpy(&start, run->text + starts + 8 * i, 8);
        if (start >= tokens || (i == 0 ? start != 0 : start <= before))
            return false;
    }
    return memcmp(&crc, run->text + end, sizeof crc) == 0;
}

/* Checks one packed sequence: each document's tokens say where it begins, its targets are its next tokens,
 * and padding fills the end alone. Returns how many positions documents take. */
static uint64_t assert_packed(const tide_token_batch *batch, size_t first)
{
    const int32_t *inputs = batch->inputs + first, *targets = batch->targets + first,
                  *starts = batch->starts + first;
    int32_t used = DOCUMENTS_SEQ_LEN;
    while (used > 0 && inputs[used - 1] == 0 && targets[used - 1] == -1 && starts[used - 1] == used - 1)
        used--; /* a document of one position has a learned target */
    for (int32_t i = 0; i < used; i++) {
        const bool begins = starts[i] == i, goes_on = i + 1 < used && starts[i + 1] != i + 1;
        assert_true(begins || (i > 0 && starts[i] == starts[i - 1]));
        assert_true(targets[i] == -1 || !goes_on || targets[i] == inputs[i + 1]);
    }
    return (uint64_t)used;
}

static void assert_documents_batch(const tide_token_batch *batch)
{
    uint64_t learned = 0;
    for (size_t i = 0; i < DOCUMENTS_BATCH; i++) {
        assert_in_range(batch->inputs[i], 0, 255);
        assert_in_range(batch->targets[i] + 1, 0, 256);
        learned += batch->targets[i] >= 0;
    }
    assert_int_equal(batch->learned, learned);
}

/* Reads an epoch and the validation data. The counts of open and the batches agree. */
static void assert_epoch(tide_data *data)
{
    int32_t inputs[DOCUMENTS_BATCH], targets[DOCUMENTS_BATCH], starts[DOCUMENTS_BATCH];
    tide_token_batch batch = {.inputs = inputs, .targets = targets, .starts = starts};
    const tide_data_counts counts = tide_data_count(data);
    uint64_t learned = 0, positions = 0;
    double nats = -1;
    for (uint64_t at = 0; at < counts.training_sequences; at += DOCUMENTS_SEQUENCES) {
        assert_ok(tide_data_batch(data, at / DOCUMENTS_SEQUENCES, DOCUMENTS_SEQUENCES, &batch));
        assert_documents_batch(&batch);
        for (size_t i = 0; counts.packed && i < DOCUMENTS_SEQUENCES; i++)
            positions += assert_packed(&batch, DOCUMENTS_SEQ_LEN * i);
        learned += batch.learned;
    }
    if (counts.packed) {
        assert_int_equal(learned, counts.training_documents.learned);
        assert_int_equal(positions, counts.training_documents.positions);
    }
    for (uint64_t at = 0; at < counts.validation_sequences; at += DOCUMENTS_SEQUENCES) {
        assert_ok(tide_data_validation_batch(data, at / DOCUMENTS_SEQUENCES, DOCUMENTS_SEQUENCES, &batch));
        assert_documents_batch(&batch);
    }
    assert_ok(tide_data_unigram_entropy(data, &nats));
    assert_true(nats >= 0 && nats < 6);
}

/* Half of the rounds mend the checksum, so that the checks behind it are reached, and half change fields
 * rather than bytes. */
static void shards_with_documents(void **unused)
{
    char path[] = "/tmp/tidepool-fuzz-XXXXXX.bin", sound[DOCUMENTS_MAX_BYTES];
    static const char *const reasons[] = {"checksum", "starts must rise", "the header says",
                                          "TIDETOK1 shard of version", "outside the vocabulary"};
    enum { REASONS = sizeof reasons / sizeof reasons[0] };
    unsigned packed[2] = {0}, unpacked = 0, refused[REASONS] = {0};
    fuzz run;
    const int descriptor = mkstemps(path, 4);
    assert_true(descriptor >= 0);
    for (uint64_t round = 0; round < fuzz_rounds(DOCUMENT_ROUNDS); round++) {
        tide_data_options options = {
            .path = path, .vocab_size = 256, .seq_len = DOCUMENTS_SEQ_LEN, .seed = round};
        tide_data *data = NULL;
        const size_t wide = round / 4 % 2, sound_bytes = documents_make(wide ? 4 : 2, sound);
        if (round % 4 < 2) {
            fuzz_mutate(&run, round, sound, sound_bytes);
        } else {
            run = (fuzz){.round = round, .bytes = sound_bytes};
            memcpy(run.text, sound, sound_bytes);
            for (size_t changes = 1 + fuzz_draw(&run, 3); changes > 0; changes--)
                change_field(&run, wide ? 4 : 2);
        }
        if (round % 2 == 1)
            mend_checksum(&run);
        options.packing = fuzz_draw(&run, 4) == 0 ? TIDE_DATA_PACKING_OFF : TIDE_DATA_PACKING_AUTO;
        options.drops_long = fuzz_draw(&run, 2) == 0;
        assert_int_equal(ftruncate(descriptor, 0), 0);
        assert_int_equal(pwrite(descriptor, run.text, run.bytes, 0), run.bytes);
        const tide_status status = tide_data_open(&options, &data);
        if (status != TIDE_OK) {
            assert_refusal(status);
            assert_null(strchr(tide_message(), '\n'));
            assert_null(data);
            expect_words(path);
            for (size_t i = 0; i < REASONS; i++)
                refused[i] += strstr(tide_message(), reasons[i]) != NULL;
            if (is_sound(&run)) /* then only its ids or a mask without learned tokens can be wrong */
                assert_true(strstr(tide_message(), "outside the vocabulary") != NULL ||
                            strstr(tide_message(), "has a token to learn") != NULL);
            continue;
        }
        assert_true(is_sound(&run) && tide_data_is_valid(data));
        packed[wide] += tide_data_count(data).packed;
        unpacked += !tide_data_count(data).packed;
        assert_epoch(data);
        tide_data_close(data);
    }
    close(descriptor);
    unlink(path);
    assert_true(fuzz_rounds(DOCUMENT_ROUNDS) < DOCUMENT_ROUNDS ||
                (packed[0] > 0 && packed[1] > 0 && unpacked > 0));
    for (size_t i = 0; i < REASONS; i++)
        assert_true(fuzz_rounds(DOCUMENT_ROUNDS) < DOCUMENT_ROUNDS || refused[i] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs),
        cmocka_unit_test(manifests),
        cmocka_unit_test(manifests_with_frozen_tensors),
        cmocka_unit_test(checkpoint_headers),
        cmocka_unit_test(weights_headers),
        cmocka_unit_test(weights_indices),
        cmocka_unit_test(weights_folders),
        cmocka_unit_test(config_texts),
        cmocka_unit_test(shards),
        cmocka_unit_test(shards_with_documents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
