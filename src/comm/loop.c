/* Ranks that are threads of one process. In each call the ranks meet, then each copies or sums from the
 * others' memory, and a rank returns when all have read. A failure ends the wait for a meeting, but a rank
 * always waits until the others have read its memory, which takes no longer than a copy. */
#include "src/comm/comm.h"

#include "base/hash.h"
#include "src/comm/tree.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { GATHER, REDUCE, REDUCE_BF16, EXCHANGE };

static const char *const kind_names[] = {[GATHER] = "a gather",
                                         [REDUCE] = "a reduce",
                                         [REDUCE_BF16] = "a reduce in bf16",
                                         [EXCHANGE] = "an exchange"};

/* A rank's call of a collective, which the other ranks read while it runs. */
typedef struct call {
    enum kind kind;
    const tide_comm_range *ranges;
    uint32_t count;
    uint64_t bytes; /* of all ranges, or of an exchange */
    const void *mine;
    uint64_t signature; /* equal if kinds, bytes and owners are */
} call;

/* Gathers and reduces meet in one place, exchanges in another. */
enum { DATA, SIDE, PLACES };

typedef struct place {
    const call **calls; /* by rank */
    uint32_t arrived;   /* ranks that wait for the others */
    uint32_t reading;   /* ranks that have met and may read the others' memory */
    uint64_t meetings;
} place;

typedef struct loop {
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    uint32_t ranks, members; /* communicators that are not destroyed */
    uint32_t ended;          /* a rank whose communicator is destroyed, UINT32_MAX: none */
    uint32_t failed;         /* the rank that failed first, UINT32_MAX: none */
    char reason[1024];
    place places[PLACES];
    const call *calls[]; /* PLACES times ranks */
} loop;

typedef struct loop_comm {
    tide_comm comm;
    loop *loop;
    tide_tree_input inputs[]; /* one a rank */
} loop_comm;

static loop_comm *loop_comm_of(tide_comm *comm)
{
    return (loop_comm *)comm;
}

/* --- meetings --- */

/* With the lock: can no further meeting take place? */
static tide_status check_members(const loop *l)
{
    if (l->failed != UINT32_MAX)
        return tide_fail(TIDE_ERROR_PEER, "rank %u: %s", l->failed, l->reason);
    if (l->ended != UINT32_MAX)
        return tide_fail(TIDE_ERROR_PEER, "rank %u has ended", l->ended);
    return TIDE_OK;
}

