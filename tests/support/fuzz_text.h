/* A small deterministic fuzzer: mutates valid text by a seed. */
#ifndef TIDE_TESTS_FUZZ_TEXT_H
#define TIDE_TESTS_FUZZ_TEXT_H

#include <stddef.h>
#include <stdint.h>

enum { FUZZ_TEXT_MAX_BYTES = 8192 };

typedef struct fuzz {
    uint64_t round, drawn;
    char text[FUZZ_TEXT_MAX_BYTES];
    size_t bytes;
} fuzz;

/* Returns the number in the environment variable FUZZ_ROUNDS, or `usual` without it. */
uint64_t fuzz_rounds(unsigned usual);
/* Fills `run` with `text` as mutated in this round. */
void fuzz_mutate(fuzz *run, uint64_t round, const char *text, size_t bytes);
/* Returns the round's next random number below `sides`. */
size_t fuzz_draw(fuzz *run, size_t sides);
/* Returns the text in an allocation of exactly its size, so that a sanitizer sees a read past its end. The
 * caller frees it. */
char *fuzz_exact_copy(const fuzz *run);

#endif
