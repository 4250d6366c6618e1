"""Worker processes: they run the lanes of a rank, and are replaced when they die or hang; no batch is lost or repeated.

    worker_pool  in the trainer: which lane runs on which worker; whom to replace, and how often
    link         one worker as the trainer sees it, across its processes
    watch_page   the page on which a worker says what it works on, and the trainer how far ahead it may be
    launch       the trainer's end of the server: starts it, asks it for workers, shares it between loaders
    server       the process that starts workers and reaps them
    worker       the process that runs lanes
    messages     what they tell each other, and the socket for it; of a lane's state only what has changed is sent
    services     the seam for what a feature adds to workers, opaque to all of these
    batches      batches, data sets and errors as bytes, with buffers by `samples.pickling`
    shared_buffers  the shared memory that batches are collated in

The trainer asks the server for workers, once, and again for one that has died. Then it talks to each worker by a
channel of its own: `Begin` (these lanes, from this state), a message for each result, and what batches the trainer has
taken by the page. What a lane raises travels as a message, too, and is raised again in the trainer.
"""
