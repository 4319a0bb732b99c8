/* A checkpoint's manifest: sizes and checksums of its files, and the training state. */
#ifndef TIDE_CHECKPOINT_MANIFEST_H
#define TIDE_CHECKPOINT_MANIFEST_H

#include "src/checkpoint/checkpoint.h"
#include "src/safetensors/file.h"

/* The version that is written; earlier ones are read. */
enum { TIDE_MANIFEST_VERSION = 4, TIDE_MANIFEST_MAX_BYTES = 1 << 20 };

#define TIDE_MANIFEST_NAME "manifest.json"

/* The name of a value's file, "model.safetensors" for MASTER; PARAM has no file. Static storage. */
const char *tide_checkpoint_file(tide_value value);

typedef struct tide_manifest_file {
    uint64_t bytes;
    uint32_t crc32c;
} tide_manifest_file;

typedef struct tide_manifest {
    tide_manifest_file files[TIDE_VALUE_COUNT]; /* PARAM's is unused */
    const char **frozen; /* [frozen_count] names, in one block that its maker frees; or NULL */
    size_t frozen_count;
    bool weights_only; /* MASTER's file is the only one, and `frozen` is empty */
    tide_train_state state;
} tide_manifest;

/* The end of the values that have files; the first is MASTER. */
static inline tide_value tide_manifest_end(const tide_manifest *manifest)
{
    return manifest->weights_only ? (tide_value)(TIDE_VALUE_MASTER + 1) : TIDE_VALUE_COUNT;
}

/* The manifest's text, which the caller frees. ARGUMENT (longer than parse accepts), NO_MEMORY,
 * UNSUPPORTED. */
TIDE_NODISCARD tide_status tide_manifest_make(const tide_manifest *manifest, char **text, size_t *bytes);

/* Parse a manifest's text. CORRUPT (any byte altered, any field missing or out of range), UNSUPPORTED
 * (a later version, an unknown member, an unknown field of the state), NO_MEMORY. On failure *manifest is
 * unchanged. On success the caller frees `frozen`, a block that also holds the names. */
TIDE_NODISCARD tide_status tide_manifest_parse(const char *text, size_t bytes, const char *label,
                                               tide_manifest *manifest);

/* Open a file of the checkpoint at `step_path` for reading. CORRUPT: it is missing; a folder called step-N
 * had all its files when it got that name. IO. On failure *file is closed. */
TIDE_NODISCARD tide_status tide_manifest_open(const tide_files *files, const char *step_path,
                                              const char *name, tide_file *file);

/* Read the manifest of the checkpoint at `step_path`. The caller frees `frozen`. Status as for
 * tide_manifest_open and tide_manifest_parse. */
TIDE_NODISCARD tide_status tide_manifest_read(const tide_files *files, const char *step_path,
                                              tide_manifest *manifest);

/* CORRUPT: the file's size differs from the manifest's. */
TIDE_NODISCARD tide_status tide_manifest_size_check(const tide_file *file,
                                                    const tide_manifest_file *expected);

/* Called after each part that was read; `bytes` is the part's size. */
typedef void (*tide_manifest_tell)(void *context, uint64_t bytes);

/* Read the whole file through the buffer. CORRUPT: its checksum differs from the manifest's. IO. */
TIDE_NODISCARD tide_status tide_manifest_checksum_check(const tide_file *file,
                                                        const tide_manifest_file *expected, void *buffer,
                                                        size_t buffer_bytes, tide_manifest_tell tell,
                                                        void *context);

#endif
