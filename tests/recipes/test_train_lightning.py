from pathlib import Path

from recipes.train_lightning import newest_checkpoint


def test_the_newest_checkpoint_is_that_of_the_last_step(tmp_path: Path) -> None:
    assert newest_checkpoint(None) is None
    assert newest_checkpoint(str(tmp_path)) is None
    for name in ("step=8.ckpt", "step=12.ckpt", "last.ckpt", "step=99.ckpt.partial"):
        (tmp_path / name).touch()
    assert newest_checkpoint(str(tmp_path)) == str(tmp_path / "step=12.ckpt")
