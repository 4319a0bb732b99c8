/* config.json of the Llama-like families, in the forms of transformers 4 and 5: the values read, the
 * refusals and their messages, and the files written. */
#include "src/model/config_json.h"
#include "src/model/config_rope.h"
#include "src/model/family.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"
#include "tests/support/same_config.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static const char *const families[] = {"llama", "mistral", "qwen2", "qwen3"};

enum { FAMILIES = COUNT(families), TEXT_BYTES = 2048 };

/* A field that the text needs because the family's default for it would not fit the other fields; "" if
 * `more` has the field. */
static const char *needed_of(const char *family, const char *more)
{
    if (strcmp(family, "mistral") == 0 && strstr(more, "'sliding_window'") == NULL)
        return ",'sliding_window':null";
    return strncmp(family, "qwen", 4) == 0 && strstr(more, "'num_key_value_heads'") == NULL
               ? ",'num_key_value_heads':8"
               : "";
}

/* Write a config.json with the fields that all these families have, the one from needed_of, and `more`. The
 * texts of this file have single quotes in place of double ones, which parse_text puts in. */
static void write_text(char text[TEXT_BYTES], const char *family, const char *more)
{
    snprintf(text, TEXT_BYTES,
             "{'architectures':['SomeForCausalLM'],'model_type':'%s','hidden_act':'silu','hidden_size':64,'"
             "intermediate_size':172,'num_hidden_layers':3,'num_attention_heads':8,'max_position_embeddings':"
             "4096,'vocab_size':1000,'initializer_range':0.02,'use_cache':true%s%s}",
             family, needed_of(family, more), more);
}

static void replace_quotes(char *text, char from, char to)
{
    for (; *text; text++)
        *text = *text == from ? to : *text;
}

static tide_status parse_text(const char *text, tide_model_config *config)
{
    char quoted[2 * TEXT_BYTES];
    snprintf(quoted, sizeof quoted, "%s", text);
    replace_quotes(quoted, '\'', '"');
    return tide_model_config_parse(quoted, strlen(quoted), "my.json", config);
}

/* Checks the message of the last refusal, but for "model my.json: " in front of it. */
static void assert_said(const char *of, const char *line)
{
    char said[512], expected[512];
    snprintf(said, sizeof said, "%s", tide_message());
    replace_quotes(said, '"', '\'');
    snprintf(expected, sizeof expected, "model my.json: %s", line);
    if (strcmp(said, expected) != 0)
        fail_msg("%s: \"%s\", and not \"%s\"", of, said, expected);
}

static tide_status parse(const char *family, const char *more, tide_model_config *config)
{
    char text[TEXT_BYTES];
    write_text(text, family, more);
    return parse_text(text, config);
}

/* Parses a text in which `instead` stands for `piece`. */
static tide_status parse_changed(const char *family, const char *more, const char *piece, const char *instead,
                                 tide_model_config *config)
{
    char text[TEXT_BYTES], changed[2 * TEXT_BYTES];
    write_text(text, family, more);
    const char *at = strstr(text, piece);
    assert_non_null(at);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, instead, at + strlen(piece));
    return parse_text(changed, config);
}

static tide_model_config read_config(const char *family, const char *more)
{
    tide_model_config config;
    if (parse(family, more, &config) != TIDE_OK)
        fail_msg("%s%s: %s", family, more, tide_message());
    assert_true(tide_model_config_is_valid(&config));
    return config;
}

/* ---- reading ---- */

static void every_field_is_read_as_either_transformers_writes_it(void **unused)
{
    static const char fields[] = ",'num_key_value_heads':2,'head_dim':16,'rms_norm_eps':1e-05,'tie_word_"
                                 "embeddings':true,'bos_token_id':1,'eos_token_id':[2,3],";
    for (size_t i = 0; i < FAMILIES; i++) {
        char four[512], five[512];
        snprintf(four, sizeof four, "%s'rope_theta':1000000.0,'rope_scaling':null,'torch_dtype':'bfloat16'",
                 fields);
        snprintf(five, sizeof five,
                 "%s'rope_parameters':{'rope_theta':1000000,'rope_type':'default'},'dtype':'bfloat16','layer_"
                 "types':['full_attention','full_attention','full_attention']",
                 fields);
        const tide_model_config read = read_config(families[i], four), other = read_config(families[i], five);
        tide_model_config expected = {.family = tide_model_family_find(families[i]),
                                      .layers = 3,
                                      .width = 64,
                                      .heads = 8,
                                      .kv_heads = 2,
                                      .head_width = 16,
                                      .mlp_width = 172,
                                      .context = 4096,
                                      .vocab_size = 1000,
                                      .norm_epsilon = 1e-5,
                                      .tied = true,
                                      .attention_bias = strcmp(families[i], "qwen2") == 0,
                                      .rope = {.theta = 1e6}};
        assert_same_config(&read, &expected, families[i]);
        assert_same_config(&other, &expected, families[i]);
        assert_string_equal(tide_model_family_name(read.family), families[i]);
    }
}

