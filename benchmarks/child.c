/* The supervised child of the benchmark: it says on a FIFO when it began to execute (its pid and CLOCK_MONOTONIC in
   nanoseconds) and waits. "Running" is thus the child's own word, not the supervisor's. With "once" it ends right after
   its word, so that the word is the time of its exit. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (argc < 2) return 2;
    int fifo = open(argv[1], O_WRONLY);
    if (fifo < 0) return 3;
    int once = argc > 2 && strcmp(argv[2], "once") == 0;
    if (once) clock_gettime(CLOCK_MONOTONIC, &now);
    char line[64];
    int length = snprintf(line, sizeof line, "%d %lld\n", (int)getpid(), now.tv_sec * 1000000000LL + now.tv_nsec);
    if (write(fifo, line, (size_t)length) != length) return 4;
    if (once) _exit(0);
    close(fifo);
    signal(SIGINT, SIG_DFL); /* a shell's background job inherits SIGINT ignored, and pm2 stops with SIGINT */
    alarm(1800);             /* whatever becomes of the benchmark, its children don't stay for ever */
    for (;;) pause();
}
