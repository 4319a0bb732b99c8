/* tidepool info: prints the machine, its NUMA nodes, its GPUs (or why there are none), measured rates, and
 * the libraries of this build, as text or as one line of JSON with the same facts. */
#include "base/json_line.h"
#include "kernels/kernels.h"
#include "offload/topology.h"
#include "src/perf/rates.h"
#include "src/pool/device_factory.h"
#include "tide_config.h"
#include "tools/command.h"
#include "tools/info/info_options.h"
#include "tools/units.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#if TIDE_HAVE_JEMALLOC
#include <jemalloc/jemalloc.h>
#endif

static const char command_name[] = "tidepool info";

typedef struct feature {
    const char *name;
    bool built;
} feature;

static const feature features[] = {
    {"openmp", TIDE_HAVE_OPENMP},
    {"onednn", TIDE_HAVE_ONEDNN},
    {"hwloc", TIDE_HAVE_HWLOC},
    {"jemalloc", TIDE_HAVE_JEMALLOC},
};

enum { FEATURES = sizeof features / sizeof features[0], CHUNK_BYTES = 64 << 20, JSON_BYTES = 65536 };

/* The GPUs of this machine, as the CUDA module finds them. */
typedef struct gpu_list {
    const char *architectures; /* those that the module has kernels for; NULL: no module */
    tide_gpu gpus[TIDE_GPUS_MAX];
    uint32_t count;
    char why[TIDE_DEVICE_FACTORY_REASON_BYTES]; /* why no GPU can be used; "" if one can */
} gpu_list;

typedef struct machine_info {
    tide_topology topology;
    gpu_list gpus;
    const tide_cpu_info *cpu;
    tide_machine_profile rates; /* only what tide_rates_measure sets */
    /* why nothing was measured; "": the rates are measured */
    char no_rates[TIDE_DEVICE_FACTORY_REASON_BYTES];
} machine_info;

/* Returns "5.3.0", or "" without jemalloc. The call also keeps the linker from dropping jemalloc, from which
 * the program needs no other symbol. */
static const char *jemalloc_version(void)
{
    const char *version = "";
#if TIDE_HAVE_JEMALLOC
    size_t bytes = sizeof version;
    if (mallctl("version", &version, &bytes, NULL, 0) != 0)
        version = "";
#endif
    return version;
}

/* Lists every GPU that the driver sees, also those that can't be used. No error ends the command: `why` gets
 * its message. */
static void gpus_read(gpu_list *list)
{
    const tide_module *module;
    uint32_t count = 0;
    *list = (gpu_list){0};
    tide_status status = tide_module_cuda(&module);
    if (status == TIDE_OK) {
        list->architectures = module->architectures;
        status = module->gpu_count(&count);
    }
    if (status == TIDE_OK && count == 0)
        status = tide_fail(TIDE_ERROR_UNSUPPORTED, "the driver sees no GPU");
    for (uint32_t i = 0; i < count && i < TIDE_GPUS_MAX && status == TIDE_OK; i++) {
        status = module->gpu_read(i, &list->gpus[i]);
        list->count += status == TIDE_OK;
    }
    if (status != TIDE_OK)
        snprintf(list->why, sizeof list->why, "%s", tide_message());
}

/* ---- text ---- */

static void gpu_print(const tide_gpu *gpu)
{
    char memory[TIDE_UNITS_TEXT_BYTES], granularity[TIDE_UNITS_TEXT_BYTES];
    printf("GPU cuda:%-2u  %s, %s, compute capability %u.%u, %u multiprocessors, PCI %s", gpu->ordinal,
           gpu->name, tide_size_format(gpu->memory_bytes, memory), gpu->capability_major,
           gpu->capability_minor, gpu->multiprocessors, gpu->pci);
    if (gpu->numa_node >= 0)
        printf(", NUMA node %d", gpu->numa_node);
    if (gpu->granularity_bytes != 0)
        printf(", maps %s at a time\n", tide_size_format_exact(gpu->granularity_bytes, granularity));
    else
        printf("; it has no virtual memory management (VMM), so it can't be used\n");
}

