/* This machine's rates, measured through the same device table and kernels that training uses: what `tidepool
 * info` prints, and what the null device predicts with. About a second. */
#ifndef TIDE_PERF_RATES_H
#define TIDE_PERF_RATES_H

#include "tidepool/types.h"

typedef struct tide_rates {
    char device[16];
    uint32_t threads;                  /* of the CPU's kernels; of a GPU's device: of the host's AdamW */
    double flops_per_second[3];        /* matrix products, by tide_dtype */
    double device_bytes_per_second;    /* read and written by a kernel on the device's region */
    double adam_bytes_per_second;      /* moved by the device's fused AdamW: 28 bytes a bf16 param */
    double host_adam_bytes_per_second; /* by the host's; of the host device: the same */
    double h2d_bytes_per_second;       /* slot to slot, unthrottled */
    double d2h_bytes_per_second;
    uint64_t map_ns; /* one map of a chunk at its place, populated; and its unmap */
    uint64_t unmap_ns;
    uint64_t chunk_bytes;
} tide_rates;

/* Of "host" or "cuda:N", with `threads` of the CPU (0: as many as in training) and chunks of `chunk_bytes`, as far as the
 * device takes them, at most 64 MiB. ARGUMENT, NO_MEMORY, UNSUPPORTED, DEVICE. */
TIDE_NODISCARD tide_status tide_rates_measure(const char *device, uint32_t threads, uint64_t chunk_bytes,
                                              tide_rates *rates);

/* The host's AdamW alone, with so many threads: bytes a second. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_rates_host_adam(uint32_t threads, double *bytes_per_second);

#endif
