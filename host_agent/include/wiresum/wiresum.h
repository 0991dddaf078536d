/* Wiresum for programs in C, and in whatever calls C: sums over the network, made in the network.
 *
 * A program joins a job, starts collectives, and waits for them:
 *
 *     wiresum_session *session;
 *     wiresum_operation *sum;
 *     if (wiresum_join("training", rank, world_size, NULL, 0, 300, &session) != WIRESUM_OK)
 *         fail(wiresum_error_text());
 *     wiresum_all_reduce(session, gradients, gradients, n, WIRESUM_FLOAT32, WIRESUM_SUM, &sum);
 *     ...
 *     if (wiresum_wait(&sum, WIRESUM_FOREVER) != WIRESUM_OK) fail(wiresum_error_text());
 *     wiresum_leave(&session);
 *
 * Compile with   cc app.c $(pkg-config --cflags --libs wiresum)
 * where `wiresum paths pkg-config` says what PKG_CONFIG_PATH must name.
 *
 * ORDER. Every worker of a job must start the same collectives, of the same sizes and types, in the same order. Any
 * number (65,536 at most) may be in flight. Different ones are told apart by 16 bits and end as
 * WIRESUM_ERROR_DIVERGED; of pairs that differ, one in 65,536 is taken for the same collective.
 *
 * MEMORY. What a collective reads and writes belongs to it until wiresum_test or wiresum_wait has said that it is
 * complete, or the session has been left. The source and the destination of a collective do not overlap, or it is in
 * place, as each function says; otherwise it is refused with WIRESUM_ERROR_ARGUMENT. Two collectives in flight may read
 * the same memory. Neither may write what the other reads or writes, in any session: nothing checks that, and sums come
 * out wrong. NULL is no memory, whatever the worker's rank: a collective of elements or bytes is refused with
 * WIRESUM_ERROR_ARGUMENT if memory that this worker reads or writes is NULL. Nothing has been started then, and the
 * others wait for this worker. Of no elements, NULL is as good as any other address.
 *
 * SUMS of floats are rounded as WIRESUM_PRECISION says: once, at the end, for short tensors, and in block floating
 * point for long ones, where the elements of a packet share an exponent (docs/numerics.md). Sums of 32-bit integers are
 * exact, modulo 2^32. Copies (broadcast, all-gather) are bit for bit.
 *
 * THREADS. Any thread may call any function at any time, also in its destructors (of C++'s thread_local objects, and
 * those of pthread_key_create), and the process in exit handlers and destructors of static objects; two threads that
 * start collectives in one session must agree on the order by themselves. An operation is waited for by one thread at a
 * time. The library has threads of its own; they take no signal that is sent to the process.
 *
 * SEVERAL SESSIONS may be open in a process, each in a job of its own (or the same job, as another worker).
 *
 * FORK. A child process has none of its parent's sessions: each call with one fails with WIRESUM_ERROR_FORKED, but for
 * wiresum_leave, which only forgets it. The parent goes on undisturbed. A child may join jobs of its own.
 *
 * A PROCESS THAT ENDS WITHOUT LEAVING, whichever way, ends the job: the others' collectives fail with
 * WIRESUM_ERROR_ABORTED or WIRESUM_ERROR_WORKER_LOST, whose text names it.
 *
 * THE SIDECAR. Joining, heartbeats and leaving are done by a process that the library starts with the first session,
 * from the Python package `wiresum`, and that ends with the program. It is no child of it; the process that starts it
 * is one, and ends at once: SIGCHLD comes, and wait() may return its pid. Its interpreter is
 * WIRESUM_PYTHON, else the one that the library was built for (CMake's WIRESUM_SIDECAR_PYTHON), else that of the
 * environment in which the library lies, else python3 on the PATH. If it dies, the sessions fail at once, with
 * WIRESUM_ERROR_SIDECAR.
 *
 * CONFIGURATION comes from the WIRESUM_... variables, which docs/torch.md lists, and can be given to wiresum_join. Each
 * wiresum_join reads the environment as it is then; as with getenv(), no other thread may change it meanwhile. Only
 * WIRESUM_PYTHON stays what it was at the first session. A misspelt variable is refused, and so is an unknown setting
 * that is given to wiresum_join. A variable whose name is like that of no setting has no effect; the sidecar says so on
 * standard error.
 *
 * STABILITY. What is here stays: functions are added, and fields at the end of wiresum_statistics. A program that was
 * built against an older header runs with a newer library of the same soname.
 */
