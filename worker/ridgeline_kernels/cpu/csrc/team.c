/* See team.h. A task is taken by counting `remaining` down. What a part consists of changes only when all its tasks
 * are done, so whoever takes a task reads the part that it belongs to. */
#include "team.h"

#include <omp.h>
#include <sched.h>

#define SPINS 4000 /* some 50 microseconds */

_Thread_local rl_team *rl_own_team;

static void relax(long *spins) {
    if (++*spins < SPINS) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
        return;
    }
    *spins = 0;
    sched_yield();
}

static void take_tasks(rl_team *team) {
    for (long left; (left = atomic_fetch_sub(&team->remaining, 1)) > 0;) {
        team->body(team->job, team->tasks - left);
        atomic_fetch_add(&team->done, 1);
    }
}

void team_run(rl_team *team, long tasks, rl_body body, const void *job) {
    team->body = body, team->job = job, team->tasks = tasks;
    atomic_store(&team->done, 0);
    atomic_store(&team->remaining, tasks);
    take_tasks(team);
    for (long spins = 0; atomic_load(&team->done) < tasks;) relax(&spins);
}

static void member(rl_team *team) {
    for (long spins = 0; !atomic_load(&team->ended);) {
        if (atomic_load(&team->remaining) > 0) {
            take_tasks(team);
            spins = 0;
        } else relax(&spins);
    }
}

void with_team(int threads, void (*work)(void *argument), void *argument) {
    if (threads <= 1) {
        work(argument);
        return;
    }
    rl_team team = {.body = 0};
#pragma omp parallel num_threads(threads)
    if (omp_get_thread_num() == 0) {
        rl_own_team = &team;
        work(argument);
        rl_own_team = NULL;
        atomic_store(&team.ended, 1);
    } else member(&team);
}