static void gpus_print(const gpu_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        gpu_print(&list->gpus[i]);
    if (list->count > 0)
        printf("CUDA        driver %u.%u, runtime %u.%u, kernels for %s\n", list->gpus[0].driver / 1000,
               list->gpus[0].driver % 1000 / 10, list->gpus[0].runtime / 1000,
               list->gpus[0].runtime % 1000 / 10, list->architectures);
    if (list->why[0] != '\0')
        printf("no GPU      %s\n", list->why);
}

static void machine_print(const machine_info *info)
{
    const tide_topology *topology = &info->topology;
    char memory[TIDE_UNITS_TEXT_BYTES], available[TIDE_UNITS_TEXT_BYTES];
    printf("tidepool %s\n", TIDE_VERSION);
    printf("processor   %s, %u cores, %u processors to use\n", topology->processor, topology->cores,
           topology->processors);
    printf("memory      %s, %s available, transparent huge pages: %s\n",
           tide_size_format(topology->memory_bytes, memory),
           tide_size_format(topology->available_bytes, available), topology->transparent_huge_pages);
    if (topology->dormant_bytes == UINT64_MAX)
        printf("memory      more can be plugged in\n");
    else if (topology->dormant_bytes > 0)
        printf("memory      %s more when it is needed\n", tide_size_format(topology->dormant_bytes, memory));
    for (uint32_t i = 0; i < topology->node_count; i++)
        printf("NUMA node %u %s, %u processors\n", topology->nodes[i].os_index,
               tide_size_format(topology->nodes[i].memory_bytes, memory), topology->nodes[i].processors);
    printf("devices     host (emulated), null (predicts)%s\n", info->gpus.count > 0 ? ", the GPUs" : "");
    gpus_print(&info->gpus);
    printf("kernels     %s; matrix products by %s (%s), bf16 %s\n", info->cpu->instructions,
           info->cpu->matmul, info->cpu->matmul_isa, info->cpu->bf16_native ? "in hardware" : "emulated");
}

static void rates_print(const tide_machine_profile *rates)
{
    char device[TIDE_UNITS_TEXT_BYTES], adam[TIDE_UNITS_TEXT_BYTES], h2d[TIDE_UNITS_TEXT_BYTES],
        d2h[TIDE_UNITS_TEXT_BYTES], chunk[TIDE_UNITS_TEXT_BYTES], threads[TIDE_UNITS_TEXT_BYTES];
    printf("measured with %s and chunks of %s, on the %s device:\n",
           tide_count_noun(rates->threads, "thread", threads), tide_size_format_exact(CHUNK_BYTES, chunk),
           rates->device);
    printf("  products  bf16 %.3g FLOP/s, fp16 %.3g FLOP/s, fp32 %.3g FLOP/s\n",
           rates->flops_per_second[TIDE_DTYPE_BF16], rates->flops_per_second[TIDE_DTYPE_FP16],
           rates->flops_per_second[TIDE_DTYPE_FP32]);
    printf("  memory    %s/s in a kernel, %s/s in AdamW\n",
           tide_size_format((uint64_t)rates->device_bytes_per_second, device),
           tide_size_format((uint64_t)rates->device_adam_bytes_per_second, adam));
    if (strcmp(rates->device, "host") != 0)
        printf("  host      %s/s in AdamW\n",
               tide_size_format((uint64_t)rates->adams[0].bytes_per_second, adam));
    printf("  link      %s/s to the device, %s/s to the host, %.0f us to map a chunk, %.0f to unmap it\n",
           tide_size_format((uint64_t)rates->h2d_bytes_per_second, h2d),
           tide_size_format((uint64_t)rates->d2h_bytes_per_second, d2h), rates->map_ns / 1000,
           rates->unmap_ns / 1000);
}

static void people_print(const machine_info *info)
{
    machine_print(info);
    if (info->no_rates[0] == '\0')
        rates_print(&info->rates);
    else
        printf("not measured: products, memory, link; %s\n", info->no_rates);
    printf("built with ");
    for (size_t i = 0; i < FEATURES; i++)
        printf("%s%s %s", i == 0 ? "" : ", ", features[i].name, features[i].built ? "yes" : "no");
    const char *jemalloc = jemalloc_version();
    printf("%s%.*s\n", *jemalloc != '\0' ? " " : "", (int)strcspn(jemalloc, "-"), jemalloc);
}

/* ---- JSON ---- */

