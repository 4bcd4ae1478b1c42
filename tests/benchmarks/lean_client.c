/* A closed loop over N connections to a Unix socket: each sends its next frame when it has read its answer.
 *
 * lean_client SOCKET FRAMES CONNECTIONS EXPECTED
 *
 * FRAMES holds length-prefixed frames, one after the other, and is read whole before the clock starts. Each answer
 * must contain EXPECTED. To stdout: the seconds from the first byte out to the last answer in (a double), then for
 * each exchange its nanoseconds (uint64), both in the machine's byte order.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_BYTES_MAX = 1 << 20 };

typedef struct {
    int socket;
    uint64_t sent_at;
    size_t have;
    unsigned char *answer;
} Connection;

static unsigned char *frames, *next, *end;
static uint64_t *took;
static size_t answered;

static void give_up(const char *why) {
    fprintf(stderr, "lean_client: %s: %s\n", why, errno ? strerror(errno) : "no further reason");
    exit(1);
}

static uint64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static size_t length_at(const unsigned char *prefix) {
    return (size_t)prefix[0] << 24 | (size_t)prefix[1] << 16 | (size_t)prefix[2] << 8 | prefix[3];
}

static void read_frames(const char *path) {
    FILE *file = fopen(path, "rb");
    struct stat status;
    if (!file || fstat(fileno(file), &status)) give_up(path);
    frames = next = malloc((size_t)status.st_size + 1);
    if (!frames || fread(frames, 1, (size_t)status.st_size, file) != (size_t)status.st_size) give_up(path);
    end = frames + status.st_size;
    fclose(file);
}

/* Sends the next frame; 0 when there is none left. The sockets block, and an idle daemon reads. */
static int send_next(Connection *connection) {
    if (next == end) return 0;
    size_t left = 4 + length_at(next);
    connection->sent_at = now();
    connection->have = 0;
    while (left) {
        ssize_t sent = send(connection->socket, next, left, MSG_NOSIGNAL);
        if (sent <= 0) give_up("send");
        next += sent;
        left -= (size_t)sent;
    }
    return 1;
}

/* Reads what has come; 1 when the answer is whole. */
static int receive(Connection *connection) {
    ssize_t got = recv(connection->socket, connection->answer + connection->have,
                       ANSWER_BYTES_MAX - connection->have, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) give_up("the daemon closed the connection");
    connection->have += (size_t)got;
    return connection->have >= 4 && connection->have == 4 + length_at(connection->answer);
}

int main(int count, char **arguments) {
    if (count != 5) give_up("usage: lean_client SOCKET FRAMES CONNECTIONS EXPECTED");
    read_frames(arguments[2]);
    size_t connections = (size_t)atoi(arguments[3]), expected = strlen(arguments[4]);
    took = malloc((size_t)(end - frames) / 5 * sizeof *took + sizeof *took);
    Connection *all = calloc(connections, sizeof *all);
    int events = epoll_create1(0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!took || !all || events < 0 || strlen(arguments[1]) >= sizeof address.sun_path) give_up("setting up");
    strcpy(address.sun_path, arguments[1]);
    for (size_t at = 0; at < connections; at++) {
        all[at].socket = socket(AF_UNIX, SOCK_STREAM, 0);
        all[at].answer = malloc(ANSWER_BYTES_MAX);
        if (!all[at].answer || connect(all[at].socket, (struct sockaddr *)&address, sizeof address)) give_up("connect");
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = &all[at]};
        if (epoll_ctl(events, EPOLL_CTL_ADD, all[at].socket, &wanted)) give_up("epoll_ctl");
    }
    size_t open = 0;
    uint64_t began = now(), last = began;
    for (size_t at = 0; at < connections; at++) open += (size_t)send_next(&all[at]);
    while (open) {
        struct epoll_event ready[64];
        int some = epoll_wait(events, ready, 64, 60000);
        if (some <= 0) give_up("nothing came for a minute");
        for (int at = 0; at < some; at++) {
            Connection *connection = ready[at].data.ptr;
            if (!receive(connection)) continue;
            last = now();
            took[answered++] = last - connection->sent_at;
            errno = 0;
            if (!memmem(connection->answer, connection->have, arguments[4], expected)) {
                fwrite(connection->answer, 1, connection->have < 600 ? connection->have : 600, stderr);
                give_up("an answer is not the one that was expected");
            }
            if (!send_next(connection)) open--;
        }
    }
    double seconds = (double)(last - began) / 1e9;
    fwrite(&seconds, sizeof seconds, 1, stdout);
    fwrite(took, sizeof *took, answered, stdout);
    return 0;
}
