/* The machine: the facts that `tidepool info` prints, and placing memory and threads on the NUMA node nearest
 * to them, or on the one a GPU hangs on.
 *
 * Read from /proc and /sys; hwloc (when built in) counts cores and does the binding. On a machine with one
 * node there is nothing to place, so hwloc is not even loaded then: opening a device stays cheap.
 */
#ifndef TIDE_OFFLOAD_TOPOLOGY_H
#define TIDE_OFFLOAD_TOPOLOGY_H

#include "tidepool/types.h"

#include <stdbool.h>

enum { TIDE_TOPOLOGY_NODES_MAX = 64 };

typedef struct tide_topology_node {
    uint32_t os_index;
    uint32_t processors; /* logical ones that belong to it */
    uint64_t memory_bytes;
    uint64_t free_bytes;
} tide_topology_node;

typedef struct tide_topology {
    char processor[64];  /* the processor's name, "unknown" if the system does not say */
    uint32_t cores;      /* physical; 0 if unknown */
    uint32_t processors; /* logical, that this process may use */
    uint64_t memory_bytes;
    uint64_t available_bytes; /* as tide_topology_available_bytes */
    uint64_t dormant_bytes;   /* as tide_topology_dormant_bytes */
    uint64_t page_bytes;
    uint64_t huge_page_bytes;        /* 0: none */
    char transparent_huge_pages[16]; /* "always", "madvise", "never" or "none" */
    bool can_bind;                   /* built with hwloc */
    uint32_t node_count;             /* at least 1 */
    tide_topology_node nodes[TIDE_TOPOLOGY_NODES_MAX];
} tide_topology;

/* Fill in all that can be found; facts that the system does not tell are 0 or "unknown". UNSUPPORTED without
 * /proc.
 */
tide_status tide_topology_read(tide_topology *topology);

/* Logical processors the calling thread may use, at least 1: the process's unless the thread was bound. */
uint32_t tide_topology_processors(void);
/* Memory that can be had without swapping and within the limits of this process's control groups (cgroup.h); UINT64_MAX if
 * the system does not say. A virtual machine's may grow (free_memory.h). */
uint64_t tide_topology_available_bytes(void);
/* Memory that the machine has and does not count in its total yet: of a kernel that makes its tables when they are first needed,
 * or in a balloon. 0 on most machines, where what tables and the kernel itself take, up to a 32nd of all, is none; and where
 * the system does not say. UINT64_MAX: more may be plugged in while it runs (virtio-mem). `root` stands before /proc and
 * /sys: "" but in tests. */
uint64_t tide_topology_dormant_bytes(const char *root);
/* Does private, or shared, memory that asks for huge pages get them? */
bool tide_topology_has_huge_pages(void);
bool tide_topology_has_shared_huge_pages(void);

/* A NUMA node by the system's number, or the nearest: the first of those whose processors the calling thread may use. */
enum { TIDE_NODE_NEAREST = -1 };

/* Put pages not yet touched of [address, address + bytes) on a node; where it is full, they go to another. A wish, not a
 * need: false if it could not be done. True, and nothing done, on one node. */
bool tide_topology_bind_memory(void *address, uint64_t bytes, int32_t node);
/* Keep the calling thread, and threads it makes from now on (an OpenMP team's among them, unless OMP_PROC_BIND places
 * those), on those of its processors that belong to the node. As above. */
bool tide_topology_bind_thread(int32_t node);

/* The node that a PCI device hangs on, by its bus id ("0000:1B:00.0", any case); TIDE_NODE_NEAREST if the system does not
 * say. */
int32_t tide_topology_pci_node(const char *bus_id);

#endif
