/* The one interface to memory, copies, streams, events and time.
 *
 * A device is a table of operations (tide_device_ops) with three implementations:
 *
 *   host  an emulated accelerator: device slots in a memfd that is mapped and unmapped beneath fixed addresses,
 *         streams that run on threads of their own, copies really made, an optional link throttle, adversarial
 *         delays, fault injection and the hazard checker. It is the embedded default and the test bed.
 *   null  no data at all: accounting and a virtual clock. Kernels are not called; they advance their stream's
 *         clock by the machine rates. Plans and predictions run on it.
 *   cuda  a GPU (module of its own). Everything below is shaped after CUDA's runtime and VMM calls.
 *
 * Memory of a device
 *
 *   DEVICE tier     slot 0 | slot 1 | ... | slot D-1    physical memory, one chunk each; every slot has a place
 *                                                       of its own (slot_address), mapped for ever
 *   address range   [ chunk 0 | chunk 1 | ... ]         reserved once per space; map() puts a slot at a chunk's
 *                                                       place, unmap() leaves it inaccessible, never a hole
 *   region          workspace, accumulators, scalars    one allocation, fixed at start
 *   HOST tier       slot 0 | slot 1 | ... | slot H-1    pinned, NUMA-placed, exact size
 *   host buffers    of varying size                     staging for batches and scalars
 *
 * Ordering. Commands of one stream run in order; between streams only events order. Events are CUDA's: a wait
 * captures the latest record at the time of the call, and an event never recorded means no wait. The host
 * executor (TIDE_STREAM_HOST) runs functions on host threads, in order; no stream may wait for it, since a GPU would
 * stand still on the host's account: a thread that needs its result calls event_query and enqueues afterwards.
 *
 * Threads. Every operation may be called from any thread unless it says otherwise; open and close from one.
 *
 * Failure. A call that fails changed nothing. A command that fails after it was enqueued makes the device
 * fail: every later launch, copy and stream_wait returns that status and message until recover(). (Not
 * event_record: callers can still wait for the command enqueued just before; on a GPU that is broken it may
 * fail, too.) The device skips the kernels enqueued on the failed stream; copies, and the other streams, go
 * on. (A GPU knows no such difference: after an error of a kernel of its own nothing runs any more, and
 * recover() can't help.)
 */
#ifndef TIDE_OFFLOAD_DEVICE_H
#define TIDE_OFFLOAD_DEVICE_H

#include "tidepool/types.h"

#include <stdbool.h>

typedef struct tide_device tide_device;

typedef enum tide_stream {
    TIDE_STREAM_COMPUTE = 0, /* kernels of ops, in the order the caller launches them */
    TIDE_STREAM_IN,          /* host to device copies */
    TIDE_STREAM_OUT,         /* device to host copies */
    TIDE_STREAM_UPDATE,      /* optimizer kernels on the device */
    TIDE_STREAM_COLLECTIVE,  /* gathers and scatters between ranks */
    TIDE_STREAM_HOST,        /* the host executor: optimizer and copies on host threads */
    TIDE_STREAM_COUNT,
} tide_stream;

/* The stream's name for messages and traces: "compute", "in", "out", "update", "collective", "host". */
const char *tide_stream_name(tide_stream stream);

/* Objects that the hazard checker tells apart. A slot is one object, since chunks move whole. */
typedef enum tide_object_kind {
    TIDE_OBJECT_DEVICE_SLOT = 0,
    TIDE_OBJECT_HOST_SLOT,
    TIDE_OBJECT_REGION, /* an index that region_object() gave */
    TIDE_OBJECT_BUFFER, /* an index that buffer_create() gave */
    TIDE_OBJECT_KIND_COUNT,
} tide_object_kind;

typedef struct tide_access {
    uint32_t kind; /* tide_object_kind */
    uint32_t index;
    bool write; /* false: reads only */
} tide_access;

