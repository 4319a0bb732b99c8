/* The option table of `tidepool info`, and the rest of its man page. */
#include "tools/info/info_options.h"
#include "tools/page.h"

static const tide_option options[] = {
    {.name = "--json",
     .kind = TIDE_OPTION_FLAG,
     .offset = offsetof(tide_info_settings, json),
     .help = "one line of JSON"},
    {.name = "--device",
     .kind = TIDE_OPTION_TEXT,
     .offset = offsetof(tide_info_settings, device),
     .metavar = "auto|host|cuda:N",
     .value = "auto",
     .help = "what to measure; auto: the first GPU that can be used, else the emulated device on the host"},
    {.name = "--threads",
     .kind = TIDE_OPTION_COUNT,
     .offset = offsetof(tide_info_settings, threads),
     .metavar = "N",
     .least = 1,
     .most = 1024,
     .value_help = "as in training",
     .help = "threads to measure with"},
};

const tide_option_table tide_info_table = {
    .command = "tidepool info",
    .summary = "usage: tidepool info [--json] [--device DEVICE]\n\nMeasures for about a second.",
    .options = options,
    .count = sizeof options / sizeof options[0],
};

static const tide_option_table *const tables[] = {&tide_info_table};

const tide_page tide_info_page = {
    .name = "info",
    .title = "this machine, its measured rates, and what this build has",
    .tables = tables,
    .table_count = 1,
    .description =
        "Tells of the processor, the memory and the NUMA nodes; of the GPUs, or why there are none; of the "
        "instructions that kernels use; of the rates of products, memory, the optimizer and the link; and of "
        "the libraries that this build was made with. What predictions go by is measured more closely, and "
        "kept: see tidepool-plan(1). Where memory is too little to measure in, it says so and tells the "
        "rest.",
    .statuses = "0\tdone\n"
                "1\ta failure; one line on standard error tells it\n"
                "2\ta command line that makes no sense; one line on standard error says what would",
    .environment =
        "TIDEPOOL_MODULES\ta folder in which the CUDA module, libtidepool_cuda.so, is looked for first\n"
        "ONEDNN_MAX_CPU_ISA\tthe widest instructions that kernels on the CPU use, oneDNN's and the others: "
        "`SSE41`, `AVX2`, `AVX512_CORE`, `AVX512_CORE_BF16` ...; where oneDNN is built in",
    .examples = "    tidepool info\n\n"
                "For a program:\n\n"
                "    tidepool info --json --device host",
};
