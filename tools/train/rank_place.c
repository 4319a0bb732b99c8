#include "tools/train/rank_place.h"

#include "base/hash.h"
#include "tidepool/comm.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT_FIRST = 20000, PORTS = 10000 /* below those that systems choose for outgoing connections */ };

/* The variables of a launcher; ids[0] is set for every process that it has started. */
typedef struct launcher {
    const char *name, *needs; /* `needs`: must be set, too; may be NULL */
    const char *rank, *ranks, *local_rank, *local_ranks;
    const char *ids[2]; /* of the job; may be NULL */
} launcher;

static const launcher launchers[] = {
    {"torchrun",
     NULL,
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", "MASTER_PORT"}},
    {"Open MPI",
     NULL,
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {"MPICH", NULL, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {"PMI_JOBID", NULL}},
    {"Slurm",
     "SLURM_STEP_ID",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     NULL,
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

typedef struct environment {
    tide_variable variable;
    void *context;
} environment;

const char *tide_rank_variable(void *unused, const char *name)
{
    (void)unused;
    return getenv(name);
}

static const char *text_of(const environment *at, const char *name)
{
    const char *text = name == NULL ? NULL : at->variable(at->context, name);
    return text == NULL || text[0] == '\0' ? NULL : text;
}

/* `otherwise` if the variable is not set. */
static tide_status number_of(const environment *at, const launcher *by, const char *name, uint32_t least,
                             uint32_t most, uint32_t otherwise, uint32_t *number)
{
    const char *text = text_of(at, name);
    char *end = NULL;
    *number = otherwise;
    if (text == NULL)
        return TIDE_OK;
    const unsigned long value = strtoul(text, &end, 10);
    if (end == text || *end != '\0' || text[0] == '-' || value < least || value > most)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "%s, a variable of %s, is \"%s\": it must be a number from %u to %u", name, by->name,
                         text, least, most);
    *number = (uint32_t)value;
    return TIDE_OK;
}

/* srun --mpi=pmi2 sets PMI_RANK as MPICH's mpiexec does, but no place on the host. */
static bool is_of_srun(const environment *at, const launcher *by)
{
    return strcmp(by->name, "MPICH") == 0 && text_of(at, by->local_ranks) == NULL &&
           text_of(at, "SLURM_STEP_ID") != NULL;
}

static const launcher *find(const environment *at)
{
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++)
        if (text_of(at, launchers[i].rank) != NULL &&
            (launchers[i].needs == NULL || text_of(at, launchers[i].needs) != NULL) &&
            !is_of_srun(at, &launchers[i]))
            return &launchers[i];
    return NULL;
}

static tide_status find_numbers(const environment *at, const launcher *by, tide_rank_place *place)
{
    if (text_of(at, by->ranks) == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s is set, but not %s: %s sets both", by->rank, by->ranks,
                         by->name);
    tide_status status = number_of(at, by, by->ranks, 1, TIDE_RANKS_MAX, 1, &place->ranks);
    if (status == TIDE_OK)
        status = number_of(at, by, by->rank, 0, place->ranks - 1, 0, &place->rank);
    if (status == TIDE_OK)
        status = number_of(at, by, by->local_rank, 0, TIDE_RANKS_MAX - 1, UINT32_MAX, &place->local_rank);
    if (status == TIDE_OK)
        status = number_of(at, by, by->local_ranks, 1, place->ranks, 0, &place->local_ranks);
    return status;
}

/* The first host of a list as Slurm writes it: "gpu[003-007,9]-a,login" begins with gpu003-a. */
static void first_host(const char *list, char *host, size_t bytes)
{
    const size_t prefix = strcspn(list, "[,");
    if (list[prefix] != '[') {
        snprintf(host, bytes, "%.*s", (int)prefix, list);
        return;
    }
    const char *number = list + prefix + 1;
    const char *behind = strchr(number, ']');
    const size_t digits = strcspn(number, "-,]");
    const size_t suffix = behind == NULL ? 0 : strcspn(behind + 1, ",");
    snprintf(host, bytes, "%.*s%.*s%.*s", (int)prefix, list, (int)digits, number, (int)suffix,
             behind == NULL ? "" : behind + 1);
}

static tide_status find_address(const environment *at, const char *master, tide_rank_place *place)
{
    const char *address = master != NULL ? master : text_of(at, "MASTER_ADDR");
    const bool slurm = strcmp(place->launcher, "Slurm") == 0;
    const char *hosts = slurm ? text_of(at, "SLURM_STEP_NODELIST") : NULL;
    if (address == NULL && slurm && hosts == NULL)
        address = text_of(at, "SLURM_LAUNCH_NODE_IPADDR");
    if (address == NULL && hosts != NULL)
        first_host(hosts, place->address, sizeof place->address);
    else if (address != NULL && strlen(address) < sizeof place->address)
        snprintf(place->address, sizeof place->address, "%s", address);
    else if (address != NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "rank 0's address %.60s...: it is too long", address);
    else if (place->local_ranks == place->ranks)
        snprintf(place->address, sizeof place->address, "127.0.0.1");
    else
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "%u ranks started by %s, not all on this host: MASTER_ADDR or --master must name rank "
            "0's host",
            place->ranks, place->launcher);
    return TIDE_OK;
}

static void find_token(const environment *at, const launcher *by, tide_rank_place *place)
{
    const char *secret = text_of(at, "TIDEPOOL_TOKEN");
    const char *ids[2] = {text_of(at, by->ids[0]), text_of(at, by->ids[1])};
    if (secret != NULL)
        snprintf(place->token, sizeof place->token, "%.150s", secret);
    else
        snprintf(place->token, sizeof place->token, "%.70s.%.70s", ids[0] != NULL ? ids[0] : "",
                 ids[1] != NULL ? ids[1] : "");
}

static tide_status find_port(const environment *at, const launcher *by, uint32_t port, tide_rank_place *place)
{
    uint32_t torchrun = 0;
    const tide_status status = number_of(at, by, "MASTER_PORT", 1, UINT16_MAX - 1, 0, &torchrun);
    const uint64_t hash = tide_hash_end(1, place->token, strlen(place->token), strlen(place->token));
    if (port != 0)
        place->port = (uint16_t)port;
    else if (torchrun != 0)
        place->port = (uint16_t)(torchrun + 1);
    else
        place->port = (uint16_t)(PORT_FIRST + hash % PORTS);
    return status;
}

tide_status tide_rank_place_find(tide_variable variable, void *context, const char *master, uint32_t port,
                                 tide_rank_place *place)
{
    const environment at = {variable, context};
    const launcher *by = find(&at);
    *place = (tide_rank_place){.ranks = 1, .local_rank = UINT32_MAX};
    if (by == NULL)
        return TIDE_OK;
    tide_rank_place found = {.launcher = by->name};
    tide_status status = find_numbers(&at, by, &found);
    if (status == TIDE_OK && found.ranks > 1)
        status = find_address(&at, master, &found);
    find_token(&at, by, &found);
    if (status == TIDE_OK)
        status = find_port(&at, by, port, &found);
    if (status == TIDE_OK)
        *place = found;
    return status;
}