/* Wait until all ranks have come with their calls; on success leave() must follow. */
static tide_status meet(loop_comm *at, int where, const call *mine)
{
    loop *l = at->loop;
    place *p = &l->places[where];
    pthread_mutex_lock(&l->lock);
    tide_status status = check_members(l);
    const uint64_t meetings = p->meetings;
    if (status == TIDE_OK) {
        p->calls[at->comm.rank] = mine;
        if (++p->arrived == l->ranks) {
            assert(p->reading == 0);
            p->arrived = 0;
            p->reading = l->ranks;
            p->meetings++;
            pthread_cond_broadcast(&l->changed);
        }
    }
    while (status == TIDE_OK && p->meetings == meetings) {
        status = check_members(l);
        if (status == TIDE_OK)
            pthread_cond_wait(&l->changed, &l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    return status;
}

/* This rank reads no more; wait for the others. */
static void leave(loop_comm *at, int where)
{
    loop *l = at->loop;
    place *p = &l->places[where];
    pthread_mutex_lock(&l->lock);
    assert(p->reading > 0);
    if (--p->reading == 0)
        pthread_cond_broadcast(&l->changed);
    while (p->reading > 0) /* the next meeting needs this rank */
        pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

/* After the meeting: do all ranks make the same call? Every rank finds a difference. */
static tide_status compare(const loop_comm *at, int where, const call *mine)
{
    for (uint32_t rank = 0; rank < at->comm.ranks; rank++) {
        const call *other = at->loop->places[where].calls[rank];
        if (other->signature != mine->signature)
            return tide_fail(
                TIDE_ERROR_PEER,
                "rank %u calls %s of %llu bytes in %u ranges, where this one calls %s of %llu bytes in %u",
                rank, kind_names[other->kind], (unsigned long long)other->bytes, other->count,
                kind_names[mine->kind], (unsigned long long)mine->bytes, mine->count);
    }
    return TIDE_OK;
}

/* --- collectives --- */

static call make_call(enum kind kind, const tide_comm_range *ranges, uint32_t count, const void *mine,
                      uint64_t bytes)
{
    call made = {.kind = kind, .ranges = ranges, .count = count, .mine = mine, .bytes = bytes};
    made.signature = tide_hash_u64((uint64_t)kind, bytes);
    for (uint32_t i = 0; i < count; i++) {
        made.bytes += ranges[i].bytes;
        made.signature = tide_hash_u64(tide_hash_u64(made.signature, ranges[i].bytes), ranges[i].owner);
    }
    return made;
}

static void copy_ranges(const loop_comm *at, const call *mine)
{
    for (uint32_t i = 0; i < mine->count; i++) {
        const tide_comm_range *range = &mine->ranges[i];
        assert(range->owner < at->comm.ranks);
        if (range->owner != at->comm.rank && range->bytes > 0)
            memcpy(range->data, at->loop->places[DATA].calls[range->owner]->ranges[i].data, range->bytes);
    }
}

static void sum_ranges(loop_comm *at, const call *mine)
{
    for (uint32_t i = 0; i < mine->count; i++) {
        const tide_comm_range *range = &mine->ranges[i];
        assert(range->owner < at->comm.ranks && range->bytes % sizeof(float) == 0);
        if (range->owner != at->comm.rank || range->bytes == 0)
            continue;
        for (uint32_t rank = 0; rank < at->comm.ranks; rank++)
            at->inputs[rank] = (tide_tree_input){at->loop->places[DATA].calls[rank]->ranges[i].data, false};
        tide_tree_sum(at->inputs, at->comm.ranks, range->bytes / sizeof(float), range->data);
    }
}

static tide_status loop_gather(tide_comm *comm, const char *of, const tide_comm_range *ranges, uint32_t count)
{
    (void)of;
    loop_comm *at = loop_comm_of(comm);
    const call mine = make_call(GATHER, ranges, count, NULL, 0);
    tide_status status = meet(at, DATA, &mine);
    if (status != TIDE_OK)
        return status;
    status = compare(at, DATA, &mine);
    if (status == TIDE_OK)
        copy_ranges(at, &mine);
    leave(at, DATA);
    return status;
}

static tide_status loop_reduce(tide_comm *comm, const tide_comm_reduction *reduction)
{
    loop_comm *at = loop_comm_of(comm);
    const enum kind kind = reduction->travels_as == TIDE_DTYPE_BF16 ? REDUCE_BF16 : REDUCE;
    const call mine = make_call(kind, reduction->ranges, reduction->count, NULL, 0);
    tide_status status = meet(at, DATA, &mine);
    if (status != TIDE_OK)
        return status;
    status = compare(at, DATA, &mine);
    if (status == TIDE_OK)
        sum_ranges(at, &mine);
    leave(at, DATA);
    return status;
}

static tide_status loop_exchange(tide_comm *comm, const void *mine, size_t bytes, void *all)
{
    loop_comm *at = loop_comm_of(comm);
    /* in its place first, since `mine` may lie where another rank's bytes will */
    void *own = (char *)all + comm->rank * bytes;
    if (bytes > 0)
        memmove(own, mine, bytes);
    const call made = make_call(EXCHANGE, NULL, 0, own, bytes);
    tide_status status = meet(at, SIDE, &made);
    if (status != TIDE_OK)
        return status;
    status = compare(at, SIDE, &made);
    for (uint32_t rank = 0; rank < comm->ranks && status == TIDE_OK && bytes > 0; rank++)
        if (rank != comm->rank)
            memcpy((char *)all + rank * bytes, at->loop->places[SIDE].calls[rank]->mine, bytes);
    leave(at, SIDE);
    return status;
}

/* --- end --- */

static void loop_abort(tide_comm *comm, const char *reason)
{
    loop *l = loop_comm_of(comm)->loop;
    pthread_mutex_lock(&l->lock);
    if (l->failed == UINT32_MAX) {
        l->failed = comm->rank;
        snprintf(l->reason, sizeof l->reason, "%s", reason);
    }
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

static void loop_free(loop *l)
{
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static void loop_destroy(tide_comm *comm)
{
    loop_comm *at = loop_comm_of(comm);
    loop *l = at->loop;
    pthread_mutex_lock(&l->lock);
    l->ended = comm->rank;
    const bool last = --l->members == 0;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    if (last)
        loop_free(l);
    tide_comm_fini(comm);
    free(at);
}

static const tide_comm_ops loop_ops = {.gather = loop_gather,
                                       .reduce = loop_reduce,
                                       .exchange = loop_exchange,
                                       .abort = loop_abort,
                                       .destroy = loop_destroy};

/* --- create --- */

static loop *loop_allocate(uint32_t ranks)
{
    loop *l = calloc(1, sizeof *l + PLACES * (size_t)ranks * sizeof l->calls[0]);
    if (l == NULL)
        return NULL;
    l->ranks = l->members = ranks;
    l->ended = l->failed = UINT32_MAX;
    for (uint32_t i = 0; i < PLACES; i++)
        l->places[i].calls = &l->calls[i * (size_t)ranks];
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    return l;
}

tide_status tide_comm_loop_create(uint32_t ranks, tide_comm **comms)
{
    if (comms == NULL || ranks == 0 || ranks > TIDE_RANKS_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_comm_loop_create: %s",
                         comms == NULL ? "comms is NULL" : "ranks must be 1 to 1024");
    loop *l = loop_allocate(ranks);
    bool lacks = l == NULL;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        loop_comm *at = lacks ? NULL : calloc(1, sizeof *at + ranks * sizeof at->inputs[0]);
        lacks = at == NULL;
        comms[rank] = lacks ? NULL : &at->comm;
        if (lacks)
            continue;
        at->loop = l;
        tide_comm_init(&at->comm, &loop_ops, rank, ranks);
    }
    if (!lacks)
        return TIDE_OK;
    for (uint32_t rank = 0; rank < ranks && comms[rank] != NULL; rank++) {
        tide_comm_fini(comms[rank]);
        free(loop_comm_of(comms[rank]));
        comms[rank] = NULL;
    }
    if (l != NULL)
        loop_free(l);
    return tide_fail(TIDE_ERROR_NO_MEMORY, "comm: no memory for %u ranks", ranks);
}
