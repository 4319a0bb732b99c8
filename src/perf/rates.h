/* Measures this machine's rates with the device table and kernels that training uses. `tidepool info` prints
 * them, and the null device predicts with them. Takes about a second. */
#ifndef TIDE_PERF_RATES_H
#define TIDE_PERF_RATES_H

#include "tidepool/types.h"

typedef struct tide_rates {
    char device[16];
    uint32_t threads;                  /* of the CPU's kernels; with a GPU, of the host's AdamW */
    double flops_per_second[3];        /* of matrix products, by tide_dtype */
    double device_bytes_per_second;    /* read and written by a kernel in the device's region */
    double adam_bytes_per_second;      /* moved by the device's fused AdamW: 28 bytes a bf16 param */
    double host_adam_bytes_per_second; /* moved by the host's AdamW; on the host device the same */
    double h2d_bytes_per_second;       /* from slot to slot, without a limit */
    double d2h_bytes_per_second;
    uint64_t map_ns; /* time to map a chunk at its place, pages included, and to unmap it */
    uint64_t unmap_ns;
    uint64_t chunk_bytes;
} tide_rates;

/* Measure "host" or "cuda:N" with `threads` of the CPU (0: as in training). Chunks have `chunk_bytes`, raised
 * to the least that the device allows and lowered to 64 MiB. ARGUMENT, NO_MEMORY, UNSUPPORTED, DEVICE. */
TIDE_NODISCARD tide_status tide_rates_measure(const char *device, uint32_t threads, uint64_t chunk_bytes,
                                              tide_rates *rates);

/* Measure only AdamW on the host, with so many threads. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_rates_host_adam(uint32_t threads, double *bytes_per_second);

#endif
