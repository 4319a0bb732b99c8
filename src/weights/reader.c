/* Opening a folder takes four steps:
 *
 *   1. Find the files: model.safetensors, or those that the index names. If neither is there, the message
 *      says what is there instead.
 *   2. Open each file, read its header and check it by itself (safetensors.c).
 *   3. Look up each of the header's tensors: it is wanted, ignored or unknown. If there is an index, it must
 *      name the same file for the tensor.
 *   4. Check that no tensor is missing.
 *
 * A header is freed as soon as its tensors have their places. One place per tensor and one handle per file
 * remain.
 */
#include "base/text.h"
#include "src/safetensors/safetensors.h"
#include "src/weights/index.h"
#include "src/weights/reader_internal.h"

#include <assert.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 256 };

/* The inputs of opening a folder, and the weights that it fills. */
typedef struct opening {
    const char *folder;
    const tide_weights_names *names;
    const tide_weights_named *by_name;
    const tide_weights_index *index; /* NULL: a single file */
    tide_weights *weights;
} opening;

/* ---- names ---- */

static int compare_name(const void *name, const void *named)
{
    return strcmp(name, ((const tide_weights_named *)named)->name);
}

static const tide_weights_named *name_find(const opening *it, const char *name)
{
    return bsearch(name, it->by_name, it->names->count, sizeof *it->by_name, compare_name);
}

static bool name_has_prefix(const tide_weights_names *names, const char *name)
{
    const char *prefix = names->optional_prefix;
    return prefix != NULL && strncmp(name, prefix, strlen(prefix)) == 0;
}

/* The name without the optional prefix. */
static const char *name_bare(const tide_weights_names *names, const char *name)
{
    return name_has_prefix(names, name) ? name + strlen(names->optional_prefix) : name;
}

/* Finds a tensor as transformers does: by its name, then without the prefix, then with the prefix in
 * front. */
static const tide_weights_named *tensor_find(const opening *it, const char *name)
{
    char longer[NAME_BYTES];
    const char *prefix = it->names->optional_prefix;
    const tide_weights_named *found = name_find(it, name);
    if (found == NULL)
        found = name_find(it, name_bare(it->names, name));
    if (found == NULL && prefix != NULL &&
        (size_t)snprintf(longer, sizeof longer, "%s%s", prefix, name) < sizeof longer)
        found = name_find(it, longer);
    return found;
}

/* Refuses a mixture of names with and without the prefix, which transformers accepts: an export gives all
 * tensors the names that they came with, and the config has one flag for that (names_otherwise). */
static tide_status name_check_prefix(const opening *it, const char *path, const char *name,
                                     const char *wanted)
{
    tide_weights *weights = it->weights;
    const tide_weights_names *names = it->names;
    const bool has = name_has_prefix(names, name), otherwise = has != name_has_prefix(names, wanted);
    if (name_has_prefix(names, names->tensors[0].name) != name_has_prefix(names, wanted))
        return TIDE_OK; /* the head, in a family whose other names have the prefix */
    if (weights->named && weights->named_otherwise != otherwise)
        return tide_fail(
            TIDE_ERROR_CORRUPT,
            "weights %.600s: tensor %s has %s%s in front and others have %s; all must have it or "
            "none",
            path, tide_printable(name).text, has ? "" : "no ", names->optional_prefix, has ? "none" : "it");
    weights->named = true;
    weights->named_otherwise = otherwise;
    return TIDE_OK;
}

static bool name_is_ignored(const tide_weights_names *names, const char *name)
{
    for (size_t i = 0; i < names->ignored_count; i++) {
        if (fnmatch(names->ignored[i], name, 0) == 0 ||
            fnmatch(names->ignored[i], name_bare(names, name), 0) == 0)
            return true;
    }
    return false;
}

static bool name_is_duplicate(const tide_weights_names *names, const char *name)
{
    return names->duplicate != NULL &&
           (strcmp(name, names->duplicate) == 0 || strcmp(name_bare(names, name), names->duplicate) == 0);
}

/* ---- one tensor ---- */

static bool dtype_find(const char *name, tide_weights_dtype *dtype)
{
    for (int i = 0; i < TIDE_WEIGHTS_DTYPES; i++) {
        if (strcmp(name, tide_weights_dtype_name((tide_weights_dtype)i)) == 0) {
            *dtype = (tide_weights_dtype)i;
            return true;
        }
    }
    return false;
}

