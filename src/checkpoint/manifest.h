/* A checkpoint's manifest: what its files must be, and the training state. */
#ifndef TIDE_CHECKPOINT_MANIFEST_H
#define TIDE_CHECKPOINT_MANIFEST_H

#include "src/checkpoint/checkpoint.h"

/* Version 2 is that of a checkpoint with frozen tensors, version 3 that of weights alone: a program that knows earlier versions
 * must refuse them. */
enum {
    TIDE_MANIFEST_VERSION = 1,
    TIDE_MANIFEST_VERSION_FROZEN = 2,
    TIDE_MANIFEST_VERSION_WEIGHTS = 3,
    TIDE_MANIFEST_MAX_BYTES = 1 << 20
};

#define TIDE_MANIFEST_NAME "manifest.json"

/* A value's file: "model.safetensors" of MASTER and so on; PARAM has none. Static storage. */
const char *tide_checkpoint_file(tide_value value);

typedef struct tide_manifest_file {
    uint64_t bytes;
    uint32_t crc32c;
} tide_manifest_file;

typedef struct tide_manifest {
    tide_manifest_file files[TIDE_VALUE_COUNT]; /* none of PARAM */
    const char **frozen; /* [frozen_count]: names; a block that its maker frees, or NULL */
    size_t frozen_count;
    bool weights_only; /* MASTER's file is the only one, and nothing is called frozen */
    tide_train_state state;
} tide_manifest;

/* The values that have files are those from MASTER to before this one. */
static inline tide_value tide_manifest_end(const tide_manifest *manifest)
{
    return manifest->weights_only ? (tide_value)(TIDE_VALUE_MASTER + 1) : TIDE_VALUE_COUNT;
}

/* The manifest's text, freed by the caller. ARGUMENT (more than may be read), NO_MEMORY, UNSUPPORTED. */
TIDE_NODISCARD tide_status tide_manifest_make(const tide_manifest *manifest, char **text, size_t *bytes);

/* CORRUPT (any byte altered, any field missing or out of range), UNSUPPORTED (another version, an unknown
 * field of the state), NO_MEMORY. On failure *manifest is unchanged. On success `frozen` and its
 * names are one block, the caller's. */
TIDE_NODISCARD tide_status tide_manifest_parse(const char *text, size_t bytes, const char *label,
                                               tide_manifest *manifest);

#endif
