/* A machine profile as JSON. Writer and reader use one table of fields, so that both know the same ones. */
#include "base/atomic_file.h"
#include "base/text.h"
#include "base/whole.h"
#include "base/write_error.h"
#include "src/perf/machine_profile.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MOST = 64 << 20, VERSION = 1 };
static const char format_name[] = "tidepool machine";

typedef enum field_kind {
    FIELD_TEXT,  /* of TIDE_MACHINE_PROFILE_TEXT_BYTES */
    FIELD_WORD,  /* text of 16 bytes */
    FIELD_BYTES, /* uint64_t */
    FIELD_COUNT, /* uint32_t */
    FIELD_REAL,  /* double that is finite and at least 0 */
} field_kind;

typedef struct field {
    const char *name;
    field_kind kind;
    size_t offset;
} field;

#define AT(member) offsetof(tide_machine_profile, member)

static const field fields[] = {
    {"name", FIELD_TEXT, AT(name)},
    {"source", FIELD_TEXT, AT(source)},
    {"device", FIELD_WORD, AT(device)},
    {"threads", FIELD_COUNT, AT(threads)},
    {"gpu_bytes", FIELD_BYTES, AT(gpu_bytes)},
    {"memory_bytes", FIELD_BYTES, AT(memory_bytes)},
    {"bf16_flops_per_second", FIELD_REAL, AT(flops_per_second[TIDE_DTYPE_BF16])},
    {"fp16_flops_per_second", FIELD_REAL, AT(flops_per_second[TIDE_DTYPE_FP16])},
    {"fp32_flops_per_second", FIELD_REAL, AT(flops_per_second[TIDE_DTYPE_FP32])},
    {"device_bytes_per_second", FIELD_REAL, AT(device_bytes_per_second)},
    {"device_adam_bytes_per_second", FIELD_REAL, AT(device_adam_bytes_per_second)},
    {"h2d_bytes_per_second", FIELD_REAL, AT(h2d_bytes_per_second)},
    {"d2h_bytes_per_second", FIELD_REAL, AT(d2h_bytes_per_second)},
    {"map_ns", FIELD_REAL, AT(map_ns)},
    {"unmap_ns", FIELD_REAL, AT(unmap_ns)},
    {"launch_ns", FIELD_REAL, AT(launch_ns)},
};

enum { FIELDS = sizeof fields / sizeof fields[0] };

/* --- writing --- */

static json_t *field_json(const tide_machine_profile *profile, const field *of)
{
    const char *at = (const char *)profile + of->offset;
    switch (of->kind) {
    case FIELD_BYTES:
        return json_integer((json_int_t)(*(const uint64_t *)(const void *)at & INT64_MAX));
    case FIELD_COUNT:
        return json_integer(*(const uint32_t *)(const void *)at);
    case FIELD_REAL:
        return json_real(*(const double *)(const void *)at);
    default:
        return json_string(at);
    }
}

static int adams_write(const tide_machine_profile *profile, json_t *root)
{
    json_t *list = json_array();
    int failed = json_object_set_new(root, "host_adam", list);
    for (uint32_t i = 0; i < profile->adam_count && failed == 0; i++)
        failed =
            json_array_append_new(list, json_pack("{s:i, s:f}", "threads", (int)profile->adams[i].threads,
                                                  "bytes_per_second", profile->adams[i].bytes_per_second));
    return failed;
}

/* Makes the object of a set of streams: the slowdown of each stream in it, 1 at full speed. The caller leaves
 * out a set in which no stream is slowed. */
static json_t *set_json(const tide_machine_profile *profile, unsigned set)
{
    json_t *slowdowns = json_object();
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
        const double slowdown = profile->slowdowns.of[stream][set];
        if ((set & 1u << stream) != 0 && json_object_set_new(slowdowns, tide_stream_name((tide_stream)stream),
                                                             json_real(slowdown > 0 ? slowdown : 1)) != 0) {
            json_decref(slowdowns);
            return NULL;
        }
    }
    return slowdowns;
}

static bool has_slowdowns(const tide_machine_profile *profile, unsigned set)
{
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++)
        if ((set & 1u << stream) != 0 && profile->slowdowns.of[stream][set] > 0)
            return true;
    return false;
}

static int slowdowns_write(const tide_machine_profile *profile, json_t *root)
{
    json_t *list = json_array();
    int failed = json_object_set_new(root, "paces", list);
    for (unsigned set = 0; set < 1u << TIDE_STREAM_COUNT && failed == 0; set++)
        if (has_slowdowns(profile, set))
            failed = json_array_append_new(list, set_json(profile, set));
    return failed;
}

