"""How a command reaches envs, wherever they live, and how their answers come back.

A fleet is a list of shards (``shard``) and a pool that asks them all and waits for them all
(``pool``). A shard is an ``EnvHost`` with some envs: in this process (``local``), in a worker
process (``process``) or in a Ray actor (``ray``), where the same ``worker.server`` obeys the same
commands (``messages``).

One step of a worker's shard, from top to bottom:

    caller                               shared memory            worker
    ──────                               ─────────────            ──────
    Fleet.step_async
      actions ─────────────────────────► action rows
    WorkerShard.post  (IDLE → BUSY)
      number n ────────────────────────► signals.posted  ◄─────── looks, then sleeps on the wire
      if the worker sleeps ── wire: n ──────────────────────────► wakes
                                         signals.taken   ◄─────── n: a death from here on is in n
                                                                  ShardServer.step
                                         action rows ───────────► copies, one per env
                                                                  env.step, autoreset
                                         observation, reward ◄─── Episodes writes its own rows
                                         and flag rows            and no others
                                         board           ◄─────── infos, if numbers
                                         signals.told    ◄─────── what there is beside the rows
    looks, then sleeps ◄──────────────── signals.answered ◄────── n
                        ◄── wire: n ───────────────────────────── if the caller sleeps
    WorkerShard.take  (BUSY → IDLE)
    Results.of_step ◄─────────────────── rows, board

Who owns what: the caller writes action rows and ``posted``, the worker everything else of its rows;
``posted`` hands the rows over, ``answered`` hands them back. Commands that are more than a number
(reset, call, a step with loose actions) and answers that are more than rows and floats (objects,
failures) travel on the wire, pickled, behind the same numbers; the signal's lowest bit says so. An
answer counts only for the number that it carries: a late one is dropped, never served as new.

Imports go one way, from the bottom of this list to its top:

    restart                      replaces workers and envs that failed
    pool                         asks shards of any kind, waits for them, stops them
    ray, process, local          the kinds of shard: in a Ray actor, a worker process, this process
    worker                       where envs live: hooks, host, episodes, server, loop, guard
    shard                        the one seam between a pool and a place
    messages, failures           what crosses it
    arena                        shared memory: layout, views, signals
    infos                        what envs tell beside their observations
    rules                        arithmetic without processes
    wire, pickling, spin, scheduler, cores, descriptors, interrupts
"""
