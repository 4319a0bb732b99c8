/* GPT-2's configuration: presets, reading of config.json and refusals, the params, and their initial
 * values. */
#include "src/model/params.h"

#include "base/hash.h"
#include "src/data/random.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char good_json[] =
    "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":64,\"n_head\":4,\"n_positions\":128,\"n_ctx\":128,"
    "\"vocab_size\":1000,\"n_inner\":null,\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-05,"
    "\"resid_pdrop\":0.1,\"tie_word_embeddings\":true}";

static tide_status parse(const char *text, tide_model_config *config)
{
    return tide_model_config_parse(text, strlen(text), "my.json", config);
}

/* Parse good_json with one piece replaced. */
static tide_status parse_changed(const char *piece, const char *instead)
{
    char text[1024];
    tide_model_config config = {.layers = 77};
    const char *at = strstr(good_json, piece);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good_json), good_json, instead, at + strlen(piece));
    tide_status status = parse(text, &config);
    if (status != TIDE_OK)
        assert_int_equal(config.layers, 77);
    return status;
}

static void assert_refused(const char *piece, const char *instead, tide_status wanted, const char *message)
{
    tide_status status = parse_changed(piece, instead);
    if (status != wanted || strstr(tide_message(), message) == NULL ||
        strstr(tide_message(), "my.json") == NULL)
        fail_msg("%s: status %s, \"%s\" does not say \"%s\"", instead, tide_status_name(status),
                 tide_message(), message);
}

static tide_model_config preset(const char *name)
{
    tide_model_config config;
    assert_int_equal(tide_model_config_open(name, &config), TIDE_OK);
    assert_true(tide_model_config_is_valid(&config));
    return config;
}

/* ---- configurations ---- */

static void presets_have_an_order(void **unused)
{
    assert_string_equal(tide_model_preset_name(0), "gpt2-nano");
    assert_string_equal(tide_model_preset_name(6), "llama-nano");
    assert_null(tide_model_preset_name(13));
}

static void a_hugging_face_config_is_read(void **unused)
{
    char path[] = "/tmp/tidepool-config-XXXXXX";
    tide_model_config config;
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0 &&
                write(descriptor, good_json, strlen(good_json)) == (ssize_t)strlen(good_json));
    close(descriptor);
    tide_status status = tide_model_config_open(path, &config);
    unlink(path);
    assert_int_equal(status, TIDE_OK);
    assert_int_equal(config.layers, 2);
    assert_int_equal(config.width, 64);
    assert_int_equal(config.heads, 4);
    assert_int_equal(config.context, 128);
    assert_int_equal(config.vocab_size, 1000);
    assert_true(config.norm_epsilon == 1e-5);
}

static void optional_fields_may_be_absent_or_spelled_the_old_way(void **unused)
{
    assert_int_equal(parse_changed("\"n_positions\":128,", ""), TIDE_OK);
    assert_int_equal(parse_changed("\"n_ctx\":128,", ""), TIDE_OK);
    assert_int_equal(parse_changed("\"n_positions\":128,\"n_ctx\":128,", ""), TIDE_OK);
    assert_int_equal(parse_changed("\"n_inner\":null", "\"n_inner\":256"), TIDE_OK);
    assert_int_equal(parse_changed(",\"tie_word_embeddings\":true", ""), TIDE_OK);
    assert_int_equal(parse_changed("\"layer_norm_epsilon\":1e-05,", ""), TIDE_OK);
}

/* The defaults of transformers' GPT2Config: 1024 positions, and every dropout 0.1. GPT-2's embedding has no
 * padding_idx. */
static void absent_fields_are_transformers_defaults(void **unused)
{
    static const char text[] = "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":64,\"n_head\":4,\"vocab_"
                               "size\":1000,\"embd_pdrop\":0.0,\"resid_pdrop\":0.25,\"pad_token_id\":7}";
    tide_model_config config;
    assert_int_equal(parse(text, &config), TIDE_OK);
    assert_int_equal(config.context, 1024);
    assert_true(config.context_assumed);
    assert_true(config.attention_dropout == 0.1 && config.embedding_dropout == 0);
    assert_true(config.residual_dropout == 0.25);
    assert_int_equal(config.padding_row, 0);
    assert_int_equal(parse(good_json, &config), TIDE_OK);
    assert_true(config.embedding_dropout == 0.1);
    assert_false(config.context_assumed);
    config = preset("gpt2");
    assert_true(config.attention_dropout == 0 && config.embedding_dropout == 0 &&
                config.residual_dropout == 0);
}

