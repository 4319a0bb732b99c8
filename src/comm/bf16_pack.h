/* Sums that travel as bf16. Each is a bf16 number that an fp32 number holds, so packing drops only zeros. */
#ifndef TIDE_COMM_BF16_PACK_H
#define TIDE_COMM_BF16_PACK_H

#include <stdint.h>

void tide_bf16_pack(const float *sums, uint32_t count, uint16_t *packed);

#endif