static inline tide_access tide_reads(tide_object_kind kind, uint32_t index)
{
    return (tide_access){(uint32_t)kind, index, false};
}

static inline tide_access tide_writes(tide_object_kind kind, uint32_t index)
{
    return (tide_access){(uint32_t)kind, index, true};
}

/* A command's description, for the checker, the virtual clock, the observer and messages. */
typedef struct tide_work {
    const char *label; /* static or at least as long-lived as the device, e.g. "fetch", "block forward" */
    const char *op;    /* as long-lived: the op it is a kernel of, for messages; NULL: none */
    uint32_t tag;      /* the caller's own number: chunk, op, ... */
    uint32_t timer;    /* the caller's own, for the observer: the kind that its time counts for */
    uint64_t id;       /* the caller's own: the number of the command that it is a part of */
    double flops;
    double bytes; /* memory traffic of a kernel; copies know theirs */
    const tide_access *accesses;
    uint32_t access_count;
    bool may_coalesce; /* a kernel: the device may time it, and tell of it, as one command with the kernels
                          of the same tag, timer and id right before and behind it on the stream */
} tide_work;

/* An event. 0 is never a valid event. */
typedef uint32_t tide_event;

/* Every wait, of a stream or of the host, names where in the source it stands. Tests take each site away in
 * turn (tide_device_options.skip_wait_site) and the hazard checker must notice. 0 means "no site" and is
 * refused. Values belong to the caller (src/pool/order.h has the list); they are below TIDE_WAIT_SITE_COUNT.
 */
typedef uint32_t tide_wait_site;
enum { TIDE_WAIT_SITE_COUNT = 64 };

enum { TIDE_CAPACITY_COMMANDS = 16 }; /* for which has_capacity() answers */

/* A command that is over, as its tide_work had it; or several that were coalesced, with the first's label and
 * the sums of flops and bytes; or a stream's wait: `label` "wait", `tag` the site, `id` its own. */
typedef struct tide_observed {
    tide_stream stream;
    bool is_wait;
    const char *label;
    uint32_t tag, timer;
    uint64_t id;
    uint64_t begin_ns, end_ns; /* on its stream */
    double flops, bytes;
} tide_observed;

/* Called after each command. On the stream's thread (null: inside any call in which time passes, or that enqueues; cuda: inside any call, some
 * time after the command has ended; a stream's commands one by one, in order); must not call the device. A wait that
 * held nothing up may go untold. */
typedef void (*tide_device_observer)(void *context, const tide_observed *command);

/* Writes into `text` what lies at `address` (chunk, param, op). Called from a signal handler just before the
 * process ends: it may only read and format. */
typedef void (*tide_device_describe)(void *context, const void *address, char *text, size_t text_bytes);

/* Called while memory is made that takes seconds (slots, the region): of `total_bytes` of `what`, a constant, `done_bytes`
 * are there. On threads of the device's own too, one call at a time; must not call the device. */
typedef void (*tide_device_progress)(void *context, const char *what, uint64_t done_bytes,
                                     uint64_t total_bytes);

/* Which operations fault injection counts. */
enum {
    TIDE_FAULT_MEMORY = 1u << 0, /* reserve, slots, region, buffers, events */
    TIDE_FAULT_MAP = 1u << 1,    /* map, unmap */
    TIDE_FAULT_COPY = 1u << 2,
    TIDE_FAULT_LAUNCH = 1u << 3,
    TIDE_FAULT_ANY = 0xfu,
};

/* Null device: the part of its speed alone that a stream keeps while just the streams of a set (bit s: stream
 * s) run commands; 0: all of it. */
typedef struct tide_slowdowns {
    double of[TIDE_STREAM_COUNT][1u << TIDE_STREAM_COUNT];
} tide_slowdowns;

/* Null device: how long this kernel takes, alone, in ns; negative: not known, the rates say. Must not call the device. */
typedef double (*tide_kernel_time)(void *context, tide_stream stream, const tide_work *work, tide_kernel fn,
                                   const void *arguments);

