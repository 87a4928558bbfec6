/* sandbox.c - contract in sandbox.h. */
#include "sandbox.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PID_PLACE 0x5a9d17u /* no pid: above PID_MAX_LIMIT */

/* What V8, Node's loop and the C library need to go on computing, reading and writing. */
static const int allowed[] = {
    SCMP_SYS(read),
    SCMP_SYS(write),
    SCMP_SYS(readv),
    SCMP_SYS(writev),
    SCMP_SYS(munmap),
    SCMP_SYS(mprotect),
    SCMP_SYS(pkey_mprotect),
    SCMP_SYS(madvise),
    SCMP_SYS(mremap),
    SCMP_SYS(brk),
    SCMP_SYS(futex),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(clock_nanosleep),
    SCMP_SYS(epoll_wait),
    SCMP_SYS(epoll_pwait),
    SCMP_SYS(epoll_ctl),
    SCMP_SYS(poll),
    SCMP_SYS(ppoll),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
    SCMP_SYS(getpid),
    SCMP_SYS(gettid),
    SCMP_SYS(setitimer),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(getrandom),
    SCMP_SYS(close),
    SCMP_SYS(sched_yield),
    SCMP_SYS(getrusage),
    SCMP_SYS(lseek),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(sched_getaffinity),
};

/* What no accident does: the copy dies at once. */
static const int fatal[] = {
    SCMP_SYS(execve),
    SCMP_SYS(execveat),
    SCMP_SYS(ptrace),
    SCMP_SYS(bpf),
    SCMP_SYS(io_uring_setup),
    SCMP_SYS(io_uring_enter),
    SCMP_SYS(io_uring_register),
    SCMP_SYS(process_vm_readv),
    SCMP_SYS(process_vm_writev),
};

static int add_all(scmp_filter_ctx context, uint32_t action, const int *calls, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (calls[i] < 0)
            continue; /* this processor has no such call */
        int r = seccomp_rule_add(context, action, calls[i], 0);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The filter as plain instructions: libseccomp hands it out through a descriptor alone. */
static int export(scmp_filter_ctx context, struct sandbox *ret)
{
    int fd = memfd_create("filter", MFD_CLOEXEC);

    if (fd < 0)
        return -errno;
    int r = seccomp_export_bpf(context, fd);
    ssize_t n =
        r < 0 || lseek(fd, 0, SEEK_SET) < 0 ? -1 : read(fd, ret->filter, sizeof ret->filter);
    (void)close(fd);
    if (r < 0)
        return r;
    if (n <= 0 || (size_t)n % sizeof *ret->filter != 0 || (size_t)n == sizeof ret->filter)
        return -EIO;
    ret->length = (unsigned short)((size_t)n / sizeof *ret->filter);
    return 0;
}

int sandbox_compile(struct sandbox *ret)
{
    scmp_filter_ctx context = seccomp_init(SCMP_ACT_ERRNO(EPERM));

    if (context == NULL)
        return -ENOMEM;
    int r = add_all(context, SCMP_ACT_ALLOW, allowed, sizeof allowed / sizeof *allowed);
    if (r == 0)
        r = add_all(context, SCMP_ACT_KILL_PROCESS, fatal, sizeof fatal / sizeof *fatal);
    if (r == 0) /* abort(3) signals itself; nobody else */
        r = seccomp_rule_add(context, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
                             SCMP_A0_32(SCMP_CMP_EQ, PID_PLACE));
    if (r == 0) /* what is private counts against RLIMIT_DATA, what is shared does not */
        r = seccomp_rule_add(context, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1,
                             SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_TYPE, MAP_PRIVATE));
    if (r == 0) /* its own limits, which it can only lower */
        r = seccomp_rule_add(context, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 1,
                             SCMP_A0_32(SCMP_CMP_EQ, 0));
    if (r == 0)
        r = export(context, ret);
    seccomp_release(context);
    return r;
}

int sandbox_probe(void)
{
    const unsigned action = SECCOMP_RET_KILL_PROCESS;

    return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) < 0 ? -errno : 0;
}

static int install(unsigned short length, struct sock_filter *filter)
{
    const struct sock_fprog program = { .len = length, .filter = filter };

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0 ? -errno : 0;
}

int sandbox_refuse_rings(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };

    return install(sizeof filter / sizeof *filter, filter);
}

int sandbox_enter(struct sandbox *sandbox)
{
    bool placed = false;

    for (unsigned i = 0; i < sandbox->length; i++)
        if (BPF_CLASS(sandbox->filter[i].code) == BPF_JMP && sandbox->filter[i].k == PID_PLACE) {
            sandbox->filter[i].k = (unsigned)getpid();
            placed = true;
        }
    if (!placed)
        return -ENOTRECOVERABLE;
    return install(sandbox->length, sandbox->filter);
}
