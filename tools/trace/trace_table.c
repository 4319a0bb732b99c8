/* The tables of options of `tidepool trace`, one for each subcommand, and the rest of its man page (see
 * train_table.c). A new subcommand needs its settings in trace_options.h, a table and a line in `tables`
 * here, and a line in trace.c. */
#include "tools/page.h"
#include "tools/trace/trace_options.h"

static const tide_option summary[] = {
    {.name = "FILE",
     .kind = TIDE_OPTION_TEXTS,
     .operand = true,
     .required = true,
     .offset = offsetof(tide_trace_summary_settings, files),
     .help =
         "the trace of a run (tidepool train --trace FILE); or those of its ranks, FILE.rank-0 and so on"},
};

const tide_option_table tide_trace_summary_options = {
    .command = "tidepool trace summary",
    .title = "one screen: where the time went, what moved, why compute waited",
    .summary = "usage: tidepool trace summary FILE...\n\n"
               "One screen: where a step's time went, what moved, why compute waited. For the traces of\n"
               "several ranks of one run: where the time of each went, side by side.",
    .options = summary,
    .count = sizeof summary / sizeof summary[0],
};

static const tide_option html[] = {
    {.name = "FILE",
     .kind = TIDE_OPTION_TEXT,
     .operand = true,
     .required = true,
     .offset = offsetof(tide_trace_html_settings, file),
     .help = "the trace of a run (tidepool train --trace FILE)"},
    {.name = "-o",
     .kind = TIDE_OPTION_TEXT,
     .required = true,
     .metavar = "PATH",
     .offset = offsetof(tide_trace_html_settings, output),
     .help = "page to write; it needs nothing beside it"},
    {.name = "--steps",
     .kind = TIDE_OPTION_TEXT,
     .metavar = "A-B",
     .offset = offsetof(tide_trace_html_settings, steps),
     .value_help = "all in the trace",
     .help = "training steps to show, the first and the last, or one"},
};

const tide_option_table tide_trace_html_options = {
    .command = "tidepool trace html",
    .title = "a page that draws it: where each chunk was, why compute waited",
    .summary = "usage: tidepool trace html FILE -o PATH [--steps A-B]\n\n"
               "Writes a page that draws the trace: where each chunk was, and why compute waited.",
    .options = html,
    .count = sizeof html / sizeof html[0],
};

static const tide_option perfetto[] = {
    {.name = "FILE",
     .kind = TIDE_OPTION_TEXTS,
     .operand = true,
     .required = true,
     .offset = offsetof(tide_trace_perfetto_settings, files),
     .help = "the trace; or those of several ranks of one run, each of which becomes a process"},
    {.name = "-o",
     .kind = TIDE_OPTION_TEXT,
     .required = true,
     .metavar = "PATH",
     .offset = offsetof(tide_trace_perfetto_settings, out),
     .help = "JSON file to write, which ui.perfetto.dev opens"},
};

const tide_option_table tide_trace_perfetto_options = {
    .command = "tidepool trace perfetto",
    .title = "a file for ui.perfetto.dev: streams, slots, what waited for what",
    .summary =
        "usage: tidepool trace perfetto FILE... -o PATH\n\n"
        "Writes Chrome's JSON trace events, which ui.perfetto.dev opens: a track for each stream and each "
        "slot,\n"
        "arrows from copies to the ops that needed them, memory and link as counters.",
    .options = perfetto,
    .count = sizeof perfetto / sizeof perfetto[0],
};

static const tide_option diff[] = {
    {.name = "A",
     .kind = TIDE_OPTION_TEXT,
     .operand = true,
     .required = true,
     .offset = offsetof(tide_trace_diff_settings, files[0]),
     .help = "the trace to compare with"},
    {.name = "B",
     .kind = TIDE_OPTION_TEXT,
     .operand = true,
     .required = true,
     .offset = offsetof(tide_trace_diff_settings, files[1]),
     .help = "the trace that is compared"},
    {.name = "--tolerance",
     .kind = TIDE_OPTION_REAL,
     .metavar = "PERCENT",
     .value = "5",
     .least = 0,
     .most = 1000,
     .offset = offsetof(tide_trace_diff_settings, tolerance),
     .help = "exit status 3 if B's median step is slower than A's by more"},
};

const tide_option_table tide_trace_diff_options = {
    .command = "tidepool trace diff",
    .title = "what another run does otherwise: time, bytes, stalls; status 3 if slower",
    .summary =
        "usage: tidepool trace diff A B [--tolerance PERCENT]\n\n"
        "What B does otherwise than A: time, bytes, chunks, stalls, step by step.\n"
        "Exit status: 0; 3 if B is slower by more than the tolerance; 1 if a file is no trace; 2 for usage.",
    .options = diff,
    .count = sizeof diff / sizeof diff[0],
};

static const tide_option_table *const tables[] = {
    &tide_trace_summary_options,
    &tide_trace_html_options,
    &tide_trace_perfetto_options,
    &tide_trace_diff_options,
};

const tide_page tide_trace_page = {
    .name = "trace",
    .title = "what the trace of a run tells: where the time went, what moved and why",
    .tables = tables,
    .table_count = sizeof tables / sizeof tables[0],
    .description =
        "A run of `tidepool train --trace FILE` writes what happens to every chunk: where it is, "
        "what moves it, and what compute waits for. These commands read such a file. One that is "
        "damaged, or none, is told in one line, with the number of the line that is wrong; control "
        "characters in its names show as question marks.",
    .statuses = "0\tdone\n"
                "1\ta failure, or a file that is no trace; one line on standard error tells it\n"
                "2\ta command line that makes no sense; one line on standard error says what would\n"
                "3\tdiff: B is slower than A by more than --tolerance",
    .files = "FILE\tJSON Lines; share/doc/tidepool/trace.md describes them\n"
             "FILE.rank-R\tthe trace of rank R of a run of several\n"
             "FILE.step-N\tthe steps of a run that was killed; they are read with FILE",
    .examples = "    tidepool train --model gpt2 --data book.txt --steps 20 --trace run.trace\n"
                "    tidepool trace summary run.trace\n"
                "    tidepool trace html run.trace -o run.html\n"
                "    tidepool trace perfetto run.trace -o run.json\n"
                "    tidepool trace summary run.trace.rank-*\n"
                "    tidepool trace diff before.trace run.trace --tolerance 2",
};
