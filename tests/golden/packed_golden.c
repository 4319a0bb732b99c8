#include "tests/golden/packed_golden.h"

#include "tests/support/assert_ok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void read_exactly(FILE *file, void *target, size_t bytes)
{
    assert_int_equal(fread(target, 1, bytes, file), bytes);
}

static void *read_new(FILE *file, size_t bytes)
{
    void *made = malloc(bytes);
    assert_non_null(made);
    read_exactly(file, made, bytes);
    return made;
}

static void read_name(FILE *file, char *name, size_t bytes)
{
    read_exactly(file, name, bytes);
    assert_int_equal(name[bytes - 1], '\0');
}

static void read_model(FILE *file, size_t text_bytes, family_case *to)
{
    char *text = read_new(file, text_bytes);
    assert_ok(tide_model_config_parse(text, text_bytes, to->name, &to->config));
    free(text);
    assert_in_range(to->tensors, 1, FAMILY_TENSORS_MAX);
    if (to->tensors != tide_model_tensor_count(&to->config))
        fail_msg("%s: %zu tensors, transformers' %u", to->name, tide_model_tensor_count(&to->config),
                 to->tensors);
}

/* Read the int32 arrays and check that a decoder accepts them. */
static void read_batch(FILE *file, packed_case *to)
{
    const size_t rows = (size_t)FAMILY_SEQUENCES * to->model.seq_len, bytes = rows * sizeof(int32_t);
    const int32_t vocabulary = (int32_t)to->model.config.vocab_size;
    uint32_t learned = 0;
    to->inputs = read_new(file, bytes);
    to->targets = read_new(file, bytes);
    to->starts = read_new(file, bytes);
    for (size_t row = 0; row < rows; row++) {
        const int32_t position = (int32_t)(row % to->model.seq_len);
        assert_true(to->inputs[row] >= 0 && to->inputs[row] < vocabulary);
        assert_true(to->targets[row] >= -1 && to->targets[row] < vocabulary);
        assert_true(to->starts[row] >= 0 && to->starts[row] <= position);
        assert_true(position == 0 || to->starts[row] >= to->starts[row - 1]);
        learned += to->targets[row] >= 0;
    }
    assert_int_equal(learned, to->learned);
}

/* tidepool's index of the tensor with that name. */
static size_t find_tensor(const family_case *of, const char *name, uint32_t elements)
{
    for (size_t i = 0; i < of->tensors; i++) {
        tide_model_tensor tensor;
        tide_model_tensor_describe(&of->config, i, &tensor);
        if (strcmp(tensor.name, name) != 0)
            continue;
        if (tensor.elements != elements)
            fail_msg("%s: %s has %llu elements, transformers' %u", of->name, name,
                     (unsigned long long)tensor.elements, elements);
        return i;
    }
    fail_msg("%s: no tensor %s", of->name, name);
    return 0;
}

static void read_tensor(FILE *file, uint32_t item, family_case *to)
{
    char name[64];
    uint32_t elements;
    read_name(file, name, sizeof name);
    read_exactly(file, &elements, sizeof elements);
    const size_t index = find_tensor(to, name, elements);
    assert_null(to->gradients[index]);
    to->items[index] = item;
    to->gradients[index] = read_new(file, elements * sizeof(float));
}

static void read_case(FILE *file, packed_case *to)
{
    uint32_t header[4];
    *to = (packed_case){.learned = 0};
    read_name(file, to->model.name, sizeof to->model.name);
    read_exactly(file, header, sizeof header);
    to->model.seq_len = header[1];
    to->model.tensors = header[2];
    to->learned = header[3];
    read_model(file, header[0], &to->model);
    read_exactly(file, &to->loss, sizeof to->loss);
    read_batch(file, to);
    for (uint32_t item = 0; item < to->model.tensors; item++)
        read_tensor(file, item, &to->model);
}

void packed_golden_load(packed_golden *golden)
{
    char magic[8];
    uint32_t header[3];
    FILE *file = fopen(TIDE_GOLDEN_FOLDER "/packed.golden", "rb");
    assert_non_null(file);
    read_exactly(file, magic, sizeof magic);
    assert_memory_equal(magic, "TIDEPACK", sizeof magic);
    read_exactly(file, header, sizeof header);
    const uint32_t right[3] = {1, FAMILY_SEQUENCES, PACKED_CASES};
    assert_memory_equal(header, right, sizeof header);
    for (int i = 0; i < PACKED_CASES; i++)
        read_case(file, &golden->cases[i]);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

void packed_golden_free(packed_golden *golden)
{
    for (packed_case *c = golden->cases; c < golden->cases + PACKED_CASES; c++) {
        for (uint32_t tensor = 0; tensor < c->model.tensors; tensor++)
            free(c->model.gradients[tensor]);
        free(c->inputs);
        free(c->targets);
        free(c->starts);
    }
}

const packed_case *packed_golden_find(const packed_golden *golden, const char *name)
{
    for (int i = 0; i < PACKED_CASES; i++)
        if (strcmp(golden->cases[i].model.name, name) == 0)
            return &golden->cases[i];
    fail_msg("no case %s", name);
    return NULL;
}