static void machine_json(tide_json_line *line, const tide_topology *topology)
{
    tide_json_open(line, "machine", '{');
    tide_json_text(line, "processor", topology->processor);
    tide_json_count(line, "cores", topology->cores);
    tide_json_count(line, "processors", topology->processors);
    tide_json_count(line, "memory_bytes", topology->memory_bytes);
    tide_json_count(line, "available_bytes", topology->available_bytes);
    tide_json_real(line, "dormant_bytes",
                   topology->dormant_bytes != UINT64_MAX ? (double)topology->dormant_bytes : NAN);
    tide_json_count(line, "page_bytes", topology->page_bytes);
    tide_json_count(line, "huge_page_bytes", topology->huge_page_bytes);
    tide_json_text(line, "transparent_huge_pages", topology->transparent_huge_pages);
    tide_json_close(line, '}');
    tide_json_open(line, "numa_nodes", '[');
    for (uint32_t i = 0; i < topology->node_count; i++) {
        tide_json_open(line, NULL, '{');
        tide_json_count(line, "node", topology->nodes[i].os_index);
        tide_json_count(line, "processors", topology->nodes[i].processors);
        tide_json_count(line, "memory_bytes", topology->nodes[i].memory_bytes);
        tide_json_count(line, "free_bytes", topology->nodes[i].free_bytes);
        tide_json_close(line, '}');
    }
    tide_json_close(line, ']');
}

static void gpu_json(tide_json_line *line, const tide_gpu *gpu)
{
    char device[TIDE_DEVICE_FACTORY_NAME_BYTES];
    snprintf(device, sizeof device, "cuda:%u", gpu->ordinal);
    tide_json_open(line, NULL, '{');
    tide_json_text(line, "device", device);
    tide_json_text(line, "name", gpu->name);
    tide_json_text(line, "pci", gpu->pci);
    tide_json_count(line, "memory_bytes", gpu->memory_bytes);
    tide_json_count(line, "capability_major", gpu->capability_major);
    tide_json_count(line, "capability_minor", gpu->capability_minor);
    tide_json_count(line, "multiprocessors", gpu->multiprocessors);
    tide_json_count(line, "granularity_bytes", gpu->granularity_bytes);
    tide_json_real(line, "numa_node", gpu->numa_node);
    tide_json_count(line, "driver", gpu->driver);
    tide_json_count(line, "runtime", gpu->runtime);
    tide_json_close(line, '}');
}

static void gpus_json(tide_json_line *line, const gpu_list *list)
{
    tide_json_open(line, "cuda", '{');
    tide_json_bool(line, "module", list->architectures != NULL);
    tide_json_text(line, "architectures", list->architectures != NULL ? list->architectures : "");
    tide_json_text(line, "why_not", list->why);
    tide_json_open(line, "gpus", '[');
    for (uint32_t i = 0; i < list->count; i++)
        gpu_json(line, &list->gpus[i]);
    tide_json_close(line, ']');
    tide_json_close(line, '}');
}

static void kernels_json(tide_json_line *line, const tide_cpu_info *cpu)
{
    tide_json_open(line, "kernels", '{');
    tide_json_text(line, "instructions", cpu->instructions);
    tide_json_text(line, "matmul", cpu->matmul);
    tide_json_text(line, "matmul_isa", cpu->matmul_isa);
    tide_json_bool(line, "bf16_matmuls", cpu->bf16_matmuls);
    tide_json_bool(line, "bf16_native", cpu->bf16_native);
    tide_json_close(line, '}');
}

static void rates_json(tide_json_line *line, const machine_info *info)
{
    const tide_machine_profile *rates = &info->rates;
    tide_json_text(line, "rates_why_not", info->no_rates);
    if (info->no_rates[0] != '\0') {
        tide_json_null(line, "rates");
        return;
    }
    tide_json_open(line, "rates", '{');
    tide_json_text(line, "device", rates->device);
    tide_json_count(line, "threads", rates->threads);
    tide_json_count(line, "chunk_bytes", CHUNK_BYTES);
    tide_json_real(line, "bf16_flops_per_second", rates->flops_per_second[TIDE_DTYPE_BF16]);
    tide_json_real(line, "fp16_flops_per_second", rates->flops_per_second[TIDE_DTYPE_FP16]);
    tide_json_real(line, "fp32_flops_per_second", rates->flops_per_second[TIDE_DTYPE_FP32]);
    tide_json_real(line, "device_bytes_per_second", rates->device_bytes_per_second);
    tide_json_real(line, "adam_bytes_per_second", rates->device_adam_bytes_per_second);
    tide_json_real(line, "h2d_bytes_per_second", rates->h2d_bytes_per_second);
    tide_json_real(line, "d2h_bytes_per_second", rates->d2h_bytes_per_second);
    tide_json_real(line, "host_adam_bytes_per_second", rates->adams[0].bytes_per_second);
    tide_json_count(line, "map_ns", (uint64_t)rates->map_ns);
    tide_json_count(line, "unmap_ns", (uint64_t)rates->unmap_ns);
    tide_json_close(line, '}');
}

