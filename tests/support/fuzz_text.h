/* Sound text, mutated by seed: a small deterministic fuzzer. */
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

/* FUZZ_ROUNDS, else `usual`. */
uint64_t fuzz_rounds(unsigned usual);
/* Fill `run` with `text` as this round mutates it. */
void fuzz_mutate(fuzz *run, uint64_t round, const char *text, size_t bytes);
/* The round's next number below `sides`. */
size_t fuzz_draw(fuzz *run, size_t sides);
/* In a block of its very size, so that a read past its end is seen. The caller frees it. */
char *fuzz_exact_copy(const fuzz *run);

#endif
