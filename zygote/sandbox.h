/* sandbox.h - the system calls that a copy may still make: no file, no socket, no program, no other process.  Knows nothing of
 * Node.
 *
 * WebAssembly is no border in Node: Python code reaches JavaScript, and all of Node with it.  This is the border.  The filter is
 * compiled once in the server; a copy puts its own pid in and turns it on. */
#ifndef ZYGOTE_SANDBOX_H
#define ZYGOTE_SANDBOX_H

#include <linux/filter.h>

#define SANDBOX_FILTER_MAX 1024 /* instructions */

struct sandbox {
    struct sock_filter filter[SANDBOX_FILTER_MAX];
    unsigned short length;
};

/* Does this kernel filter system calls?  0 or -errno. */
int sandbox_probe(void);
/* For the server, and so for all that it forks: no io_uring.  Its rings are memory that a fork shares, and a loop that has one makes
 * system calls that the filter of a copy kills for.  0 or -errno. */
int sandbox_refuse_rings(void);
/* 0 or -errno. */
int sandbox_compile(struct sandbox *ret);
/* From here on nothing can be opened.  Cannot be undone.  0 or -errno. */
int sandbox_enter(struct sandbox *sandbox);

#endif