static void absent_and_null_fields_have_the_familys_values(void **unused)
{
    for (size_t i = 0; i < FAMILIES; i++) {
        const bool is_qwen3 = strcmp(families[i], "qwen3") == 0, is_qwen2 = strcmp(families[i], "qwen2") == 0;
        const tide_model_config absent = read_config(families[i], "");
        const tide_model_config null = read_config(
            families[i],
            ",'num_key_value_heads':null,'head_dim':null,'rms_norm_eps':null,'tie_word_embeddings':null,'"
            "rope_theta':null,'rope_scaling':null,'rope_parameters':null,'layer_types':null,'num_experts':"
            "null,'quantization_config':null,'sliding_window':null,'use_sliding_window':null,'attention_bias'"
            ":null,'mlp_bias':null,'partial_rotary_factor':null");
        assert_int_equal(absent.kv_heads, 8);
        assert_int_equal(null.kv_heads, 8); /* the number of heads */
        assert_int_equal(absent.head_width, is_qwen3 ? 128 : 8);
        assert_int_equal(null.head_width, 8);
        assert_true(absent.norm_epsilon == 1e-6 && absent.rope.theta == 10000);
        assert_true(null.norm_epsilon == 1e-6 && null.rope.theta == 10000);
        assert_int_equal(absent.rope.kind, TIDE_ROPE_DEFAULT);
        assert_false(absent.tied || absent.output_bias || absent.mlp_bias);
        assert_int_equal(absent.attention_bias, is_qwen2);
    }
}

/* The defaults are those of transformers' classes: 32 key-value heads in Qwen's; 8 and a sliding window in
 * Mistral's. */
static void what_is_absent_means_what_it_means_to_transformers(void **unused)
{
    tide_model_config config;
    for (size_t i = 2; i < FAMILIES; i++) {
        assert_int_equal(parse_changed(families[i], "", needed_of(families[i], ""), "", &config),
                         TIDE_ERROR_CORRUPT);
        assert_non_null(strstr(tide_message(), "must be a multiple of num_key_value_heads, which is 32"));
    }
    config = read_config("mistral", ",'sliding_window':null");
    assert_int_equal(config.kv_heads, 8);
    /* the default window is as long as the context */
    assert_int_equal(parse_changed("mistral", "", ",'sliding_window':null", "", &config), TIDE_OK);
    assert_int_equal(config.window, 0);
    static const char rest[] =
        "4096,'vocab_size':1000,'initializer_range':0.02,'use_cache':true,'sliding_window':null";
    assert_int_equal(parse_changed("mistral", "", rest, "4097,'vocab_size':1000", &config), TIDE_OK);
    assert_int_equal(config.window, 4096);
}

/* The defaults of transformers 5: LlamaConfig 2048, MistralConfig 4096 * 32, Qwen2Config and Qwen3Config
 * 32768. */
static void positions_that_are_absent_are_transformers_default(void **unused)
{
    static const uint32_t contexts[FAMILIES] = {2048, 131072, 32768, 32768};
    for (size_t i = 0; i < FAMILIES; i++) {
        tide_model_config config;
        assert_int_equal(parse_changed(families[i], "", "max_position", "some_numbers", &config), TIDE_OK);
        assert_int_equal(config.context, contexts[i]);
        assert_true(config.context_assumed);
        assert_false(read_config(families[i], "").context_assumed);
        assert_int_equal(parse_changed(families[i], "", "4096", "null", &config), TIDE_ERROR_CORRUPT);
        assert_said("null", "field 'max_position_embeddings' must be a whole number in 1 .. 16777216");
    }
}

/* transformers passes config.pad_token_id to nn.Embedding as padding_idx, and torch counts a negative one
 * from the end of the vocabulary, here 1000 tokens. */
static void a_padding_token_is_the_embeddings(void **unused)
{
    static const struct {
        const char *more;
        uint32_t row;
    } cases[] = {{"", 0},
                 {",'pad_token_id':null", 0},
                 {",'pad_token_id':0", 1},
                 {",'pad_token_id':999", 1000},
                 {",'pad_token_id':-1", 1000},
                 {",'pad_token_id':-1000", 1},
                 /* not a row of the embedding; transformers can't build such a model */
                 {",'pad_token_id':1000", 0},
                 {",'pad_token_id':-1001", 0}};
    for (size_t f = 0; f < FAMILIES; f++)
        for (size_t i = 0; i < COUNT(cases); i++)
            assert_int_equal(read_config(families[f], cases[i].more).padding_row, cases[i].row);
}

static void dropout_is_known_and_not_done(void **unused)
{
    for (size_t f = 0; f < FAMILIES; f++) {
        assert_true(read_config(families[f], "").attention_dropout == 0);
        const tide_model_config config = read_config(families[f], ",'attention_dropout':0.25");
        assert_true(config.attention_dropout == 0.25);
        assert_true(config.residual_dropout == 0 && config.embedding_dropout == 0);
    }
}

