/* A machine, as far as the time of a training step depends on it: measured here, read from a file, or by published figures.
 *
 *   kernels      seconds of each kernel that was measured, by what it is called and declares (tide_work); one that was not
 *                measured takes what the nearest of its name does, in proportion; one of an unknown name goes by the rates
 *   paces        how much of its speed alone a stream keeps beside others: on the host device they share cores and memory
 *
 * All rates are of one thing alone. Zeroed: a machine on which nothing takes any time.
 */
#ifndef TIDE_FORECAST_PLATFORM_H
#define TIDE_FORECAST_PLATFORM_H

#include "offload/device.h"

enum {
    TIDE_PLATFORM_TEXT_BYTES = 160,
    TIDE_PLATFORM_LABEL_BYTES = 48,
    TIDE_PLATFORM_ADAMS_MAX = 12,
    TIDE_PLATFORM_KERNELS_MAX = 65536,
    TIDE_PLATFORM_PATH_BYTES = 4096,
};

typedef struct tide_platform_kernel {
    char label[TIDE_PLATFORM_LABEL_BYTES];
    double flops, bytes;
    double ns;
} tide_platform_kernel;

typedef struct tide_platform_adam {
    uint32_t threads;
    double bytes_per_second;
} tide_platform_adam;

typedef struct tide_platform {
    char name[TIDE_PLATFORM_TEXT_BYTES];   /* the GPU, or the processor */
    char source[TIDE_PLATFORM_TEXT_BYTES]; /* of the figures, for people */
    bool measured;
    char device[16];       /* that was measured: "host", "cuda:N"; "" if published */
    bool is_here;          /* that is this machine's; not in files */
    uint32_t threads;      /* of the CPU's kernels, as measured */
    uint64_t gpu_bytes;    /* of a GPU's memory, what a run may have; 0: the device shares the host's memory */
    uint64_t memory_bytes; /* of the host; 0: not said */
    double flops_per_second[3]; /* products, by tide_dtype */
    double device_bytes_per_second;
    double h2d_bytes_per_second, d2h_bytes_per_second;
    double device_adam_bytes_per_second;
    tide_platform_adam adams[TIDE_PLATFORM_ADAMS_MAX]; /* the host's, by rising threads */
    uint32_t adam_count;
    double map_ns, unmap_ns;
    double launch_ns; /* from a kernel's end to the next one's begin on its stream */
    tide_paces paces; /* 0: full speed */
    tide_platform_kernel *kernels; /* by label, flops, bytes: each once */
    uint32_t kernel_count, kernel_capacity;
} tide_platform;

void tide_platform_destroy(tide_platform *platform); /* zeroed: allowed */

/* Add a kernel, or give it another time. NO_MEMORY, or STATE: there are TIDE_PLATFORM_KERNELS_MAX. Nothing changed then. */
TIDE_NODISCARD tide_status tide_platform_kernel_set(tide_platform *platform, const tide_platform_kernel *kernel);
/* NULL: not measured. */
const tide_platform_kernel *tide_platform_kernel_find(const tide_platform *platform, const char *label, double flops,
                                                      double bytes);

/* AdamW's rate on the host with so many threads; of a count that was not measured that of the largest below it, of one below
 * all in proportion. 0 threads: the most. */
double tide_platform_adam_rate(const tide_platform *platform, uint32_t threads);

/* --- by published figures (platform_presets.c) --- */

/* "rtx4090", "h200+pcie4", "a100-80+2-sockets": a GPU, and where it is in another machine than most. ARGUMENT names what there
 * is. */
TIDE_NODISCARD tide_status tide_platform_preset(const char *name, tide_platform *platform);
/* The n-th GPU's name, NULL past the last. */
const char *tide_platform_preset_name(size_t index);

/* --- in files (platform_file.c): JSON, docs/plan.md says which fields --- */

/* IO, CORRUPT naming file and field, NO_MEMORY. *platform is set on success. */
TIDE_NODISCARD tide_status tide_platform_read(const char *path, tide_platform *platform);
/* Replaces what is there, as a whole. IO, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_platform_write(const char *path, const tide_platform *platform);

/* --- playing on it (platform_clock.c) --- */

/* What tide_device_options.kernel_time asks, with its answers kept. Of one platform, one thread at a time. */
typedef struct tide_platform_clock tide_platform_clock;

/* `dtype` of products, `threads` of the host's optimizer (0: the most), `link_bytes_per_second` each way at most (0: the
 * machine's). The platform must stay and not change. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_platform_clock_make(const tide_platform *platform, tide_dtype dtype, uint32_t threads,
                                                    double link_bytes_per_second, tide_platform_clock **clock);
void tide_platform_clock_free(tide_platform_clock *clock); /* NULL: nothing */
/* The machine for a null device; the clock must stay as long as that plays on it. */
tide_device_options tide_platform_clock_machine(const tide_platform_clock *clock);

/* Of the compute stream's kernels asked for so far: seconds, and of these those of kernels that had been measured as they are. */
typedef struct tide_platform_known {
    double seconds, measured_seconds;
} tide_platform_known;

tide_platform_known tide_platform_clock_known(const tide_platform_clock *clock);

#endif
