/* Checks of a call's status and of its message. Each prints the call, its status and its message if it fails:
 *
 *     assert_ok(call)                     the call returns TIDE_OK
 *     assert_fails(call, status, words)   it returns this status with a message that contains the words
 *     expect_words(words)                 the last message contains the words */
#ifndef TIDE_TESTS_ASSERT_OK_H
#define TIDE_TESTS_ASSERT_OK_H

#include "tidepool/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* cmocka gives every case a state, and few use it. Holds to the end of the file, for helpers, too. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        const tide_status status_of_call = (call);                                                           \
        if (status_of_call != TIDE_OK)                                                                       \
            fail_msg("%s: %s: %s", #call, tide_status_name(status_of_call), tide_message());                 \
    } while (0)

#define assert_fails(call, status, words)                                                                    \
    do {                                                                                                     \
        const tide_status status_of_call = (call);                                                           \
        if (status_of_call != (status))                                                                      \
            fail_msg("%s: %s: %s", #call, tide_status_name(status_of_call), tide_message());                 \
        expect_words(words);                                                                                 \
    } while (0)

#define expect_words(words)                                                                                  \
    do {                                                                                                     \
        const char *words_of_message = (words);                                                              \
        if (strstr(tide_message(), words_of_message) == NULL)                                                \
            fail_msg("\"%s\" does not say \"%s\"", tide_message(), words_of_message);                        \
    } while (0)

#endif