static int kernels_write(const tide_machine_profile *profile, json_t *root)
{
    json_t *list = json_array();
    int failed = json_object_set_new(root, "kernels", list);
    for (uint32_t i = 0; i < profile->kernel_count && failed == 0; i++) {
        const tide_machine_profile_kernel *kernel = &profile->kernels[i];
        failed =
            json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f}", "label", kernel->label, "flops",
                                                  kernel->flops, "bytes", kernel->bytes, "ns", kernel->ns));
    }
    return failed;
}

/* The profile as JSON text; NULL: no memory. */
static char *profile_text(const tide_machine_profile *profile, size_t *bytes)
{
    json_t *root = json_pack("{s:s, s:i}", "format", format_name, "version", VERSION);
    const size_t flags = JSON_INDENT(1) | JSON_REAL_PRECISION(17);
    int failed = root == NULL;
    char *text = NULL;
    for (size_t i = 0; i < FIELDS && !failed; i++)
        failed = json_object_set_new(root, fields[i].name, field_json(profile, &fields[i]));
    if (!failed)
        failed = adams_write(profile, root) || slowdowns_write(profile, root) || kernels_write(profile, root);
    *bytes = failed ? 0 : json_dumpb(root, NULL, 0, flags);
    text = *bytes > 0 ? malloc(*bytes) : NULL;
    if (text != NULL && json_dumpb(root, text, *bytes, flags) != *bytes) {
        free(text);
        text = NULL;
    }
    json_decref(root);
    return text;
}

/* Creates the folders in which the file `path` lies. */
static int folders_make(const tide_files *files, const char *path)
{
    char folder[TIDE_MACHINE_PROFILE_PATH_BYTES];
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder)
        return ENAMETOOLONG;
    for (char *slash = strchr(folder + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        const int error = files->make_folder(files->context, folder);
        if (error != 0 && error != EEXIST)
            return error;
        *slash = '/';
    }
    return 0;
}

tide_status tide_machine_profile_write(const char *path, const tide_machine_profile *profile)
{
    size_t bytes = 0;
    tide_atomic_file file;
    char *text = profile_text(profile, &bytes);
    if (text == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "machine file %s: no memory to write it", path);
    const int error = folders_make(tide_files_posix(), path);
    tide_status status = error == 0
                             ? tide_atomic_file_open("machine file", path, &file)
                             : tide_fail(TIDE_ERROR_IO, "machine file %s: its folder can't be made: %s", path,
                                         tide_write_error(error));
    if (status == TIDE_OK) {
        (void)fwrite(text, 1, bytes, file.stream);
        status = tide_atomic_file_finish(&file);
    }
    free(text);
    return status;
}

/* --- reading --- */

static tide_status corrupt(const char *path, const char *what)
{
    return tide_fail(TIDE_ERROR_CORRUPT, "machine file %s: %s", path, what);
}

/* Reads a number that can be a time, a rate or an amount: finite and not negative. */
static bool real_read(const json_t *object, const char *name, double *value)
{
    const json_t *member = json_object_get(object, name);
    *value = json_number_value(member);
    return json_is_number(member) && isfinite(*value) && *value >= 0;
}

/* Reads a text of at most `capacity` - 1 bytes without control characters. */
static bool text_read(const json_t *object, const char *name, size_t capacity, char *value)
{
    const char *text = json_string_value(json_object_get(object, name));
    if (text == NULL || strlen(text) >= capacity || strcmp(tide_printable(text).text, text) != 0)
        return false;
    memcpy(value, text, strlen(text) + 1);
    return true;
}

static bool count_read(const json_t *object, const char *name, uint64_t most, uint64_t *value)
{
    const json_t *member = json_object_get(object, name);
    const json_int_t count = json_integer_value(member);
    *value = (uint64_t)count;
    return json_is_integer(member) && count >= 0 && (uint64_t)count <= most;
}

static tide_status field_read(const json_t *root, const char *path, const field *of,
                              tide_machine_profile *profile)
{
    char *at = (char *)profile + of->offset;
    uint64_t count = 0;
    bool right = false;
    if (of->kind == FIELD_REAL)
        right = real_read(root, of->name, (double *)(void *)at);
    else if (of->kind == FIELD_TEXT || of->kind == FIELD_WORD)
        right =
            text_read(root, of->name,
                      of->kind == FIELD_TEXT ? TIDE_MACHINE_PROFILE_TEXT_BYTES : sizeof profile->device, at);
    else
        right = count_read(root, of->name, of->kind == FIELD_COUNT ? UINT32_MAX : INT64_MAX, &count);
    if (!right)
        return tide_fail(TIDE_ERROR_CORRUPT, "machine file %s: %s is missing, or is not what it should be",
                         path, of->name);
    if (of->kind == FIELD_BYTES)
        *(uint64_t *)(void *)at = count;
    if (of->kind == FIELD_COUNT)
        *(uint32_t *)(void *)at = (uint32_t)count;
    return TIDE_OK;
}

