/* The manifest: a JSON object whose first 21 bytes hold the checksum of all bytes after them:
 *
 *     {"crc32c":"0c6cd5a8",
 *      "format": "tidepool-checkpoint",
 *      "version": 4,
 *      "files": [{"name": "model.safetensors", "bytes": 512, "crc32c": "..."}, ...],
 *      "frozen": ["wte.weight", ...],
 *      "weights_only": true,
 *      "state": {"step": 200, ...}}
 *
 * "frozen" is there if a tensor is frozen, "weights_only" if "files" lists model.safetensors alone. A later
 * tidepool that saves more adds a member; a reader that does not know the member refuses it by its name.
 * Earlier versions say by their number what version 4 says by its members: version 2 has "frozen", version 3
 * has the weights alone and no "weights_only", version 1 has neither.
 *
 * The checksum covers the text, not the values, so that it finds every flipped bit, even one that does not
 * matter in JSON. It is inside the object, so that the file stays plain JSON for other tools.
 */
#include "src/checkpoint/manifest.h"

#include "base/crc32c.h"
#include "base/text.h"
#include "src/checkpoint/train_state_json.h"
#include "src/safetensors/json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MANIFEST_FORMAT "tidepool-checkpoint"

enum { SEAL_BYTES = 21, VERSION_OF_WEIGHTS = 3 };

const char *tide_checkpoint_file(tide_value value)
{
    static const char *const names[TIDE_VALUE_COUNT] = {
        [TIDE_VALUE_MASTER] = "model.safetensors",
        [TIDE_VALUE_MOMENTUM] = "momentum.safetensors",
        [TIDE_VALUE_VARIANCE] = "variance.safetensors",
    };
    assert(value >= TIDE_VALUE_MASTER && value < TIDE_VALUE_COUNT);
    return names[value];
}

/* ---- writing ---- */

static json_t *files_json(const tide_manifest *manifest)
{
    json_t *files = json_array();
    for (tide_value value = TIDE_VALUE_MASTER; value < tide_manifest_end(manifest) && files != NULL;
         value++) {
        const tide_manifest_file *file = &manifest->files[value];
        char crc[9];
        snprintf(crc, sizeof crc, "%08" PRIx32, file->crc32c);
        json_t *entry = json_pack("{s:s, s:I, s:s}", "name", tide_checkpoint_file(value), "bytes",
                                  (json_int_t)file->bytes, "crc32c", crc);
        if (json_array_append_new(files, entry) != 0) {
            json_decref(files);
            return NULL;
        }
    }
    return files;
}

static json_t *frozen_json(const tide_manifest *manifest)
{
    json_t *names = json_array();
    for (size_t i = 0; i < manifest->frozen_count && names != NULL; i++) {
        if (json_array_append_new(names, json_string(manifest->frozen[i])) != 0) {
            json_decref(names);
            return NULL;
        }
    }
    return names;
}

/* NULL: no memory. jansson frees a member that it can't add. */
static json_t *body_json(const tide_manifest *manifest)
{
    json_t *body = json_pack("{s:s, s:i}", "format", MANIFEST_FORMAT, "version", TIDE_MANIFEST_VERSION);
    int error = json_object_set_new(body, "files", files_json(manifest));
    if (manifest->frozen_count > 0)
        error |= json_object_set_new(body, "frozen", frozen_json(manifest));
    if (manifest->weights_only)
        error |= json_object_set_new(body, "weights_only", json_true());
    error |= json_object_set_new(body, "state", tide_train_state_to_json(&manifest->state));
    if (error == 0)
        return body;
    json_decref(body);
    return NULL;
}

/* Replaces the first "{" of the JSON text by the checksum's 21 bytes. */
static char *seal(const char *body, size_t *bytes)
{
    size_t rest_bytes = strlen(body + 1);
    char *text = malloc(SEAL_BYTES + rest_bytes + 2);
    if (text == NULL)
        return NULL;
    memcpy(text + SEAL_BYTES, body + 1, rest_bytes);
    text[SEAL_BYTES + rest_bytes] = '\n';
    char head[SEAL_BYTES + 1];
    snprintf(head, sizeof head, "{\"crc32c\":\"%08" PRIx32 "\",",
             tide_crc32c(0, text + SEAL_BYTES, rest_bytes + 1));
    memcpy(text, head, SEAL_BYTES);
    text[SEAL_BYTES + rest_bytes + 1] = '\0';
    *bytes = SEAL_BYTES + rest_bytes + 1;
    return text;
}

