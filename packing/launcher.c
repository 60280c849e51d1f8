/*
 * One file that holds a folder: the program with its Python, packed, is unpacked by the first start and run from there
 * by each. Then this becomes the program (exec), so there is one process: its pid is the server's, a kill -9 of it is
 * one of the server, and nothing is left to be cleaned up.
 *
 * dist.py gives PAYLOAD (a file: a tar archive, packed by zlib), PLAIN (its size unpacked), FILES and BYTES (how many
 * files there are in it, and how long they are together) and FOLDER (a name that is another for any other content).
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

__asm__(".section .rodata\n"
        "payload: .incbin \"" PAYLOAD "\"\n"
        "payload_end: .byte 0\n"
        ".previous\n");
extern const unsigned char payload[], payload_end[];

#define BLOCK 512
#define DEPTH 16

static unsigned long files, bytes;

/* A folder in which nobody else can put a program for us to run. */
static int is_ours(const char *path)
{
    struct stat it;
    return lstat(path, &it) == 0 && S_ISDIR(it.st_mode) && it.st_uid == geteuid() && !(it.st_mode & 022);
}

static int count(const char *path, const struct stat *it, int kind, struct FTW *where)
{
    (void)path, (void)where;
    if (kind == FTW_F) {
        files++;
        bytes += (unsigned long)it->st_size;
    }
    return 0;
}

/* Whether all of it is there. A power cut leaves files too short, one who tidies /tmp takes some away. */
static int is_whole(const char *folder)
{
    files = bytes = 0;
    return is_ours(folder) && nftw(folder, count, DEPTH, FTW_PHYS) == 0 && files == FILES && bytes == BYTES;
}

static int take_away(const char *path, const struct stat *it, int kind, struct FTW *where)
{
    (void)it, (void)kind, (void)where;
    return remove(path);
}

static void clear(const char *folder)
{
    nftw(folder, take_away, DEPTH, FTW_DEPTH | FTW_PHYS);
}

static int write_file(const char *path, const unsigned char *content, size_t size, mode_t mode)
{
    int to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    ssize_t done = 1;
    if (to < 0)
        return -1;
    for (; size && (done = write(to, content, size)) > 0; content += done)
        size -= (size_t)done;
    return close(to) == 0 && !size ? 0 : -1;
}

/* Files, folders and links of a ustar archive, a folder before what is in it; 0, or -1 with errno. */
static int unpack(const char *folder)
{
    uLongf size = PLAIN;
    unsigned char *tar = malloc(PLAIN);
    char path[PATH_MAX], aim[101];
    int fault = tar && mkdir(folder, 0700) == 0 ? 0 : -1;
    if (!fault && uncompress(tar, &size, payload, (uLong)(payload_end - payload)) != Z_OK) {
        errno = EBADMSG;
        fault = -1;
    }
    for (size_t at = 0; !fault && at + BLOCK <= size && tar[at];) {
        const char *head = (const char *)tar + at, *prefix = head + 345;
        size_t length = strtoul(head + 124, NULL, 8);
        mode_t mode = (mode_t)strtoul(head + 100, NULL, 8) & 0700;
        int told = snprintf(path, sizeof path, "%s/%.155s%s%.100s", folder, prefix, *prefix ? "/" : "", head);
        if (told >= (int)sizeof path) {
            errno = ENAMETOOLONG;
            fault = -1;
        } else if (head[156] == '5') {
            fault = mkdir(path, 0700);
        } else if (head[156] == '2') {
            snprintf(aim, sizeof aim, "%.100s", head + 157);
            fault = symlink(aim, path);
        } else {
            fault = write_file(path, tar + at + BLOCK, length, mode);
        }
        at += BLOCK + (length + BLOCK - 1) / BLOCK * BLOCK;
    }
    free(tar);
    return fault;
}

