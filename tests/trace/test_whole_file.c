/* Output files are complete or unchanged: a file that is abandoned, links, paths that can't be written. */
#include "tests/support/assert_ok.h"
#include "tools/trace/whole_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/tidepool-whole-file-XXXXXX";

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

static void written(const char *path, const char *content)
{
    tide_whole_file file;
    assert_ok(tide_whole_file_open(path, &file));
    fputs(content, file.stream);
    assert_ok(tide_whole_file_finish(&file));
}

static void a_file_is_as_before_until_it_is_finished(void **state)
{
    (void)state;
    tide_whole_file file;
    const char *path = path_in_folder("file");
    written(path, "before");
    assert_ok(tide_whole_file_open(path, &file));
    fputs("after", file.stream);
    fflush(file.stream);
    assert_content(path, "before");
    tide_whole_file_abandon(&file);
    assert_content(path, "before");
    written(path, "after");
    assert_content(path, "after");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else was left there */
    assert_int_equal(mkdir(folder, 0777), 0);
}

static void what_stands_behind_a_link_is_written(void **state)
{
    (void)state;
    struct stat about;
    char target[128], link_path[128];
    snprintf(target, sizeof target, "%s", path_in_folder("target"));
    snprintf(link_path, sizeof link_path, "%s", path_in_folder("link"));
    written(target, "before");
    assert_int_equal(symlink("target", link_path), 0);
    written(link_path, "after");
    assert_content(target, "after");
    assert_int_equal(lstat(link_path, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    unlink(link_path);
    unlink(target);
}

static void a_file_that_cannot_be_is_refused(void **state)
{
    (void)state;
    tide_whole_file file;
    assert_int_equal(tide_whole_file_open(path_in_folder("no/such"), &file), TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), "no/such"));
    assert_int_equal(tide_whole_file_open(folder, &file), TIDE_ERROR_IO);
    assert_ok(tide_whole_file_open("/dev/full", &file));
    fputs("lost", file.stream);
    assert_int_equal(tide_whole_file_finish(&file), TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), "No space left"));
}

static int folder_make(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int folder_remove(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_as_before_until_it_is_finished),
        cmocka_unit_test(what_stands_behind_a_link_is_written),
        cmocka_unit_test(a_file_that_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
