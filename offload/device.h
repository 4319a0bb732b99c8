/* The interface of devices: the pool's only access to memory, copies, streams, events and time.
 *
 * A device is a table of operations (tide_device_ops) with three implementations:
 *
 *   host  an emulated accelerator: device slots in a memfd, which map() and unmap() move between fixed
 *         addresses, and streams that run on threads of their own and really copy. Options throttle the link,
 *         delay the streams at random, inject faults and turn on the hazard checker. Programs without a GPU
 *         and most tests run on it.
 *   null  no memory and no work: only accounts and a virtual clock. It calls no kernel; each takes the time
 *         that follows from the simulated machine's speeds. Plans and predictions run on it.
 *   cuda  a GPU, in a module of its own (module.h). The operations follow CUDA's runtime and VMM calls.
 *
 * Memory of a device
 *
 *   DEVICE tier     slot 0 | slot 1 | ... | slot D-1    physical memory, one chunk each; every slot has an
 *                                                       address of its own (slot_address), always mapped
 *   address range   [ chunk 0 | chunk 1 | ... ]         reserved once per space; map() puts a slot at a
 *                                                       chunk's place; after unmap() the place is
 *                                                       inaccessible, but stays reserved
 *   region          workspace, accumulators, scalars    one allocation, fixed at start
 *   HOST tier       slot 0 | slot 1 | ... | slot H-1    pinned, NUMA-placed, exact size
 *   host buffers    of varying size                     staging for batches and scalars
 *
 * Ordering. Commands of one stream run in order; between streams only events order. Events work like CUDA's:
 * a wait is for the latest record of the event at the time of the call, and a wait for an event that was
 * never recorded does nothing. The host executor (TIDE_STREAM_HOST) runs functions on host threads, in order.
 * No stream may wait for the executor, since a GPU would then idle until the host is done: a thread that
 * needs the executor's result polls event_query() and enqueues its own commands afterwards.
 *
 * Threads. Every operation may be called from any thread unless it says otherwise; open and close from one.
 *
 * Failure. A call that fails has changed nothing. A command that fails after it was enqueued makes the device
 * fail: every later launch, copy and stream_wait returns that status and message until recover().
 * event_record still works, so that callers can wait for the command enqueued just before; only on a GPU with
 * an error of its own may it fail, too. The device skips the kernels that were enqueued on the failed stream,
 * but still runs copies and the other streams. (A GPU can't do this: after a kernel's error it runs nothing
 * more, and recover() returns the failure.)
 */
#ifndef TIDE_OFFLOAD_DEVICE_H
#define TIDE_OFFLOAD_DEVICE_H

#include "tidepool/types.h"

#include <stdbool.h>

typedef struct tide_device tide_device;

typedef enum tide_stream {
    TIDE_STREAM_COMPUTE = 0, /* kernels of ops, in the order the caller launches them */
    TIDE_STREAM_IN,          /* copies from host to device */
    TIDE_STREAM_OUT,         /* copies from device to host */
    TIDE_STREAM_UPDATE,      /* optimizer kernels on the device */
    TIDE_STREAM_COLLECTIVE,  /* gathers and scatters between ranks; gradients finished beside compute */
    TIDE_STREAM_HOST,        /* the host executor: optimizer and copies on host threads */
    TIDE_STREAM_COUNT,
} tide_stream;

/* The stream's name for messages and traces: "compute", "in", "out", "update", "collective", "host". */
const char *tide_stream_name(tide_stream stream);

/* Kinds of objects that the hazard checker tells apart. A slot is one object, since chunks move whole; but a
 * device slot has a second one for gradients that are written over some of its params while kernels read
 * others. Whoever needs the whole slot accesses both. */
