#include "tools/tune/tune_options.h"

#include "tools/tune/choice_text.h"
#include "tools/units.h"

#include <string.h>

static const tide_option_table *const table = &tide_tune_table;

static tide_status check(const tide_tune_settings *settings)
{
    const bool is_this = strcmp(settings->machine, "this") == 0;
    if (!is_this && settings->confirm != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tidepool tune: --machine %s needs --confirm 0: real steps are made on this machine",
                         settings->machine);
    return tide_train_settings_plan_check(&settings->run, "tidepool tune");
}

tide_status tide_tune_settings_parse(int count, char *const *arguments, tide_tune_settings *settings)
{
    bool given[TIDE_OPTIONS_MAX] = {false};
    tide_tune_settings parsed = {0};
    tide_train_settings_default(&parsed.run);
    tide_status status = tide_options_parse(table, count, arguments, &parsed, given);
    if (status == TIDE_OK)
        status = check(&parsed);
    if (status == TIDE_OK)
        status = tide_train_settings_find_weights(&parsed.run);
    if (status != TIDE_OK)
        return status;
    parsed.run.given = tide_train_settings_given(table, given);
    *settings = parsed;
    return TIDE_OK;
}

/* ---- the command that trains ---- */

static const tide_option *option_named(const tide_option_table *of, const char *argument)
{
    const size_t length = strcspn(argument, "=");
    for (size_t i = 0; i < of->count; i++) {
        const char *name = of->options[i].name;
        if (name != NULL && strlen(name) == length && strncmp(name, argument, length) == 0)
            return &of->options[i];
    }
    return NULL;
}

/* Writes a word, quoted for a shell if necessary. */
static void word_write(const char *word, FILE *out)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,%@";
    fputc(' ', out);
    if (*word != '\0' && strspn(word, plain) == strlen(word)) {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word != '\0'; word++)
        fputs(*word == '\'' ? "'\\''" : (const char[]){*word, '\0'}, out);
    fputc('\'', out);
}

/* Whether the printed command leaves the option out, because the chosen one replaces it or only the search
 * uses it. */
static bool is_left_out(const char *name)
{
    return strcmp(name, "--machine") == 0 || strcmp(name, "--ram") == 0 ||
           strcmp(name, "--chunk-size") == 0 || strcmp(name, "--recompute") == 0 ||
           strcmp(name, "--optimizer-placement") == 0 || strcmp(name, "--prefetch") == 0;
}

static bool has_option(int count, char *const *arguments, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strncmp(arguments[i], name, strlen(name)) == 0 && strchr("=", arguments[i][strlen(name)]) != NULL)
            return true;
    return false;
}

static void budget_write(int count, char *const *arguments, const char *name, uint64_t bytes, FILE *out)
{
    char size[TIDE_UNITS_TEXT_BYTES];
    if (!has_option(count, arguments, name))
        fprintf(out, " %s %s", name, tide_size_format_exact(bytes, size));
}

void tide_tune_command_write(int count, char *const *arguments, const tide_candidate *candidate,
                             bool with_budgets, FILE *out)
{
    fputs("tidepool train", out);
    for (int i = 0; i < count; i++) {
        const tide_option *option = option_named(table, arguments[i]);
        const bool apart = option != NULL && option->kind != TIDE_OPTION_FLAG &&
                           strchr(arguments[i], '=') == NULL && i + 1 < count;
        if (option != NULL && option_named(&tide_train_table, option->name) != NULL &&
            !is_left_out(option->name)) {
            word_write(arguments[i], out);
            if (apart)
                word_write(arguments[i + 1], out);
        }
        i += apart;
    }
    if (!has_option(count, arguments, "--data"))
        fputs(" --data PATH", out);
    if (with_budgets) {
        budget_write(count, arguments, "--device-memory",
                     candidate->performance.plan.pool.device_memory_bytes, out);
        budget_write(count, arguments, "--host-memory", candidate->performance.plan.pool.host_memory_bytes,
                     out);
    }
    tide_choice_write(&candidate->choice, out);
}
