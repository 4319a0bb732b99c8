/* Tests of test_gpu_device.c that have files of their own. */
#ifndef TIDEPOOL_TESTS_TEST_GPU_CASES_H
#define TIDEPOOL_TESTS_TEST_GPU_CASES_H

/* test_gpu_matmuls.c */
void matmuls_stay_within_their_operands(void **state);
/* test_gpu_schedule.c */
void random_schedule_has_the_contents_of_a_reference_model(void **state);
/* test_gpu_update.c */
void update_through_chunks_has_the_cpus_bits(void **state);

#endif
