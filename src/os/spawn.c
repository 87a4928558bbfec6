/* spawn.c - contract in spawn.h.
 *
 * glibc has no wrapper for clone3(2), and a child that shares our memory needs a stack of its own, so the call and the jump
 * into the child are a few lines of assembly.  Elsewhere than on x86-64 and aarch64 the child gets a copy of the memory
 * (CLONE_VFORK without CLONE_VM): slower, otherwise the same.
 */
#include "os/spawn.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "os/pidfd.h"

#define STACK_BYTES    ((size_t)64 << 10)
#define GUARD_BYTES    ((size_t)64 << 10) /* covers every page size in use */
#define KERNEL_SIGNALS 64

struct clone3_args { /* clone3(2); the header's name differs between releases */
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        set_tid_size, cgroup;
};

struct kernel_sigaction { /* rt_sigaction(2) */
    uint64_t handler, flags, restorer, mask;
};

#define SIGNAL_BIT(sig) (UINT64_C(1) << ((sig)-1))

struct spawner_memory {
    unsigned char *map; /* guard, stack, report */
    struct report *report;
};

struct report { /* shared with the child even where the memory is not */
    int step, error;
};

/* ---- in the child ---- */

struct child_arg {
    const struct spawn_plan *plan;
    struct report *report;
};

#define CALL(...) (syscall(__VA_ARGS__) < 0 ? -errno : 0)

CHILD_SIDE static int join_cgroups(const struct spawn_plan *plan)
{
    for (size_t i = 0; i < plan->join_count; i++)
        if (syscall(SYS_write, plan->joins[i], "0", 1) < 0)
            return -errno;
    return 0;
}

CHILD_SIDE static int enter_namespace(const struct spawn_plan *plan)
{
    return plan->namespace_pidfd < 0 ? 0 : CALL(SYS_setns, plan->namespace_pidfd, CLONE_NEWNS);
}

CHILD_SIDE static int new_session(const struct spawn_plan *plan)
{
    (void)plan;
    return CALL(SYS_setsid);
}

CHILD_SIDE static int place_stdio(const struct spawn_plan *plan)
{
    for (int fd = 0; fd < SPAWN_STDIO; fd++)
        if (plan->stdio[fd] >= 0 && syscall(SYS_dup3, plan->stdio[fd], fd, 0) < 0)
            return -errno;
    return 0;
}

/* Best effort: lowering it again needs a privilege, raising never does. */
CHILD_SIDE static int offer_to_oom_killer(const struct spawn_plan *plan)
{
    if (plan->oom_score_adj <= 0)
        return 0;
    char digits[12];
    int at = sizeof digits;
    for (int n = plan->oom_score_adj; n > 0; n /= 10)
        digits[--at] = (char)('0' + n % 10);
    long fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC, 0);
    if (fd >= 0) {
        (void)syscall(SYS_write, fd, digits + at, sizeof digits - (size_t)at);
        (void)syscall(SYS_close, fd);
    }
    return 0;
}

CHILD_SIDE static int set_rlimits(const struct spawn_plan *plan)
{
    for (size_t i = 0; i < plan->rlimit_count; i++)
        if (syscall(SYS_prlimit64, 0, plan->rlimits[i].resource, &plan->rlimits[i].limit, NULL) < 0)
            return -errno;
    return 0;
}

/* Raw calls: glibc's would change every thread of ours.  Never with CLONE_VM (spawn_process()). */
CHILD_SIDE static int become_user(const struct spawn_plan *plan)
{
    if (!plan->set_user)
        return 0;
    if (syscall(SYS_setgroups, plan->group_count, plan->groups) < 0)
        return -errno;
    if (syscall(SYS_setresgid, plan->gid, plan->gid, plan->gid) < 0)
        return -errno;
    return CALL(SYS_setresuid, plan->uid, plan->uid, plan->uid);
}

CHILD_SIDE static int give_up_privileges(const struct spawn_plan *plan)
{
    return plan->no_new_privs ? CALL(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) : 0;
}