/* Takes away what other versions have left here. Whoever runs one holds a lock on it. */
static void tidy(const char *base)
{
    char path[PATH_MAX];
    DIR *here = opendir(base);
    for (struct dirent *one; here && (one = readdir(here));) {
        int held;
        if (*one->d_name == '.' || !strcmp(one->d_name, FOLDER) || !strcmp(one->d_name, "lock"))
            continue;
        if (snprintf(path, sizeof path, "%s/%s", base, one->d_name) >= (int)sizeof path)
            continue;
        held = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (held >= 0 && flock(held, LOCK_EX | LOCK_NB) == 0)
            clear(path);
        if (held >= 0)
            close(held);
    }
    if (here)
        closedir(here);
}

/* The folder of the program within `base`, put there if it is not; a lock on it is held. -1 with errno. */
static int provide(const char *base, const char *folder)
{
    char fresh[PATH_MAX], file[PATH_MAX];
    int held = -1, lock, why;
    snprintf(fresh, sizeof fresh, "%s/new", base);
    snprintf(file, sizeof file, "%s/lock", base);
    if ((lock = open(file, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) < 0) /* a read-only place will do */
        return -1;
    flock(lock, LOCK_EX); /* one unpacks, and whoever starts at the same time waits for it */
    if (!is_whole(folder)) {
        clear(fresh);
        clear(folder);
        if (unpack(fresh) == 0 && rename(fresh, folder) == 0)
            tidy(base);
    }
    why = errno;
    if (is_whole(folder) && (held = open(folder, O_RDONLY | O_DIRECTORY)) >= 0)
        flock(held, LOCK_SH); /* it goes with us into the program, and not into its children */
    else
        clear(fresh);
    close(lock);
    errno = why;
    return held;
}

/* Becomes the program, kept in `place`; returns only where that cannot be. */
static void run_from(const char *place, const char *below, char **argv)
{
    char base[PATH_MAX - 64], folder[PATH_MAX], program[PATH_MAX], libraries[PATH_MAX];
    int held;
    if (snprintf(base, sizeof base, "%s%s", place, below) >= (int)sizeof base - 64)
        return;
    snprintf(folder, sizeof folder, "%s/" FOLDER, base);
    snprintf(program, sizeof program, "%s/" FOLDER "/pilothouse", base);
    snprintf(libraries, sizeof libraries, "%s/" FOLDER "/_internal", base);
    if (mkdir(base, 0700) != 0 && errno != EEXIST)
        return;
    if (!is_ours(base)) {
        errno = EPERM;
        return;
    }
    if ((held = provide(base, folder)) < 0)
        return;
    /* PyInstaller's own part needs a library of the folder; environment.py undoes this */
    setenv("LD_LIBRARY_PATH", libraries, 1);
    execv(program, argv);
    close(held);
}

/* systemd's word, then that of the account; then where everybody may write, and only we in what is ours. */
int main(int argc, char **argv)
{
    char own[64], cache[PATH_MAX];
    const char *place;
    (void)argc;
    if ((place = getenv("LD_LIBRARY_PATH")))
        setenv("PILOTHOUSE_LD_LIBRARY_PATH", place, 1);
    if ((place = getenv("CACHE_DIRECTORY")) && *place == '/')
        run_from(place, "/program", argv);
    if ((place = getenv("XDG_CACHE_HOME")) && *place == '/' && (mkdir(place, 0700) == 0 || errno == EEXIST))
        run_from(place, "/pilothouse", argv);
    if ((place = getenv("HOME")) && *place == '/') {
        snprintf(cache, sizeof cache, "%s/.cache", place);
        if (mkdir(cache, 0700) == 0 || errno == EEXIST)
            run_from(cache, "/pilothouse", argv);
    }
    snprintf(own, sizeof own, "/pilothouse-%u", (unsigned)geteuid());
    run_from("/var/tmp", own, argv);
    run_from("/tmp", own, argv);
    fprintf(stderr, "pilothouse: no place to unpack it in (XDG_CACHE_HOME can name one): %s\n", strerror(errno));
    return 1;
}
