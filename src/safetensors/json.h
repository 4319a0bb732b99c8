/* Reads JSON from files that may be damaged or malicious, and writes JSON. */
#ifndef TIDE_SAFETENSORS_JSON_H
#define TIDE_SAFETENSORS_JSON_H

#include "base/text.h"
#include "tidepool/status.h"

#include <jansson.h>
#include <stdlib.h>

/* Parse a text that must be a JSON object without duplicate keys. Messages call the file `label`, preceded by
 * `noun`, and the text `what`. CORRUPT, NO_MEMORY. */
TIDE_NODISCARD static inline tide_status tide_json_object_parse(const char *text, size_t bytes,
                                                                const char *noun, const char *label,
                                                                const char *what, json_t **object)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL && (error.text[0] == '\0' || json_error_code(&error) == json_error_out_of_memory))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "%s %.800s: no memory to read %s of %zu bytes", noun, label,
                         what, bytes);
    if (root == NULL)
        return tide_fail(TIDE_ERROR_CORRUPT, "%s %.800s: %s is not sound JSON at byte %d: %s", noun, label,
                         what, error.position, tide_printable(error.text).text);
    if (!json_is_object(root)) {
        json_decref(root);
        return tide_fail(TIDE_ERROR_CORRUPT, "%s %.800s: %s is not a JSON object", noun, label, what);
    }
    *object = root;
    return TIDE_OK;
}

/* The JSON's text, in a block that the caller frees; NULL: no memory. Does not call json_dumps, which may
 * lose a key without an error when its buffer can't grow. */
static inline char *tide_json_object_text(const json_t *root, size_t flags)
{
    const size_t bytes = json_dumpb(root, NULL, 0, flags);
    char *text = bytes > 0 ? malloc(bytes + 1) : NULL;
    if (text == NULL || json_dumpb(root, text, bytes, flags) != bytes) {
        free(text);
        return NULL;
    }
    text[bytes] = '\0';
    return text;
}

#endif
