/* A process's place among the ranks, from the variables of each launcher as it sets them. */
#include "tests/support/assert_ok.h"
#include "tools/train/rank_place.h"

enum { VARIABLES_MOST = 12 };

typedef struct variables {
    const char *pairs[VARIABLES_MOST][2];
} variables;

static const char *look_up(void *context, const char *name)
{
    const variables *all = context;
    for (int i = 0; i < VARIABLES_MOST && all->pairs[i][0] != NULL; i++)
        if (strcmp(all->pairs[i][0], name) == 0)
            return all->pairs[i][1];
    return NULL;
}

static tide_rank_place place_of(variables all, const char *master, uint32_t port)
{
    tide_rank_place place;
    assert_ok(tide_rank_place_find(look_up, &all, master, port, &place));
    return place;
}

static void without_a_launcher_a_process_is_alone(void **state)
{
    const tide_rank_place place = place_of((variables){{{"HOME", "/root"}}}, NULL, 0);
    assert_null(place.launcher);
    assert_int_equal(place.ranks, 1);
    assert_int_equal(place.rank, 0);
}

static const variables torchrun = {{{"RANK", "5"},
                                    {"WORLD_SIZE", "8"},
                                    {"LOCAL_RANK", "1"},
                                    {"LOCAL_WORLD_SIZE", "4"},
                                    {"MASTER_ADDR", "fd00::1"},
                                    {"MASTER_PORT", "29500"},
                                    {"TORCHELASTIC_RUN_ID", "run-7"}}};

static void torchrun_is_understood(void **state)
{
    const tide_rank_place place = place_of(torchrun, NULL, 0);
    assert_string_equal(place.launcher, "torchrun");
    assert_int_equal(place.rank, 5);
    assert_int_equal(place.ranks, 8);
    assert_int_equal(place.local_rank, 1);
    assert_int_equal(place.local_ranks, 4);
    assert_string_equal(place.address, "fd00::1");
    assert_int_equal(place.port, 29501); /* its agent holds MASTER_PORT */
    assert_string_equal(place.token, "run-7.29500");
}

static void options_come_before_variables(void **state)
{
    const tide_rank_place place = place_of(torchrun, "10.0.0.9", 4000);
    assert_string_equal(place.address, "10.0.0.9");
    assert_int_equal(place.port, 4000);
}

static void open_mpi_and_mpich_are_understood(void **state)
{
    tide_rank_place place = place_of((variables){{{"OMPI_COMM_WORLD_RANK", "2"},
                                                  {"OMPI_COMM_WORLD_SIZE", "4"},
                                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                                  {"PMIX_NAMESPACE", "prterun-host-12@1"}}},
                                     NULL, 0);
    assert_string_equal(place.launcher, "Open MPI");
    assert_int_equal(place.rank, 2);
    assert_int_equal(place.ranks, 4);
    assert_string_equal(place.address, "127.0.0.1");
    assert_in_range(place.port, 20000, 29999);
    place = place_of((variables){{{"PMI_RANK", "3"},
                                  {"PMI_SIZE", "6"},
                                  {"MPI_LOCALRANKID", "0"},
                                  {"MPI_LOCALNRANKS", "3"},
                                  {"MASTER_ADDR", "head"}}},
                     NULL, 0);
    assert_string_equal(place.launcher, "MPICH");
    assert_int_equal(place.rank, 3);
    assert_string_equal(place.address, "head");
}

static void jobs_have_ports_and_tokens_of_their_own(void **state)
{
    variables job = {{{"OMPI_COMM_WORLD_RANK", "0"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"PMIX_NAMESPACE", "one"}}};
    const tide_rank_place one = place_of(job, NULL, 0), again = place_of(job, NULL, 0);
    job.pairs[3][1] = "two";
    const tide_rank_place two = place_of(job, NULL, 0);
    assert_int_equal(one.port, again.port);
    assert_string_equal(one.token, again.token);
    assert_int_not_equal(one.port, two.port);
    assert_string_not_equal(one.token, two.token);
    job.pairs[4][0] = "TIDEPOOL_TOKEN";
    job.pairs[4][1] = "secret";
    assert_string_equal(place_of(job, NULL, 0).token, "secret");
}

