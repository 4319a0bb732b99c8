/* Folders of weights for tests: writes files into a folder, and a small model in one file or in shards. */
#ifndef TIDE_TESTS_TEST_WEIGHTS_H
#define TIDE_TESTS_TEST_WEIGHTS_H

#include "src/weights/reader.h"
#include "tests/files/scratch.h"
#include "tests/support/assert_ok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline void put(const tide_files *files, const char *dir, const char *name, const void *bytes,
                       size_t count)
{
    char path[512];
    int handle;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    files->remove_file(files->context, path);
    assert_int_equal(files->create(files->context, path, &handle), 0);
    for (size_t done = 0, some; done < count; done += some)
        assert_int_equal(
            files->write(files->context, handle, (const char *)bytes + done, count - done, &some), 0);
    assert_int_equal(files->close(files->context, handle), 0);
}

static inline void put_text(const char *dir, const char *name, const char *text)
{
    put(tide_files_posix(), dir, name, text, strlen(text));
}

/* Writes a safetensors file with this header and these data; NULL: zeros. */
static inline void put_tensors(const tide_files *files, const char *dir, const char *name, const char *header,
                               const void *data, size_t data_bytes)
{
    const uint64_t header_bytes = strlen(header);
    char *bytes = calloc(1, 8 + header_bytes + data_bytes);
    memcpy(bytes, &header_bytes, 8);
    memcpy(bytes + 8, header, header_bytes);
    if (data != NULL)
        memcpy(bytes + 8 + header_bytes, data, data_bytes);
    put(files, dir, name, bytes, 8 + header_bytes + data_bytes);
    free(bytes);
}

static inline void put_single(const char *dir, const char *header, const void *data, size_t data_bytes)
{
    put_tensors(tide_files_posix(), dir, "model.safetensors", header, data, data_bytes);
}

static inline void get_bits(const tide_weights *weights, size_t tensor, uint64_t first, uint64_t count,
                            uint32_t *bits)
{
    assert_ok(tide_weights_read(weights, tensor, first, count, (float *)(void *)bits));
}

/* ---- a small model ---- */

static const tide_weights_tensor small_tensors[] = {
    {"embed.weight", 2, {2, 3}}, {"norm.bias", 1, {4}}, {"head.weight", 2, {3, 1}}};
static const tide_weights_names small = {.tensors = small_tensors, .count = 3};

#define EMBED "\"embed.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define NORM  "\"norm.bias\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}"
#define HEAD  "\"head.weight\":{\"dtype\":\"F16\",\"shape\":[3,1],\"data_offsets\":[32,38]}"
#define SMALL "{\"__metadata__\":{\"format\":\"pt\"}," HEAD "," EMBED "," NORM "}  "

enum { SMALL_BYTES = 38 };

typedef struct __attribute__((packed)) small_data {
    uint32_t embed[6];
    uint16_t norm[4], head[3];
} small_data;

/* A denormal, a signalling NaN with a payload, infinities, a negative zero. */
static const small_data small_values = {
    {0x00000001, 0x7f812345, 0xff800000, 0x80000000, 0x3f800000, 0x7f7fffff},
    {0x0001, 0xffa5, 0x7f80, 0xc2f7},
    {0x0001, 0x7c00, 0xbc00}};
static const uint32_t small_embed[6] = {0x00000001, 0x7f812345, 0xff800000,
                                        0x80000000, 0x3f800000, 0x7f7fffff};
static const uint32_t small_norm[4] = {0x00010000, 0xffa50000, 0x7f800000, 0xc2f70000};
static const uint32_t small_head[3] = {0x33800000, 0x7f800000, 0xbf800000};

static inline void assert_small(const tide_weights *weights)
{
    uint32_t bits[6];
    get_bits(weights, 0, 0, 6, bits);
    assert_memory_equal(bits, small_embed, sizeof small_embed);
    get_bits(weights, 1, 0, 4, bits);
    assert_memory_equal(bits, small_norm, sizeof small_norm);
    get_bits(weights, 2, 0, 3, bits);
    assert_memory_equal(bits, small_head, sizeof small_head);
}

#define SHARD_ONE "model-00001-of-00002.safetensors"
#define SHARD_TWO "model-00002-of-00002.safetensors"
#define INDEX     "model.safetensors.index.json"
#define ONE       "{" EMBED "," NORM "}"
#define TWO       "{\"__metadata__\":{},\"head.weight\":{\"dtype\":\"F16\",\"shape\":[3,1],\"data_offsets\":[0,6]}}"
#define MAPS                                                                                                 \
    "\"embed.weight\":\"" SHARD_ONE "\",\"norm.bias\":\"" SHARD_ONE "\",\"head.weight\":\"" SHARD_TWO "\""
#define MAP "{\"metadata\":{\"total_size\":1},\"weight_map\":{" MAPS "}}"

static inline void put_shards(const tide_files *files, const char *dir)
{
    put(files, dir, INDEX, MAP, sizeof MAP - 1);
    put_tensors(files, dir, SHARD_ONE, ONE, &small_values, 32);
    put_tensors(files, dir, SHARD_TWO, TWO, small_values.head, 6);
}

/* Opening the folder fails with this status and message; the message begins with "weights" and the folder. */
static inline void assert_refused(const char *dir, const tide_weights_names *names, tide_status wanted,
                                  const char *line)
{
    tide_weights *weights = NULL;
    char whole[1024];
    const tide_status status = tide_weights_open(dir, names, &weights);
    if (status == TIDE_OK)
        fail_msg("taken, and it should be: %s", line);
    snprintf(whole, sizeof whole, "weights %s%s", dir, line);
    assert_string_equal(tide_message(), whole);
    assert_string_equal(tide_status_name(status), tide_status_name(wanted));
    assert_null(weights);
}

#endif