/* A family without a field for a bias ignores it, as transformers does. */
static void biases_are_the_familys_and_the_configs(void **unused)
{
    /* biases of q, k and v; of attention's output projection; of the MLP */
    static const bool has[FAMILIES][3] = {
        {true, true, true}, {false, false, false}, {true, false, false}, {true, true, false}};
    for (size_t i = 0; i < FAMILIES; i++) {
        const tide_model_config config = read_config(families[i], ",'attention_bias':true,'mlp_bias':true");
        assert_int_equal(config.attention_bias, has[i][0]);
        assert_int_equal(config.output_bias, has[i][1]);
        assert_int_equal(config.mlp_bias, has[i][2]);
    }
}

/* In transformers a position sees itself and the window - 1 positions before it (masking_utils.py). A window
 * shorter than the 4096 positions thus hides some of them in long sequences. config_window.c says which
 * families have a window in which layers. */
static void a_window_that_some_layer_uses_is_known(void **unused)
{
    static const char *const upper[] = {
        ",'use_sliding_window':true,'sliding_window':64,'max_window_layers':2",
        ",'use_sliding_window':true,'sliding_window':64,'max_window_layers':-1,'layer_types':null",
        (",'use_sliding_window':true,'sliding_window':64,'max_window_layers':3,'layer_types':['full_"
         "attention','full_attention','sliding_attention']"),
    };
    static const char *const all[] = {
        ",'sliding_window':64", ",'sliding_window':64,'use_sliding_window':false",
        (",'sliding_window':64,'layer_types':['full_attention','full_attention','full_attention']")};
    for (size_t i = 0; i < COUNT(upper); i++)
        for (size_t f = 2; f < FAMILIES; f++)
            assert_int_equal(read_config(families[f], upper[i]).window, 64);
    for (size_t i = 0; i < COUNT(all); i++)
        assert_int_equal(read_config("mistral", all[i]).window, 64);
    assert_int_equal(read_config("mistral", ",'sliding_window':4095").window, 4095);
    assert_int_equal(read_config("mistral", ",'sliding_window':4096").window, 0);
    assert_int_equal(read_config("llama", ",'sliding_window':64").window,
                     0); /* Llama's class has no such field */
}

/* The text describes windows in upper layers of a model with three layers and 4096 positions. In all these
 * cases transformers uses none. */
static void a_window_that_no_layer_uses_may_be_there(void **unused)
{
    static const char *const texts[] = {
        ",'use_sliding_window':true,'sliding_window':64,'max_window_layers':3",
        ",'use_sliding_window':true,'sliding_window':64", /* by default from layer 28 on */
        ",'use_sliding_window':true,'sliding_window':null,'max_window_layers':0",
        ",'use_sliding_window':true,'sliding_window':4096,'max_window_layers':0",
        ",'use_sliding_window':true,'max_window_layers':0", /* the default window is 4096 */
        ",'use_sliding_window':true,'sliding_window':64,'max_window_layers':0,'layer_types':['full_attention'"
        ",'full_attention','full_attention']", /* layer_types decides */
        ",'use_sliding_window':true,'sliding_window':4096,'layer_types':['sliding_attention','full_attention'"
        ",'sliding_attention']",
        ",'use_sliding_window':false,'sliding_window':0,'max_window_layers':'none'",
    };
    for (size_t i = 0; i < COUNT(texts); i++)
        for (size_t f = 2; f < FAMILIES; f++)
            assert_int_equal(read_config(families[f], texts[i]).window, 0);
}

static void what_is_not_used_may_be_there(void **unused)
{
    (void)read_config("mistral", ",'sliding_window':null");
    (void)read_config("mistral", ",'sliding_window':4096");
    (void)read_config(
        "mistral",
        ",'sliding_window':8192,'layer_types':['full_attention','sliding_attention','sliding_attention']");
    (void)read_config("qwen2", ",'sliding_window':131072,'use_sliding_window':false,'max_window_layers':28");
    (void)read_config("qwen3", ",'sliding_window':null,'use_sliding_window':false,'max_window_layers':3");
    for (size_t f = 0; f < FAMILIES; f++)
        (void)read_config(families[f], ",'num_experts':0,'num_local_experts':0,'is_causal':true");
    (void)read_config("llama", ",'pretraining_tp':1,'partial_rotary_factor':1.0");
    assert_int_equal(read_config("qwen3", ",'head_dim':20").head_width,
                     20); /* heads x head_dim may differ from hidden_size */
}

typedef struct two_forms {
    const char *four, *five;
    tide_rope rope;
} two_forms;

