/* Of long lists of like cases the suite takes every n-th, and fewer where a sanitizer watches, under which everything takes several
 * times as long; all of them where TIDE_TEST_ALL is set (tools/campaign.sh).
 */
#ifndef TIDE_TESTS_TEST_THIN_H
#define TIDE_TESTS_TEST_THIN_H

#include <stdlib.h>

/* How far it is from a case to the next: `usual`, or `watched` where a sanitizer watches. */
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

/* As far as that where a sanitizer watches alone. */
static inline unsigned test_thin(unsigned n)
{
    return test_every(1, n);
}

#endif
