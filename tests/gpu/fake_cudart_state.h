/* The state that the fake runtime's files share. One lock guards all of it; one condition variable signals
 * every change. */
#ifndef TIDE_TESTS_FAKE_CUDART_STATE_H
#define TIDE_TESTS_FAKE_CUDART_STATE_H

#include "tests/gpu/fake_cudart.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

enum {
    FAKE_CALLS_MAX = 64,
    FAKE_RANGES_MAX = 1 << 14,
    FAKE_HANDLES_MAX = 1 << 12,
    FAKE_STREAMS_MAX = 64,
    FAKE_EVENTS_MAX = 1 << 16,
    FAKE_RING = 1024,
};

typedef enum fake_kind {
    FAKE_RESERVATION = 0,
    FAKE_MAPPING,
    FAKE_ALLOCATION,
    FAKE_REGISTRATION,
    FAKE_HOST_ALLOCATION,
    FAKE_KIND_COUNT,
} fake_kind;

/* Physical memory of a GPU. It counts against the GPU's total until it is released and no mapping of it is
 * left. */
typedef struct fake_handle {
    struct fake_handle *next;
    CUmemGenericAllocationHandle number;
    uint64_t bytes;
    int memfd;
    int gpu;
    unsigned mappings;
    bool released;
} fake_handle;

/* A range of addresses of one kind. */
typedef struct fake_range {
    struct fake_range *next;
    char *base;
    uint64_t bytes;
    /* allocations: start of the memory that mmap returned */
    char *whole;
    uint64_t whole_bytes;
    fake_handle *handle;
    fake_kind kind;
    int gpu;
    bool live;
    bool accessible;
    /* enqueued commands that use it; a range that is not live is kept until there are none */
    unsigned queued;
    unsigned running; /* the commands among these that run now */
} fake_range;

typedef enum fake_command_kind {
    FAKE_KERNEL = 0,
    FAKE_INLINE_KERNEL,
    FAKE_COPY,
    FAKE_FILL,
    FAKE_RECORD,
    FAKE_WAIT,
} fake_command_kind;

typedef struct fake_command {
    fake_command_kind kind;
    void *to;
    const void *from;
    uint64_t bytes;
    int value;
    fake_range *ranges[2]; /* ranges that the command uses; they stay in the pool while it is queued */
    cudaEvent_t event;
    cudaStream_t waits_for; /* FAKE_WAIT: waits until this stream has finished command `number` */
    uint64_t number;
    void (*run)(void *closure);
    int (*run_inline)(void *arguments);
    void *closure;
    _Alignas(16) unsigned char arguments[FAKE_CUDART_INLINE_BYTES];
} fake_command;

struct CUstream_st {
    pthread_t thread;
    fake_command *ring;
    /* Command i is finished when done > i. The numbers continue when the stream's place is reused. */
    uint64_t enqueued, done;
    uint64_t random;
    int gpu;
    int priority;
    bool dead, ending;
};

struct CUevent_st {
    cudaStream_t stream; /* stream of the latest record; NULL: none */
    uint64_t number;     /* the record's command number on that stream */
    uint64_t time_ns;
    int gpu;
    bool timed, dead;
};

/* A closure that never ran because of a failure. Its maker expects the run to free it; the list keeps it
 * reachable, so that no leak is reported. */
typedef struct fake_skipped {
    struct fake_skipped *next;
    void *closure;
} fake_skipped;

typedef struct fake_fault {
    const char *name;
    uint64_t countdown; /* 0: no failure is injected */
    int error;
    bool refuses;
    bool has_failed;
} fake_fault;

