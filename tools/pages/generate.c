/* tidepool --generate: chooses the writer of the page. */
#include "tools/pages/pages.h"

#include <string.h>

bool tide_pages_generate(const char *form, const char *command, FILE *out)
{
    const bool is_man = strcmp(form, "man") == 0, is_bash = strcmp(form, "bash") == 0;
    for (size_t i = 0; is_man && i < tide_page_count; i++)
        if (strcmp(command, tide_pages[i]->name) == 0) {
            tide_man_write(tide_pages[i], out);
            return true;
        }
    if (*command != '\0' || !(is_bash || strcmp(form, "zsh") == 0))
        return false;
    (is_bash ? tide_bash_write : tide_zsh_write)(out);
    return true;
}
