/* What the fake runtime's files share. One lock guards everything; one condition tells of every change. */
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

/* Physical memory. Its bytes are the GPU's until it is released and mapped nowhere. */
typedef struct fake_handle {
    struct fake_handle *next;
    CUmemGenericAllocationHandle number;
    uint64_t bytes;
    int memfd;
    int gpu;
    unsigned mappings;
    bool released;
} fake_handle;

/* Addresses of one kind. */
typedef struct fake_range {
    struct fake_range *next;
    char *base;
    uint64_t bytes;
    char *whole; /* allocations: what was really taken */
    uint64_t whole_bytes;
    fake_handle *handle;
    fake_kind kind;
    int gpu;
    bool live;
    bool accessible;
    unsigned queued;  /* commands not over that name it; one that is not live is kept until there are none */
    unsigned running; /* of them, those that touch it now */
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
    fake_range *ranges[2]; /* used by it; their counts of `queued` hold */
    cudaEvent_t event;
    cudaStream_t waits_for; /* FAKE_WAIT: until it is done with `number` */
    uint64_t number;
    void (*run)(void *closure);
    int (*run_inline)(void *arguments);
    void *closure;
    _Alignas(16) unsigned char arguments[FAKE_CUDART_INLINE_BYTES];
} fake_command;

struct CUstream_st {
    pthread_t thread;
    fake_command *ring;
    uint64_t enqueued, done; /* command i is over when done > i; they go on when the place is used anew */
    uint64_t random;
    int gpu;
    int priority;
    bool dead, ending;
};

struct CUevent_st {
    cudaStream_t stream; /* of the latest record; NULL: none */
    uint64_t number;     /* over when the stream's done is greater */
    uint64_t time_ns;
    int gpu;
    bool timed, dead;
};

/* Who made a closure expects it to run; where it can't, it stays reachable, so that it is not taken for a leak. */
typedef struct fake_skipped {
    struct fake_skipped *next;
    void *closure;
} fake_skipped;

typedef struct fake_fault {
    const char *name;
    uint64_t countdown; /* 0: none */
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
    /* Pools, so that what a test counts of malloc is the device's alone. The dead are known as such until their places are
     * needed. */
    struct CUstream_st streams[FAKE_STREAMS_MAX];
    size_t stream_count;
    struct CUevent_st events[FAKE_EVENTS_MAX];
    size_t event_count, event_next;
    struct CUstream_st *default_stream[FAKE_CUDART_GPUS_MAX]; /* made when first used; not counted as live */
    struct fake_skipped *skipped;                             /* closures that were never run */
    fake_handle *handles;
    fake_range *ranges[FAKE_KIND_COUNT];
    uint64_t used_bytes[FAKE_CUDART_GPUS_MAX];
    uint64_t pinned_bytes;
    CUmemGenericAllocationHandle last_handle;
} fake_state;

extern fake_state fake;

/* The thread's last error, as cudaGetLastError() and a launch see it. */
extern _Thread_local int fake_last_error;

/* What a call is. */
enum {
    FAKE_GIVES_BACK = 1u << 0, /* or waits: it does its work even where a fault is injected */
    FAKE_ANY_GPU = 1u << 1,    /* it does not depend on the thread's current GPU */
    FAKE_NO_DRIVER = 1u << 2,  /* works without a driver */
};

/* Every call is fake_enter(), its work unless the error says no, and fake_leave(): lock, count, fault, unlock. */
typedef struct fake_call {
    int error;    /* 0, or what the call returns */
    bool refused; /* and its work is not done */
} fake_call;
fake_call fake_enter(const char *name, unsigned what);
/* Gives call.error, else `error`. The runtime's errors become the thread's last error. */
cudaError_t fake_leave(fake_call call, cudaError_t error);
CUresult fake_leave_driver(fake_call call, CUresult error);

/* Enqueue onto a stream (NULL: the GPU's default one), waiting for room. `command` is copied. INVALID_RESOURCE_HANDLE. */
cudaError_t fake_stream_enqueue(cudaStream_t stream, const fake_command *command);

/* Under the lock. */
void fake_misused(const char *format, ...) __attribute__((format(printf, 1, 2)));
int fake_current_gpu(void);
void fake_set_current_gpu(int gpu);
/* The thread's current GPU is `gpu`, or it is misuse of `what`. */
void fake_check_gpu(const char *what, int gpu);
void fake_wait_changed(void);
const char *fake_kind_name(fake_kind kind);
uint64_t fake_now_ns(void);
/* The system calls: what a test counts of mmap is the device's alone. NULL: it failed. */
void *fake_mmap(void *wanted, uint64_t bytes, int protection, int flags, int fd);
void fake_munmap(void *address, uint64_t bytes);
void fake_sleep_us(uint64_t us);

/* The live range of a kind that [address, address + bytes) lies in; NULL: none. */
fake_range *fake_range_find(fake_kind kind, const void *address, uint64_t bytes);
/* The same among everything that copies may use. */
fake_range *fake_range_of_copy(const void *address, uint64_t bytes);
bool fake_range_is_device(const fake_range *range);
fake_range *fake_range_add(fake_kind kind, void *base, uint64_t bytes);
/* Nothing may use it any more: it is misuse of `what` if a command is to, and the command faults. */
void fake_range_remove(fake_range *range, const char *what);
bool fake_range_overlaps(fake_kind kind, const char *address, uint64_t bytes);
/* The two sides of a command: counted when enqueued and when over. */
void fake_range_queue(fake_range *range);
void fake_range_unqueue(fake_range *range);

/* Of a GPU's total; false: there is not so much. */
bool fake_memory_take(int gpu, uint64_t bytes);
/* A handle that is released and mapped nowhere is no more. */
void fake_handle_unref(fake_handle *handle);
void fake_memory_destroy(void);
void fake_streams_destroy(void);

/* The driver's calls by name; NULL: there is none. */
void *fake_driver_entry(const char *symbol);

#endif
