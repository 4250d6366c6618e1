import os

from bridge_data.loader.workers.link import WatchPage, spin_briefly
from bridge_data.order import SampleRef


def test_the_trainer_reads_what_the_worker_is_on() -> None:
    trainer, descriptor = WatchPage.make()
    worker = WatchPage(descriptor)
    os.close(descriptor)
    seen = [trainer.progress()]
    assert trainer.describe() == "between two batches" and not trainer.on_sample()
    worker.enter(5)
    seen.append(trainer.progress())
    assert trainer.describe() == "in lane 5, on no sample yet" and not trainer.on_sample()
    worker.watch(SampleRef(2, 0, 41))
    seen.append(trainer.progress())
    assert trainer.describe() == f"in lane 5, on sample {SampleRef(2, 0, 41)}" and trainer.on_sample()
    worker.watch(SampleRef(2, 0, 41, 3))
    assert trainer.describe(lambda ref: f"{ref.index}/{ref.part}") == "in lane 5, on sample 41/3"
    worker.leave()
    seen.append(trainer.progress())
    assert trainer.describe() == "between two batches"
    assert len(set(seen)) == 4


def test_the_worker_reads_how_far_it_may_go_and_says_when_it_waits() -> None:
    trainer, descriptor = WatchPage.make()
    worker = WatchPage(descriptor)
    os.close(descriptor)
    assert (worker.allowed(), trainer.waits()) == (0, False)
    trainer.allow(5)
    worker.enter(3)
    worker.wait(True)
    assert (worker.allowed(), trainer.waits()) == (5, True)
    worker.wait(False)
    assert not trainer.waits() and trainer.describe() == "in lane 3, on no sample yet"


def test_what_does_not_come_soon_is_not_waited_for_any_longer() -> None:
    assert spin_briefly(lambda: True)
    assert not spin_briefly(lambda: False)