static tide_status adams_read(const json_t *root, const char *path, tide_machine_profile *profile)
{
    const json_t *list = json_object_get(root, "host_adam");
    const size_t count = json_array_size(list);
    if (count == 0 || count > TIDE_MACHINE_PROFILE_ADAMS_MAX)
        return corrupt(path, "host_adam must be 1 to 12 rates");
    for (size_t i = 0; i < count; i++) {
        tide_machine_profile_adam *adam = &profile->adams[i];
        uint64_t threads = 0;
        const json_t *entry = json_array_get(list, i);
        if (!count_read(entry, "threads", UINT32_MAX, &threads) ||
            !real_read(entry, "bytes_per_second", &adam->bytes_per_second) || threads == 0 ||
            (i > 0 && threads <= profile->adams[i - 1].threads))
            return corrupt(path, "host_adam must be rates by rising threads");
        adam->threads = (uint32_t)threads;
    }
    profile->adam_count = (uint32_t)count;
    return TIDE_OK;
}

static int stream_named(const char *name)
{
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++)
        if (strcmp(tide_stream_name((tide_stream)stream), name) == 0)
            return stream;
    return -1;
}

static bool set_read(json_t *entry, tide_machine_profile *profile)
{
    const char *name;
    json_t *slowdown;
    unsigned set = 0;
    json_object_foreach(entry, name, slowdown)
    {
        const int stream = stream_named(name);
        if (stream < 0 || !json_is_number(slowdown) || !(json_number_value(slowdown) > 0) ||
            json_number_value(slowdown) > 1)
            return false;
        set |= 1u << stream;
    }
    json_object_foreach(entry, name, slowdown) profile->slowdowns.of[stream_named(name)][set] =
        json_number_value(slowdown);
    return set != 0;
}

static tide_status slowdowns_read(const json_t *root, const char *path, tide_machine_profile *profile)
{
    const json_t *list = json_object_get(root, "paces");
    if (!json_is_array(list))
        return corrupt(path, "paces must be an array");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!set_read(json_array_get(list, i), profile))
            return corrupt(path, "paces must be objects of streams' slowdown factors above 0, at most 1");
    return TIDE_OK;
}

static tide_status kernels_read(const json_t *root, const char *path, tide_machine_profile *profile)
{
    const json_t *list = json_object_get(root, "kernels");
    tide_status status = json_is_array(list) ? TIDE_OK : corrupt(path, "kernels must be an array");
    for (size_t i = 0; i < json_array_size(list) && status == TIDE_OK; i++) {
        const json_t *entry = json_array_get(list, i);
        tide_machine_profile_kernel kernel;
        const bool right = text_read(entry, "label", sizeof kernel.label, kernel.label) &&
                           real_read(entry, "flops", &kernel.flops) &&
                           real_read(entry, "bytes", &kernel.bytes) && real_read(entry, "ns", &kernel.ns);
        status = right ? tide_machine_profile_kernel_set(profile, &kernel)
                       : corrupt(path, "kernels must be objects of label, flops, bytes and ns");
    }
    return status;
}

static tide_status root_read(const json_t *root, const char *path, tide_machine_profile *profile)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    tide_status status = TIDE_OK;
    if (format == NULL || strcmp(format, format_name) != 0)
        return corrupt(path, "it is no machine file: format must be \"tidepool machine\"");
    if (json_integer_value(json_object_get(root, "version")) != VERSION)
        return corrupt(path, "another version of the format; this program knows 1");
    profile->measured = true;
    for (size_t i = 0; i < FIELDS && status == TIDE_OK; i++)
        status = field_read(root, path, &fields[i], profile);
    if (status == TIDE_OK)
        status = adams_read(root, path, profile);
    if (status == TIDE_OK)
        status = slowdowns_read(root, path, profile);
    return status == TIDE_OK ? kernels_read(root, path, profile) : status;
}

tide_status tide_machine_profile_read(const char *path, tide_machine_profile *profile)
{
    char *text = NULL;
    size_t bytes = 0;
    const int error = tide_files_read_whole(tide_files_posix(), path, FILE_BYTES_MOST, &text, &bytes);
    if (error != 0)
        return tide_fail(error == ENOMEM ? TIDE_ERROR_NO_MEMORY : TIDE_ERROR_IO,
                         "machine file %s: can't be read: %s", path, strerror(error));
    json_error_t fault;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &fault);
    free(text);
    if (root == NULL)
        return tide_fail(TIDE_ERROR_CORRUPT, "machine file %s: it is not sound JSON: %s", path,
                         tide_printable(fault.text).text);
    tide_machine_profile made = {0};
    const tide_status status = root_read(root, path, &made);
    json_decref(root);
    if (status == TIDE_OK)
        *profile = made;
    else
        tide_machine_profile_destroy(&made);
    return status;
}
