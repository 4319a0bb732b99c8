/* Reads families.golden: the results of transformers for tiny models of every family. make_family_golden.py
 * writes and describes the file. */
#ifndef TIDE_TESTS_GOLDEN_FAMILY_GOLDEN_H
#define TIDE_TESTS_GOLDEN_FAMILY_GOLDEN_H

#include "src/model/params.h"

#include <stdio.h>

enum {
    FAMILY_SEQUENCES = 8,
    FAMILY_STEPS = 20,
    FAMILY_WARMUP = 4,
    FAMILY_CASES = 25,
    FAMILY_TENSORS_MAX = 40
};

typedef struct family_case {
    char name[32];
    tide_model_config config; /* from the case's config.json */
    uint32_t seq_len;
    uint32_t tensors;
    double losses[FAMILY_STEPS], norms[FAMILY_STEPS]; /* losses before each update, norms before clipping */
    /* by tidepool's index of a tensor: */
    uint32_t items[FAMILY_TENSORS_MAX];   /* item of the hash that gives its values */
    float *gradients[FAMILY_TENSORS_MAX]; /* of step 0 */
} family_case;

typedef struct family_golden {
    family_case cases[FAMILY_CASES];
} family_golden;

/* Fails the test if the file is missing or incomplete, if tidepool refuses a config.json in it, or if a
 * model's tensors have other names or sizes than transformers'. */
void family_golden_load(family_golden *golden);
void family_golden_free(family_golden *golden);

/* To read a golden file of the same models (packed_golden.c): exactly so many bytes; the text of a
 * config.json, where name and number of tensors are set; the tensors. Each fails the test where the file is
 * otherwise. */
void family_read(FILE *file, void *target, size_t bytes);
void family_read_config(FILE *file, size_t text_bytes, family_case *to);
void family_read_tensors(FILE *file, family_case *to);

/* The case with this name. Fails the test if there is none. */
const family_case *family_golden_find(const family_golden *golden, const char *name);

/* Initial values of the `index`-th tensor. `values` has space for its elements. */
void family_case_values(const family_case *of, size_t index, float *values);

/* Tokens of the batch's sequences, one after the other, and one token after the last: FAMILY_SEQUENCES x
 * seq_len + 1. */
void family_case_tokens(const family_case *of, int32_t *tokens);

#endif
