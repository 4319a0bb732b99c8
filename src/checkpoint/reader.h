/* A file of a checkpoint that is being read; and its manifest, read whole. Messages name the file. */
#ifndef TIDE_CHECKPOINT_READER_H
#define TIDE_CHECKPOINT_READER_H

#include "src/checkpoint/manifest.h"

enum { TIDE_READER_NONE = -1 };

typedef struct tide_reader {
    const tide_files *files;
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    int handle;     /* TIDE_READER_NONE: closed */
    uint64_t bytes; /* of the file */
} tide_reader;

/* CORRUPT: it is missing. IO. On failure *reader is closed. */
TIDE_NODISCARD tide_status tide_reader_open(const tide_files *files, const char *step_path, const char *name,
                                            tide_reader *reader);
void tide_reader_close(tide_reader *reader); /* may be closed already */

/* All of [offset, offset + count). CORRUPT: the file is shorter. IO. */
TIDE_NODISCARD tide_status tide_reader_get(const tide_reader *reader, uint64_t offset, void *bytes,
                                           size_t count);

/* CORRUPT: not the manifest's number of bytes. */
TIDE_NODISCARD tide_status tide_reader_size_check(const tide_reader *reader, const tide_manifest_file *file);

/* Told after every part of so many bytes. */
typedef void (*tide_reader_tell)(void *context, uint64_t bytes);

/* Read all of it through the buffer. CORRUPT: not the manifest's checksum. IO. */
TIDE_NODISCARD tide_status tide_reader_checksum_check(const tide_reader *reader,
                                                      const tide_manifest_file *file, void *buffer,
                                                      size_t buffer_bytes, tide_reader_tell tell,
                                                      void *context);

/* The manifest of the checkpoint at `step_path`; `frozen` is the caller's, as tide_manifest_parse says. CORRUPT, IO,
 * UNSUPPORTED, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_manifest_read(const tide_files *files, const char *step_path,
                                              tide_manifest *manifest);

#endif
