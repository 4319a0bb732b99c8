/* The option table of `tidepool plan`, and the rest of its man page. */
#include "tools/page.h"
#include "tools/plan/plan_options.h"
#include "tools/train/run_options.h"

#define AT(field) offsetof(tide_plan_settings, field)
#define RUN       AT(run)

/* clang-format off */ /* one entry a paragraph */
static const tide_option options[] = {
    {.help = "the run, as of tidepool train"},
    {.name = "--model", .kind = TIDE_OPTION_TEXT, .offset = TIDE_RUN_AT(RUN, model), .metavar = "NAME|PATH",
     .words = TIDE_PRESETS,
     .help = TIDE_PRESETS ", or a Hugging Face folder (config.json, safetensors) of a GPT-2, Llama, Mistral, Qwen2 or Qwen3 to begin "
             "with; of a config.json by itself the sizes count, and initial values"},
    TIDE_PLANNED_STEP(RUN),

    {.help = "memory and device"},
    TIDE_RUN_MACHINE(AT(machine)),
    TIDE_RUN_RAM(AT(ram_bytes)),
    TIDE_PLANNED_DEVICE(RUN),
    TIDE_PLANNED_CHOICE(RUN),

    {.help = "what is asked"},
    {.name = "--largest", .kind = TIDE_OPTION_FLAG, .offset = AT(largest),
     .help = "the largest model of --model's family that fits"},
    {.name = "--compare", .kind = TIDE_OPTION_TEXT, .offset = AT(compare), .metavar = "SIZE[+SIZE],...", .value_help = "none",
     .help = "budgets side by side: device memory, and host memory behind a +"},
    {.name = "--accounting", .kind = TIDE_OPTION_CHOICE, .offset = AT(accounting), .metavar = "none|zero|tidepool|patrickstar",
     .value = "none",
     .help = "bytes of model data a rank in closed form: ZeRO's three stages, ours, or PatrickStar's"},
    {.name = "--ranks", .kind = TIDE_OPTION_COUNT, .offset = AT(ranks), .metavar = "N",
     .least = 1, .most = 1000000, .value = "1",
     .help = "processes, each with a GPU, among which the model is divided (ZeRO); a plan's memory is "
             "that of one. Only stage 0 trains so far; at most 1024 but for --accounting"},
    {.name = "--zero-stage", .kind = TIDE_OPTION_COUNT32, .metavar = "S", .most = 3, .value = "3",
     .offset = TIDE_RUN_AT(RUN, trainer.pool.ranks.zero_stage),
     .help = "with --ranks: 0: every rank has all; 2 (and 1): params are gathered once a step; 3: as often "
             "as memory asks"},
    {.name = "--reshard-after-forward", .kind = TIDE_OPTION_CHOICE, .metavar = "auto|on|off", .value = "auto",
     .offset = TIDE_RUN_AT(RUN, trainer.pool.ranks.reshard),
     .help = "of stage 3: on keeps no gathered params longer than needed, off keeps all to the step's end"},
    {.name = "--params", .kind = TIDE_OPTION_REAL, .offset = AT(params), .metavar = "X", .least = 1, .most = 1e15,
     .value_help = "the model's", .help = "parameters for --accounting, as in 7.5e9"},
    {.name = "--json", .kind = TIDE_OPTION_FLAG, .offset = AT(json), .help = "one line of JSON"},
};
/* clang-format on */

const tide_option_table tide_plan_table = {
    .command = "tidepool plan",
    .summary = "usage: tidepool plan --model NAME|PATH [--machine this|FILE|PRESET] [OPTIONS]\n\n"
               "Tells before a run where its bytes lie, whether it fits, how long a step takes, and what "
               "would help.",
    .options = options,
    .count = sizeof options / sizeof options[0],
};

static const tide_option_table *const tables[] = {&tide_plan_table};

const tide_page tide_plan_page = {
    .name = "plan",
    .title = "know before you run: memory, time, and what would help",
    .tables = tables,
    .table_count = 1,
    .description = "The memory is the run's own: the trainer is made, on a device without data, so that what "
                   "fits here runs, "
                   "and what is refused is refused by the same code with the same figures. Time is virtual: "
                   "the manager that "
                   "trains plays steps, whose kernels, copies and updates take as long as they do on the "
                   "machine, until steps repeat.\n\n"
                   "A step is bound by what is busiest: compute, a direction of the link, the optimizer on "
                   "the host or on the device. "
                   "Offloading costs nothing where compute covers the others: that batch is told, and the "
                   "three changes that give the "
                   "most tokens a second, each as predicted. A run that does not fit is told three ways out, "
                   "each tried.\n\n"
                   "A machine is measured once (`--machine this`): rates, how streams slow each other, AdamW "
                   "by threads, and the "
                   "kernels of each model that is asked about, by training two of its blocks. By published "
                   "figures (a preset) nothing is "
                   "measured, and the plan says so.\n\n"
                   "With `--ranks` the plan is that of one of several ranks under ZeRO: the chunks that "
                   "it owns, frames in which those of the others are gathered, and the bytes between "
                   "ranks in a step. Times are not predicted then.\n\n"
                   "`--accounting zero` is the table of ZeRO's paper (Rajbhandari et al. 2020): 2 bytes of "
                   "params, 2 of gradients and 12 of "
                   "optimizer state, divided among ranks by its stages.",
    .statuses = "0\tthe run fits, or one of several does\n"
                "1\tit does not fit, or a failure; a line says why\n"
                "2\ta command line that makes no sense; one line on standard error says what would",
    .environment =
        "XDG_CACHE_HOME\twhere measured machines are kept, in `tidepool/machine-DEVICE-THREADS.json`; else "
        "~/.cache\n"
        "TIDEPOOL_MODULES\ta folder in which the CUDA module, libtidepool_cuda.so, is looked for first",
    .files = "~/.cache/tidepool/machine-host-8.json\tthis machine, as measured on the emulated device with 8 "
             "threads; "
             "machine-cuda-0-8.json on a GPU. Removed, it is measured anew",
    .examples = "This machine:\n\n"
                "    tidepool plan --model gpt2 --device-memory 600MiB --chunk-size 16MiB\n\n"
                "An 8 B model on a card of 24 GB, in a machine of 128 GiB:\n\n"
                "    tidepool plan --model llama-3.1-8b --machine rtx4090 --ram 128GiB --seq-len 4096\n\n"
                "10^12 parameters on 1024 GPUs:\n\n"
                "    tidepool plan --model gpt-1t --ranks 1024 --machine h100 --device-memory 80GiB "
                "--host-memory 128GiB\n\n"
                "ZeRO's published table:\n\n"
                "    tidepool plan --accounting zero --params 7.5e9 --ranks 64",
};