tide_status tide_manifest_make(const tide_manifest *manifest, char **text, size_t *bytes)
{
    json_t *body = body_json(manifest);
    char *dump = tide_json_object_text(body, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    char *sealed = dump == NULL ? NULL : seal(dump, bytes);
    free(dump);
    json_decref(body);
    if (sealed == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint: no memory for a manifest");
    if (*bytes > TIDE_MANIFEST_MAX_BYTES) {
        free(sealed);
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "checkpoint: a manifest of %zu bytes (%zu names of frozen tensors) is over the limit of %d",
            *bytes, manifest->frozen_count, TIDE_MANIFEST_MAX_BYTES);
    }
    *text = sealed;
    return TIDE_OK;
}

/* ---- reading ---- */

static bool crc_from_text(const char *text, uint32_t *crc)
{
    if (text == NULL || strspn(text, "0123456789abcdef") < 8)
        return false;
    return sscanf(text, "%8" SCNx32, crc) == 1;
}

static tide_status seal_check(const char *text, size_t bytes, const char *label)
{
    char head[SEAL_BYTES + 1] = "";
    uint32_t crc = 0;
    if (bytes > SEAL_BYTES)
        memcpy(head, text, SEAL_BYTES);
    if (strncmp(head, "{\"crc32c\":\"", 11) != 0 || strcmp(head + 19, "\",") != 0 ||
        !crc_from_text(head + 11, &crc))
        return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %s: %zu bytes that do not begin as a manifest does",
                         label, bytes);
    uint32_t found = tide_crc32c(0, text + SEAL_BYTES, bytes - SEAL_BYTES);
    if (found != crc)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "checkpoint %s: damaged, its checksum is %08" PRIx32 " instead of %08" PRIx32, label,
                         found, crc);
    return TIDE_OK;
}

static tide_status head_check(const json_t *root, const char *label)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    const json_t *version = json_object_get(root, "version");
    if (format == NULL || strcmp(format, MANIFEST_FORMAT) != 0 || !json_is_integer(version))
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "checkpoint %s: not a manifest of format \"" MANIFEST_FORMAT "\"", label);
    const json_int_t number = json_integer_value(version);
    if (number < 1 || number > TIDE_MANIFEST_VERSION)
        return tide_fail(TIDE_ERROR_UNSUPPORTED,
                         "checkpoint %s: format version %lld, this tidepool knows versions 1 to %d", label,
                         (long long)number, TIDE_MANIFEST_VERSION);
    return TIDE_OK;
}

/* Does the manifest list no moments? Version 3 says so by its number. */
static bool is_weights_only(const json_t *root)
{
    return json_integer_value(json_object_get(root, "version")) == VERSION_OF_WEIGHTS ||
           json_is_true(json_object_get(root, "weights_only"));
}

static tide_status members_check(json_t *root, const char *label)
{
    static const char *const known[] = {"crc32c", "format",       "version", "files",
                                        "frozen", "weights_only", "state"};
    const char *name;
    json_t *member;
    json_object_foreach(root, name, member)
    {
        size_t i = 0;
        while (i < sizeof known / sizeof known[0] && strcmp(name, known[i]) != 0)
            i++;
        if (i == sizeof known / sizeof known[0])
            return tide_fail(
                TIDE_ERROR_UNSUPPORTED,
                "checkpoint %s: it has \"%s\", which this tidepool does not know; a newer one wrote it",
                label, tide_printable(name).text);
    }
    const json_t *weights_only = json_object_get(root, "weights_only"),
                 *frozen = json_object_get(root, "frozen");
    if (weights_only != NULL && !json_is_true(weights_only))
        return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %s: \"weights_only\" is true or not there", label);
    if (frozen != NULL && is_weights_only(root))
        return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %s: it has weights alone, and \"frozen\"", label);
    return TIDE_OK;
}

static tide_status file_parse(const json_t *entry, const char *label, tide_value value,
                              tide_manifest_file *file)
{
    const char *expected = tide_checkpoint_file(value);
    const char *name = json_string_value(json_object_get(entry, "name"));
    const char *crc = json_string_value(json_object_get(entry, "crc32c"));
    json_int_t bytes = json_integer_value(json_object_get(entry, "bytes"));
    bool sound = name != NULL && strcmp(name, expected) == 0 && bytes > 0 && crc != NULL &&
                 strlen(crc) == 8 && json_object_size(entry) == 3 && crc_from_text(crc, &file->crc32c);
    if (!sound)
        return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %s: its entry of %s is missing or malformed", label,
                         expected);
    file->bytes = (uint64_t)bytes;
    return TIDE_OK;
}

/* Checks the list of frozen tensors: it must have at least one name. Sets *bytes to the size of all names
 * with their terminating zeros. */
static tide_status frozen_check(const json_t *names, const char *label, size_t *bytes)
{
    size_t found = 0, i = 0;
    const json_t *name;
    json_array_foreach(names, i, name)
    {
        if (json_string_length(name) == 0)
            break;
        found += json_string_length(name) + 1;
    }
    if (i == 0 || i < json_array_size(names))
        return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %s: its list of frozen tensors is malformed", label);
    *bytes = found;
    return TIDE_OK;
}