#ifndef WIRESUM_WIRESUM_H
#define WIRESUM_WIRESUM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WIRESUM_API __attribute__((visibility("default")))
#else
#define WIRESUM_API
#endif

/* What functions return. wiresum_error_text() says more. */
enum {
  WIRESUM_OK = 0,
  WIRESUM_ERROR = 1,                    /* none of the following */
  WIRESUM_ERROR_ARGUMENT = 2,           /* the call, or a setting, makes no sense: a bug of the caller */
  WIRESUM_ERROR_JOIN = 3,               /* the job will not have this worker */
  WIRESUM_ERROR_WORKER_LOST = 4,        /* another worker of the job died, or fell silent */
  WIRESUM_ERROR_SWITCH_UNREACHABLE = 5, /* the switch, or the join service beside it, does not answer */
  WIRESUM_ERROR_DIVERGED = 6,           /* the workers started different collectives */
  WIRESUM_ERROR_COLLECTIVE_TIMEOUT = 7, /* a collective took longer than wiresum_set_timeout allows */
  WIRESUM_ERROR_CLOSED = 8,             /* the session was left while the collective was in flight */
  WIRESUM_ERROR_ABORTED = 9,            /* somebody ended the job, or left it: the text has who, and why */
  WIRESUM_ERROR_FORKED = 10,            /* the session belongs to the process that joined, and this is its child */
  WIRESUM_ERROR_SIDECAR = 11,           /* the process that attends could not be started, or has died */
  WIRESUM_ERROR_FULL = 12,              /* 65,536 operations are in flight */
  WIRESUM_ERROR_SYSTEM = 13,            /* the system refused memory, a socket or a thread */
  WIRESUM_IN_FLIGHT = 14                /* wiresum_wait's time is over; the operation goes on */
};

/* Sums of integers of b bits are exact modulo 2^b, and so the same with a sign and without. */
typedef enum wiresum_dtype {
  WIRESUM_FLOAT32 = 0,
  WIRESUM_FLOAT16 = 1,
  WIRESUM_BFLOAT16 = 2,
  WIRESUM_INT32 = 3,
  WIRESUM_INT8 = 4,  /* in the network it takes twice its bytes, with more than 256 workers four times */
  WIRESUM_INT64 = 5, /* in the network it takes 1.5 times its bytes, with more than 1,024 workers twice */
  /* Sums of fp8 are always rounded once, and take four times its bytes or more in the network (docs/numerics.md). */
  WIRESUM_FLOAT8_E4M3 = 6, /* without an infinity: sums beyond it are 448 or -448 */
  WIRESUM_FLOAT8_E5M2 = 7
} wiresum_dtype;

typedef enum wiresum_op {
  WIRESUM_SUM = 0,
  WIRESUM_AVERAGE = 1 /* the sum, divided by the number of workers; not for integers */
} wiresum_op;

typedef struct wiresum_session wiresum_session;
typedef struct wiresum_operation wiresum_operation;

/* For wiresum_join. */
#define WIRESUM_NO_QUEUE 1u /* fail with WIRESUM_ERROR_JOIN rather than wait for slots that other jobs have */
#define WIRESUM_FURTHER 2u  /* the same, with few slots: this job is one of many of its program */
/* For wiresum_wait and wiresum_set_timeout. */
#define WIRESUM_FOREVER (-1.0)

/* Counters since the session began, summed over aggregators. Bytes are UDP payload. */
typedef struct wiresum_statistics {
  uint64_t packets_sent;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t results;         /* packets with a sum that were used */
  uint64_t retransmissions; /* packets that were sent again */
  uint64_t duplicates;      /* packets that had come before */
  uint64_t rejected;        /* packets that are none of this job's */
  uint64_t operations;      /* collectives started */
} wiresum_statistics;

/* "0.1.0": of the library that runs. One of a development wheel adds the commit. */
WIRESUM_API const char* wiresum_version(void);

/* What went wrong in the last call of this thread that failed, in a sentence, and what to do about it; never NULL. It
 * stays until the next call of this thread that fails, and ends with " [...]" if it had to be cut. */
#define WIRESUM_ERROR_TEXT_BYTES_MAX 4096 /* with the NUL at its end */
WIRESUM_API const char* wiresum_error_text(void);

/* "WIRESUM_ERROR_JOIN" for 3; never NULL. */
WIRESUM_API const char* wiresum_code_name(int code);

