/* Damaged and hostile input to everything that parses: config.json, the manifest, the safetensors header, the shard
 * header. A small deterministic fuzzer: sound input, mutated by seed a few thousand times; run under AddressSanitizer
 * and UBSan it finds what the eye does not.
 *
 * What must hold: a status of the documented set, one line of message, outputs untouched on failure and valid on
 * success. More rounds: FUZZ_ROUNDS=1000000.
 */
#include "src/checkpoint/crc32c.h"
#include "src/checkpoint/manifest.h"
#include "src/checkpoint/safetensors.h"
#include "src/data/data.h"
#include "tests/fuzz_text.h"
#include "tests/test_checkpoint.h"

#include <unistd.h>

enum { ROUNDS = 20000, SHARD_ROUNDS = 2000 };

static void assert_refusal(tide_status status)
{
    bool known =
        status == TIDE_ERROR_CORRUPT || status == TIDE_ERROR_UNSUPPORTED || status == TIDE_ERROR_MISMATCH;
    if (!known || tide_message()[0] == '\0')
        fail_msg("status %s: %s", tide_status_name(status), tide_message());
}

static void configs(void **unused)
{
    (void)unused;
    static const char sound[] =
        "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":64,\"n_head\":4,\"n_positions\":128,\"n_ctx\":128,"
        "\"vocab_size\":1000,\"n_inner\":null,\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-"
        "05,"
        "\"tie_word_embeddings\":true}";
    fuzz run;
    unsigned accepted = 0, refused = 0;
    for (uint64_t round = 0; round < fuzz_rounds(ROUNDS); round++) {
        tide_gpt2_config config = {.layers = 77};
        fuzz_mutate(&run, round, sound, sizeof sound - 1);
        char *text = fuzz_exact_copy(&run);
        tide_status status = tide_gpt2_config_parse(text, run.bytes, "fuzz", &config);
        free(text);
        accepted += status == TIDE_OK;
        refused += status != TIDE_OK;
        if (status == TIDE_OK) {
            assert_true(tide_gpt2_config_is_valid(&config));
        } else {
            assert_refusal(status);
            assert_int_equal(config.layers, 77);
        }
    }
    assert_true(accepted > 0 && refused > 0);
}

/* Half of the rounds get a right checksum, to reach what lies behind it. */
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
    (void)unused;
    fuzz_manifest(0);
}

static void manifests_with_frozen_tensors(void **unused)
{
    (void)unused;
    fuzz_manifest(2);
}

static void safetensors_headers(void **unused)
{
    (void)unused;
    char *sound;
    size_t sound_bytes;
    fuzz run;
    unsigned accepted = 0, refused = 0;
    const uint64_t data_bytes = SMALL_ELEMENTS * sizeof(float);
    assert_int_equal(tide_safetensors_header_make(&small_model, TIDE_VALUE_MASTER, &sound, &sound_bytes),
                     TIDE_OK);
    for (uint64_t round = 0; round < fuzz_rounds(ROUNDS); round++) {
        uint64_t offsets[3] = {0};
        fuzz_mutate(&run, round, sound + 8, sound_bytes - 8);
        char *text = fuzz_exact_copy(&run);
        tide_status status = tide_safetensors_header_check(text, run.bytes, data_bytes, "fuzz", &small_model,
                                                           TIDE_VALUE_MASTER, offsets);
        free(text);
        accepted += status == TIDE_OK;
        refused += status != TIDE_OK;
        if (status != TIDE_OK)
            assert_refusal(status);
        for (int i = 0; i < 3 && status == TIDE_OK; i++)
            assert_true(offsets[i] + 4 * tide_checkpoint_tensor_elements(&small_tensors[i]) <= data_bytes);
    }
    free(sound);
    assert_true(accepted > 0 && refused > 0);
}

static void shards(void **unused)
{
    (void)unused;
    char path[] = "/tmp/tidepool-fuzz-XXXXXX";
    char sound[2][TIDE_DATA_SHARD_HEADER_BYTES + 4 * 40] = {{0}}; /* of uint16 and of uint32 tokens */
    const uint32_t headers[2][3] = {{TIDE_DATA_SHARD_MAGIC, TIDE_DATA_SHARD_VERSION, 40},
                                    {TIDE_DATA_WIDE_SHARD_MAGIC, TIDE_DATA_WIDE_SHARD_VERSION, 40}};
    fuzz run;
    unsigned accepted[2] = {0}, refused = 0;
    for (int wide = 0; wide < 2; wide++)
        memcpy(sound[wide], headers[wide], sizeof headers[wide]);
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    for (uint64_t round = 0; round < fuzz_rounds(SHARD_ROUNDS); round++) {
        tide_data_options options = {.path = path, .vocab_size = 256, .seq_len = 4};
        tide_data *data = NULL;
        int32_t inputs[16], targets[16];
        const bool wide = round / 4 % 2 == 1;
        fuzz_mutate(&run, round, sound[wide], sizeof sound[wide] - (wide ? 0 : 2 * 40));
        if (round % 4 == 1) /* aim at the fields */
            run.text[fuzz_draw(&run, 12)] = (char)fuzz_draw(&run, 256);
        assert_int_equal(ftruncate(descriptor, 0), 0);
        assert_int_equal(pwrite(descriptor, run.text, run.bytes, 0), run.bytes);
        tide_status status = tide_data_open(&options, &data);
        accepted[wide] += status == TIDE_OK;
        refused += status != TIDE_OK;
        if (status != TIDE_OK) {
            assert_refusal(status);
            assert_null(data);
            continue;
        }
        assert_int_equal(tide_data_batch(data, round, 4, inputs, targets), TIDE_OK);
        for (int i = 0; i < 16; i++)
            assert_in_range(inputs[i], 0, 255);
        tide_data_close(data);
    }
    close(descriptor);
    unlink(path);
    assert_true(accepted[0] > 0 && accepted[1] > 0 && refused > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs),
        cmocka_unit_test(manifests),
        cmocka_unit_test(manifests_with_frozen_tensors),
        cmocka_unit_test(safetensors_headers),
        cmocka_unit_test(shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
