/* Threads that stay awake between the parallel parts of one call.
 *
 * A decode step has hundreds of parallel parts of some microseconds each; to wake threads for each of them would cost
 * more than the work. Inside `with_team` the others spin for the next part (and yield when it does not come soon).
 */
#ifndef RL_TEAM_H
#define RL_TEAM_H

#include <stdatomic.h>

typedef void (*rl_body)(const void *job, long task);

typedef struct {
    rl_body body;
    const void *job;
    long tasks;
    atomic_long remaining; /* tasks that nobody has taken; below 1: none */
    atomic_long done;
    atomic_int ended;
} rl_team;

/* The team of the calling thread, or NULL. */
extern _Thread_local rl_team *rl_own_team __attribute__((visibility("hidden")));

/* Runs work(argument) on the calling thread, with `threads` - 1 others as its team. */
void with_team(int threads, void (*work)(void *argument), void *argument);

/* Runs body(job, task) for every task on the team; returns when all are done. */
void team_run(rl_team *team, long tasks, rl_body body, const void *job);

#endif
