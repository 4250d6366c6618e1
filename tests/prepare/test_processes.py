import multiprocessing
import os
import threading

import pytest

from bridge_data.prepare.processes import in_parallel, pool


@pytest.mark.parametrize("num_workers", [1, 3])
def test_results_come_in_the_order_of_the_arguments(num_workers: int) -> None:
    assert list(in_parallel(abs, range(-40, 0), num_workers=num_workers, what="counted")) == list(range(40, 0, -1))


def test_a_process_with_threads_is_not_forked() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with pool(2) as executor:
            assert executor.submit(os.getpid).result() == os.getpid()
    finally:
        stop.set()
        thread.join()
    assert multiprocessing.active_children() == []