typedef enum tide_object_kind {
    TIDE_OBJECT_DEVICE_SLOT = 0,
    TIDE_OBJECT_SLOT_GRADIENTS, /* index: the device slot's */
    TIDE_OBJECT_HOST_SLOT,
    TIDE_OBJECT_REGION, /* index: as region_object() returned it */
    TIDE_OBJECT_BUFFER, /* index: as buffer_create() returned it */
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

/* Describes a command for the checker, the virtual clock, the observer and messages. */
typedef struct tide_work {
    /* "fetch" or "block forward", say. The string must outlive the device. */
    const char *label;
    /* the name of the kernel's op, for messages; NULL: none; must outlive the device, too */
    const char *op;
    uint32_t tag; /* a number of the caller's: chunk, op, ... */
    /* for the observer: a number of the caller's that says in which sum the time is counted */
    uint32_t timer;
    /* for the observer: a number of the caller's; several commands may share one */
    uint64_t id;
    double flops;
    /* memory traffic of a kernel; unused for copies */
    double bytes;
    const tide_access *accesses;
    uint32_t access_count;
    /* For kernels: the device may time this kernel together with its neighbours on the stream that have the
     * same tag, timer and id, and report them to the observer as one command. */
    bool may_coalesce;
} tide_work;

/* 0 is never a valid event. */
typedef uint32_t tide_event;

/* Identifies a place in the source that makes a stream or the calling thread wait; every wait passes it.
 * Tests leave out the waits of one site after another (tide_checks.skip_wait_site), and the hazard checker
 * must notice each. Numbers are from 1 to TIDE_WAIT_SITE_COUNT - 1 (src/pool/order.h lists them); 0 is
 * refused. */
typedef uint32_t tide_wait_site;
enum { TIDE_WAIT_SITE_COUNT = 64 };

enum { TIDE_CAPACITY_COMMANDS = 16 }; /* has_capacity() asks for space for so many */

/* A report to the observer: on a finished command, with the values of its tide_work; on several coalesced
 * commands, with the first one's label and the sums of flops and bytes; or on a stream's wait, with label
 * "wait", the site as `tag`, and the id given to stream_wait(). */
typedef struct tide_observed {
    tide_stream stream;
    bool is_wait;
    const char *label;
    uint32_t tag, timer;
    uint64_t id;
    uint64_t begin_ns, end_ns; /* when it began and ended on its stream */
    double flops, bytes;
} tide_observed;

/* The device calls the observer after each command, for the commands of one stream one by one and in order.
 * It must not call the device. host: on the stream's thread. null: inside any call in which time passes or
 * that enqueues. cuda: inside any call, some time after the command has ended. The device need not report a
 * wait that took no time. */
typedef void (*tide_device_observer)(void *context, const tide_observed *command);

/* Writes into `text` which chunk and param are at `address`. A signal handler calls it just before the
 * process ends, so it may only read and format. */
typedef void (*tide_device_describe)(void *context, const void *address, char *text, size_t text_bytes);

/* The device calls this while it makes memory that takes seconds (slots, the region): `done_bytes` of
 * `total_bytes` of `what`, a constant text, are ready. It may call from its own threads, but makes one call
 * at a time. The function must not call the device. */
typedef void (*tide_device_progress)(void *context, const char *what, uint64_t done_bytes,
                                     uint64_t total_bytes);

/* The operations that fault injection counts. */
enum {
    TIDE_FAULT_MEMORY = 1u << 0, /* reserve, slots, region, buffers, events */
    TIDE_FAULT_MAP = 1u << 1,    /* map, unmap */
    TIDE_FAULT_COPY = 1u << 2,
    TIDE_FAULT_LAUNCH = 1u << 3,
    TIDE_FAULT_ANY = 0xfu,
};

/* Null device: of[stream][set] is the factor, at most 1, by which a stream's speed is reduced while exactly
 * the streams in `set` (bit s: stream s) run commands; 0 means 1. */
typedef struct tide_slowdowns {
    double of[TIDE_STREAM_COUNT][1u << TIDE_STREAM_COUNT];
} tide_slowdowns;

/* Null device: returns how long this kernel takes, in ns, while no other stream runs; negative: compute it
 * from the machine's speeds. Must not call the device. */
typedef double (*tide_kernel_time)(void *context, tide_stream stream, const tide_work *work, tide_kernel fn,
                                   const void *arguments);

typedef struct tide_device_options {
    uint64_t device_memory_bytes; /* hard budget of the DEVICE tier: slots and region */
    uint64_t host_memory_bytes;   /* hard budget of the HOST tier: slots and buffers */
    uint64_t chunk_bytes;         /* a power of two, 256 KiB to 1 GiB */
    /* threads of the host executor and of CPU kernels. 0: one per core; on cuda two fewer for the executor */
    uint32_t threads;
    /* cuda only: the process's omp_set_num_threads, since the module may be unable to look it up (dlopen with
     * local names). NULL: the module looks it up */
    void (*threads_set)(int);

    double link_bytes_per_second; /* host and null: speed of copies in each direction; 0: no limit */
    tide_checks checks;           /* host device only (a GPU refuses them with UNSUPPORTED) */
    uint32_t fault_mask;          /* host device, tests: TIDE_FAULT_..., 0: none */
    uint64_t fault_countdown;     /* the N-th counted operation from now fails, once (1: the next) */

    /* null device only: the machine that it simulates */
    tide_machine machine;
    const tide_slowdowns *slowdowns; /* lives as long as the device; NULL: no stream slows another */
    tide_kernel_time kernel_time;    /* NULL: use the machine's speeds */
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
    uint64_t allocations; /* how many calls have allocated; constant during steps */
} tide_memory_usage;

/* How the HOST slots were pinned: threads, total time, and its parts summed over all threads. */
typedef struct tide_pinning_times {
    uint64_t bytes; /* 0: nothing was pinned */
    uint32_t threads;
    uint64_t wall_ns;
    uint64_t touch_ns;
    uint64_t register_ns;
    uint64_t wait_ns; /* waiting until the machine has free memory (free_memory.h) */
} tide_pinning_times;

typedef struct tide_device_statistics {
    uint64_t busy_ns[TIDE_STREAM_COUNT]; /* time spent running commands */
    /* time spent waiting for events; on COMPUTE these are stalls */
    uint64_t wait_ns[TIDE_STREAM_COUNT];
    uint64_t commands[TIDE_STREAM_COUNT];
    /* commands enqueued and not finished; null: 1 while the stream is busy */
    uint64_t pending[TIDE_STREAM_COUNT];
    uint64_t h2d_bytes;
    uint64_t d2h_bytes;
    uint64_t maps;
    uint64_t unmaps;
    uint64_t waits[TIDE_WAIT_SITE_COUNT]; /* calls with each site, also if the site is skipped */
    uint32_t host_threads;                /* in the team of the host executor; null: 0 */
    tide_pinning_times pinning;           /* all 0 except on cuda */
} tide_device_statistics;

typedef struct tide_device_ops {
    const char *kind; /* "host", "null" or "cuda" */
    /* True if commands run while the caller does something else. False (null): time passes only inside calls
     * such as park() and event_wait(). */
    bool asynchronous;
    bool has_data; /* the device calls kernels, and its memory has content */

    /* Waits for all commands, then releases everything. Never fails; NULL is allowed. */
    void (*close)(tide_device *device);

    /* --- memory: at start only. BUDGET: over the tier's budget; NO_MEMORY: the system has no more --- */

    /* Make all slots of a tier, numbered from 0, with all pages present. HOST slots are zeroed. Once per
     * tier. */
    tide_status (*slots_create)(tide_device *device, tide_tier tier, uint32_t count);
    /* Reserve a range of device addresses for a space; nothing is mapped there yet. `bytes` is a multiple of
     * chunk_bytes. */
    tide_status (*reserve)(tide_device *device, uint64_t bytes, void **address);
    /* Make the region: one zeroed allocation of the DEVICE tier, 256-byte aligned. Once. */
    tide_status (*region_create)(tide_device *device, uint64_t bytes, void **address);
    /* Name a part of the region as an object for the hazard checker. `name` must outlive the device. */
    tide_status (*region_object)(tide_device *device, const char *name, uint64_t offset_bytes, uint64_t bytes,
                                 uint32_t *object);
    /* Make a zeroed host buffer of any size, 256-byte aligned, that copies can reach. It counts to the HOST
     * budget. */
    tide_status (*buffer_create)(tide_device *device, const char *name, uint64_t bytes, void **address,
                                 uint32_t *object);
    tide_status (*event_create)(tide_device *device, tide_event *event);

    /* The slot's own address, which is always mapped; for a HOST slot that of its memory. null: an address
     * that nothing may access. */
    void *(*slot_address)(tide_device *device, tide_tier tier, uint32_t slot);

    /* --- residency: the engine calls these; each may take tens of microseconds --- */

    /* Map device slot `slot` at `place`, a chunk's place in a reserved range where nothing is mapped. A slot
     * is mapped at no more than one place besides its own address. ARGUMENT if one of these does not hold. */
    tide_status (*map)(tide_device *device, uint32_t slot, void *place);
    /* Unmap the slot from `place`. The caller has already seen every command that uses the slot end, copies
     * too, since a command may access a mapped slot at its place. The hazard checker verifies this. */
    tide_status (*unmap)(tide_device *device, uint32_t slot, void *place);
    /* Unmap a slot from one place and map it at another in one call, where that is cheaper; otherwise this is
     * NULL. The preconditions of unmap and map hold. After a failure the slot is still mapped at `from`. */
    tide_status (*remap)(tide_device *device, uint32_t slot, void *from, void *to);
    /* For tests: in stream order, make the chunk mapped at `place` inaccessible, or accessible again, so that
     * a use after the op has ended faults. Does nothing unless options.checks.guard is set. */
    tide_status (*guard)(tide_device *device, tide_stream stream, void *place, bool accessible);

    /* --- commands: return once enqueued; a full queue makes the caller sleep, as in CUDA --- */

    /* Has the stream space for TIDE_CAPACITY_COMMANDS more commands and waits, so that the caller can enqueue
     * as many without sleeping, unless other threads enqueue there, too? `wait`: sleep until it has. A thread
     * asks this before it enqueues if it holds a lock that other callers of the device need. May be true on a
     * failed device, whose calls return at once. */
    bool (*has_capacity)(tide_device *device, tide_stream stream, bool wait);

    /* Run fn(arguments) on `stream`. The device copies the arguments, at most
     * TIDE_LAUNCH_ARGUMENTS_MAX_BYTES. The host executor runs such functions, too. */
    tide_status (*launch)(tide_device *device, tide_stream stream, const tide_work *work, tide_kernel fn,
                          const void *arguments, size_t argument_bytes);
    /* Copy the first `bytes` of a slot to a slot of the other tier. The device may access each slot at its
     * own address or at the chunk's place where it is mapped. It declares the accesses itself; work->accesses
     * must be empty. cuda: ARGUMENT if `stream` is the host executor. */
    tide_status (*copy_slot)(tide_device *device, tide_stream stream, const tide_work *work,
                             tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes);
    /* Copy `bytes` between a host buffer and the region, in the direction `to_device`. work->accesses
     * declares the accesses. */
    tide_status (*copy_bytes)(tide_device *device, tide_stream stream, const tide_work *work, void *to,
                              const void *from, uint64_t bytes, bool to_device);

    /* --- events --- */

    tide_status (*event_record)(tide_device *device, tide_event event, tide_stream stream);
    /* `stream` runs its next command only after the event's latest record has passed. ARGUMENT if `stream` or
     * the recorded stream is the host executor. `id` is for the observer. */
    tide_status (*stream_wait)(tide_device *device, tide_stream stream, tide_event event, tide_wait_site site,
                               uint64_t id);
    /* Set `done` to whether the event's latest record has passed (true if it was never recorded). Never
     * blocks. */
    tide_status (*event_query)(tide_device *device, tide_event event, tide_wait_site site, bool *done);
    /* Block the calling thread until the event's latest record has passed. null: moves the virtual clock to
     * that time. */
    tide_status (*event_wait)(tide_device *device, tide_event event, tide_wait_site site);

    /* The engine's sleep. doorbell() returns a ticket. park(ticket, events) returns as soon as, since that
     * ticket was drawn, ring() was called, a command failed or, only if `events` is true, an event completed;
     * if that has happened already, it returns at once. The null device instead moves its clock to the next
     * completion in park(); it returns STATE if none is pending or `events` is false, since then nothing
     * would ever wake the caller. */
    uint64_t (*doorbell)(tide_device *device);
    tide_status (*park)(tide_device *device, uint64_t ticket, bool events);
    void (*ring)(tide_device *device);

    /* Declare to the hazard checker that the calling thread itself reads or writes objects now. */
    tide_status (*host_touch)(tide_device *device, const tide_work *work);

    /* Block until every stream is idle, also after a failure. The caller's next calls are ordered after all
     * commands. */
    void (*synchronize)(tide_device *device);
    /* The device's failure, with the failed command's message; TIDE_OK if it has none. Costs next to nothing.
     * host: reports a failure as soon as the command has failed. A GPU's errors show only when the device
     * next queries the GPU: in some launches and copies, in queries, waits, statistics(), synchronize(), and
     * while a thread is parked. */
    tide_status (*failure)(tide_device *device);
    /* After synchronize() and before recover(): did a kernel of the stream fail, or was one skipped after a
     * failure? On a GPU also: did a launch fail, of which a part may have run? */
    bool (*stream_failed)(tide_device *device, tide_stream stream);
    /* After synchronize(): clear the failure if the device can go on; otherwise return the failure. */
    tide_status (*recover)(tide_device *device);

    uint64_t (*now_ns)(tide_device *device); /* monotonic clock; null: the virtual clock */
    void (*usage)(tide_device *device, tide_tier tier, tide_memory_usage *usage);
    /* The device does not coalesce commands enqueued before this call with later ones. */
    void (*statistics)(tide_device *device, tide_device_statistics *statistics);
    void (*set_describe)(tide_device *device, tide_device_describe describe, void *context);
    /* Tests: arm or disarm (mask 0) fault injection in a running device. */
    void (*set_fault)(tide_device *device, uint32_t mask, uint64_t countdown);
} tide_device_ops;

/* Each implementation's struct begins with this. */
struct tide_device {
    const tide_device_ops *ops;
};

/* Open a device, which copies the options. The caller closes it with ops->close. ARGUMENT: an option is out
 * of range (chunk_bytes, budgets below one chunk, negative rates). UNSUPPORTED: the system lacks what the
 * device needs. NO_MEMORY. */
tide_status tide_device_host_open(const tide_device_options *options, tide_device **device);
tide_status tide_device_null_open(const tide_device_options *options, tide_device **device);

/* Change the machine that a null device simulates; commands that are already enqueued keep their times. Reads
 * from `machine` only the options of the null device and link_bytes_per_second. ARGUMENT, with nothing
 * changed, if a speed is negative or not finite. */
tide_status tide_device_null_imitate(tide_device *device, const tide_device_options *machine);
/* Allocate each queue of a null device for this many commands, waits and records. NO_MEMORY. */
tide_status tide_device_null_reserve(tide_device *device, uint32_t commands);

#endif
