/* Control groups of both versions. /proc/self/cgroup names the group, its limit and that of every group above hold:
 *
 *   0::/user/job            ->  /sys/fs/cgroup/user/job, /sys/fs/cgroup/user, /sys/fs/cgroup           (version 2)
 *   4:memory:/docker/1f     ->  /sys/fs/cgroup/memory/docker/1f, .../docker, /sys/fs/cgroup/memory     (version 1)
 *
 * A container may see its own group as the top while /proc still tells the machine's path: folders that are not there are
 * passed over, and the top is always asked.
 *
 * Left is the limit less what is used, where file pages that nobody has asked for lately (inactive_file) count as free: the
 * kernel drops those before it kills. Other file pages it might drop, too; that is not relied on.
 */
#include "offload/cgroup.h"

#include "offload/system_text.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cgroup_version {
    const char *line;   /* in /proc/self/cgroup: what is between the first colon and the path */
    const char *folder; /* of the top group */
    const char *limit, *used, *idle;
} cgroup_version;

static const cgroup_version versions[] = {
    {"::", "/sys/fs/cgroup", "memory.max", "memory.current", "\ninactive_file "},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "\ntotal_inactive_file "},
};

/* A group's file; `text` starts with a newline, so that a key can be told from the end of a longer one. */
static bool group_read(const char *group, const char *file, char text[TIDE_SYSTEM_TEXT_BYTES + 1])
{
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof path, "%s/%s", group, file);
    text[0] = '\n';
    return length < (int)sizeof path && tide_system_text_read(path, text + 1);
}

/* Without a limit the word is "max", or in version 1 a number beyond any memory. */
static uint64_t group_available(const cgroup_version *version, const char *group)
{
    char text[TIDE_SYSTEM_TEXT_BYTES + 1];
    if (!group_read(group, version->limit, text) || strncmp(text + 1, "max", 3) == 0)
        return UINT64_MAX;
    const uint64_t limit = strtoull(text + 1, NULL, 10);
    if (!group_read(group, version->used, text))
        return UINT64_MAX;
    uint64_t used = strtoull(text + 1, NULL, 10);
    const char *idle = group_read(group, "memory.stat", text) ? strstr(text, version->idle) : NULL;
    const uint64_t idle_bytes = idle != NULL ? strtoull(idle + strlen(version->idle), NULL, 10) : 0;
    used -= idle_bytes < used ? idle_bytes : used;
    return used < limit ? limit - used : 0;
}

/* Of the group and all above it. `path` begins with a slash. */
static uint64_t groups_available(const cgroup_version *version, const char *root, const char *path,
                                 int path_length)
{
    char group[PATH_MAX];
    uint64_t least = UINT64_MAX;
    const int top = snprintf(group, sizeof group, "%s%s", root, version->folder);
    const int length = snprintf(group, sizeof group, "%s%s%.*s", root, version->folder, path_length, path);
    if (length >= (int)sizeof group)
        return UINT64_MAX;
    for (char *end = group + length; end != NULL && end >= group + top; end = strrchr(group, '/')) {
        *end = '\0';
        const uint64_t available = group_available(version, group);
        least = available < least ? available : least;
    }
    return least;
}

/* The version's line of "number:controllers:path" lines, from the path on; NULL if there is none. A memory controller
 * mounted together with others would have their names beside it, and another folder: nobody's default, passed over. */
static const char *path_find(const char *text, const char *line)
{
    for (const char *at = text; at != NULL && *at != '\0'; at = strchr(at, '\n'), at += at != NULL) {
        const char *colon = strchr(at, ':');
        if (colon != NULL && strncmp(colon, line, strlen(line)) == 0 && colon[strlen(line)] == '/')
            return colon + strlen(line);
    }
    return NULL;
}

uint64_t tide_cgroup_available_bytes(const char *root)
{
    char path[PATH_MAX], text[TIDE_SYSTEM_TEXT_BYTES];
    uint64_t least = UINT64_MAX;
    const int length = snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (length >= (int)sizeof path || !tide_system_text_read(path, text))
        return UINT64_MAX;
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        const char *found = path_find(text, versions[i].line);
        if (found == NULL)
            continue;
        const uint64_t available = groups_available(&versions[i], root, found, (int)strcspn(found, "\n"));
        least = available < least ? available : least;
    }
    return least;
}
