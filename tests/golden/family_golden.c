#include "tests/golden/family_golden.h"

#include "tests/golden/golden_hash.h"
#include "tests/support/assert_ok.h"

#include <stdlib.h>
#include <string.h>

void family_read(FILE *file, void *target, size_t bytes)
{
    assert_int_equal(fread(target, 1, bytes, file), bytes);
}

void family_read_config(FILE *file, size_t text_bytes, family_case *to)
{
    char *text = malloc(text_bytes);
    assert_non_null(text);
    family_read(file, text, text_bytes);
    assert_ok(tide_model_config_parse(text, text_bytes, to->name, &to->config));
    free(text);
    assert_in_range(to->tensors, 1, FAMILY_TENSORS_MAX);
    if (to->tensors != tide_model_tensor_count(&to->config))
        fail_msg("%s: %zu tensors, transformers' %u", to->name, tide_model_tensor_count(&to->config),
                 to->tensors);
}

/* tidepool's index of the tensor with that name. */
static size_t find_tensor(const family_case *of, const char *name, uint64_t elements)
{
    tide_model_tensor tensor;
    for (size_t i = 0; i < tide_model_tensor_count(&of->config); i++) {
        tide_model_tensor_describe(&of->config, i, &tensor);
        if (strcmp(tensor.name, name) != 0)
            continue;
        if (tensor.elements != elements)
            fail_msg("%s: %s has %llu elements, transformers' %llu", of->name, name,
                     (unsigned long long)tensor.elements, (unsigned long long)elements);
        return i;
    }
    fail_msg("%s: no tensor %s", of->name, name);
    return 0;
}

static void read_tensor(FILE *file, uint32_t item, family_case *to)
{
    char name[64];
    uint32_t elements;
    family_read(file, name, sizeof name);
    assert_int_equal(name[sizeof name - 1], '\0');
    family_read(file, &elements, sizeof elements);
    const size_t index = find_tensor(to, name, elements);
    assert_null(to->gradients[index]);
    to->items[index] = item;
    to->gradients[index] = malloc(elements * sizeof(float));
    assert_non_null(to->gradients[index]);
    family_read(file, to->gradients[index], elements * sizeof(float));
}

void family_read_tensors(FILE *file, family_case *to)
{
    for (uint32_t item = 0; item < to->tensors; item++)
        read_tensor(file, item, to);
}

static void read_case(FILE *file, family_case *to)
{
    uint32_t header[3];
    *to = (family_case){.seq_len = 0};
    family_read(file, to->name, sizeof to->name);
    assert_int_equal(to->name[sizeof to->name - 1], '\0');
    family_read(file, header, sizeof header);
    to->seq_len = header[1];
    to->tensors = header[2];
    family_read_config(file, header[0], to);
    family_read(file, to->losses, sizeof to->losses);
    family_read(file, to->norms, sizeof to->norms);
    family_read_tensors(file, to);
}

void family_golden_load(family_golden *golden)
{
    char magic[8];
    uint32_t header[4];
    FILE *file = fopen(TIDE_GOLDEN_FOLDER "/families.golden", "rb");
    assert_non_null(file);
    family_read(file, magic, sizeof magic);
    assert_memory_equal(magic, "TIDEFAMS", sizeof magic);
    family_read(file, header, sizeof header);
    const uint32_t right[4] = {1, FAMILY_STEPS, FAMILY_SEQUENCES, FAMILY_CASES};
    assert_memory_equal(header, right, sizeof header);
    for (int i = 0; i < FAMILY_CASES; i++)
        read_case(file, &golden->cases[i]);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

void family_golden_free(family_golden *golden)
{
    for (int i = 0; i < FAMILY_CASES; i++)
        for (uint32_t tensor = 0; tensor < golden->cases[i].tensors; tensor++)
            free(golden->cases[i].gradients[tensor]);
}

const family_case *family_golden_find(const family_golden *golden, const char *name)
{
    for (int i = 0; i < FAMILY_CASES; i++)
        if (strcmp(golden->cases[i].name, name) == 0)
            return &golden->cases[i];
    fail_msg("no case %s", name);
    return NULL;
}

void family_case_values(const family_case *of, size_t index, float *values)
{
    tide_model_tensor tensor;
    tide_model_tensor_describe(&of->config, index, &tensor);
    for (uint32_t i = 0; i < tensor.elements; i++)
        values[i] = tensor.init_value + golden_centred(of->items[index], i) * 0.5f;
}

void family_case_tokens(const family_case *of, int32_t *tokens)
{
    for (uint32_t i = 0; i <= FAMILY_SEQUENCES * of->seq_len; i++)
        tokens[i] = (int32_t)(golden_number(GOLDEN_TOKENS_ITEM, i) % of->config.vocab_size);
}
