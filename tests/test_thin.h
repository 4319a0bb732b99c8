/* Under a sanitizer everything takes several times as long: of long lists of like cases such a build takes every n-th of those
 * that the plain build takes, unless TIDE_TEST_ALL is set (tools/campaign.sh).
 */
#ifndef TIDE_TESTS_TEST_THIN_H
#define TIDE_TESTS_TEST_THIN_H

#include <stdlib.h>

/* How far it is from a case to the next: 1, or `n` where a sanitizer watches. */
static inline unsigned test_thin(unsigned n)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return getenv("TIDE_TEST_ALL") == NULL ? n : 1;
#else
    (void)n;
    return 1;
#endif
}

/* The same for a test that runs once more for another family (TIDEPOOL_TEST_FAMILY): budgets, moves and faults know no family, and
 * the first run has met all of them. */
static inline unsigned test_thin_family(unsigned n)
{
    return getenv("TIDEPOOL_TEST_FAMILY") != NULL && getenv("TIDE_TEST_ALL") == NULL ? n : 1;
}

#endif