static void kinds_of_positions_are_read_in_either_form(void **unused)
{
    const double third = 0.1 * log(3) + 1;
    const two_forms forms[] = {
        {",'rope_theta':500000", ",'rope_parameters':{'rope_theta':500000.0}", {.theta = 500000}},
        {",'rope_theta':5e5,'rope_scaling':{'type':'default'}",
         ",'rope_theta':5e5,'rope_parameters':{'rope_type':null}",
         {.theta = 500000}},
        {",'rope_scaling':{}",
         ",'rope_parameters':{'partial_rotary_factor':1.0,'factor':null}",
         {.theta = 10000}},
        {",'rope_scaling':{'type':'linear','factor':4}",
         ",'rope_parameters':{'rope_type':'linear','factor':4.0,'rope_theta':10000}",
         {.theta = 10000, .kind = TIDE_ROPE_LINEAR, .factor = 4}},
        {",'rope_theta':500000.0,'rope_scaling':{'factor':8.0,'low_freq_factor':1.0,'high_freq_factor':4.0,'"
         "original_max_position_embeddings':1024,'rope_type':'llama3'}",
         ",'rope_parameters':{'factor':8,'low_freq_factor':1,'high_freq_factor':4,'rope_theta':500000,'"
         "original_max_position_embeddings':1024.0,'rope_type':'llama3','type':'llama3'}",
         LLAMA3(.theta = 500000, .factor = 8, .original_context = 1024)},
        {",'rope_theta':1000000.0,'rope_scaling':{'factor':3.0,'original_max_position_embeddings':1024,'type'"
         ":'yarn'}",
         ",'rope_parameters':{'factor':3.0,'original_max_position_embeddings':1024,'rope_type':'yarn','rope_"
         "theta':1000000,'truncate':true,'beta_fast':32.0,'beta_slow':1}",
         YARN(.theta = 1e6, .factor = 3, .original_context = 1024, .attention_factor = third)},
        {",'rope_scaling':{'rope_type':'yarn','factor':3,'attention_factor':0.75,'beta_fast':16,'beta_slow':"
         "2,'truncate':false}",
         ",'rope_parameters':{'rope_type':'yarn','factor':3,'attention_factor':0.75,'beta_fast':16.0,'beta_"
         "slow':2.0,'truncate':false,'mscale':1,'mscale_all_dim':0.5}",
         {.theta = 10000,
          .kind = TIDE_ROPE_YARN,
          .factor = 3,
          .original_context = 4096, /* from max_position_embeddings */
          .attention_factor = 0.75,
          .beta_fast = 16,
          .beta_slow = 2,
          .exact = true}},
        {",'rope_scaling':{'rope_type':'yarn','factor':null,'original_max_position_embeddings':1024}",
         ",'rope_parameters':{'rope_type':'yarn','factor':4,'original_max_position_embeddings':1024,'mscale':"
         "0,'mscale_all_dim':0.0}",
         /* The factor is max_position_embeddings divided by the original number. */
         YARN(.theta = 10000, .factor = 4, .original_context = 1024, .attention_factor = 0.1 * log(4) + 1)},
        {",'rope_scaling':{'rope_type':'yarn','factor':3,'mscale':1.0,'mscale_all_dim':0.5,'truncate':null}",
         ",'rope_parameters':{'rope_type':'yarn','factor':3,'mscale':1,'mscale_all_dim':0.5,'attention_"
         "factor':null}",
         YARN(.theta = 10000, .factor = 3, .original_context = 4096,
              .attention_factor = third / (0.05 * log(3) + 1))},
    };
    for (size_t i = 0; i < COUNT(forms); i++)
        for (size_t f = 0; f < FAMILIES; f++) {
            const tide_model_config four = read_config(families[f], forms[i].four);
            const tide_model_config five = read_config(families[f], forms[i].five);
            tide_rope expected = forms[i].rope;
            if (fabs(four.rope.attention_factor - expected.attention_factor) < 1e-15)
                expected.attention_factor = four.rope.attention_factor;
            assert_same_rope(&four.rope, &expected, forms[i].four);
            assert_same_rope(&five.rope, &expected, forms[i].five);
        }
}

/* ---- refusals ---- */

typedef struct refusal {
    const char *more, *line;
} refusal;

static void assert_refused(const char *family, const char *more, tide_status wanted, const char *line)
{
    tide_model_config config = {.layers = 77};
    const tide_status status = parse(family, more, &config);
    assert_said(more, line);
    assert_string_equal(tide_status_name(status), tide_status_name(wanted));
    assert_int_equal(config.layers, 77);
}

/* Each text is refused in every family from families[first] on. */
static void assert_all_refused(const refusal *refusals, size_t count, size_t first, tide_status wanted)
{
    for (size_t i = 0; i < count; i++)
        for (size_t f = first; f < FAMILIES; f++)
            assert_refused(families[f], refusals[i].more, wanted, refusals[i].line);
}

#define THREE_FULL "'full_attention','full_attention','full_attention'"

