/* Shared by the tests of the manager: a small layout, a chain of ops, an engine that carries out each
 * command at once and logs it, and functions to look at the result. A failure fails the test.
 *
 * Params are fp32 and one chunk large, so param i is chunk i. The STATE chunks follow the params' chunks.
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
    tide_description *description;
    tide_layout *layout;
    tide_manager *manager;
    uint32_t params;
    uint32_t log_count;
    tide_command log[LOG_MAX];
} fixture;

extern fixture f;

/* --- set-up --- */

/* Describe a model with `params` params, whose formats follow each other in `classes` equal groups, and
 * `tensors` ACTIVATION tensors whose parts take a chunk each. */
void arrange_classes(const tide_state_format *formats, uint32_t classes, uint32_t params, uint32_t tensors,
                     uint32_t parts);
/* Like arrange_classes, with one format of four bytes of state per element: the state of param i is chunk
 * params + i, its update is one piece. */
void arrange(uint32_t params, uint32_t tensors, uint32_t parts);
/* Add an op that uses one param. */
tide_op add_op(tide_pass pass, uint32_t param, uint32_t access);
/* Add `params` forward ops; op i reads param i. With `backward`, also add as many backward ops, which read
 * the params again in reverse order and make their gradients. */
void add_chain(uint32_t params, bool backward);
/* Make the description's layout and manager; afterwards no op can be added. */
void make_manager(void);
/* Seal the manager; make it first if the test has not. */
void seal(uint32_t device, uint32_t host, tide_placement placement, bool prefetch);
int clean_up(void **state);
/* arrange, add_chain and seal. */
void arrange_chain(uint32_t params, bool backward, uint32_t device, uint32_t host, tide_placement placement,
                   bool prefetch);

/* --- run ops and commands --- */

/* Carry out one command and report it to the manager with `status`. False if there is none. */
bool step_engine(tide_status status);
/* Carry out commands until there are none. */
void run_engine(void);
/* run_until_ready carries out commands until the open request is ready; begin() begins an op and then does
 * that. */
void run_until_ready(void);
void begin(tide_op op);
void run_op(tide_op op);
void run_ops(tide_op first, tide_op last);
void step_begin(bool training, bool waits);
void step_end(void);
void forward_pass(tide_op first, tide_op last);
void access_chunk(tide_chunk chunk, uint32_t access);
/* Set all params and their STATE chunks, one per param, then clear the log. */
void set_all_params(void);

/* --- look at the result --- */

typedef struct where_it_is {
    bool device_valid, host_valid, pinned;
    uint32_t host_slot;
} where_it_is;

where_it_is residency(tide_chunk chunk);
tide_manager_counters counters(void);
/* The first command of this kind in the log that is for `chunk`, or for any chunk if that is ALL; NULL if
 * there is none. */
const tide_command *find(tide_command_kind kind, tide_chunk chunk);
uint32_t count(tide_command_kind kind);

#endif
