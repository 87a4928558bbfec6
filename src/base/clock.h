/* clock.h - the three clocks.  Deadlines and grace use the monotonic clock, leases the boot clock
 * (it goes on while the machine sleeps), the wall clock only stands in records.  Any thread. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include "base/macro.h"

int64_t clock_mono_ns(void); /* CLOCK_MONOTONIC */
int64_t clock_mono_ms(void);
int64_t clock_boot_ms(void); /* CLOCK_BOOTTIME */
int64_t clock_wall_ms(void); /* CLOCK_REALTIME */

#define CLOCK_RFC3339_SIZE 32
/* Write "2026-01-31T12:00:00.123Z" for wall_ms; returns buf. */
char *clock_rfc3339(int64_t wall_ms, char buf[static CLOCK_RFC3339_SIZE]);

/* This boot's id (/proc/sys/kernel/random/boot_id, 36 characters), read once; "" if unreadable. */
const char *clock_boot_id(void);

#endif