static void malformed_configs_are_refused_by_field(void **unused)
{
    assert_refused("{", "", TIDE_ERROR_CORRUPT, "not JSON at line 1");
    assert_refused("\"n_layer\":2,", "", TIDE_ERROR_CORRUPT, "\"n_layer\" is missing");
    assert_refused("\"n_layer\":2", "\"n_layer\":2.5", TIDE_ERROR_CORRUPT,
                   "\"n_layer\" must be a whole number");
    assert_refused("\"n_layer\":2", "\"n_layer\":\"2\"", TIDE_ERROR_CORRUPT,
                   "\"n_layer\" must be a whole number");
    assert_refused("\"n_layer\":2", "\"n_layer\":0", TIDE_ERROR_CORRUPT,
                   "\"n_layer\" is 0, it must be in 1 .. 1024");
    assert_refused("\"n_embd\":64", "\"n_embd\":4294967360", TIDE_ERROR_CORRUPT, "\"n_embd\" is 4294967360");
    assert_refused("\"n_embd\":64", "\"n_embd\":66", TIDE_ERROR_CORRUPT,
                   "n_embd is 66, it must be a multiple of n_head, which is 4");
    assert_refused("\"n_layer\":2", "\"n_layer\":2,\"n_layer\":3", TIDE_ERROR_CORRUPT,
                   "duplicate object key");
    assert_refused("\"n_ctx\":128", "\"n_ctx\":256", TIDE_ERROR_CORRUPT, "they must be equal");
    assert_refused("1e-05", "-1", TIDE_ERROR_CORRUPT, "layer_norm_epsilon");
    assert_refused("true", "1", TIDE_ERROR_CORRUPT, "\"tie_word_embeddings\" must be true");
    assert_refused("null", "\"x\"", TIDE_ERROR_CORRUPT, "\"n_inner\" must be a whole number");
    assert_refused("\"resid_pdrop\":0.1", "\"resid_pdrop\":1.5", TIDE_ERROR_CORRUPT,
                   "\"resid_pdrop\" must be a number from 0 to 1");
    assert_refused("\"resid_pdrop\":0.1", "\"attn_pdrop\":\"0.1\"", TIDE_ERROR_CORRUPT,
                   "\"attn_pdrop\" must be a number from 0 to 1");
}

static void other_networks_are_refused_by_field(void **unused)
{
    assert_refused("\"gpt2\"", "\"bert\"", TIDE_ERROR_UNSUPPORTED,
                   "\"model_type\" is \"bert\", only gpt2, llama, mistral, qwen2, qwen3 are built");
    assert_refused("\"model_type\":\"gpt2\",", "", TIDE_ERROR_CORRUPT,
                   "\"model_type\" must be a string, one of gpt2, llama");
    assert_refused("gelu_new", "relu", TIDE_ERROR_UNSUPPORTED, "activation_function");
    assert_refused("true", "false", TIDE_ERROR_UNSUPPORTED, "\"tie_word_embeddings\" is false, only true");
    assert_refused("null", "128", TIDE_ERROR_UNSUPPORTED, "\"n_inner\" is 128");
    assert_refused("\"resid_pdrop\":0.1", "\"scale_attn_by_inverse_layer_idx\":true", TIDE_ERROR_UNSUPPORTED,
                   "scale_attn_by_inverse_layer_idx");
    assert_refused("\"resid_pdrop\":0.1", "\"compression_config\":{}", TIDE_ERROR_UNSUPPORTED,
                   "\"compression_config\" is {}, only null is built");
    assert_refused("\"resid_pdrop\":0.1", "\"quantization_config\":{\"bits\":4}", TIDE_ERROR_UNSUPPORTED,
                   "\"quantization_config\" is {\"bits\":4}, only null is built");
    assert_refused("\"resid_pdrop\":0.1", "\"is_causal\":false", TIDE_ERROR_UNSUPPORTED,
                   "\"is_causal\" is false, only true is built");
}

static void an_unknown_model_names_the_presets(void **unused)
{
    tide_model_config config;
    assert_int_equal(tide_model_config_open("gpt3", &config), TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), "gpt2-nano, gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt-1t"));
    assert_int_equal(tide_model_config_open("/tmp", &config), TIDE_ERROR_IO);
    assert_int_equal(tide_model_config_open("/dev/null", &config), TIDE_ERROR_IO);
}

