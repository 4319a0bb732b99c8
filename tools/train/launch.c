#include "tools/train/launch.h"

#include "base/clock.h"
#include "tools/command.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* More than ranks wait for each other at the start (tide_comm_socket_options.timeout_seconds), and then say
 * which are missing. */
static const double survivors_seconds = 75, patience_seconds = 600;

enum { TOKEN_BYTES = 16, RUNNING = -1 };

typedef struct child {
    pid_t pid;
    int status; /* exit status; RUNNING */
} child;

typedef struct launch {
    uint32_t ranks, running;
    child *children; /* by rank */
    int listener;
    int give_up[2]; /* a pipe: the ranks', and this process's until a rank ends */
    uint16_t port;
    char token[2 * TOKEN_BYTES + 1];
    double failed_s; /* when a rank was first seen to have failed; 0: none has */
    bool warned;     /* those that still run have got SIGTERM */
} launch;

/* Those that the launcher waits for: the end of a rank, and what it passes on to all ranks. */
static sigset_t signals_awaited(void)
{
    static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGXCPU, SIGUSR1, SIGUSR2};
    sigset_t awaited;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGCHLD);
    for (size_t i = 0; i < sizeof passed_on / sizeof passed_on[0]; i++)
        sigaddset(&awaited, passed_on[i]);
    return awaited;
}

/* --- a rank's part --- */

bool tide_launch_is_rank(void)
{
    return getenv("TIDEPOOL_RANK") != NULL;
}

void tide_launch_take_signals(void)
{
    const sigset_t awaited = signals_awaited();
    if (tide_launch_is_rank())
        sigprocmask(SIG_UNBLOCK, &awaited, NULL);
}

static tide_status read_number(const char *name, unsigned long most, unsigned long *number)
{
    const char *text = getenv(name);
    char *end = NULL;
    *number = text != NULL ? strtoul(text, &end, 10) : 0;
    if (text == NULL || end == text || *end != '\0' || *number > most)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s=%s: must be a number up to %lu", name,
                         text != NULL ? text : "", most);
    return TIDE_OK;
}

tide_status tide_launch_read(tide_comm_socket_options *options)
{
    static char token[2 * TOKEN_BYTES + 1];
    unsigned long rank = 0, ranks = 0, port = 0, listener = 0, give_up = 0;
    const char *secret = getenv("TIDEPOOL_TOKEN");
    tide_status status = read_number("TIDEPOOL_RANK", TIDE_RANKS_MAX - 1, &rank);
    if (status == TIDE_OK)
        status = read_number("TIDEPOOL_RANKS", TIDE_RANKS_MAX, &ranks);
    if (status == TIDE_OK)
        status = read_number("TIDEPOOL_PORT", UINT16_MAX, &port);
    if (status == TIDE_OK && getenv("TIDEPOOL_LISTENER") != NULL)
        status = read_number("TIDEPOOL_LISTENER", 1UL << 20, &listener);
    if (status == TIDE_OK && getenv("TIDEPOOL_GIVE_UP") != NULL)
        status = read_number("TIDEPOOL_GIVE_UP", 1UL << 20, &give_up);
    if (status != TIDE_OK)
        return status;
    if (secret == NULL || ranks < 2 || rank >= ranks)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "TIDEPOOL_RANK is set, as by tidepool train --ranks for its ranks, but %s",
                         secret == NULL ? "not TIDEPOOL_TOKEN" : "does not fit TIDEPOOL_RANKS");
    snprintf(token, sizeof token, "%s", secret);
    (void)unsetenv("TIDEPOOL_TOKEN");
    *options = (tide_comm_socket_options){.rank = (uint32_t)rank,
                                          .ranks = (uint32_t)ranks,
                                          .port = (uint16_t)port,
                                          .listener = (int)listener,
                                          .give_up = (int)give_up,
                                          .token = token};
    return TIDE_OK;
}

/* --- the launcher's --- */

static tide_status make_token(char token[2 * TOKEN_BYTES + 1])
{
    unsigned char bytes[TOKEN_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return tide_fail(TIDE_ERROR_IO, "no random bytes for the run's token: %s", strerror(errno));
    for (int i = 0; i < TOKEN_BYTES; i++)
        snprintf(token + 2 * (size_t)i, 3, "%02x", bytes[i]);
    return TIDE_OK;
}

static tide_status listen_here(launch *l)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    l->listener = socket(AF_INET, SOCK_STREAM, 0);
    if (l->listener < 0 || bind(l->listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(l->listener, SOMAXCONN) != 0 ||
        getsockname(l->listener, (struct sockaddr *)&address, &bytes) != 0)
        return tide_fail(TIDE_ERROR_IO, "no port on 127.0.0.1: %s", strerror(errno));
    l->port = ntohs(address.sin_port);
    return TIDE_OK;
}

static tide_status make_pipe(launch *l)
{
    if (pipe(l->give_up) != 0) {
        l->give_up[0] = l->give_up[1] = -1;
        return tide_fail(TIDE_ERROR_IO, "no pipe to the ranks: %s", strerror(errno));
    }
    (void)fcntl(l->give_up[1], F_SETFD, FD_CLOEXEC);
    return TIDE_OK;
}

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void set_number(const char *name, unsigned long number)
{
    char text[32];
    snprintf(text, sizeof text, "%lu", number);
    setenv(name, text, 1);
}

/* In the new process: become rank `rank`. */
static void become(const launch *l, uint32_t rank, pid_t parent, char **words)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) /* which died before */
        _exit(TIDE_EXIT_FAILURE);
    set_number("TIDEPOOL_RANK", rank);
    set_number("TIDEPOOL_RANKS", l->ranks);
    set_number("TIDEPOOL_PORT", l->port);
    setenv("TIDEPOOL_TOKEN", l->token, 1);
    set_number("TIDEPOOL_GIVE_UP", (unsigned long)l->give_up[0]);
    if (rank == 0)
        set_number("TIDEPOOL_LISTENER", (unsigned long)l->listener);
    else
        close(l->listener);
    execv("/proc/self/exe", words);
    fprintf(stderr, "tidepool train: rank %u: can't start the program again: %s\n", rank, strerror(errno));
    _exit(TIDE_EXIT_FAILURE);
}

