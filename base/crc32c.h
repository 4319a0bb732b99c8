/* CRC-32C (Castagnoli): the checksum of the files of a checkpoint and of token shards. */
#ifndef TIDE_BASE_CRC32C_H
#define TIDE_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continue the checksum `crc` of the bytes so far with `count` further bytes. Start with 0. Any thread. */
uint32_t tide_crc32c(uint32_t crc, const void *bytes, size_t count);

/* The version with a table. tide_crc32c uses it if the CPU has no instruction. */
uint32_t tide_crc32c_portable(uint32_t crc, const void *bytes, size_t count);

#endif
