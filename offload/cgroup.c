/* Control groups of both versions. /proc/self/cgroup names the group, its limit and that of every group above hold:
 *
 *   0::/user/job            ->  /sys/fs/cgroup/user/job, /sys/fs/cgroup/user, /sys/fs/cgroup           (version 2)
 *   4:memory:/docker/1f     ->  /sys/fs/cgroup/memory/docker/1f, .../docker, /sys/fs/cgroup/memory     (version 1)
 *
 * A container may see its own group as the top while /proc still tells the machine's path: this code passes
 * over folders that are not there, and always reads the top.
 *
 * Left is the limit less what is used, where file pages without recent use (inactive_file) count as free: the
 * kernel drops those before it kills. It might drop other file pages, too; the limit left does not count on
 * that.
 */
#include "offload/cgroup.h"

#include "offload/system_text.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef struct cgroup_version {
    const char *line;   /* in /proc/self/cgroup: the text between the first colon and the path */
    const char *folder; /* of the top group */
    const char *limit, *used, *idle;
} cgroup_version;

static const cgroup_version versions[] = {
    {"::", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file "},
};

/* The number behind `key` in a group's file. The file's name stands behind the group's meanwhile. */
static bool group_read(char group[PATH_MAX], const char *file, const char *key, uint64_t *number)
{
    const size_t length = strlen(group);
    const int more = snprintf(group + length, PATH_MAX - length, "/%s", file);
    const bool read = length + (size_t)more < PATH_MAX && tide_system_number_read(group, key, number);
    group[length] = '\0';
    return read;
}

/* Without a limit the word is "max", which is no number, or in version 1 a number beyond any memory. */
static uint64_t group_available(const cgroup_version *version, char group[PATH_MAX])
{
    uint64_t limit, used, idle = 0;
    if (!group_read(group, version->limit, "", &limit) || !group_read(group, version->used, "", &used))
        return UINT64_MAX;
    (void)group_read(group, "memory.stat", version->idle, &idle);
    used -= idle < used ? idle : used;
    return used < limit ? limit - used : 0;
}

/* Of the group, whose path begins with a slash, and all above it up to the top one, whose path has so many bytes. */
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

/* The path in a "number:controllers:path" line of that version; NULL if the line has another version or
 * controller. A memory controller mounted together with others would have their names beside it, and another
 * folder: no default anywhere, and NULL here. */
static const char *path_find(const char *line, const cgroup_version *version)
{
    const char *colon = strchr(line, ':');
    const size_t length = strlen(version->line);
    return colon != NULL && strncmp(colon, version->line, length) == 0 && colon[length] == '/'
               ? colon + length
               : NULL;
}

/* `group` has the line of the process's groups, and then their paths. */
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
