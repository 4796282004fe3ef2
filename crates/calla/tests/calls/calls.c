/* Loaded before the C library: notes which files are made durable, and which get another name, in the
   order in which it happens. One line a call, in the file that CALLS names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void note(const char *what, const char *path)
{
    char line[2 * PATH_MAX];
    int length = snprintf(line, sizeof line, "%s %s\n", what, path);
    int file = open(getenv("CALLS"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (write(file, line, length) != length)
        abort();
    close(file);
}

int fsync(int file)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    note("fsync", path);
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return next(file);
}

int rename(const char *from, const char *to)
{
    note("rename", from);
    int (*next)(const char *, const char *) =
        (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    return next(from, to);
}
