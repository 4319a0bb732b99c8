/* The option table of `tidepool train` (names, kinds, ranges, defaults, help) and the rest of its man page.
 * The program that generates the pages links this file, too, without a trainer. */
#include "tools/page.h"
#include "tools/train/run_options.h"
#include "tools/train/train_options.h"

#define AT(field)    offsetof(tide_train_settings, field)
#define HYPER(field) AT(trainer.hyper.field)

/* clang-format off */ /* one entry a paragraph */
static const tide_option options[] = {
    {.help = "model and data"},
    TIDE_RUN_MODEL(AT(model)),
    {.name = "--data", .kind = TIDE_OPTION_TEXT, .offset = AT(trainer.data), .metavar = "PATH",
     .value_help = "none; needed unless --device null",
     .help = "a text file (its bytes are the tokens), a shard of tidepool-tokenize or in llm.c's formats "
             "(uint16 or uint32 tokens), or a folder of shards (*.bin), of which files named val beside "
             "others named train are the validation data"},
    TIDE_RUN_DATA_FORMAT(AT(trainer.data_encoding)),
    {.name = "--eval-data", .kind = TIDE_OPTION_TEXT, .offset = AT(trainer.eval_data), .metavar = "PATH",
     .value_help = "files named val, or else the last 5% of --data, held out",
     .help = "validation data, a file or a folder as of --data; then no part of --data is held out for it"},
    {.name = "--packing", .kind = TIDE_OPTION_CHOICE, .offset = AT(trainer.packing), .metavar = "auto|on|off",
     .value = "auto",
     .help = "pack whole documents into sequences, in which attention and positions begin anew at each; "
             "auto: where shards say where documents begin; off: documents follow each other as one text"},
    {.name = "--long", .kind = TIDE_OPTION_CHOICE, .offset = AT(long_documents), .metavar = "cut|drop",
     .value = "cut",
     .help = "packed: documents longer than a sequence are cut into parts, or left out"},
    {.name = "--any-tokenizer", .kind = TIDE_OPTION_FLAG, .offset = AT(trainer.any_tokenizer),
     .help = "take shards that were made with another tokenizer than the --model folder's"},
    TIDE_RUN_SEQ_LEN(AT(trainer.seq_len)),
    TIDE_RUN_VOCAB_SIZE(AT(vocab_size)),
    TIDE_RUN_DTYPE(AT(dtype)),
    {.name = "--seed", .kind = TIDE_OPTION_COUNT, .offset = AT(trainer.seed), .metavar = "N",
     .most = 9007199254740992.0, .value = "1",
     .help = "of initial values, data order and samples"},

    {.help = "training"},
    {.name = "--steps", .kind = TIDE_OPTION_COUNT, .offset = HYPER(schedule.steps), .metavar = "N",
     .least = 1, .most = 1e12, .value = "1000",
     .help = "where the run and its schedule end"},
    {.name = "--epochs", .kind = TIDE_OPTION_COUNT, .offset = AT(trainer.epochs), .metavar = "N", .least = 1,
     .most = 1e9, .value_help = "not given: --steps counts",
     .help = "in place of --steps: go through the data so often; an epoch's last batch is filled up with padding"},
    TIDE_RUN_BATCH_TOKENS(AT(trainer.global_batch_tokens)),
    TIDE_RUN_MICRO_BATCH(AT(trainer.micro_batch_sequences)),
    TIDE_RUN_SUM_GROUPS(AT(trainer.sum_groups), "the checkpoint's, or "),
    TIDE_RUN_REDUCE(AT(trainer.reduce), "the checkpoint's, or "),
    {.name = "--lr", .kind = TIDE_OPTION_REAL, .offset = HYPER(schedule.lr), .metavar = "X", .most = 1000,
     .value = "6e-4",
     .help = "learning rate after warm-up; of a --model DIR 1e-5 where not given; 0: no step moves a param"},
    {.name = "--schedule", .kind = TIDE_OPTION_CHOICE, .offset = HYPER(schedule.shape),
     .metavar = "cosine|linear|constant|wsd", .value = "cosine",
     .help = "the learning rate after warm-up: down to --min-lr along a cosine or linearly, as it is, or as it is "
             "and linearly down in the last --decay-steps"},
    {.name = "--min-lr", .kind = TIDE_OPTION_REAL, .offset = HYPER(schedule.lr_min), .metavar = "X",
     .most = 1000, .value_help = "a tenth of --lr", .help = "learning rate of the last step; not with --schedule constant"},
    {.name = "--decay-steps", .kind = TIDE_OPTION_COUNT, .offset = HYPER(schedule.decay_steps), .metavar = "N",
     .least = 1, .most = 1e12, .value_help = "a tenth of the steps",
     .help = "of --schedule wsd: the last ones, in which the learning rate goes down"},
    {.name = "--warmup", .kind = TIDE_OPTION_COUNT, .offset = HYPER(schedule.warmup_steps), .metavar = "N",
     .most = 1e12, .value_help = "a tenth of the steps, at most 100",
     .help = "steps of linear warm-up"},
    {.name = "--weight-decay", .kind = TIDE_OPTION_REAL, .offset = HYPER(weight_decay), .metavar = "X",
     .most = 1000, .value = "0.1",
     .help = "decoupled, on matrices and embeddings only; of a --model DIR 0 where not given"},
    {.name = "--beta1", .kind = TIDE_OPTION_REAL, .offset = HYPER(beta1), .metavar = "X", .most = 0.9999999,
     .value = "0.9",
     .help = "of AdamW: how much of the first moment stays at each update"},
    {.name = "--beta2", .kind = TIDE_OPTION_REAL, .offset = HYPER(beta2), .metavar = "X", .most = 0.9999999,
     .value = "0.95",
     .help = "of AdamW: how much of the second moment stays"},
    {.name = "--eps", .kind = TIDE_OPTION_REAL, .offset = HYPER(epsilon), .metavar = "X",
     .least = 1e-30, .most = 1, .value = "1e-8", .help = "of AdamW: added to the second moment's root"},
    TIDE_RUN_CLIP(HYPER(clip)),
    {.name = "--loss-scale", .kind = TIDE_OPTION_TEXT, .offset = AT(loss_scale), .metavar = "dynamic|N",
     .value_help = "dynamic with fp16, none with other dtypes",
     .help = "multiply the loss' gradient by it; dynamic: from 65536 on, half after an overflow, twice after 2000 steps"},
    TIDE_RUN_FREEZE(AT(freeze)),
    TIDE_RUN_RECOMPUTE(AT(trainer.recompute)),

    {.help = "memory and device"},
    {.name = "--device", .kind = TIDE_OPTION_TEXT, .offset = AT(device), .metavar = "auto|host|null|cuda:N",
     .value = "auto",
     .help = "auto: the first GPU that can be used, else host, the emulated device; null: predict, compute nothing"},
    TIDE_RUN_DEVICE_MEMORY(AT(trainer.pool.device_memory_bytes)),
    TIDE_RUN_HOST_MEMORY(AT(trainer.pool.host_memory_bytes)),
    TIDE_RUN_CHUNK_SIZE(AT(trainer.pool.chunk_bytes)),
    TIDE_RUN_PREFETCH(AT(trainer.pool.prefetch)),
    TIDE_RUN_OPTIMIZER_PLACEMENT(AT(trainer.pool.placement)),
    TIDE_RUN_LINK_BANDWIDTH(AT(trainer.pool.link_bytes_per_second)),
    TIDE_RUN_THREADS(AT(trainer.pool.threads)),
    {.name = "--auto", .kind = TIDE_OPTION_FLAG, .offset = AT(automatic),
     .help = "choose chunk size, recompute, prefetch and the optimizer's place by prediction, as far as they are not given; changes no bit"},

    {.help = "several ranks, each a process with all of the model"},
    {.name = "--ranks", .kind = TIDE_OPTION_COUNT32, .offset = AT(ranks), .metavar = "N", .least = 1,
     .most = 1024, .value = "1",
     .help = "start N processes on this machine, which share each batch and add their gradients; a "
             "result has the bits of one process with as many --sum-groups"},
    {.name = "--zero-stage", .kind = TIDE_OPTION_COUNT32, .metavar = "S", .most = 3,
     .offset = AT(trainer.pool.ranks.zero_stage), .value = "0",
     .help = "0: every rank has all params and their state; 1 to 3, which divide them, are not built"},
    {.name = "--master", .kind = TIDE_OPTION_TEXT, .offset = AT(master), .metavar = "HOST",
     .value_help = "MASTER_ADDR, or as Slurm says",
     .help = "rank 0's host, where torchrun, mpirun or srun has started the ranks"},
    {.name = "--port", .kind = TIDE_OPTION_COUNT32, .offset = AT(port), .metavar = "P", .least = 1,
     .most = 65535, .value_help = "the one behind MASTER_PORT, or by the job's id",
     .help = "where rank 0 listens then"},
    {.name = "--network-bandwidth", .kind = TIDE_OPTION_RATE, .offset = AT(network_bytes_per_second),
     .metavar = "SIZE/s", .least = 65536, .most = 1e15, .value_help = "no limit",
     .help = "how fast each rank sends gradients at most, to try out a slow network"},
    {.name = "--log-dir", .kind = TIDE_OPTION_TEXT, .offset = AT(log_folder), .metavar = "DIR",
     .help = "with --ranks: the lines of each rank R above 0 go to DIR/rank-R.log, those of rank 0 are "
             "printed; DIR is created if it is missing"},
    {.name = "--collective-timeout", .kind = TIDE_OPTION_COUNT32, .offset = AT(collective_timeout_seconds),
     .metavar = "SECONDS", .least = 1, .most = 1000000, .value = "60",
     .help = "with --ranks: how long a rank waits in a collective for one that computes or that it hears "
             "nothing of; then all ranks end"},

    {.help = "output"},
    {.name = "--metrics", .kind = TIDE_OPTION_TEXT, .offset = AT(metrics), .metavar = "FILE",
     .help = "write a JSON line a step; with --resume the file is continued, without the lines of steps behind the checkpoint"},
    {.name = "--trace", .kind = TIDE_OPTION_TEXT, .offset = AT(trace), .metavar = "FILE",
     .help = "write what happens to every chunk, for tidepool trace"},
    {.name = "--trace-steps", .kind = TIDE_OPTION_TEXT, .offset = AT(trace_steps), .metavar = "all|N",
     .value = "8",
     .help = "the trace keeps the warm-up and the last N steps, or all"},
    {.name = "--checkpoint", .kind = TIDE_OPTION_TEXT, .offset = AT(checkpoint), .metavar = "DIR",
     .help = "save here (the folder that holds step-N, not one of them) at the end, on SIGINT, SIGTERM and SIGHUP, and on SIGUSR1 while the run goes on"},
    {.name = "--save-every", .kind = TIDE_OPTION_COUNT, .offset = AT(save_every), .metavar = "N",
     .least = 1, .most = 1e12, .value_help = "at the end only",
     .help = "save every N steps"},
    {.name = "--keep", .kind = TIDE_OPTION_COUNT, .offset = AT(keep), .metavar = "K", .most = 1000000,
     .value = "2",
     .help = "how many checkpoints stay; 0: all"},
    {.name = "--save-patience", .kind = TIDE_OPTION_COUNT, .offset = AT(save_patience), .metavar = "SECONDS",
     .most = 1e9, .value = "600",
     .help = "how long the last save is tried again where there is no room, say"},
    {.name = "--save", .kind = TIDE_OPTION_CHOICE, .offset = AT(save), .metavar = "all|weights", .value = "all",
     .help = "what a checkpoint holds; weights: no moments, a third of the bytes, and no run goes on from it to the last bit"},
    {.name = "--resume", .kind = TIDE_OPTION_FLAG, .offset = AT(resume),
     .help = "continue from the newest checkpoint in --checkpoint, if there is one"},
    {.name = "--resume-from", .kind = TIDE_OPTION_TEXT, .offset = AT(trainer.resume_from),
     .metavar = "DIR/step-N",
     .help = "continue from this very checkpoint; later ones in --checkpoint must be damaged, and are set aside as step-M.damaged"},
    {.name = "--new-data", .kind = TIDE_OPTION_FLAG, .offset = AT(trainer.new_data),
     .help = "with --resume-from: its params, moments and step go on with other --data, from that data's beginning"},
    {.name = "--export", .kind = TIDE_OPTION_TEXT, .offset = AT(export), .metavar = "DIR",
     .help = "write the model into this new folder at the end, as tidepool export does; not where a signal ends the run. A run that is done, started again with --resume, takes its own export as done"},
    {.name = "--eval-every", .kind = TIDE_OPTION_COUNT, .offset = AT(eval_every), .metavar = "N",
     .most = 1e12, .value_help = "100; with --epochs at the end of each",
     .help = "validation loss every N steps and at the end; 0: never"},
    {.name = "--keep-best", .kind = TIDE_OPTION_FLAG, .offset = AT(keep_best),
     .help = "save where the validation loss is the least so far, and keep that checkpoint, too"},
    {.name = "--sample", .kind = TIDE_OPTION_COUNT32, .offset = AT(sample), .metavar = "N", .most = 1000000,
     .value = "64",
     .help = "tokens of text to make at the end; 0: none; of a --model DIR none where not given"},

    {.help = "--device null: the machine to predict for, as of tidepool plan; of this one the device that auto takes"},
    TIDE_RUN_MACHINE(AT(machine)),
    TIDE_RUN_RAM(AT(ram_bytes)),

    {.help = "checks (host device), for debugging; they cost time"},
    {.name = "--checks", .kind = TIDE_OPTION_SWITCH, .offset = AT(checks), .value = "off",
     .help = "prove every ordering between streams, make a use after eviction fault (with one rank), name "
             "the chunk in a fault"},
    {.name = "--delays", .kind = TIDE_OPTION_COUNT, .offset = AT(delays), .metavar = "SEED", .least = 1,
     .most = 9007199254740992.0, .value_help = "none",
     .help = "stretch every stream at random"},
};
/* clang-format on */