typedef struct fake_state {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    fake_cudart_options options;
    fake_fault fault;
    uint64_t command_countdown;
    int command_error;
    int sticky;
    struct {
        const char *name;
        uint64_t count;
    } calls[FAKE_CALLS_MAX];
    uint64_t calls_count;
    uint64_t commands;
    size_t misuse;
    char misuse_text[256];
    /* Streams and events come from these pools, so that a test that counts malloc counts only the device's
     * calls. Destroyed ones stay marked as dead until their places are needed. */
    struct CUstream_st streams[FAKE_STREAMS_MAX];
    size_t stream_count;
    struct CUevent_st events[FAKE_EVENTS_MAX];
    size_t event_count, event_next;
    struct CUstream_st *default_stream[FAKE_CUDART_GPUS_MAX]; /* made when first used; not counted as live */
    struct fake_skipped *skipped;                             /* closures that never ran */
    fake_handle *handles;
    fake_range *ranges[FAKE_KIND_COUNT];
    uint64_t used_bytes[FAKE_CUDART_GPUS_MAX];
    uint64_t pinned_bytes;
    CUmemGenericAllocationHandle last_handle;
} fake_state;

extern fake_state fake;

/* The thread's last error, as cudaGetLastError() and launches see it. */
extern _Thread_local int fake_last_error;

/* Properties of a call. */
enum {
    /* frees something or waits: does its work even if it returns an injected failure */
    FAKE_GIVES_BACK = 1u << 0,
    FAKE_ANY_GPU = 1u << 1,   /* does not depend on the thread's current GPU */
    FAKE_NO_DRIVER = 1u << 2, /* works without a driver */
};

/* Every call is fake_enter() (lock, count, injected failure), then its work unless `refused`, then
 * fake_leave() (unlock). */
typedef struct fake_call {
    int error;    /* 0, or the error that the call has to return */
    bool refused; /* whether the call has to skip its work */
} fake_call;
fake_call fake_enter(const char *name, unsigned what);
/* Returns call.error if not 0, otherwise `error`. An error of the runtime becomes the thread's last error. */
cudaError_t fake_leave(fake_call call, cudaError_t error);
CUresult fake_leave_driver(fake_call call, CUresult error);

/* Copies `command` to a stream's ring (NULL: the default stream of the GPU); waits while the ring is full.
 * INVALID_RESOURCE_HANDLE: no live stream. */
cudaError_t fake_stream_enqueue(cudaStream_t stream, const fake_command *command);

/* The caller holds the lock. */
void fake_misused(const char *format, ...) __attribute__((format(printf, 1, 2)));
int fake_current_gpu(void);
void fake_set_current_gpu(int gpu);
/* Records misuse of `what` unless the thread's current GPU is `gpu`. */
void fake_check_gpu(const char *what, int gpu);
void fake_wait_changed(void);
const char *fake_kind_name(fake_kind kind);
uint64_t fake_now_ns(void);
/* Direct system calls, so that a test that counts calls of mmap counts only the device's. NULL: mmap
 * failed. */
void *fake_mmap(void *wanted, uint64_t bytes, int protection, int flags, int fd);
void fake_munmap(void *address, uint64_t bytes);
void fake_sleep_us(uint64_t us);

/* The live range of a kind that contains [address, address + bytes), or NULL. */
fake_range *fake_range_find(fake_kind kind, const void *address, uint64_t bytes);
/* The live range of any kind that copies may use and that contains [address, address + bytes), or NULL. */
fake_range *fake_range_of_copy(const void *address, uint64_t bytes);
bool fake_range_is_device(const fake_range *range);
fake_range *fake_range_add(fake_kind kind, void *base, uint64_t bytes);
/* Makes the range unusable. If an enqueued command uses it, that is misuse of `what`, and the command
 * fails. */
void fake_range_remove(fake_range *range, const char *what);
bool fake_range_overlaps(fake_kind kind, const char *address, uint64_t bytes);
/* Counts the range for each side of a command: when it is enqueued and when it is finished. */
void fake_range_queue(fake_range *range);
void fake_range_unqueue(fake_range *range);

/* Takes memory from a GPU's total; false: too little is left. */
bool fake_memory_take(int gpu, uint64_t bytes);
/* Destroys a handle that is released and has no mapping. */
void fake_handle_unref(fake_handle *handle);
void fake_memory_destroy(void);
void fake_streams_destroy(void);

/* The driver's function of that name, or NULL. */
void *fake_driver_entry(const char *symbol);

#endif
