/* One file of a checkpoint or of weights, read or written through tide_files. Messages name the file:
 * "checkpoint DIR/step-1/manifest.json: can't be read: ...". */
#ifndef TIDE_SAFETENSORS_FILE_H
#define TIDE_SAFETENSORS_FILE_H

#include "base/files.h"
#include "tidepool/status.h"

enum { TIDE_FILE_PATH_BYTES = 4096, TIDE_FILE_CLOSED = -1 };

typedef struct tide_file {
    const tide_files *files;
    const char *noun; /* "checkpoint" or "weights", static storage: the first word of messages */
    char path[TIDE_FILE_PATH_BYTES];
    int handle;
    uint64_t bytes; /* the size of a file that is read; how much was written to one that is written */
} tide_file;

/* ---- reading ---- */

/* Open FOLDER/NAME for reading. Returns 0 or an errno, without a message; the caller may then pass *file,
 * which is closed, to tide_file_fail. */
int tide_file_open(const tide_files *files, const char *noun, const char *folder, const char *name,
                   tide_file *file);
void tide_file_close(tide_file *file); /* of a file that is open for reading, or closed already */

/* Read all bytes of [offset, offset + count). Returns 0 or an errno, without a message; ENODATA: the file is
 * shorter. Several threads may read one file. */
int tide_file_read(const tide_file *file, uint64_t offset, void *bytes, size_t count);

/* Like tide_file_read, with a message. CORRUPT: the file is shorter than when it was opened. IO. */
TIDE_NODISCARD tide_status tide_file_get(const tide_file *file, uint64_t offset, void *bytes, size_t count);

/* Like tide_file_get, into a block with a zero at its end that the caller frees. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_file_text(const tide_file *file, uint64_t offset, size_t count, char **text);

/* ---- writing ---- */

/* Create FOLDER/NAME, which must not exist, for writing. IO. On failure *file is closed. */
TIDE_NODISCARD tide_status tide_file_create(const tide_files *files, const char *noun, const char *folder,
                                            const char *name, tide_file *file);
/* Append all bytes. IO. */
TIDE_NODISCARD tide_status tide_file_put(tide_file *file, const void *bytes, size_t count);

/* Sync and close the file; if `status` is a failure of the writing before, close it only. Returns the first
 * failure. IO. */
TIDE_NODISCARD tide_status tide_file_finish(tide_file *file, tide_status status);

/* The failure of an operation on the file: "NOUN PATH: can't be WHAT: ...". CORRUPT for ENODATA, else IO. */
TIDE_NODISCARD tide_status tide_file_fail(const tide_file *file, const char *what, int error);

#endif
