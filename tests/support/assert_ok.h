/* assert_ok(call) fails the test unless the call returns TIDE_OK, and prints the call, its status and its
 * message. */
#ifndef TIDE_TESTS_ASSERT_OK_H
#define TIDE_TESTS_ASSERT_OK_H

#include "tidepool/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* cmocka gives every case a state; few use it. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        const tide_status status_of_call = (call);                                                           \
        if (status_of_call != TIDE_OK)                                                                       \
            fail_msg("%s: %s: %s", #call, tide_status_name(status_of_call), tide_message());                 \
    } while (0)

#endif
