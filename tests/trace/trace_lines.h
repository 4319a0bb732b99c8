/* A correct trace with a line of every kind, for tests of programs that read traces. It has three chunks of
 * params, two of state and one of activations, and two steps. */
#ifndef TIDE_TESTS_TRACE_LINES_H
#define TIDE_TESTS_TRACE_LINES_H

#define TRACE_FIRST                                                                                          \
    "{\"trace\":3,\"tidepool\":\"0.2.0\",\"rank\":0,\"ranks\":1,\"device\":\"null\",\"dtype\":\"bf16\","     \
    "\"chunk_bytes\":262144,\"device_slots\":4,\"host_slots\":8,\"device_memory_bytes\":1310720,"            \
    "\"host_memory_bytes\":2097152,\"region_bytes\":262144,\"trace_steps\":8}\n"

#define TRACE_TABLES                                                                                         \
    "{\"table\":\"setting\",\"name\":\"model\",\"value\":\"a \\\"toy\\\" of \\u00e9\\ud83d\\ude00\"}\n"      \
    "{\"table\":\"machine\",\"name\":\"a CPU\",\"cores\":2,\"memory_bytes\":8589934592,"                     \
    "\"flops_per_second\":1e12,\"device_bytes_per_second\":2.5e+11,\"host_bytes_per_second\":1e10,"          \
    "\"link_bytes_per_second\":1000000000,\"map_ns\":10,\"unmap_ns\":0}\n"                                   \
    "{\"table\":\"param\",\"param\":0,\"name\":\"wte\",\"elements\":200000,\"frozen\":false,"                \
    "\"decays\":true,\"planes\":[128,128,128]}\n"                                                            \
    "{\"table\":\"param\",\"param\":1,\"name\":\"bias\",\"elements\":1000,\"frozen\":true,"                  \
    "\"decays\":false,\"planes\":[]}\n"                                                                      \
    "{\"table\":\"chunk\",\"chunk\":0,\"space\":\"param\",\"index\":0,\"bytes\":262144,"                     \
    "\"params\":[[0,0,131072]],\"of\":[]}\n"                                                                 \
    "{\"table\":\"chunk\",\"chunk\":1,\"space\":\"param\",\"index\":1,\"bytes\":137856,"                     \
    "\"params\":[[0,131072,68928]],\"of\":[]}\n"                                                             \
    "{\"table\":\"chunk\",\"chunk\":2,\"space\":\"param\",\"index\":2,\"bytes\":2000,"                       \
    "\"params\":[[1,0,1000]],\"of\":[]}\n"                                                                   \
    "{\"table\":\"chunk\",\"chunk\":3,\"space\":\"state\",\"index\":0,\"bytes\":262144,\"params\":[],"       \
    "\"of\":[0]}\n"                                                                                          \
    "{\"table\":\"chunk\",\"chunk\":4,\"space\":\"state\",\"index\":1,\"bytes\":262144,\"params\":[],"       \
    "\"of\":[0,1]}\n"                                                                                        \
    "{\"table\":\"chunk\",\"chunk\":5,\"space\":\"activation\",\"index\":0,\"bytes\":4096,\"params\":[],"    \
    "\"of\":[]}\n"                                                                                           \
    "{\"table\":\"op\",\"op\":0,\"name\":\"embedding\",\"pass\":\"forward\",\"slices\":0,"                   \
    "\"workspace_bytes\":0,\"params\":[[0,1],[1,1]],\"activations\":[]}\n"                                   \
    "{\"table\":\"op\",\"op\":1,\"name\":\"head\",\"pass\":\"both\",\"slices\":2,"                           \
    "\"workspace_bytes\":4096,\"params\":[[0,3]],\"activations\":[[0,12]]}\n"                                \
    "{\"table\":\"activation\",\"activation\":0,\"name\":\"residual\",\"parts\":2,\"part_bytes\":2048,"      \
    "\"offset_bytes\":0}\n"

#define TRACE_STALLS                                                                                         \
    "\"stall_link_seconds\":2e-06,\"stall_slot_seconds\":0,\"stall_update_seconds\":0,"                      \
    "\"stall_norm_seconds\":0,\"stall_map_seconds\":0,"

/* The metrics line of step `number`, which took 10 us. `version` is that of the metrics, `learned` and `peer`
 * are members that later versions have. */
#define TRACE_STEP_OF(number, version, learned, peer)                                                        \
    "{\"step\":" number ",\"version\":" version                                                              \
    ",\"loss\":null,\"grad_norm\":1.5,\"lr\":0.001,\"loss_scale\":1,\"tokens\":64," learned                  \
    "\"step_seconds\":1e-05,\"tokens_per_second\":6400000,\"compute_seconds\":7e-06,"                        \
    "\"stall_seconds\":2e-06," TRACE_STALLS peer                                                             \
    "\"stall_caller_seconds\":0,\"predicted_step_seconds\":null,"                                            \
    "\"predicted_stall_seconds\":null,\"h2d_bytes\":262144,\"d2h_bytes\":0,\"collective_bytes\":0,"          \
    "\"evictions\":0,\"demand_fetches\":1,\"prefetches\":0,\"adam_host_seconds\":1e-06,"                     \
    "\"adam_device_seconds\":0,\"device_bytes_peak\":1310720,\"host_bytes_peak\":2097152,\"skipped\":0}\n"
