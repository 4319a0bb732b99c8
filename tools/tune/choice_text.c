#include "tools/tune/choice_text.h"

#include "tools/units.h"

const char *tide_recompute_word(tide_recompute recompute)
{
    static const char *const words[] = {"auto", "none", "all"};
    return words[recompute];
}

const char *tide_placement_word(tide_placement placement)
{
    static const char *const words[] = {"auto", "host", "device"};
    return words[placement];
}

void tide_choice_write(const tide_choice *choice, FILE *out)
{
    char size[TIDE_UNITS_TEXT_BYTES];
    fprintf(out, " --chunk-size %s", tide_size_format_exact(choice->chunk_bytes, size));
    if (choice->recompute != TIDE_RECOMPUTE_AUTO)
        fprintf(out, " --recompute %s", tide_recompute_word(choice->recompute));
    if (choice->placement != TIDE_PLACEMENT_AUTO)
        fprintf(out, " --optimizer-placement %s", tide_placement_word(choice->placement));
    if (!choice->prefetch)
        fprintf(out, " --prefetch off");
}