/* After the change of user, which clears it.  The parent may have gone before it was armed (R12). */
CHILD_SIDE static int die_with_parent(const struct spawn_plan *plan)
{
    if (syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return -errno;
    pid_t expected = plan->pid_namespace ? 0 : plan->parent;
    return (pid_t)syscall(SYS_getppid) == expected ? 0 : -ESRCH;
}

CHILD_SIDE static int change_directory(const struct spawn_plan *plan)
{
    return plan->cwd == NULL ? 0 : CALL(SYS_chdir, plan->cwd);
}

/* All but those in `keep` get their default action back. */
CHILD_SIDE static void reset_actions(uint64_t keep)
{
    struct kernel_sigaction by_default = { 0 };
    for (int sig = 1; sig <= KERNEL_SIGNALS; sig++)
        if ((keep & SIGNAL_BIT(sig)) == 0 && sig != SIGKILL && sig != SIGSTOP)
            (void)syscall(SYS_rt_sigaction, sig, &by_default, NULL, sizeof(uint64_t));
}

/* CLONE_CLEAR_SIGHAND leaves ignored signals ignored, and exec would keep them so (R02, R03). */
CHILD_SIDE static int reset_signals(const struct spawn_plan *plan)
{
    reset_actions(plan->not_ignored);
    uint64_t none = 0;
    return CALL(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none);
}

CHILD_SIDE static int close_the_rest(const struct spawn_plan *plan)
{
    unsigned first = plan->stdio[3] >= 0 ? 4 : 3;
    int r = CALL(SYS_close_range, first, ~0U, 0);
    return r == -ENOSYS ? 0 : r; /* before Linux 5.9: everything of ours is O_CLOEXEC anyhow */
}

CHILD_SIDE static int execute(const struct spawn_plan *plan)
{
    return CALL(SYS_execve, plan->path, plan->argv, plan->envp);
}

static const struct {
    enum spawn_step step;
    int (*fn)(const struct spawn_plan *plan);
} child_steps[] = {
    { SPAWN_STEP_CGROUP, join_cgroups },
    { SPAWN_STEP_NAMESPACE, enter_namespace },
    { SPAWN_STEP_SESSION, new_session },
    { SPAWN_STEP_STDIO, place_stdio },
    { SPAWN_STEP_SESSION, offer_to_oom_killer },
    { SPAWN_STEP_RLIMIT, set_rlimits },
    { SPAWN_STEP_USER, become_user },
    { SPAWN_STEP_USER, give_up_privileges },
    { SPAWN_STEP_SESSION, die_with_parent },
    { SPAWN_STEP_CHDIR, change_directory },
    { SPAWN_STEP_SESSION, reset_signals },
    { SPAWN_STEP_STDIO, close_the_rest },
    { SPAWN_STEP_EXEC, execute },
};

CHILD_SIDE static void run_child(void *arg_)
{
    struct child_arg *arg = arg_;
    for (size_t i = 0; i < ARRAY_LEN(child_steps); i++) {
        int r = child_steps[i].fn(arg->plan);
        if (r < 0) {
            arg->report->step = (int)child_steps[i].step;
            arg->report->error = r;
            break;
        }
    }
    for (;;)
        (void)syscall(SYS_exit_group, 127);
}

/* ---- in the parent ---- */

/* clone3 with a stack for the child, which runs fn(arg) and never comes back.  Returns the pid or -errno. */
#if defined(__x86_64__)
#define HAVE_CLONE_VM 1
CHILD_SIDE static long clone3_on_stack(struct clone3_args *args, size_t size, void (*fn)(void *),
                                       void *arg)
{
    long ret;
    register void (*fn_reg)(void *) __asm__("r8") = fn;
    register void *arg_reg __asm__("r9") = arg;
    __asm__ volatile("syscall\n\t"
                     "testq %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "movq %%r9, %%rdi\n\t"
                     "callq *%%r8\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(ret)
                     : "0"((long)SYS_clone3), "D"(args), "S"(size), "r"(fn_reg), "r"(arg_reg)
                     : "rcx", "r11", "memory", "cc");
    return ret;
}
#elif defined(__aarch64__)
#define HAVE_CLONE_VM 1
CHILD_SIDE static long clone3_on_stack(struct clone3_args *args, size_t size, void (*fn)(void *),
                                       void *arg)
{
    register long x0 __asm__("x0") = (long)args;
    register long x1 __asm__("x1") = (long)size;
    register long x8 __asm__("x8") = SYS_clone3;
    register void (*fn_reg)(void *) __asm__("x10") = fn;
    register void *arg_reg __asm__("x11") = arg;
    __asm__ volatile("svc #0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x0, x11\n\t"
                     "blr x10\n\t"
                     "brk #0\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(x1), "r"(x8), "r"(fn_reg), "r"(arg_reg)
                     : "memory", "cc");
    return x0;
}
#else
#define HAVE_CLONE_VM 0
static long clone3_on_stack(struct clone3_args *args, size_t size, void (*fn)(void *), void *arg)
{
    (void)args, (void)size, (void)fn, (void)arg;
    return -ENOSYS;
}
#endif

/* The same with a copy of the memory, so that the stack can stay where it is. */
CHILD_SIDE static long clone3_copy(struct clone3_args *args, void (*fn)(void *), void *arg)
{
    long pid = syscall(SYS_clone3, args, sizeof *args);
    if (pid == 0)
        fn(arg);
    return pid < 0 ? -errno : pid;
}

/* Where clone3 is not there, does not know our flags or is forbidden by a filter: clone(2), whose CLONE_PIDFD uses the place of
 * parent_tid. */
CHILD_SIDE static long clone_old(uint64_t flags, int *ret_pidfd, void (*fn)(void *), void *arg)
{
    flags &= ~(uint64_t)(CLONE_INTO_CGROUP | CLONE_CLEAR_SIGHAND | CLONE_PARENT_SETTID);
    long pid = syscall(SYS_clone, flags | SIGCHLD, 0, ret_pidfd, 0, 0);
    if (pid == 0) {
        reset_actions(0); /* what CLONE_CLEAR_SIGHAND does: no handler of ours may run there */
        fn(arg);
    }
    return pid < 0 ? -errno : pid;
}

/* Signal mask of this thread with all 64 blocked, glibc's own ones too: a handler must never run in the child while it
 * shares our memory. */
static uint64_t block_all(void)
{
    uint64_t all = ~(uint64_t)0, old = 0;
    (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, sizeof all);
    return old;
}

static void unblock(uint64_t old)
{
    (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, sizeof old);
}

/* Try the best call first and fall back as the kernel refuses.  `memory` NULL: never share memory. */
static long clone_best(uint64_t flags, int cgroup, _Atomic pid_t *newborn,
                       struct spawner_memory *memory, void (*fn)(void *), void *arg, int *ret_pidfd)
{
    struct clone3_args args = {
        .flags = flags | CLONE_PIDFD | CLONE_PARENT_SETTID | CLONE_CLEAR_SIGHAND |
                 (cgroup >= 0 ? CLONE_INTO_CGROUP : 0),
        .pidfd = (uint64_t)(uintptr_t)ret_pidfd,
        .parent_tid = (uint64_t)(uintptr_t)newborn,
        .exit_signal = SIGCHLD,
        .cgroup = cgroup >= 0 ? (uint64_t)cgroup : 0,
    };
    bool share = memory != NULL && HAVE_CLONE_VM;
    if (share) {
        args.flags |= CLONE_VM;
        args.stack = (uint64_t)(uintptr_t)(memory->map + GUARD_BYTES);
        args.stack_size = STACK_BYTES;
        long pid = clone3_on_stack(&args, sizeof args, fn, arg);
        if (pid != -ENOSYS && pid != -EINVAL && pid != -EPERM)
            return pid;
        args.flags &= ~(uint64_t)CLONE_VM;
        args.stack = args.stack_size = 0;
    }

    long pid = clone3_copy(&args, fn, arg);
    bool refused = pid == -ENOSYS || pid == -EINVAL || /* CLONE_CLEAR_SIGHAND is Linux 5.5 */
                   /* A filter, not a namespace that we may not make. */
                   (pid == -EPERM && flags == (flags & CLONE_VFORK));
    return refused && cgroup < 0 ? clone_old(args.flags, ret_pidfd, fn, arg) : pid;
}

bool spawn_has_clone3(void)
{
    return syscall(SYS_clone3, NULL, (size_t)0) < 0 && errno == EINVAL; /* arguments of no size */
}

int spawn_memory_new(struct spawner_memory **ret)
{
    struct spawner_memory *memory = malloc(sizeof *memory);
    if (memory == NULL)
        return -ENOMEM;

    size_t bytes = GUARD_BYTES + STACK_BYTES + GUARD_BYTES;
    memory->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory->map == MAP_FAILED || mprotect(memory->map, GUARD_BYTES, PROT_NONE) != 0) {
        int r = -errno;
        if (memory->map != MAP_FAILED)
            (void)munmap(memory->map, bytes);
        free(memory);
        return r;
    }
    memory->report = (void *)(memory->map + GUARD_BYTES + STACK_BYTES);
    *ret = memory;
    return 0;
}

