/* A choice of chunk size, recompute, placement and prefetch, as words and as options. */
#ifndef TIDE_TOOLS_CHOICE_TEXT_H
#define TIDE_TOOLS_CHOICE_TEXT_H

#include "src/perf/tune.h"

#include <stdio.h>

const char *tide_recompute_word(tide_recompute recompute); /* "auto", "none", "all" */
const char *tide_placement_word(tide_placement placement); /* "auto", "host", "device" */

/* Write " --chunk-size 16MiB --recompute none": the chunk size, and every option that differs from train's
 * default. */
void tide_choice_write(const tide_choice *choice, FILE *out);

#endif