static void a_changed_field_is_checked(void **unused)
{
    tide_model_config config = preset("gpt2");
    config.vocab_size = 0;
    assert_int_equal(tide_model_config_check(&config, "--vocab-size"), TIDE_ERROR_ARGUMENT);
    assert_non_null(strstr(tide_message(), "--vocab-size: vocab_size is 0"));
    assert_false(tide_model_config_is_valid(&config));
    config.vocab_size = 50304;
    assert_int_equal(tide_model_config_check(&config, "--vocab-size"), TIDE_OK);
}

static void no_memory_is_reported(void **unused)
{
    char path[] = "/tmp/tidepool-config-XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0 &&
                write(descriptor, good_json, strlen(good_json)) == (ssize_t)strlen(good_json));
    close(descriptor);
    bool met = true;
    unsigned request = 0;
    for (; met; request++) {
        tide_model_config config;
        fake_memory_fail(request);
        tide_status status = tide_model_config_open(path, &config);
        met = fake_memory_failed();
        bool in_parser = fake_memory_failed_in_jansson();
        fake_memory_clear();
        /* jansson's lexer does not check whether its token buffer could grow, so it may cut a long key
         * short. */
        if (!in_parser)
            assert_int_equal(status, met ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
    }
    unlink(path);
    assert_true(request > 5);
}

/* ---- params ---- */

static void params_have_hugging_faces_names_and_shapes_in_forward_order(void **unused)
{
    static const char *const names[] = {"wte.weight",
                                        "wpe.weight",
                                        "h.0.ln_1.weight",
                                        "h.0.ln_1.bias",
                                        "h.0.attn.c_attn.weight",
                                        "h.0.attn.c_attn.bias",
                                        "h.0.attn.c_proj.weight",
                                        "h.0.attn.c_proj.bias",
                                        "h.0.ln_2.weight",
                                        "h.0.ln_2.bias",
                                        "h.0.mlp.c_fc.weight",
                                        "h.0.mlp.c_fc.bias",
                                        "h.0.mlp.c_proj.weight",
                                        "h.0.mlp.c_proj.bias",
                                        "h.1.ln_1.weight"};
    tide_model_config config = preset("gpt2");
    tide_model_param param;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        tide_model_param_describe(&config, i, &param);
        assert_string_equal(param.name, names[i]);
    }
    assert_int_equal(tide_model_param_count(&config), 148);
    tide_model_param_describe(&config, 147, &param);
    assert_string_equal(param.name, "ln_f.bias");
    tide_model_param_describe(&config, tide_model_param_index(&config, TIDE_ROLE_QKV_WEIGHT, 11), &param);
    assert_string_equal(param.name, "h.11.attn.c_attn.weight");
    assert_true(param.rank == 2 && param.shape[0] == 768 && param.shape[1] == 2304 && param.decays);
    tide_model_param_describe(&config, tide_model_param_index(&config, TIDE_ROLE_MLP_WEIGHT, 3), &param);
    assert_true(param.shape[0] == 3072 && param.shape[1] == 768);
    tide_model_tensor tensor;
    tide_model_tensor_describe(&config, param.first_tensor, &tensor);
    assert_true(fabs(tensor.init_deviation - 0.02 / sqrt(24)) < 1e-15);
    tide_model_param_describe(&config, tide_model_param_index(&config, TIDE_ROLE_FC_BIAS, 3), &param);
    assert_true(param.rank == 1 && param.shape[0] == 3072 && param.shape[1] == 0 && !param.decays);
}

static void the_vocabularys_rows_are_padded_in_memory(void **unused)
{
    const uint32_t rows[][2] = {{1, 64}, {64, 64}, {65, 128}, {50257, 50304}, {16777216, 16777216}};
    tide_model_config config = preset("gpt2");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        config.vocab_size = rows[i][0];
        assert_int_equal(tide_model_vocabulary_rows(&config), rows[i][1]);
    }
}

/* ---- initial values ---- */

static void philox_matches_its_published_vectors(void **unused)
{
    static const uint32_t vectors[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e,
         0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb,
         0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t words[4];
        tide_random_philox(vectors[i], vectors[i] + 4, words);
        assert_memory_equal(words, vectors[i] + 6, sizeof words);
    }
}