struct spawner_memory *spawn_memory_free(struct spawner_memory *memory)
{
    if (memory != NULL)
        (void)munmap(memory->map, GUARD_BYTES + STACK_BYTES + GUARD_BYTES);
    free(memory);
    return NULL;
}

/* The outcome of a clone in `ret`. */
static int fill_result(struct spawn_result *ret, long pid, int pidfd)
{
    if (pid < 0) {
        *ret = (struct spawn_result){ .pidfd = -1, .step = SPAWN_STEP_CLONE, .error = (int)pid };
        return (int)pid;
    }
    *ret = (struct spawn_result){ .pid = (pid_t)pid, .pidfd = pidfd };
    return 0;
}

int spawn_process(struct spawner_memory *memory, const struct spawn_plan *plan,
                  struct spawn_result *ret)
{
    struct child_arg arg = { .plan = plan, .report = memory->report };
    *memory->report = (struct report){ 0 };

    /* A change of user in shared memory would make all of us undumpable, and the memory readable for that user. */
    struct spawner_memory *shared = plan->set_user ? NULL : memory;
    int pidfd = -1;
    uint64_t old = block_all();
    long pid =
        clone_best(CLONE_VFORK, plan->cgroup, plan->newborn, shared, run_child, &arg, &pidfd);
    unblock(old);

