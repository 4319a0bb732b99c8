/* Control groups of both versions. /proc/self/cgroup names the process's group; its limit and those of all
 * groups above it hold:
 *
 *   0::/user/job         ->  /sys/fs/cgroup/user/job, /sys/fs/cgroup/user, /sys/fs/cgroup         (version 2)
 *   4:memory:/docker/1f  ->  /sys/fs/cgroup/memory/docker/1f, .../docker, /sys/fs/cgroup/memory   (version 1)
 *
 * A container may see its own group as the top one while /proc still shows the path on the machine. Therefore
 * this code skips folders that do not exist, and always reads the top one.
 *
 * A group has left its limit less its used memory, where file pages without recent use (inactive_file) count
 * as free: the kernel drops those before it kills a process. It might drop other file pages, too, but we do
 * not count on it.
 */
#include "offload/cgroup.h"

#include "offload/system_text.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef struct cgroup_version {
    const char *line;   /* in /proc/self/cgroup: the text between the first colon and the path */
    const char *folder; /* the top group's */
    const char *limit, *used, *idle;
} cgroup_version;

static const cgroup_version versions[] = {
    {"::", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file "},
};

/* Read the number behind `key` in a file of a group. Appends the file's name to `group` and removes it
 * again. */
static bool group_read(char group[PATH_MAX], const char *file, const char *key, uint64_t *number)
{
    const size_t length = strlen(group);
    const int more = snprintf(group + length, PATH_MAX - length, "/%s", file);
    const bool read = length + (size_t)more < PATH_MAX && tide_system_number_read(group, key, number);
    group[length] = '\0';
    return read;
}

/* How many bytes a group has left. If no limit is set the file says "max", which is no number, or in version
 * 1 a number beyond any memory. */
static uint64_t group_available(const cgroup_version *version, char group[PATH_MAX])
{
    uint64_t limit, used, idle = 0;
    if (!group_read(group, version->limit, "", &limit) || !group_read(group, version->used, "", &used))
        return UINT64_MAX;
    (void)group_read(group, "memory.stat", version->idle, &idle);
    used -= idle < used ? idle : used;
    return used < limit ? limit - used : 0;
}

/* The fewest bytes that `group` and the groups above it have left, up to the top one, whose path has `top`
 * bytes. */
static uint64_t groups_available(const cgroup_version *version, char group[PATH_MAX], size_t top)
{
    uint64_t least = UINT64_MAX;
    for (char *end = group + strlen(group); end != NULL && end >= group + top; end = strrchr(group, '/')) {
        *end = '\0';
        const uint64_t available = group_available(version, group);
        least = available < least ? available : least;
    }
    return least;
}

/* The path in a "number:controllers:path" line of this version; NULL if the line is of another version or
 * controller. Also NULL if the memory controller is mounted together with others, whose names would stand
 * beside its own and whose folder would be another one; no system does so by default. */
static const char *path_find(const char *line, const cgroup_version *version)
{
    const char *colon = strchr(line, ':');
    const size_t length = strlen(version->line);
    return colon != NULL && strncmp(colon, version->line, length) == 0 && colon[length] == '/'
               ? colon + length
               : NULL;
}

/* The bytes that the groups in one line of /proc/self/cgroup have left. `group` holds the line, and is
 * overwritten. */
static uint64_t line_available(const char *root, char group[PATH_MAX])
{
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        const char *path = path_find(group, &versions[i]);
        if (path == NULL)
            continue;
        const size_t length = strlen(path) + 1, of_root = strlen(root),
                     of_folder = strlen(versions[i].folder);
        if (of_root + of_folder + length > PATH_MAX)
            return UINT64_MAX;
        memmove(group + of_root + of_folder, path, length);
        memcpy(group, root, of_root);
        memcpy(group + of_root, versions[i].folder, of_folder);
        return groups_available(&versions[i], group, of_root + of_folder);
    }
    return UINT64_MAX;
}

uint64_t tide_cgroup_available_bytes(const char *root)
{
    char group[PATH_MAX];
    tide_system_lines lines;
    uint64_t least = UINT64_MAX;
    const int length = snprintf(group, sizeof group, "%s/proc/self/cgroup", root);
    if (length >= (int)sizeof group || !tide_system_lines_open(group, &lines))
        return UINT64_MAX;
    while (tide_system_lines_next(&lines, group, sizeof group)) {
        const uint64_t available = line_available(root, group);
        least = available < least ? available : least;
    }
    tide_system_lines_close(&lines);
    return least;
}
