/* A machine, as far as the time of a training step depends on it: measured here, read from a file, or by published figures.
 *
 *   kernels      seconds of each kernel that was measured, by what it is called and declares (tide_work); one that was not
 *                measured takes what the nearest of its name does, in proportion; one of an unknown name goes by the rates
 *slowdowns    how much of its speed alone a stream keeps beside others: on the host device they share cores and memory
 *
 * All rates are of one thing alone. Zeroed: a machine on which nothing takes any time.
 */
#ifndef TIDE_PERF_MACHINE_PROFILE_H
#define TIDE_PERF_MACHINE_PROFILE_H

#include "offload/device.h"

enum {
    TIDE_MACHINE_PROFILE_TEXT_BYTES = 160,
    TIDE_MACHINE_PROFILE_LABEL_BYTES = 48,
    TIDE_MACHINE_PROFILE_ADAMS_MAX = 12,
    TIDE_MACHINE_PROFILE_KERNELS_MAX = 65536,
    TIDE_MACHINE_PROFILE_PATH_BYTES = 4096,
};

typedef struct tide_machine_profile_kernel {
    char label[TIDE_MACHINE_PROFILE_LABEL_BYTES];
    double flops, bytes;
    double ns;
} tide_machine_profile_kernel;

typedef struct tide_machine_profile_adam {
    uint32_t threads;
    double bytes_per_second;
} tide_machine_profile_adam;

typedef struct tide_machine_profile {
    char name[TIDE_MACHINE_PROFILE_TEXT_BYTES];   /* the GPU, or the processor */
    char source[TIDE_MACHINE_PROFILE_TEXT_BYTES]; /* of the figures, for people */
    bool measured;
    char device[16];    /* that was measured: "host", "cuda:N"; "" if published */
    bool is_here;       /* that is this machine's; not in files */
    uint32_t threads;   /* of the CPU's kernels, as measured */
    uint64_t gpu_bytes; /* of a GPU's memory, what a run may have; 0: the device shares the host's memory */
    uint64_t memory_bytes;      /* of the host; 0: not said */
    double flops_per_second[3]; /* products, by tide_dtype */
    double device_bytes_per_second;
    double h2d_bytes_per_second, d2h_bytes_per_second;
    double device_adam_bytes_per_second;
    tide_machine_profile_adam adams[TIDE_MACHINE_PROFILE_ADAMS_MAX]; /* the host's, by rising threads */
    uint32_t adam_count;
    double map_ns, unmap_ns;
    double launch_ns;                     /* from a kernel's end to the next one's begin on its stream */
    tide_slowdowns slowdowns;             /* 0: full speed */
    tide_machine_profile_kernel *kernels; /* by label, flops, bytes: each once */
    uint32_t kernel_count, kernel_capacity;
} tide_machine_profile;

void tide_machine_profile_destroy(tide_machine_profile *profile); /* zeroed: allowed */

/* Add a kernel, or give it another time. NO_MEMORY, or STATE: there are TIDE_MACHINE_PROFILE_KERNELS_MAX. Nothing changed then. */
TIDE_NODISCARD tide_status tide_machine_profile_kernel_set(tide_machine_profile *profile,
                                                           const tide_machine_profile_kernel *kernel);
/* NULL: not measured. */
const tide_machine_profile_kernel *tide_machine_profile_kernel_find(const tide_machine_profile *profile,
                                                                    const char *label, double flops,
                                                                    double bytes);

/* AdamW's rate on the host with so many threads; of a count that was not measured that of the largest below it, of one below
 * all in proportion. 0 threads: the most. */
double tide_machine_profile_adam_rate(const tide_machine_profile *profile, uint32_t threads);

/* --- by published figures (machine_profile_presets.c) --- */

/* "rtx4090", "h200+pcie4", "a100-80+2-sockets": a GPU, and where it is in another machine than most. ARGUMENT names what there
 * is. */
TIDE_NODISCARD tide_status tide_machine_profile_preset(const char *name, tide_machine_profile *profile);
/* The n-th GPU's name, NULL past the last. */
const char *tide_machine_profile_preset_name(size_t index);

/* --- in files (machine_profile_file.c): JSON, docs/plan.md says which fields --- */

/* IO, CORRUPT naming file and field, NO_MEMORY. *profile is set on success. */
TIDE_NODISCARD tide_status tide_machine_profile_read(const char *path, tide_machine_profile *profile);
/* Replaces what is there, as a whole. IO, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_machine_profile_write(const char *path, const tide_machine_profile *profile);

/* --- playing on it (machine_profile_clock.c) --- */

/* What tide_device_options.kernel_time asks, with its answers kept. Of one profile, one thread at a time. */
typedef struct tide_machine_profile_clock tide_machine_profile_clock;

/* `dtype` of products, `threads` of the host's optimizer (0: the most), `link_bytes_per_second` each way at most (0: the
 * machine's). The profile must stay and not change. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_machine_profile_clock_make(const tide_machine_profile *profile,
                                                           tide_dtype dtype, uint32_t threads,
                                                           double link_bytes_per_second,
                                                           tide_machine_profile_clock **clock);
void tide_machine_profile_clock_free(tide_machine_profile_clock *clock); /* NULL: nothing */
/* The machine for a null device; the clock must stay as long as that plays on it. */
tide_device_options tide_machine_profile_clock_machine(const tide_machine_profile_clock *clock);

/* Of the compute stream's kernels asked for so far: seconds, and of these those of kernels that had been measured as they are. */
typedef struct tide_machine_profile_known {
    double seconds, measured_seconds;
} tide_machine_profile_known;

tide_machine_profile_known tide_machine_profile_clock_known(const tide_machine_profile_clock *clock);

#endif
