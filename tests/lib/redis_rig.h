/* redis_rig.h - a Redis server of a test's own: free port of 127.0.0.1 and a Unix socket, nothing on disk. */
#ifndef TESTS_REDIS_RIG_H
#define TESTS_REDIS_RIG_H

#include <stdbool.h>
#include <sys/types.h>

struct redis_rig {
    pid_t pid;
    int port;
    char dir[64], socket[96];
};

/* Is there a server to start: the one that MANDOR_TEST_REDIS names, else redis-server of PATH? */
bool redis_rig_possible(void);
/* Start; extra: further arguments, NULL-terminated, or NULL.  Returns when it answers. */
void redis_rig_start(struct redis_rig *rig, const char *const *extra);
/* The same with a configuration file in front of the arguments. */
void redis_rig_start_file(struct redis_rig *rig, const char *file, const char *const *extra);
void redis_rig_stop(struct redis_rig *rig); /* SIGKILL, reaped; the directory stays */
void redis_rig_again(struct redis_rig *rig, const char *const *extra); /* on the same port */
void redis_rig_done(struct redis_rig *rig);
/* redis-cli ARGS; true when it exits 0. */
bool redis_rig_cli(const struct redis_rig *rig, const char *args);

#endif
