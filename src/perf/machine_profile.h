/* The speeds of a machine that decide how long a training step takes. They are measured on this machine,
 * read from a file, or taken from published figures.
 *
 *   kernels    The seconds that each measured kernel takes. Label, operations and bytes (tide_work) identify
 *              it. For a kernel that was not measured, the time of the nearest one with the same label is
 *              scaled; if no label matches, the time follows from the rates.
 *   slowdowns  How much of its full speed a stream keeps while other streams run: on the host device they
 *              share cores and memory.
 *
 * Each rate was measured while nothing else ran. On a zeroed profile nothing takes any time. */
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
    char name[TIDE_MACHINE_PROFILE_TEXT_BYTES];   /* name of the GPU, or of the processor */
    char source[TIDE_MACHINE_PROFILE_TEXT_BYTES]; /* where the figures come from, to be printed */
    bool measured;
    char device[16];            /* measured device: "host", "cuda:N"; "" for published figures */
    bool is_here;               /* the profile is of this machine; not stored in files */
    uint32_t threads;           /* of the CPU's kernels when they were measured */
    uint64_t gpu_bytes;         /* GPU memory that a run may use; 0: the device shares the host's memory */
    uint64_t memory_bytes;      /* memory of the host; 0: unknown */
    double flops_per_second[3]; /* of matrix products, by tide_dtype */
    double device_bytes_per_second;
    double h2d_bytes_per_second, d2h_bytes_per_second;
    double device_adam_bytes_per_second;
    /* the rates of AdamW on the host, sorted by number of threads */
    tide_machine_profile_adam adams[TIDE_MACHINE_PROFILE_ADAMS_MAX];
    uint32_t adam_count;
    double map_ns, unmap_ns;
    double launch_ns;         /* from the end of a kernel to the begin of the next one on its stream */
    tide_slowdowns slowdowns; /* from 0 to 1; 0 means 1, full speed */
    tide_machine_profile_kernel *kernels; /* sorted by label, flops, bytes; each combination once */
    uint32_t kernel_count;
} tide_machine_profile;

void tide_machine_profile_destroy(tide_machine_profile *profile); /* a zeroed profile is allowed */

/* Add a kernel, or replace the time of one that the profile has. NO_MEMORY; STATE: the profile already has
 * TIDE_MACHINE_PROFILE_KERNELS_MAX. On failure the profile is unchanged. */
TIDE_NODISCARD tide_status tide_machine_profile_kernel_set(tide_machine_profile *profile,
                                                           const tide_machine_profile_kernel *kernel);
/* Find a kernel; NULL: it was not measured. */
const tide_machine_profile_kernel *tide_machine_profile_kernel_find(const tide_machine_profile *profile,
                                                                    const char *label, double flops,
                                                                    double bytes);

/* The rate of AdamW on the host with so many threads; 0 threads: the most that were measured. A count that
 * was not measured has the rate of the largest measured count below it; a count below all measured ones
 * has a proportional part of the smallest one's rate. */
double tide_machine_profile_adam_rate(const tide_machine_profile *profile, uint32_t threads);

/* --- from published figures (machine_profile_presets.c) --- */

/* The profile of a preset: a GPU's name, then changes to the usual machine around it, as in "rtx4090",
 * "h200+pcie4", "a100-80+2-sockets". ARGUMENT: no such preset; the message lists all. */
TIDE_NODISCARD tide_status tide_machine_profile_preset(const char *name, tide_machine_profile *profile);
/* The name of GPU number `index`; NULL past the last. */
const char *tide_machine_profile_preset_name(size_t index);

/* --- in files (machine_profile_file.c): JSON with the fields in docs/plan.md --- */

/* Read a profile; sets *profile on success. IO, CORRUPT (the message names file and field), NO_MEMORY. */
TIDE_NODISCARD tide_status tide_machine_profile_read(const char *path, tide_machine_profile *profile);
/* Write a profile; replaces the file atomically. IO, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_machine_profile_write(const char *path, const tide_machine_profile *profile);

/* --- imitating it (machine_profile_clock.c) --- */

/* Computes kernels' times for tide_device_options.kernel_time, and keeps those it has computed. One thread at
 * a time. */
typedef struct tide_machine_profile_clock tide_machine_profile_clock;

/* Make a clock. `dtype`: of matrix products; `threads`: of AdamW on the host (0: the most);
 * `link_bytes_per_second`: a limit each way (0: the machine's own). The profile must outlive the clock
 * unchanged. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_machine_profile_clock_make(const tide_machine_profile *profile,
                                                           tide_dtype dtype, uint32_t threads,
                                                           double link_bytes_per_second,
                                                           tide_machine_profile_clock **clock);
void tide_machine_profile_clock_free(tide_machine_profile_clock *clock); /* NULL is allowed */
/* The options with which a null device imitates the machine; the clock must live as long as the device uses
 * them. */
tide_device_options tide_machine_profile_clock_machine(const tide_machine_profile_clock *clock);

/* How long in ns a kernel of the compute stream takes, until the next one begins. *measured: is its time in
 * the profile? */
double tide_machine_profile_clock_kernel(tide_machine_profile_clock *clock, const char *label, double flops,
                                         double bytes, bool *measured);

#endif
