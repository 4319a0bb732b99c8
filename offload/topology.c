/* Small readers of /proc and /sys (system_text.h) that allocate nothing, and hwloc for the facts that the
 * kernel does not state plainly. */
#include "offload/topology.h"

#include "offload/cgroup.h"
#include "offload/system_text.h"
#include "tide_config.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if TIDE_HAVE_HWLOC
#include <hwloc.h>
#endif

enum { TEXT_BYTES = TIDE_SYSTEM_TEXT_BYTES, KIB = 1024 };

/* The number behind `key` in a text of "key: number kB" lines, in bytes; 0 if there is no such line. */
static uint64_t kib_find(const char *text, const char *key)
{
    const char *found = strstr(text, key);
    return found != NULL ? strtoull(found + strlen(key), NULL, 10) * KIB : 0;
}

static uint64_t meminfo_bytes(const char *root, const char *key)
{
    char path[PATH_MAX];
    uint64_t number;
    (void)snprintf(path, sizeof path, "%s/proc/meminfo", root);
    return tide_system_number_read(path, key, &number) ? number * KIB : 0;
}

uint64_t tide_topology_available_bytes(void)
{
    uint64_t number;
    const bool known = tide_system_number_read("/proc/meminfo", "MemAvailable:", &number);
    const uint64_t machine = known ? number * KIB : UINT64_MAX, groups = tide_cgroup_available_bytes("");
    return machine < groups ? machine : groups;
}

/* The memory present in all zones of /proc/zoneinfo, in bytes; 0: the system does not say. */
static uint64_t present_bytes(const char *root)
{
    char path[PATH_MAX], line[256];
    uint64_t pages = 0, zone_pages;
    (void)snprintf(path, sizeof path, "%s/proc/zoneinfo", root);
    FILE *zones = fopen(path, "re");
    if (zones == NULL)
        return 0;
    while (fgets(line, sizeof line, zones) != NULL)
        if (sscanf(line, " present %" SCNu64, &zone_pages) == 1)
            pages += zone_pages;
    (void)fclose(zones); /* read only */
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Has the machine a device by which its host can plug in memory at run time? */
static bool has_plug(const char *root)
{
    enum { DEVICES = 64, VIRTIO_MEM = 24 };
    char path[PATH_MAX], line[32] = "";
    tide_system_lines lines;
    for (int i = 0; i < DEVICES; i++) {
        (void)snprintf(path, sizeof path, "%s/sys/bus/virtio/devices/virtio%d/device", root, i);
        if (!tide_system_lines_open(path, &lines))
            continue;
        const bool is_read = tide_system_lines_next(&lines, line, sizeof line);
        tide_system_lines_close(&lines);
        if (is_read && strtoul(line, NULL, 16) == VIRTIO_MEM)
            return true;
    }
    return false;
}

uint64_t tide_topology_dormant_bytes(const char *root)
{
    const uint64_t present = present_bytes(root), most = present - present / 32;
    const uint64_t counted = meminfo_bytes(root, "MemTotal:");
    if (has_plug(root))
        return UINT64_MAX;
    return most > counted ? most - counted : 0;
}

uint32_t tide_topology_processors(void)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) > 0)
        return (uint32_t)CPU_COUNT(&allowed);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* the machine has more processors than cpu_set_t holds */
    return online > 0 ? (uint32_t)online : 1;
}

static const char private_mode_path[] = "/sys/kernel/mm/transparent_hugepage/enabled";

/* Read the mode: the word in brackets in a text such as "always [madvise] never". */
static void huge_page_mode(const char *path, char mode[16])
{
    char text[TEXT_BYTES];
    (void)snprintf(mode, 16, "none");
    if (!tide_system_text_read(path, text))
        return;
    const char *begin = strchr(text, '[');
    const char *end = begin != NULL ? strchr(begin, ']') : NULL;
    if (end != NULL)
        (void)snprintf(mode, 16, "%.*s", (int)(end - begin - 1), begin + 1);
}

bool tide_topology_has_huge_pages(void)
{
    char mode[16];
    huge_page_mode(private_mode_path, mode);
    return strcmp(mode, "always") == 0 || strcmp(mode, "madvise") == 0;
}