static void tell(const launch *l, int number)
{
    for (uint32_t rank = 0; rank < l->ranks; rank++)
        if (l->children[rank].status == RUNNING && l->children[rank].pid > 0)
            (void)kill(l->children[rank].pid, number);
}

/* Pass a signal on. A rank that is stopped goes on, so that it can end. */
static void pass_on(const launch *l, int number)
{
    tell(l, number);
    if (number == SIGINT || number == SIGTERM)
        tell(l, SIGCONT);
}

static tide_status start(launch *l, char **words)
{
    const pid_t parent = getpid();
    fflush(NULL);
    for (uint32_t rank = 0; rank < l->ranks; rank++) {
        const pid_t pid = fork();
        if (pid == 0)
            become(l, rank, parent, words);
        if (pid < 0) {
            const tide_status status =
                tide_fail(TIDE_ERROR_IO, "rank %u can't be started: %s", rank, strerror(errno));
            tell(l, SIGKILL);
            return status;
        }
        l->children[rank] = (child){.pid = pid, .status = RUNNING};
        l->running++;
    }
    return TIDE_OK;
}

static void note_end(launch *l, pid_t pid, int how)
{
    for (uint32_t rank = 0; rank < l->ranks; rank++) {
        child *of = &l->children[rank];
        if (of->pid != pid || of->status != RUNNING)
            continue;
        of->status = WIFEXITED(how) ? WEXITSTATUS(how) : TIDE_EXIT_FAILURE;
        l->running--;
        close_one(&l->give_up[1]);
        if (WIFSIGNALED(how))
            fprintf(stderr, "tidepool train: rank %u was ended by signal %d (%s)\n", rank, WTERMSIG(how),
                    strsignal(WTERMSIG(how)));
        if (of->status != TIDE_EXIT_OK && l->failed_s == 0)
            l->failed_s = tide_clock_seconds();
    }
}

static void reap(launch *l)
{
    int how;
    for (pid_t pid = waitpid(-1, &how, WNOHANG); pid > 0; pid = waitpid(-1, &how, WNOHANG))
        note_end(l, pid, how);
}

/* Ends the ranks that still run long after one has failed: they hang. */
static void kill_survivors(launch *l)
{
    if (l->running == 0 || l->failed_s == 0 || tide_clock_seconds() - l->failed_s < survivors_seconds)
        return;
    /* A rank may still save or export, which it ends when it gets this signal. */
    pass_on(l, l->warned ? SIGKILL : SIGTERM);
    fprintf(stderr, "tidepool train: %u rank%s still run%s long after one has failed: %s\n", l->running,
            l->running == 1 ? "" : "s", l->running == 1 ? "s" : "", l->warned ? "killed" : "told to end");
    l->failed_s += l->warned ? 1e9 : patience_seconds;
    l->warned = true;
}

static void wait_for_all(launch *l, const sigset_t *awaited)
{
    const struct timespec second = {.tv_sec = 1};
    while (l->running > 0) {
        const int number = sigtimedwait(awaited, NULL, &second);
        if (number > 0 && number != SIGCHLD)
            pass_on(l, number);
        reap(l);
        kill_survivors(l);
    }
}

/* A wrong command line ends all ranks. Those that another one tells of it before they see it end with another
 * status. */
static int exit_status(const launch *l)
{
    int first = TIDE_EXIT_OK;
    for (uint32_t rank = 0; rank < l->ranks; rank++) {
        const int status = l->children[rank].status;
        if (status == TIDE_EXIT_USAGE)
            return status;
        first = first == TIDE_EXIT_OK ? status : first;
    }
    return first;
}

static int run(launch *l, char **words)
{
    const sigset_t awaited = signals_awaited();
    sigprocmask(SIG_BLOCK, &awaited, NULL);
    (void)signal(SIGCHLD, SIG_DFL); /* where it is ignored, children end without a trace */
    tide_status status = make_token(l->token);
    if (status == TIDE_OK)
        status = listen_here(l);
    if (status == TIDE_OK)
        status = make_pipe(l);
    if (status == TIDE_OK)
        status = start(l, words);
    close_one(&l->listener);
    close_one(&l->give_up[0]);
    wait_for_all(l, &awaited);
    close_one(&l->give_up[1]);
    return status == TIDE_OK ? exit_status(l) : tide_command_failed("tidepool train", status);
}

int tide_launch_ranks(uint32_t ranks, int count, char *const *arguments)
{
    launch l = {
        .ranks = ranks, .listener = -1, .give_up = {-1, -1}, .children = calloc(ranks, sizeof *l.children)};
    char **words = calloc((size_t)count + 3, sizeof *words);
    int result = TIDE_EXIT_FAILURE;
    if (l.children != NULL && words != NULL) {
        static char program[] = "tidepool", command[] = "train";
        words[0] = program;
        words[1] = command;
        memcpy(words + 2, arguments, (size_t)count * sizeof *words);
        result = run(&l, words);
    } else
        result = tide_command_failed("tidepool train", tide_fail(TIDE_ERROR_NO_MEMORY, "no memory"));
    free(l.children);
    free(words);
    return result;
}
