"""Worker processes: they run the lanes of a rank, and are replaced when they die or hang; no batch is lost or repeated.

    worker_pool  in the trainer: which lane runs on which worker; whom to replace, and how often
    link         one worker as the trainer sees it, across its processes; the page on which it says what it works on
    launch       the trainer's end of the server: starts it, asks it for workers, shares it between loaders
    server       the process that starts workers and reaps them
    worker       the process that runs lanes: `main` sets it up, `_serve` runs it
    messages     what they tell each other, and the socket for it; of a lane's state only what has changed is sent
    batches      batches, data sets and errors as bytes, with buffers by `samples.pickling`
    slots        the shared memory that batches are collated in
    board        what workers share to help each other: how far each is, and samples that it loads next
    helping      the board, as a worker uses it that needs help, and one that is idle

Options and their defaults are in `run_options.LoaderConfig` (restarts, timeouts, memory) and `topology` (`WorkerConfig`
the number of workers, `LANES_PER_RANK` that of lanes); fixed limits are constants of these modules. Why a worker is
replaced is worded in `worker_pool` (that it hangs, `Patience.verdict`), what it was doing in `link.WatchPage`, that no
restart is left in `worker_pool.Restarts`; `ServerLost` and `OutOfStep`, which the loader catches, are classes of
`loader.lane_runner`. What a lane raises is sent by `_Worker._next` of `worker`, and raised again in the trainer by
`WorkerLink.take`. The order of batches is not decided here (`loader.position`), and nothing is written to files: a
worker is sent the state of its lanes to begin. In `slots` a slot is one of memory; elsewhere it is one in the job's
order.
"""
