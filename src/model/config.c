/* Finds a model by its name: a preset, or the path of a config.json, which config_json.c reads. */
#include "src/model/family.h"

#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_FILE_MAX_BYTES = 1 << 20 };

/* ---- presets ---- */

/* The n-th of all families' presets, NULL past the last. */
static const tide_model_config *preset_at(size_t index)
{
    const tide_family *family;
    for (size_t i = 0; (family = tide_model_family_at(i)) != NULL; i++)
        for (const tide_model_config *preset = family->presets; preset->family; preset++, index--)
            if (index == 0)
                return preset;
    return NULL;
}

const char *tide_model_preset_name(size_t index)
{
    const tide_model_config *preset = preset_at(index);
    return preset ? preset->name : NULL;
}

static const tide_model_config *preset_named(const char *name)
{
    const tide_model_config *preset;
    for (size_t i = 0; (preset = preset_at(i)) != NULL; i++)
        if (strcmp(preset->name, name) == 0)
            return preset;
    return NULL;
}

bool tide_model_is_preset(const char *name)
{
    return preset_named(name) != NULL;
}

const char *tide_model_shape_name(const tide_model_config *config)
{
    const tide_model_config *preset;
    for (size_t i = 0; (preset = preset_at(i)) != NULL; i++) {
        tide_model_config whole = *preset;
        tide_model_config_complete(&whole);
        if (whole.family == config->family && whole.layers == config->layers &&
            whole.width == config->width && whole.heads == config->heads &&
            whole.kv_heads == config->kv_heads && whole.head_width == config->head_width &&
            whole.mlp_width == config->mlp_width && whole.context == config->context &&
            whole.vocab_size == config->vocab_size && whole.tied == config->tied)
            return preset->name;
    }
    return NULL;
}

/* ---- opening ---- */

/* Reads the whole file. `text` has room for one byte more than the limit, so that a file over the limit
 * shows. */
static tide_status file_read(int descriptor, const char *path, char *text, size_t *bytes)
{
    size_t done = 0;
    while (done <= CONFIG_FILE_MAX_BYTES) {
        ssize_t got = read(descriptor, text + done, CONFIG_FILE_MAX_BYTES + 1 - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tide_fail(TIDE_ERROR_IO, "model %s: can't be read: %s", path, strerror(errno));
        if (got == 0)
            break;
        done += (size_t)got;
    }
    if (done > CONFIG_FILE_MAX_BYTES)
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: over %d bytes, that is no config.json", path,
                         CONFIG_FILE_MAX_BYTES);
    *bytes = done;
    return TIDE_OK;
}

static tide_status no_such_model(const char *model, int error)
{
    char names[256] = "";
    size_t length = 0;
    for (size_t i = 0; tide_model_preset_name(i); i++)
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i == 0 ? "" : ", ",
                                   tide_model_preset_name(i));
    return tide_fail(
        TIDE_ERROR_IO,
        "model %s: neither a preset (%s) nor a config.json or a folder of one that can be opened: %s", model,
        names, strerror(error));
}

/* Reads the config.json from the descriptor and closes it. */
static tide_status descriptor_open(int descriptor, const char *path, tide_model_config *config)
{
    tide_status status = TIDE_OK;
    struct stat about;
    char *text = malloc(CONFIG_FILE_MAX_BYTES + 1);
    size_t bytes = 0;
    if (text == NULL)
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "model %s: no memory for %d bytes", path,
                           CONFIG_FILE_MAX_BYTES + 1);
    else if (fstat(descriptor, &about) != 0)
        status = tide_fail(TIDE_ERROR_IO, "model %s: can't be looked at: %s", path, strerror(errno));
    else if (!S_ISREG(about.st_mode))
        status = tide_fail(TIDE_ERROR_IO,
                           "model %s: not a file; name a preset, a config.json or the folder of one", path);
    else
        status = file_read(descriptor, path, text, &bytes);
    if (status == TIDE_OK)
        status = tide_model_config_parse(text, bytes, path, config);
    free(text);
    close(descriptor); /* opened for reading: nothing can be lost */
    return status;
}

/* Gives a folder's own name: the last part of its path, after links and dots are resolved. */
static void name_of_folder(const char *folder, char name[64])
{
    char *whole = realpath(folder, NULL);
    const char *last = whole ? strrchr(whole, '/') : NULL;
    snprintf(name, 64, "%.63s", last && last[1] != '\0' ? last + 1 : folder);
    free(whole);
}

/* Reads a folder's config.json. The folder's weights are opened elsewhere. */
static tide_status folder_open(const char *folder, tide_model_config *config)
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/config.json", folder) >= sizeof path)
        return tide_fail(TIDE_ERROR_IO, "model %.200s...: the path is too long", folder);
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return tide_fail(TIDE_ERROR_IO, "model %s: a folder without a config.json that can be opened: %s",
                         folder, strerror(errno));
    const tide_status status = descriptor_open(descriptor, path, config);
    if (status == TIDE_OK)
        name_of_folder(folder, config->name);
    return status;
}

tide_status tide_model_is_folder(const char *model, bool *is_folder)
{
    struct stat about;
    const int error = stat(model, &about) == 0 ? 0 : errno;
    if (error != 0 && !tide_files_is_absent(error))
        return tide_fail(TIDE_ERROR_IO, "model %s: can't be looked at: %s", model, strerror(error));
    *is_folder = error == 0 && S_ISDIR(about.st_mode);
    return TIDE_OK;
}

static tide_status file_open(const char *path, tide_model_config *config)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return no_such_model(path, errno);
    return descriptor_open(descriptor, path, config);
}

tide_status tide_model_config_open(const char *model, tide_model_config *config)
{
    const tide_model_config *preset = preset_named(model);
    bool is_folder = false;
    if (preset != NULL) {
        *config = *preset;
        tide_model_config_complete(config);
        return TIDE_OK;
    }
    const tide_status status = tide_model_is_folder(model, &is_folder);
    if (status != TIDE_OK)
        return status;
    return is_folder ? folder_open(model, config) : file_open(model, config);
}
