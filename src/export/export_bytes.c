/* A tokenizer of bytes, for a model from nothing whose vocabulary is the 256 bytes and, perhaps, an end of
 * text: so that its folder loads and answers in transformers, and in tidepool-tokenize.
 *
 * It is GPT-2's byte-level BPE without merges. Its letters stand for bytes: printable Latin-1 characters for
 * themselves, the others for the characters from U+0100 on, in order. Here a letter's token is its byte. */
#include "src/export/export_internal.h"

#include "base/whole.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256, LETTER_BYTES = 4 };

static const char end_of_text[] = "<|endoftext|>";

/* A turn is its role in a line of its own, then its words and the end token; without one an empty line. */
static const char chat_template[] = "{%- set end = eos_token if eos_token else '\\n\\n' %}"
                                    "{%- for message in messages %}{{ '[' + message['role'] + ']\\n' + "
                                    "message['content'] + end }}{% endfor %}"
                                    "{%- if add_generation_prompt %}{{ '[assistant]\\n' }}{% endif %}";

static bool has_end(const tide_model_config *model)
{
    return model->vocab_size == BYTES + 1;
}

bool tide_export_takes_bytes(const tide_model_config *model)
{
    return model->vocab_size == BYTES || has_end(model);
}

static bool is_its_own_letter(int byte)
{
    return (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
}

/* The UTF-8 of a character below U+0800. */
static void letter_write(unsigned character, char letter[LETTER_BYTES])
{
    if (character < 0x80)
        snprintf(letter, LETTER_BYTES, "%c", (char)character);
    else
        snprintf(letter, LETTER_BYTES, "%c%c", (char)(0xc0 | character >> 6),
                 (char)(0x80 | (character & 0x3f)));
}

static json_t *vocabulary_make(void)
{
    json_t *vocabulary = json_object();
    unsigned next = 0x100;
    for (int byte = 0; byte < BYTES; byte++) {
        char letter[LETTER_BYTES];
        letter_write(is_its_own_letter(byte) ? (unsigned)byte : next++, letter);
        if (json_object_set_new(vocabulary, letter, json_integer(byte)) != 0) {
            json_decref(vocabulary);
            return NULL;
        }
    }
    return vocabulary;
}

static json_t *byte_level(void)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0,
                     "use_regex", 0);
}

static json_t *added_tokens(const tide_model_config *model)
{
    if (!has_end(model))
        return json_array();
    return json_pack("[{s:i, s:s, s:b, s:b, s:b, s:b, s:b}]", "id", BYTES, "content", end_of_text,
                     "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
}

static json_t *tokenizer_make(const tide_model_config *model)
{
    return json_pack(
        "{s:s, s:n, s:n, s:o, s:n, s:o, s:n, s:o, s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}}",
        "version", "1.0", "truncation", "padding", "added_tokens", added_tokens(model), "normalizer",
        "pre_tokenizer", byte_level(), "post_processor", "decoder", byte_level(), "model", "type", "BPE",
        "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
        "byte_fallback", 0, "ignore_merges", 0, "vocab", vocabulary_make(), "merges");
}

static json_t *settings_make(const tide_model_config *model)
{
    json_t *settings = json_pack("{s:s, s:b, s:i, s:s}", "tokenizer_class", "PreTrainedTokenizerFast",
                                 "clean_up_tokenization_spaces", 0, "model_max_length", (int)model->context,
                                 "chat_template", chat_template);
    if (has_end(model) && json_object_set_new(settings, "eos_token", json_string(end_of_text)) != 0) {
        json_decref(settings);
        return NULL;
    }
    return settings;
}

/* Writes the value, and frees it; NULL: there was no memory for it. */
static tide_status value_write(const tide_files *files, const char *folder, const char *name, json_t *value)
{
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    char *text = value != NULL ? json_dumps(value, JSON_INDENT(2)) : NULL;
    json_decref(value);
    if (text == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "export: no memory for a tokenizer of bytes");
    tide_status status = tide_export_path(folder, name, path);
    const int error = status == TIDE_OK ? tide_files_write_whole(files, path, text, strlen(text)) : 0;
    free(text);
    return error == 0 ? status : tide_export_folder_fail(path, "written", error);
}

tide_status tide_export_bytes_write(const tide_files *files, const char *folder,
                                    const tide_model_config *model)
{
    tide_status status = value_write(files, folder, "tokenizer.json", tokenizer_make(model));
    if (status == TIDE_OK)
        status = value_write(files, folder, "tokenizer_config.json", settings_make(model));
    if (status == TIDE_OK && has_end(model))
        status =
            value_write(files, folder, "generation_config.json", json_pack("{s:i}", "eos_token_id", BYTES));
    return status;
}