    int r = fill_result(ret, pid, pidfd);
    if (r == 0 && memory->report->error < 0) {
        siginfo_t info;
        (void)os_pidfd_reap(pidfd, true, &info, NULL);
        (void)close(pidfd);
        r = memory->report->error;
        *ret = (struct spawn_result){ .pidfd = -1,
                                      .step = (enum spawn_step)memory->report->step,
                                      .error = r };
    }
    return r;
}

uint64_t spawn_not_ignored(void)
{
    uint64_t set = 0;
    for (int sig = 1; sig <= KERNEL_SIGNALS; sig++) {
        struct kernel_sigaction action = { 0 };
        if (syscall(SYS_rt_sigaction, sig, NULL, &action, sizeof action.mask) == 0 &&
            action.handler != (uintptr_t)SIG_IGN)
            set |= SIGNAL_BIT(sig);
    }
    return set;
}

int spawn_fork(uint64_t flags, int cgroup, _Atomic pid_t *newborn, void (*fn)(void *arg), void *arg,
               struct spawn_result *ret)
{
    _Atomic pid_t unused;
    int pidfd = -1;
    uint64_t old = block_all();
    long pid =
        clone_best(flags, cgroup, newborn == NULL ? &unused : newborn, NULL, fn, arg, &pidfd);
    unblock(old);
    return fill_result(ret, pid, pidfd);
}