static tide_status entry_check(const tide_safetensors_entry *entry, const tide_file *file,
                               const tide_weights_tensor *tensor, tide_weights_dtype *dtype)
{
    if (!dtype_find(entry->dtype, dtype))
        return tide_fail(TIDE_ERROR_UNSUPPORTED,
                         "weights %.600s: tensor %s has dtype %s, it must be BF16, F16 or F32", file->path,
                         tide_printable(entry->name).text, tide_printable(entry->dtype).text);
    return tide_safetensors_shape_check(file, entry, tensor->rank, tensor->shape);
}

/* Checks that the index names this file for the tensor. */
static tide_status entry_check_index(const opening *it, const tide_safetensors_entry *entry, const char *path,
                                     const char *file_name)
{
    const char *indexed = tide_weights_index_file(it->index, entry->name);
    if (indexed == NULL)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "weights %.600s: tensor %s is here, and " TIDE_WEIGHTS_INDEX_NAME " lacks it", path,
                         tide_printable(entry->name).text);
    if (strcmp(indexed, file_name) != 0)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "weights %.600s: tensor %s is here, and " TIDE_WEIGHTS_INDEX_NAME " places it in %s",
                         path, tide_printable(entry->name).text, tide_printable(indexed).text);
    return TIDE_OK;
}

static tide_status entry_take(const opening *it, const tide_safetensors_entry *entry, const tide_file *file,
                              const char *file_name, uint64_t data_offset)
{
    const tide_weights_named *found = tensor_find(it, entry->name);
    const bool is_duplicate = found == NULL && name_is_duplicate(it->names, entry->name);
    if (found == NULL && !is_duplicate && name_is_ignored(it->names, entry->name))
        return TIDE_OK;
    const tide_status indexed =
        it->index != NULL ? entry_check_index(it, entry, file->path, file_name) : TIDE_OK;
    if (indexed != TIDE_OK)
        return indexed;
    if (found == NULL && !is_duplicate)
        return tide_fail(TIDE_ERROR_MISMATCH, "weights %.600s: tensor %s is none of the model's %zu",
                         file->path, tide_printable(entry->name).text, it->names->count);
    const size_t tensor = is_duplicate ? it->names->duplicate_of : found->tensor;
    tide_weights_place *place = is_duplicate ? &it->weights->duplicate : &it->weights->places[tensor];
    if (place->file != NULL)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "weights %.600s: tensor %s is there twice, with and without %s in front", file->path,
                         is_duplicate ? it->names->duplicate : found->name, it->names->optional_prefix);
    tide_weights_dtype dtype = TIDE_WEIGHTS_F32;
    tide_status status = entry_check(entry, file, &it->names->tensors[tensor], &dtype);
    if (status == TIDE_OK && !is_duplicate)
        status = name_check_prefix(it, file->path, entry->name, found->name);
    if (status == TIDE_OK)
        *place = (tide_weights_place){file, dtype, data_offset + entry->begin};
    return status;
}

/* ---- one file ---- */

static tide_status file_take(const opening *it, const tide_file *file, const char *file_name)
{
    tide_safetensors_header header;
    tide_status status = tide_safetensors_read(file, it->names->count, &header);
    if (status != TIDE_OK)
        return status;
    const char *lacking =
        it->index != NULL ? tide_weights_index_lacking(it->index, file_name, &header) : NULL;
    if (lacking != NULL)
        status = tide_fail(TIDE_ERROR_CORRUPT,
                           "weights %.600s: tensor %s is missing, " TIDE_WEIGHTS_INDEX_NAME " places it here",
                           file->path, tide_printable(lacking).text);
    for (size_t i = 0; i < header.count && status == TIDE_OK; i++)
        status = entry_take(it, &header.entries[i], file, file_name, header.data_start);
    tide_safetensors_free(&header);
    return status;
}

/* ---- the folder ---- */

/* If the files have only the duplicate, its place becomes the tensor's. safetensors' save_model keeps one of
 * two names of the same values, the bytewise first; transformers accepts either. */
static void duplicate_take(const opening *it)
{
    tide_weights *weights = it->weights;
    tide_weights_place *place = &weights->places[it->names->duplicate_of];
    if (weights->duplicate.file == NULL || place->file != NULL)
        return;
    *place = weights->duplicate;
    weights->duplicate.file = NULL;
}

