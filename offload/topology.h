/* Reads facts about the machine (for `tidepool info`), and places memory and threads on the nearest NUMA node
 * or on the node of a GPU.
 *
 * The facts come from /proc and /sys; hwloc (if built in) counts cores and binds. On a machine with one node
 * there is nothing to place, so hwloc is not even loaded, and opening a device stays cheap.
 */
#ifndef TIDE_OFFLOAD_TOPOLOGY_H
#define TIDE_OFFLOAD_TOPOLOGY_H

#include "tidepool/types.h"

#include <stdbool.h>

enum { TIDE_TOPOLOGY_NODES_MAX = 64 };

typedef struct tide_topology_node {
    uint32_t os_index;
    uint32_t processors; /* logical processors of the node */
    uint64_t memory_bytes;
    uint64_t free_bytes;
} tide_topology_node;

typedef struct tide_topology {
    char processor[64];  /* the processor's name, "unknown" if the system does not say */
    uint32_t cores;      /* physical cores; 0: unknown */
    uint32_t processors; /* logical processors that this process may use */
    uint64_t memory_bytes;
    uint64_t available_bytes; /* the value of tide_topology_available_bytes() */
    uint64_t dormant_bytes;   /* the value of tide_topology_dormant_bytes("") */
    uint64_t page_bytes;
    uint64_t huge_page_bytes;        /* 0: there are no huge pages */
    char transparent_huge_pages[16]; /* "always", "madvise", "never" or "none" */
    bool can_bind;                   /* this build has hwloc, which can bind memory and threads */
    uint32_t node_count;             /* at least 1 */
    tide_topology_node nodes[TIDE_TOPOLOGY_NODES_MAX];
} tide_topology;

/* Fill in all facts that the system tells; others are 0 or "unknown". UNSUPPORTED without /proc. */
tide_status tide_topology_read(tide_topology *topology);

/* How many logical processors the calling thread may use, at least 1: those of the process, unless the thread
 * was bound. */
uint32_t tide_topology_processors(void);
/* How much memory this process can get without swapping and within the limits of its control groups
 * (cgroup.h); UINT64_MAX if the system does not say. In a virtual machine it may grow (free_memory.h). */
uint64_t tide_topology_available_bytes(void);
/* Memory that the machine has but does not count in its total yet, because its kernel sets up page tables
 * only when they are needed, or because a balloon holds the memory. 0 if the system does not say, and on most
 * machines: up to 1/32 of all memory is taken to be the kernel's own. UINT64_MAX: more may be plugged in at
 * run time (virtio-mem). `root` is put before /proc and /sys; it is "" except in tests. */
uint64_t tide_topology_dormant_bytes(const char *root);
/* Does the system give huge pages to private, or to shared, memory that asks for them? */
bool tide_topology_has_huge_pages(void);
bool tide_topology_has_shared_huge_pages(void);

/* A NUMA node is named by the system's number or as TIDE_NODE_NEAREST: the first node that has a processor
 * which the calling thread may use. */
enum { TIDE_NODE_NEAREST = -1 };

/* Make the pages of [address, address + bytes) that are not touched yet come from a node, or from another
 * when that is full. False if it could not be done, which costs only speed. True, with nothing done, on a
 * machine with one node. */
bool tide_topology_bind_memory(void *address, uint64_t bytes, int32_t node);
/* Restrict the calling thread to those of its processors that belong to the node. This also restricts threads
 * that it makes later, and an OpenMP team unless OMP_PROC_BIND places that. Returns as
 * tide_topology_bind_memory. */
bool tide_topology_bind_thread(int32_t node);

/* The node of a PCI device, given its bus id ("0000:1B:00.0", in either case); TIDE_NODE_NEAREST if the
 * system does not say. */
int32_t tide_topology_pci_node(const char *bus_id);

#endif
