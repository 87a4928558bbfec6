/* interrupt.h - SIGTERM asks the running Python code to end; see interrupt.c for the three places where that can find it. */
#ifndef ZYGOTE_INTERRUPT_H
#define ZYGOTE_INTERRUPT_H

#include <stdbool.h>
#include <uv.h>

/* flag: the byte that Python looks at, valid for ever.  on_wake: called from the loop when the flag may still be up.  0 or -errno. */
int interrupt_start(uv_loop_t *loop, volatile unsigned char *flag, void (*on_wake)(void));
/* A job runs: a signal goes to it.  Otherwise it ends the process. */
void interrupt_arm(void);
/* No job runs any more.  True: a signal came while it did. */
bool interrupt_disarm(void);

/* Sleep; returns the milliseconds that were left when a signal came, or 0. */
double interrupt_sleep(double ms);

#endif
