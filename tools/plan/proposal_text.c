#include "tools/plan/proposal_text.h"

#include "tools/tune/choice_text.h"
#include "tools/units.h"

#include <stdio.h>
#include <string.h>

static const char *recompute_what(tide_recompute recompute)
{
    return recompute == TIDE_RECOMPUTE_NONE ? "no block computed again" : "all blocks computed again";
}

void tide_proposal_what(const tide_proposal *proposal, const tide_model_config *model,
                        char text[TIDE_PROPOSAL_TEXT_BYTES])
{
    const bool is_faster = proposal->step_seconds > 0;
    const unsigned long long value = proposal->value;
    char size[TIDE_UNITS_TEXT_BYTES];
    const size_t bytes = TIDE_PROPOSAL_TEXT_BYTES;
    switch (proposal->change) {
    case TIDE_CHANGE_BATCH:
        snprintf(text, bytes, "%s", is_faster ? "a batch twice as large" : "a smaller batch");
        break;
    case TIDE_CHANGE_MICRO_BATCH:
        snprintf(text, bytes, "micro-batches twice as large");
        break;
    case TIDE_CHANGE_CLIP:
        snprintf(text, bytes, "no clipping: updates run during backward");
        break;
    case TIDE_CHANGE_DEVICE_MEMORY:
        snprintf(text, bytes, is_faster ? "%s more device memory%s" : "a device budget of %s%s",
                 tide_size_format(is_faster ? proposal->more_bytes : value, size),
                 proposal->needs_larger_gpu ? ", on a larger GPU" : "");
        break;
    case TIDE_CHANGE_CHUNK_SIZE:
        snprintf(text, bytes, is_faster ? "chunks of %s" : "smaller chunks", tide_size_format(value, size));
        break;
    case TIDE_CHANGE_RECOMPUTE:
        snprintf(text, bytes, "%s", recompute_what((tide_recompute)value));
        break;
    case TIDE_CHANGE_PLACEMENT:
        snprintf(text, bytes, "the optimizer's place: %s", tide_placement_word((tide_placement)value));
        break;
    case TIDE_CHANGE_PREFETCH:
        snprintf(text, bytes, "prefetch");
        break;
    case TIDE_CHANGE_LINK:
        snprintf(text, bytes, "a link twice as fast");
        break;
    case TIDE_CHANGE_HOST_ADAM:
        snprintf(text, bytes, "an optimizer on the host twice as fast");
        break;
    case TIDE_CHANGE_HOST_MEMORY:
        snprintf(text, bytes, "a host budget of %s", tide_size_format(value, size));
        if (proposal->is_share)
            snprintf(text + strlen(text), bytes - strlen(text), ", which is four fifths of %s of memory",
                     tide_size_format(value / 4 * 5, size));
        break;
    case TIDE_CHANGE_FREEZE:
        snprintf(text, bytes, "the first %llu of %u blocks not trained", value, model->layers);
        break;
    default:
        snprintf(text, bytes, "shorter sequences");
        break;
    }
}

static void freeze_option(uint32_t blocks, const tide_model_config *model,
                          char text[TIDE_PROPOSAL_OPTION_BYTES])
{
    char pattern[TIDE_FREEZE_PATTERN_BYTES];
    text[0] = '\0';
    for (uint32_t decade = 0; 10 * decade < blocks; decade++) {
        const size_t length = strlen(text);
        tide_freeze_pattern(model, decade, pattern);
        snprintf(text + length, TIDE_PROPOSAL_OPTION_BYTES - length, "%s--freeze '%s'", decade > 0 ? " " : "",
                 pattern);
    }
}

void tide_proposal_option(const tide_proposal *proposal, const tide_model_config *model,
                          char text[TIDE_PROPOSAL_OPTION_BYTES])
{
    const unsigned long long value = proposal->value;
    char size[TIDE_UNITS_TEXT_BYTES];
    const size_t bytes = TIDE_PROPOSAL_OPTION_BYTES;
    text[0] = '\0';
    switch (proposal->change) {
    case TIDE_CHANGE_BATCH:
        snprintf(text, bytes, "--batch-tokens %llu --micro-batch %u", value, proposal->micro_batch_sequences);
        break;
    case TIDE_CHANGE_MICRO_BATCH:
        snprintf(text, bytes, "--micro-batch %llu", value);
        break;
    case TIDE_CHANGE_CLIP:
        snprintf(text, bytes, "--clip 0");
        break;
    case TIDE_CHANGE_DEVICE_MEMORY:
        if (!proposal->needs_larger_gpu)
            snprintf(text, bytes, "--device-memory %s", tide_size_format_exact(value, size));
        break;
    case TIDE_CHANGE_CHUNK_SIZE:
        snprintf(text, bytes, "--chunk-size %s", tide_size_format_exact(value, size));
        break;
    case TIDE_CHANGE_RECOMPUTE:
        snprintf(text, bytes, "--recompute %s", tide_recompute_word((tide_recompute)value));
        break;
    case TIDE_CHANGE_PLACEMENT:
        snprintf(text, bytes, "--optimizer-placement %s", tide_placement_word((tide_placement)value));
        break;
    case TIDE_CHANGE_PREFETCH:
        snprintf(text, bytes, "--prefetch on");
        break;
    case TIDE_CHANGE_HOST_MEMORY:
        snprintf(text, bytes, "--host-memory %s", tide_size_format_exact(value, size));
        break;
    case TIDE_CHANGE_FREEZE:
        freeze_option((uint32_t)value, model, text);
        break;
    case TIDE_CHANGE_SEQUENCE:
        snprintf(text, bytes, "--seq-len %llu --batch-tokens %llu --micro-batch %u", value,
                 (unsigned long long)proposal->global_batch_tokens, proposal->micro_batch_sequences);
        break;
    default:
        break;
    }
}