typedef struct tide_device_options {
    uint64_t device_memory_bytes; /* hard budget of the DEVICE tier: slots and region */
    uint64_t host_memory_bytes;   /* hard budget of the HOST tier: slots and buffers */
    uint64_t chunk_bytes;         /* a power of two, 256 KiB to 1 GiB */
    uint32_t threads; /* of the host executor and of kernels; 0: one per core, cuda: the executor two fewer */
    void (*threads_set)(
        int); /* cuda only: omp_set_num_threads of the process, which the module, loaded with names of its
                                     own, may not find; NULL: it looks */

    /* host device only, up to delay_max_us (a GPU refuses them: UNSUPPORTED) */
    double link_bytes_per_second; /* each way; 0: not throttled */
    bool hazard_check;
    bool guard;          /* guard() really protects; otherwise it does nothing */
    bool fault_handler;  /* install a handler that describes the address of a fault before the process ends */
    uint64_t delay_seed; /* adversarial delays: every command of every stream sleeps a random time first */
    uint32_t delay_max_us;         /* 0: none */
    tide_wait_site skip_wait_site; /* tests: waits at this site do nothing (a query says "done") */
    uint32_t fault_mask;           /* tests: TIDE_FAULT_..., 0: none */
    uint64_t fault_countdown;      /* the N-th counted operation fails, once; 1 is the next */

    /* null device only: the machine it imitates; its link, too, is link_bytes_per_second */
    double flops_per_second;
    double device_bytes_per_second;
    double host_bytes_per_second;
    double link_out_bytes_per_second; /* device to host; 0: as the other way */
    uint64_t map_ns;
    uint64_t unmap_ns;               /* 0: as map_ns */
    const tide_slowdowns *slowdowns; /* as long-lived as the device; NULL: no stream slows another */
    tide_kernel_time kernel_time;    /* NULL: by the rates */
    void *kernel_time_context;

    tide_device_observer observer; /* may be NULL */
    void *observer_context;
    tide_device_progress progress; /* may be NULL; null: never called */
    void *progress_context;
} tide_device_options;

typedef struct tide_memory_usage {
    uint64_t budget_bytes;
    uint64_t used_bytes;
    uint64_t peak_bytes;
    uint64_t allocations; /* allocating calls served so far; constant in steady state */
} tide_memory_usage;

/* How the HOST slots were pinned: the number of threads, the time, and its parts, summed over all threads. */
typedef struct tide_pinning_times {
    uint64_t bytes; /* 0: nothing was pinned */
    uint32_t threads;
    uint64_t wall_ns;
    uint64_t touch_ns;
    uint64_t register_ns;
    uint64_t wait_ns; /* for the machine to have room (free_memory.h) */
} tide_pinning_times;

typedef struct tide_device_statistics {
    uint64_t busy_ns[TIDE_STREAM_COUNT]; /* running commands */
    uint64_t wait_ns[TIDE_STREAM_COUNT]; /* holding a command back for an event: COMPUTE's are the stalls */
    uint64_t commands[TIDE_STREAM_COUNT];
    uint64_t pending[TIDE_STREAM_COUNT]; /* enqueued and not over; null: 1 while the stream is busy */
    uint64_t h2d_bytes;
    uint64_t d2h_bytes;
    uint64_t maps;
    uint64_t unmaps;
    uint64_t waits[TIDE_WAIT_SITE_COUNT]; /* calls per site, skipped ones included */
    uint32_t host_threads;                /* of the host executor's team; null: 0 */
    tide_pinning_times pinning;           /* cuda; else all 0 */
} tide_device_statistics;