bool tide_topology_has_shared_huge_pages(void)
{
    char mode[16];
    huge_page_mode("/sys/kernel/mm/transparent_hugepage/shmem_enabled", mode);
    return strcmp(mode, "never") != 0 && strcmp(mode, "deny") != 0 && strcmp(mode, "none") != 0;
}

/* Call `each` for every number of a list such as "0-3,8,10-11". */
static void list_walk(const char *list, void (*each)(void *context, uint32_t number), void *context)
{
    while (isdigit((unsigned char)*list)) {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long number = first; number <= last; number++)
            each(context, (uint32_t)number);
        list = *end == ',' ? end + 1 : end;
    }
}

static void count_one(void *context, uint32_t number)
{
    (void)number;
    (*(uint32_t *)context)++;
}

static uint32_t list_count(const char *path)
{
    char text[TEXT_BYTES];
    uint32_t count = 0;
    if (tide_system_text_read(path, text))
        list_walk(text, count_one, &count);
    return count;
}

static void node_read(void *context, uint32_t os_index)
{
    tide_topology *topology = context;
    if (topology->node_count == TIDE_TOPOLOGY_NODES_MAX)
        return;
    tide_topology_node *node = &topology->nodes[topology->node_count++];
    node->os_index = os_index;
    char path[96], text[TEXT_BYTES];
    (void)snprintf(path, sizeof path, "/sys/devices/system/node/node%" PRIu32 "/cpulist", os_index);
    node->processors = list_count(path);
    (void)snprintf(path, sizeof path, "/sys/devices/system/node/node%" PRIu32 "/meminfo", os_index);
    if (!tide_system_text_read(path, text))
        return;
    node->memory_bytes = kib_find(text, "MemTotal:");
    node->free_bytes = kib_find(text, "MemFree:");
}

static void nodes_read(tide_topology *topology)
{
    char text[TEXT_BYTES];
    if (tide_system_text_read("/sys/devices/system/node/online", text))
        list_walk(text, node_read, topology);
    if (topology->node_count > 0)
        return;
    topology->node_count = 1; /* a kernel without NUMA: the machine counts as one node */
    topology->nodes[0] = (tide_topology_node){
        .processors = topology->processors,
        .memory_bytes = topology->memory_bytes,
        .free_bytes = topology->available_bytes,
    };
}

static void processor_name(char name[64])
{
    char text[TEXT_BYTES];
    (void)snprintf(name, 64, "unknown");
    const char *found = tide_system_text_read("/proc/cpuinfo", text) ? strstr(text, "model name") : NULL;
    const char *begin = found != NULL ? strchr(found, ':') : NULL;
    if (begin == NULL)
        return;
    begin += strspn(begin, ": \t");
    (void)snprintf(name, 64, "%.*s", (int)strcspn(begin, "\n"), begin);
}

/* --- binding --- */

#if TIDE_HAVE_HWLOC

/* hwloc's description of the machine. Loaded once, when first needed, and kept, since loading takes tens of
 * milliseconds. NULL if it could not be loaded. */
static hwloc_topology_t loaded;
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

static void load(void)
{
    hwloc_topology_t made;
    if (hwloc_topology_init(&made) != 0)
        return;
    if (hwloc_topology_load(made) == 0)
        loaded = made;
    else
        hwloc_topology_destroy(made);
}

static hwloc_topology_t machine(void)
{
    (void)pthread_once(&load_once, load);
    return loaded;
}

static uint32_t cores_count(void)
{
    int count = machine() != NULL ? hwloc_get_nbobjs_by_type(loaded, HWLOC_OBJ_CORE) : 0;
    return count > 0 ? (uint32_t)count : 0;
}

/* The processors that the calling thread may use, as the machine's owner or `taskset` has set them. The
 * caller frees the bitmap. NULL if they can't be found out. */
static hwloc_bitmap_t usable_processors(void)
{
    hwloc_bitmap_t usable = machine() != NULL ? hwloc_bitmap_alloc() : NULL;
    if (usable != NULL && hwloc_get_cpubind(loaded, usable, HWLOC_CPUBIND_THREAD) == 0)
        return usable;
    hwloc_bitmap_free(usable);
    return NULL;
}