static tide_status missing_check(const opening *it, const char *path)
{
    duplicate_take(it);
    const tide_weights_tensor *first = NULL;
    size_t missing = 0;
    for (size_t i = it->names->count; i-- > 0;) {
        if (it->weights->places[i].file == NULL) {
            first = &it->names->tensors[i];
            missing++;
        }
    }
    if (first == NULL)
        return TIDE_OK;
    char shape[TIDE_SAFETENSORS_SHAPE_BYTES], others[48] = "";
    tide_safetensors_shape_text(first->rank, first->shape, shape);
    if (missing > 1)
        snprintf(others, sizeof others, ", and %zu other%s", missing - 1, missing == 2 ? "" : "s");
    return tide_fail(TIDE_ERROR_MISMATCH, "weights %.600s: tensor %s of shape %s is missing%s", path,
                     tide_printable(first->name).text, shape, others);
}

static tide_status shards_take(opening *it)
{
    tide_weights *weights = it->weights;
    weights->opened = malloc(it->index->file_count * sizeof *weights->opened);
    if (weights->opened == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "weights %.600s: no memory for %zu files", it->folder,
                         it->index->file_count);
    for (size_t i = 0; i < it->index->file_count; i++) {
        const char *name = it->index->files[i];
        tide_file *file = &weights->opened[i];
        const int error = tide_file_open(weights->files, "weights", it->folder, name, file);
        if (error != 0)
            return tide_file_fail(file, "opened", error);
        weights->opened_count++;
        const tide_status status = file_take(it, file, name);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

/* Reads the index, then the shards that it names. */
static tide_status index_take(opening *it, const tide_file *file)
{
    const uint64_t most = tide_safetensors_most_bytes(it->names->count);
    tide_weights_index index = {0};
    char *text = NULL;
    if (file->bytes > most)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "weights %.600s: it has %" PRIu64
                         " bytes, of a model of %zu tensors at most %" PRIu64 " may be",
                         file->path, file->bytes, it->names->count, most);
    tide_status status = tide_file_text(file, 0, (size_t)file->bytes, &text);
    if (status != TIDE_OK)
        return status;
    status = tide_weights_index_parse(text, (size_t)file->bytes, file->path, &index);
    free(text);
    if (status != TIDE_OK)
        return status;
    it->index = &index;
    status = shards_take(it);
    if (status == TIDE_OK)
        status = missing_check(it, file->path);
    it->index = NULL;
    tide_weights_index_free(&index);
    return status;
}

/* Makes the open file the only file of the weights. On failure closes it. */
static tide_status single_take(opening *it, tide_file *file)
{
    tide_weights *weights = it->weights;
    weights->opened = malloc(sizeof *weights->opened);
    if (weights->opened == NULL) {
        tide_file_close(file);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "weights %.600s: no memory to open it", file->path);
    }
    weights->opened[0] = *file;
    weights->opened_count = 1;
    const tide_status status = file_take(it, &weights->opened[0], TIDE_WEIGHTS_SINGLE_NAME);
    return status == TIDE_OK ? missing_check(it, file->path) : status;
}

/* `name`: a file of weights in a format that is not supported; of several the bytewise first. `nowhere`: one
 * of the reader's own file names that is listed but could not be opened, as a link that leads nowhere. */
typedef struct other_format {
    char name[256];
    const char *nowhere; /* NULL: none */
} other_format;

static int other_format_see(void *visitor, const char *name)
{
    static const char *const patterns[] = {"pytorch_model*.bin",  "*.safetensors", "*.gguf", "*.pth",
                                           "flax_model*.msgpack", "tf_model*.h5"};
    other_format *other = visitor;
    if (strcmp(name, TIDE_WEIGHTS_SINGLE_NAME) == 0)
        other->nowhere = TIDE_WEIGHTS_SINGLE_NAME;
    else if (strcmp(name, TIDE_WEIGHTS_INDEX_NAME) == 0 && other->nowhere == NULL)
        other->nowhere = TIDE_WEIGHTS_INDEX_NAME;
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        if (fnmatch(patterns[i], name, 0) == 0 && (other->name[0] == '\0' || strcmp(name, other->name) < 0))
            snprintf(other->name, sizeof other->name, "%s", name);
    }
    return 0;
}

