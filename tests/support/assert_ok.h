/* A call whose status is not OK fails the test with the call, the status and its message. */
#ifndef TIDE_TESTS_ASSERT_OK_H
#define TIDE_TESTS_ASSERT_OK_H

#include "tidepool/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        const tide_status status_of_call = (call);                                                           \
        if (status_of_call != TIDE_OK)                                                                       \
            fail_msg("%s: %s: %s", #call, tide_status_name(status_of_call), tide_message());                 \
    } while (0)

#endif