static bool is_wanted(hwloc_obj_t node, int32_t wanted, hwloc_const_bitmap_t usable)
{
    if (wanted != TIDE_NODE_NEAREST)
        return node->os_index == (unsigned)wanted;
    return node->cpuset != NULL && hwloc_bitmap_intersects(node->cpuset, usable);
}

/* The wanted node; for TIDE_NODE_NEAREST the first node that has one of these processors. NULL: none. */
static hwloc_obj_t node_find(int32_t wanted, hwloc_const_bitmap_t usable)
{
    hwloc_obj_t node = NULL;
    while (usable != NULL && (node = hwloc_get_next_obj_by_type(loaded, HWLOC_OBJ_NUMANODE, node)) != NULL)
        if (is_wanted(node, wanted, usable))
            return node;
    return NULL;
}

static bool memory_bind(void *address, uint64_t bytes, int32_t wanted)
{
    hwloc_bitmap_t usable = usable_processors();
    hwloc_obj_t node = node_find(wanted, usable);
    bool bound = node != NULL && hwloc_set_area_membind(loaded, address, bytes, node->nodeset,
                                                        HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) == 0;
    hwloc_bitmap_free(usable);
    return bound;
}

/* Bind the calling thread to the processors that it may use and that belong to the node; it never gets more
 * than it had. If there are none, the thread stays as it is. */
static bool thread_bind(int32_t wanted)
{
    hwloc_bitmap_t usable = usable_processors();
    hwloc_obj_t node = node_find(wanted, usable);
    bool bound = node != NULL && node->cpuset != NULL &&
                 hwloc_bitmap_and(usable, usable, node->cpuset) == 0 && !hwloc_bitmap_iszero(usable) &&
                 hwloc_set_cpubind(loaded, usable, HWLOC_CPUBIND_THREAD) == 0;
    hwloc_bitmap_free(usable);
    return bound;
}

#else

static uint32_t cores_count(void)
{
    return 0;
}

static bool memory_bind(void *address, uint64_t bytes, int32_t wanted)
{
    (void)address;
    (void)bytes;
    (void)wanted;
    return false;
}

static bool thread_bind(int32_t wanted)
{
    (void)wanted;
    return false;
}

#endif

static bool has_one_node(void)
{
    return list_count("/sys/devices/system/node/online") <= 1;
}

bool tide_topology_bind_memory(void *address, uint64_t bytes, int32_t node)
{
    return has_one_node() || memory_bind(address, bytes, node);
}

bool tide_topology_bind_thread(int32_t node)
{
    return has_one_node() || thread_bind(node);
}

int32_t tide_topology_pci_node(const char *bus_id)
{
    char path[96], text[TEXT_BYTES];
    int length = snprintf(path, sizeof path, "/sys/bus/pci/devices/%.32s/numa_node", bus_id);
    for (int i = 0; i < length; i++) /* CUDA writes hexadecimal digits in upper case, /sys in lower case */
        path[i] = (char)tolower((unsigned char)path[i]);
    const long node = tide_system_text_read(path, text) ? strtol(text, NULL, 10) : TIDE_NODE_NEAREST;
    return node >= 0 && node < INT32_MAX ? (int32_t)node : TIDE_NODE_NEAREST;
}

tide_status tide_topology_read(tide_topology *topology)
{
    tide_topology read = {0};
    read.memory_bytes = meminfo_bytes("", "MemTotal:");
    if (read.memory_bytes == 0)
        return tide_fail(TIDE_ERROR_UNSUPPORTED,
                         "/proc/meminfo does not say how much memory the machine has");
    read.available_bytes = tide_topology_available_bytes();
    read.dormant_bytes = tide_topology_dormant_bytes("");
    read.huge_page_bytes = meminfo_bytes("", "Hugepagesize:");
    read.page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    read.processors = tide_topology_processors();
    read.cores = cores_count();
    read.can_bind = TIDE_HAVE_HWLOC;
    processor_name(read.processor);
    huge_page_mode(private_mode_path, read.transparent_huge_pages);
    nodes_read(&read);
    *topology = read;
    return TIDE_OK;
}
