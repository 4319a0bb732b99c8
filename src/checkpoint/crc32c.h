/* CRC-32C (Castagnoli): the checksum of a checkpoint's files. */
#ifndef TIDE_CHECKPOINT_CRC32C_H
#define TIDE_CHECKPOINT_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of the bytes so far, `crc`, continued over `bytes`. Start with 0. Any thread. */
uint32_t tide_crc32c(uint32_t crc, const void *bytes, size_t count);

/* The portable table version, which tide_crc32c uses where the CPU has no instruction for it. */
uint32_t tide_crc32c_portable(uint32_t crc, const void *bytes, size_t count);

#endif