static tide_status json_print(const machine_info *info)
{
    static char text[JSON_BYTES];
    char device[TIDE_DEVICE_FACTORY_NAME_BYTES];
    tide_json_line line;
    tide_json_begin(&line, text, sizeof text);
    tide_json_open(&line, NULL, '{');
    tide_json_text(&line, "version", TIDE_VERSION);
    machine_json(&line, &info->topology);
    tide_json_open(&line, "devices", '[');
    tide_json_text(&line, NULL, "host");
    tide_json_text(&line, NULL, "null");
    for (uint32_t i = 0; i < info->gpus.count; i++) {
        snprintf(device, sizeof device, "cuda:%u", info->gpus.gpus[i].ordinal);
        tide_json_text(&line, NULL, device);
    }
    tide_json_close(&line, ']');
    gpus_json(&line, &info->gpus);
    kernels_json(&line, info->cpu);
    rates_json(&line, info);
    tide_json_open(&line, "built_with", '{');
    for (size_t i = 0; i < FEATURES; i++)
        tide_json_bool(&line, features[i].name, features[i].built);
    tide_json_text(&line, "jemalloc_version", jemalloc_version());
    tide_json_close(&line, '}');
    tide_json_close(&line, '}');
    if (!tide_json_end(&line))
        return tide_fail(TIDE_ERROR_INTERNAL, "%d bytes are too few for this machine's description",
                         JSON_BYTES);
    fputs(text, stdout);
    return TIDE_OK;
}

/* Measures the rates. If "auto" passes over a GPU, the reason is printed with the list of GPUs. Too little
 * memory to measure is no error: info->no_rates gets the message. */
static tide_status rates_measure(const tide_info_settings *settings, machine_info *info)
{
    char chosen[TIDE_DEVICE_FACTORY_NAME_BYTES], reason[TIDE_DEVICE_FACTORY_REASON_BYTES];
    const char *device = settings->device;
    if (strcmp(device, "null") == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "%s: --device null: nothing to measure; must be auto, host or cuda:N", command_name);
    if (strcmp(device, "auto") == 0) {
        tide_device_factory_choose(CHUNK_BYTES, chosen, reason);
        if (reason[0] != '\0')
            snprintf(info->gpus.why, sizeof info->gpus.why, "%s", reason);
        device = chosen;
    }
    const tide_status status =
        tide_rates_measure(device, (uint32_t)settings->threads, CHUNK_BYTES, &info->rates);
    if (status != TIDE_ERROR_NO_MEMORY)
        return status;
    snprintf(info->no_rates, sizeof info->no_rates, "%s", tide_message());
    return TIDE_OK;
}

int tide_command_info(int count, char *const *arguments)
{
    tide_info_settings settings;
    static machine_info info;
    if (tide_options_asked(count, arguments, "--help") || tide_options_asked(count, arguments, "-h")) {
        tide_options_help(&tide_info_table, stdout);
        return TIDE_EXIT_OK;
    }
    settings = (tide_info_settings){0};
    tide_status status = tide_options_parse(&tide_info_table, count, arguments, &settings, NULL);
    if (status == TIDE_OK)
        status = tide_topology_read(&info.topology);
    if (status != TIDE_OK)
        return tide_command_failed(command_name, status);
    gpus_read(&info.gpus);
    status = rates_measure(&settings, &info);
    if (status != TIDE_OK)
        return tide_command_failed(command_name, status);
    info.cpu = tide_kernels_cpu_info();
    if (!settings.json)
        people_print(&info);
    else
        status = json_print(&info);
    return status == TIDE_OK ? TIDE_EXIT_OK : tide_command_failed(command_name, status);
}
