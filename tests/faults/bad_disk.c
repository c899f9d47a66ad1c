/* A disk that is slow, hangs, fails or turns read-only, for one process and its children.
 *
 * Loaded with LD_PRELOAD. BAD_DISK_FOLDER names the folder it is about, BAD_DISK_MODE a symbolic link whose target says
 * how it is now: "slow:MILLISECONDS" (each fsync), "hang" (an fsync does not return while it says so), "readonly"
 * (EROFS), "failing" (EIO on writes and fsyncs). Anything else, or no link: as the real disk.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int mode(char *to) {
    const char *link = getenv("BAD_DISK_MODE");
    ssize_t n = link ? readlink(link, to, 63) : -1;
    to[n < 0 ? 0 : n] = 0;
    return n > 0;
}

static int is(const char *wanted) {
    char now[64];
    return mode(now) && strcmp(now, wanted) == 0;
}

static int ours(const char *path) {
    const char *folder = getenv("BAD_DISK_FOLDER");
    return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}

static int ours_at(int at, const char *path) {
    char link[64], where[PATH_MAX];
    if (path && path[0] == '/') return ours(path);
    if (at == AT_FDCWD) {
        if (!getcwd(where, sizeof where)) return 0;
        return ours(where);
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t n = readlink(link, where, sizeof where - 1);
    if (n < 0) return 0;
    where[n] = 0;
    return ours(where);
}

static int ours_fd(int fd) { return ours_at(fd, NULL); }

static int refuse(int about_us, int also_failing) {
    char now[64];
    if (!mode(now)) return 0;
    if (strcmp(now, "readonly") == 0 && about_us) { errno = EROFS; return 1; }
    if (also_failing && strcmp(now, "failing") == 0 && about_us) { errno = EIO; return 1; }
    return 0;
}

static int syncing(int fd) {
    char now[64];
    if (!mode(now) || !ours_fd(fd)) return 0;
    if (strcmp(now, "failing") == 0) { errno = EIO; return 1; }
    if (strncmp(now, "slow:", 5) == 0) usleep(1000 * atoi(now + 5));
    while (is("hang")) usleep(20000);
    return 0;
}

int fsync(int fd) { REAL(fsync); return syncing(fd) ? -1 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return syncing(fd) ? -1 : real(fd); }

ssize_t write(int fd, const void *b, size_t n) { REAL(write); return refuse(ours_fd(fd), 1) ? -1 : real(fd, b, n); }
ssize_t writev(int fd, const struct iovec *v, int n) { REAL(writev); return refuse(ours_fd(fd), 1) ? -1 : real(fd, v, n); }
ssize_t pwrite(int fd, const void *b, size_t n, off_t at) { REAL(pwrite); return refuse(ours_fd(fd), 1) ? -1 : real(fd, b, n, at); }
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t at) { REAL(pwrite64); return refuse(ours_fd(fd), 1) ? -1 : real(fd, b, n, at); }
int ftruncate(int fd, off_t n) { REAL(ftruncate); return refuse(ours_fd(fd), 1) ? -1 : real(fd, n); }
int ftruncate64(int fd, off64_t n) { REAL(ftruncate64); return refuse(ours_fd(fd), 1) ? -1 : real(fd, n); }
int rename(const char *a, const char *b) { REAL(rename); return refuse(ours_at(AT_FDCWD, b), 0) ? -1 : real(a, b); }
int renameat(int x, const char *a, int y, const char *b) { REAL(renameat); return refuse(ours_at(y, b), 0) ? -1 : real(x, a, y, b); }
int mkdir(const char *p, mode_t m) { REAL(mkdir); return refuse(ours_at(AT_FDCWD, p), 0) ? -1 : real(p, m); }
int mkdirat(int at, const char *p, mode_t m) { REAL(mkdirat); return refuse(ours_at(at, p), 0) ? -1 : real(at, p, m); }
int unlink(const char *p) { REAL(unlink); return refuse(ours_at(AT_FDCWD, p), 0) ? -1 : real(p); }
int unlinkat(int at, const char *p, int f) { REAL(unlinkat); return refuse(ours_at(at, p), 0) ? -1 : real(at, p, f); }
int rmdir(const char *p) { REAL(rmdir); return refuse(ours_at(AT_FDCWD, p), 0) ? -1 : real(p); }

#define OPENING(flags) (((flags) & O_ACCMODE) != O_RDONLY || ((flags) & (O_CREAT | O_TRUNC)))
#define PERMISSIONS va_list l; va_start(l, flags); mode_t m = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(l, mode_t) : 0; va_end(l)

int open(const char *p, int flags, ...) {
    REAL(open); PERMISSIONS;
    return OPENING(flags) && refuse(ours_at(AT_FDCWD, p), 0) ? -1 : real(p, flags, m);
}
int open64(const char *p, int flags, ...) {
    REAL(open64); PERMISSIONS;
    return OPENING(flags) && refuse(ours_at(AT_FDCWD, p), 0) ? -1 : real(p, flags, m);
}
int openat(int at, const char *p, int flags, ...) {
    REAL(openat); PERMISSIONS;
    return OPENING(flags) && refuse(ours_at(at, p), 0) ? -1 : real(at, p, flags, m);
}
int openat64(int at, const char *p, int flags, ...) {
    REAL(openat64); PERMISSIONS;
    return OPENING(flags) && refuse(ours_at(at, p), 0) ? -1 : real(at, p, flags, m);
}