static void slurm_is_understood_inside_a_step_only(void **state)
{
    variables step = {{{"SLURM_PROCID", "9"},
                       {"SLURM_STEP_NUM_TASKS", "16"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_JOB_ID", "77"},
                       {"SLURM_LAUNCH_NODE_IPADDR", "10.1.1.1"},
                       {"SLURM_STEP_NODELIST", "gpu[003-007,9]-a,login"}}};
    assert_null(place_of(step, NULL, 0).launcher); /* a batch script */
    step.pairs[6][0] = "SLURM_STEP_ID";
    step.pairs[6][1] = "0";
    tide_rank_place place = place_of(step, NULL, 0);
    assert_string_equal(place.launcher, "Slurm");
    assert_int_equal(place.rank, 9);
    assert_int_equal(place.ranks, 16);
    assert_int_equal(place.local_rank, 1);
    assert_string_equal(place.address, "gpu003-a");
    assert_string_equal(place.token, "77.0");
    static const char *const lists[][2] = {
        {"n1", "n1"}, {"n1,n2", "n1"}, {"a[1,3]", "a1"}, {"a[01]b,c", "a01b"}, {"x-y[7-9]", "x-y7"}};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        step.pairs[5][1] = lists[i][0];
        assert_string_equal(place_of(step, NULL, 0).address, lists[i][1]);
    }
    step.pairs[5][1] = "";
    assert_string_equal(place_of(step, NULL, 0).address, "10.1.1.1");
}

static void srun_with_pmi2_is_slurm_and_mpiexec_in_a_step_is_mpich(void **state)
{
    variables step = {{{"SLURM_PROCID", "1"},
                       {"SLURM_STEP_NUM_TASKS", "2"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_STEP_NODELIST", "n[1-2]"},
                       {"PMI_RANK", "1"},
                       {"PMI_SIZE", "2"}}};
    assert_string_equal(place_of(step, NULL, 0).launcher, "Slurm");
    assert_string_equal(place_of(step, NULL, 0).address, "n1");
    step.pairs[6][0] = "MPI_LOCALNRANKS"; /* of Hydra, which starts its helpers by srun */
    step.pairs[6][1] = "2";
    assert_string_equal(place_of(step, NULL, 0).launcher, "MPICH");
}

static void variables_that_make_no_sense_are_refused(void **state)
{
    static const struct {
        variables all;
        const char *words;
    } cases[] = {
        {{{{"RANK", "1"}}}, "RANK is set, but not WORLD_SIZE: torchrun sets both"},
        {{{{"RANK", "2"}, {"WORLD_SIZE", "2"}}},
         "RANK, a variable of torchrun, is \"2\": it must be a number from 0 to 1"},
        {{{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}}, "RANK, a variable of torchrun, is \"-1\""},
        {{{{"RANK", "0"}, {"WORLD_SIZE", "many"}}},
         "WORLD_SIZE, a variable of torchrun, is \"many\": it must be a number from 1 to 1024"},
        {{{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "65535"}}},
         "MASTER_PORT, a variable of torchrun, is \"65535\""},
        {{{{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}}},
         "4 ranks started by MPICH, not all on this host: MASTER_ADDR or --master must name rank 0's host"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        variables all = cases[i].all;
        tide_rank_place place;
        assert_fails(tide_rank_place_find(look_up, &all, NULL, 0, &place), TIDE_ERROR_ARGUMENT,
                     cases[i].words);
    }
}

static void a_world_of_one_is_no_world(void **state)
{
    const tide_rank_place place =
        place_of((variables){{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}}, NULL, 0);
    assert_int_equal(place.ranks, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_launcher_a_process_is_alone),
        cmocka_unit_test(torchrun_is_understood),
        cmocka_unit_test(options_come_before_variables),
        cmocka_unit_test(open_mpi_and_mpich_are_understood),
        cmocka_unit_test(jobs_have_ports_and_tokens_of_their_own),
        cmocka_unit_test(slurm_is_understood_inside_a_step_only),
        cmocka_unit_test(srun_with_pmi2_is_slurm_and_mpiexec_in_a_step_is_mpich),
        cmocka_unit_test(variables_that_make_no_sense_are_refused),
        cmocka_unit_test(a_world_of_one_is_no_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