static void other_networks_are_refused_by_field_and_value(void **unused)
{
    static const refusal refusals[] = {
        {",'layer_types':['full_attention','sliding_attention','full_attention']",
         "field 'layer_types' is 'sliding_attention', only 'full_attention' is built"},
        {",'num_experts':128", "field 'num_experts' is 128, only null or 0 is built"},
        {",'num_local_experts':8", "field 'num_local_experts' is 8, only null or 0 is built"},
        {",'attn_logit_softcapping':50.0", "field 'attn_logit_softcapping' is 50.0, only null is built"},
        {",'final_logit_softcapping':30.0", "field 'final_logit_softcapping' is 30.0, only null is built"},
        {",'quantization_config':{'bits':4}",
         "field 'quantization_config' is {'bits':4}, only null is built"},
        {",'compression_config':{'format':'pack'}",
         "field 'compression_config' is {'format':'pack'}, only null is built"},
        {",'is_causal':false", "field 'is_causal' is false, only true is built"},
        {",'rope_scaling':{'rope_type':'dynamic','factor':2.0}",
         "field 'rope_scaling.rope_type' is dynamic, only default, linear, llama3 and yarn are built"},
        {",'rope_scaling':{'type':'longrope'}",
         "field 'rope_scaling.type' is longrope, only default, linear, llama3 and yarn are built"},
        {",'rope_parameters':{'rope_type':'longrope'}",
         "field 'rope_parameters.rope_type' is longrope, only default, linear, llama3 and yarn are built"},
        {",'rope_parameters':{'full_attention':{'rope_type':'default'}}",
         "field 'rope_parameters.full_attention' is an object; positions by kinds of layers are not built"},
        {",'partial_rotary_factor':0.5", "field 'partial_rotary_factor' is 0.5, only 1 is built"},
        {",'rope_parameters':{'rope_theta':1e4,'partial_rotary_factor':0.25}",
         "field 'rope_parameters.partial_rotary_factor' is 0.25, only 1 is built"},
        {",'rope_scaling':{'partial_rotary_factor':0.25}",
         "field 'rope_scaling.partial_rotary_factor' is 0.25, only 1 is built"},
        {",'rope_theta':10000,'rope_scaling':{'rope_type':'linear','factor':2,'rope_theta':500000}",
         "field 'rope_scaling.rope_theta' is 500000, it must be rope_theta's 10000 or absent"},
    };
    assert_all_refused(refusals, COUNT(refusals), 0, TIDE_ERROR_UNSUPPORTED);
    assert_refused("bert", "", TIDE_ERROR_UNSUPPORTED,
                   "field 'model_type' is 'bert', only gpt2, llama, mistral, qwen2, qwen3 are built");
}

/* The model has three layers and 4096 positions. */
static void malformed_windows_of_upper_layers_are_refused(void **unused)
{
    static const refusal layers[] = {
        /* transformers fails because it finds no window size (masking_utils.py) */
        {",'use_sliding_window':true,'sliding_window':null,'max_window_layers':3,'layer_types':['full_"
         "attention','full_attention','sliding_attention']",
         "field 'layer_types' is 'sliding_attention', only 'full_attention' is built"},
        {",'use_sliding_window':true,'sliding_window':64,'layer_types':['full_attention','full_attention','"
         "chunked_attention']",
         "field 'layer_types' is 'chunked_attention', only 'full_attention' is built"},
    };
    static const refusal malformed[] = {
        {",'use_sliding_window':true,'sliding_window':-5",
         "field 'sliding_window' must be null or a whole number of 1 or more"},
        {",'use_sliding_window':true,'sliding_window':64,'max_window_layers':null",
         "field 'max_window_layers' must be a whole number"},
        {",'use_sliding_window':'no'", "field 'use_sliding_window' must be true or false"},
    };
    static const char of_mistral[] = "field 'sliding_window' must be null or a whole number of 1 or more";
    assert_all_refused(layers, COUNT(layers), 2, TIDE_ERROR_UNSUPPORTED);
    assert_all_refused(malformed, COUNT(malformed), 2, TIDE_ERROR_CORRUPT);
    assert_refused("mistral", ",'sliding_window':0", TIDE_ERROR_CORRUPT, of_mistral);
    assert_refused("mistral", ",'sliding_window':'all'", TIDE_ERROR_CORRUPT, of_mistral);
}

