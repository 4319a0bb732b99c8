/* Reads a file of a checkpoint, and the whole manifest. Messages name the file. */
#ifndef TIDE_CHECKPOINT_READER_H
#define TIDE_CHECKPOINT_READER_H

#include "src/checkpoint/manifest.h"

enum { TIDE_READER_NONE = -1 };

typedef struct tide_reader {
    const tide_files *files;
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    int handle;     /* TIDE_READER_NONE: closed */
    uint64_t bytes; /* the file's size */
} tide_reader;

/* Open the file `name` of the checkpoint at `step_path`. CORRUPT: it is missing. IO. On failure *reader is
 * closed. */
TIDE_NODISCARD tide_status tide_reader_open(const tide_files *files, const char *step_path, const char *name,
                                            tide_reader *reader);
void tide_reader_close(tide_reader *reader); /* a closed one is allowed */

/* Read all bytes of [offset, offset + count). CORRUPT: the file is shorter. IO. */
TIDE_NODISCARD tide_status tide_reader_get(const tide_reader *reader, uint64_t offset, void *bytes,
                                           size_t count);

/* CORRUPT: the file's size differs from the manifest's. */
TIDE_NODISCARD tide_status tide_reader_size_check(const tide_reader *reader, const tide_manifest_file *file);

/* Called after each part that was read; `bytes` is the part's size. */
typedef void (*tide_reader_tell)(void *context, uint64_t bytes);

/* Read the whole file through the buffer. CORRUPT: its checksum differs from the manifest's. IO. */
TIDE_NODISCARD tide_status tide_reader_checksum_check(const tide_reader *reader,
                                                      const tide_manifest_file *file, void *buffer,
                                                      size_t buffer_bytes, tide_reader_tell tell,
                                                      void *context);

/* Read the manifest of the checkpoint at `step_path`. The caller frees `frozen` (tide_manifest_parse).
 * CORRUPT, IO, UNSUPPORTED, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_manifest_read(const tide_files *files, const char *step_path,
                                              tide_manifest *manifest);

#endif