static void any_range_of_a_param_gives_the_same_values(void **unused)
{
    enum { COUNT = 1000 };
    tide_model_config config = preset("gpt2-nano");
    float whole[COUNT], parts[COUNT];
    size_t param = tide_model_param_index(&config, TIDE_ROLE_QKV_WEIGHT, 2);
    tide_model_init_range(&config, 42, param, 5, COUNT, whole);
    for (uint64_t first = COUNT; first > 0;) {
        uint64_t count = first % 7 + 1 > first ? first : first % 7 + 1;
        first -= count;
        tide_model_init_range(&config, 42, param, 5 + first, count, parts + first);
    }
    assert_memory_equal(whole, parts, sizeof whole);
    tide_model_init_range(&config, 43, param, 5, COUNT, parts);
    assert_memory_not_equal(whole, parts, sizeof whole);
    tide_model_init_range(&config, 42, param + 12, 5, COUNT, parts);
    assert_memory_not_equal(whole, parts, sizeof whole);
}

/* The initial values of a seed must stay those with which this hash was computed. */
static void initial_values_of_a_seed_never_change(void **unused)
{
    const tide_model_config config = preset("gpt2-nano");
    uint64_t hash = 0;
    for (size_t i = 0; i < tide_model_param_count(&config); i++) {
        tide_model_param param;
        tide_model_param_describe(&config, i, &param);
        float *values = malloc(param.elements * sizeof *values);
        assert_non_null(values);
        tide_model_init_range(&config, 42, i, 0, param.elements, values);
        hash = tide_hash_end(hash, values, param.elements * sizeof *values, param.elements * sizeof *values);
        free(values);
    }
    assert_int_equal(hash, 0x7b812af1c936f69f);
}

/* Mean within 5 standard errors of 0, standard deviation within 2%, and fourth moment within 10% of the
 * normal distribution's. */
static void assert_normal(const tide_model_config *config, tide_role role, double deviation)
{
    enum { COUNT = 65536 };
    float *values = malloc(COUNT * sizeof *values);
    double sum = 0, squares = 0, fourths = 0;
    assert_non_null(values);
    tide_model_init_range(config, 7, tide_model_param_index(config, role, 0), 0, COUNT, values);
    for (size_t i = 0; i < COUNT; i++) {
        double scaled = (double)values[i] / deviation;
        sum += scaled;
        squares += scaled * scaled;
        fourths += scaled * scaled * scaled * scaled;
    }
    free(values);
    assert_true(fabs(sum / COUNT) < 5 / sqrt(COUNT));
    assert_true(fabs(squares / COUNT - 1) < 0.02);
    assert_true(fabs(fourths / COUNT - 3) < 0.3);
}

static void initial_values_have_gpt2s_distributions(void **unused)
{
    tide_model_config config = preset("gpt2-nano");
    float values[256];
    assert_normal(&config, TIDE_ROLE_TOKEN_EMBEDDING, 0.02);
    assert_normal(&config, TIDE_ROLE_POSITION_EMBEDDING, 0.01);
    assert_normal(&config, TIDE_ROLE_FC_WEIGHT, 0.02);
    assert_normal(&config, TIDE_ROLE_ATTENTION_WEIGHT, 0.02 / sqrt(12));
    tide_model_init_range(&config, 7, tide_model_param_index(&config, TIDE_ROLE_NORM_F_WEIGHT, 0), 0, 256,
                          values);
    for (int i = 0; i < 256; i++)
        assert_true(values[i] == 1.0f);
    tide_model_init_range(&config, 7, tide_model_param_index(&config, TIDE_ROLE_NORM_F_BIAS, 0), 0, 256,
                          values);
    for (int i = 0; i < 256; i++)
        assert_true(values[i] == 0.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_have_an_order),
        cmocka_unit_test(a_hugging_face_config_is_read),
        cmocka_unit_test(optional_fields_may_be_absent_or_spelled_the_old_way),
        cmocka_unit_test(absent_fields_are_transformers_defaults),
        cmocka_unit_test(malformed_configs_are_refused_by_field),
        cmocka_unit_test(other_networks_are_refused_by_field),
        cmocka_unit_test(an_unknown_model_names_the_presets),
        cmocka_unit_test(a_changed_field_is_checked),
        cmocka_unit_test(no_memory_is_reported),
        cmocka_unit_test(params_have_hugging_faces_names_and_shapes_in_forward_order),
        cmocka_unit_test(the_vocabularys_rows_are_padded_in_memory),
        cmocka_unit_test(philox_matches_its_published_vectors),
        cmocka_unit_test(any_range_of_a_param_gives_the_same_values),
        cmocka_unit_test(initial_values_of_a_seed_never_change),
        cmocka_unit_test(initial_values_have_gpt2s_distributions),
    };
    fake_memory_take_jansson();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