#define TRACE_STEP(number) TRACE_STEP_OF(number, "1", "", "")

#define TRACE_AT(event, step, pass) "{\"event\":\"" event "\",\"step\":" step ",\"pass\":" pass ","
#define TRACE_T(t)                  "\"t_ns\":" t ","
#define TRACE_SPAN(begin, end)      "\"begin_ns\":" begin ",\"end_ns\":" end ","

#define TRACE_PASS(number, t)                                                                                \
    TRACE_AT("pass", number, number) TRACE_T(t) "\"training\":true,\"number\":" number ",\"clips\":false}\n"
#define TRACE_PASS_END(number, t) TRACE_AT("pass end", number, number) "\"t_ns\":" t "}\n"

/* The events of step 1, from 1000 ns on. The lines are not in order of time. */
/* clang-format off */
#define TRACE_STEP_1 \
    TRACE_PASS("1", "1000") \
    TRACE_AT("snapshot", "1", "1") TRACE_T("1000") \
    "\"chunk\":0,\"device\":\"none\",\"device_slot\":null,\"host\":\"there\",\"host_slot\":7," \
    "\"pinned\":false,\"content\":\"params\",\"pending\":false}\n" \
    TRACE_AT("wait", "1", "1") TRACE_T("1100") \
    "\"op\":0,\"slice\":null,\"schedule_step\":1,\"chunk\":0,\"for\":\"move\"}\n" \
    TRACE_AT("move", "1", "1") TRACE_SPAN("1100", "1300") \
    "\"id\":9,\"move\":\"fetch\",\"chunk\":0,\"reason\":\"demand\",\"device_slot\":3,\"host_slot\":7," \
    "\"copied\":true,\"zeroed\":false,\"in_place\":false}\n" \
    TRACE_AT("map", "1", "1") TRACE_SPAN("1110", "1120") \
    "\"id\":9,\"map\":\"remap\",\"chunk\":0,\"device_slot\":3}\n" \
    TRACE_AT("request", "1", "1") TRACE_SPAN("1100", "1310") \
    "\"op\":0,\"slice\":null,\"schedule_step\":1,\"chunks\":3,\"lacked\":1}\n" \
    TRACE_AT("copy", "1", "1") TRACE_SPAN("1300", "3300") \
    "\"id\":9,\"to\":\"device\",\"chunk\":0,\"reason\":\"demand\",\"bytes\":262144,\"device_slot\":3," \
    "\"host_slot\":7}\n" \
    TRACE_AT("stall", "1", "1") TRACE_SPAN("1300", "3300") \
    "\"cause\":\"link\",\"op\":0,\"slice\":null,\"schedule_step\":1,\"chunk\":0,\"ended_by\":9," \
    "\"predicted\":false}\n" \
    TRACE_AT("chunk", "1", "1") TRACE_T("1300") \
    "\"chunk\":0,\"device\":\"there\",\"device_slot\":3,\"host\":\"there\",\"host_slot\":7," \
    "\"pinned\":true,\"content\":\"params\",\"pending\":false}\n" \
    TRACE_AT("zero", "1", "1") TRACE_SPAN("1400", "1500") \
    "\"id\":10,\"chunk\":5}\n" \
    TRACE_AT("op", "1", "1") TRACE_SPAN("3300", "6300") \
    "\"busy_ns\":3000,\"op\":0,\"slice\":null,\"schedule_step\":1}\n" \
    TRACE_AT("op", "1", "1") TRACE_SPAN("6300", "10300") \
    "\"busy_ns\":4000,\"op\":1,\"slice\":1,\"schedule_step\":3}\n" \
    TRACE_AT("norm", "1", "1") \
    "\"begin_ns\":10300,\"end_ns\":10400}\n" \
    TRACE_AT("param", "1", "1") TRACE_T("10400") \
    "\"param\":0,\"holds\":\"gradient\"}\n" \
    TRACE_PASS_END("1", "10500") \
    TRACE_AT("update", "1", "1") TRACE_SPAN("10500", "11500") \
    "\"id\":11,\"tier\":\"host\",\"chunk\":0,\"state_chunk\":3,\"piece\":0}\n" \
    TRACE_AT("restore", "0", "1") TRACE_SPAN("11500", "11600") \
    "\"id\":12,\"tier\":\"device\",\"chunk\":1,\"state_chunk\":4,\"piece\":1}\n" \
    TRACE_AT("plan", "0", "1") TRACE_T("10600") \
    "\"training\":true,\"planned_in\":3,\"planned_out\":2,\"least_in\":1,\"least_out\":0}\n" \
    TRACE_STEP("1") \
    TRACE_AT("access", "0", "1") TRACE_SPAN("11700", "11800") \
    "\"id\":13,\"chunk\":4}\n" \
    TRACE_AT("work", "0", "1") TRACE_SPAN("11800", "11900") \
    "\"work\":\"data\"}\n"
/* clang-format on */

#define TRACE_END "{\"end\":true,\"events\":19,\"dropped\":0}\n"

#define TRACE_WHOLE TRACE_FIRST TRACE_TABLES TRACE_STEP_1 TRACE_END

#endif