static tide_status nothing_fail(const tide_files *files, const char *folder)
{
    other_format other = {"", NULL};
    const int error = files->list(files->context, folder, other_format_see, &other);
    if (error != 0)
        return tide_fail(TIDE_ERROR_IO, "weights %.600s: can't be opened: %s", folder, strerror(error));
    if (other.nowhere != NULL)
        return tide_fail(TIDE_ERROR_IO,
                         "weights %.600s/%s: a link that leads nowhere, it must be the file or lead to it",
                         folder, other.nowhere);
    if (other.name[0] == '\0')
        return tide_fail(TIDE_ERROR_IO,
                         "weights %.600s: neither " TIDE_WEIGHTS_SINGLE_NAME " nor " TIDE_WEIGHTS_INDEX_NAME
                         " is there",
                         folder);
    if (fnmatch("*.safetensors", other.name, 0) == 0)
        return tide_fail(TIDE_ERROR_UNSUPPORTED,
                         "weights %.600s: %s is there without " TIDE_WEIGHTS_INDEX_NAME
                         ", and it must be that or be called " TIDE_WEIGHTS_SINGLE_NAME,
                         folder, tide_printable(other.name).text);
    return tide_fail(TIDE_ERROR_UNSUPPORTED,
                     "weights %.600s: only %s is there, convert it to " TIDE_WEIGHTS_SINGLE_NAME " first",
                     folder, tide_printable(other.name).text);
}

static tide_status folder_take(opening *it)
{
    const tide_files *files = it->weights->files;
    tide_file file;
    int error = tide_file_open(files, "weights", it->folder, TIDE_WEIGHTS_SINGLE_NAME, &file);
    if (error == 0)
        return single_take(it, &file);
    if (error == ENOENT)
        error = tide_file_open(files, "weights", it->folder, TIDE_WEIGHTS_INDEX_NAME, &file);
    if (error != 0)
        return error == ENOENT ? nothing_fail(files, it->folder) : tide_file_fail(&file, "opened", error);
    const tide_status status = index_take(it, &file);
    tide_file_close(&file);
    return status;
}

tide_status tide_weights_open_on(const tide_files *files, const char *folder, const tide_weights_names *names,
                                 tide_weights **weights)
{
    tide_weights_named *by_name;
    tide_status status = tide_weights_by_name(names->tensors, names->count, &by_name);
    if (status != TIDE_OK)
        return status;
    tide_weights *made = calloc(1, sizeof *made);
    if (made != NULL)
        *made = (tide_weights){.files = files,
                               .tensors = names->tensors,
                               .count = names->count,
                               .duplicate_name = names->duplicate,
                               .duplicate_of = names->duplicate_of,
                               .places = calloc(names->count, sizeof *made->places)};
    opening it = {.folder = folder, .names = names, .by_name = by_name, .weights = made};
    if (made == NULL || made->places == NULL)
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "weights %.600s: no memory for %zu tensors", folder,
                           names->count);
    else
        status = folder_take(&it);
    free(by_name);
    if (status == TIDE_OK)
        *weights = made;
    else
        tide_weights_close(made);
    return status;
}

tide_status tide_weights_open(const char *folder, const tide_weights_names *names, tide_weights **weights)
{
    return tide_weights_open_on(tide_files_posix(), folder, names, weights);
}

void tide_weights_close(tide_weights *weights)
{
    if (weights == NULL)
        return;
    for (size_t i = 0; i < weights->opened_count; i++)
        tide_file_close(&weights->opened[i]);
    free(weights->opened);
    free(weights->places);
    free(weights);
}

/* ---- properties of open weights ---- */

bool tide_weights_named_otherwise(const tide_weights *weights)
{
    return weights->named_otherwise;
}

uint64_t tide_weights_bytes(const tide_weights *weights)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < weights->count; i++)
        bytes +=
            tide_weights_elements(&weights->tensors[i]) * tide_weights_dtype_bytes(weights->places[i].dtype);
    return bytes;
}

tide_weights_dtype tide_weights_most_dtype(const tide_weights *weights)
{
    uint64_t elements[TIDE_WEIGHTS_DTYPES] = {0};
    int most = 0;
    for (size_t i = 0; i < weights->count; i++)
        elements[weights->places[i].dtype] += tide_weights_elements(&weights->tensors[i]);
    for (int i = 1; i < TIDE_WEIGHTS_DTYPES; i++) {
        if (elements[i] > elements[most])
            most = i;
    }
    return (tide_weights_dtype)most;
}

tide_weights_dtype tide_weights_tensor_dtype(const tide_weights *weights, size_t tensor)
{
    assert(tensor < weights->count);
    return weights->places[tensor].dtype;
}
