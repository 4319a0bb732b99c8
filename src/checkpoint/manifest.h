/* A checkpoint's manifest: what its files must be, and the training state. */
#ifndef TIDE_CHECKPOINT_MANIFEST_H
#define TIDE_CHECKPOINT_MANIFEST_H

#include "src/checkpoint/checkpoint.h"

/* Version 2 is that of a checkpoint with frozen tensors, which a program that knows version 1 alone must refuse. */
enum { TIDE_MANIFEST_VERSION = 1, TIDE_MANIFEST_VERSION_FROZEN = 2, TIDE_MANIFEST_MAX_BYTES = 1 << 20 };

#define TIDE_MANIFEST_NAME "manifest.json"

/* A value's file: "model.safetensors" of MASTER and so on; PARAM has none. Static storage. */
const char *tide_checkpoint_file(tide_value value);

typedef struct tide_manifest_file {
    uint64_t bytes;
    uint32_t crc32c;
} tide_manifest_file;

typedef struct tide_manifest {
    tide_manifest_file files[TIDE_VALUE_COUNT]; /* none of PARAM */
    const char **frozen;                        /* [frozen_count]: names; a block that its maker frees, or NULL */
    size_t frozen_count;
    tide_train_state state;
} tide_manifest;

/* The manifest's text, freed by the caller. ARGUMENT (more than may be read), NO_MEMORY, UNSUPPORTED. */
TIDE_NODISCARD tide_status tide_manifest_make(const tide_manifest *manifest, char **text, size_t *bytes);

/* CORRUPT (any byte altered, any field missing, unknown or out of range), UNSUPPORTED (another version, no
 * jansson), NO_MEMORY. On failure *manifest is unchanged. On success `frozen` and its names are one block, the caller's. */
TIDE_NODISCARD tide_status tide_manifest_parse(const char *text, size_t bytes, const char *origin,
                                               tide_manifest *manifest);

#endif
