/* Status codes and the thread's last message.
 *
 * Every tidepool function that can fail returns a tide_status. The function that first knows the error also
 * writes one line for people: it says what failed and where, with names and sizes. The line belongs to the
 * calling thread and stays until the next failure in that thread. The library never prints and never exits.
 */
#ifndef TIDEPOOL_STATUS_H
#define TIDEPOOL_STATUS_H

#if defined(__GNUC__)
#define TIDE_API                               __attribute__((visibility("default")))
#define TIDE_PRINTF(format_index, first_index) __attribute__((format(printf, format_index, first_index)))
#define TIDE_NODISCARD                         __attribute__((warn_unused_result))
#else
#define TIDE_API
#define TIDE_PRINTF(format_index, first_index)
#define TIDE_NODISCARD
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tide_status {
    TIDE_OK = 0,
    TIDE_ERROR_ARGUMENT, /* a value the caller passed is wrong; nothing changed */
    /* the call is not allowed in the present state (a call before is missing, the pool is poisoned); nothing
     * changed */
    TIDE_ERROR_STATE,
    TIDE_ERROR_NO_MEMORY, /* the operating system or the driver has no more memory */
    /* the memory budgets are too small; the message names the bytes needed and the smallest budget that
     * works */
    TIDE_ERROR_BUDGET,
    TIDE_ERROR_UNSUPPORTED, /* this build or this machine does not support the request */
    TIDE_ERROR_DEVICE,      /* a device command failed */
    TIDE_ERROR_HAZARD,      /* the hazard checker found two unordered accesses; the message names both */
    TIDE_ERROR_NONFINITE,   /* a gradient is infinite or NaN, and its step can't be skipped */
    TIDE_ERROR_IO,          /* a file could not be read or written */
    TIDE_ERROR_CORRUPT,     /* a file's content contradicts itself or its checksum */
    TIDE_ERROR_MISMATCH,    /* a file is sound but belongs to another model, data set, seed or batch */
    TIDE_ERROR_PEER,        /* another rank has failed, ended or called something else (comm.h) */
    TIDE_ERROR_INTERNAL,    /* tidepool's own invariant does not hold: a bug worth reporting */
} tide_status;

/* The status's short name, e.g. "budget"; "unknown" for a value outside the enum. Never NULL, static storage.
 */
TIDE_API const char *tide_status_name(tide_status status);

/* This thread's last failure message, "" before the first. Valid until this thread's next failure. Never
 * NULL. */
TIDE_API const char *tide_message(void);

/* Write this thread's failure message (truncated to 1023 bytes, a '?' in each control character's place) and
 * return `status`. Tidepool uses it, and so do callbacks that report a failure to tidepool. */
TIDE_API tide_status tide_fail(tide_status status, const char *format, ...) TIDE_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif

#endif
