#include "tests/golden/packed_golden.h"

#include "tests/support/assert_ok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *read_new(FILE *file, size_t bytes)
{
    void *made = malloc(bytes);
    assert_non_null(made);
    family_read(file, made, bytes);
    return made;
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

static void read_case(FILE *file, packed_case *to)
{
    uint32_t header[4];
    *to = (packed_case){.learned = 0};
    family_read(file, to->model.name, sizeof to->model.name);
    assert_int_equal(to->model.name[sizeof to->model.name - 1], '\0');
    family_read(file, header, sizeof header);
    to->model.seq_len = header[1];
    to->model.tensors = header[2];
    to->learned = header[3];
    family_read_config(file, header[0], &to->model);
    family_read(file, &to->loss, sizeof to->loss);
    read_batch(file, to);
    family_read_tensors(file, &to->model);
}

void packed_golden_load(packed_golden *golden)
{
    char magic[8];
    uint32_t header[3];
    FILE *file = fopen(TIDE_GOLDEN_FOLDER "/packed.golden", "rb");
    assert_non_null(file);
    family_read(file, magic, sizeof magic);
    assert_memory_equal(magic, "TIDEPACK", sizeof magic);
    family_read(file, header, sizeof header);
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