static const refusal malformed[] = {
    {",'num_key_value_heads':3",
     "num_attention_heads is 8, it must be a multiple of num_key_value_heads, which is 3"},
    {",'num_key_value_heads':16",
     "num_attention_heads is 8, it must be a multiple of num_key_value_heads, which is 16"},
    {",'pad_token_id':'<pad>'", "field 'pad_token_id' must be null or a whole number"},
    {",'attention_dropout':-0.1", "field 'attention_dropout' must be a number from 0 to 1"},
    {",'num_key_value_heads':0", "field 'num_key_value_heads' is 0, it must be in 1 .. 1024"},
    {",'head_dim':9", "heads of width 9 (head_dim): it must be even, for rotary positions"},
    {",'head_dim':8.0", "field 'head_dim' must be a whole number in 1 .. 4096"},
    {",'tie_word_embeddings':1", "field 'tie_word_embeddings' must be true or false"},
    {",'rms_norm_eps':1.5", "field 'rms_norm_eps' must be a number between 0 and 1"},
    {",'layer_types':'full_attention'", "field 'layer_types' must be a list of 'full_attention'"},
    {",'layer_types':[7]", "field 'layer_types' must be the string 'full_attention'"},
    {",'layer_types':['full_attention','full_attention']",
     "field 'layer_types' has 2 items, it must have num_hidden_layers, 3"},
    {",'layer_types':[" THREE_FULL ",'full_attention']",
     "field 'layer_types' has 4 items, it must have num_hidden_layers, 3"},
    {",'layer_types':[]", "field 'layer_types' has 0 items, it must have num_hidden_layers, 3"},
    {",'rope_theta':0", "field 'rope_theta' must be a number of 1 or more"},
    {",'rope_theta':'1e6'", "field 'rope_theta' must be a number of 1 or more"},
    {",'rope_scaling':{'type':'linear','factor':2},'rope_parameters':{'rope_theta':1e4}",
     "fields 'rope_parameters' and 'rope_scaling' are both there"},
    {",'rope_scaling':'linear'", "field 'rope_scaling' must be an object"},
    {",'rope_parameters':[]", "field 'rope_parameters' must be an object"},
    {",'rope_scaling':{'rope_type':3}",
     "field 'rope_scaling.rope_type' is no string, only default, linear, llama3 and yarn are built"},
    {",'rope_scaling':{'rope_type':'yarn','type':'linear','factor':2}",
     "'rope_scaling.rope_type' is yarn and 'rope_scaling.type' is linear, they must be equal"},
    {",'rope_scaling':{'factor':8}",
     "field 'rope_scaling.factor' is there without 'rope_scaling.rope_type', which must say what it is for"},
    {",'rope_parameters':{'rope_theta':1e4,'rope_type':null,'type':null,'\\n':8}",
     "field 'rope_parameters.?' is there without 'rope_parameters.rope_type', which must say what it is for"},
    {",'rope_scaling':{'type':'linear'}", "field 'rope_scaling.factor' is missing, linear positions need it"},
    {",'rope_scaling':{'type':'linear','factor':0.5}",
     "field 'rope_scaling.factor' must be a number of 1 or more"},
    {",'rope_parameters':{'rope_type':'yarn','factor':0.5}",
     "field 'rope_parameters.factor' must be a number of 1 or more"},
    {",'rope_parameters':{'rope_type':'yarn'}",
     "field 'rope_parameters.factor' is missing, yarn positions need it"},
    {",'rope_parameters':{'rope_type':'yarn','factor':null}",
     "field 'rope_parameters.factor' is missing, yarn positions need it"},
    {",'rope_parameters':{'rope_type':'yarn','factor':null,'original_max_position_embeddings':4097}",
     "field 'rope_parameters.factor' is missing, yarn positions need it"},
    {",'rope_parameters':{'rope_type':'yarn','original_max_position_embeddings':1024}",
     "field 'rope_parameters.factor' is missing, yarn positions need it"},
    {",'rope_parameters':{'rope_type':'yarn','factor':2,'truncate':1}",
     "field 'rope_parameters.truncate' must be true or false"},
    {",'rope_parameters':{'rope_type':'yarn','factor':2,'mscale':-1}",
     "field 'rope_parameters.mscale' must be a number above 0"},
    {",'rope_parameters':{'rope_theta':-1}",
     "field 'rope_parameters.rope_theta' must be a number of 1 or more"},
    {",'rope_scaling':{'rope_type':'llama3','factor':8,'high_freq_factor':4,'original_max_position_"
     "embeddings':1024}",
     "field 'rope_scaling.low_freq_factor' is missing, llama3 positions need it"},
    {",'rope_scaling':{'rope_type':'llama3','factor':8,'low_freq_factor':1,'original_max_position_embeddings'"
     ":1024}",
     "field 'rope_scaling.high_freq_factor' is missing, llama3 positions need it"},
    {",'rope_parameters':{'rope_type':'llama3','factor':8,'low_freq_factor':1,'high_freq_factor':4}",
     "field 'rope_parameters.original_max_position_embeddings' is missing, llama3 positions need it"},
    {",'rope_scaling':{'rope_type':'llama3','factor':8,'low_freq_factor':4,'high_freq_factor':4,'original_"
     "max_position_embeddings':1024}",
     "'rope_scaling.high_freq_factor' is 4, it must be above low_freq_factor, 4"},
};

static void malformed_configs_are_refused_by_field(void **unused)
{
    assert_all_refused(malformed, COUNT(malformed), 0, TIDE_ERROR_CORRUPT);
}

/* Text from the file must not end the message's line nor control the terminal. */
static void text_of_a_config_is_quoted_without_control_characters(void **unused)
{
    static const refusal refusals[] = {
        {",'layer_types':['\\r\\u009b1m']", "field 'layer_types' is '??1m', only 'full_attention' is built"},
        {",'num_experts':'\\u007f'", "field 'num_experts' is '?', only null or 0 is built"},
        {",'rope_scaling':{'type':'\\u001b[1m'}",
         "field 'rope_scaling.type' is ?[1m, only default, linear, llama3 and yarn are built"},
        {",'rope_scaling':{'\\u001b[1m':{}}",
         "field 'rope_scaling.?[1m' is an object; positions by kinds of layers are not built"},
    };
    assert_all_refused(refusals, COUNT(refusals), 0, TIDE_ERROR_UNSUPPORTED);
    assert_refused("evil\\n\\u001b[31m", "", TIDE_ERROR_UNSUPPORTED,
                   "field 'model_type' is 'evil??[31m', only gpt2, llama, mistral, qwen2, qwen3 are built");
    assert_refused("llama", ",'\x7f\xc2\x9b':1,'\x7f\xc2\x9b':2", TIDE_ERROR_CORRUPT,
                   "not JSON at line 1, column 267: duplicate object key near ''?\?''");
}

