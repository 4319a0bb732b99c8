/* Thins out long lists of similar cases: the suite runs every n-th case, and fewer under a sanitizer,
 * which makes everything several times slower. With TIDE_TEST_ALL set (tools/campaign.sh) all cases run.
 */
#ifndef TIDE_TESTS_TEST_THIN_H
#define TIDE_TESTS_TEST_THIN_H

#include <stdbool.h>
#include <stdlib.h>

/* Returns the distance from one case to the next: `usual`, or `watched` under a sanitizer. */
static inline unsigned test_every(unsigned usual, unsigned watched)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const unsigned n = watched;
    (void)usual;
#else
    const unsigned n = usual;
    (void)watched;
#endif
    return getenv("TIDE_TEST_ALL") == NULL ? n : 1;
}

/* Whether cases of large sizes run: not under a sanitizer, nor with TIDE_TEST_SMALL set, as
 * tools/dev/gpu/gpu_parts.py does under the sanitizer of a GPU's kernels. */
static inline bool test_large(void)
{
    return test_every(1, 2) == 1 && getenv("TIDE_TEST_SMALL") == NULL;
}

/* Returns `n` under a sanitizer, and 1 (every case) without. */
static inline unsigned test_thin(unsigned n)
{
    return test_every(1, n);
}

/* Returns `n` under ThreadSanitizer, for cases whose threads do the same, and 1 without. */
static inline unsigned test_thin_threads(unsigned n)
{
#ifdef __SANITIZE_THREAD__
    return test_thin(n);
#else
    (void)n;
    return 1;
#endif
}

#endif
