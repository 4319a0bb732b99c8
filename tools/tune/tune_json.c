#include "tools/tune/tune_json.h"

#include "base/json_line.h"
#include "tools/tune/choice_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHOICE_BYTES = 640, BYTES_BESIDE = 16384, ESCAPED_BYTES = 6 };

static void choice_json(tide_json_line *line, const tide_candidate *candidate, const tide_confirmed *real)
{
    const tide_choice *choice = &candidate->choice;
    const tide_performance *performance = &candidate->performance;
    const bool is_confirmed = real->steps > 0;
    tide_json_open(line, NULL, '{');
    tide_json_count(line, "chunk_bytes", choice->chunk_bytes);
    tide_json_text(line, "recompute", tide_recompute_word(choice->recompute));
    tide_json_text(line, "optimizer_placement", tide_placement_word(choice->placement));
    tide_json_bool(line, "prefetch", choice->prefetch);
    tide_json_bool(line, "fits", candidate->fits);
    if (candidate->fits) {
        tide_json_count(line, "recomputed_blocks", performance->plan.recomputed_blocks);
        tide_json_real(line, "step_seconds", performance->step.seconds);
        tide_json_real(line, "stall_seconds", performance->step.stall_seconds);
        tide_json_real(line, "tokens_per_second", performance->tokens_per_second);
        tide_json_text(line, "bound", tide_resource_name(performance->bound));
        tide_json_real(line, "real_step_seconds", is_confirmed ? real->step_seconds : NAN);
        tide_json_real(line, "real_stall_seconds", is_confirmed ? real->stall_seconds : NAN);
    }
    tide_json_close(line, '}');
}

static void others_json(tide_json_line *line, const tide_tuned *tuned)
{
    tide_json_open(line, "other_results", '[');
    for (uint32_t i = 0; i < tuned->other_count; i++) {
        char what[TIDE_PROPOSAL_TEXT_BYTES], option[TIDE_PROPOSAL_OPTION_BYTES];
        tide_proposal_what(&tuned->others[i], NULL, what);
        tide_proposal_option(&tuned->others[i], NULL, option);
        tide_json_open(line, NULL, '{');
        tide_json_text(line, "what", what);
        tide_json_text(line, "option", option);
        tide_json_real(line, "gain", tuned->others[i].gain);
        tide_json_close(line, '}');
    }
    tide_json_close(line, ']');
}

static bool tuned_json(const tide_tuned *tuned, char *text, size_t bytes)
{
    const tide_machine_profile *profile = &tuned->machine->profile;
    tide_json_line line;
    tide_json_begin(&line, text, bytes);
    tide_json_open(&line, NULL, '{');
    tide_json_text(&line, "model", tuned->model);
    tide_json_text(&line, "machine", profile->name);
    tide_json_text(&line, "source", profile->source);
    tide_json_bool(&line, "measured", profile->measured);
    tide_json_text(&line, "device", tuned->machine->device);
    tide_json_text(&line, "no_gpu", tuned->machine->no_gpu);
    tide_json_bool(&line, "stopped", tuned->stopped);
    tide_json_open(&line, "choices", '[');
    for (uint32_t i = 0; i < tuned->count; i++)
        choice_json(&line, &tuned->candidates[i], &tuned->confirmed[i]);
    tide_json_close(&line, ']');
    if (tuned->command != NULL) {
        tide_json_count(&line, "best", tuned->best);
        tide_json_text(&line, "command", tuned->command);
        others_json(&line, tuned);
    }
    tide_json_close(&line, '}');
    return tide_json_end(&line);
}

tide_status tide_tune_print_json(const tide_tuned *tuned, FILE *out)
{
    const size_t bytes = BYTES_BESIDE + tuned->count * (size_t)CHOICE_BYTES +
                         ESCAPED_BYTES * (tuned->command != NULL ? strlen(tuned->command) : 0);
    char *text = malloc(bytes);
    if (text == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a search as JSON (%zu bytes)", bytes);
    const bool whole = tuned_json(tuned, text, bytes);
    if (whole)
        fputs(text, out);
    free(text);
    return whole ? TIDE_OK
                 : tide_fail(TIDE_ERROR_INTERNAL, "%zu bytes are too few for a search as JSON", bytes);
}
