/* The params and tensors of the Llama-like families: their number, names, shapes and order, and which
 * tensors are one param because one matmul uses them together. */
#include "src/model/params.h"
#include "tests/support/assert_ok.h"
#include "tests/support/small_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static tide_model_config preset(const char *name)
{
    tide_model_config config;
    assert_int_equal(tide_model_config_open(name, &config), TIDE_OK);
    return config;
}

static void presets_have_their_published_sizes(void **unused)
{
    static const struct {
        const char *name;
        uint64_t elements;
    } published[] = {
        {"gpt2", 124439808},
        {"gpt2-medium", 354823168},
        {"gpt2-large", 774030080},
        {"gpt2-xl", 1557611200},
        {"gpt2-nano", 256 * 256 * 2 + 6 * (12 * 256 * 256 + 13 * 256) + 512},
        {"llama-3.2-1b", 1235814400},
        {"llama-3.1-8b", 8030261248},
        {"llama-3.1-70b", 70553706496},
        {"qwen2.5-7b", 7615616512},
        {"qwen3-8b", 8190735360},
        {"qwen3-32b", 32762123264},
        /* embedding and head, six layers, last norm:
         * 2 x 256 x 256 + 6 x (256 x (384 + 256 + 3 x 768) + 2 x 256) + 256 */
        {"llama-nano", 4656384},
    };
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        const tide_model_config config = preset(published[i].name);
        uint64_t elements = 0;
        for (size_t t = 0; t < tide_model_tensor_count(&config); t++) {
            tide_model_tensor tensor;
            tide_model_tensor_describe(&config, t, &tensor);
            elements += tensor.elements;
        }
        if (tide_model_element_count(&config) != published[i].elements || elements != published[i].elements)
            fail_msg("%s has %llu params, its tensors %llu", published[i].name,
                     (unsigned long long)tide_model_element_count(&config), (unsigned long long)elements);
    }
}

/* ---- names and shapes ---- */

typedef struct expected_tensor {
    const char *name;
    uint64_t shape[2]; /* the second is 0 for a vector */
} expected_tensor;

static void assert_tensor(const tide_model_config *config, size_t index, const char *name,
                          const expected_tensor *expected)
{
    tide_model_tensor tensor;
    tide_model_tensor_describe(config, index, &tensor);
    assert_string_equal(tensor.name, name);
    assert_int_equal(tensor.rank, expected->shape[1] == 0 ? 1 : 2);
    assert_int_equal(tensor.shape[0], expected->shape[0]);
    assert_int_equal(tensor.shape[1], expected->shape[1]);
    assert_int_equal(tensor.elements,
                     expected->shape[0] * (expected->shape[1] == 0 ? 1 : expected->shape[1]));
}

/* Check the embedding, every layer's tensors, the last norm and, if it is not tied, the head. */
static void assert_tensors(const tide_model_config *config, const expected_tensor *of_layer, size_t count)
{
    const expected_tensor embedding = {"model.embed_tokens.weight", {config->vocab_size, config->width}},
                          norm = {"model.norm.weight", {config->width, 0}},
                          head = {"lm_head.weight", {config->vocab_size, config->width}};
    const size_t behind = 1 + config->layers * count;
    assert_tensor(config, 0, embedding.name, &embedding);
    for (uint32_t layer = 0; layer < config->layers; layer++)
        for (size_t i = 0; i < count; i++) {
            char name[64];
            snprintf(name, sizeof name, "model.layers.%u.%s", layer, of_layer[i].name);
            assert_tensor(config, 1 + layer * count + i, name, &of_layer[i]);
        }
    assert_tensor(config, behind, norm.name, &norm);
    if (!config->tied)
        assert_tensor(config, behind + 1, head.name, &head);
    assert_int_equal(tide_model_tensor_count(config), behind + (config->tied ? 1 : 2));
    assert_int_equal(tide_model_has(config, TIDE_ROLE_HEAD), !config->tied);
}

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static void tensors_have_hugging_faces_names_and_shapes_in_forward_order(void **unused)
{
    const expected_tensor of_llama[] = {
        {"input_layernorm.weight", {4096, 0}},     {"self_attn.q_proj.weight", {4096, 4096}},
        {"self_attn.k_proj.weight", {1024, 4096}}, {"self_attn.v_proj.weight", {1024, 4096}},
        {"self_attn.o_proj.weight", {4096, 4096}}, {"post_attention_layernorm.weight", {4096, 0}},
        {"mlp.gate_proj.weight", {14336, 4096}},   {"mlp.up_proj.weight", {14336, 4096}},
        {"mlp.down_proj.weight", {4096, 14336}}};
    const expected_tensor of_qwen2[] = {{"input_layernorm.weight", {3584, 0}},
                                        {"self_attn.q_proj.weight", {3584, 3584}},
                                        {"self_attn.k_proj.weight", {512, 3584}},
                                        {"self_attn.v_proj.weight", {512, 3584}},
                                        {"self_attn.q_proj.bias", {3584, 0}},
                                        {"self_attn.k_proj.bias", {512, 0}},
                                        {"self_attn.v_proj.bias", {512, 0}},
                                        {"self_attn.o_proj.weight", {3584, 3584}},
                                        {"post_attention_layernorm.weight", {3584, 0}},
                                        {"mlp.gate_proj.weight", {18944, 3584}},
                                        {"mlp.up_proj.weight", {18944, 3584}},
                                        {"mlp.down_proj.weight", {3584, 18944}}};
    const expected_tensor of_qwen3[] = {
        {"input_layernorm.weight", {5120, 0}},     {"self_attn.q_proj.weight", {8192, 5120}},
        {"self_attn.k_proj.weight", {1024, 5120}}, {"self_attn.v_proj.weight", {1024, 5120}},
        {"self_attn.q_norm.weight", {128, 0}},     {"self_attn.k_norm.weight", {128, 0}},
        {"self_attn.o_proj.weight", {5120, 8192}}, {"post_attention_layernorm.weight", {5120, 0}},
        {"mlp.gate_proj.weight", {25600, 5120}},   {"mlp.up_proj.weight", {25600, 5120}},
        {"mlp.down_proj.weight", {5120, 25600}}};
    tide_model_config config = preset("llama-3.1-8b");
    assert_tensors(&config, of_llama, COUNT(of_llama));
    config.family = tide_model_family_find("mistral");
    assert_tensors(&config, of_llama, COUNT(of_llama));
    config = preset("qwen2.5-7b");
    assert_tensors(&config, of_qwen2, COUNT(of_qwen2));
    config.tied = true;
    assert_tensors(&config, of_qwen2, COUNT(of_qwen2));
    config = preset("qwen3-32b");
    assert_tensors(&config, of_qwen3, COUNT(of_qwen3));
}

