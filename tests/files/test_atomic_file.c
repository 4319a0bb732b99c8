/* Atomic files: a reader of the path finds the old file until the new one is whole. A write that fails, or
 * memory that runs out, leaves the old file and no temporary one. */
#include "base/atomic_file.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/tidepool-atomic-file-XXXXXX";

static const char *path_in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void assert_content(const char *path, const char *content)
{
    char found[64] = "";
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    found[fread(found, 1, sizeof found - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(found, content);
}

/* The folder holds nothing: no temporary file was left. */
static void assert_empty(void)
{
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(mkdir(folder, 0777), 0);
}

static void write_file(const char *path, const char *content)
{
    tide_atomic_file file;
    assert_ok(tide_atomic_file_open("test", path, &file));
    fputs(content, file.stream);
    assert_ok(tide_atomic_file_finish(&file));
}

static void a_file_is_as_before_until_it_is_finished(void **state)
{
    tide_atomic_file file;
    const char *path = path_in_folder("file");
    write_file(path, "before");
    assert_ok(tide_atomic_file_open("test", path, &file));
    fputs("after", file.stream);
    fflush(file.stream);
    assert_content(path, "before");
    tide_atomic_file_abandon(&file);
    assert_content(path, "before");
    write_file(path, "after");
    assert_content(path, "after");
    assert_int_equal(unlink(path), 0);
    assert_empty();
}

static void a_new_file_has_the_mode_of_the_old_one(void **state)
{
    struct stat about;
    const char *path = path_in_folder("file");
    write_file(path, "before");
    assert_int_equal(chmod(path, 0640), 0);
    write_file(path, "after");
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0640);
    unlink(path);
}

static void the_file_behind_a_link_is_replaced(void **state)
{
    struct stat about;
    char target[128], link_path[128];
    snprintf(target, sizeof target, "%s", path_in_folder("target"));
    snprintf(link_path, sizeof link_path, "%s", path_in_folder("link"));
    write_file(target, "before");
    assert_int_equal(symlink("target", link_path), 0);
    write_file(link_path, "after");
    assert_content(target, "after");
    assert_int_equal(lstat(link_path, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    unlink(link_path);
    unlink(target);
}

static void a_file_that_cannot_be_is_refused(void **state)
{
    tide_atomic_file file;
    assert_int_equal(tide_atomic_file_open("test", path_in_folder("no/such"), &file), TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), "no/such"));
    assert_int_equal(tide_atomic_file_open("test", folder, &file), TIDE_ERROR_IO);
    assert_ok(tide_atomic_file_open("test", "/dev/full", &file));
    fputs("lost", file.stream);
    assert_int_equal(tide_atomic_file_finish(&file), TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), "No space left"));
    assert_empty();
}

static void memory_that_runs_out_leaves_nothing(void **state)
{
    bool failed = true;
    for (unsigned request = 0; failed; request++) {
        tide_atomic_file file;
        fake_memory_fail(request);
        const tide_status status = tide_atomic_file_open("test", path_in_folder("file"), &file);
        failed = fake_memory_failed();
        fake_memory_clear();
        assert_int_equal(status, failed ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
        if (!failed)
            tide_atomic_file_abandon(&file);
        assert_empty();
    }
}

static int folder_make(void **state)
{
    return mkdtemp(folder) == NULL;
}

static int folder_remove(void **state)
{
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_as_before_until_it_is_finished),
        cmocka_unit_test(a_new_file_has_the_mode_of_the_old_one),
        cmocka_unit_test(the_file_behind_a_link_is_replaced),
        cmocka_unit_test(a_file_that_cannot_be_is_refused),
        cmocka_unit_test(memory_that_runs_out_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
