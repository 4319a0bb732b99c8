/* Writes proposals (src/perf/advice.h) in words, and as the options that make the change. */
#ifndef TIDE_TOOLS_PROPOSAL_TEXT_H
#define TIDE_TOOLS_PROPOSAL_TEXT_H

#include "src/perf/advice.h"

enum { TIDE_PROPOSAL_TEXT_BYTES = 160, TIDE_PROPOSAL_OPTION_BYTES = 640 };

/* "a batch twice as large". `model` is read for proposals that make a run fit; for others it may be NULL. */
void tide_proposal_what(const tide_proposal *proposal, const tide_model_config *model,
                        char text[TIDE_PROPOSAL_TEXT_BYTES]);

/* "--batch-tokens 65536"; "" if the proposal is another machine. `model` as above. */
void tide_proposal_option(const tide_proposal *proposal, const tide_model_config *model,
                          char text[TIDE_PROPOSAL_OPTION_BYTES]);

#endif
