import os

from bridge_data.loader.workers.link import WatchPage
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
