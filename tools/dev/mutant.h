/* The switch of tools/dev/mutate.py, which includes this header in every source that it mutates.
 *
 * A mutant is a number from 1. The environment chooses: with TIDE_MUTANT=K the program runs mutant K; with
 * TIDE_MUTANT_REACHED=FILE it runs no mutant and sets byte K of the file for each mutant K that it reaches.
 * Every linked object has one copy of the two variables. A constructor sets them before main, so all threads
 * only read them. The system calls are made directly, since tests put functions of their own in the place of
 * open and mmap. */
#ifndef TIDE_MUTANT_H
#define TIDE_MUTANT_H

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

long syscall(long number, ...); /* unistd.h would also declare names that a mutated file may use itself */

#define TIDE_MUTANT_SHARED __attribute__((weak, visibility("hidden")))

TIDE_MUTANT_SHARED int tide_mutant_number; /* the mutant to run, 0: none, -1: note which ones are reached */
TIDE_MUTANT_SHARED unsigned char *tide_mutant_reached;

__attribute__((constructor)) static void tide_mutant_choose(void)
{
    const char *number = getenv("TIDE_MUTANT"), *path = getenv("TIDE_MUTANT_REACHED");
    if (tide_mutant_number != 0 || (!number && !path))
        return;
    if (number) {
        tide_mutant_number = atoi(number);
        return;
    }
    struct stat file;
    int descriptor = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0)
        return;
    if (fstat(descriptor, &file) == 0) {
        long map =
            syscall(SYS_mmap, NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0L);
        if (map != -1) {
            tide_mutant_reached = (unsigned char *)map;
            tide_mutant_number = -1;
        }
    }
    syscall(SYS_close, descriptor);
}

/* The attribute const is not true while the file is written. It lets the compiler take the test of
 * tide_mutant_number out of a kernel's loop, which it can then still vectorize. */
__attribute__((noipa, const, unused)) static int tide_mutant_check(int number)
{
    if (tide_mutant_reached)
        tide_mutant_reached[number] = 1;
    return tide_mutant_number == number;
}

__attribute__((unused)) static inline int tide_mutant_is(int number)
{
    return __builtin_expect(tide_mutant_number != 0, 0) && tide_mutant_check(number);
}

#endif