static void assert_changed_is_refused(const char *piece, const char *instead, tide_status wanted,
                                      const char *line)
{
    for (size_t f = 0; f < FAMILIES; f++) {
        tide_model_config config;
        assert_int_equal(parse_changed(families[f], "", piece, instead, &config), wanted);
        assert_said(instead, line);
    }
}

static void swish_is_silu(void **unused)
{
    for (size_t f = 0; f < FAMILIES; f++) {
        tide_model_config config;
        assert_int_equal(parse_changed(families[f], "", "silu", "swish", &config), TIDE_OK);
    }
}

static void needed_fields_are_checked(void **unused)
{
    assert_changed_is_refused("'silu'", "'gelu'", TIDE_ERROR_UNSUPPORTED,
                              "field 'hidden_act' is 'gelu', only 'silu' is built");
    assert_changed_is_refused("'silu'", "7", TIDE_ERROR_CORRUPT,
                              "field 'hidden_act' must be the string 'silu'");
    static const char *const needed[][2] = {{"hidden_size", "65536"},
                                            {"intermediate_size", "1048576"},
                                            {"num_hidden_layers", "1024"},
                                            {"num_attention_heads", "1024"},
                                            {"vocab_size", "16777216"}};
    for (size_t i = 0; i < COUNT(needed); i++) {
        char piece[64], instead[128], line[256];
        snprintf(piece, sizeof piece, "'%s':", needed[i][0]);
        snprintf(line, sizeof line, "field '%s' is missing, it must be a whole number in 1 .. %s",
                 needed[i][0], needed[i][1]);
        assert_changed_is_refused(piece, "'another':", TIDE_ERROR_CORRUPT, line);
        snprintf(instead, sizeof instead, "%s4294967296,'another':", piece);
        snprintf(line, sizeof line, "field '%s' is 4294967296, it must be in 1 .. %s", needed[i][0],
                 needed[i][1]);
        assert_changed_is_refused(piece, instead, TIDE_ERROR_CORRUPT, line);
    }
}

/* Qwen3 is left out, because it has a default for head_dim. */
static void widths_of_heads_are_whole_where_head_dim_is_absent(void **unused)
{
    static const char width[] = "'hidden_size':64", width_60[] = "'hidden_size':60";
    for (size_t f = 0; f < FAMILIES - 1; f++) {
        tide_model_config config;
        assert_int_equal(parse_changed(families[f], "", width, width_60, &config), TIDE_ERROR_CORRUPT);
        assert_said(width_60, "hidden_size is 60, it must be a multiple of num_attention_heads, which is 8");
        assert_int_equal(parse_changed(families[f], "", width, "'hidden_size':24", &config),
                         TIDE_ERROR_CORRUPT);
        assert_said("24", "heads of width 3 (head_dim): it must be even, for rotary positions");
        assert_int_equal(parse_changed(families[f], ",'head_dim':8", width, width_60, &config), TIDE_OK);
    }
}

static const char llama3_text[] =
    ",'num_key_value_heads':2,'rope_theta':500000,'rope_scaling':{'rope_type':'llama3','factor':8,'low_freq_"
    "factor':1,'high_freq_factor':4,'original_max_position_embeddings':1024}";

/* Checks a config that was not read from config.json, but from a checkpoint or set by a program. */
static void a_changed_field_is_checked(void **unused)
{
    const tide_model_config sound = read_config("llama", llama3_text);
    tide_model_config changed[12];
    for (size_t i = 0; i < 12; i++)
        changed[i] = sound;
    changed[0].kv_heads = 0;
    changed[1].kv_heads = 5;
    changed[2].head_width = 0;
    changed[3].head_width = 7;
    changed[4].mlp_width = 0;
    changed[5].norm_epsilon = 1;
    changed[6].rope.theta = 0;
    changed[7].rope.factor = 0.5;
    changed[8].rope.low_factor = 4;
    changed[9].rope.original_context = 0;
    changed[10].rope.kind = TIDE_ROPE_YARN; /* without YaRN's other fields */
    changed[11].rope.kind = TIDE_ROPE_KINDS;
    assert_true(tide_model_config_is_valid(&sound));
    for (size_t i = 0; i < 12; i++) {
        if (tide_model_config_is_valid(&changed[i]))
            fail_msg("change %zu is not seen", i);
        assert_int_equal(tide_model_config_check(&changed[i], "test"), TIDE_ERROR_ARGUMENT);
    }
}

/* ---- writing ---- */

static void assert_written_is_read(const tide_model_config *config, const char *what)
{
    tide_model_config read;
    json_t *root = tide_model_config_to_json(config, "bfloat16");
    assert_non_null(root);
    char *text = json_dumps(root, JSON_COMPACT);
    assert_non_null(text);
    if (tide_model_config_parse(text, strlen(text), "written", &read) != TIDE_OK)
        fail_msg("%s: %s: %s", what, tide_message(), text);
    assert_same_config(&read, config, what);
    assert_string_equal(json_string_value(json_object_get(root, "torch_dtype")), "bfloat16");
    assert_string_equal(json_string_value(json_array_get(json_object_get(root, "architectures"), 0)),
                        config->family->architecture);
    free(text);
    json_decref(root);
}