/* Joins `job` as worker `rank` (0 to world_size - 1), and returns when all workers have. NULL, or "", is the job that
 * WIRESUM_JOB names, or, under Slurm, the one of this step (slurm-JOB.STEP): for a program that is in one job.
 * `settings` is NULL, or an array of "WIRESUM_NAME=value" that ends with NULL; they win over the environment.
 * WIRESUM_GLOBAL_RANK can be given here alone, for a job of a part of a program's workers: the worker's rank in the
 * program, which errors name beside `rank`. `flags`: WIRESUM_NO_QUEUE, WIRESUM_FURTHER, or 0. `seconds`: how long to
 * wait for the switch, the other workers and room. */
WIRESUM_API int wiresum_join(const char* job, int rank, int world_size, const char* const* settings, unsigned flags,
                             double seconds, wiresum_session** session);

/* -1 if `session` is NULL. */
WIRESUM_API int wiresum_rank(const wiresum_session* session);
WIRESUM_API int wiresum_world_size(const wiresum_session* session);

/* How long a collective that is started from now on may take, in seconds; at first 1800. After that the job ends for
 * everybody with WIRESUM_ERROR_COLLECTIVE_TIMEOUT. Workers that die are found within seconds whatever this is. */
WIRESUM_API int wiresum_set_timeout(wiresum_session* session, double seconds);

/* Each starts a collective, and gives an operation that wiresum_test or wiresum_wait must complete. `operation` is not
 * written if the call fails. If it is NULL, the call returns when the collective is complete, and says how it ended.
 * For few elements that is the faster way: the calling thread then sends and receives itself. */

/* destination = the sum of all workers' sources, `elements` long. In place: the same memory twice. */
WIRESUM_API int wiresum_all_reduce(wiresum_session* session, const void* source, void* destination, size_t elements,
                                   wiresum_dtype dtype, wiresum_op op, wiresum_operation** operation);
/* The same at the root alone, in place, too; at the others `destination` is not looked at. */
WIRESUM_API int wiresum_reduce(wiresum_session* session, const void* source, void* destination, size_t elements,
                               wiresum_dtype dtype, wiresum_op op, int root, wiresum_operation** operation);
/* `bytes` of memory from the root to all. */
WIRESUM_API int wiresum_broadcast(wiresum_session* session, void* memory, size_t bytes, int root,
                                  wiresum_operation** operation);
/* destination = all workers' sources one after the other, world_size * bytes long. In place: a source that is where its
 * copy goes to. */
WIRESUM_API int wiresum_all_gather(wiresum_session* session, const void* source, void* destination, size_t bytes,
                                   wiresum_operation** operation);
/* Sources of world_size * elements are summed, and worker r gets part r, of `elements`. In place: a destination that is
 * the worker's part of the source. */
WIRESUM_API int wiresum_reduce_scatter(wiresum_session* session, const void* source, void* destination, size_t elements,
                                       wiresum_dtype dtype, wiresum_op op, wiresum_operation** operation);
/* Complete when all workers have started it. */
WIRESUM_API int wiresum_barrier(wiresum_session* session, wiresum_operation** operation);

/* Does not wait. *done is 1 if the operation is complete, and then it is freed, *operation is NULL, and what is
 * returned is how it ended. Else *done is 0 and WIRESUM_OK is returned. */
WIRESUM_API int wiresum_test(wiresum_operation** operation, int* done);
/* Waits for so many seconds at most (WIRESUM_FOREVER: until it is complete), then as wiresum_test; WIRESUM_IN_FLIGHT if
 * it is not complete. */
WIRESUM_API int wiresum_wait(wiresum_operation** operation, double seconds);

/* Give sizeof(wiresum_statistics) for `bytes`: as much as that is written. */
WIRESUM_API int wiresum_get_statistics(const wiresum_session* session, wiresum_statistics* statistics, size_t bytes);

/* Ends the job for everybody with a reason, which is what pending and later collectives fail with. The session must
 * still be left. */
WIRESUM_API int wiresum_abort(wiresum_session* session, const char* reason);

/* Leaves the job, and sets *session to NULL. Operations in flight end with WIRESUM_ERROR_CLOSED, and must still be
 * tested or waited for to be freed. No other thread may use the session any more. */
WIRESUM_API int wiresum_leave(wiresum_session** session);

#ifdef __cplusplus
}
#endif

#endif
