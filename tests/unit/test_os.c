/* test_os.c - the pure parts of os/, tree removal, and the scratch directories of child/. */
#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "child/probe.h"
#include "child/scratch.h"
#include "lib/unit.h"
#include "os/cgroup.h"
#include "os/pidfd.h"
#include "os/proc.h"
#include "os/tree.h"

static char dir[64];

static void set_up(void)
{
    (void)snprintf(dir, sizeof dir, "/tmp/mandor-os-%d", getpid());
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    ck_assert_int_eq(chdir(dir), 0);
}

static void tear_down(void)
{
    (void)chdir("/");
    (void)tree_remove(dir);
}

static void touch(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    (void)close(fd);
}

static bool there(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

TEST(a_process_name_cannot_forge_its_stat)
{
    struct proc_stat stat;
    const char *text =
        "77 (x) Z 1 1 (y) R 1) S 12 34 56 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 1\n";
    ck_assert_int_eq(proc_stat_parse(text, &stat), 0);
    ck_assert_int_eq(stat.pid, 77);
    ck_assert_int_eq(stat.state, 'S');
    ck_assert_int_eq(stat.ppid, 12);
    ck_assert_int_eq(stat.pgid, 34);
    ck_assert_int_eq(stat.sid, 56);
    ck_assert_uint_eq(stat.start_ticks, 987654);
    ck_assert_int_eq(stat.threads, 1);
    stat.state = 'Z';
    ck_assert(proc_stat_dead(&stat));
    stat.threads = 2; /* only its leading thread has exited */
    ck_assert(!proc_stat_dead(&stat));
    ck_assert_int_eq(proc_stat_parse("77 (x) S 1", &stat), -EINVAL);
    ck_assert_int_eq(proc_stat_parse("", &stat), -EINVAL);
    ck_assert_int_eq(proc_stat_read(getpid(), &stat), 0);
    ck_assert_int_eq(stat.ppid, getppid());
}

TEST(ones_own_cgroup_is_found_in_either_version)
{
    char path[CGROUP_PATH_MAX];
    const char *text = "12:cpu,cpuacct:/a\n4:memory:/b/c:d\n1:name=systemd:/s\n0::/unified\n";
    ck_assert_int_eq(cgroup_parse_self(text, "", path), 0);
    ck_assert_str_eq(path, "/unified");
    ck_assert_int_eq(cgroup_parse_self(text, "cpu", path), 0);
    ck_assert_str_eq(path, "/a");
    ck_assert_int_eq(cgroup_parse_self(text, "memory", path), 0);
    ck_assert_str_eq(path, "/b/c:d");
    ck_assert_int_eq(cgroup_parse_self(text, "pids", path), -ENOENT);
    ck_assert_int_eq(cgroup_parse_self("1:name=systemd:/s\n", "", path), -ENOENT);
    ck_assert_int_eq(cgroup_parse_self("", "", path), -ENOENT);
}

TEST(a_mount_point_may_have_spaces)
{
    char point[CGROUP_PATH_MAX], root[CGROUP_PATH_MAX];
    const char *text =
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "35 31 0:32 /docker/x /sys/fs/my\\040cgroups/memory rw,relatime shared:9 - cgroup cgroup "
        "rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
    ck_assert_int_eq(cgroup_parse_mount(text, "memory", point, root), 0);
    ck_assert_str_eq(point, "/sys/fs/my cgroups/memory");
    ck_assert_str_eq(root, "/docker/x");
    ck_assert_int_eq(cgroup_parse_mount(text, "", point, root), 0);
    ck_assert_str_eq(point, "/sys/fs/cgroup/unified");
    ck_assert_int_eq(cgroup_parse_mount(text, "pids", point, root), -ENOENT);
    ck_assert_int_eq(cgroup_parse_mount(text, "mem", point, root), -ENOENT);
}

TEST(words_are_found_whole)
{
    ck_assert(probe_word("cpuset cpu io memory pids\n", "cpu"));
    ck_assert(probe_word("cpuset cpu io memory pids\n", "pids"));
    ck_assert(!probe_word("cpuset io\n", "cpu"));
    ck_assert(!probe_word("", "cpu"));
}

TEST(a_tree_goes_whatever_its_modes_and_links) /* R112 */
{
    struct stat before, after;
    ck_assert_int_eq(stat("/etc/passwd", &before), 0);
    ck_assert_int_eq(mkdir("t", 0700), 0);
    ck_assert_int_eq(mkdir("t/closed", 0700), 0);
    touch("t/closed/x");
    ck_assert_int_eq(mkdir("t/closed/in", 0700), 0);
    touch("t/closed/in/y");
    ck_assert_int_eq(symlink("/etc", "t/etc"), 0);
    ck_assert_int_eq(symlink("t", "t/loop"), 0);
    ck_assert_int_eq(mkfifo("t/fifo", 0600), 0);
    int open_file = open("t/open", O_WRONLY | O_CREAT | O_CLOEXEC, 0);
    ck_assert_int_eq(chmod("t/closed/in", 0), 0);
    ck_assert_int_eq(chmod("t/closed", 0), 0);
    ck_assert_int_eq(chmod("t", 0500), 0);
    if (geteuid() == 0)
        ck_assert_int_eq(chown(dir, 65534, 65534) | chown("t", 65534, 65534) |
                             chown("t/closed", 65534, 65534) | chown("t/closed/in", 65534, 65534),
                         0);
    if (geteuid() == 0) /* root is stopped by no mode: become somebody who is */
        ck_assert_int_eq(seteuid(65534), 0);
    ck_assert_int_eq(tree_remove("t"), 0);
    ck_assert(!there("t"));
    ck_assert_int_eq(stat("/etc/passwd", &after), 0);
    ck_assert_int_eq(before.st_ino, after.st_ino);
    (void)close(open_file);
    (void)seteuid(0);
}

TEST(a_tree_may_be_deeper_than_a_path_is_long)
{
    ck_assert_int_eq(mkdir("deep", 0700), 0);
    ck_assert_int_eq(chdir("deep"), 0);
    for (int i = 0; i < 3000; i++) {
        ck_assert_int_eq(mkdir("ddddddddd", 0700), 0);
        ck_assert_int_eq(chdir("ddddddddd"), 0);
        if (i % 100 == 0)
            touch("f");
    }
    ck_assert_int_eq(chdir(dir), 0);
    ck_assert_int_eq(tree_remove("deep"), 0);
    ck_assert(!there("deep"));
}

TEST(what_is_not_there_or_not_a_directory_goes_too)
{
    ck_assert_int_eq(tree_remove("nothing"), 0);
    ck_assert_int_eq(tree_remove("no/such/parent"), 0);
    touch("file");
    ck_assert_int_eq(tree_remove("file"), 0);
    ck_assert(!there("file"));
    ck_assert_int_eq(mkdir("target", 0700), 0);
    touch("target/x");
    ck_assert_int_eq(symlink("target", "link"), 0);
    ck_assert_int_eq(tree_remove("link"), 0);
    ck_assert(!there("link") && there("target/x"));
    ck_assert_int_eq(tree_remove("."), -EINVAL);
    ck_assert_int_eq(tree_remove("target/.."), -EINVAL);
    ck_assert_int_eq(tree_remove("/"), -EINVAL);
    ck_assert(there("target/x"));
}

TEST(a_mount_is_let_go_of_and_not_emptied)
{
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        printf("skipped, may not mount: %s\n", strerror(errno));
        return;
    }
    ck_assert_int_eq(mkdir("m", 0700), 0);
    ck_assert_int_eq(mkdir("m/mounted", 0700), 0);
    ck_assert_int_eq(mount("none", "m/mounted", "tmpfs", 0, NULL), 0);
    touch("m/mounted/precious");
    touch("m/a");
    SCOPED_FD inside = open("m/mounted", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_eq(tree_remove("m"), 0);
    ck_assert(!there("m"));
    ck_assert_int_eq(faccessat(inside, "precious", F_OK, 0), 0);
}

static int set_flag(const char *path, int flag)
{
    SCOPED_FD fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 || ioctl(fd, FS_IOC_SETFLAGS, &flag) != 0 ? -errno : 0;
}

TEST(file_flags_of_a_root_job_do_not_keep_its_files)
{
    ck_assert_int_eq(
        mkdir("f", 0700) | mkdir("f/a", 0700) | mkdir("f/b", 0700) | mkdir("f/b/c", 0700), 0);
    touch("f/a/x");
    touch("f/b/immutable");
    touch("f/b/c/appended");
    touch("f/z");
    if (set_flag("f/b/immutable", FS_IMMUTABLE_FL) != 0) {
        printf("skipped, may not set file flags: %s\n", strerror(errno));
        return;
    }
    ck_assert_int_eq(set_flag("f/b/c/appended", FS_APPEND_FL), 0);
    ck_assert_int_eq(set_flag("f/b/c", FS_IMMUTABLE_FL), 0);
    ck_assert_int_eq(set_flag("f/a", FS_APPEND_FL), 0);
    ck_assert_int_eq(set_flag("f", FS_IMMUTABLE_FL), 0);
    ck_assert_int_eq(tree_remove("f"), 0);
    ck_assert(!there("f"));
}

TEST(what_cannot_be_removed_does_not_save_the_rest)
{
    if (geteuid() != 0)
        return;
    ck_assert_int_eq(mkdir("k", 0700) | mkdir("k/a", 0700) | mkdir("k/b", 0700) |
                         mkdir("k/b/in", 0755) | mkdir("k/c", 0700),
                     0);
    touch("k/a/x");
    touch("k/b/in/root's");
    touch("k/c/x");
    touch("k/z");
    ck_assert_int_eq(chown(".", 65534, 65534) | chown("k", 65534, 65534) |
                         chown("k/a", 65534, 65534) | chown("k/b", 65534, 65534) |
                         chown("k/c", 65534, 65534),
                     0);
    ck_assert_int_eq(seteuid(65534), 0);
    ck_assert_int_lt(tree_remove("k"), 0);
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert(there("k/b/in/root's"));
    ck_assert(!there("k/a") && !there("k/c") && !there("k/z"));
}

TEST(a_scratch_directory_is_lent_again_only_as_it_was)
{
    struct scratch scratch;
    char base[128], *first, *second;
    (void)snprintf(base, sizeof base, "%s/a/b", dir);
    ck_assert_int_eq(scratch_init(&scratch, base), 0);
    struct stat one, two;

    ck_assert_int_eq(scratch_take(&scratch, "1.1", "tmp", &first), 0);
    ck_assert_int_eq(stat(first, &one), 0);
    ck_assert(scratch_give(&scratch, first, true));
    ck_assert(!there(first)); /* its name is gone at once */
    ck_assert_int_eq(scratch_take(&scratch, "2.1", "tmp", &second), 0);
    ck_assert_int_eq(stat(second, &two), 0);
    ck_assert_uint_eq(one.st_ino, two.st_ino);

    ck_assert_int_eq(chmod(second, 0750), 0);
    ck_assert(scratch_give(&scratch, second, true));
    ck_assert_int_eq(scratch.spare_count, 0);
    free(second);

    ck_assert_int_eq(scratch_take(&scratch, "3.1", "tmp", &second), 0);
    bool marked = setxattr(second, "user.x", "y", 1, 0) == 0;
    ck_assert(scratch_give(&scratch, second, true));
    ck_assert_int_eq(scratch.spare_count, marked ? 0 : 1);
    free(second);

    ck_assert_int_eq(scratch_take(&scratch, "4.1", "tmp", &second), 0);
    ck_assert(scratch_give(&scratch, second, false));
    ck_assert(!there(second));
    free(second);

    ck_assert_int_eq(scratch_take(&scratch, "5.1", "tmp", &second), 0);
    char file[256];
    (void)snprintf(file, sizeof file, "%s/.hidden", second);
    touch(file);
    ck_assert(!scratch_give(&scratch, second, true)); /* the caller walks it */
    ck_assert(there(second));
    free(first);
    ck_assert_int_eq(scratch_take(&scratch, "5.1", "tmp", &first), 0); /* and nobody meets it */
    ck_assert_str_ne(first, second);
    free(first);
    free(second);
    scratch_done(&scratch);
}

TEST(a_stopped_child_is_not_a_dead_one)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)raise(SIGSTOP);
        _exit(5);
    }
    int pidfd = os_pidfd_open(pid);
    siginfo_t info;
    (void)waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOWAIT);
    ck_assert_int_eq(os_find_dead_child(), 0);
    ck_assert_int_eq(os_pidfd_reap(pidfd, false, &info, NULL), 0);
    (void)kill(pid, SIGCONT);
    struct rusage usage;
    ck_assert_int_eq(os_pidfd_reap(pidfd, true, &info, &usage), 1);
    ck_assert_int_eq(info.si_status, 5);
    ck_assert_int_eq(os_pidfd_reap(pidfd, true, &info, NULL), -ECHILD);
    ck_assert_int_eq(os_pidfd_signal(pidfd, SIGTERM), -ESRCH);
    (void)close(pidfd);
}

UNIT_MAIN("os", .set_up = set_up, .tear_down = tear_down)