static const tide_rope ropes[TIDE_ROPE_KINDS + 1] = {
    {.theta = 12345.678},
    {.theta = 1e4, .kind = TIDE_ROPE_LINEAR, .factor = 2.5},
    {.theta = 5e5,
     .kind = TIDE_ROPE_LLAMA3,
     .factor = 8,
     .low_factor = 1,
     .high_factor = 4.25,
     .original_context = 8192},
    YARN(.theta = 1e6, .factor = 3, .original_context = 32768, .attention_factor = 1.1098612288668110),
    {.theta = 1e6,
     .kind = TIDE_ROPE_YARN,
     .factor = 3.5,
     .original_context = 100,
     .attention_factor = 0.7,
     .beta_fast = 33.3,
     .beta_slow = 1.1,
     .exact = true},
};

static void a_written_config_is_read_as_the_same(void **unused)
{
    for (size_t i = 0; tide_model_preset_name(i); i++) {
        tide_model_config config;
        assert_int_equal(tide_model_config_open(tide_model_preset_name(i), &config), TIDE_OK);
        assert_written_is_read(&config, config.name);
        assert_string_equal(tide_model_shape_name(&config), config.name);
    }
    for (size_t f = 0; f < FAMILIES; f++)
        for (size_t i = 0; i <= TIDE_ROPE_KINDS; i++) {
            tide_model_config config =
                read_config(families[f], ",'attention_bias':true,'mlp_bias':true,'head_dim':10,'rms_norm_eps'"
                                         ":0.000012345678901234567");
            config.rope = ropes[i];
            assert_true(tide_model_config_is_valid(&config));
            assert_written_is_read(&config, families[f]);
        }
}

/* ---- memory that runs out ---- */

static void no_memory_is_reported(void **unused)
{
    char text[TEXT_BYTES];
    write_text(text, "llama", llama3_text);
    const tide_model_config whole = read_config("llama", llama3_text);
    bool met = true;
    unsigned request = 0, told = 0;
    for (; met; request++) {
        tide_model_config config;
        fake_memory_fail(request);
        const tide_status status = parse_text(text, &config);
        met = fake_memory_failed();
        fake_memory_clear();
        told += status == TIDE_ERROR_NO_MEMORY;
        if (!met)
            assert_same_config(&config, &whole, "with all memory");
        else /* jansson may report a failed request as an error in the text (fake_memory.h) */
            assert_true(status == TIDE_ERROR_NO_MEMORY || status == TIDE_ERROR_CORRUPT || status == TIDE_OK);
    }
    assert_true(request > 20 && told > 5);
}

static void a_config_is_written_whole_or_not_at_all(void **unused)
{
    for (size_t f = 0; f < FAMILIES; f++) {
        const tide_model_config whole = read_config(families[f], llama3_text);
        bool met = true;
        unsigned request = 0;
        for (; met; request++) {
            fake_memory_fail(request);
            json_t *root = tide_model_config_to_json(&whole, "float32");
            met = fake_memory_failed();
            fake_memory_clear();
            if (met != (root == NULL))
                fail_msg("%s, request %u: %s", families[f], request,
                         met ? "something is written" : "nothing is written");
            json_decref(root);
        }
        assert_true(request > 40);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_is_read_as_either_transformers_writes_it),
        cmocka_unit_test(absent_and_null_fields_have_the_familys_values),
        cmocka_unit_test(what_is_absent_means_what_it_means_to_transformers),
        cmocka_unit_test(biases_are_the_familys_and_the_configs),
        cmocka_unit_test(positions_that_are_absent_are_transformers_default),
        cmocka_unit_test(a_padding_token_is_the_embeddings),
        cmocka_unit_test(dropout_is_known_and_not_done),
        cmocka_unit_test(a_window_that_some_layer_uses_is_known),
        cmocka_unit_test(a_window_that_no_layer_uses_may_be_there),
        cmocka_unit_test(what_is_not_used_may_be_there),
        cmocka_unit_test(kinds_of_positions_are_read_in_either_form),
        cmocka_unit_test(other_networks_are_refused_by_field_and_value),
        cmocka_unit_test(malformed_windows_of_upper_layers_are_refused),
        cmocka_unit_test(malformed_configs_are_refused_by_field),
        cmocka_unit_test(text_of_a_config_is_quoted_without_control_characters),
        cmocka_unit_test(swish_is_silu),
        cmocka_unit_test(needed_fields_are_checked),
        cmocka_unit_test(widths_of_heads_are_whole_where_head_dim_is_absent),
        cmocka_unit_test(a_changed_field_is_checked),
        cmocka_unit_test(a_written_config_is_read_as_the_same),
        cmocka_unit_test(no_memory_is_reported),
        cmocka_unit_test(a_config_is_written_whole_or_not_at_all),
    };
    fake_memory_take_jansson();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
