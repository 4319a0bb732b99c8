/* Random schedules on the CUDA device, for test_gpu_device.c. */
#ifndef TIDEPOOL_TESTS_TEST_GPU_SCHEDULE_H
#define TIDEPOOL_TESTS_TEST_GPU_SCHEDULE_H

/* cmocka's form. */
void random_schedule_has_the_contents_of_a_naive_model(void **state);

#endif