typedef struct tide_device_ops {
    const char *kind;  /* "host", "null" or "cuda" */
    bool asynchronous; /* commands run by themselves; false (null): time moves only inside park() and
                          event_wait() */
    bool has_data;     /* kernels are called and memory has content */

    /* Waits for all commands, then releases everything. Never fails; NULL is allowed. */
    void (*close)(tide_device *device);

    /* --- memory: at start only. BUDGET if it would pass the tier's budget, NO_MEMORY if the system has none
     * --- */

    /* Make all slots of a tier, physically present, numbered from 0; the host's hold zeros. Once per tier. */
    tide_status (*slots_create)(tide_device *device, tide_tier tier, uint32_t count);
    /* Reserve a range of device addresses for a space, a multiple of chunk_bytes. Nothing is mapped. */
    tide_status (*reserve)(tide_device *device, uint64_t bytes, void **address);
    /* The region: one zeroed allocation of the DEVICE tier, 256-byte aligned. Once. */
    tide_status (*region_create)(tide_device *device, uint64_t bytes, void **address);
    /* Name a part of the region as an object of the checker. `name` must outlive the device. */
    tide_status (*region_object)(tide_device *device, const char *name, uint64_t offset_bytes, uint64_t bytes,
                                 uint32_t *object);
    /* A zeroed host buffer of any size in the HOST tier's budget, 256-byte aligned, reachable by device
     * copies. */
    tide_status (*buffer_create)(tide_device *device, const char *name, uint64_t bytes, void **address,
                                 uint32_t *object);
    tide_status (*event_create)(tide_device *device, tide_event *event);

    /* The slot's own place: always mapped. Host tier: its memory. null: a made-up address that nothing may
     * touch. */
    void *(*slot_address)(tide_device *device, tide_tier tier, uint32_t slot);

    /* --- residency: called by the engine. May take tens of microseconds --- */

    /* Put device slot `slot` at `place` (inside a reserved range, chunk-aligned, not mapped). A slot has at
     * most one place besides its own. ARGUMENT if one of these does not hold. */
    tide_status (*map)(tide_device *device, uint32_t slot, void *place);
    /* Take it away. The caller has seen all uses of the slot pass, copies included: commands may reach a mapped slot at
     * its place. The checker verifies it. */
    tide_status (*unmap)(tide_device *device, uint32_t slot, void *place);
    /* Both at once, from one place to another, where that costs less; else NULL. The preconditions of unmap
     * and map hold. On failure the slot is where it was. */
    tide_status (*remap)(tide_device *device, uint32_t slot, void *from, void *to);
    /* In stream order, make the mapped chunk at `place` inaccessible (or accessible again). For tests: a use
     * after its holder's end faults. A no-op unless options.guard. */
    tide_status (*guard)(tide_device *device, tide_stream stream, void *place, bool accessible);

    /* --- commands. They return when enqueued; a full queue makes the caller sleep until there is room, as CUDA does --- */

    /* Capacity of the stream: true if the next TIDE_CAPACITY_COMMANDS commands and waits return without
     * sleeping, as long as no other thread enqueues there. With `wait` it sleeps until that is so. A thread
     * that holds a lock which the device's other callers need asks before it enqueues. May be true on a
     * device that has failed: its calls return at once. */
    bool (*has_capacity)(tide_device *device, tide_stream stream, bool wait);

    /* fn(arguments) on `stream`; the arguments (at most TIDE_LAUNCH_ARGUMENTS_MAX_BYTES) are copied. The host
     * executor takes functions too. */
    tide_status (*launch)(tide_device *device, tide_stream stream, const tide_work *work, tide_kernel fn,
                          const void *arguments, size_t argument_bytes);
    /* The first `bytes` of a slot of one tier to a slot of the other, wherever they are
     * reached: at a chunk's place or their own. The accesses are known; work->accesses stays empty. (cuda: no copies on the
     * host executor, ARGUMENT.) */
    tide_status (*copy_slot)(tide_device *device, tide_stream stream, const tide_work *work,
                             tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes);
    /* `bytes` between a host buffer and the region (either direction, by address), accesses as declared. */
    tide_status (*copy_bytes)(tide_device *device, tide_stream stream, const tide_work *work, void *to,
                              const void *from, uint64_t bytes, bool to_device);

    /* --- events --- */

    tide_status (*event_record)(tide_device *device, tide_event event, tide_stream stream);
    /* `stream` goes on only after the event's latest record. ARGUMENT if that was on the host executor, or if
     * `stream` is. `id`: for the observer. */
    tide_status (*stream_wait)(tide_device *device, tide_stream stream, tide_event event, tide_wait_site site,
                               uint64_t id);
    /* Has the latest record passed? Never blocks. `done` is true for an event never recorded. */
    tide_status (*event_query)(tide_device *device, tide_event event, tide_wait_site site, bool *done);
    /* Block this thread until it has. null: moves the virtual clock there. */
    tide_status (*event_wait)(tide_device *device, tide_event event, tide_wait_site site);

    /* The engine's sleep. doorbell() gives a ticket; park(ticket, events) returns when ring() was called, a
     * command failed or, with `events`, an event completed since that ticket was drawn; at once if so
     * already. Without `events` completed events don't wake the caller. null: park() moves the clock to the
     * next completion; STATE if none is pending or none is to count (nothing would ever wake the caller). */
    uint64_t (*doorbell)(tide_device *device);
    tide_status (*park)(tide_device *device, uint64_t ticket, bool events);
    void (*ring)(tide_device *device);

    /* Declare that the calling host thread itself reads or writes objects now. */
    tide_status (*host_touch)(tide_device *device, const tide_work *work);

    /* Block until every stream is idle (failed commands included); the caller is then ordered after all. */
    void (*synchronize)(tide_device *device);
    /* The device's failure, TIDE_OK if none; writes the message of the failed command. Costs nothing: the
     * failure of a command that ran is here as soon as the device knows of it, on a GPU when it next looks
     * (at some of the launches and copies, at queries, waits, statistics, while a thread is parked, and in
     * synchronize()). */
    tide_status (*failure)(tide_device *device);
    /* After synchronize(), before recover(): was a kernel of the stream lost, failed or skipped behind one that did, or, on a
     * GPU, its launch, of which a part may be there? */
    bool (*stream_failed)(tide_device *device, tide_stream stream);
    /* After synchronize(): forget the failure if the device can go on, else return it. */
    tide_status (*recover)(tide_device *device);

    uint64_t (*now_ns)(tide_device *device); /* monotonic; null: virtual */
    void (*usage)(tide_device *device, tide_tier tier, tide_memory_usage *usage);
    /* Commands enqueued so far are not coalesced with later ones. */
    void (*statistics)(tide_device *device, tide_device_statistics *statistics);
    void (*set_describe)(tide_device *device, tide_device_describe describe, void *context);
    /* Tests: arm or disarm (mask 0) fault injection in a running device. */
    void (*set_fault)(tide_device *device, uint32_t mask, uint64_t countdown);
} tide_device_ops;

/* Implementations begin with this. */
struct tide_device {
    const tide_device_ops *ops;
};

/* Open a device. ARGUMENT for options out of range (chunk_bytes, budgets below one chunk, negative rates),
 * NO_MEMORY, UNSUPPORTED where the system lacks what it needs. The caller closes it with ops->close. Options
 * are copied. */
tide_status tide_device_host_open(const tide_device_options *options, tide_device **device);
tide_status tide_device_null_open(const tide_device_options *options, tide_device **device);

/* Let a null device imitate another machine from now on; commands enqueued already keep their times. Reads
 * the options of the null device alone and the link's rate, nothing else of `machine`. ARGUMENT, changing
 * nothing, for a rate that is negative or not finite. */
tide_status tide_device_null_imitate(tide_device *device, const tide_device_options *machine);
/* Let so many commands, waits and records stand on each of a null device's streams without more memory. NO_MEMORY. */
tide_status tide_device_null_reserve(tide_device *device, uint32_t commands);

#endif