const tide_option_table tide_train_table = {
    .command = "tidepool train",
    .summary =
        "usage: tidepool train --model NAME|PATH --data PATH [OPTIONS]\n\n"
        "Trains a model within hard budgets of device and host memory. Sizes: 64MiB, 8GiB, 500MB or bytes.",
    .options = options,
    .count = sizeof options / sizeof options[0],
};

static const tide_option_table *const tables[] = {&tide_train_table};

const tide_page tide_train_page = {
    .name = "train",
    .title = "train a model, within budgets of device and host memory",
    .tables = tables,
    .table_count = 1,
    .description =
        "Params, gradients and optimizer state lie in chunks of one size, which move between "
        "device and host memory so "
        "that the device finds what it needs. Loss and weights are the same to the last bit for "
        "every budget, chunk size "
        "and placement of the optimizer.\n\n"
        "A run prints where every byte goes before its first step; a budget that can't do is "
        "refused at once, naming the "
        "least that works. Then it prints how training goes: loss, tokens a second, for how much "
        "of the time compute stood "
        "still and what for, and what was moved.\n\n"
        "In a folder of shards files with the word val (valid, validation, dev) in their names beside others "
        "with the word train "
        "(web_train_000001.bin, web_val_000000.bin; train.bin, val.bin) are the validation data, unless "
        "--eval-data names other; without either the last 5% of the sequences are held out. The run says "
        "which. A data file that is changed while a run reads it ends the run with status 1.\n\n"
        "SIGINT, SIGTERM, SIGHUP and SIGXCPU finish the step, save if --checkpoint is given, and end the run "
        "with exit status 0; a second SIGINT or SIGTERM, a second later or more, ends it at once. A SIGHUP "
        "that is ignored at start, as "
        "under nohup, stays ignored. SIGUSR1 and SIGUSR2, which batch systems send before they end a job, "
        "save after the step, and the run goes on.\n\n"
        "A run is not lost to its outputs. Where standard output, --metrics or a save can't be written, a "
        "line on "
        "standard error says so and the run goes on: the next line and the next save are tried again. The "
        "last save is tried again for as long as --save-patience says. A run that fails otherwise, "
        "because its data was changed under it, say, saves its last complete step before it ends.\n\n"
        "No output may be an input (data, a shard, a file of its model or of its checkpoints, by whatever "
        "name or "
        "link) or another output: that is refused before anything is opened for writing. /dev/null and pipes "
        "may be given twice.",
    .statuses = "0\tthe run is done, or a signal ended it between two steps; a reader of its output that "
                "left is no failure\n"
                "1\ta failure; one line on standard error tells it. Also where the run is done and lines of "
                "standard output "
                "or --metrics, or its last save, could not be written\n"
                "2\ta command line that makes no sense; one line on standard error says what would",
    .environment =
        "TIDEPOOL_MODULES\ta folder in which the CUDA module, libtidepool_cuda.so, is looked for first\n"
        "XDG_CACHE_HOME\twhere measured machines are kept; see tidepool-plan(1)\n"
        "ONEDNN_MAX_CPU_ISA\tthe widest instructions that kernels on the CPU use; see tidepool-info(1)\n"
        "TIDEPOOL_LOG\tmatmul: tell on standard error which algorithm a GPU takes for each product",
    .files = "DIR/step-N/\ta checkpoint after step N, in the folder of --checkpoint: model.safetensors holds "
             "the params, "
             "momentum.safetensors and variance.safetensors the optimizer's moments, manifest.json the rest",
    .examples = "A quarter of the model data on the device:\n\n"
                "    tidepool train --model gpt2 --data book.txt \\\n"
                "        --device-memory 400MiB --chunk-size 16MiB --steps 200\n\n"
                "nanoGPT's train.bin and val.bin:\n\n"
                "    tidepool train --model gpt2 --data data/openwebtext --data-format u16\n\n"
                "Save every 100 steps, and continue after whatever ended the run:\n\n"
                "    tidepool train --model gpt2 --data book.txt \\\n"
                "        --checkpoint run --save-every 100 --resume\n\n"
                "Keep the learning rate up for as long as it goes, and finish from any checkpoint:\n\n"
                "    tidepool train --model gpt2 --data book.txt --steps 8000 \\\n"
                "        --schedule constant --checkpoint stable --save-every 1000 --keep 0\n"
                "    tidepool train --model gpt2 --data book.txt --steps 9000 \\\n"
                "        --schedule wsd --decay-steps 1000 \\\n"
                "        --resume-from stable/step-8000 --checkpoint finished\n\n"
                "Go on with other data, from its beginning:\n\n"
                "    tidepool train --model gpt2 --data more.txt --steps 12000 \\\n"
                "        --resume-from stable/step-8000 --new-data --checkpoint other\n\n"
                "Train the last two blocks of gpt2 and the norm behind them:\n\n"
                "    tidepool train --model gpt2 --data book.txt \\\n"
                "        --freeze 'w?e.weight' --freeze 'h.[0-9].*'\n\n"
                "See where every chunk of an 8 B model would be on a GPU, without either:\n\n"
                "    tidepool train --model llama-3.1-8b --seq-len 4096 --device null --machine rtx4090 \\\n"
                "        --ram 128GiB --steps 4 --trace 8b.trace",
};
