/* What the manager's tests share: a small layout, a chain of ops, an engine that carries commands out at once and logs
 * them, and a look at what came of it. Failures fail the test.
 *
 * Params are fp32 and one chunk large, so param i is chunk i; STATE chunks come behind those of params.
 */
#ifndef TIDE_TESTS_MANAGER_FIXTURE_H
#define TIDE_TESTS_MANAGER_FIXTURE_H

#include "chunk/manager_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { CHUNK_BYTES = 4096, ELEMENTS = CHUNK_BYTES / 4, LOG_MAX = 4096, READ = TIDE_ACCESS_READ };
enum { GRAD = TIDE_ACCESS_GRAD, WRITE = TIDE_ACCESS_WRITE, LAST = TIDE_ACCESS_LAST, ALL = 1000 };

typedef struct fixture {
    tide_layout *layout;
    tide_manager *manager;
    uint32_t params;
    uint32_t log_count;
    tide_command log[LOG_MAX];
} fixture;

extern fixture f;

/* --- arranging --- */

/* As many params of each class, in order; ACTIVATION tensors of a chunk a part. */
void arrange_classes(const tide_state_format *formats, uint32_t classes, uint32_t params, uint32_t tensors,
                     uint32_t parts);
/* One class, four bytes of state an element: param i's state is chunk P + i, its update one piece. */
void arrange(uint32_t params, uint32_t tensors, uint32_t parts);
/* Of one param. */
tide_op add_op(tide_pass pass, uint32_t param, uint32_t access);
/* Op i reads param i; with `backward`, then one op a param that reads it and makes its gradient, backwards. */
void add_chain(uint32_t params, bool backward);
void seal(uint32_t device, uint32_t host, tide_placement placement, bool prefetch);
int clean_up(void **state);
/* A chain alone, sealed. */
void arrange_chain(uint32_t params, bool backward, uint32_t device, uint32_t host, tide_placement placement,
                   bool prefetch);

/* --- acting --- */

/* Carry out one command, which ends with `status`. False if there is none. */
bool step_engine(tide_status status);
/* As long as there is one. */
void run_engine(void);
/* Until the open request is ready; begin an op and do so. */
void run_until_ready(void);
void begin(tide_op op);
void run_op(tide_op op);
void run_ops(tide_op first, tide_op last);
void step_begin(bool training, bool waits);
void step_end(void);
void forward_pass(tide_op first, tide_op last);
void access_chunk(tide_chunk chunk, uint32_t access);
/* Params and as many STATE chunks; the log begins anew. */
void set_all_params(void);

/* --- looking --- */

typedef struct where_it_is {
    bool device_valid, host_valid, pinned;
    uint32_t host_slot;
} where_it_is;

where_it_is residency(tide_chunk chunk);
tide_manager_counters counters(void);
/* The first command of a kind on a chunk, or on any if it is ALL; NULL if there was none. */
const tide_command *find(tide_command_kind kind, tide_chunk chunk);
uint32_t count(tide_command_kind kind);

#endif
