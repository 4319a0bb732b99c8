/* The memory that control groups leave to a process, and the memory that the machine has but does not use
 * yet. The tests write the system's files into a folder and read them there. */
#include "offload/cgroup.h"
#include "offload/topology.h"
#include "tests/support/assert_ok.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/test_cgroup_XXXXXX";

/* Writes the file `path` below the test's root and makes its folders. */
static void write_file(const char *path, const char *text)
{
    char full[512];
    (void)snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(full, 0700); /* the folder may exist */
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int make_root(void **state)
{
    (void)snprintf(root, sizeof root, "/tmp/test_cgroup_XXXXXX");
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[64];
    (void)snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static void group_v2(const char *group, const char *max, const char *current, const char *stat)
{
    const char *const files[][2] = {{"memory.max", max}, {"memory.current", current}, {"memory.stat", stat}};
    char path[256];
    for (int i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", group, files[i][0]);
        write_file(path, files[i][1]);
    }
}

/* Groups of version 2, of which the process is in the last one of its path. */
static const struct {
    const char *name, *path;
    struct {
        const char *group, *max, *current, *stat;
    } groups[3];
    uint64_t available_bytes;
} cases[] = {
    {"no groups", NULL, {{0}}, UINT64_MAX},
    {"the top group has no files", "0::/\n", {{0}}, UINT64_MAX},
    {"the limit less what is used is left",
     "0::/job\n",
     {{"/job", "1000000\n", "300000\n", "anon 200000\nfile 100000\n"}},
     700000},
    {"idle file pages count as free",
     "0::/job\n",
     {{"/job", "1000000\n", "300000\n", "anon 1\nworkingset_inactive_file 7\ninactive_file 100000\n"}},
     800000},
    {"max is no limit", "0::/job\n", {{"/job", "max\n", "300000\n", "inactive_file 0\n"}}, UINT64_MAX},
    {"every group above holds too",
     "0::/user/job/step\n",
     {{"/user/job/step", "max\n", "10\n", "inactive_file 0\n"},
      {"/user/job", "5000\n", "1000\n", "inactive_file 0\n"},
      {"/user", "4000\n", "2500\n", "inactive_file 500\n"}},
     2000},
    /* A container without a cgroup namespace sees the path of its group but only the top group's files. */
    {"a group that is not there leaves the top",
     "0::/docker/1f\n",
     {{"", "9000\n", "2000\n", "inactive_file 0\n"}},
     7000},
    {"more used than allowed leaves nothing",
     "0::/job\n",
     {{"/job", "1000\n", "3000\n", "inactive_file 5\n"}},
     0},
};

static void least_of_what_the_groups_leave_is_available(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(make_root(state), 0);
        if (cases[i].path != NULL)
            write_file("/proc/self/cgroup", cases[i].path);
        for (int k = 0; k < 3 && cases[i].groups[k].group != NULL; k++)
            group_v2(cases[i].groups[k].group, cases[i].groups[k].max, cases[i].groups[k].current,
                     cases[i].groups[k].stat);
        const uint64_t bytes = tide_cgroup_available_bytes(root);
        if (bytes != cases[i].available_bytes)
            fail_msg("%s: %llu bytes", cases[i].name, (unsigned long long)bytes);
        assert_int_equal(remove_root(state), 0);
    }
}

static void version_1_has_files_of_its_own(void **state)
{
    write_file("/proc/self/cgroup", "9:name=systemd:/other\n4:memory:/docker/1f\n0::/\n");
    write_file("/sys/fs/cgroup/memory/docker/1f/memory.limit_in_bytes", "8000\n");
    write_file("/sys/fs/cgroup/memory/docker/1f/memory.usage_in_bytes", "3000\n");
    write_file("/sys/fs/cgroup/memory/docker/1f/memory.stat", "inactive_file 1\ntotal_inactive_file 1000\n");
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "70000\n");
    assert_int_equal(tide_cgroup_available_bytes(root), 6000);
}

#define in_a_root(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

static void what_the_machine_has_and_does_not_count_yet_is_dormant(void **state)
{
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE), present = (4000 + 1000000) * page_bytes;
    char meminfo[64];
    assert_int_equal(tide_topology_dormant_bytes(root), 0); /* no files, so nothing is known */
    write_file("/proc/zoneinfo",
               "Node 0, zone      DMA\n  per-node stats\n      nr_present 7\n  pages free     3840\n"
               "        spanned  4095\n        present  4000\n        managed  3840\n"
               "Node 0, zone   Normal\n        spanned  1200000\n        present  1000000\n");
    write_file("/proc/meminfo", "MemTotal:  1024 kB\n");
    assert_int_equal(tide_topology_dormant_bytes(root), present - present / 32 - 1048576);
    (void)snprintf(meminfo, sizeof meminfo, "MemTotal:  %llu kB\n",
                   (unsigned long long)(present / 100 * 98 / 1024));
    write_file("/proc/meminfo", meminfo); /* the other 2% are page tables and the kernel's own memory */
    assert_int_equal(tide_topology_dormant_bytes(root), 0);
    write_file("/sys/bus/virtio/devices/virtio0/device", "0x0005\n");
    assert_int_equal(tide_topology_dormant_bytes(root), 0);
    write_file("/sys/bus/virtio/devices/virtio11/device", "0x0018\n");
    assert_true(tide_topology_dormant_bytes(root) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(least_of_what_the_groups_leave_is_available),
        in_a_root(version_1_has_files_of_its_own),
        in_a_root(what_the_machine_has_and_does_not_count_yet_is_dormant),
    };
    return cmocka_run_group_tests_name("control groups", tests, NULL, NULL);
}
