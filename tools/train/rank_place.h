/* A process's place among the ranks of a run, by the variables that launchers set. The first of these
 * launchers whose variables are there counts:
 *
 *   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   Open MPI   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
 *   MPICH      PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
 *   Slurm      SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, inside a step of srun (SLURM_STEP_ID)
 *
 * Rank 0's address is the first of these that is there: --master, MASTER_ADDR, the first host of
 * SLURM_STEP_NODELIST, SLURM_LAUNCH_NODE_IPADDR, and 127.0.0.1 if all ranks are on one host. Its port is
 * --port, or the one behind MASTER_PORT, which torchrun itself uses, or one that follows from the job's id.
 */
#ifndef TIDE_TOOLS_RANK_PLACE_H
#define TIDE_TOOLS_RANK_PLACE_H

#include "tidepool/status.h"

#include <stdint.h>

typedef struct tide_rank_place {
    const char *launcher; /* "torchrun", "Open MPI", "MPICH", "Slurm"; NULL: none, and nothing else is set */
    uint32_t rank, ranks;
    uint32_t local_rank, local_ranks; /* of this host; UINT32_MAX, 0: the launcher does not say */
    char address[256];                /* rank 0's */
    uint16_t port;
    char token[160]; /* the job's id, which separates runs; a secret only if TIDEPOOL_TOKEN gives one */
} tide_rank_place;

typedef const char *(*tide_variable)(void *context, const char *name);
const char *tide_rank_variable(void *unused, const char *name); /* getenv */

/* `master`: --master, or NULL; `port`: --port, or 0. ARGUMENT: a variable is missing beside others of its
 * launcher or is no number, or several hosts have no address of rank 0. */
TIDE_NODISCARD tide_status tide_rank_place_find(tide_variable variable, void *context, const char *master,
                                                uint32_t port, tide_rank_place *place);

#endif