static void biases_stand_behind_their_weights(void **unused)
{
    const expected_tensor of_layer[] = {
        {"input_layernorm.weight", {64, 0}},   {"self_attn.q_proj.weight", {64, 64}},
        {"self_attn.k_proj.weight", {32, 64}}, {"self_attn.v_proj.weight", {32, 64}},
        {"self_attn.q_proj.bias", {64, 0}},    {"self_attn.k_proj.bias", {32, 0}},
        {"self_attn.v_proj.bias", {32, 0}},    {"self_attn.o_proj.weight", {64, 64}},
        {"self_attn.o_proj.bias", {64, 0}},    {"post_attention_layernorm.weight", {64, 0}},
        {"mlp.gate_proj.weight", {170, 64}},   {"mlp.up_proj.weight", {170, 64}},
        {"mlp.gate_proj.bias", {170, 0}},      {"mlp.up_proj.bias", {170, 0}},
        {"mlp.down_proj.weight", {64, 170}},   {"mlp.down_proj.bias", {64, 0}}};
    tide_model_config config = model_of_family("llama", 2, 64, 4, 32, 100);
    config.attention_bias = config.output_bias = config.mlp_bias = true;
    assert_tensors(&config, of_layer, COUNT(of_layer));
}

/* ---- tensors that one matmul uses together ---- */

static void assert_one_param(const tide_model_config *config, tide_role role, const char *const names[],
                             const uint64_t rows[], uint32_t count, uint64_t columns)
{
    tide_model_param param;
    uint64_t first = 0;
    tide_model_param_describe(config, tide_model_param_index(config, role, 1), &param);
    assert_int_equal(param.tensors, count);
    assert_string_equal(param.name, names[0]);
    for (uint32_t i = 0; i < count; i++) {
        tide_model_tensor tensor;
        tide_model_tensor_describe(config, param.first_tensor + i, &tensor);
        assert_string_equal(tensor.name, names[i]);
        assert_int_equal(tensor.param, tide_model_param_index(config, role, 1));
        assert_int_equal(tensor.first, first);
        assert_int_equal(tensor.shape[0], rows[i]);
        first += rows[i] * columns;
    }
    assert_int_equal(param.elements, first);
    assert_int_equal(param.shape[0] * columns, first);
}

static void queries_keys_and_values_are_one_param_and_gate_and_up_another(void **unused)
{
    static const char *const weights[] = {"model.layers.1.self_attn.q_proj.weight",
                                          "model.layers.1.self_attn.k_proj.weight",
                                          "model.layers.1.self_attn.v_proj.weight"};
    static const char *const biases[] = {"model.layers.1.self_attn.q_proj.bias",
                                         "model.layers.1.self_attn.k_proj.bias",
                                         "model.layers.1.self_attn.v_proj.bias"};
    static const char *const into[] = {"model.layers.1.mlp.gate_proj.weight",
                                       "model.layers.1.mlp.up_proj.weight"};
    const tide_model_config config = preset("qwen2.5-7b");
    assert_one_param(&config, TIDE_ROLE_QKV_WEIGHT, weights, (uint64_t[]){3584, 512, 512}, 3, 3584);
    assert_one_param(&config, TIDE_ROLE_QKV_BIAS, biases, (uint64_t[]){3584, 512, 512}, 3, 1);
    assert_one_param(&config, TIDE_ROLE_FC_WEIGHT, into, (uint64_t[]){18944, 18944}, 2, 3584);
}

