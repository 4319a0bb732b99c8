/* The memory that control groups leave to a process, and the memory that the machine has but does not use
 * yet. The tests write the system's files into a folder and read them there. */
#include "offload/cgroup.h"
#include "offload/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

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
    (void)state;
    (void)snprintf(root, sizeof root, "/tmp/test_cgroup_XXXXXX");
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[64];
    (void)state;
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

static void without_groups_nothing_is_limited(void **state)
{
    (void)state;
    assert_true(tide_cgroup_available_bytes(root) == UINT64_MAX);
    write_file("/proc/self/cgroup", "0::/\n");
    assert_true(tide_cgroup_available_bytes(root) == UINT64_MAX);
}

static void limit_less_what_is_used_is_left(void **state)
{
    (void)state;
    write_file("/proc/self/cgroup", "0::/job\n");
    group_v2("/job", "1000000\n", "300000\n", "anon 200000\nfile 100000\n");
    assert_int_equal(tide_cgroup_available_bytes(root), 700000);
}

static void idle_file_pages_count_as_free(void **state)
{
    (void)state;
    write_file("/proc/self/cgroup", "0::/job\n");
    group_v2("/job", "1000000\n", "300000\n", "anon 1\nworkingset_inactive_file 7\ninactive_file 100000\n");
    assert_int_equal(tide_cgroup_available_bytes(root), 800000);
}

static void the_word_max_is_no_limit(void **state)
{
    (void)state;
    write_file("/proc/self/cgroup", "0::/job\n");
    group_v2("/job", "max\n", "300000\n", "inactive_file 0\n");
    assert_true(tide_cgroup_available_bytes(root) == UINT64_MAX);
}

static void every_group_above_holds_too(void **state)
{
    (void)state;
    write_file("/proc/self/cgroup", "0::/user/job/step\n");
    group_v2("/user/job/step", "max\n", "10\n", "inactive_file 0\n");
    group_v2("/user/job", "5000\n", "1000\n", "inactive_file 0\n");
    group_v2("/user", "4000\n", "2500\n", "inactive_file 500\n");
    assert_int_equal(tide_cgroup_available_bytes(root), 2000);
}

/* A container without a cgroup namespace sees the path of its group but only the top group's files. */
static void group_that_is_not_there_leaves_the_top(void **state)
{
    (void)state;
    write_file("/proc/self/cgroup", "0::/docker/1f\n");
    group_v2("", "9000\n", "2000\n", "inactive_file 0\n");
    assert_int_equal(tide_cgroup_available_bytes(root), 7000);
}

static void more_used_than_allowed_leaves_nothing(void **state)
{
    (void)state;
    write_file("/proc/self/cgroup", "0::/job\n");
    group_v2("/job", "1000\n", "3000\n", "inactive_file 5\n");
    assert_int_equal(tide_cgroup_available_bytes(root), 0);
}

static void version_1_has_files_of_its_own(void **state)
{
    (void)state;
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
    (void)state;
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
        in_a_root(without_groups_nothing_is_limited),
        in_a_root(limit_less_what_is_used_is_left),
        in_a_root(idle_file_pages_count_as_free),
        in_a_root(the_word_max_is_no_limit),
        in_a_root(every_group_above_holds_too),
        in_a_root(group_that_is_not_there_leaves_the_top),
        in_a_root(more_used_than_allowed_leaves_nothing),
        in_a_root(version_1_has_files_of_its_own),
        in_a_root(what_the_machine_has_and_does_not_count_yet_is_dormant),
    };
    return cmocka_run_group_tests_name("control groups", tests, NULL, NULL);
}
