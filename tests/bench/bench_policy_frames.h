/* Counts the gathers that ZeRO-3 with frames makes (chunk/frames.h). */
#ifndef TIDE_TESTS_BENCH_POLICY_FRAMES_H
#define TIDE_TESTS_BENCH_POLICY_FRAMES_H

/* Prints figures for models of 1.5, 8 and 70 billion params and groups of 2, 4 and 8. */
void bench_policy_frames(void);

#endif