/* ---- every preset ---- */

static void assert_param(const tide_model_config *config, size_t index, size_t *tensors)
{
    tide_model_param param;
    uint64_t rows = 0, elements = 0;
    tide_model_param_describe(config, index, &param);
    assert_true(tide_model_has(config, param.role));
    assert_int_equal(tide_model_param_index(config, param.role, param.layer), index);
    assert_int_equal(param.first_tensor, *tensors);
    for (uint32_t i = 0; i < param.tensors; i++) {
        tide_model_tensor tensor;
        tide_model_tensor_describe(config, (*tensors)++, &tensor);
        assert_int_equal(tensor.param, index);
        assert_int_equal(tensor.role, param.role);
        assert_int_equal(tensor.layer, param.layer);
        assert_int_equal(tensor.rank, param.rank);
        assert_int_equal(tensor.shape[1], param.shape[1]);
        assert_int_equal(tensor.first, elements);
        const bool is_norm = strstr(tensor.name, "norm") || strstr(tensor.name, "ln_");
        const bool is_bias = strstr(tensor.name, ".bias") != NULL;
        if (param.decays != !(is_norm || is_bias))
            fail_msg("%s: decay is %d", tensor.name, param.decays);
        assert_int_equal(tensor.init_deviation != 0, param.decays);
        assert_true(tensor.init_value == (is_norm && !is_bias ? 1.0f : 0.0f));
        const bool residual = strstr(tensor.name, "o_proj.weight") || strstr(tensor.name, "down_proj.weight");
        if (config->family->rotary && param.decays)
            assert_true(fabs(tensor.init_deviation - (residual ? 0.02 / sqrt(2.0 * config->layers) : 0.02)) <
                        1e-15);
        rows += tensor.shape[0];
        elements += tensor.elements;
    }
    assert_int_equal(rows, param.shape[0]);
    assert_int_equal(elements, param.elements);
    const bool of_vocabulary = param.role == TIDE_ROLE_TOKEN_EMBEDDING || param.role == TIDE_ROLE_HEAD;
    assert_int_equal(param.memory_rows, of_vocabulary ? tide_model_vocabulary_rows(config) : rows);
    assert_int_equal(param.memory_elements, param.memory_rows * (param.rank == 2 ? param.shape[1] : 1));
}

static void every_index_is_its_roles_in_every_preset(void **unused)
{
    for (size_t p = 0; tide_model_preset_name(p); p++) {
        tide_model_config config = preset(tide_model_preset_name(p));
        config.vocab_size -= 7; /* not a multiple of 64 */
        size_t tensors = 0;
        for (size_t i = 0; i < tide_model_param_count(&config); i++)
            assert_param(&config, i, &tensors);
        assert_int_equal(tensors, tide_model_tensor_count(&config));
    }
}

/* Each tensor of a param has its own stream of random numbers, so its values do not depend on which tensors
 * share the param. */
static void tensors_of_a_param_have_values_of_their_own(void **unused)
{
    const tide_model_config config = preset("llama-nano");
    tide_model_param param;
    float q[64], k[64], v[64];
    tide_model_param_describe(&config, tide_model_param_index(&config, TIDE_ROLE_QKV_WEIGHT, 2), &param);
    tide_model_init_range(&config, 42, param.first_tensor, 0, 64, q);
    tide_model_init_range(&config, 42, param.first_tensor + 1, 0, 64, k);
    tide_model_init_range(&config, 42, param.first_tensor + 2, 0, 64, v);
    assert_memory_not_equal(q, k, sizeof q);
    assert_memory_not_equal(k, v, sizeof k);
    tide_model_param_describe(&config, tide_model_param_index(&config, TIDE_ROLE_NORM_2_WEIGHT, 2), &param);
    tide_model_init_range(&config, 42, param.first_tensor, 0, 64, q);
    for (int i = 0; i < 64; i++)
        assert_true(q[i] == 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_have_their_published_sizes),
        cmocka_unit_test(tensors_have_hugging_faces_names_and_shapes_in_forward_order),
        cmocka_unit_test(biases_stand_behind_their_weights),
        cmocka_unit_test(queries_keys_and_values_are_one_param_and_gate_and_up_another),
        cmocka_unit_test(every_index_is_its_roles_in_every_preset),
        cmocka_unit_test(tensors_of_a_param_have_values_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