static tide_status frozen_parse(const json_t *names, const char *label, tide_manifest *manifest)
{
    size_t bytes = 0;
    const tide_status status = frozen_check(names, label, &bytes);
    if (status != TIDE_OK)
        return status;
    const size_t count = json_array_size(names);
    const char **frozen = malloc(count * sizeof *frozen + bytes);
    if (frozen == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint %s: no memory for %zu names", label, count);
    char *at = (char *)(frozen + count);
    for (size_t i = 0; i < count; i++) {
        frozen[i] = strcpy(at, json_string_value(json_array_get(names, i)));
        at += strlen(at) + 1;
    }
    manifest->frozen = frozen;
    manifest->frozen_count = count;
    return TIDE_OK;
}

static tide_status body_parse(json_t *root, const char *label, tide_manifest *manifest)
{
    const json_t *files = json_object_get(root, "files"), *frozen = json_object_get(root, "frozen");
    manifest->weights_only = is_weights_only(root);
    const tide_value end = tide_manifest_end(manifest);
    tide_status status = head_check(root, label);
    if (status == TIDE_OK)
        status = members_check(root, label);
    if (status == TIDE_OK && json_array_size(files) != (size_t)(end - TIDE_VALUE_MASTER))
        return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %s: it must list %d files", label,
                         (int)(end - TIDE_VALUE_MASTER));
    for (tide_value value = TIDE_VALUE_MASTER; value < end && status == TIDE_OK; value++)
        status = file_parse(json_array_get(files, value - TIDE_VALUE_MASTER), label, value,
                            &manifest->files[value]);
    if (status == TIDE_OK)
        status = tide_train_state_from_json(json_object_get(root, "state"), label, &manifest->state);
    if (status == TIDE_OK && frozen != NULL) /* last, so that a failure has nothing to free */
        status = frozen_parse(frozen, label, manifest);
    return status;
}

tide_status tide_manifest_parse(const char *text, size_t bytes, const char *label, tide_manifest *manifest)
{
    tide_status status = seal_check(text, bytes, label);
    if (status != TIDE_OK)
        return status;
    json_t *root = NULL;
    status = tide_json_object_parse(text, bytes, "checkpoint", label, "it", &root);
    if (status != TIDE_OK)
        return status;
    tide_manifest parsed = {.frozen = NULL};
    status = body_parse(root, label, &parsed);
    json_decref(root);
    if (status == TIDE_OK)
        *manifest = parsed;
    return status;
}

/* ---- files ---- */

tide_status tide_manifest_open(const tide_files *files, const char *step_path, const char *name,
                               tide_file *file)
{
    const int error = tide_file_open(files, "checkpoint", step_path, name, file);
    if (tide_files_is_absent(error))
        return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %.900s: the file is missing", file->path);
    return error == 0 ? TIDE_OK : tide_file_fail(file, "opened", error);
}

tide_status tide_manifest_read(const tide_files *files, const char *step_path, tide_manifest *manifest)
{
    tide_file file;
    char *text = NULL;
    tide_status status = tide_manifest_open(files, step_path, TIDE_MANIFEST_NAME, &file);
    if (status == TIDE_OK && file.bytes > TIDE_MANIFEST_MAX_BYTES)
        status =
            tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %.900s: %" PRIu64 " bytes are too many for a manifest",
                      file.path, file.bytes);
    if (status == TIDE_OK)
        status = tide_file_text(&file, 0, (size_t)file.bytes, &text);
    if (status == TIDE_OK)
        status = tide_manifest_parse(text, (size_t)file.bytes, file.path, manifest);
    free(text);
    tide_file_close(&file);
    return status;
}

tide_status tide_manifest_size_check(const tide_file *file, const tide_manifest_file *expected)
{
    if (file->bytes == expected->bytes)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_CORRUPT,
                     "checkpoint %.900s: %s, it has %" PRIu64 " bytes instead of %" PRIu64, file->path,
                     file->bytes < expected->bytes ? "truncated" : "too long", file->bytes, expected->bytes);
}

tide_status tide_manifest_checksum_check(const tide_file *file, const tide_manifest_file *expected,
                                         void *buffer, size_t buffer_bytes, tide_manifest_tell tell,
                                         void *context)
{
    uint32_t crc = 0;
    for (uint64_t offset = 0; offset < file->bytes; offset += buffer_bytes) {
        const uint64_t left = file->bytes - offset;
        const size_t count = left < buffer_bytes ? (size_t)left : buffer_bytes;
        const tide_status status = tide_file_get(file, offset, buffer, count);
        if (status != TIDE_OK)
            return status;
        crc = tide_crc32c(crc, buffer, count);
        tell(context, count);
    }
    if (crc != expected->crc32c)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "checkpoint %.900s: damaged, its checksum is %08" PRIx32 " instead of %08" PRIx32,
                         file->path, crc, expected->crc32c);
    return TIDE_OK;
}
